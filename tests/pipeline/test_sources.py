"""All sources as one: complete tables from the small tree, and what the real one must hold."""

from __future__ import annotations

import tomllib
from pathlib import Path

import polars as pl
import pytest

from pipeline.contracts.sources import read_sources
from warehouse.dictionary import tables, violations

TESTS = Path(__file__).parents[1]
SMALL = TESTS / "small_sources"
REAL = TESTS.parent / "sources"

Frames = dict[str, pl.DataFrame]


@pytest.fixture(scope="module")
def small() -> Frames:
    return read_sources(SMALL)


@pytest.fixture(scope="module")
def real() -> Frames:
    return read_sources(REAL)


def resolved_share(anchors: pl.DataFrame) -> float:
    return 1 - anchors.filter(pl.col("state") == "unresolved").height / anchors.height


def read_from_sources() -> set[str]:
    """Tables of the room `sources`, and those of other rooms that come from its files as they are."""
    measured = {
        "anchors", "serving_anchors", "file_sizes", "memory_flags", "memory_logs", "memory_plans", "claims",
        "alias_names",
        "unresolved_names", "unsloth_dynamic", "gguf_files", "stored_weights",
    }  # fmt: skip
    return {name for name, one in tables().items() if one.room == "sources"} | measured


def test_the_small_tree_gives_every_table_with_rows(small: Frames) -> None:
    assert set(small) == read_from_sources()
    assert [name for name, frame in small.items() if frame.is_empty()] == []


@pytest.mark.parametrize("name", sorted(read_from_sources()))
def test_small_tables_keep_the_promises_of_the_dictionary(small: Frames, name: str) -> None:
    assert [str(violation) for violation in violations(small[name], name, small)] == []


def test_the_small_tree_has_the_kinds_that_matter(small: Frames) -> None:
    gpus = small["gpus"]
    assert set(gpus["vendor"]) == {"nvidia", "amd", "apple"}
    assert gpus.filter(pl.col("vendor") == "apple").get_column("usable_macos_gib").null_count() == 0
    mixers = set(small["layers"].get_column("mixer").cast(pl.String))
    assert {"full", "sliding", "mla"} <= mixers
    assert small["models"].get_column("is_moe").any()
    for name in ("anchors", "serving_anchors"):
        assert set(small[name]["state"].cast(pl.String)) == {"accepted", "flagged", "unresolved"}
    assert set(small["frameworks"]["role"].cast(pl.String)) == {"engine", "wrapper", "measured-only"}


def test_every_number_of_a_gpu_file_is_a_fact_with_its_source(small: Frames) -> None:
    facts = small["facts"].filter(pl.col("table_name") == "gpus")
    for path in sorted((SMALL / "gpus").rglob("*.toml")):
        record = tomllib.loads(path.read_text("utf-8"))
        numbers = {name: value for name, value in record.items() if type(value) in (int, float)}
        stated = facts.filter(pl.col("record") == path.stem)
        values = dict(stated.select("field", pl.col("value").cast(pl.Float64, strict=False)).iter_rows())
        assert numbers
        assert {name: values[name] for name in numbers} == numbers
        assert set(stated["citation"]) == set(record["cite"])


def test_reading_twice_gives_the_same(small: Frames) -> None:
    again = read_sources(SMALL)
    assert [name for name, frame in small.items() if not frame.equals(again[name])] == []


def test_the_real_sources_are_sound_and_complete(real: Frames) -> None:
    """Read once: every file without a fault (else SourceFaults), every promise kept, as much as published."""
    broken = [str(violation) for name, frame in real.items() for violation in violations(frame, name, real)]
    assert broken == []
    assert set(real) == read_from_sources()
    gpus, models = real["gpus"], real["models"]
    assert gpus.get_column("published").sum() >= 285
    assert models.get_column("published").sum() >= 350
    assert real["quants"].height >= 190
    roles = real["frameworks"].get_column("role").cast(pl.String)
    assert roles.is_in(["engine", "wrapper"]).sum() >= 16
    assert real["anchors"].height + real["serving_anchors"].height >= 13_000
    assert resolved_share(real["anchors"]) >= 0.90
    assert resolved_share(real["serving_anchors"]) >= 0.90


def test_nothing_doubtful_reads_as_confirmed(real: Frames) -> None:
    for name in ("gpus", "models"):
        low = real[name].filter(pl.col("published") & (pl.col("confidence").cast(pl.String) == "low"))
        assert low.is_empty()
        kept_out = real[name].filter(~pl.col("published"))
        assert kept_out.get_column("unpublished_reason").null_count() == 0
    access = real["citations"].get_column("access")
    assert access.null_count() == 0
    assert "cited-not-opened" in set(access.cast(pl.String))


def test_the_real_claims_are_those_of_the_reference(real: Frames) -> None:
    claims = real["claims"]
    questions = claims.filter(pl.col("page") == "tps_calculator_faq").get_column("question")
    assert set(questions) == set(range(1, 20))
    page = claims.filter(pl.col("page") == "v100_8b_page")
    rows = page.filter(pl.col("quantity").cast(pl.String) == "verdict")
    assert rows.height == 42
    assert rows.select("quant", "context_tokens").n_unique() == 42
