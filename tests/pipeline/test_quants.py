"""Weight formats: densities that follow from what is stored, and records that must be refused."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.quants import body_bpw_of_reference, read_quants
from warehouse.dictionary import violations

SOURCES = Path(__file__).parents[2] / "sources"
Q4_K = '[[quant]]\nname = "q4_k"\ntitle = "Q4_K"\nlevel = "tensor-type"\nquant_class = "q4k"\n' \
    'compute_dtype = "int8"\nblock_size = 256\nblock_bytes = 144\nconfidence = "high"\n' \
    'cite = { "a/b" = ["block_size", "block_bytes"] }\n'  # fmt: skip
Q4_K_M = '[[quant]]\nname = "q4_k_m"\ntitle = "Q4_K_M"\nlevel = "file-mix"\nquant_class = "q4k"\n' \
    'compute_dtype = "int8"\nbase_type = "ggml/q4_k"\nembedding_type = "ggml/q4_k"\n' \
    'head_type = "ggml/q4_k"\nreference_bpw = 4.8\nconfidence = "high"\n' \
    'cite = { "a/b" = ["reference_bpw"] }\n'  # fmt: skip


def read(root: Path, files: dict[str, str]) -> tuple[dict[str, pl.DataFrame], list[str], CitationUse]:
    for name, text in files.items():
        path = root / "quants" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    log, use = FaultLog(root), CitationUse()
    return read_quants(root, log, use), [str(fault) for fault in log], use


@pytest.fixture(scope="module")
def quants() -> pl.DataFrame:
    log = FaultLog(SOURCES)
    frames = read_quants(SOURCES, log, CitationUse())
    assert [str(fault) for fault in log] == []
    for name, frame in frames.items():
        assert violations(frame, name, frames) == []
    assert frames["unsloth_dynamic"].height == 252
    return frames["quants"]


def row(quants: pl.DataFrame, quant: str) -> dict[str, object]:
    return quants.row(by_predicate=pl.col("quant") == quant, named=True)


def test_sources_hold_enough_formats(quants: pl.DataFrame) -> None:
    assert quants.height >= 190
    assert {"native/bf16", "native/f16", "native/f32", "fp4/mxfp4", "gguf/q4_k_m"} <= set(quants["quant"])


@pytest.mark.parametrize(
    ("quant", "bpw"),
    [
        ("ggml/q4_k", 144 * 8 / 256), ("ggml/q6_k", 210 * 8 / 256), ("ggml/q8_0", 8.5), ("ggml/mxfp4", 4.25),
        ("awq/int4-g128", 4 + 20 / 128), ("fp8/e4m3-block128", 8 + 32 / 128**2), ("mlx/4bit-g64", 4.5),
        ("native/bf16", 16.0), ("fp4/nvfp4", 4.5), ("compressed-tensors/w4a16-g32-sym", 4.5),
    ],
)  # fmt: skip
def test_block_layout_gives_the_density(quants: pl.DataFrame, quant: str, bpw: float) -> None:
    found = row(quants, quant)
    assert found["exact_bpw"] == found["body_bpw"] == pytest.approx(bpw, abs=1e-12)
    assert found["density_basis"] == "exact"


def test_same_mix_with_other_embedding_leaves_the_same_body(quants: pl.DataFrame) -> None:
    # The _L files differ from the plain ones in embedding and head only, so the derived bodies must agree.
    for plain, large in (
        ("q2_k", "q2_k_l"), ("q3_k_l", "q3_k_xl"), ("q4_k_m", "q4_k_l"), ("q5_k_m", "q5_k_l"),
        ("q6_k", "q6_k_l"),
    ):  # fmt: skip
        body = row(quants, f"gguf/{plain}")["body_bpw"]
        assert body == pytest.approx(row(quants, f"gguf/{large}")["body_bpw"], abs=2e-4)


def test_whole_reference_file_comes_back(quants: pl.DataFrame) -> None:
    found = row(quants, "gguf/q4_k_m")
    embedding = 128_256 * 4_096
    body = 8_030_261_248 - 2 * embedding
    bits = found["body_bpw"] * body + (found["embedding_bpw"] + found["head_bpw"]) * embedding  # type: ignore[operator]
    assert bits / 8_030_261_248 == pytest.approx(4.8944, abs=1e-9)
    assert (found["embedding_bpw"], found["head_bpw"]) == (4.5, 6.5625)


def test_experts_only_formats_say_what_the_rest_is(quants: pl.DataFrame) -> None:
    gguf, checkpoint = row(quants, "gguf/mxfp4_moe"), row(quants, "fp4/mxfp4")
    assert (gguf["scope"], gguf["body_bpw"], gguf["rest_bpw"], gguf["head_bpw"]) == (
        "experts",
        4.25,
        8.5,
        8.5,
    )
    assert (checkpoint["scope"], checkpoint["body_bpw"], checkpoint["rest_bpw"]) == ("experts", 4.25, 16.0)
    assert row(quants, "awq/int4-g128")["rest_bpw"] is None


def test_measured_formats_have_the_median_and_say_of_how_many(quants: pl.DataFrame) -> None:
    found = row(quants, "gguf/ud-q4_k_xl")
    assert found["density_basis"] == "measured"
    assert 4.6 < found["body_bpw"] < 5.5  # type: ignore[operator]
    assert "median of 30 measured file(s)" in str(found["note"])


def test_unknown_density_is_absent_not_zero(quants: pl.DataFrame) -> None:
    found = row(quants, "prism/pq2_0")
    assert [found[name] for name in ("body_bpw", "embedding_bpw", "head_bpw", "density_basis")] == [None] * 4


def test_body_of_a_uniform_file_is_uniform() -> None:
    assert body_bpw_of_reference(4.5, 4.5, 4.5) == pytest.approx(4.5)


def test_citations_are_noted(tmp_path: Path) -> None:
    frames, faults, use = read(tmp_path, {"ggml.toml": Q4_K})
    assert faults == []
    assert frames["quants"].item(0, "citation") == "a/b"
    assert ("quants", "ggml/q4_k", "block_bytes", "144", "a/b") in use.facts


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"ggml.toml": Q4_K.replace("block_bytes = 144\n", "")}, "are given together"),
        ({"ggml.toml": Q4_K.replace("q4k", "q4k_m")}, "nearest: q4k"),
        ({"ggml.toml": Q4_K + "colour = 1\n"}, "ggml.toml: colour = 1: unknown field"),
        ({"ggml.toml": Q4_K.replace('"block_size", ', "")}, "block_size = 256: number without a citation"),
        ({"ggml.toml": Q4_K + Q4_K}, "is given twice in this family"),
        ({"ggml.toml": Q4_K.replace("144", "-1")}, "block_bytes = -1"),
        ({"ggml.toml": Q4_K.replace("block_size", "reference_bpw = 4.5\nblock_size", 1)}, "has no"),
        ({"ggml.toml": 'title = "x"\n' + Q4_K}, "a family's file holds [[quant]] records only"),
        ({"ggml.toml": "[[quant]\n"}, "broken TOML"),
        ({"ggml.toml": ""}, "file is empty"),
        ({"ggml.toml": Q4_K, "gguf.toml": Q4_K_M.replace("ggml/q4_k", "ggml/q4_kk")}, "nearest: ggml/q4_k"),
        ({"ggml.toml": Q4_K, "gguf.toml": Q4_K_M.replace("4.8", "14.8")}, "far from its base type's 4.5"),
        ({"ggml.toml": Q4_K, "gguf.toml": Q4_K_M.replace("reference_bpw = 4.8", "is_measured = true").replace(
            '"reference_bpw"', '"is_measured"')}, "has no row of this quant"),
    ],
)  # fmt: skip
def test_faulty_records_are_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    _, faults, _ = read(tmp_path, files)
    assert any(message in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("r,f,ggml/q5_k,100,exact,100,config,a/b,", "unknown quant; nearest: ggml/q4_k"),
        ("r,f,ggml/q4_k,100,exact,10,config,a/b,", "gives 80.00 bits per weight"),
        ("r,f,ggml/q4_k,100,roughly,100,config,a/b,", "precision"),
        ("r,f,ggml/q4_k,100,exact,100,config", "row has 7 cells"),
    ],
)
def test_faulty_measured_rows_name_their_line(tmp_path: Path, line: str, message: str) -> None:
    header = "repo,file,quant,file_bytes,precision,n_params,params_source,citation,locator\n"
    _, faults, _ = read(tmp_path, {"ggml.toml": Q4_K, "unsloth_dynamic.csv": header + line + "\n"})
    assert any("unsloth_dynamic.csv:2:" in fault and message in fault for fault in faults), faults
