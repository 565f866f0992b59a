"""Each anchor beside the estimate for exactly its own setting, and what becomes of impossible ones."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from estimator.bound import bound_work, decode_tok_s_bound
from estimator.calibration import gpu_coefficients, recipe_coefficients
from estimator.decode import decode_tok_s, decode_work
from estimator.residuals import anchor_residuals
from tests.estimator.cube_cases import (
    AWQ,
    BF16,
    COEFFICIENTS,
    DENSE,
    GPU,
    MOE,
    Q4_K_M,
    cube_recipes,
    layer_frame,
    stored_table,
    two_models,
)
from tests.estimator.speed_cases import gpu_frame, recipe_frame

GPUS = pl.concat(
    [gpu_frame(), gpu_frame(gpu="rtx-4080-16gb", memory_gib=16.0), gpu_frame(gpu="h100", family="nv-hopper"),
     gpu_frame(gpu="no-bandwidth", bandwidth_gb_s=None)]
)  # fmt: skip
FRAMEWORKS = pl.DataFrame(
    [
        ("llama.cpp", "llama.cpp", "layer", "fixed", None),
        ("ollama", "llama.cpp", "layer", "fixed", None),
        ("vllm", "vllm", "tensor", "utilization_of_total", 0.92),
    ],
    schema=["framework", "engine", "parallel_mode", "memory_policy", "memory_fraction"],
    orient="row",
)
QUANTS = pl.DataFrame([Q4_K_M, BF16, AWQ], schema_overrides={"rest_bpw": pl.Float64})
TABLES = {
    "gpus": GPUS,
    "models": two_models()[0].collect(),
    "layers": layer_frame({}, {"model": MOE, "n_layers": 48, "n_kv_heads": 4}).collect(),
    "quants": QUANTS,
    "frameworks": FRAMEWORKS,
    "kv_dtypes": pl.DataFrame(
        {"framework": ["llama.cpp", "vllm"], "kv_dtype": ["f16", "f16"], "k_bytes_per_element": [2.0, 2.0],
         "v_bytes_per_element": [2.0, 2.0]}
    ),
    "coefficients": COEFFICIENTS,
    "stored_weights": stored_table(two_models()[0], QUANTS.lazy()).collect(),
}  # fmt: skip
ANCHOR: dict[str, Any] = {
    "anchor_id": "a0",
    "gpu": GPU,
    "n_gpus": 1,
    "model": DENSE,
    "framework": "llama.cpp",
    "backend": "cuda",
    "quant": "gguf/q4_k_m",
    "kv_dtype": "f16",
    "depth_tokens": 4096,
    "start_depth_tokens": 0,
    "prompt_tokens": None,
    "decode_tok_s": 120.0,
    "prefill_tok_s": None,
    "state": "accepted",
    "state_reason": None,
    "prefill_state": "accepted",
    "prefill_reason": None,
    "citation": "source/a",
}
SERVED: dict[str, Any] = {
    "anchor_id": "s0",
    "gpu": GPU,
    "n_gpus": 1,
    "model": DENSE,
    "framework": "vllm",
    "backend": "cuda",
    "quant": "awq/int4-g128",
    "kv_dtype": "f16",
    "rate_kind": "request-time",
    "input_tokens": 1024.0,
    "output_tokens": 1024.0,
    "n_requests": 16,
    "tensor_parallel": None,
    "pipeline_parallel": None,
    "data_parallel": None,
    "output_tok_s": 800.0,
    "state": "accepted",
    "state_reason": None,
    "citation": "source/s",
}
_INTEGERS = ("n_gpus", "tensor_parallel", "pipeline_parallel", "data_parallel")
_LENGTHS = ("depth_tokens", "start_depth_tokens", "prompt_tokens", "n_requests")


def _frame(row: dict[str, Any], changes: tuple[dict[str, Any], ...]) -> pl.LazyFrame:
    schema = {
        name: pl.Int16() if name in _INTEGERS else pl.Int32() if name in _LENGTHS else pl.Float64()
        if name.endswith("_tok_s") or name in ("input_tokens", "output_tokens") else pl.String()
        for name in row
    }  # fmt: skip
    letter = row["anchor_id"][0]
    return pl.LazyFrame(
        [{**row, "anchor_id": f"{letter}{at}", **change} for at, change in enumerate(changes)], schema=schema
    )


def judged(*changes: dict[str, Any], served: tuple[dict[str, Any], ...] = ()) -> list[dict[str, Any]]:
    found = anchor_residuals(_frame(ANCHOR, changes), _frame(SERVED, served), TABLES).collect()
    return found.with_columns(pl.col("basis").cast(pl.String)).to_dicts()


def test_the_estimate_is_the_decode_formula_at_the_anchors_depth() -> None:
    """4,096 tokens of 131,072 bytes; 4,618,693,018 bytes of weights."""
    (found,) = judged({})
    gpu = gpu_coefficients(gpu_frame(), COEFFICIENTS).filter(pl.col("backend") == "cuda").row(0, named=True)
    change = {
        "dense_read_bytes": 4_618_693_018.0,
        "kv_read_bytes": 4096 * 131_072.0,
        "parallel_mode": "layer",
    }
    by_hand = (
        recipe_coefficients(recipe_frame(change), COEFFICIENTS)
        .with_columns(*decode_work(COEFFICIENTS), *bound_work())
        .select(mid=decode_tok_s("full", gpu), bound=decode_tok_s_bound("full", gpu))
        .collect()
        .row(0, named=True)
    )
    assert found["estimated_mid"] == pytest.approx(by_hand["mid"], rel=1e-5)
    assert found["bound"] == pytest.approx(by_hand["bound"], rel=1e-5)
    assert found["ratio"] == pytest.approx(found["estimated_mid"] / 120.0)
    assert (found["metric"], found["measured"], found["concurrency"]) == ("decode_tok_s", 120.0, 1)
    assert (found["role"], found["citation"], found["state"]) == ("shown", "source/a", "accepted")
    assert found["estimated_low"] < found["estimated_mid"] < found["estimated_high"] <= found["bound"]


@pytest.mark.parametrize(
    ("framework", "quant", "n_gpus", "model"),
    [
        ("llama.cpp", "gguf/q4_k_m", 2, DENSE),
        ("vllm", "native/bf16", 2, MOE),
        ("vllm", "awq/int4-g128", 1, DENSE),
    ],
)
def test_an_anchor_and_a_recipe_of_one_setting_do_the_same_work(
    framework: str, quant: str, n_gpus: int, model: str
) -> None:
    """The bound of the residual is the bound of the cube's recipe at the same context."""
    (found,) = judged({"framework": framework, "quant": quant, "n_gpus": n_gpus, "model": model})
    gpu = gpu_coefficients(gpu_frame(), COEFFICIENTS).filter(pl.col("backend") == "cuda").row(0, named=True)
    recipe = cube_recipes().filter(
        pl.col("framework") == framework, pl.col("quant") == quant, pl.col("n_gpus") == n_gpus,
        pl.col("model") == model, pl.col("context_tokens") == 4096,
    )  # fmt: skip
    mid, bound = recipe.select(mid=decode_tok_s("full", gpu), bound=decode_tok_s_bound("full", gpu)).row(0)
    assert found["bound"] == pytest.approx(bound, rel=1e-5)
    assert found["estimated_mid"] == pytest.approx(mid, rel=1e-5)


