"""What several GPUs change: who reads how much, who holds how much, and what talking to each other costs.

`parallel_mode` is `tensor` (every layer cut across all GPUs), `layer` (whole layers dealt out, one GPU works
at a time) or `none`. Whether a framework can do it does not belong here.
"""

from __future__ import annotations

import polars as pl

BYTES_PER_ACTIVATION = 2.0  # activations travel in 16 bit
ALL_REDUCES_PER_LAYER = 2.0  # after attention and after the feed-forward


def tensor_ranks() -> pl.Expr:
    """GPUs that read one layer at the same time: `n_gpus` under tensor parallel, else 1."""
    return pl.when(pl.col("parallel_mode").cast(pl.String) == "tensor").then(pl.col("n_gpus")).otherwise(1)


def pipeline_stages() -> pl.Expr:
    """Groups of layers that work one after another: `n_gpus` under layer split, else 1."""
    return pl.when(pl.col("parallel_mode").cast(pl.String) == "layer").then(pl.col("n_gpus")).otherwise(1)


def kv_replication() -> pl.Expr:
    """How many copies of the cache all tensor ranks hold together (1 = none).

    Reads n_gpus, parallel_mode, n_kv_heads, attention_kind. Each rank holds ceil(heads / ranks) heads, at
    least one, so copies = ranks x ceil(heads / ranks) / heads; a latent cache (`mla`) is on every rank. A
    null `n_kv_heads` (no attention cache) gives 1. Source: vLLM config/model.py, heads per rank = max(1,
    heads / tp).
    """
    ranks, heads = tensor_ranks(), pl.col("n_kv_heads")
    by_head = ranks * (heads / ranks).ceil() / heads
    is_latent = (pl.col("attention_kind").cast(pl.String) == "mla").fill_null(False)
    return pl.when(is_latent).then(ranks.cast(pl.Float64)).otherwise(by_head).fill_null(1.0)


def fullest_stage_fraction() -> pl.Expr:
    """Share of the layers on the fullest GPU: ceil(n_layers / n_gpus) / n_layers under layer split."""
    stages = pipeline_stages()
    return (pl.col("n_layers") / stages).ceil() / pl.col("n_layers")


def weights_per_gpu_bytes() -> pl.Expr:
    """Bytes of weights on the GPU that holds most.

    Reads n_gpus, parallel_mode, n_layers, body_bytes (all layers, experts included) and outside_bytes (what
    lies outside the layers: output head, and the embedding where the engine keeps it on the GPU). Tensor
    parallel cuts both evenly; layer split deals whole layers out and puts the head on the last GPU.
    """
    stages, ranks = pipeline_stages(), tensor_ranks()
    layer_bytes = pl.col("body_bytes") / pl.col("n_layers")
    most = (pl.col("n_layers") / stages).ceil()
    # When the layers do not divide evenly the last GPU has fewer of them and room for the head.
    last = pl.col("n_layers") - most * (stages - 1)
    split = pl.max_horizontal(most * layer_bytes, last.clip(0) * layer_bytes + pl.col("outside_bytes"))
    even = (pl.col("body_bytes") + pl.col("outside_bytes")) / ranks
    return pl.when(pl.col("parallel_mode").cast(pl.String) == "layer").then(split).otherwise(even)


def kv_per_gpu_fraction() -> pl.Expr:
    """Share of one copy of the cache on the fullest GPU. Reads `kv_replication` too."""
    return pl.col("kv_replication") / tensor_ranks() * fullest_stage_fraction()


def all_reduce_bytes(tokens: pl.Expr) -> pl.Expr:
    """Bytes each rank sends to sum up `tokens` tokens through all layers; 0 without tensor parallel.

    Reads n_layers, hidden_size, n_gpus, parallel_mode. A ring moves 2 (n - 1) / n of each message, two
    messages a layer, 16-bit activations. Source: physics of tensor parallel (Megatron), 2 all-reduces per
    layer.
    """
    ranks = tensor_ranks()
    ring = 2 * (ranks - 1) / ranks
    return (
        ALL_REDUCES_PER_LAYER
        * pl.col("n_layers")
        * ring
        * tokens
        * pl.col("hidden_size")
        * BYTES_PER_ACTIVATION
    )
