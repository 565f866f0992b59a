"""Every weight tensor of a model, from the shapes of its layers: name, part, shape, number, storage.

Pure polars over the columns of `estimator.layer_geometry`. One entry of `LAYER_TENSORS` or `MODEL_TENSORS` is
one kind of tensor; a size that is null or 0 means that the tensor does not exist. Shapes multiply out what
the reference implementation creates (Hugging Face transformers 5.24.0, `modeling_<type>.py`; DeepSeek-V4
after its own configuration). Names and cuts are those of a GGUF file (llama.cpp 0c1e57098,
gguf-py/gguf/constants.py and conversion/), which holds the same numbers: a checkpoint cuts some tensors
differently, never in other sizes. How many bytes a number takes does not belong here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

PARTS: Final = ("embedding", "head", "per_layer_embedding", "model", "mixer", "ffn", "experts", "norms")
# matrix: what quantization may touch. f32: kept in 32 bit by GGUF, in the checkpoint's type elsewhere.
# bf16: a matrix that GGUF leaves as it is. generated, padding: only in GGUF files, not weights of the model;
# padding are rows of zeros that are quantized like the matrix they lengthen.
STORAGES: Final = ("matrix", "f32", "bf16", "generated", "padding", "checkpoint_only")
CENSUS: Final = ("model", "group", "n_layers", "is_mtp", "tensor", "part", "storage",
                 "n_matrices", "n_rows", "row_length")  # fmt: skip
_ONE = pl.lit(1, dtype=pl.Int64)


class Tensor(NamedTuple):
    """One kind of tensor: `n_matrices` matrices of `n_rows` rows of `row_length` numbers; absent where any
    is 0. A vector is one row.
    """

    name: str
    part: str
    n_rows: pl.Expr
    row_length: pl.Expr
    n_matrices: pl.Expr = _ONE
    storage: str = "matrix"


def size(name: str) -> pl.Expr:
    """A size, 0 where the part does not exist."""
    return pl.col(name).fill_null(0)


def flag(name: str) -> pl.Expr:
    """A flag as 0 or 1."""
    return pl.col(name).fill_null(False).cast(pl.Int64)


def has(name: str) -> pl.Expr:
    """1 where the layer has the part whose size is `name`, else 0."""
    return (size(name) > 0).cast(pl.Int64)


def equals(name: str, value: str) -> pl.Expr:
    """1 where the column is that word, else 0."""
    return (pl.col(name) == value).fill_null(False).cast(pl.Int64)


def vector(name: str, part: str, length: pl.Expr, storage: str = "f32") -> Tensor:
    """One row of numbers: a norm, a bias, a scale."""
    return Tensor(name, part, (length > 0).cast(pl.Int64), length, storage=storage)


def _attention() -> list[Tensor]:
    """Keys and values per head; one fused matrix where the checkpoint has one; the query's gate beside it or
    in it.
    """
    d, heads = pl.col("hidden_size"), size("n_heads")
    own_kv = 1 - flag("shares_kv") * (1 - flag("keeps_kv_weights"))
    here = (1 - has("kv_latent_dim")) * (1 - has("o_groups"))
    kv_heads = size("n_kv_heads") * own_kv
    queries = heads * size("k_head_dim") * here
    keys = kv_heads * size("k_head_dim") * here
    values = kv_heads * size("v_head_dim") * (1 - flag("value_is_key")) * here
    outputs = heads * size("v_head_dim") * here
    gate = size("output_gate_size") * here
    fused, gate_in_q = flag("fused_qkv"), flag("fused_query_gate")
    apart = 1 - fused
    bias = flag("qkv_bias")
    return [
        Tensor("attn_qkv", "mixer", (queries + keys + values) * fused, d),
        Tensor("attn_q", "mixer", (queries + gate * gate_in_q) * apart, d),
        Tensor("attn_k", "mixer", keys * apart, d),
        Tensor("attn_v", "mixer", values * apart, d),
        Tensor("attn_gate", "mixer", gate * (1 - gate_in_q), d),
        Tensor("attn_output", "mixer", d * (outputs > 0), outputs),
        vector("attn_qkv.bias", "mixer", (queries + keys + values) * bias * fused),
        vector("attn_q.bias", "mixer", queries * bias * apart),
        vector("attn_k.bias", "mixer", keys * bias * apart),
        vector("attn_v.bias", "mixer", values * bias * apart),
        vector("attn_output.bias", "mixer", d * flag("o_bias") * (outputs > 0)),
        vector("attn_sinks", "mixer", size("n_sinks")),
    ]


def _latent_attention() -> list[Tensor]:
    """MLA: low-rank queries (or full ones), one latent for keys and values, its two halves per head, output,
    indexer.

    DeepSeek-V2/V3 `modeling_deepseek_v3.py`; indexer of DeepSeek-V3.2: query up-projection, one shared key,
    head weights.
    """
    d, heads, rank = pl.col("hidden_size"), size("n_heads"), size("q_latent_dim")
    latent, rope = size("kv_latent_dim"), size("qk_rope_dim")
    nope, value = size("qk_nope_dim"), size("v_head_dim")
    here, whole = has("kv_latent_dim"), flag("fused_kv_up")
    queries = heads * (nope + rope) * here
    index_heads, index_dim = size("index_n_heads") * here, size("index_head_dim") * here
    return [
        Tensor("attn_q_a", "mixer", rank * here, d),
        Tensor("attn_q_b", "mixer", queries * (rank > 0), rank),
        Tensor("attn_q", "mixer", queries * (rank == 0), d),
        Tensor("attn_kv_a_mqa", "mixer", (latent + rope) * here, d),
        Tensor("attn_kv_b", "mixer", heads * (nope + value) * here * whole, latent),
        Tensor("attn_k_b", "mixer", latent * here * (1 - whole), nope, heads),
        Tensor("attn_v_b", "mixer", value * here * (1 - whole), latent, heads),
        Tensor("attn_output", "mixer", d * here, heads * value),
        Tensor("attn_gate", "mixer", size("output_gate_size") * here, d),
        Tensor("indexer.attn_q_b", "mixer", index_heads * index_dim, rank),
        Tensor("indexer.attn_k", "mixer", index_dim, d),
        Tensor("indexer.proj", "mixer", index_heads, d),
        Tensor("indexer.kpool_gate", "mixer", index_dim * has("index_pool_tokens"), d),
        Tensor("indexer.kpool_ape", "mixer", size("index_pool_tokens") * has("index_head_dim"), index_dim,
               storage="f32"),
        vector("indexer.k_norm", "norms", index_dim),
        vector("indexer.k_norm.bias", "norms", index_dim),
        vector("attn_k_rope_norm", "norms", size("rope_key_norm_size")),
        vector("attn_q_a_norm", "norms", rank * here),
        vector("attn_kv_a_norm", "norms", latent * here),
    ]  # fmt: skip


def _compressed_attention() -> list[Tensor]:
    """DeepSeek-V4: low-rank queries, one shared key-value head, grouped low-rank output, compressor, indexer.

    Layers at ratio 4 pool two overlapping windows (twice the width) and have an indexer; others pool one.
    """
    d, heads, dim = pl.col("hidden_size"), size("n_heads"), size("k_head_dim")
    here, ratio = has("o_groups"), size("kv_compression")
    rank, groups, out_rank = size("q_latent_dim") * here, size("o_groups"), size("o_latent_dim")
    index_heads, index_dim = size("index_n_heads") * here, size("index_head_dim") * here
    pooled = has("kv_compression") * here
    width = dim * (1 + has("index_n_heads")) * pooled
    return [
        Tensor("attn_q_a", "mixer", rank, d),
        Tensor("attn_q_b", "mixer", heads * dim * here, rank),
        Tensor("attn_kv", "mixer", dim * here, d),
        Tensor("attn_output_a", "mixer", out_rank * here, heads * dim),
        Tensor("attn_output_b", "mixer", d * here, groups * out_rank),
        Tensor("attn_compressor_kv", "mixer", width, d),
        Tensor("attn_compressor_gate", "mixer", width, d),
        Tensor("attn_compressor_ape", "mixer", ratio * pooled, width, storage="f32"),
        Tensor("indexer.compressor_kv", "mixer", 2 * index_dim, d),
        Tensor("indexer.compressor_gate", "mixer", 2 * index_dim, d),
        Tensor("indexer.compressor_ape", "mixer", ratio * (index_dim > 0), 2 * index_dim, storage="f32"),
        Tensor("indexer.attn_q_b", "mixer", index_heads * index_dim, rank),
        Tensor("indexer.proj", "mixer", index_heads, d),
        vector("attn_q_a_norm", "norms", rank),
        vector("attn_kv_norm", "norms", dim * here),
        vector("attn_compressor_norm", "norms", dim * pooled),
        vector("indexer.k_norm", "norms", index_dim),
    ]


def _linear_widths() -> tuple[pl.Expr, pl.Expr]:
    keys = size("linear_key_heads") * size("linear_key_dim")
    values = size("linear_value_heads") * size("linear_value_dim")
    return keys, values


def _gated_delta() -> list[Tensor]:
    """q, k, v; z; two gates per value head (one matrix in Qwen3-Next); depthwise convolution over q, k, v;
    decay; output.
    """
    d, heads, here = pl.col("hidden_size"), size("linear_value_heads"), equals("linear_kind", "gated_delta")
    keys, values = _linear_widths()
    joined = flag("fused_delta_gates")
    return [
        Tensor("attn_qkv", "mixer", (2 * keys + values) * here, d),
        Tensor("attn_gate", "mixer", values * here, d),
        Tensor("ssm_ba", "mixer", 2 * heads * here * joined, d),
        Tensor("ssm_alpha", "mixer", heads * here * (1 - joined), d),
        Tensor("ssm_beta", "mixer", heads * here * (1 - joined), d),
        Tensor("ssm_conv1d", "mixer", (2 * keys + values) * here, size("conv_kernel"), storage="f32"),
        vector("ssm_a", "mixer", heads * here),
        vector("ssm_dt.bias", "mixer", heads * here),
        vector("ssm_norm", "norms", size("linear_value_dim") * here),
        Tensor("ssm_out", "mixer", d * here, values),
    ]


def _kimi_delta() -> list[Tensor]:
    """q, k, v with a convolution each; decay and output gates, low-rank or full; beta; output."""
    d, heads, here = pl.col("hidden_size"), size("linear_value_heads"), equals("linear_kind", "kimi_delta")
    decay = size("linear_gate_rank") * here
    output = pl.coalesce("linear_output_gate_rank", size("linear_gate_rank")) * here
    width = _linear_widths()[1] * here
    kernel = size("conv_kernel")
    return [
        *(Tensor(f"attn_{one}", "mixer", width, d) for one in "qkv"),
        *(Tensor(f"ssm_conv1d_{one}", "mixer", width, kernel, storage="f32") for one in "qkv"),
        Tensor("ssm_f_a", "mixer", decay, d),
        Tensor("ssm_f_b", "mixer", width * (decay > 0), decay),
        Tensor("ssm_g_a", "mixer", output, d),
        Tensor("ssm_g_b", "mixer", width * (output > 0), output),
        Tensor("ssm_f", "mixer", width * (decay == 0), d),
        Tensor("ssm_g", "mixer", width * (output == 0), d),
        Tensor("ssm_beta", "mixer", heads * here, d),
        vector("ssm_a", "mixer", heads * here),
        vector("ssm_dt.bias", "mixer", width),
        vector("ssm_norm", "norms", size("linear_value_dim") * here),
        Tensor("attn_output", "mixer", d * here, width),
    ]


def _lightning() -> list[Tensor]:
    """q, k and v in one matrix, an output gate, a norm over all heads, and the output projection."""
    d, here = pl.col("hidden_size"), equals("linear_kind", "lightning")
    width = _linear_widths()[1] * here
    return [
        Tensor("attn_qkv", "mixer", 3 * width, d),
        Tensor("attn_gate", "mixer", width, d),
        Tensor("attn_output", "mixer", d * here, width),
        vector("attn_norm_linear", "norms", width),
    ]


def _mamba() -> list[Tensor]:
    """Mamba-1 (where mamba_dt_rank is set) and Mamba-2 (where mamba_heads is set)."""
    d, inner, state = pl.col("hidden_size"), size("mamba_inner"), size("mamba_state")
    rank, heads = size("mamba_dt_rank"), size("mamba_heads")
    first = (rank > 0).cast(pl.Int64) * has("mamba_inner")
    second = ((rank == 0) & (heads > 0)).cast(pl.Int64) * has("mamba_inner")
    channels = inner + 2 * size("mamba_groups") * state
    convolved = inner * first + channels * second
    entering = 2 * inner * first + (inner + channels + heads) * second
    bias = flag("mixer_bias")
    return [
        Tensor("ssm_in", "mixer", entering, d),
        Tensor("ssm_conv1d", "mixer", convolved, size("conv_kernel"), storage="f32"),
        Tensor("ssm_x", "mixer", (rank + 2 * state) * first, inner),
        Tensor("ssm_dt", "mixer", inner * first, rank),
        Tensor("ssm_a", "mixer", inner * first, state, storage="f32"),
        Tensor("ssm_out", "mixer", d * (first + second), inner),
        vector("ssm_in.bias", "mixer", entering * bias),
        vector("ssm_conv1d.bias", "mixer", convolved * flag("conv_bias")),
        vector("ssm_dt.bias", "mixer", inner * first + heads * second),
        vector("ssm_a_per_head", "mixer", heads * second),
        vector("ssm_d", "mixer", inner * first + heads * second),
        vector("ssm_out.bias", "mixer", d * bias * (first + second)),
        vector("ssm_norm", "norms", size("mamba_norm_size")),
    ]


def _short_convolution() -> list[Tensor]:
    """LFM2: one projection to three gates, a depthwise convolution, one projection back."""
    d, here = pl.col("hidden_size"), equals("mixer", "conv")
    return [
        Tensor("shortconv.in_proj", "mixer", 3 * d * here, d),
        Tensor("shortconv.conv", "mixer", d * here, size("conv_kernel"), storage="f32"),
        Tensor("shortconv.out_proj", "mixer", d * here, d),
    ]


def _residual_mixing() -> list[Tensor]:
    """AltUp and Laurel (Gemma 3n), hyper-connections around both halves of a layer (DeepSeek-V4), attention
    over earlier residuals (Kimi-K3: a norm and a projection, of which GGUF stores the product), lone scalars.
    """
    d, inputs, streams = pl.col("hidden_size"), size("altup_inputs"), size("residual_streams")
    rank = size("laurel_rank")
    mixes = streams * streams + 2 * streams
    scalars = size("n_scalars")
    kept = flag("scalars_in_metadata")
    return [
        Tensor("altup_correct_coef", "mixer", inputs, inputs, storage="f32"),
        Tensor("altup_predict_coef", "mixer", inputs * inputs, inputs, storage="f32"),
        Tensor("altup_router", "mixer", inputs, d, storage="bf16"),
        vector("altup_correct_scale", "mixer", d * has("altup_inputs")),
        Tensor("laurel_l", "mixer", rank, d, storage="bf16"),
        Tensor("laurel_r", "mixer", d * has("laurel_rank"), rank, storage="bf16"),
        Tensor("hc_fn", "mixer", 2 * mixes, streams * d, storage="f32"),
        vector("hc_base", "mixer", 2 * (mixes + 3 * has("residual_streams"))),
        Tensor("res_score", "norms", size("residual_scores"), d, storage="f32"),
        Tensor("res_norm", "norms", size("residual_scores"), d, storage="checkpoint_only"),
        vector("layer_output_scale", "mixer", scalars * (1 - kept)),
        vector("activation_scalars", "mixer", scalars * kept, storage="checkpoint_only"),
    ]


def _feed_forward() -> list[Tensor]:
    """Gated (three matrices) or not (two), gate and up in one matrix where the checkpoint has one, biases."""
    d, f, here = pl.col("hidden_size"), size("ffn_size"), has("ffn_size")
    gates = size("ffn_matrices") - 2
    fused, bias = flag("fused_gate_up"), flag("ffn_bias")
    return [
        Tensor("ffn_gate", "ffn", f * gates * (1 - fused), d),
        Tensor("ffn_up", "ffn", f * (1 + gates * fused), d),
        Tensor("ffn_down", "ffn", d * here, f),
        vector("ffn_gate.bias", "ffn", f * gates * bias),
        vector("ffn_up.bias", "ffn", f * bias),
        vector("ffn_down.bias", "ffn", d * bias * here),
        vector("ffn_sub_norm", "norms", size("ffn_norm_size")),
    ]


def _routed_experts() -> list[Tensor]:
    """All routed experts, each in the layer's width or in a latent one; biases per expert."""
    width, f, experts = (
        pl.coalesce("expert_input_size", "hidden_size"),
        size("expert_ffn_size"),
        size("n_experts"),
    )
    gates = size("ffn_matrices") - 2
    fused, bias = flag("fused_expert_gate_up"), flag("expert_bias")
    return [
        Tensor("ffn_gate_up_exps", "experts", 2 * f * gates * fused, width, experts),
        Tensor("ffn_gate_exps", "experts", f * gates * (1 - fused), width, experts),
        Tensor("ffn_up_exps", "experts", f * (1 - gates * fused), width, experts),
        Tensor("ffn_down_exps", "experts", width * (f > 0), f, experts),
        Tensor("ffn_gate_exps.bias", "experts", experts * bias * gates, f, storage="f32"),
        Tensor("ffn_up_exps.bias", "experts", experts * bias, f, storage="f32"),
        Tensor("ffn_down_exps.bias", "experts", experts * bias * (f > 0), width, storage="f32"),
    ]


