"""Compute buffers against llama.cpp's own planner, and the rules of the other engines by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.runtime import attention_shapes, runtime
from tests.estimator.cube_cases import (
    COEFFICIENTS,
    PROFILES,
    STEPS,
    contexts,
    counts,
    layer_frame,
    model_frame,
)

MIB = 2**20
SHAPE: dict[str, Any] = {
    "model": "m", "is_moe": False, "hidden_size": 4096, "ffn_size": 14336, "ffn_matrices": 3,
    "expert_ffn_size": None, "n_experts_used": None, "attention_width": 4096.0, "absorbed_width": 0.0,
    "window_tokens": 0,
}  # fmt: skip
EXPERTS = {"is_moe": True, "ffn_size": None}
QWEN3_30B = EXPERTS | {"hidden_size": 2048, "expert_ffn_size": 768, "n_experts_used": 8}
GPT_OSS_20B = EXPERTS | {
    "hidden_size": 2880,
    "expert_ffn_size": 2880,
    "n_experts_used": 4,
    "window_tokens": 128,
}
GEMMA_3_27B = {"hidden_size": 5376, "ffn_size": 21504, "window_tokens": 1024}
# heads x (2 x (512 + 64) + 192)
DEEPSEEK_R1 = {
    "is_moe": True,
    "hidden_size": 7168,
    "ffn_size": 18432,
    "expert_ffn_size": 2048,
    "n_experts_used": 8,
    "attention_width": 16384.0,
    "absorbed_width": 128 * 1344.0,
}
_SCHEMA = {
    name: pl.String() if name == "model" else pl.Boolean() if name == "is_moe" else pl.Float64()
    if name.endswith("_width") else pl.Int64()
    for name in SHAPE
}  # fmt: skip


def needed(
    shape: dict[str, Any],
    framework: str,
    context: int,
    n_gpus: int = 1,
    backend: str = "cuda",
    **profile: Any,
) -> dict[str, Any]:
    stack = PROFILES.filter(pl.col("framework") == framework).with_columns(
        backend=pl.lit(backend), framework_citation=pl.lit("c"), **{k: pl.lit(v) for k, v in profile.items()}
    )
    shapes = pl.LazyFrame([SHAPE | shape], schema=_SCHEMA)
    found = runtime(shapes, stack, contexts(context), counts(n_gpus), STEPS, COEFFICIENTS).collect()
    return found.row(0, named=True)


@pytest.mark.parametrize(
    ("shape", "context", "slots", "n_gpus", "planner_mib"),
    [
        pytest.param({}, 8192, 4, 1, 116.01, id="llama-3.1-8b"),
        pytest.param({}, 32768, 4, 1, 140.01, id="llama-3.1-8b-32k"),
        pytest.param(
            {"hidden_size": 8192, "ffn_size": 28672, "attention_width": 8192.0},
            32768,
            1,
            1,
            248.01,
            id="llama-3.1-70b-32k",
        ),
        pytest.param(QWEN3_30B, 8192, 4, 1, 92.01, id="qwen3-30b-a3b"),
        pytest.param(
            EXPERTS | {"expert_ffn_size": 14336, "n_experts_used": 2}, 8192, 4, 1, 200.01, id="mixtral-8x7b"
        ),
        pytest.param(GPT_OSS_20B, 4096, 1, 1, 91.518, id="gpt-oss-20b-one-slot"),
        pytest.param(GPT_OSS_20B, 8192, 4, 1, 95.768, id="gpt-oss-20b-four-slots"),
        pytest.param(GEMMA_3_27B, 8192, 1, 1, 164.518, id="gemma-3-27b-one-slot"),
        pytest.param(GEMMA_3_27B, 32768, 4, 1, 191.518, id="gemma-3-27b-four-slots"),
        pytest.param(
            {"hidden_size": 3072, "ffn_size": 12288, "ffn_matrices": 2, "attention_width": 3072.0},
            8192,
            4,
            1,
            50.01,
            id="starcoder2-3b-without-gate",
        ),
        pytest.param(DEEPSEEK_R1, 8192, 4, 1, 386.006, id="deepseek-r1-absorbed"),
        pytest.param(
            {"hidden_size": 8192, "ffn_size": 28672, "attention_width": 8192.0},
            32768,
            4,
            2,
            472.039,
            id="llama-3.1-70b-two-gpus",
        ),
        pytest.param(GEMMA_3_27B, 8192, 4, 2, 289.07, id="gemma-3-27b-two-gpus"),
    ],
)
def test_llama_cpp_compute_buffer(
    shape: dict[str, Any], context: int, slots: int, n_gpus: int, planner_mib: float
) -> None:
    """Rows of llama-fit-params of llama.cpp 0c1e57098 (flash attention, u = 512, few outputs); the last GPU
    of two.
    """
    found = needed(shape, "llama.cpp", context, n_gpus, profile_slots=slots)
    assert found["compute_buffer_bytes"] / MIB == pytest.approx(planner_mib, rel=0.005)


def test_llama_3_1_8b_by_hand() -> None:
    """4 x 512 x (3 x 14336 + 2 x 4096 + 4096 + 5) + 2 x 512 x 8192, and 457 MiB of context."""
    found = needed({}, "llama.cpp", 8192)
    assert found["compute_buffer_bytes"] == 4 * 512 * 55_301 + 2 * 512 * 8192
    assert found["context_bytes"] == 457 * MIB
    assert found["runtime_bytes"] == found["compute_buffer_bytes"] + found["context_bytes"]


def test_metal_has_a_context_of_its_own() -> None:
    assert needed({}, "llama.cpp", 8192, backend="metal")["context_bytes"] == 512 * MIB
    # an engine that states neither still has the backend's
    assert (
        needed({}, "vllm", 8192, backend="metal", overhead_mib=None, graph_mib=None)["context_bytes"]
        == 512 * MIB
    )
    assert needed({}, "vllm", 8192, overhead_mib=None, graph_mib=None)["context_bytes"] == 457 * MIB


@pytest.mark.parametrize(
    ("is_moe", "n_gpus", "factor"),
    [(False, 1, 11.0), (False, 2, 6.5), (False, 4, 5.0), (False, 8, 5.0), (True, 1, 22.0), (True, 8, 10.0)],
)
def test_vllm_activations(is_moe: bool, n_gpus: int, factor: float) -> None:
    """2 bytes x 2,048 tokens x 8192 wide x factor; 204.8 MiB of libraries, 368.64 MiB of graphs, and what the
    ranks need to talk to each other.
    """
    found = needed({"is_moe": is_moe, "attention_width": 8192.0}, "vllm", 8192, n_gpus)
    assert found["compute_buffer_bytes"] == max(2 * 2048 * 8192 * factor, 70 * MIB)
    ranks_mib = {1: 0, 2: 342, 4: 392, 8: 392}[n_gpus]
    assert found["context_bytes"] == pytest.approx((204.8 + 368.64 + ranks_mib) * MIB, abs=1)


def test_small_models_have_a_floor_of_activations() -> None:
    assert needed({"attention_width": 1024.0}, "vllm", 8192)["compute_buffer_bytes"] == 70 * MIB
    assert needed({}, "vllm", 8192, activation_rule="none")["compute_buffer_bytes"] == 70 * MIB
    assert needed({}, "vllm", 8192, activation_rule=None)["compute_buffer_bytes"] == 70 * MIB


def test_sglang_reserves_instead_of_measuring() -> None:
    """512 + 1.5 x 2048 + 128 per GPU MiB, which contains context and libraries."""
    found = needed({}, "vllm", 8192, 2, activation_rule="sglang_reserve", reserve_base_mib=512.0,
                   reserve_per_prefill_token_mib=1.5, reserve_per_gpu_mib=128.0, graph_mib=None)  # fmt: skip
    assert found["compute_buffer_bytes"] == (512 + 3072 + 2 * 128) * MIB
    assert found["context_bytes"] == 0


def test_attention_shapes_take_the_widest_layer() -> None:
    """Latent layers: 128 x 128 values wide, 128 x (2 x 576 + 192) absorbed; windows: the widest."""
    latent = {"model": "latent", "mixer": "mla", "n_heads": 128, "n_kv_heads": None, "k_head_dim": 192,
              "latent_dim": 576}  # fmt: skip
    windowed = ({"model": "windowed", "mixer": "sliding", "window_tokens": 512, "n_heads": 8},
                {"model": "windowed", "group": 1, "k_head_dim": 256, "n_heads": 8})  # fmt: skip
    linear = {"model": "linear", "mixer": "linear", "n_heads": None, "k_head_dim": None}
    found = attention_shapes(layer_frame({}, latent, *windowed, linear)).collect()
    shapes = {row.pop("model"): row for row in found.to_dicts()}
    assert shapes["latent"] == {"attention_width": 16384.0, "absorbed_width": 172_032.0, "window_tokens": 0}
    assert shapes["windowed"] == {"attention_width": 2048.0, "absorbed_width": 0.0, "window_tokens": 512}
    assert shapes["linear"] == {"attention_width": 0.0, "absorbed_width": 0.0, "window_tokens": 0}


def test_shapes_of_the_layers_meet_the_models() -> None:
    """From the tables of models and layers to 116.01 MiB, the planner's figure for Llama-3.1-8B at 8,192."""
    shapes = model_frame().join(attention_shapes(layer_frame()), on="model")
    stack = PROFILES.filter(pl.col("framework") == "llama.cpp").with_columns(
        backend=pl.lit("cuda"), framework_citation=pl.lit("c")
    )
    found = runtime(shapes, stack, contexts(8192), counts(1), STEPS, COEFFICIENTS).collect()
    assert found.item(0, "compute_buffer_bytes") / MIB == pytest.approx(116.01, abs=0.01)
    assert found.schema["context_tokens"] == pl.Int32
    assert found.schema["n_gpus"] == pl.Int16


@settings(max_examples=20)
@given(
    hidden=st.integers(64, 20_000), ffn=st.integers(0, 60_000), experts=st.integers(0, 16),
    width=st.integers(0, 5000), window=st.sampled_from([0, 128, 4096]), gated=st.booleans(),
    blocks=st.integers(1, 2000), n_gpus=st.sampled_from([2, 4, 8]),
)  # fmt: skip
def test_buffers_grow_with_context_and_gpus(
    hidden: int, ffn: int, experts: int, width: int, window: int, gated: bool, blocks: int, n_gpus: int
) -> None:
    shape = {"hidden_size": hidden, "ffn_size": ffn, "n_experts_used": experts, "expert_ffn_size": width,
             "window_tokens": window, "ffn_matrices": 3 if gated else 2}  # fmt: skip
    here = needed(shape, "llama.cpp", 256 * blocks)["compute_buffer_bytes"]
    assert 0 < here < needed(shape, "llama.cpp", 256 * blocks + 256)["compute_buffer_bytes"]
    assert here < needed(shape, "llama.cpp", 256 * blocks, n_gpus)["compute_buffer_bytes"]
