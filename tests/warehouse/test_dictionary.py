"""The dictionary is read strictly, and every rule it states is really checked."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.warehouse.small_stage import IDS, best_fit, estimates
from warehouse import dictionary
from warehouse.dictionary import DictionaryError, load_table, violations, violations_of

GOOD = """
table = "things"
title = "Things"
description = "One row per thing."
room = "sources"
key = ["thing"]
[[column]]
name = "thing"
dtype = "str"
description = "Id."
[[column]]
name = "kind"
dtype = "enum"
enum = ["big", "small"]
description = "Kind."
[[column]]
name = "mass_kg"
dtype = "f64"
unit = "kg"
description = "Mass."
nullable = true
min = 1
max = 10
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "things.toml"
    path.write_text(text)
    return path


def things(**changes: object) -> pl.DataFrame:
    return pl.DataFrame({"thing": ["a", "b"], "kind": ["big", "small"], "mass_kg": [1.0, None]} | changes)


def test_every_dictionary_file_is_sound() -> None:
    for name in dictionary.table_names():
        assert dictionary.table(name).name == name


def test_good_file_becomes_a_table(tmp_path: Path) -> None:
    one = load_table(write(tmp_path, GOOD))
    assert one.column_names == ("thing", "kind", "mass_kg")
    assert one.column("mass_kg").unit == "kg"
    assert one.column("kind").polars_type == pl.Enum(["big", "small"])
    assert not one.is_cube


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('title = "Things"', 'title = "Things"\ncolour = "red"', "unknown key 'colour'"),
        ('unit = "kg"', 'units = "kg"', "unknown key 'units'"),
        ('name = "kind"', 'name = "thing"', "column 'thing' is given twice"),
        ('key = ["thing"]', 'key = ["stone"]', "key 'stone' is not a column"),
        ('key = ["thing"]', "key = []", "key must be a non-empty list"),
        ('key = ["thing"]', 'key = ["mass_kg"]', "a key column cannot be nullable"),
        ('dtype = "f64"', 'dtype = "float"', "dtype 'float' must be one of"),
        ("min = 1", "min = 11", "min 11 is above max 10"),
        ("min = 1", "min = 1\nexclusive_min = 0", "cannot both be given"),
        ("min = 1", "min = nan", "a range must be finite"),
        ('dtype = "f64"', 'dtype = "str"', "only numbers have a range"),
        ('enum = ["big", "small"]', "", "go together"),
        ('enum = ["big", "small"]', 'enum = ["big", "big"]', "must hold different"),
        ('description = "Mass."', "", "description is missing"),
        ("nullable = true", 'nullable = "yes"', "nullable has the wrong type"),
        ("nullable = true", 'nullable = true\nnull_where = { size = "x" }', "'size', which is not a column"),
        ("nullable = true", 'null_where = { kind = "big" }', "null_where needs one column and nullable"),
        ('dtype = "str"', 'dtype = "id"', "dtype id and enum_of go together"),
        ('dtype = "str"', 'dtype = "str"\nreferences = "gpus"', "must be written table.column"),
        ('table = "things"', 'table = "stones"', "the file is named 'things'"),
        ('room = "sources"', 'room = "kitchen"', "room 'kitchen' must be one of"),
        ('room = "sources"', 'room = "sources', "cannot be read"),
    ],
)
def test_wrong_file_is_refused_with_the_fault(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert old in GOOD
    with pytest.raises(DictionaryError, match=r"things\.toml") as caught:
        load_table(write(tmp_path, GOOD.replace(old, new, 1)))
    assert fault in str(caught.value)


def test_reference_to_nothing_is_refused(tmp_path: Path) -> None:
    text = GOOD.replace('dtype = "str"', 'dtype = "id"\nenum_of = "stones.stone"', 1)
    one = load_table(write(tmp_path, text))
    with pytest.raises(DictionaryError, match=r"things\.thing references stones\.stone"):
        dictionary.check_references({"things": one})
    assert one.column("thing").polars_type == pl.String


def test_unknown_table_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="estimates"):
        dictionary.table("estimate")


def test_cube_schema_makes_sorted_enums() -> None:
    schema = dictionary.cube_schema("estimates", IDS | {"gpus.gpu": ["b", "a", "b"]})
    assert schema["gpu"] == pl.Enum(["a", "b"])
    assert schema["gpu_citation"] == pl.Enum(["made-up/sheet"])
    assert dictionary.polars_schema("estimates")["gpu"] == pl.String


