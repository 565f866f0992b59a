"""What the cube is worth and what others say: residuals, accuracy, short answers, a public page."""

import dagster as dg
import polars as pl

from estimator import accuracy as judged
from estimator import anchor_resolution as resolution
from estimator import best_fit as answers
from estimator import memory_plan_residuals as plans
from estimator import residuals
from estimator import rule_of_thumb as page
from pipeline import grid_tables
from pipeline.assets.table_asset import table_asset
from pipeline.grid_resource import ProjectGrid
from pipeline.partitions import published_gpus
from pipeline.side_by_side import side_by_side
from pipeline.table_store import TableStore


@table_asset(deps=residuals.SETTING_TABLES)
def anchor_residuals(
    tables: dg.ResourceParam[TableStore], anchors: pl.LazyFrame, serving_anchors: pl.LazyFrame
) -> pl.LazyFrame:
    """An estimate for exactly the setting of every resolved anchor, beside what was measured."""
    return residuals.anchor_residuals(anchors, serving_anchors, tables.read(residuals.SETTING_TABLES))


@table_asset()
def accuracy(
    anchor_residuals: pl.LazyFrame, gpus: pl.LazyFrame, models: pl.LazyFrame, quants: pl.LazyFrame
) -> pl.LazyFrame:
    """Errors of the estimates by metric and group."""
    return judged.accuracy(anchor_residuals, gpus, models, quants)


@table_asset()
def memory_plan_residuals(
    memory_plans: pl.LazyFrame,
    llama_cpp_layers: pl.LazyFrame,
    llama_cpp_compute: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
) -> pl.LazyFrame:
    """Context memory and compute buffers estimated for every row of llama.cpp's planner, beside its
    answer."""
    return plans.memory_plan_residuals(
        memory_plans, grid_tables.in_text(llama_cpp_layers), llama_cpp_compute, grid_tables.in_text(kv_dtypes)
    )


@table_asset()
def memory_plan_accuracy(memory_plan_residuals: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """Errors against llama.cpp's planner by setting and architecture."""
    return plans.memory_plan_accuracy(memory_plan_residuals, models)


@table_asset()
def anchor_resolution(anchors: pl.LazyFrame, serving_anchors: pl.LazyFrame) -> pl.LazyFrame:
    """The share of measured rows whose names resolve, by set and publisher."""
    return resolution.anchor_resolution(anchors, serving_anchors)


@table_asset(deps=["estimates"])
def best_fit(
    tables: dg.ResourceParam[TableStore],
    grid: dg.ResourceParam[ProjectGrid],
    gpus: pl.DataFrame,
    quants: pl.LazyFrame,
) -> pl.DataFrame:
    """The densest format that fits, per GPU, count, model, framework and context; one part at a time."""
    parts = [tables.scan_partition("estimates", gpu) for gpu in published_gpus(gpus, grid.span)]
    quant = parts[0].collect_schema()["quant"]
    ranks = answers.fidelity(quants).with_columns(pl.col("quant").cast(quant)).collect().lazy()
    answered = side_by_side(lambda part: answers.best_fit(part, ranks).collect(engine="streaming"), parts)
    return pl.concat([answer for _, answer in answered])


@table_asset()
def rule_of_thumb(
    grid: dg.ResourceParam[ProjectGrid], gpus: pl.DataFrame, models: pl.LazyFrame, layers: pl.LazyFrame
) -> pl.LazyFrame:
    """GPU x model x tier x context as a public page would answer; models of unknown size are left out."""
    shaped = (
        grid_tables.published_models(models, grid.span)
        .join(page.full_attention_kv_f16_bytes_per_token(layers), on="model")
        .with_columns(params_billions=page.nominal_billions())
        .drop_nulls("params_billions")
    )
    names = published_gpus(gpus, grid.span)
    on_grid = gpus.filter(pl.col("gpu").is_in(names)).with_columns(pl.col("gpu").cast(pl.Enum(names)))
    known = shaped.collect()
    of_models = pl.Enum(known.get_column("model").sort())
    coded = known.lazy().with_columns(pl.col("model").cast(of_models))
    return page.rule_of_thumb(on_grid.sort("gpu").lazy(), coded.sort("model"))
