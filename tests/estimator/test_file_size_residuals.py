"""Published file sizes beside estimates: a file's own size never chooses what it is estimated as."""

from __future__ import annotations

from datetime import date
from typing import Any

import polars as pl
import pytest

from estimator.file_size_accuracy import file_size_accuracy
from estimator.file_size_residuals import file_size_residuals

GIB = 2**30
STATIC, MATRIX, EARLY = 4_000_000_000, 4_100_000_000, 3_900_000_000
COPY, PREDICTING = 4_500_000_000, 4_300_000_000
HEADER = 5_000_000
SIZES = {
    "file_id": pl.String, "model": pl.String, "model_relation": pl.String, "quant": pl.String,
    "hf_repo": pl.String, "model_name": pl.String, "quant_name": pl.String, "file_name": pl.String,
    "format": pl.String, "size_kind": pl.String, "size_bytes": pl.Int64, "size_gib": pl.Float64,
    "tolerance_gib": pl.Float64, "precision": pl.String, "params_exact": pl.Int64, "params_label": pl.String,
    "confidence": pl.String, "note": pl.String, "citation": pl.String,
}  # fmt: skip
PLAIN = {
    "model": "m/one", "model_relation": "quantised-variant", "quant": "gguf/q4_0",
    "hf_repo": "careful/one-GGUF", "model_name": "one", "quant_name": "Q4_0", "format": "gguf",
    "size_kind": "file", "precision": "exact", "confidence": "high", "citation": "measured-careful/one",
}  # fmt: skip
MODEL = {
    "model": "m/one", "model_type": "llama", "release_date": date(2026, 5, 1), "total_params": 8_000,
    "computed_params": 8_000, "embedding_params": 500, "mtp_params": 0, "params_difference_reason": None,
}  # fmt: skip
FACTS = {"model": "m/one", "is_tied": True, "gguf_has_mtp": False}


def made(quant: str = "gguf/q4_0", **changes: Any) -> dict[str, Any]:
    whole = {"with_imatrix": False, "is_before_2026": False, "with_mtp": False, "tensor_bytes": STATIC}
    return {"model": "m/one", "quant": quant, **whole, "expert_bytes": 0, **changes}


FILES = [
    made(),
    made(with_imatrix=True, tensor_bytes=MATRIX),
    made(is_before_2026=True, tensor_bytes=EARLY),
    made("gguf/q8_0"),
]
COPIES = [made(tensor_bytes=COPY), made("gguf/q8_0", tensor_bytes=COPY)]
HABITS = {
    "publisher": pl.String, "order": pl.Int32, "repo_part": pl.String, "quants": pl.String,
    "model_types": pl.String, "released_from": pl.Date, "with_imatrix": pl.Boolean, "recipe": pl.String,
}  # fmt: skip
CAREFUL = {"publisher": "careful", "order": 0, "with_imatrix": True, "recipe": "plain"}
OTHERS = [
    {"publisher": "special", "order": 0, "quants": "gguf/q8_0 gguf/q6_k", "recipe": "own"},
    {"publisher": "late", "order": 0, "released_from": date(2026, 6, 1), "recipe": "own"},
]


def of(size: int, **changes: Any) -> dict[str, Any]:
    """A row of the table file_sizes; rounded to 0.1 GiB where a tolerance is given."""
    row = {**PLAIN, "size_bytes": size + HEADER, "size_gib": (size + HEADER) / GIB, **changes}
    if row.get("tolerance_gib") is not None:
        row |= {"size_bytes": None, "precision": "rounded", "size_gib": round(row["size_gib"], 1)}
    return row


def residuals(
    *rows: dict[str, Any], model: dict[str, Any] | None = None, **more: Any
) -> list[dict[str, Any]]:
    return frame(*rows, model=model, **more).to_dicts()


def frame(
    *rows: dict[str, Any],
    model: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    files: list[dict[str, Any]] | None = None,
    dynamic: list[dict[str, Any]] | None = None,
) -> pl.DataFrame:
    numbered = [{"file_id": f"fs-{index}", **row} for index, row in enumerate(rows)]
    stored = {"model": ["m/one"], "quant": ["awq/int4"], "basis": ["recipe"], "file_bytes": [700],
              "mtp_bytes": [0]}  # fmt: skip
    heads = [
        {"model": "m/one", "with_mtp": mtp, "header_bytes": HEADER, "metadata_basis": "measured"}
        for mtp in (False, True)
    ]
    tables = {
        "file_sizes": pl.LazyFrame(numbered, schema=SIZES),
        "models": pl.LazyFrame(
            [{**MODEL, **(model or {})}], schema_overrides={"params_difference_reason": pl.String}
        ),
        "quantize_facts": pl.LazyFrame([{**FACTS, **(facts or {})}]),
        "gguf_files": pl.LazyFrame(files or FILES),
        "gguf_headers": pl.LazyFrame(heads),
        "stored_weights": pl.LazyFrame(stored),
        "gguf_publishers": pl.LazyFrame([CAREFUL, *OTHERS], schema=HABITS),
        "gguf_tokenizers": pl.LazyFrame({"file_ids": ["fs-90 fs-91"]}),
        "unsloth_dynamic": pl.LazyFrame(
            dynamic or [], schema={"quant": pl.String, "file_bytes": pl.Int64, "file": pl.String}
        ),
    }
    return file_size_residuals(tables, pl.LazyFrame(COPIES)).collect()


