"""Parameter counts from layer shapes: exact counts of the tensors a checkpoint holds, by role.

Every formula multiplies out the tensors that the reference implementation creates (Hugging Face transformers
5.24.0, `modeling_<type>.py`; DeepSeek-V4 after its own configuration). Counts are integers. Shapes come from
`estimator.layer_geometry`; where a size is null or 0, its tensors do not exist. How many bytes a parameter
takes does not belong here.
"""

from __future__ import annotations

import polars as pl

_TOTAL = ("embedding_params", "head_params", "per_layer_embedding_params", "body_params", "expert_params")


def layer_parameters(layers: pl.LazyFrame) -> pl.LazyFrame:
    """Adds mixer_params, ffn_params, expert_params and norm_params, each for ONE layer of the run.

    Columns in: `LAYER_GEOMETRY`. mixer_params: attention, linear attention, state space or convolution,
    without norm vectors. ffn_params: dense feed-forward, shared experts, router, per-layer inputs.
    expert_params: all routed experts. norm_params: every norm vector of the layer.
    """
    return layers.with_columns(
        mixer_params=attention_params()
        + latent_attention_params()
        + compressed_attention_params()
        + linear_attention_params()
        + mamba_params()
        + short_convolution_params()
        + residual_mixing_params(),
        ffn_params=dense_ffn_params() + shared_expert_params() + router_params() + per_layer_input_params(),
        expert_params=routed_expert_params(),
        norm_params=layer_norm_params() + mixer_norm_params() + ffn_norm_params(),
    )


