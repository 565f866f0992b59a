"""Memory besides weights and KV cache: compute buffers, activations, CUDA graphs, context and libraries, per
GPU.

Pure polars expressions over one row per model x framework x context x n_gpus. llama.cpp's buffers are decided
in `llama_cpp_compute`; the published rules of thumb of other engines' code are here.
"""

from __future__ import annotations

import polars as pl

from estimator.llama_cpp_compute import fullest_compute_bytes, host_compute_bytes
from estimator.llama_cpp_context import DEFAULT_UBATCH_TOKENS

LLAMA_CPP_RULE = "llama_cpp_compute_buffer"
F16_BYTES = 2.0
BYTES_PER_MIB = 2**20
ACTIVATION_FLOOR_MIB = 70.0
VLLM_BATCHED_TOKENS = 2048
SGLANG_PREFILL_TOKENS = 2048
BACKEND_CONTEXT_MIB = 457.0
METAL_CONTEXT_MIB = 512.0
ACTIVATION_FACTOR_DENSE = {1: 11.0, 2: 6.5, 4: 5.0, 8: 5.0}
ACTIVATION_FACTOR_MOE = {1: 22.0, 2: 13.0, 4: 10.0, 8: 10.0}


def activation_bytes() -> pl.Expr:
    """Peak activations of the tensor-parallel servers: 2 x tokens x attention width x factor, at least 70
    MiB.

    The factor falls with tensor parallelism (11, 6.5, 5, 5 for 1, 2, 4, 8 GPUs; twice that for MoE), tokens
    are the 2,048 batched by default. Source: ai-dynamo/aiconfigurator@095f58a backend memory model.
    """
    n_gpus = pl.col("n_gpus").cast(pl.Int64)
    dense = n_gpus.replace_strict(ACTIVATION_FACTOR_DENSE, default=5.0, return_dtype=pl.Float64)
    moe = n_gpus.replace_strict(ACTIVATION_FACTOR_MOE, default=10.0, return_dtype=pl.Float64)
    factor = pl.when(pl.col("is_moe")).then(moe).otherwise(dense)
    peak = 2.0 * VLLM_BATCHED_TOKENS * pl.col("attention_width") * factor
    return pl.max_horizontal(peak, pl.lit(ACTIVATION_FLOOR_MIB * BYTES_PER_MIB))


def reserve_bytes() -> pl.Expr:
    """What SGLang keeps out of its static pool: base + per prefill token + per GPU, at 2,048 prefill tokens.

    Source: sglang 0.5.23 srt/arg_groups/memory_hook.py:294-325. Larger cards prefill more tokens at once.
    """
    prefill = pl.col("reserve_per_prefill_token_mib") * SGLANG_PREFILL_TOKENS
    return (
        pl.col("reserve_base_mib") + prefill + pl.col("reserve_per_gpu_mib") * pl.col("n_gpus")
    ) * BYTES_PER_MIB


def compute_bytes() -> pl.Expr:
    """Compute memory by the framework's activation_rule; an engine without a stated rule has the activation
    floor.
    """
    rule = pl.col("activation_rule").cast(pl.String)
    return (
        pl.when(rule == LLAMA_CPP_RULE)
        .then(fullest_compute_bytes())
        .when(rule == "vllm_activation")
        .then(activation_bytes())
        .when(rule == "sglang_reserve")
        .then(reserve_bytes())
        .otherwise(ACTIVATION_FLOOR_MIB * BYTES_PER_MIB)
    )


def fixed_bytes() -> pl.Expr:
    """Context, libraries and CUDA graphs per GPU from the framework's facts, in bytes.

    A framework that states no overhead of its own still has the backend's context: 457 MiB, on Metal 512 MiB
    (Ollama fb30760 ml/device.go:356, the least memory it reserves per device). SGLang's reserve contains it.
    """
    on_metal = pl.col("backend") == "metal"
    metal = pl.coalesce("overhead_metal_mib", pl.lit(METAL_CONTEXT_MIB))
    other = pl.coalesce("overhead_mib", pl.lit(BACKEND_CONTEXT_MIB))
    context = (
        pl.when(pl.col("activation_rule").cast(pl.String) == "sglang_reserve")
        .then(0.0)
        .otherwise(pl.when(on_metal).then(metal).otherwise(other))
    )
    return (context + pl.col("graph_mib").fill_null(0.0)) * BYTES_PER_MIB


def runtime(
    shapes: pl.LazyFrame,
    llama_cpp_shapes: pl.LazyFrame,
    stacks: pl.LazyFrame,
    contexts: pl.LazyFrame,
    n_gpus: pl.LazyFrame,
) -> pl.LazyFrame:
    """The table `runtime`: model x framework x backend x context_tokens x n_gpus -> bytes per GPU.

    `shapes`: model, is_moe, attention_width (see `attention_shapes`); `llama_cpp_shapes`: of
    `llama_cpp_compute.compute_shapes` with the coefficients of `llama_cpp_compute`; `stacks`: framework,
    backend, activation_rule, profile_slots, profile_ubatch_tokens, profile_flash_attention, overhead_mib,
    overhead_metal_mib, graph_mib, reserve_base_mib, reserve_per_prefill_token_mib, reserve_per_gpu_mib,
    framework_citation; `contexts`, `n_gpus`: one column each. llama.cpp's buffers are those of its server: a
    unified f16 cache and one output per slot.
    """
    is_llama_cpp = (pl.col("activation_rule").cast(pl.String) == LLAMA_CPP_RULE).fill_null(False)
    slots = pl.col("profile_slots").cast(pl.Int64).fill_null(1)
    rows = (
        shapes.join(llama_cpp_shapes, on="model", how="left")
        .join(stacks, how="cross")
        .join(contexts, how="cross")
        .join(n_gpus, how="cross")
        .with_columns(
            slots=slots,
            outputs=slots,
            ubatch_tokens=pl.col("profile_ubatch_tokens").cast(pl.Int64).fill_null(DEFAULT_UBATCH_TOKENS),
            flash_attention=pl.col("profile_flash_attention").fill_null(True),
            kv_unified=pl.lit(True),
            swa_full=pl.lit(False),
            k_bytes_per_element=pl.lit(F16_BYTES),
        )
        .with_columns(
            compute_buffer_bytes=compute_bytes().ceil(),
            context_bytes=fixed_bytes().ceil(),
            host_compute_bytes=pl.when(is_llama_cpp).then(host_compute_bytes()).ceil(),
        )
    )
    return rows.select(
        "model",
        "framework",
        "backend",
        pl.col("context_tokens").cast(pl.Int32),
        pl.col("n_gpus").cast(pl.Int16),
        pl.col("compute_buffer_bytes").cast(pl.Int64),
        pl.col("context_bytes").cast(pl.Int64),
        runtime_bytes=(pl.col("compute_buffer_bytes") + pl.col("context_bytes")).cast(pl.Int64),
        host_compute_bytes=pl.col("host_compute_bytes").cast(pl.Int64),
        framework_citation="framework_citation",
    ).sort("model", "framework", "backend", "context_tokens", "n_gpus")


def attention_shapes(layers: pl.LazyFrame) -> pl.LazyFrame:
    """Per model, from its layers: attention_width (heads x head size; MLA: heads x value size)."""
    heads = pl.col("n_heads").fill_null(0).cast(pl.Float64)
    value = (
        pl.when(pl.col("mixer") == "mla")
        .then(pl.col("v_head_dim"))
        .otherwise(pl.col("k_head_dim"))
        .fill_null(0)
        .cast(pl.Float64)
    )
    return layers.group_by("model").agg(attention_width=(heads * value).max())
