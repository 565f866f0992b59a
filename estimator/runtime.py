"""Memory besides weights and KV cache: compute buffers, activations, CUDA graphs, context and libraries, per
GPU.

Pure polars expressions over one row per model x framework x context x n_gpus. llama.cpp's buffers are decided
in `llama_cpp_compute`; the published rules of thumb of other engines' code are here.
"""

from __future__ import annotations

import polars as pl

from estimator.engine_runtime import (
    BYTES_PER_MIB,
    SIZED_RULES,
    constant,
    fixed_bytes,
    sized_compute_bytes,
    smallest_steps,
)
from estimator.llama_cpp_compute import fullest_compute_bytes, host_compute_bytes
from estimator.llama_cpp_context import DEFAULT_UBATCH_TOKENS

LLAMA_CPP_RULE = "llama_cpp_compute_buffer"
F16_BYTES = 2.0


def compute_bytes(coefficients: pl.DataFrame) -> pl.Expr:
    """Compute memory of the engines that are not llama.cpp, by the framework's activation_rule; an engine
    without a stated rule has the activation floor.
    """
    rule = pl.col("activation_rule").cast(pl.String)
    return (
        pl.when(rule.is_in(SIZED_RULES))
        .then(sized_compute_bytes(coefficients))
        .otherwise(constant(coefficients, "activation_floor", "all") * BYTES_PER_MIB)
    )


def runtime(
    shapes: pl.LazyFrame,
    llama_cpp_shapes: pl.LazyFrame,
    stacks: pl.LazyFrame,
    contexts: pl.LazyFrame,
    n_gpus: pl.LazyFrame,
    steps: pl.LazyFrame,
    coefficients: pl.DataFrame,
) -> pl.LazyFrame:
    """The table `runtime`: model x framework x backend x context_tokens x n_gpus -> bytes per GPU, on the
    smallest GPUs (`engine_runtime.runtime_steps` says what larger ones take beside it).

    `shapes`: model, is_moe, hidden_size, n_experts_used and the columns of `attention_shapes`;
    `llama_cpp_shapes`: of `llama_cpp_compute.compute_shapes` with the coefficients of `llama_cpp_compute`;
    `stacks`: framework, backend and the facts of the table frameworks, framework_citation; `contexts`,
    `n_gpus`: one column each; `steps`: the table framework_steps; `coefficients`: the table. llama.cpp's
    buffers are those of its server: a unified f16 cache and one output per slot.
    """
    settled = smallest_steps(stacks, steps).join(contexts, how="cross").join(n_gpus, how="cross")
    is_llama_cpp = (pl.col("activation_rule").cast(pl.String) == LLAMA_CPP_RULE).fill_null(False)
    slots = pl.col("profile_slots").cast(pl.Int64).fill_null(1)
    llama_cpp = (
        settled.filter(is_llama_cpp)
        .with_columns(
            slots=slots,
            outputs=slots,
            ubatch_tokens=pl.col("profile_ubatch_tokens").cast(pl.Int64).fill_null(DEFAULT_UBATCH_TOKENS),
            flash_attention=pl.col("profile_flash_attention").fill_null(True),
            kv_unified=pl.lit(True),
            swa_full=pl.lit(False),
            k_bytes_per_element=pl.lit(F16_BYTES),
        )
        .join(llama_cpp_shapes.join(shapes.select("model"), on="model", how="semi"), how="cross")
        .with_columns(compute=fullest_compute_bytes(), host_compute=host_compute_bytes())
    )
    others = (
        settled.filter(~is_llama_cpp)
        .join(shapes, how="cross")
        .with_columns(compute=compute_bytes(coefficients), host_compute=pl.lit(None, pl.Float64))
    )
    both = ("model", "framework", "backend", "activation_rule", "context_tokens", "n_gpus", "graph_mib",
            "overhead_mib", "overhead_metal_mib", "reserve_first_gpu_mib", "framework_citation", "compute",
            "host_compute")  # fmt: skip
    rows = pl.concat([llama_cpp.select(both), others.select(both)], how="vertical_relaxed").with_columns(
        compute_buffer_bytes=pl.col("compute").ceil(),
        context_bytes=fixed_bytes(coefficients).ceil(),
        host_compute_bytes=pl.col("host_compute").ceil(),
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
    """Per model, from its layers: attention_width (heads x head size; MLA: heads x value size) and
    absorbed_width (MLA: heads x (2 x latent + query size), else 0)."""
    heads = pl.col("n_heads").fill_null(0).cast(pl.Float64)
    is_mla = pl.col("mixer") == "mla"
    value = (
        pl.when(is_mla)
        .then(pl.col("v_head_dim"))
        .otherwise(pl.col("k_head_dim"))
        .fill_null(0)
        .cast(pl.Float64)
    )
    absorbed = heads * (2.0 * pl.col("latent_dim").fill_null(0) + pl.col("k_head_dim").fill_null(0))
    return layers.group_by("model").agg(
        attention_width=(heads * value).max(),
        absorbed_width=pl.when(is_mla).then(absorbed).otherwise(0.0).max(),
    )