def model_parameters(layers: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """One row per model: parameters by role, their total and the active ones.

    Columns in: `layers` as returned by `layer_parameters` (with n_layers, is_mtp, n_experts, n_experts_used),
    `models` with `MODEL_GEOMETRY`. Columns out: model, embedding_params, head_params (0 if tied),
    per_layer_embedding_params, body_params (everything else that is loaded, without routed experts),
    expert_params, mtp_params (in the file, not loaded), computed_params (all without mtp_params and without
    per-token saving), active_params (read per token: body, head or tied embedding once, K of E experts).
    """
    loaded = ~pl.col("is_mtp")
    layer_body = pl.col("mixer_params") + pl.col("ffn_params") + pl.col("norm_params")
    count = pl.col("n_layers").cast(pl.Int64)
    per_layer = layers.group_by("model", maintain_order=True).agg(
        (layer_body * count).filter(loaded).sum().alias("layer_body_params"),
        (pl.col("expert_params") * count).filter(loaded).sum().alias("expert_params"),
        (used_expert_params() * count).filter(loaded).sum().alias("used_expert_params"),
        ((layer_body + pl.col("expert_params")) * count).filter(~loaded).sum().alias("mtp_layer_params"),
        count.filter(loaded).sum().alias("layer_count"),
        count.filter(~loaded & (pl.col("mixer") != "none")).sum().alias("mtp_layer_count"),
    )
    return (
        models.join(per_layer, on="model", how="inner", maintain_order="left")
        .with_columns(
            embedding_params=embedding_params(),
            head_params=head_params(),
            per_layer_embedding_params=per_layer_embedding_params(),
            body_params=pl.col("layer_body_params") + model_body_params(),
            mtp_params=pl.col("mtp_layer_params") + mtp_joining_params(),
        )
        .with_columns(
            computed_params=pl.sum_horizontal(*_TOTAL),
            active_params=pl.col("body_params") + output_matrix_params() + pl.col("used_expert_params"),
        )
        .select("model", *_TOTAL, "mtp_params", "computed_params", "active_params")
    )


def _size(name: str) -> pl.Expr:
    """A size, 0 where the part does not exist."""
    return pl.col(name).fill_null(0)


def _flag(name: str) -> pl.Expr:
    """A flag as 0 or 1."""
    return pl.col(name).fill_null(False).cast(pl.Int64)


def _has(name: str) -> pl.Expr:
    """1 where the layer has the part whose size is `name`, else 0."""
    return (_size(name) > 0).cast(pl.Int64)


def _owns_kv_weights() -> pl.Expr:
    """1 where the layer has its own key and value projections, else 0."""
    return 1 - _flag("shares_kv") * (1 - _flag("keeps_kv_weights"))


def attention_params() -> pl.Expr:
    """Projections with keys and values per head: q, k, v, o, their biases, output gate, sinks."""
    d, heads, kv_heads = pl.col("hidden_size"), _size("n_heads"), _size("n_kv_heads") * _owns_kv_weights()
    queries = heads * _size("k_head_dim")
    keys = kv_heads * _size("k_head_dim")
    values = kv_heads * _size("v_head_dim") * (1 - _flag("value_is_key"))
    outputs = heads * _size("v_head_dim")
    weights = d * (queries + keys + values + outputs + _size("output_gate_size"))
    biases = _flag("qkv_bias") * (queries + keys + values) + _flag("o_bias") * d
    return (weights + biases + _size("n_sinks")) * (1 - _has("kv_latent_dim")) * (1 - _has("o_groups"))


def latent_attention_params() -> pl.Expr:
    """MLA: low-rank queries (or full ones), one latent for keys and values, its up-projection, output,
    indexer.

    DeepSeek-V2/V3 `modeling_deepseek_v3.py`; indexer of DeepSeek-V3.2: query up-projection, one shared key,
    head weights.
    """
    d, heads, rank = pl.col("hidden_size"), _size("n_heads"), _size("q_latent_dim")
    query_size = heads * (_size("qk_nope_dim") + _size("qk_rope_dim"))
    queries = pl.when(rank > 0).then(rank * (d + query_size)).otherwise(d * query_size)
    latent = d * (_size("kv_latent_dim") + _size("qk_rope_dim"))
    expansion = _size("kv_latent_dim") * heads * (_size("qk_nope_dim") + _size("v_head_dim"))
    outputs = d * (heads * _size("v_head_dim") + _size("output_gate_size"))
    index_heads, index_dim = _size("index_n_heads"), _size("index_head_dim")
    indexer = rank * index_heads * index_dim + d * index_dim + d * index_heads
    return (queries + latent + expansion + outputs + indexer + _size("n_sinks")) * _has("kv_latent_dim")


def compressed_attention_params() -> pl.Expr:
    """DeepSeek-V4: low-rank queries, one shared key-value head, grouped low-rank output, compressor, indexer.

    Layers at ratio 4 pool two overlapping windows (twice the width) and have an indexer; others pool one.
    """
    d, heads, dim, rank = pl.col("hidden_size"), _size("n_heads"), _size("k_head_dim"), _size("q_latent_dim")
    index_heads, index_dim = _size("index_n_heads"), _size("index_head_dim")
    ratio = _size("kv_compression")
    core = rank * (d + heads * dim) + d * dim + _size("n_sinks")
    output = heads * dim * _size("o_latent_dim") + _size("o_groups") * _size("o_latent_dim") * d
    width = dim * (1 + _has("index_n_heads"))
    compressor = _has("kv_compression") * (2 * d * width + ratio * width)
    indexer = _has("index_n_heads") * (
        2 * d * 2 * index_dim + ratio * 2 * index_dim + rank * index_heads * index_dim + d * index_heads
    )
    return (core + output + compressor + indexer) * _has("o_groups")


def linear_attention_params() -> pl.Expr:
    """Gated DeltaNet (Qwen3-Next), Kimi Delta Attention, and lightning attention (MiniMax-01)."""
    return (
        pl.when(pl.col("linear_kind") == "gated_delta")
        .then(_gated_delta_params())
        .when(pl.col("linear_kind") == "kimi_delta")
        .then(_kimi_delta_params())
        .when(pl.col("linear_kind") == "lightning")
        .then(_lightning_params())
        .otherwise(0)
    )


def _linear_widths() -> tuple[pl.Expr, pl.Expr]:
    keys = _size("linear_key_heads") * _size("linear_key_dim")
    values = _size("linear_value_heads") * _size("linear_value_dim")
    return keys, values


def _gated_delta_params() -> pl.Expr:
    """q, k, v, z; two gates per value head; depthwise convolution over q, k, v; decay; output."""
    d = pl.col("hidden_size")
    keys, values = _linear_widths()
    heads = _size("linear_value_heads")
    projections = d * (2 * keys + 2 * values + 2 * heads)
    return projections + (2 * keys + values) * _size("conv_kernel") + 2 * heads + values * d


def _kimi_delta_params() -> pl.Expr:
    """q, k, v with a convolution each; decay and output gates, low-rank or full; beta; output."""
    d, heads, rank = pl.col("hidden_size"), _size("linear_value_heads"), _size("linear_gate_rank")
    _, width = _linear_widths()
    gates = pl.when(rank > 0).then(2 * rank * (d + width)).otherwise(2 * d * width) + d * heads
    return d * 3 * width + 3 * width * _size("conv_kernel") + gates + width + heads + width * d


def _lightning_params() -> pl.Expr:
    """q, k, v, an output gate and the output projection."""
    _, width = _linear_widths()
    return pl.col("hidden_size") * 5 * width


def mamba_params() -> pl.Expr:
    """Mamba-1 (where mamba_dt_rank is set) and Mamba-2 (where mamba_heads is set)."""
    d, inner, state, kernel = (
        pl.col("hidden_size"),
        _size("mamba_inner"),
        _size("mamba_state"),
        _size("conv_kernel"),
    )
    rank, heads, groups = _size("mamba_dt_rank"), _size("mamba_heads"), _size("mamba_groups")
    ends = d * inner * 3 + _flag("mixer_bias") * (2 * inner + d)
    first = ends + inner * (kernel + _flag("conv_bias")) + inner * (rank + 2 * state) + rank * inner + inner
    first = first + inner * state + inner
    channels = inner + 2 * groups * state
    second = d * (inner + channels + heads) + inner * d + channels * (kernel + _flag("conv_bias")) + 3 * heads
    second = second + _flag("mixer_bias") * (inner + channels + heads + d)
    return pl.when(rank > 0).then(first).when(heads > 0).then(second).otherwise(0) * _has("mamba_inner")


def short_convolution_params() -> pl.Expr:
    """LFM2: one projection to three gates, a depthwise convolution, one projection back."""
    d = pl.col("hidden_size")
    return (pl.col("mixer") == "conv").cast(pl.Int64) * (4 * d * d + d * _size("conv_kernel"))


def residual_mixing_params() -> pl.Expr:
    """AltUp and Laurel (Gemma 3n), hyper-connections around both halves of a layer (DeepSeek-V4), lone
    scalars.
    """
    d, inputs, streams = pl.col("hidden_size"), _size("altup_inputs"), _size("residual_streams")
    altup = inputs * inputs + inputs**3 + d * inputs + _has("altup_inputs") * d
    laurel = 2 * d * _size("laurel_rank")
    mixes = streams * streams + 2 * streams
    hyper_connections = 2 * (mixes * streams * d + mixes + 3 * _has("residual_streams"))
    return altup + laurel + hyper_connections + _size("n_scalars")


def dense_ffn_params() -> pl.Expr:
    """ffn_matrices x hidden_size x ffn_size, and biases."""
    d, f, matrices = pl.col("hidden_size"), _size("ffn_size"), _size("ffn_matrices")
    return matrices * d * f + _flag("ffn_bias") * _has("ffn_size") * ((matrices - 1) * f + d)


def expert_size_params() -> pl.Expr:
    """One routed expert."""
    width, f, matrices = _expert_width(), _size("expert_ffn_size"), _size("ffn_matrices")
    return matrices * width * f + _flag("expert_bias") * ((matrices - 1) * f + width)


def routed_expert_params() -> pl.Expr:
    """All routed experts of the layer."""
    return _size("n_experts") * expert_size_params()


def used_expert_params() -> pl.Expr:
    """The routed experts that one token reads: n_experts_used of n_experts."""
    return _size("n_experts_used") * expert_size_params()


def _expert_width() -> pl.Expr:
    return pl.coalesce("expert_input_size", "hidden_size")


def shared_expert_params() -> pl.Expr:
    """Shared experts together, their gate, and the projections into and out of a latent width."""
    d, f = pl.col("hidden_size"), _size("shared_ffn_size")
    return _size("ffn_matrices") * d * f + _flag("shared_gate") * d + 2 * d * _size("expert_input_size")


def router_params() -> pl.Expr:
    """One row per expert, a bias per expert, and learned scales of its input and of each expert."""
    experts, d = _size("n_experts"), pl.col("hidden_size")
    return experts * (d + _flag("router_bias")) + _has("n_experts") * _flag("router_scale") * (d + experts)


def per_layer_input_params() -> pl.Expr:
    """Gemma 3n and 4: gate and projection of the per-layer input."""
    return 2 * pl.col("hidden_size") * _size("per_layer_input_size")


def layer_norm_params() -> pl.Expr:
    """Norms of width hidden_size around the halves of the layer."""
    extra = _has("per_layer_input_size") + _has("altup_inputs") + _has("laurel_rank")
    return (_size("n_norms") + extra) * pl.col("hidden_size") * (1 + _flag("norm_bias"))


def mixer_norm_params() -> pl.Expr:
    """Norms inside the mixer: queries and keys, latents, indexer key (with bias), recurrent output."""
    latents = _has("kv_latent_dim") * (_size("q_latent_dim") + _size("kv_latent_dim"))
    compressed = _has("o_groups") * (
        _size("q_latent_dim") + _size("k_head_dim") * (1 + _has("kv_compression")) + _size("index_head_dim")
    )
    indexer = _has("kv_latent_dim") * 2 * _size("index_head_dim")
    keys = _size("k_norm_size") * _owns_kv_weights()
    heads = (_size("q_norm_size") + keys) * (1 + _flag("qk_norm_bias"))
    delta = pl.col("linear_kind").is_in(["gated_delta", "kimi_delta"]).fill_null(False).cast(pl.Int64)
    lightning = (pl.col("linear_kind") == "lightning").fill_null(False).cast(pl.Int64)
    linear = _size("linear_value_dim") * (delta + lightning * _size("linear_value_heads"))
    return (
        heads
        + latents
        + compressed
        + indexer
        + linear
        + _size("mamba_norm_size")
        + _size("attention_norm_size")
    )


def ffn_norm_params() -> pl.Expr:
    """A norm inside the feed-forward."""
    return _size("ffn_norm_size")


def embedding_params() -> pl.Expr:
    """Token embedding, and learned positions where the model has them."""
    return (pl.col("vocab_size") + _size("n_positions_learned")) * pl.col("hidden_size")


def head_params() -> pl.Expr:
    """Output matrix, 0 when tied to the embedding, and its bias."""
    untied = 1 - _flag("is_tied")
    return untied * pl.col("vocab_size") * pl.col("hidden_size") + _flag("head_bias") * pl.col("vocab_size")


def output_matrix_params() -> pl.Expr:
    """What a token reads to compute logits: the head, or the tied embedding."""
    return pl.col("vocab_size") * pl.col("hidden_size") + _flag("head_bias") * pl.col("vocab_size")


def per_layer_embedding_params() -> pl.Expr:
    """Gemma 3n and 4: one embedding table per layer; a token reads one row of it."""
    return _size("per_layer_vocab_size") * _size("per_layer_input_size") * pl.col("layer_count")


def model_body_params() -> pl.Expr:
    """What is outside the layers and neither embedding nor head: norms, per-layer projection, AltUp, hyper
    head.
    """
    d, inputs, streams = pl.col("hidden_size"), _size("altup_inputs"), _size("residual_streams")
    norms = (_flag("final_norm") + _flag("embedding_norm")) * d * (1 + _flag("norm_bias"))
    per_layer = _size("per_layer_input_size") * (d * pl.col("layer_count") + 1)
    altup = 2 * (inputs - 1) * d * d * _has("altup_inputs")
    hyper_head = streams * streams * d + streams + _has("residual_streams")
    return norms + per_layer + altup + hyper_head


def mtp_joining_params() -> pl.Expr:
    """Per prediction layer: a projection of two hidden states to one and three norms (DeepSeek-V3 report,
    2.2).
    """
    d = pl.col("hidden_size")
    return pl.col("mtp_layer_count") * (2 * d * d + 3 * d)
