"""What the cube is worth and what others say: residuals, accuracy, claims, and a public page's arithmetic."""

import dagster as dg
import polars as pl

from estimator import rule_of_thumb as page
from pipeline import grid_tables
from pipeline.assets.table_asset import table_asset
from pipeline.grid_resource import ProjectGrid
from pipeline.partitions import published_gpus


@table_asset()
def rule_of_thumb(
    grid: dg.ResourceParam[ProjectGrid], gpus: pl.DataFrame, models: pl.LazyFrame, layers: pl.LazyFrame
) -> pl.LazyFrame:
    """GPU x model x tier x context as a public speed page would answer."""
    shaped = grid_tables.published_models(models, grid.span).join(
        page.full_attention_kv_f16_bytes_per_token(layers), on="model"
    )
    on_grid = gpus.filter(pl.col("gpu").is_in(published_gpus(gpus, grid.span)))
    return page.rule_of_thumb(on_grid.lazy(), shaped.with_columns(params_billions=page.nominal_billions()))
