"""Weights that llama.cpp's planner should name for its files, per device and on the host. Pure polars."""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.gguf_files import device_bytes

HOST: Final = "host"
MXFP4_SOURCE: Final = "source MXFP4"  # converted from a checkpoint with MXFP4 experts as they are
MXFP4_FILE: Final = "gguf/mxfp4_bf16"
PLANNED_FILE: Final = ("model", "weights", "prediction_layers", "n_gpus", "device")
DIFFERENCES: Final = ("none", "no_file_type", "vocabulary", "layers")
EXACT_MIB: Final = 0.01  # the planner prints thousandths, aligned tensors differ by bytes


def planned_weights(
    plans: pl.LazyFrame,
    census: pl.LazyFrame,
    facts: pl.LazyFrame,
    rules: pl.LazyFrame,
    fallbacks: pl.LazyFrame,
    quants: pl.LazyFrame,
    files: pl.LazyFrame,
) -> pl.LazyFrame:
    """The columns `PLANNED_FILE` and weights_bytes, for every planned file that a file type describes.

    `plans`: the table memory_plans; `census`, `facts`, `rules`, `fallbacks`, `quants`: as for
    `gguf_files.device_bytes`; `files`: the table gguf_files. A GPU has the tensors of its layers
    (`device_bytes`), the host the embeddings and the per-layer embeddings; prediction layers lie in the file,
    not in memory.
    """
    text = pl.col("weights", "prediction_layers", "device", "quant").cast(pl.String)
    asked = (
        plans.with_columns(text)
        .with_columns(
            quant=pl.when(pl.col("weights") == MXFP4_SOURCE).then(pl.lit(MXFP4_FILE)).otherwise("quant"),
            with_mtp=pl.col("prediction_layers") == "kept",
            n_gpus=pl.col("n_gpus").cast(pl.Int64),
        )
        .filter(pl.col("quant").is_not_null())
        .select(*PLANNED_FILE, "quant", "with_mtp")
        .unique(maintain_order=True)
    )
    dealt = pl.concat(
        [_dealt(asked, with_mtp, census, facts, rules, fallbacks, quants) for with_mtp in (False, True)]
    )
    here = files.filter(~pl.col("with_imatrix"), ~pl.col("is_before_2026")).select(
        "model",
        "quant",
        "with_mtp",
        host_bytes=pl.col("embedding_bytes") + pl.col("per_layer_embedding_bytes"),
    )
    return (
        asked.join(dealt, on=["model", "quant", "with_mtp", "n_gpus", "device"], how="left")
        .join(here, on=["model", "quant", "with_mtp"], how="left")
        .select(
            *PLANNED_FILE,
            weights_bytes=pl.when(pl.col("device") == HOST).then("host_bytes").otherwise("bytes"),
        )
    )


def _dealt(
    asked: pl.LazyFrame,
    with_mtp: bool,
    census: pl.LazyFrame,
    facts: pl.LazyFrame,
    rules: pl.LazyFrame,
    fallbacks: pl.LazyFrame,
    quants: pl.LazyFrame,
) -> pl.LazyFrame:
    wanted = asked.filter(pl.col("with_mtp") == with_mtp)
    recipes = wanted.select("model", "quant", "with_mtp").unique().with_columns(
        with_imatrix=pl.lit(False), is_before_2026=pl.lit(False)
    )  # fmt: skip
    planned = census.join(wanted.select("model").unique(), on="model", how="semi")
    counts = wanted.select("n_gpus").unique()
    return device_bytes(planned, facts, rules, fallbacks, quants, recipes, counts).select(
        "model", "quant", "n_gpus", "bytes",
        device=pl.format("gpu{}", "device"), with_mtp=pl.lit(with_mtp),
    )  # fmt: skip


def weights_difference() -> pl.Expr:
    """Why the planned weights differ from the estimate, one of `DIFFERENCES`.

    Reads weights_mib, weights_estimated_mib, device and the file's columns. No file type: the file was made
    tensor by tensor. Vocabulary: its embedding has other rows than the model's record, told by the host's
    share. Layers: its layers have other shapes than the record.
    """
    is_off = (pl.col("weights_estimated_mib") - pl.col("weights_mib")).abs() > EXACT_MIB
    of_host = (is_off & (pl.col("device") == HOST)).fill_null(False)
    embeds_otherwise = of_host.any().over("model", "weights", "prediction_layers")
    return (
        pl.when(pl.col("weights_estimated_mib").is_null()).then(pl.lit("no_file_type"))
        .when(is_off & embeds_otherwise).then(pl.lit("vocabulary"))
        .when(is_off).then(pl.lit("layers"))
        .otherwise(pl.lit("none"))
    )  # fmt: skip
