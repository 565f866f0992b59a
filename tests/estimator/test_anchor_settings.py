"""Anchors at exactly their own setting: bytes per cache element, bytes of weights, cache at their depth."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.anchor_settings import cache_at_depth, with_recipe
from estimator.attention_state import kv_cache_bytes
from estimator.prefill import attention_flops
from tests.estimator.cube_cases import (
    AWQ,
    BF16,
    DENSE,
    MOE,
    Q4_K_M,
    anchor_frame,
    layer_frame,
    stored_table,
    two_models,
)

MLA = {
    "model": "latent",
    "mixer": "mla",
    "n_layers": 61,
    "n_heads": 128,
    "n_kv_heads": None,
    "k_head_dim": 192,
    "latent_dim": 576,
}
WINDOWED = ({"model": "windowed", "mixer": "sliding", "n_layers": 5, "window_tokens": 1024},
            {"model": "windowed", "group": 1, "n_layers": 1})  # fmt: skip
HYBRID = (
    {
        "model": "hybrid",
        "mixer": "linear",
        "n_layers": 36,
        "n_heads": None,
        "n_kv_heads": None,
        "k_head_dim": None,
        "v_head_dim": None,
        "f32_state_elements": 524_288,
        "conv_state_elements": 24_576,
    },
    {
        "model": "hybrid",
        "group": 1,
        "n_layers": 12,
        "n_heads": 16,
        "n_kv_heads": 2,
        "k_head_dim": 256,
        "v_head_dim": 256,
    },
)
UNSTATED = {"model": "unstated", "n_heads": None}
LAYERS = layer_frame({}, MLA, *WINDOWED, *HYBRID, UNSTATED)
FRAMEWORKS = pl.LazyFrame(
    [
        ("llama.cpp", "llama.cpp", "layer", "fixed", None),
        ("ollama", "llama.cpp", "layer", "fixed", None),
        ("exllamav2", "exllamav2", None, "fixed", None),
        ("exllamav3", "exllamav3", "tensor", "fixed", None),
        ("vllm", "vllm", "tensor", "utilization_of_total", 0.92),
        ("tensorrt-llm", "tensorrt-llm", "tensor", "fraction_of_free", 0.9),
    ],
    schema=["framework", "engine", "parallel_mode", "memory_policy", "memory_fraction"],
    orient="row",
)
KV_DTYPES = pl.LazyFrame(
    [
        ("llama.cpp", "f16", 2.0, 2.0),
        ("vllm", "f16", 2.0, 2.0),
        ("vllm", "fp8", 1.0, 1.0),
        ("vllm", "fp8_ds_mla", None, None),
        ("llama.cpp", "q8_0", 1.0625, 1.0625),
        ("exllamav2", "q6", 1.0625, 0.5625),
        ("exllamav3", "q6", 0.8125, 0.8125),
    ],
    schema=["framework", "kv_dtype", "k_bytes_per_element", "v_bytes_per_element"],
    orient="row",
)
QUANTS = pl.LazyFrame(
    [Q4_K_M, BF16, AWQ, {**AWQ, "quant": "unknown/density", "body_bpw": None}],
    schema_overrides={"rest_bpw": pl.Float64},
)


def recipes(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    found = with_recipe(
        anchor_frame(*changes).drop("engine"),
        two_models()[0],
        QUANTS,
        FRAMEWORKS,
        KV_DTYPES,
        stored_table(two_models()[0], QUANTS),
    ).collect()
    return found.sort("anchor_id").to_dicts()


def at_depth(
    model: str, depth: int, k: float = 2.0, v: float = 2.0, ranks: pl.Expr | None = None
) -> dict[str, Any]:
    rows = pl.LazyFrame({"anchor_id": ["a"], "model": [model], "depth": [depth], "k_bytes_per_element": [k],
                         "v_bytes_per_element": [v], "n_gpus": [8]})  # fmt: skip
    return cache_at_depth(rows, LAYERS, "anchor_id", "depth", ranks).collect().row(0, named=True)


def test_weights_are_those_of_the_cube() -> None:
    (found,) = recipes({})
    assert found["weights_bytes"] == 4_187_752_858 + 430_940_160
    assert found["dense_read_bytes"] == found["weights_bytes"] + 2304  # one row of the embedding
    assert (found["engine"], found["parallel_mode"], found["memory_utilization"]) == (
        "llama.cpp",
        "layer",
        None,
    )
    (mixture,) = recipes({"model": MOE, "quant": "native/bf16", "framework": "vllm", "n_gpus": 8})
    assert mixture["expert_read_bytes"] == 57_982_058_496 // 16
    assert mixture["expert_active_params"] == 28_991_029_248 / 16
    assert mixture["body_active_params"] == 3_041_867_776 - 311_164_928
    assert mixture["kv_replication"] == 2.0  # 4 KV heads on 8 ranks
    assert mixture["memory_utilization"] == 0.92


def test_a_fraction_of_free_memory_is_no_utilization() -> None:
    (found,) = recipes({"framework": "tensorrt-llm", "quant": "native/bf16"})
    assert found["memory_utilization"] is None


def test_an_engine_without_a_stated_split_works_layer_by_layer() -> None:
    (found,) = recipes({"framework": "exllamav2", "n_gpus": 2})
    assert found["parallel_mode"] == "layer"


@pytest.mark.parametrize(
    ("framework", "kv_dtype", "expected"),
    [
        ("exllamav2", "q6", (1.0625, 0.5625)),  # its own
        ("exllamav3", "q6", (0.8125, 0.8125)),
        ("ollama", "q8_0", (1.0625, 1.0625)),  # its engine's
        ("tensorrt-llm", "fp8", (1.0, 1.0)),  # anyone's
        ("llama.cpp", "q6", (1.0625, 0.8125)),  # the largest of several
    ],
)
def test_a_cache_type_means_what_it_means_to_the_framework(
    framework: str, kv_dtype: str, expected: tuple[float, float]
) -> None:
    (found,) = recipes({"framework": framework, "kv_dtype": kv_dtype})
    assert (found["k_bytes_per_element"], found["v_bytes_per_element"]) == expected


@pytest.mark.parametrize(
    "change",
    [{"quant": "unknown/density"}, {"quant": "nowhere"}, {"kv_dtype": "fp8_ds_mla"}, {"kv_dtype": "nowhere"},
     {"model": "nowhere"}, {"framework": "nowhere"}, {"kv_dtype": None}],
)  # fmt: skip
def test_what_cannot_be_computed_drops_out(change: dict[str, Any]) -> None:
    assert [row["anchor_id"] for row in recipes({}, change)] == ["a0"]


@settings(max_examples=15)
@given(
    model=st.sampled_from([DENSE, "latent", "windowed", "hybrid"]),
    depth=st.integers(0, 200_000),
    element=st.sampled_from([(2.0, 2.0), (1.0625, 1.0625), (1.0625, 0.5625)]),
)
def test_the_cache_is_that_of_attention_state(model: str, depth: int, element: tuple[float, float]) -> None:
    found = at_depth(model, depth, *element)
    expected = (
        kv_cache_bytes(LAYERS.filter(pl.col("model") == model), [depth], element).collect().row(0, named=True)
    )
    assert found["kv_sequence_bytes"] == expected["kv_bytes"] + expected["state_bytes"]
    assert found["kv_step_bytes"] == expected["kv_read_bytes"]
    assert found["kv_start_bytes"] == 2 * expected["state_bytes"]


@pytest.mark.parametrize("model", [DENSE, "latent", "windowed", "hybrid", "unstated"])
def test_operations_are_those_of_prefill(model: str) -> None:
    """A layer that does not state its heads leaves them unknown in both."""
    lengths = pl.LazyFrame({"tokens": [5000]}, schema={"tokens": pl.Int64})
    expected = attention_flops(LAYERS.filter(pl.col("model") == model), lengths).collect().row(0, named=True)
    found = at_depth(model, 5000)
    for name in ("attention_prefill_flops", "attention_decode_flops"):
        assert found[name] == pytest.approx(expected[name]), name
    assert (found["attention_prefill_flops"] is None) == (model == "unstated")


def test_ranks_hold_their_share_of_heads_and_the_whole_latent() -> None:
    """8 ranks: one of 8 heads each; the latent everywhere; 2 heads replicated, state shared out."""
    ranks = pl.col("n_gpus")
    assert at_depth(DENSE, 4096, ranks=ranks)["kv_step_bytes"] == 4096 * 131_072 // 8
    assert at_depth("latent", 4096, ranks=ranks) == at_depth("latent", 4096)
    shared = at_depth("hybrid", 4096, ranks=ranks)
    assert shared["kv_start_bytes"] == at_depth("hybrid", 4096)["kv_start_bytes"] // 8
    assert shared["kv_step_bytes"] == 4096 * 24_576 // 2 + shared["kv_start_bytes"]


def test_every_row_keeps_its_own_depth() -> None:
    rows = pl.LazyFrame({"anchor_id": ["x", "y"], "model": [DENSE, DENSE], "depth": [10, 20],
                         "k_bytes_per_element": [2.0, 1.0], "v_bytes_per_element": [2.0, 1.0]})  # fmt: skip
    found = cache_at_depth(rows, LAYERS, "anchor_id", "depth").collect()
    kept = dict(found.select("anchor_id", "kv_sequence_bytes").rows())
    assert kept == {"x": 10 * 131_072, "y": 20 * 65_536}
