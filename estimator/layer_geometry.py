"""The shapes of one run of identical layers: the columns that the parameter and cache formulas read.

One row per model and run of layers. A null (or 0) size means that the layer has no such part. No parameter
counts and no byte counts belong here, only shapes.
"""

from __future__ import annotations

from typing import Final

import polars as pl

MIXERS: Final = ("full", "sliding", "chunked", "mla", "linear", "mamba", "conv", "cross", "none")
FEED_FORWARDS: Final = ("dense", "moe", "none")
LINEAR_KINDS: Final = ("gated_delta", "kimi_delta", "lightning")

LAYER_GEOMETRY: Final[dict[str, type[pl.DataType]]] = {
    "model": pl.String,
    "group": pl.Int16,
    "n_layers": pl.Int32,
    "is_mtp": pl.Boolean,  # a multi-token-prediction layer: in the file, not loaded for plain decoding
    "hidden_size": pl.Int64,
    "mixer": pl.String,
    "ffn": pl.String,
    # attention with keys and values per head
    "n_heads": pl.Int64,
    "n_kv_heads": pl.Int64,
    "k_head_dim": pl.Int64,
    "v_head_dim": pl.Int64,
    "window_tokens": pl.Int64,
    "shares_kv": pl.Boolean,  # reuses the keys and values of an earlier layer
    "keeps_kv_weights": pl.Boolean,  # has key and value projections all the same
    "value_is_key": pl.Boolean,  # no value projection: values are the keys before their norm
    "qkv_bias": pl.Boolean,
    "o_bias": pl.Boolean,
    "q_norm_size": pl.Int64,
    "k_norm_size": pl.Int64,
    "qk_norm_bias": pl.Boolean,
    "output_gate_size": pl.Int64,  # outputs of a gate projection on the attention output
    "n_sinks": pl.Int64,
    "attention_norm_size": pl.Int64,  # norm between attention and its output projection
    # latent attention (MLA), with or without a sparse indexer
    "q_latent_dim": pl.Int64,
    "kv_latent_dim": pl.Int64,
    "qk_nope_dim": pl.Int64,
    "qk_rope_dim": pl.Int64,
    "latent_dim": pl.Int64,  # what the cache holds per token: kv_latent_dim + qk_rope_dim
    "index_n_heads": pl.Int64,
    "index_head_dim": pl.Int64,
    "index_pool_tokens": pl.Int64,  # positions whose index keys a learned gate joins to one
    "rope_key_norm_size": pl.Int64,  # norm of the shared rotary key
    "selected_tokens": pl.Int64,  # entries that the indexer lets a token attend to
    # compressed attention (DeepSeek-V4)
    "kv_compression": pl.Int64,  # positions per compressed entry
    "o_groups": pl.Int64,
    "o_latent_dim": pl.Int64,
    # linear attention
    "linear_kind": pl.String,
    "linear_key_heads": pl.Int64,
    "linear_value_heads": pl.Int64,
    "linear_key_dim": pl.Int64,
    "linear_value_dim": pl.Int64,
    "linear_gate_rank": pl.Int64,  # rank of the decay gate; 0: a full matrix
    "linear_output_gate_rank": pl.Int64,  # rank of the output gate; null: that of the decay gate
    "conv_kernel": pl.Int64,
    # state space (Mamba); version 1 has dt_rank, version 2 has heads and groups
    "mamba_inner": pl.Int64,
    "mamba_state": pl.Int64,
    "mamba_heads": pl.Int64,
    "mamba_groups": pl.Int64,
    "mamba_dt_rank": pl.Int64,
    "mamba_norm_size": pl.Int64,
    "conv_bias": pl.Boolean,
    "mixer_bias": pl.Boolean,
    # feed-forward
    "ffn_size": pl.Int64,
    "ffn_matrices": pl.Int64,  # 3 gated, 2 not
    "ffn_bias": pl.Boolean,
    "ffn_norm_size": pl.Int64,
    "n_experts": pl.Int64,
    "n_experts_used": pl.Int64,
    "expert_ffn_size": pl.Int64,
    "expert_input_size": pl.Int64,  # width the experts work in when it is not hidden_size (latent MoE)
    "expert_bias": pl.Boolean,
    "shared_ffn_size": pl.Int64,
    "shared_gate": pl.Boolean,
    "router_bias": pl.Boolean,
    "token_route_rows": pl.Int64,  # rows of a table that gives every token its experts
    "latent_expert_norm": pl.Boolean,  # a norm of what the experts of a latent MoE give
    "router_scale": pl.Boolean,  # a learned scale on the router's input and one per expert
    # norms of width hidden_size, and other small parts
    "n_norms": pl.Int64,
    "norm_bias": pl.Boolean,
    "per_layer_input_size": pl.Int64,
    "altup_inputs": pl.Int64,
    "laurel_rank": pl.Int64,
    "residual_streams": pl.Int64,  # hyper-connections
    "residual_scores": pl.Int64,  # attention over the residuals of earlier layers, so often per layer
    "n_scalars": pl.Int64,
    "scalars_in_metadata": pl.Boolean,  # GGUF writes them into its metadata, not as tensors
    # what the checkpoint stores as one matrix, which GGUF keeps as one
    "fused_qkv": pl.Boolean,
    "fused_query_gate": pl.Boolean,  # the attention output's gate lies in the query projection
    "fused_kv_up": pl.Boolean,  # MLA: both halves of the up-projection
    "fused_gate_up": pl.Boolean,
    "fused_expert_gate_up": pl.Boolean,
    "fused_delta_gates": pl.Boolean,
    "keeps_router_type": pl.Boolean,  # GGUF leaves the router in 16 bit instead of widening it
}

MODEL_GEOMETRY: Final[dict[str, type[pl.DataType]]] = {
    "model": pl.String,
    "hidden_size": pl.Int64,
    "vocab_size": pl.Int64,
    "extra_embedding_rows": pl.Int64,  # rows of the embedding that are not in the vocabulary
    "is_tied": pl.Boolean,
    "head_bias": pl.Boolean,
    "n_positions_learned": pl.Int64,  # rows of a learned position table
    "embedding_norm": pl.Boolean,
    "final_norm": pl.Boolean,
    "norm_bias": pl.Boolean,
    "per_layer_vocab_size": pl.Int64,
    "per_layer_padded_vocab_size": pl.Int64,  # rows of the per-layer embedding in a GGUF file
    "per_layer_input_size": pl.Int64,
    "altup_inputs": pl.Int64,
    "residual_streams": pl.Int64,
    "residual_scores": pl.Int64,
    "mtp_norms": pl.Int64,  # norms that join a prediction layer to the model; null: three
    "mtp_embedding_copies": pl.Int64,  # matrices of the embedding's size that a prediction layer stores
    "rope_factors": pl.Int64,  # numbers GGUF stores for a scaled rotary embedding
}
