"""Parameter counts by role: sums over the tensor census. Pure polars; counts are integers.

Which tensors there are is decided in `estimator.tensor_census`; how many bytes a parameter takes elsewhere.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.tensor_census import elements, flag, layer_tensors, model_tensors, prediction_tensors

NOT_PARAMETERS: Final = ("generated", "padding")
_LAYER_PARTS: Final = {
    "mixer_params": "mixer",
    "ffn_params": "ffn",
    "expert_params": "experts",
    "norm_params": "norms",
}
_MODEL_PARTS: Final = {
    "embedding_params": "embedding",
    "head_params": "head",
    "per_layer_embedding_params": "per_layer_embedding",
    "outside_params": "model",
}
_TOTAL = ("embedding_params", "head_params", "per_layer_embedding_params", "body_params", "expert_params")


def layer_parameters(layers: pl.LazyFrame) -> pl.LazyFrame:
    """Adds mixer_params, ffn_params, expert_params and norm_params, each for ONE layer of the run.

    Columns in: `LAYER_GEOMETRY`. mixer_params: attention, linear attention, state space or convolution,
    without norm vectors. ffn_params: dense feed-forward, shared experts, router, per-layer inputs.
    expert_params: all routed experts. norm_params: every norm vector of the layer.
    """
    return _with_sums(layers, layer_tensors(layers), _LAYER_PARTS, ["model", "group"])


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
    )
    counted = models.join(per_layer, on="model", how="inner", maintain_order="left")
    joining = (
        prediction_tensors(layers, models)
        .group_by("model")
        .agg(joining_params=(elements() * pl.col("n_layers")).sum())
    )
    return (
        _with_sums(counted, model_tensors(counted), _MODEL_PARTS, ["model"])
        .join(joining, on="model", how="left", maintain_order="left")
        .with_columns(
            body_params=pl.col("layer_body_params") + pl.col("outside_params"),
            mtp_params=pl.col("mtp_layer_params") + pl.col("joining_params").fill_null(0),
        )
        .with_columns(
            computed_params=pl.sum_horizontal(*_TOTAL),
            active_params=pl.col("body_params") + output_matrix_params() + pl.col("used_expert_params"),
        )
        .select("model", *_TOTAL, "mtp_params", "computed_params", "active_params")
    )


def used_expert_params() -> pl.Expr:
    """The routed experts that one token reads in ONE layer: n_experts_used of n_experts, all equal."""
    used, all_of_them = pl.col("n_experts_used").fill_null(0), pl.col("n_experts").fill_null(0)
    return pl.when(all_of_them > 0).then(pl.col("expert_params") // all_of_them * used).otherwise(0)


def output_matrix_params() -> pl.Expr:
    """What a token reads to compute logits: the head, or the tied embedding."""
    return pl.col("vocab_size") * pl.col("hidden_size") + flag("head_bias") * pl.col("vocab_size")


def _with_sums(
    frame: pl.LazyFrame, tensors: pl.LazyFrame, parts: dict[str, str], keys: list[str]
) -> pl.LazyFrame:
    """`frame` with one column of summed elements per part, 0 where there is none; order kept."""
    counted = tensors.filter(~pl.col("storage").is_in(NOT_PARAMETERS))
    sums = counted.group_by(keys).agg(
        **{name: elements().filter(pl.col("part") == part).sum() for name, part in parts.items()}
    )
    return frame.join(sums, on=keys, how="left", maintain_order="left").with_columns(
        pl.col(name).fill_null(0) for name in parts
    )