def test_conform_selects_orders_and_casts() -> None:
    frame = best_fit()
    mixed = frame.select(reversed(frame.columns)).with_columns(pl.col("total_gib").cast(pl.Float64), extra=1)
    assert dictionary.conform(mixed, "best_fit", IDS).equals(frame)
    ids = [column.name for column in dictionary.table("best_fit").columns if column.dtype == "id"]
    in_text = mixed.with_columns(pl.col(ids).cast(pl.String))
    assert dictionary.conform(in_text.lazy(), "best_fit").collect().schema == dictionary.polars_schema(
        "best_fit"
    )
    assert dictionary.conform(mixed, "best_fit").equals(frame)  # Enums of ids stay
    with pytest.raises(ValueError, match=r"missing column.*quant"):
        dictionary.conform(mixed.drop("quant"), "best_fit")


def test_conform_refuses_an_id_nobody_knows() -> None:
    with pytest.raises(pl.exceptions.InvalidOperationError, match="gamma"):
        dictionary.conform(best_fit().with_columns(pl.lit("gamma").alias("gpu")), "best_fit", IDS)


def test_sound_frames_have_no_violations() -> None:
    gpus = pl.DataFrame({"gpu": IDS["gpus.gpu"]})
    assert violations(estimates("beta-8gb"), "estimates", {"gpus": gpus}) == []
    assert violations(estimates("beta-8gb").lazy(), "estimates") == []


@pytest.mark.parametrize(
    ("changes", "column", "rule", "count"),
    [
        ({"thing": ["a", "a"]}, "thing", "key must be unique", 1),
        ({"thing": ["a", None]}, "thing", "must not be empty", 1),
        ({"kind": ["big", "huge"]}, "kind", "must be one of big, small", 1),
        ({"mass_kg": [0.5, 10.5]}, "mass_kg", "must be at least 1", 1),
        ({"mass_kg": [0.5, 10.5]}, "mass_kg", "must be at most 10", 1),
        ({"mass_kg": [float("nan"), float("inf")]}, "mass_kg", "must be finite", 2),
        ({"mass_kg": [1, 2]}, "mass_kg", "must have type f64", 0),
        ({"colour": ["red", "red"]}, "colour", "column is not in the dictionary", 0),
    ],
)
def test_each_rule_finds_its_breach(
    tmp_path: Path, changes: dict[str, list[object]], column: str, rule: str, count: int
) -> None:
    one = load_table(write(tmp_path, GOOD))
    assert violations_of(things(), one) == []
    found = violations_of(things(**changes), one)
    assert (column, count) in {(each.column, each.count) for each in found if each.rule.startswith(rule)}


def test_missing_and_misplaced_columns_are_found(tmp_path: Path) -> None:
    one = load_table(write(tmp_path, GOOD))
    (missing,) = violations_of(things().drop("kind"), one)
    assert (missing.column, missing.rule) == ("kind", "column is missing")
    (order,) = violations_of(things().select("kind", "thing", "mass_kg"), one)
    assert "in this order: thing, kind, mass_kg" in order.rule


def test_exclusive_minimum_and_foreign_key(tmp_path: Path) -> None:
    text = GOOD.replace("min = 1", "exclusive_min = 1").replace(
        'dtype = "str"', 'dtype = "str"\nreferences = "stones.stone"', 1
    )
    one = load_table(write(tmp_path, text))
    found = violations_of(things(), one, {"stones": pl.DataFrame({"stone": ["a"]})})
    assert {(each.column, each.rule, each.examples) for each in found} == {
        ("thing", "must exist in stones.stone", ("b",)),
        ("mass_kg", "must be more than 1", ("1.0",)),
    }
    assert "things.thing: must exist in stones.stone in 1 row(s) (such as b)" in {str(each) for each in found}


def test_foreign_key_of_an_enum_is_checked_against_its_values() -> None:
    gpus = pl.DataFrame({"gpu": ["alpha-24gb"]})
    (found,) = violations(estimates("beta-8gb"), "estimates", {"gpus": gpus})
    assert (found.column, found.count, found.examples) == ("gpu", 4, ("beta-8gb",))


@pytest.mark.parametrize("wrong", [{"verdict": "comfortable"}, {"decode_tok_s_mid": 1.0}])
def test_speed_is_empty_exactly_where_nothing_fits(wrong: dict[str, object]) -> None:
    frame = dictionary.conform(estimates("beta-8gb").with_columns(**{k: pl.lit(v) for k, v in wrong.items()}),
                               "estimates", IDS)  # fmt: skip
    rules = {(each.column, each.rule) for each in violations(frame, "estimates")}
    assert ("decode_tok_s_mid", "must be empty exactly where verdict is no_fit") in rules
