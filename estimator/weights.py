"""Weight memory: bytes on the device, on the host, in the file, and read for one token. Pure polars
expressions.

First version: parameter counts by role times storage density by role. What a role weighs is decided here; how
many parameters it has comes from `parameters`, how dense a format stores it from the `quants` table.
"""

from __future__ import annotations

import polars as pl

from estimator.parallel import weights_per_gpu_bytes

BITS_PER_BYTE = 8
LLAMA_CPP_FAMILY = ("llama.cpp", "ik_llama.cpp")
HOST_EMBEDDING_ENGINES = (*LLAMA_CPP_FAMILY, "exllamav3")


def body_bpw() -> pl.Expr:
    """Bits per weight of attention, dense FFN and norms: rest_bpw where the format covers only the routed
    experts.
    """
    return pl.coalesce("rest_bpw", "body_bpw")


def role_bytes(params: str, bpw: pl.Expr) -> pl.Expr:
    """Whole bytes of `params` weights at `bpw` bits each."""
    return (pl.col(params).cast(pl.Float64) * bpw / BITS_PER_BYTE).round(0)


def head_bytes() -> pl.Expr:
    """Bytes of the output matrix a token is read through: its own, or the tied embedding stored as one.

    llama.cpp stores a tied embedding with the output's type and loads it as output
    (TENSOR_DUPLICATED, llama.cpp@0c1e57098 src/llama-model-loader.cpp:1164-1168).
    """
    own = role_bytes("head_params", pl.col("head_bpw"))
    tied = role_bytes("embedding_params", pl.col("head_bpw"))
    return pl.when(pl.col("is_tied")).then(tied).otherwise(own)


def stored_embedding_bpw() -> pl.Expr:
    """Bits per weight of what rows are looked up in: the input embedding and the per-layer embeddings.

    llama-quantize gives both the output's type in tied models (src/llama-quant.cpp of llama.cpp@0c1e57098;
    its dry run on Gemma-3n and Gemma-4).
    """
    as_output = pl.col("is_tied") & pl.col("engine").cast(pl.String).is_in(LLAMA_CPP_FAMILY)
    return pl.when(as_output).then("head_bpw").otherwise("embedding_bpw")


def embedding_bytes() -> pl.Expr:
    """Bytes of the input embedding when it is a matrix of its own: untied, or tied but stored at another
    density.

    ExLlama stores a quantized head beside the 16-bit embedding even where the checkpoint ties them.
    """
    is_output = pl.col("is_tied") & (stored_embedding_bpw() == pl.col("head_bpw"))
    own = role_bytes("embedding_params", stored_embedding_bpw())
    return pl.when(is_output).then(0.0).otherwise(own)


def per_layer_embedding_bytes() -> pl.Expr:
    """Bytes of the per-layer embeddings (Gemma-3n and later), of which a token reads one row per layer."""
    return role_bytes("per_layer_embedding_params", stored_embedding_bpw())


def host_bytes() -> pl.Expr:
    """Bytes kept in host memory: by llama.cpp, its wrappers and ExLlamaV3 the input and the per-layer
    embeddings.

    Source: llama.cpp@0c1e57098 src/llama-model.cpp:1604-1605 (`dev_input` is the CPU); per-layer embeddings
    as seen in the planner's split of Gemma-4-E4B; exllamav3@01b5218 exllamav3/modules/embedding.py
    (`prefer_cpu`). A tied model has a host copy of the matrix beside the one on the GPU.
    """
    looked_up = role_bytes("embedding_params", stored_embedding_bpw()) + per_layer_embedding_bytes()
    return pl.when(keeps_embedding_on_host()).then(looked_up).otherwise(0.0)


def keeps_embedding_on_host() -> pl.Expr:
    """Whether the engine looks embedding rows up in host memory."""
    return pl.col("engine").cast(pl.String).is_in(HOST_EMBEDDING_ENGINES)


def device_bytes() -> pl.Expr:
    """Bytes of all weights on all GPUs together, before they are split."""
    on_device = embedding_bytes() + per_layer_embedding_bytes()
    rest = pl.when(keeps_embedding_on_host()).then(0.0).otherwise(on_device)
    return layer_bytes() + head_bytes() + rest


def file_bytes() -> pl.Expr:
    """Bytes of the published weights: every tensor once, without the file's header and without MTP blocks."""
    return layer_bytes() + head_bytes() + embedding_bytes() + per_layer_embedding_bytes()


def dense_read_bytes() -> pl.Expr:
    """Bytes every token reads whatever its experts: all layers without routed experts, and the output matrix.

    Of the input embedding one row is read, which is left out (it is under 0.01 % of the rest).
    """
    return role_bytes("body_params", body_bpw()) + head_bytes()


def expert_bytes() -> pl.Expr:
    """Bytes of all routed experts."""
    return role_bytes("expert_params", pl.col("body_bpw"))


def expert_read_bytes() -> pl.Expr:
    """Bytes of the routed experts that one token reads: K of E."""
    share = pl.col("n_experts_used").cast(pl.Float64) / pl.col("n_experts").cast(pl.Float64)
    return (expert_bytes() * share.fill_null(0.0)).round(0)


def weights(models: pl.LazyFrame, formats: pl.LazyFrame, n_gpus: pl.LazyFrame) -> pl.LazyFrame:
    """The table `weights`: model x framework x quant x n_gpus.

    `models`: the models table's parameter columns, n_layers and model_citation; `formats`: framework, engine,
    parallel_mode, quant and the quants table's body_bpw, rest_bpw, embedding_bpw, head_bpw, scope,
    quant_citation; `n_gpus`: one column of counts. Formats without a density for every role, and formats that
    cover only experts on models without any, are left out. Bytes are whole numbers.
    """
    dense_formats = formats.filter(
        pl.all_horizontal(pl.col("body_bpw", "embedding_bpw", "head_bpw").is_not_null())
    )
    per_format = (
        models.join(dense_formats, how="cross")
        .filter((pl.col("scope").cast(pl.String) != "experts") | (pl.col("expert_params") > 0))
        .with_columns(
            device_bytes=device_bytes(),
            body_bytes=layer_bytes(),
            head_bytes=device_bytes() - layer_bytes(),
            host_bytes=host_bytes(),
            file_bytes=file_bytes(),
            dense_read_bytes=dense_read_bytes(),
            expert_bytes=expert_bytes(),
            expert_read_bytes=expert_read_bytes(),
        )
    )
    split = per_format.join(n_gpus, how="cross").filter(
        (pl.col("n_gpus") == 1) | (pl.col("parallel_mode") != "none")
    )
    byte_columns = (
        "device_bytes",
        "host_bytes",
        "file_bytes",
        "dense_read_bytes",
        "expert_bytes",
        "expert_read_bytes",
    )
    return split.select(
        "model",
        "framework",
        "quant",
        pl.col("n_gpus").cast(pl.Int16),
        weights_bytes=weights_per_gpu_bytes().ceil().cast(pl.Int64),
        **{name: pl.col(name).cast(pl.Int64) for name in byte_columns},
        model_citation=pl.col("model_citation"),
        quant_citation=pl.col("quant_citation"),
    ).sort("model", "framework", "quant", "n_gpus")


def layer_bytes() -> pl.Expr:
    """Bytes of all layers, routed experts included."""
    return role_bytes("body_params", body_bpw()) + expert_bytes()
