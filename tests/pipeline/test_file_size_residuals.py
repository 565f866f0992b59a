"""The published sizes of the sources against the estimates: what headers are read off, and how good they
are.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from estimator.file_size_accuracy import file_size_accuracy
from estimator.file_size_residuals import READS, file_size_residuals
from estimator.gguf_headers import gguf_headers, tensor_entries
from estimator.gguf_output_copies import files_with_output_copy
from pipeline.assets.evidence import OUTPUT_COPY_READS
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.gguf_publishers import Publisher, read_gguf_publishers
from pipeline.contracts.gguf_tokenizers import Tokenizer, read_gguf_tokenizers
from pipeline.contracts.sources import read_sources
from pipeline.grid_tables import census, in_text
from warehouse.dictionary import conform, violations

SOURCES = Path(__file__).parents[2] / "sources"
GIB = 2**30

Frames = dict[str, pl.LazyFrame]


@pytest.fixture(scope="module")
def real() -> Frames:
    read = read_sources(SOURCES)
    named = {name: in_text(read[name].lazy()) for name in {*READS, *OUTPUT_COPY_READS} - {"gguf_headers"}}
    tensors = census(named["tensors"])
    headers = gguf_headers(tensors, named["models"], named["gguf_tokenizers"]).collect()
    assert violations(conform(headers, "gguf_headers"), "gguf_headers", read) == []
    return {**named, "gguf_headers": headers.lazy()}


@pytest.fixture(scope="module")
def residuals(real: Frames) -> pl.DataFrame:
    tensors, *others = (real[name] for name in OUTPUT_COPY_READS)
    copies = files_with_output_copy(census(tensors), *others).collect()
    found = conform(file_size_residuals(real, copies.lazy()).collect(), "file_size_residuals")
    known = {
        name: frame.collect() for name, frame in real.items() if name in ("models", "quants", "file_sizes")
    }
    faults = violations(found, "file_size_residuals", known)
    assert [fault for fault in faults if "citation" not in str(fault)] == []
    return found


def test_metadata_are_what_their_files_leave(real: Frames) -> None:
    """Each file less its tensors, by the rules that do not ask for an importance matrix, and less their list;
    of rounded sizes the middle of what all leave possible. Old files are worked out by the earlier rules.
    """
    rows = real["gguf_tokenizers"].with_columns(file_id=pl.col("file_ids").str.split(" ")).explode("file_id")
    plain = real["gguf_files"].filter(~pl.col("with_imatrix"), ~pl.col("with_mtp"))
    sizes = real["file_sizes"].with_columns(pl.col("quant").fill_null("gguf/q4_k_m"))
    fused = pl.col("model").str.contains("(?i)phi-3")
    whole = pl.coalesce(pl.col("size_bytes").cast(pl.Float64), pl.col("size_gib") * GIB)
    half_step = pl.col("tolerance_gib").fill_null(0) * GIB
    rest = whole - pl.col("tensor_bytes") - pl.col("entry_bytes")
    left = (
        rows.join(sizes.select("file_id", "model", "quant", "size_bytes", "size_gib", "tolerance_gib"),
                  on="file_id", how="left")
        .join(plain, on=["model", "quant"])
        .filter(pl.col("is_before_2026") == fused)
        .join(tensor_entries(census(real["tensors"])).filter(~pl.col("with_mtp")), on="model")
        .group_by("tokenizer")
        .agg(
            pl.col("metadata_bytes").first(),
            low=(rest - half_step).max(),
            high=(rest + half_step).min(),
            n_files=pl.len(),
        )
        .collect()
    )  # fmt: skip
    assert left.height == rows.select("tokenizer").unique().collect().height
    assert left["n_files"].sum() == rows.collect().height
    middle = (left["low"] + left["high"]) / 2
    assert left.filter(left["low"] > left["high"]).rows() == []
    assert left.filter((middle - left["metadata_bytes"]).abs() > 1).rows() == []


def test_every_published_size_has_an_estimate_or_a_reason(real: Frames, residuals: pl.DataFrame) -> None:
    assert sorted(residuals["file_id"]) == sorted(real["file_sizes"].collect()["file_id"])
    has_one = residuals["estimated_bytes"].is_not_null()
    assert (has_one == residuals["unmatched_reason"].is_null()).all()
    assert residuals.filter("is_judged", pl.col("explanation").is_not_null() | pl.col("is_basis")).height == 0


def test_estimates_are_as_good_as_they_are_said_to_be(residuals: pl.DataFrame) -> None:
    found = file_size_accuracy(residuals.lazy()).collect()
    assert violations(conform(found, "file_size_accuracy"), "file_size_accuracy", {}) == []
    kinds = {
        row["value"]: row
        for row in found.filter(pl.col("row_set") == "judged", pl.col("slice") == "kind").to_dicts()
    }
    exact = kinds["gguf file, exact"]
    assert exact["n_files"] > 200
    assert exact["median_absolute_error_percent"] <= 0.01
    assert exact["p95_absolute_error_percent"] <= 0.1
    assert kinds["gguf tensors, exact"]["largest_absolute_error_percent"] < 0.001
    catalogues = kinds["gguf file, rounded"]
    assert catalogues["n_files"] > 3000
    assert catalogues["within_rounding_percent"] >= 98
    assert kinds["safetensors file, rounded"]["largest_absolute_error_percent"] <= 0.15
    assert kinds["mlx-safetensors file, unverified"]["median_absolute_error_percent"] <= 0.15


def write(folder: Path, name: str, columns: list[str], row: dict[str, str]) -> None:
    (folder / "quants").mkdir()
    text = ",".join(columns) + "\n" + 2 * (",".join(row.get(column, "") for column in columns) + "\n")
    (folder / "quants" / name).write_text(text, encoding="utf-8")


def test_a_vocabulary_is_given_once(tmp_path: Path) -> None:
    row = {"tokenizer": "x", "kind": "bpe", "vocab_size": "9", "metadata_bytes": "9",
           "file_ids": "fs-0123456789ab", "citation": "c/d"}  # fmt: skip
    write(tmp_path, "gguf_tokenizers.csv", list(Tokenizer.model_fields), row)
    log = FaultLog(tmp_path)
    assert read_gguf_tokenizers(tmp_path, log, CitationUse()).height == 1
    assert [str(fault) for fault in log] == ["quants/gguf_tokenizers.csv:3: tokenizer = 'x': is given twice"]


def test_a_habit_must_say_something_and_name_known_formats(tmp_path: Path) -> None:
    row = {"publisher": "p", "order": "0", "quants": "gguf/q4_0 gguf/q4_z", "recipe": "own", "n_agree": "1",
           "n_disagree": "0", "citation": "c/d"}  # fmt: skip
    write(tmp_path, "gguf_publishers.csv", list(Publisher.model_fields), row)
    log = FaultLog(tmp_path)
    read_gguf_publishers(tmp_path, log, CitationUse(), ["gguf/q4_0"])
    assert [fault.field for fault in log] == ["quants", "order", "quants"]
    with pytest.raises(ValueError, match="says with_imatrix or another recipe"):
        Publisher.model_validate({**row, "quants": None, "recipe": "plain"})
