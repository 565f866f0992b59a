"""Memory besides weights and KV cache: compute buffers, activations, CUDA graphs, context and libraries, per
GPU.

Pure polars expressions over one row per model x framework x context x n_gpus. First version: closed forms
where the engine's own planner confirms one (llama.cpp), the published rules of thumb of other engines' code
elsewhere.
"""

from __future__ import annotations

import polars as pl

BYTES_PER_MIB = 2**20
F32_BYTES = 4
MASK_BYTES = 2
GATED_MATRICES = 3
PIPELINE_MASK_COPIES = 3
ACTIVATION_FLOOR_MIB = 70.0
LLAMA_CPP_UBATCH = 512
LLAMA_CPP_CELL_STEP = 256
VLLM_BATCHED_TOKENS = 2048
SGLANG_PREFILL_TOKENS = 2048
BACKEND_CONTEXT_MIB = 457.0
METAL_CONTEXT_MIB = 512.0
ACTIVATION_FACTOR_DENSE = {1: 11.0, 2: 6.5, 4: 5.0, 8: 5.0}
ACTIVATION_FACTOR_MOE = {1: 22.0, 2: 13.0, 4: 10.0, 8: 10.0}


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
        pl.when(rule == "llama_cpp_compute_buffer")
        .then(llama_cpp_compute_bytes())
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
    shapes: pl.LazyFrame, stacks: pl.LazyFrame, contexts: pl.LazyFrame, n_gpus: pl.LazyFrame
) -> pl.LazyFrame:
    """The table `runtime`: model x framework x backend x context_tokens x n_gpus -> bytes per GPU.

    `shapes`: model, is_moe, hidden_size, ffn_size, ffn_matrices, expert_ffn_size, n_experts_used,
    attention_width, absorbed_width, window_tokens (see `attention_shapes`); `stacks`: framework, backend,
    activation_rule, profile_slots, overhead_mib, overhead_metal_mib, graph_mib, reserve_base_mib,
    reserve_per_prefill_token_mib, reserve_per_gpu_mib, framework_citation; `contexts`, `n_gpus`: one column
    each.
    """
    rows = (
        shapes.join(stacks, how="cross")
        .join(contexts, how="cross")
        .join(n_gpus, how="cross")
        .with_columns(compute_buffer_bytes=compute_bytes().ceil(), context_bytes=fixed_bytes().ceil())
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
