"""Memory besides weights and KV cache: compute buffers, activations, CUDA graphs, context and libraries, per
GPU.

Pure polars expressions over one row per model x framework x context x n_gpus. First version: closed forms
where the engine's own planner confirms one (llama.cpp), the published rules of thumb of other engines' code
elsewhere.
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

F32_BYTES = 4
MASK_BYTES = 2
GATED_MATRICES = 3
PIPELINE_MASK_COPIES = 3
LLAMA_CPP_UBATCH = 512
LLAMA_CPP_CELL_STEP = 256


def is_gated() -> pl.Expr:
    """Whether the FFN has a gate beside its up projection (three matrices, not two)."""
    return pl.col("ffn_matrices") == GATED_MATRICES


def dense_ffn_floats() -> pl.Expr:
    """Values per token that the dense FFN keeps at once: gate, up and their product; up alone without a
    gate.
    """
    kept = pl.when(is_gated()).then(3.0).otherwise(1.0)
    return kept * pl.col("ffn_size").fill_null(0).cast(pl.Float64)


def moe_ffn_floats() -> pl.Expr:
    """Values per token that the routed experts keep at once, after the allocator has reused freed buffers.

    With p = K x expert width and q = K x hidden: 3p where 2p >= q, else 2p + q where p < attention width,
    else 3p + q; p + q without a gate. Source: fit over llama.cpp 0c1e57098's own no-alloc planner, 145 models
    (sources: llama-fit-params).
    """
    experts = pl.col("n_experts_used").fill_null(0).cast(pl.Float64)
    inner = experts * pl.col("expert_ffn_size").fill_null(0).cast(pl.Float64)
    outer = experts * pl.col("hidden_size").cast(pl.Float64)
    small = pl.when(inner < pl.col("attention_width")).then(2 * inner + outer).otherwise(3 * inner + outer)
    gated = pl.when(2 * inner >= outer).then(3 * inner).otherwise(small)
    return pl.when(inner == 0).then(0.0).when(is_gated()).then(gated).otherwise(inner + outer)


def layer_floats() -> pl.Expr:
    """Values per token of the widest layer: FFN, two hidden rows, attention output, and a few counters.

    Absorbed MLA keeps the latent queries instead where that is more. Reads attention_width, absorbed_width.
    """
    ffn = pl.max_horizontal(dense_ffn_floats(), moe_ffn_floats())
    hidden = pl.col("hidden_size").cast(pl.Float64)
    counters = pl.when(pl.col("window_tokens") > 0).then(9.0).otherwise(5.0)
    plain = ffn + 2 * hidden + pl.col("attention_width") + counters
    absorbed = (
        pl.when(pl.col("absorbed_width") > 0).then(3 * hidden + pl.col("absorbed_width")).otherwise(0.0)
    )
    return pl.max_horizontal(plain, absorbed)


def llama_cpp_mask_bytes() -> pl.Expr:
    """Bytes of the attention masks: two bytes per micro-batch token and cache cell, full and windowed cells.

    Windowed cells are those of `kv_cache.window_cells`: pad(min(C, W x slots + u), 256).
    """
    kept = pl.col("window_tokens") * pl.col("profile_slots").cast(pl.Int64).fill_null(1) + LLAMA_CPP_UBATCH
    padded = (kept + LLAMA_CPP_CELL_STEP - 1) // LLAMA_CPP_CELL_STEP * LLAMA_CPP_CELL_STEP
    window = pl.min_horizontal(padded, pl.col("context_tokens"))
    cells = pl.col("context_tokens") + pl.when(pl.col("window_tokens") > 0).then(window).otherwise(0)
    return MASK_BYTES * LLAMA_CPP_UBATCH * cells.cast(pl.Float64)


def llama_cpp_compute_bytes() -> pl.Expr:
    """llama.cpp's GPU compute buffer with flash attention: 4 u X + 2 u C, plus the pipeline's copies on
    several GPUs.

    u = 512 micro-batch tokens, X = `layer_floats`, C = cells. On the last of several GPUs: three more masks
    and 32 u d. Source: closed form within 2 % of llama.cpp 0c1e57098's planner on 1,729 flash-attention runs.
    """
    single = F32_BYTES * LLAMA_CPP_UBATCH * layer_floats() + llama_cpp_mask_bytes()
    pipeline = PIPELINE_MASK_COPIES * llama_cpp_mask_bytes() + 32.0 * LLAMA_CPP_UBATCH * pl.col("hidden_size")
    return single + pl.when(pl.col("n_gpus") > 1).then(pipeline).otherwise(0.0)


def compute_bytes(coefficients: pl.DataFrame) -> pl.Expr:
    """Compute memory by the framework's activation_rule; an engine without a stated rule has the activation
    floor.
    """
    rule = pl.col("activation_rule").cast(pl.String)
    return (
        pl.when(rule == "llama_cpp_compute_buffer")
        .then(llama_cpp_compute_bytes())
        .when(rule.is_in(SIZED_RULES))
        .then(sized_compute_bytes(coefficients))
        .otherwise(constant(coefficients, "activation_floor", "all") * BYTES_PER_MIB)
    )


def runtime(
    shapes: pl.LazyFrame,
    stacks: pl.LazyFrame,
    contexts: pl.LazyFrame,
    n_gpus: pl.LazyFrame,
    steps: pl.LazyFrame,
    coefficients: pl.DataFrame,
) -> pl.LazyFrame:
    """The table `runtime`: model x framework x backend x context_tokens x n_gpus -> bytes per GPU, on the
    smallest GPUs (`engine_runtime.runtime_steps` says what larger ones take beside it).

    `shapes`: model, is_moe, hidden_size, ffn_size, ffn_matrices, expert_ffn_size, n_experts_used,
    attention_width, absorbed_width, window_tokens (see `attention_shapes`); `stacks`: framework, backend,
    and the facts of the table frameworks, framework_citation; `contexts`, `n_gpus`: one column each; `steps`:
    the table framework_steps; `coefficients`: the table.
    """
    rows = (
        shapes.join(smallest_steps(stacks, steps), how="cross")
        .join(contexts, how="cross")
        .join(n_gpus, how="cross")
        .with_columns(
            compute_buffer_bytes=compute_bytes(coefficients).ceil(),
            context_bytes=fixed_bytes(coefficients).ceil(),
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
        framework_citation="framework_citation",
    ).sort("model", "framework", "backend", "context_tokens", "n_gpus")


def attention_shapes(layers: pl.LazyFrame) -> pl.LazyFrame:
    """Per model, from its layers: attention_width (heads x head size; MLA: heads x value size),
    absorbed_width (MLA: heads x (2 x latent + query size), else 0) and window_tokens (widest window, 0
    without)."""
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
        window_tokens=pl.col("window_tokens").fill_null(0).max().cast(pl.Int64),
    )