@pytest.mark.parametrize(
    ("changes", "with_imatrix", "basis"),
    [
        ({}, True, "publisher"),
        ({"hf_repo": "unknown/one-GGUF"}, False, "default"),
        ({"hf_repo": "unknown/one-i1-GGUF"}, True, "name"),
        ({"hf_repo": "unknown/anti1-GGUF"}, False, "default"),  # i1 is a word of its own
        ({"hf_repo": "unknown/one-GGUF", "file_name": "one-Q4_0-imat.gguf"}, True, "name"),
        ({"note": "static"}, False, "note"),
        ({"hf_repo": "unknown/one-GGUF", "note": "imatrix; merged experts"}, True, "note"),
    ],
)
@pytest.mark.parametrize("size", [STATIC, MATRIX])
def test_the_imatrix_is_read_off_names_never_off_the_size(
    changes: dict[str, Any], with_imatrix: bool, basis: str, size: int
) -> None:
    [found] = residuals(of(size, **changes))
    assert (found["with_imatrix"], found["imatrix_basis"]) == (with_imatrix, basis)
    expected = (MATRIX if with_imatrix else STATIC) + HEADER
    assert found["estimated_bytes"] == expected
    assert found["error_bytes"] == expected - size - HEADER
    assert found["error_percent"] == pytest.approx(100 * (expected / (size + HEADER) - 1), abs=1e-5)


def test_a_sum_of_tensors_has_no_header() -> None:
    whole, tensors = residuals(of(MATRIX), of(MATRIX, size_kind="tensors"))
    assert (whole["estimated_bytes"], whole["error_bytes"]) == (MATRIX + HEADER, 0)
    assert (tensors["estimated_bytes"], tensors["error_bytes"]) == (MATRIX, -HEADER)


def test_models_of_before_2026_follow_the_earlier_rules() -> None:
    static = of(EARLY, hf_repo="unknown/one-GGUF")
    for released, before in [(date(2025, 12, 31), True), (date(2026, 1, 1), False), (None, True)]:
        [found] = residuals(static, model={"release_date": released})
        assert (found["is_before_2026"], found["variant_basis"]) == (before, "usual")


def test_an_output_copy_needs_two_other_files_of_the_repository() -> None:
    """Two more than speak for the usual file; one is not enough, and a file's own size never counts."""
    copies = [of(COPY, hf_repo="x/kept", note="static") for _ in range(4)]
    alone = of(COPY, hf_repo="x/alone", note="static")
    pair = [of(COPY, hf_repo="x/pair", note="static") for _ in range(2)]
    odd = of(STATIC, hf_repo="x/kept", note="static")
    found = residuals(*copies, odd, alone, *pair)
    assert [row["with_output_copy"] for row in found] == [True] * 5 + [False] * 3
    assert [row["variant_basis"] for row in found] == ["repository"] * 5 + ["usual"] * 3
    assert found[4]["error_bytes"] == COPY - STATIC  # its neighbours outvote it


def test_printed_parameters_say_whether_there_is_a_copy() -> None:
    rows = [of(STATIC, note="static", params_exact=params) for params in (8_000, 8_004, 8_500)]
    found = residuals(*rows)
    assert [row["with_output_copy"] for row in found] == [False, False, True]
    assert {row["variant_basis"] for row in found} == {"parameters"}


def test_printed_parameters_say_whether_there_are_prediction_layers() -> None:
    files = [made(), made(with_mtp=True, tensor_bytes=PREDICTING)]
    own = {"mtp_params": 300, "release_date": date(2026, 2, 1)}
    rows = [of(STATIC, note="static", params_exact=params) for params in (8_000, 8_300)]
    found = residuals(*rows, model=own, facts={"gguf_has_mtp": True, "is_tied": False}, files=files)
    assert [row["with_mtp"] for row in found] == [False, True]


def test_parameters_of_another_model_are_not_judged() -> None:
    rows = [of(STATIC, note="static", params_exact=9_000), of(STATIC, note="static", params_label="8.01 B")]
    first, second = residuals(*rows, model={"computed_params": 8_000_000_000, "embedding_params": 1})
    assert (first["explanation"], first["is_judged"]) == ("other_parameters", False)
    assert (second["explanation"], second["is_judged"]) == (None, True)


def test_rounded_sizes_are_held_against_their_rounding() -> None:
    inside, outside = residuals(of(MATRIX, tolerance_gib=0.05), of(MATRIX, tolerance_gib=0.05, size_gib=3.7))
    assert inside["published_gib"] == 3.8  # 4,105,000,000 bytes are 3.823 GiB
    assert inside["published_bytes"] is None
    assert inside["is_within_rounding"]
    assert not outside["is_within_rounding"]