def test_deeper_is_slower_and_unknown_depth_counts_as_empty() -> None:
    shallow, deep, unknown = judged({"depth_tokens": 0}, {"depth_tokens": 30_000}, {"depth_tokens": None})
    assert deep["estimated_mid"] < shallow["estimated_mid"] == unknown["estimated_mid"]
    assert unknown["depth_tokens"] == 0


def test_a_measurement_above_the_bound_is_flagged() -> None:
    """4.6187 GB and 0.5369 GB of cache at 1,008 GB/s allow 195.5 tok/s."""
    below, above = judged({"decode_tok_s": 195.0}, {"decode_tok_s": 196.0})
    assert below["bound"] == pytest.approx(1008 / (4.618693018 + 0.536870912), rel=1e-5)
    assert (below["state"], below["reason"], below["is_above_bound"]) == ("accepted", None, False)
    assert (above["state"], above["reason"], above["is_above_bound"]) == ("flagged", "above-the-bound", True)


def test_a_reason_given_before_stays() -> None:
    (found,) = judged({"decode_tok_s": 500.0, "state": "flagged", "state_reason": "speculation"})
    assert (found["state"], found["reason"], found["is_above_bound"]) == ("flagged", "speculation", True)


@pytest.mark.parametrize(
    "change",
    [{"state": "unresolved"}, {"decode_tok_s": None}, {"gpu": "nowhere"}, {"gpu": "no-bandwidth"},
     {"backend": None}, {"n_gpus": 0}, {"n_gpus": None}, {"quant": "nowhere"}, {"model": "nowhere"},
     {"framework": "nowhere"}, {"kv_dtype": "nowhere"}, {"gpu": None}],
)  # fmt: skip
def test_what_cannot_be_computed_has_no_row(change: dict[str, Any]) -> None:
    assert [row["anchor_id"] for row in judged({}, change)] == ["a0"]