def _beside_experts() -> list[Tensor]:
    """Shared experts together, their gate, the router, and the projections into and out of a latent width."""
    d, f, experts = pl.col("hidden_size"), size("shared_ffn_size"), size("n_experts")
    gates, latent = size("ffn_matrices") - 2, size("expert_input_size")
    fused = flag("fused_gate_up")
    scaled = flag("router_scale") * has("n_experts")
    kept = flag("keeps_router_type")
    return [
        Tensor("ffn_gate_shexp", "ffn", f * gates * (1 - fused), d),
        Tensor("ffn_up_shexp", "ffn", f * (1 + gates * fused), d),
        Tensor("ffn_down_shexp", "ffn", d * (f > 0), f),
        vector("ffn_gate_inp_shexp", "ffn", d * flag("shared_gate")),
        Tensor("ffn_latent_down", "ffn", latent, d),
        Tensor("ffn_latent_up", "ffn", d * (latent > 0), latent),
        Tensor("ffn_gate_inp", "ffn", experts * (1 - kept), d, storage="f32"),
        Tensor("ffn_gate_inp", "ffn", experts * kept, d, storage="bf16"),
        vector("exp_probs_b", "ffn", experts * flag("router_bias")),
        Tensor("ffn_gate_tid2eid", "ffn", size("token_route_rows"), size("n_experts_used"), storage="f32"),
        vector("ffn_latent_norm", "norms", latent * flag("latent_expert_norm")),
        vector("ffn_gate_inp.scale", "ffn", d * scaled),
        vector("ffn_down_exps.scale", "ffn", experts * scaled),
    ]


