"""Lays interpreted configurations out as the tables `models` and `layers`, with parameters counted by the
estimator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from estimator.attention_state import conv_state_elements, f32_state_elements
from estimator.gguf_mix import quantize_facts
from estimator.layer_geometry import LAYER_GEOMETRY, MODEL_GEOMETRY
from estimator.parameters import layer_parameters, model_parameters
from estimator.tensor_census import census, elements
from pipeline.contracts.architectures.llama_cpp import llama_cpp_trait_frame
from pipeline.contracts.hugging_face_config import ModelShapes
from warehouse.dictionary import conform, polars_schema

_ATTENTION = ["full", "sliding", "chunked", "mla", "cross"]
# Known also of models whose shapes are incomplete.
OUTSIDE = -1  # the group of tensors outside the layers, in the table `tensors`
STATED_SIZES = ("n_layers", "hidden_size", "vocab_size")


def counted_layers(shapes: Mapping[str, ModelShapes]) -> pl.DataFrame:
    """Layer shapes of all complete models with their parameters and state: LAYER_GEOMETRY and the counted
    columns.
    """
    rows = [{"model": model, **layer} for model, one in shapes.items() for layer in one.layers]
    frame = pl.DataFrame(rows, schema=LAYER_GEOMETRY, orient="row").lazy()
    return (
        layer_parameters(frame)
        .with_columns(f32_state_elements=f32_state_elements(), conv_state_elements=conv_state_elements())
        .collect()
    )


def counted_models(shapes: Mapping[str, ModelShapes], layers: pl.DataFrame) -> pl.DataFrame:
    """One row per complete model: its parameters by role and what its layers have in common."""
    models = _model_geometry(shapes).lazy()
    summary = layers.lazy().filter(~pl.col("is_mtp")).group_by("model").agg(**_summary())
    return (
        model_parameters(layers.lazy(), models)
        .join(summary, on="model", how="left")
        .join(models.select("model", "is_tied"), on="model", how="left")
        .with_columns(attention_kind=_attention_kind())
        .collect()
    )


def _model_geometry(shapes: Mapping[str, ModelShapes]) -> pl.DataFrame:
    """MODEL_GEOMETRY of all complete models."""
    rows = [
        {"model": model, **{name: one.model[name] for name in MODEL_GEOMETRY if name != "model"}}
        for model, one in shapes.items()
        if one.layers
    ]
    return pl.DataFrame(rows, schema=MODEL_GEOMETRY, orient="row")


def tensors_table(shapes: Mapping[str, ModelShapes], layers: pl.DataFrame) -> pl.DataFrame:
    """The table `tensors`: the census of all complete models."""
    models = _model_geometry(shapes).lazy()
    is_shared = (pl.col("tensor") == "token_embd") & pl.col("is_tied")
    counted = census(layers.lazy(), models).join(models.select("model", "is_tied"), on="model")
    return conform(
        counted.with_columns(
            elements=elements() * pl.col("n_layers").cast(pl.Int64),
            is_shared=is_shared,
            group=pl.col("group").fill_null(OUTSIDE),
        )
        .sort("model", "group", "tensor", "storage")
        .collect(),
        "tensors",
    )


def quantize_facts_table(shapes: Mapping[str, ModelShapes], layers: pl.DataFrame) -> pl.DataFrame:
    """The table `quantize_facts`: what the rules of GGUF mixes ask of a model."""
    types = pl.LazyFrame(
        [(model, one.model_type) for model, one in shapes.items()],
        schema={"model": pl.String, "model_type": pl.String},
        orient="row",
    )
    keeps = llama_cpp_trait_frame().lazy().select("model_type", "keeps_prediction")
    predicts = layers.lazy().filter("is_mtp").select("model").unique().with_columns(predicts=pl.lit(True))
    found = quantize_facts(layers.lazy(), _model_geometry(shapes).lazy().join(types, on="model"))
    kept = pl.col("keeps_prediction").fill_null(False) & pl.col("predicts").fill_null(False)
    return conform(
        found.join(types, on="model")
        .join(keeps, on="model_type", how="left")
        .join(predicts, on="model", how="left")
        .with_columns(gguf_has_mtp=kept)
        .sort("model")
        .collect(),
        "quantize_facts",
    )


def models_table(records: Sequence[dict[str, Any]], counted: pl.DataFrame) -> pl.DataFrame:
    """The table `models`: what the records state, joined with what was counted (empty for incomplete
    models)."""
    columns = polars_schema("models")
    stated_schema = {name: columns[name] for name in columns if name not in counted.columns}
    names = {"model": pl.String(), **stated_schema, **{f"stated_{name}": pl.Int64() for name in STATED_SIZES}}
    stated = pl.DataFrame(records, schema=names, orient="row")
    joined = stated.join(counted, on="model", how="left").with_columns(
        pl.coalesce(name, f"stated_{name}").alias(name) for name in STATED_SIZES
    )
    return conform(joined.sort("model"), "models")


def layers_table(layers: pl.DataFrame) -> pl.DataFrame:
    """The table `layers`: the published columns of the loaded layers."""
    absent_if_zero = ["index_head_dim"]
    return conform(
        layers.filter(~pl.col("is_mtp"))
        .with_columns(
            pl.col("shares_kv").fill_null(False),
            *(pl.when(pl.col(name) > 0).then(pl.col(name)).alias(name) for name in absent_if_zero),
        )
        .sort("model", "group"),
        "layers",
    )


def llama_cpp_layers_table(shapes: Mapping[str, ModelShapes], layers: pl.DataFrame) -> pl.DataFrame:
    """The table `llama_cpp_layers`: the loaded layers of all complete models in full shape, and what
    llama.cpp does with their architecture.

    `prediction_layers`: prediction layers that the converter leaves in the file, which are not loaded but
    count when layers are dealt out.
    """
    rows = [
        {
            "model": model,
            "model_type": one.model_type,
            "vocab_size": one.model["vocab_size"],
            "position_rows": int((one.model["n_positions_learned"] or 0) > 0),
        }
        for model, one in shapes.items()
        if one.layers
    ]
    names = {"model": pl.String, "model_type": pl.String, "vocab_size": pl.Int64, "position_rows": pl.Int16}
    models = pl.DataFrame(rows, schema=names, orient="row").join(
        llama_cpp_trait_frame(), on="model_type", how="left"
    )
    predicting = layers.filter("is_mtp").group_by("model").agg(predicting=pl.col("n_layers").sum())
    kept = pl.when("keeps_prediction").then("predicting").fill_null(0)
    loaded = layers.filter(~pl.col("is_mtp")).join(models, on="model")
    return conform(
        loaded.join(predicting, on="model", how="left")
        .with_columns(prediction_layers=kept, shares_kv=pl.col("shares_kv").fill_null(False))
        .sort("model", "group"),
        "llama_cpp_layers",
    )


def _summary() -> dict[str, pl.Expr]:
    count = pl.col("n_layers")
    recurrent = (pl.col("f32_state_elements") > 0) | (pl.col("conv_state_elements") > 0)
    attends = pl.col("mixer").is_in(_ATTENTION)
    latent = pl.col("mixer") == "mla"
    return {
        "n_layers": count.sum(),
        "hidden_size": pl.col("hidden_size").first(),
        "n_heads": pl.col("n_heads").max(),
        "n_kv_heads": pl.col("n_kv_heads").filter(~latent).max(),
        "head_dim": pl.when(latent).then("v_head_dim").otherwise("k_head_dim").max(),
        "ffn_size": _positive(pl.col("ffn_size").max()),
        "ffn_matrices": pl.col("ffn_matrices").first(),
        "expert_ffn_size": pl.col("expert_ffn_size").max(),
        "n_experts": pl.col("n_experts").max(),
        "n_experts_used": pl.col("n_experts_used").max(),
        "n_moe_layers": count.filter(pl.col("ffn") == "moe").sum(),
        "n_attention_layers": count.filter(attends).sum(),
        "n_linear_layers": count.filter(recurrent).sum(),
        "is_moe": (pl.col("ffn") == "moe").any(),
        "has_latent": latent.any(),
        "has_compression": pl.col("o_groups").is_not_null().any(),
    }


def _positive(value: pl.Expr) -> pl.Expr:
    return pl.when(value > 0).then(value)


def _attention_kind() -> pl.Expr:
    return (
        pl.when(pl.col("n_attention_layers") == 0)
        .then(pl.lit("recurrent"))
        .when(pl.col("n_linear_layers") > 0)
        .then(pl.lit("hybrid"))
        .when("has_compression")
        .then(pl.lit("compressed"))
        .when("has_latent")
        .then(pl.lit("mla"))
        .when(pl.col("n_kv_heads") == 1)
        .then(pl.lit("mqa"))
        .when(pl.col("n_kv_heads") == pl.col("n_heads"))
        .then(pl.lit("mha"))
        .otherwise(pl.lit("gqa"))
    )