def test_a_default_variant_is_estimated_but_not_judged() -> None:
    row = of(STATIC, quant=None, quant_name=None, note="default variant, quantization not named")
    [found] = residuals(row, files=[made("gguf/q4_k_m", with_imatrix=True)])
    assert (found["quant"], found["quant_basis"]) == ("gguf/q4_k_m", "assumed")
    assert (found["explanation"], found["is_judged"]) == ("quantization_assumed", False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": None}, "model_not_known"),
        ({"quant": None, "quant_name": None}, "quantization_not_named"),
        ({"quant": "gguf/q9"}, "format_not_estimated"),
    ],
)
def test_rows_without_an_estimate_say_why(changes: dict[str, Any], reason: str) -> None:
    [found] = residuals(of(STATIC, **changes))
    assert (found["unmatched_reason"], found["estimated_bytes"]) == (reason, None)
    assert (found["is_judged"], found["explanation"]) == (False, None)


@pytest.mark.parametrize(
    ("changes", "explanation"),
    [
        ({"confidence": "low"}, "unverified"),
        ({"note": "files of December 2023, older mix rules"}, "older_rules"),
        ({"citation": "measured-huggingface/mradermacher-one"}, "printed_too_large"),
        ({"hf_repo": "special/one", "quant": "gguf/q8_0"}, "own_recipe"),
        ({"hf_repo": "special/one"}, None),  # the habit is of other formats
        ({"hf_repo": "late/one"}, None),  # of models released later
        ({"hf_repo": "unknown/one-qat-GGUF"}, "named_recipe"),
        ({"size_bytes": 20_000_000}, "part_of_a_split_file"),
    ],
)
def test_rows_that_say_nothing_about_the_rules(changes: dict[str, Any], explanation: str | None) -> None:
    [found] = residuals(of(STATIC, **changes))
    assert found["explanation"] == explanation
    assert found["is_judged"] == (explanation is None)


def test_a_plain_label_that_hides_a_dynamic_file() -> None:
    """llama-bench prints the file type of an unsloth file, not the name of its recipe."""
    plain = of(STATIC, note="static")
    dynamic = of(STATIC, quant="gguf/ud-q4_k_xl", quant_name="UD-Q4_K_XL")
    found = residuals(plain, dynamic)
    assert found[0]["explanation"] == "dynamic_under_a_plain_label"
    assert found[1]["unmatched_reason"] == "format_not_estimated"
    assert residuals(plain)[0]["explanation"] is None


def test_what_an_estimate_was_read_off_is_not_judged() -> None:
    rows = [of(STATIC, note="static", file_id="fs-91"), of(STATIC, note="static", file_id="fs-9")]
    assert [(row["is_basis"], row["is_judged"]) for row in residuals(*rows)] == [(False, True), (True, False)]


def test_checkpoints_hold_their_towers() -> None:
    row = of(700, format="safetensors", quant="awq/int4", size_bytes=740, size_gib=740 / GIB)
    sees = {"total_params": 8_020, "params_difference_reason": "vision tower of 20"}
    [found] = residuals(row, model=sees)
    assert (found["basis"], found["estimated_bytes"], found["error_bytes"]) == ("recipe", 740, 0)
    [other] = residuals(row, model={"total_params": 8_020, "params_difference_reason": "norms"})
    assert other["estimated_bytes"] == 700


def test_accuracy_counts_judged_rows_and_names_the_rest() -> None:
    rows = [
        of(STATIC, note="static"),
        of(STATIC, note="static", size_bytes=STATIC),  # header missing: 0.125 % too small
        of(STATIC, note="static", file_id="fs-90"),
        of(STATIC, note="static", confidence="low"),
        of(STATIC, note="static", tolerance_gib=0.05),
        of(STATIC, note="static", tolerance_gib=0.05, hf_repo="unknown/one-reap"),
    ]
    found = file_size_accuracy(frame(*rows).lazy()).collect()
    kinds = {
        (row["row_set"], row["value"]): row for row in found.filter(pl.col("slice") == "kind").to_dicts()
    }
    exact, rounded = kinds["judged", "gguf file, exact"], kinds["judged", "gguf file, rounded"]
    assert (exact["n_files"], exact["n_models"], exact["within_rounding_percent"]) == (2, 1, None)
    assert exact["largest_absolute_error_percent"] == 0.125
    assert exact["median_absolute_error_percent"] == 0.0625
    assert (rounded["n_files"], rounded["within_rounding_percent"]) == (1, 100.0)
    assert kinds["with_basis", "gguf file, exact"]["n_files"] == 3
    explained = found.filter(pl.col("row_set") == "explained", pl.col("slice") == "kind and explanation")
    assert explained["value"].to_list() == [
        "gguf file, exact: unverified",
        "gguf file, rounded: named_recipe",
    ]
