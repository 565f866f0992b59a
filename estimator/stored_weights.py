"""Bytes of a model's weights in a format, by role: exact where the tensors' types are known, else by density.

How an engine places them (host or device, split over GPUs) is in `estimator.weights`; which tensors there are in
`estimator.tensor_census`; the types of GGUF files in `estimator.gguf_files`. Pure polars.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.gguf_files import RECIPE

BITS_PER_BYTE: Final = 8
# Families whose files store a tied embedding once, in the output's type (llama-quantize).
TIED_AS_OUTPUT: Final = ("gguf", "ik")
BY_TENSORS: Final = "tensors"
BY_DENSITY: Final = "density"


def usual_recipe(files: pl.LazyFrame, models: pl.LazyFrame, quants: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of `gguf_files` as such files are usually published: with an importance matrix where the
    quant's with_imatrix says so, by today's rules, with prediction layers where the converter keeps them.

    `models`: model, gguf_has_mtp; `quants`: quant, with_imatrix.
    """
    usual = files.join(models.select("model", "gguf_has_mtp"), on="model").join(
        quants.select("quant", usual_imatrix=pl.col("with_imatrix").fill_null(False)), on="quant"
    )
    return usual.filter(
        pl.col("with_imatrix") == pl.col("usual_imatrix"),
        ~pl.col("is_before_2026"),
        pl.col("with_mtp") == pl.col("gguf_has_mtp"),
    ).drop("gguf_has_mtp", "usual_imatrix")


def stored_weights(models: pl.LazyFrame, quants: pl.LazyFrame, files: pl.LazyFrame) -> pl.LazyFrame:
    """The table `stored_weights`: model x quant -> bytes by role.

    `models`: the models table's parameter columns, is_tied, gguf_has_mtp; `quants`: quant, family, scope,
    with_imatrix and the densities; `files`: the table gguf_files. embedding_bytes: what token rows are looked
    up in; head_bytes: what logits are computed with; they are one matrix where head_is_embedding.
    dense_bytes: all layers and what is between them, without routed experts. Formats without a density for
    every role, and formats that cover only experts on models without any, are left out.
    """
    exact = _by_tensors(models, quants, files)
    dense = _by_density(models, quants).join(exact.select("model", "quant"), on=["model", "quant"], how="anti")
    columns = ["model", "quant", "basis", "head_is_embedding", "head_bytes", "embedding_bytes",
               "per_layer_embedding_bytes", "dense_bytes", "expert_bytes", "mtp_bytes"]  # fmt: skip
    stored = pl.concat([exact.select(columns), dense.select(columns)])
    embedding = pl.when("head_is_embedding").then(0).otherwise("embedding_bytes")
    whole = pl.sum_horizontal(
        "head_bytes", embedding, "per_layer_embedding_bytes", "dense_bytes", "expert_bytes", "mtp_bytes"
    )
    return stored.with_columns(file_bytes=whole).sort("model", "quant")


def _by_tensors(models: pl.LazyFrame, quants: pl.LazyFrame, files: pl.LazyFrame) -> pl.LazyFrame:
    tied = pl.col("is_tied")
    return (
        usual_recipe(files, models, quants)
        .drop(*RECIPE)
        .join(models.select("model", "is_tied", "head_params"), on="model")
        .with_columns(
            basis=pl.lit(BY_TENSORS),
            head_is_embedding=tied,
            # a tied embedding is loaded as output; an output bias is beside it
            head_bytes=pl.col("output_bytes") + pl.when(tied).then("embedding_bytes").otherwise(0),
        )
    )


def _by_density(models: pl.LazyFrame, quants: pl.LazyFrame) -> pl.LazyFrame:
    known = quants.filter(
        pl.all_horizontal(pl.col("body_bpw", "embedding_bpw", "head_bpw").is_not_null())
    )
    tied = pl.col("is_tied")
    as_output = tied & pl.col("family").is_in(TIED_AS_OUTPUT)
    embedding_bpw = pl.when(as_output).then("head_bpw").otherwise("embedding_bpw")
    own_head = role_bytes("head_params", pl.col("head_bpw"))
    return (
        models.filter(pl.col("body_params").is_not_null())
        .join(known, how="cross")
        .filter((pl.col("scope").cast(pl.String) != "experts") | (pl.col("expert_params") > 0))
        .with_columns(embedding_bpw=embedding_bpw)
        .with_columns(
            basis=pl.lit(BY_DENSITY),
            # ExLlama stores a quantized head beside the 16-bit embedding even where the checkpoint ties them.
            head_is_embedding=tied & (pl.col("embedding_bpw") == pl.col("head_bpw")),
            head_bytes=pl.when(tied)
            .then(role_bytes("embedding_params", pl.col("head_bpw")))
            .otherwise(own_head),
            embedding_bytes=role_bytes("embedding_params", pl.col("embedding_bpw")),
            per_layer_embedding_bytes=role_bytes("per_layer_embedding_params", pl.col("embedding_bpw")),
            dense_bytes=role_bytes("body_params", pl.coalesce("rest_bpw", "body_bpw")),
            expert_bytes=role_bytes("expert_params", pl.col("body_bpw")),
            mtp_bytes=pl.lit(0, dtype=pl.Int64),
        )
    )


def role_bytes(params: str, bpw: pl.Expr) -> pl.Expr:
    """Whole bytes of `params` weights at `bpw` bits each."""
    return (pl.col(params).cast(pl.Float64) * bpw / BITS_PER_BYTE).round(0).cast(pl.Int64)


