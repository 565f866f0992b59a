"""The special checks hold what they promise: each passes on a sound row and fails on the row it is for."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from pipeline.checks import INVARIANTS, SHARES, Invariant, table_checks
from pipeline.table_store import TableStore
from tests.pipeline.small_project import GPUS, speeds_of, write_dictionary
from warehouse.dictionary import cube_schema, table, table_names

SOUND = {
    "decode_tok_s_low": 8.0,
    "decode_tok_s_mid": 10.0,
    "decode_tok_s_high": 12.0,
    "decode_tok_s_bound": 12.0,
    "decode_start_tok_s": 14.0,
    "decode_start_tok_s_bound": 15.0,
    "weights_gib": 4.6,
    "kv_cache_gib": 1.3,
    "runtime_gib": 0.7,
    "total_gib": 6.6,
    "output_tok_s_low": 1.0,
    "output_tok_s_mid": 2.0,
    "output_tok_s_high": 3.0,
}
RULES = [(name, rule) for name, rules in INVARIANTS.items() for rule in rules]


def breaches(rule: Invariant, **changed: float | None) -> bool:
    row = pl.DataFrame({name: [value] for name, value in (SOUND | changed).items()}, strict=False)
    return bool(row.cast(pl.Float32).select(rule.breach).item())


@pytest.mark.parametrize(("name", "rule"), RULES, ids=[f"{name}.{rule.name}" for name, rule in RULES])
def test_invariants_hold_on_a_sound_row_and_on_one_that_does_not_fit(name: str, rule: Invariant) -> None:
    assert not breaches(rule)
    speeds = {column: None for column in SOUND if "tok_s" in column}
    assert not breaches(rule, **speeds)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("no_speed_above_the_bound", {"decode_tok_s_high": 12.001}),
        ("no_speed_above_the_bound", {"decode_tok_s_mid": 12.001}),
        ("no_speed_above_the_bound", {"decode_start_tok_s": 15.001}),
        ("memory_adds_up", {"total_gib": 6.61}),
        ("decode_tok_s_interval_is_in_order", {"decode_tok_s_low": 10.1}),
        ("decode_tok_s_interval_is_in_order", {"decode_tok_s_high": 9.9}),
        ("output_tok_s_interval_is_in_order", {"output_tok_s_low": 2.1}),
    ],
)
def test_invariants_fail_on_the_row_they_are_for(name: str, changed: dict[str, float]) -> None:
    [rule] = [rule for _, rule in RULES if rule.name == name]
    assert breaches(rule, **changed)


@pytest.mark.parametrize("name", sorted(INVARIANTS.keys() | SHARES.keys()))
def test_special_checks_name_columns_that_exist(name: str) -> None:
    columns = set(table(name).column_names)
    for rule in INVARIANTS.get(name, ()):
        assert set(rule.breach.meta.root_names()) | set(rule.shown) <= columns
    for share in SHARES.get(name, ()):
        assert set(share.breach.meta.root_names()) | set(share.counted.meta.root_names()) <= columns


def evaluate(store: TableStore, name: str) -> dict[str, dg.AssetCheckEvaluation]:
    """Run a table's checks on what is staged, as the UI does when only the checks are asked for."""
    spec = dg.AssetSpec(name)
    definitions = dg.Definitions(
        assets=[spec], asset_checks=[table_checks(table(name), GPUS)], resources={"tables": store}
    )
    job = definitions.resolve_implicit_global_asset_job_def()
    run = job.execute_in_process(instance=dg.DagsterInstance.ephemeral(), raise_on_error=False)
    return {check.check_name: check for check in run.get_asset_check_evaluations()}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableStore:
    write_dictionary(tmp_path / "dictionary")
    monkeypatch.setattr("warehouse.dictionary.FOLDER", tmp_path / "dictionary")
    assert "speeds" in table_names()
    return TableStore(tmp_path / "stage", "2026.12.0")


def test_a_foreign_key_into_nowhere_is_found(store: TableStore) -> None:
    store.write("cards", pl.DataFrame({"card": ["big"], "memory_gib": [96.0]}))
    store.write("sizes", pl.DataFrame({"card": ["big", "huge"], "half_gib": [48.0, 1.0]}))
    check = evaluate(store, "sizes")["conforms"]
    assert not check.passed
    assert check.description == "sizes.card: must exist in cards.card in 1 row(s) (such as huge)"


def test_a_foreign_key_into_a_table_that_is_not_staged_is_said_to_be_unchecked(store: TableStore) -> None:
    store.write("sizes", pl.DataFrame({"card": ["huge"], "half_gib": [1.0]}))
    check = evaluate(store, "sizes")["conforms"]
    assert check.passed
    assert check.metadata["references_not_staged"].value == "cards"


def test_a_cube_of_unknown_gpus_is_found_by_its_categories(store: TableStore) -> None:
    store.write("cards", pl.DataFrame({"card": ["big"], "memory_gib": [96.0]}))
    store.write_partition("speeds", "big", speeds_of("big"))
    check = evaluate(store, "speeds")["conforms"]
    assert not check.passed
    assert "must exist in cards.card in 2 row(s) (such as medium, small)" in str(check.description)


def test_parts_that_are_not_staged_are_not_a_fault_of_those_that_are(store: TableStore) -> None:
    store.write("cards", pl.DataFrame({"card": list(GPUS), "memory_gib": [96.0, 24.0, 8.0]}))
    store.write_partition("speeds", "big", speeds_of("big"))
    check = evaluate(store, "speeds")["conforms"]
    assert check.passed
    assert check.metadata["parts"].value == 1


def test_a_repeated_key_inside_a_part_is_found(store: TableStore) -> None:
    schema = cube_schema("speeds", {"cards.card": GPUS})
    twice = pl.DataFrame({"gpu": ["big"] * 2, "context_tokens": [1, 1], "tok_s": [1.0, 2.0]}, schema=schema)
    store.write_partition("speeds", "big", twice)
    check = evaluate(store, "speeds")["conforms"]
    assert "key must be unique" in str(check.description)


def test_a_warning_does_not_stop_a_build(tmp_path: Path) -> None:
    store = TableStore(tmp_path, "2026.12.0")
    store.write(
        "unresolved_names",
        pl.DataFrame({"kind": ["gpu"], "name": ["RTX 9999"], "rows": [3], "nearest": [None]}),
    )
    check = evaluate(store, "unresolved_names")["names_are_resolved"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
