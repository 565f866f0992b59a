"""Weight memory as engines hold it: bytes on the fullest device, on the host, in the file, and read for one
token.

What a role weighs is in `stored_weights`; here an engine places it. Pure polars.
"""

from __future__ import annotations

import polars as pl

from estimator.parallel import weights_per_gpu_bytes
from estimator.stored_weights import BY_TENSORS

LLAMA_CPP_FAMILY = ("llama.cpp", "ik_llama.cpp")
HOST_EMBEDDING_ENGINES = (*LLAMA_CPP_FAMILY, "exllamav3")
STORED = ("head_bytes", "embedding_bytes", "per_layer_embedding_bytes", "dense_bytes", "expert_bytes",
          "head_is_embedding", "file_bytes")  # fmt: skip
MODEL_READS = ("n_experts", "n_experts_used", "vocab_size")


def keeps_embedding_on_host() -> pl.Expr:
    """Whether the engine looks embedding rows up in host memory."""
    return pl.col("engine").cast(pl.String).is_in(HOST_EMBEDDING_ENGINES)


def host_bytes() -> pl.Expr:
    """Bytes kept in host memory: by llama.cpp, its wrappers and ExLlamaV3 the input and the per-layer
    embeddings.

    Source: llama.cpp@0c1e57098 src/llama-model.cpp:1604-1605 (`dev_input` is the CPU); per-layer embeddings
    as seen in the planner's split of Gemma-4-E4B; exllamav3@01b5218 exllamav3/modules/embedding.py
    (`prefer_cpu`). A tied model has a host copy of the matrix beside the one on the GPU
    (TENSOR_DUPLICATED, llama.cpp@0c1e57098 src/llama-model-loader.cpp:1164-1168).
    """
    looked_up = pl.col("embedding_bytes") + pl.col("per_layer_embedding_bytes")
    return pl.when(keeps_embedding_on_host()).then(looked_up).otherwise(0)


def outside_bytes() -> pl.Expr:
    """Bytes on the GPUs that lie outside the layers: the output matrix, and the embeddings unless they are
    looked up on the host or are that same matrix.
    """
    embedding = pl.when("head_is_embedding").then(0).otherwise("embedding_bytes")
    rest = (
        pl.when(keeps_embedding_on_host()).then(0).otherwise(embedding + pl.col("per_layer_embedding_bytes"))
    )
    return pl.col("head_bytes") + rest


def layer_bytes() -> pl.Expr:
    """Bytes of all layers, routed experts included."""
    return pl.col("dense_bytes") + pl.col("expert_bytes")


def device_bytes() -> pl.Expr:
    """Bytes of all weights on all GPUs together, before they are split."""
    return layer_bytes() + outside_bytes()


def dense_read_bytes() -> pl.Expr:
    """Bytes every token reads whatever its experts: all layers without routed experts, the output matrix, and
    one row of each embedding.
    """
    rows = (pl.col("embedding_bytes") + pl.col("per_layer_embedding_bytes")) // pl.col("vocab_size")
    return pl.col("dense_bytes") + pl.col("head_bytes") + rows


def expert_read_bytes() -> pl.Expr:
    """Bytes of the routed experts that one token reads: K of E."""
    share = pl.col("n_experts_used").cast(pl.Float64) / pl.col("n_experts").cast(pl.Float64)
    return (pl.col("expert_bytes") * share.fill_null(0.0)).round(0)


def weights(
    stored: pl.LazyFrame,
    models: pl.LazyFrame,
    formats: pl.LazyFrame,
    splits: pl.LazyFrame,
    n_gpus: pl.LazyFrame,
) -> pl.LazyFrame:
    """The table `weights`: model x framework x quant x n_gpus.

    `stored`: the table stored_weights; `models`: model, n_layers, vocab_size, n_experts, n_experts_used,
    model_citation; `formats`: framework, engine, parallel_mode, quant, quant_citation, mix_citation (of the
    quant's mix rules, null where it has none; cited where the bytes come from them); `splits`: model,
    quant, n_gpus and fullest_bytes, the bytes on the fullest GPU where llama.cpp's layer split is known to
    the tensor; `n_gpus`: one column of counts. Bytes are whole numbers.
    """
    placed = (
        stored.join(models, on="model")
        .join(formats, on="quant")
        .with_columns(
            quant_citation=pl.when(pl.col("basis") == BY_TENSORS)
            .then(pl.coalesce("mix_citation", "quant_citation"))
            .otherwise("quant_citation"),
            device_bytes=device_bytes(),
            body_bytes=layer_bytes(),
            outside_bytes=outside_bytes(),
            host_bytes=host_bytes(),
            dense_read_bytes=dense_read_bytes(),
            expert_read_bytes=expert_read_bytes(),
        )
    )
    split = placed.join(n_gpus.select(pl.col("n_gpus").cast(pl.Int64)), how="cross").filter(
        (pl.col("n_gpus") == 1) | (pl.col("parallel_mode") != "none")
    )
    dealt = pl.col("engine").is_in(LLAMA_CPP_FAMILY) & (pl.col("parallel_mode") == "layer")
    even = weights_per_gpu_bytes().ceil().cast(pl.Int64)
    byte_columns = ("device_bytes", "host_bytes", "file_bytes", "dense_read_bytes", "expert_bytes",
                    "expert_read_bytes")  # fmt: skip
    return (
        split.join(splits, on=["model", "quant", "n_gpus"], how="left")
        .select(
            "model",
            "framework",
            "quant",
            pl.col("n_gpus").cast(pl.Int16),
            weights_bytes=pl.when(dealt).then(pl.coalesce("fullest_bytes", even)).otherwise(even),
            **{name: pl.col(name).cast(pl.Int64) for name in byte_columns},
            basis="basis",
            model_citation="model_citation",
            quant_citation="quant_citation",
        )
        .sort("model", "framework", "quant", "n_gpus")
    )
