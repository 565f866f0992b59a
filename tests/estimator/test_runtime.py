"""Runtime memory per framework: llama.cpp's buffers by hand, and the rules of the other engines."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from estimator.runtime import attention_shapes, runtime
from tests.estimator.cube_cases import (
    COEFFICIENTS,
    PROFILES,
    STEPS,
    contexts,
    counts,
    layer_frame,
    llama_cpp_frame,
    llama_cpp_shapes,
    model_frame,
)

MIB = 2**20
SHAPE: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "is_moe": False,
    "attention_width": 4096.0,
    "absorbed_width": 0.0,
}
_SCHEMA = {
    "model": pl.String(),
    "is_moe": pl.Boolean(),
    "attention_width": pl.Float64(),
    "absorbed_width": pl.Float64(),
}


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
    seen = llama_cpp_shapes(llama_cpp_frame())
    found = runtime(shapes, seen, stack, contexts(context), counts(n_gpus), STEPS, COEFFICIENTS).collect()
    return found.row(0, named=True)


def test_llama_3_1_8b_by_hand() -> None:
    """4 x 512 x (3 x 14336 + 2 x 4096 + 4096 + 5) + 2 x 512 x 8192, and 457 MiB of context."""
    found = needed({}, "llama.cpp", 8192)
    assert found["compute_buffer_bytes"] == 4 * 512 * 55_301 + 2 * 512 * 8192
    assert found["host_compute_bytes"] == 4 * 512 * (2 * 4096 + 5) + 2 * 512 * 8192
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


def test_only_llama_cpp_states_a_host_buffer() -> None:
    assert needed({}, "vllm", 8192)["host_compute_bytes"] is None


def test_a_wrapper_that_states_no_micro_batch_has_the_engines() -> None:
    silent = needed({}, "llama.cpp", 8192, profile_ubatch_tokens=None)
    assert silent["compute_buffer_bytes"] == needed({}, "llama.cpp", 8192)["compute_buffer_bytes"]


def test_attention_shapes_take_the_widest_layer() -> None:
    """Latent layers: 128 x 128 values wide; no attention: nothing."""
    latent = {"model": "latent", "mixer": "mla", "n_heads": 128, "n_kv_heads": None, "k_head_dim": 192,
              "latent_dim": 576}  # fmt: skip
    windowed = ({"model": "windowed", "mixer": "sliding", "window_tokens": 512, "n_heads": 8},
                {"model": "windowed", "group": 1, "k_head_dim": 256, "n_heads": 8})  # fmt: skip
    linear = {"model": "linear", "mixer": "linear", "n_heads": None, "k_head_dim": None}
    found = attention_shapes(layer_frame({}, latent, *windowed, linear)).collect()
    widths = dict(found.select("model", "attention_width").rows())
    assert (widths["latent"], widths["windowed"], widths["linear"]) == (16384.0, 2048.0, 0.0)


def test_shapes_of_the_layers_meet_the_models() -> None:
    """From the tables of models and layers to 116.01 MiB, the planner's figure for Llama-3.1-8B at 8,192."""
    shapes = model_frame().select("model", "is_moe").join(attention_shapes(layer_frame()), on="model")
    stack = PROFILES.filter(pl.col("framework") == "llama.cpp").with_columns(
        backend=pl.lit("cuda"), framework_citation=pl.lit("c")
    )
    seen = llama_cpp_shapes(llama_cpp_frame())
    found = runtime(shapes, seen, stack, contexts(8192), counts(1), STEPS, COEFFICIENTS).collect()
    assert found.item(0, "compute_buffer_bytes") / MIB == pytest.approx(116.01, abs=0.01)
    assert found.schema["context_tokens"] == pl.Int32
    assert found.schema["n_gpus"] == pl.Int16
