"""Bytes of a model's weights in a format, by role: exact where the tensors' types are known, else by density.

How an engine places them (host or device, split over GPUs) is in `estimator.weights`; which tensors there are
in `estimator.tensor_census`; the types of GGUF files in `estimator.gguf_files`. Pure polars.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.gguf_files import RECIPE, ROLES

BITS_PER_BYTE: Final = 8
# Families whose files store a tied embedding once, in the output's type (llama-quantize).
TIED_AS_OUTPUT: Final = ("gguf", "ik")
# Two models with as many parameters as this have the same shape: fine-tunes differ by some tokens at most.
SAME_SHAPE_SHARE: Final = 0.001
BY_TENSORS: Final = "tensors"
BY_RECIPE: Final = "recipe"
BY_DENSITY: Final = "density"


def usual_recipe(files: pl.LazyFrame, facts: pl.LazyFrame, quants: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of `gguf_files` as such files are usually published: with an importance matrix where the
    quant's with_imatrix says so, by today's rules, with prediction layers where the converter keeps them.

    `facts`: model, gguf_has_mtp of the table quantize_facts; `quants`: quant, with_imatrix.
    """
    usual = files.join(facts.select("model", "gguf_has_mtp"), on="model").join(
        quants.select("quant", usual_imatrix=pl.col("with_imatrix").fill_null(False)), on="quant"
    )
    return usual.filter(
        pl.col("with_imatrix") == pl.col("usual_imatrix"),
        ~pl.col("is_before_2026"),
        pl.col("with_mtp") == pl.col("gguf_has_mtp"),
    ).drop("gguf_has_mtp", "usual_imatrix")


def stored_weights(
    models: pl.LazyFrame,
    facts: pl.LazyFrame,
    quants: pl.LazyFrame,
    files: pl.LazyFrame,
    checkpoints: pl.LazyFrame,
    published: pl.LazyFrame,
) -> pl.LazyFrame:
    """The table `stored_weights`: model x quant -> bytes by role.

    `models`: the models table's parameter columns and is_tied; `facts`: quantize_facts; `quants`: quant,
    family, scope, with_imatrix and the densities; `files`: the table gguf_files; `checkpoints`:
    `checkpoint_bytes.checkpoint_bytes`; `published`: quant, n_params, measured_bpw of published files whose
    recipe is not known (the table unsloth_dynamic). embedding_bytes: what token rows are looked up in;
    head_bytes: what logits are computed with; they are one matrix where head_is_embedding.
    dense_bytes: all layers and what is between them, without routed experts. Types of every tensor come
    before layouts, layouts before densities; what has none of them is left out, and so are formats that
    cover only experts on models without any.
    """
    usable = _usable(models, quants)
    by_tensors = _by_tensors(models, usual_recipe(files, facts, quants))
    by_recipe = _by_recipe(models, checkpoints).join(by_tensors, on=["model", "quant"], how="anti")
    exact = pl.concat([by_tensors.select(_COLUMNS), by_recipe.select(_COLUMNS)])
    dense = _by_density(models, quants, published).join(exact, on=["model", "quant"], how="anti")
    embedding = pl.when("head_is_embedding").then(0).otherwise("embedding_bytes")
    whole = pl.sum_horizontal(
        "head_bytes", embedding, "per_layer_embedding_bytes", "dense_bytes", "expert_bytes", "mtp_bytes"
    )
    return (
        pl.concat([exact, dense.select(_COLUMNS)])
        .join(usable, on=["model", "quant"], how="semi")
        .with_columns(file_bytes=whole)
        .sort("model", "quant")
    )


_COLUMNS: Final = (
    "model", "quant", "basis", "head_is_embedding", "head_bytes", "embedding_bytes",
    "per_layer_embedding_bytes", "dense_bytes", "expert_bytes", "mtp_bytes",
)  # fmt: skip


def _usable(models: pl.LazyFrame, quants: pl.LazyFrame) -> pl.LazyFrame:
    """model, quant: all but formats that cover only experts on models without any."""
    covers = (pl.col("scope").cast(pl.String) != "experts") | (pl.col("expert_params") > 0)
    shaped = models.filter(pl.col("body_params").is_not_null()).select("model", "expert_params")
    return shaped.join(quants.select("quant", "scope"), how="cross").filter(covers).select("model", "quant")


def _by_tensors(models: pl.LazyFrame, usual: pl.LazyFrame) -> pl.LazyFrame:
    tied = pl.col("is_tied")
    return (
        usual.drop(*RECIPE)
        .join(models.select("model", "is_tied"), on="model")
        .with_columns(
            basis=pl.lit(BY_TENSORS),
            head_is_embedding=tied,
            # a tied embedding is loaded as output; an output bias is beside it
            head_bytes=pl.col("output_bytes") + pl.when(tied).then("embedding_bytes").otherwise(0),
        )
    )


def _by_recipe(models: pl.LazyFrame, checkpoints: pl.LazyFrame) -> pl.LazyFrame:
    loaded = ~pl.col("is_mtp")
    sums = checkpoints.group_by("model", "quant").agg(
        *(
            pl.col("bytes").filter(loaded & pl.col("part").is_in(parts)).sum().alias(name)
            for name, parts in ROLES.items()
        ),
        mtp_bytes=pl.col("bytes").filter("is_mtp").sum(),
    )
    # a format may store the output matrix again, quantized, where the checkpoint ties it to the embedding
    one_matrix = pl.col("is_tied") & (pl.col("output_bytes") == 0)
    return sums.join(models.select("model", "is_tied"), on="model").with_columns(
        basis=pl.lit(BY_RECIPE),
        head_is_embedding=one_matrix,
        head_bytes=pl.when(one_matrix).then("embedding_bytes").otherwise("output_bytes"),
    )


def own_densities(models: pl.LazyFrame, published: pl.LazyFrame) -> pl.LazyFrame:
    """model, quant, own_bpw: density of the published files of a model's own shape, the median of several.

    Without a recipe the density of a format is the median of all its files, most of them of small models,
    whose embeddings weigh more: 4.16 bits for UD-Q3_K_XL, 3.54 in the file of a model of 235 B parameters.
    """
    parts = ("head_params", "embedding_params", "per_layer_embedding_params", "body_params", "expert_params")
    sized = models.select("model", n_stored=pl.sum_horizontal(pl.col(parts).cast(pl.Float64)))
    near = (pl.col("n_params") / pl.col("n_stored") - 1).abs() <= SAME_SHAPE_SHARE
    return (
        sized.join(published.select("quant", "n_params", "measured_bpw"), how="cross")
        .filter(near)
        .group_by("model", "quant")
        .agg(own_bpw=pl.col("measured_bpw").median())
    )


def _by_density(models: pl.LazyFrame, quants: pl.LazyFrame, published: pl.LazyFrame) -> pl.LazyFrame:
    known = quants.filter(pl.all_horizontal(pl.col("body_bpw", "embedding_bpw", "head_bpw").is_not_null()))
    densities = [
        pl.coalesce("own_bpw", name).alias(name) for name in ("body_bpw", "embedding_bpw", "head_bpw")
    ]
    tied = pl.col("is_tied")
    as_output = tied & pl.col("family").is_in(TIED_AS_OUTPUT)
    embedding_bpw = pl.when(as_output).then("head_bpw").otherwise("embedding_bpw")
    own_head = role_bytes("head_params", pl.col("head_bpw"))
    return (
        models.filter(pl.col("body_params").is_not_null())
        .join(known, how="cross")
        .join(own_densities(models, published), on=["model", "quant"], how="left")
        .with_columns(densities)
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
