"""What each system leaves, and who keeps the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from estimator.system_memory import capacity
from estimator.usable_memory import usable_memory

RULES = pl.read_csv(Path(__file__).parents[2] / "sources" / "capacity_rules" / "rules.csv")
READING_SCHEMA = {
    "gpu": pl.String, "os": pl.String, "measure": pl.String, "reading_mib": pl.Float64, "state": pl.String,
    "citation": pl.String, "locator": pl.String,
}  # fmt: skip
CARD = ("card", "nvidia", "consumer", "GDDR6X", 24.0, False)
SERVER = ("server", "nvidia", "datacenter", "GDDR6", 48.0, False)
LAPTOP = ("laptop", "amd", "laptop", "LPDDR5X", 128.0, True)
MAC = ("mac", "apple", "apple", "LPDDR5", 36.0, True)


def made(
    *readings: tuple[Any, ...], gpus: tuple[tuple[Any, ...], ...] = (CARD, SERVER, LAPTOP, MAC)
) -> pl.DataFrame:
    names = ["gpu", "vendor", "category", "memory_type", "memory_gib", "unified_memory"]
    facts = pl.DataFrame(gpus, names, orient="row")
    read = pl.DataFrame(list(readings), READING_SCHEMA, orient="row")
    usable = usable_memory(facts, read, dict(RULES.select("rule", "value").iter_rows()))
    return capacity(facts.join(usable, on="gpu"), read, RULES)


def test_each_gpu_has_the_systems_that_exist_for_it() -> None:
    assert made().select("gpu", "os", "is_own_system").rows() == [
        ("card", "linux", True),
        ("card", "windows", False),
        ("laptop", "linux", True),
        ("laptop", "windows", False),
        ("mac", "macos", True),
        ("server", "linux", True),
    ]


def test_the_parts_add_up_to_the_memory() -> None:
    found = made(
        ("card", "linux", "cuda-total", 24080.0, "accepted", "a/b", "x"),
        ("laptop", "windows", "os-limit", 98304.0, "accepted", "a/b", "y"),
    )
    parts = pl.sum_horizontal("hidden_gib", "driver_gib", "system_gib", "usable_gib")
    assert found.select(((parts - pl.col("memory_gib")).abs() < 1e-4).all()).item()
    assert found.select((pl.col("comfortable_gib") < pl.col("usable_gib")).all()).item()


@pytest.mark.parametrize(
    ("gpu", "os", "parts"),
    [
        ("card", "linux", (0.012, 0.45, 0.0, 23.538)),
        ("card", "windows", (0.012, 0.45, 1.0, 22.538)),
        ("server", "linux", (3.024, 0.45, 0.0, 44.526)),
        ("laptop", "linux", (0.0, 0.0, 20.48, 107.52)),
        ("mac", "macos", (0.0, 0.0, 9.0, 27.0)),
    ],
)
def test_who_keeps_what(gpu: str, os: str, parts: tuple[float, ...]) -> None:
    row = made().filter(gpu=gpu, os=os).select("hidden_gib", "driver_gib", "system_gib", "usable_gib").row(0)
    assert row == pytest.approx(parts)


def test_a_reading_is_cited_and_makes_a_row_measured() -> None:
    found = made(
        ("card", "linux", "cuda-total", 24080.0, "accepted", "higher/one", "x"),
        ("card", "unstated", "engine-total", 24064.0, "accepted", "lower/one", "page 3"),
        ("card", "linux", "cuda-total", 20000.0, "flagged", "flagged/one", "x"),
    )
    linux = found.row(by_predicate=(pl.col("gpu") == "card") & (pl.col("os") == "linux"), named=True)
    assert (linux["usable_gib"], linux["basis"], linux["rule"]) == (23.5, "measured", None)
    assert (linux["citation"], linux["locator"]) == ("lower/one", "page 3")
    windows = found.row(by_predicate=(pl.col("gpu") == "card") & (pl.col("os") == "windows"), named=True)
    assert (windows["basis"], windows["rule"]) == ("derived", "windows_display_reserve")
    assert windows["citation"] == "accelerator-knowledge/windows-display-reserve"