def test_within_the_interval() -> None:
    """Two anchors rest on each other, so both have the interval of a measured device."""
    low = judged({}, {})[0]["estimated_low"]
    inside, outside = judged({"decode_tok_s": low * 1.01}, {"decode_tok_s": low * 0.99})
    assert (inside["is_within_interval"], outside["is_within_interval"]) == (True, False)


@pytest.mark.parametrize(
    ("beside", "basis"),
    [
        ((), ["spec_only"]),  # alone it rests on data sheets
        (({"gpu": "rtx-4080-16gb"},), ["family", "family"]),
        (({"gpu": "h100"},), ["engine", "engine"]),
        (({"depth_tokens": 50},), ["device", "device"]),
        (({"framework": "ollama"},), ["device", "device"]),  # the same engine
        (({"backend": "vulkan"},), ["spec_only", "spec_only"]),
    ],
)
def test_an_anchor_is_no_evidence_for_itself(beside: tuple[dict[str, Any], ...], basis: list[str]) -> None:
    assert [row["basis"] for row in judged({}, *beside)] == basis


def test_flagged_measurements_are_no_evidence() -> None:
    accepted, flagged = judged({}, {"state": "flagged", "state_reason": "partial-offload"})
    assert (accepted["basis"], flagged["basis"]) == ("spec_only", "device")


def test_prompts_have_their_own_state_and_length() -> None:
    change = {
        "decode_tok_s": None,
        "prefill_tok_s": 9000.0,
        "prompt_tokens": 2048,
        "prefill_state": "flagged",
        "prefill_reason": "cached",
    }
    (found,) = judged(change)
    assert (found["metric"], found["depth_tokens"], found["state"], found["reason"]) == (
        "prefill_tok_s", 2048, "flagged", "cached",
    )  # fmt: skip
    assert found["bound"] is None
    assert found["is_above_bound"] is None
    assert found["estimated_low"] < found["estimated_mid"] < found["estimated_high"]


def test_prompts_behind_a_filled_cache_are_another_question() -> None:
    prompt = {"decode_tok_s": None, "prefill_tok_s": 9000.0, "prompt_tokens": 2048}
    assert len(judged(prompt, prompt | {"start_depth_tokens": 4096}, prompt | {"prompt_tokens": 0})) == 1


def test_one_anchor_may_have_two_metrics() -> None:
    found = judged({"prefill_tok_s": 9000.0, "prompt_tokens": 2048})
    assert [(row["anchor_id"], row["metric"]) for row in found] == [
        ("a0", "decode_tok_s"),
        ("a0", "prefill_tok_s"),
    ]


def test_served_requests() -> None:
    """Halfway through 1,024 + 1,024 tokens: depth 1,536."""
    (found,) = judged(served=({},))
    assert (found["metric"], found["concurrency"], found["depth_tokens"]) == ("output_tok_s", 16, 1536)
    assert 100 < found["estimated_mid"] < 3000
    assert found["bound"] is None


@pytest.mark.parametrize(
    "change",
    [
        {"rate_kind": "offline-max"},
        {"n_requests": None},
        {"input_tokens": 0.0},
        {"output_tokens": None},
        {"pipeline_parallel": 2},
        {"data_parallel": 2},
        {"n_gpus": 4, "tensor_parallel": 2},
        {"state": "unresolved"},
    ],
)
def test_other_ways_to_serve_have_no_row(change: dict[str, Any]) -> None:
    found = judged(served=({}, change, {"n_gpus": 4, "tensor_parallel": 4, "pipeline_parallel": 1}))
    assert [row["anchor_id"] for row in found] == ["s0", "s2"]


def test_without_an_estimate_there_is_no_interval() -> None:
    """bf16 experts of 57 GB do not fit 24 GiB: shown without a number."""
    (found,) = judged(served=({"model": MOE, "quant": "native/bf16"},))
    for name in ("estimated_low", "estimated_mid", "estimated_high", "ratio", "is_within_interval"):
        assert found[name] is None, name


def test_rows_are_sorted_and_unique() -> None:
    found = judged({}, {}, {"prefill_tok_s": 1.0, "prompt_tokens": 5}, served=({}, {}))
    keys = [(row["anchor_id"], row["metric"]) for row in found]
    assert keys == sorted(set(keys))
    assert len(keys) == 6