def _per_layer_input() -> list[Tensor]:
    """Gemma 3n and 4: gate and projection of the per-layer input."""
    d, width = pl.col("hidden_size"), size("per_layer_input_size")
    return [
        Tensor("inp_gate", "ffn", width, d),
        Tensor("proj", "ffn", d * (width > 0), width),
    ]


def _norms() -> list[Tensor]:
    """Norms of width hidden_size around the halves of the layer, and those of queries and keys."""
    d = pl.col("hidden_size")
    extra = has("per_layer_input_size") + has("altup_inputs") + has("laurel_rank")
    count = size("n_norms") + extra
    own_kv = 1 - flag("shares_kv") * (1 - flag("keeps_kv_weights"))
    both = 1 + flag("qk_norm_bias")
    return [
        Tensor("layer_norms", "norms", count, d, storage="f32"),
        Tensor("layer_norms.bias", "norms", count * flag("norm_bias"), d, storage="f32"),
        vector("attn_q_norm", "norms", size("q_norm_size") * both),
        vector("attn_k_norm", "norms", size("k_norm_size") * own_kv * both),
        vector("attn_sub_norm", "norms", size("attention_norm_size")),
    ]


def _prediction_joining() -> list[Tensor]:
    """What joins a prediction layer to the model: a projection of two hidden states to one, its norms
    (DeepSeek-V3 report, 2.2), the mixing of its residual streams (DeepSeek-V4), and copies of embedding and
    head where the checkpoint stores them.
    """
    d = pl.col("hidden_size")
    joined = flag("is_mtp") * flag("joins_prediction")
    copies = joined * size("mtp_embedding_copies")
    vocab, streams = size("vocab_size"), size("head_streams") * joined
    return [
        Tensor("nextn.eh_proj", "model", d * joined, 2 * d),
        Tensor("nextn.norms", "model", pl.col("mtp_norms").fill_null(3) * joined, d, storage="f32"),
        Tensor("nextn.hc_head_fn", "model", streams, streams * d, storage="f32"),
        vector("nextn.hc_head_base", "model", streams + (streams > 0)),
        Tensor("nextn.embed_tokens", "model", vocab * (copies > 0), d),
        Tensor("nextn.shared_head_head", "model", vocab * (copies > 1), d),
    ]


LAYER_TENSORS: Final = (
    *_attention(), *_latent_attention(), *_compressed_attention(), *_gated_delta(), *_kimi_delta(),
    *_lightning(), *_mamba(), *_short_convolution(), *_residual_mixing(), *_feed_forward(),
    *_routed_experts(), *_beside_experts(), *_per_layer_input(), *_norms(),
)  # fmt: skip


def _outside_layers() -> list[Tensor]:
    """Embedding, output matrix, learned positions, norms, per-layer embeddings, AltUp, hyper head.

    `output.bias` counts as head. GGUF adds the factors of a scaled rotary embedding.
    """
    d, vocab, inputs = pl.col("hidden_size"), pl.col("vocab_size"), size("altup_inputs")
    streams, width = size("residual_streams"), size("per_layer_input_size")
    untied, bias = 1 - flag("is_tied"), flag("norm_bias")
    altup = (inputs - 1) * has("altup_inputs")
    rows = size("per_layer_vocab_size")
    scores = size("residual_scores")
    padded = pl.max_horizontal(size("per_layer_padded_vocab_size"), rows) - rows
    return [
        Tensor("token_embd", "embedding", vocab + size("extra_embedding_rows"), d),
        Tensor("position_embd", "embedding", size("n_positions_learned"), d, storage="f32"),
        Tensor("output", "head", vocab * untied, d),
        vector("output.bias", "head", vocab * flag("head_bias")),
        Tensor("per_layer_token_embd", "per_layer_embedding",
               size("per_layer_vocab_size") * (width > 0), width * pl.col("layer_count")),
        Tensor("per_layer_token_embd", "per_layer_embedding",
               padded * (width > 0), width * pl.col("layer_count"), storage="padding"),
        vector("output_norm", "model", d * flag("final_norm")),
        vector("output_norm.bias", "model", d * flag("final_norm") * bias),
        vector("token_embd_norm", "model", d * flag("embedding_norm")),
        vector("token_embd_norm.bias", "model", d * flag("embedding_norm") * bias),
        Tensor("per_layer_model_proj", "model", width * pl.col("layer_count"), d, storage="bf16"),
        vector("per_layer_proj_norm", "model", width),
        Tensor("altup_proj", "model", d * (altup > 0), d, altup, "bf16"),
        Tensor("altup_unembd_proj", "model", d * (altup > 0), d, altup, "bf16"),
        Tensor("hc_head_fn", "model", streams, streams * d, storage="f32"),
        vector("hc_head_base", "model", streams + has("residual_streams")),
        Tensor("output_res_score", "model", scores, d, storage="f32"),
        Tensor("output_res_norm", "model", scores, d, storage="checkpoint_only"),
        vector("rope_freqs", "model", size("rope_factors"), storage="generated"),
    ]  # fmt: skip


MODEL_TENSORS: Final = tuple(_outside_layers())


def layer_tensors(layers: pl.LazyFrame) -> pl.LazyFrame:
    """The tensors of ONE layer of every run: the columns `CENSUS`.

    `layers`: the columns of `LAYER_GEOMETRY`. Rows of absent tensors do not appear.
    """
    return _rows(layers, LAYER_TENSORS)


def prediction_tensors(layers: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """What joins ONE prediction layer of every run that has a mixer: the columns `CENSUS`.

    `models`: MODEL_GEOMETRY, of which vocab_size, residual_streams and the columns mtp_... are read.
    """
    read = models.select(
        "model", "vocab_size", "mtp_norms", "mtp_embedding_copies", head_streams="residual_streams"
    )
    joined = layers.filter("is_mtp").join(read, on="model")
    marked = joined.with_columns(joins_prediction=pl.col("mixer") != "none")
    return _rows(marked, _prediction_joining())


def model_tensors(models: pl.LazyFrame) -> pl.LazyFrame:
    """The tensors outside the layers: the columns `CENSUS`, with group null and n_layers 1.

    `models`: the columns of `MODEL_GEOMETRY` and layer_count (loaded layers).
    """
    outside = models.with_columns(
        group=pl.lit(None, dtype=pl.Int16), n_layers=pl.lit(1, dtype=pl.Int32), is_mtp=pl.lit(False)
    )
    return _rows(outside, MODEL_TENSORS)


def census(layers: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """Every tensor of every model: the columns `CENSUS`, one row per kind of tensor and run of layers (which
    holds it n_layers times), those outside the layers first.

    `layers`: LAYER_GEOMETRY; `models`: MODEL_GEOMETRY.
    """
    loaded = pl.col("n_layers").cast(pl.Int64).filter(~pl.col("is_mtp")).sum()
    counted = models.join(layers.group_by("model").agg(layer_count=loaded), on="model")
    return pl.concat([model_tensors(counted), layer_tensors(layers), prediction_tensors(layers, models)])


def elements() -> pl.Expr:
    """Numbers in one row of the census, for ONE layer of its run."""
    return pl.col("n_matrices") * pl.col("n_rows") * pl.col("row_length")


def _rows(frame: pl.LazyFrame, kinds: tuple[Tensor, ...] | list[Tensor]) -> pl.LazyFrame:
    keys = ("model", "group", "n_layers", "is_mtp")
    every = [
        frame.select(
            *keys,
            tensor=pl.lit(kind.name),
            part=pl.lit(kind.part),
            storage=pl.lit(kind.storage),
            n_matrices=kind.n_matrices.cast(pl.Int64),
            n_rows=kind.n_rows.cast(pl.Int64),
            row_length=kind.row_length.cast(pl.Int64),
        ).filter(elements() > 0)
        for kind in kinds
    ]
    return pl.concat(every).select(CENSUS)
