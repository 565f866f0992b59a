"""What the cube is worth and what others say: residuals, accuracy, short answers, a public page."""

import dagster as dg
import polars as pl

from estimator import accuracy as judged
from estimator import anchor_resolution as resolution
from estimator import best_fit as answers
from estimator import file_size_accuracy as sizes_judged
from estimator import file_size_residuals as sizes_beside
from estimator import memory_accuracy as memory_judged
from estimator import memory_plan_residuals as plans
from estimator import memory_plan_weights as plan_weights
from estimator import memory_residuals as memory_beside
from estimator import residuals, system_memory
from estimator import rule_of_thumb as page
from estimator import verdict_audit as audits
from estimator.gguf_output_copies import files_with_output_copy
from pipeline import audit_settings, grid_tables
from pipeline.assets.table_asset import table_asset
from pipeline.grid_resource import ProjectGrid
from pipeline.partitions import published_gpus
from pipeline.side_by_side import side_by_side
from pipeline.table_store import TableStore

OUTPUT_COPY_READS = ("tensors", "quantize_facts", "gguf_mix_rules", "gguf_fallbacks", "quants")


@table_asset(deps=residuals.SETTING_TABLES)
def anchor_residuals(
    tables: dg.ResourceParam[TableStore], anchors: pl.LazyFrame, serving_anchors: pl.LazyFrame
) -> pl.LazyFrame:
    """An estimate for exactly the setting of every resolved anchor, beside what was measured."""
    return residuals.anchor_residuals(anchors, serving_anchors, tables.read(residuals.SETTING_TABLES))


@table_asset(deps=audit_settings.READS)
def verdict_audit(tables: dg.ResourceParam[TableStore]) -> pl.LazyFrame:
    """Our verdict at every measured or reported setting, beside what happened."""
    return audit_settings.verdict_audit(tables.read(audit_settings.READS))


@table_asset()
def verdict_accuracy(verdict_audit: pl.LazyFrame) -> pl.LazyFrame:
    """How often verdicts are right: the audit counted."""
    return audits.verdict_accuracy(verdict_audit)


@table_asset()
def capacity(gpus: pl.DataFrame, usable_memory: pl.DataFrame, capacity_rules: pl.DataFrame) -> pl.DataFrame:
    """What each operating system leaves to a program on each accelerator."""
    return system_memory.capacity(gpus, usable_memory, capacity_rules)


@table_asset()
def accuracy(
    anchor_residuals: pl.LazyFrame, gpus: pl.LazyFrame, models: pl.LazyFrame, quants: pl.LazyFrame
) -> pl.LazyFrame:
    """Errors of the estimates by metric and group."""
    return judged.accuracy(anchor_residuals, gpus, models, quants)


@table_asset()
def memory_residuals(
    memory_logs: pl.LazyFrame,
    memory_flags: pl.LazyFrame,
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    frameworks: pl.LazyFrame,
    stored_weights: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
    latent_modes: pl.LazyFrame,
    llama_cpp_layers: pl.LazyFrame,
    llama_cpp_compute: pl.LazyFrame,
) -> pl.LazyFrame:
    """An estimate for exactly the setting of every memory log, beside what it says."""
    return memory_beside.memory_residuals(
        memory_logs,
        models,
        layers,
        grid_tables.in_text(llama_cpp_layers),
        llama_cpp_compute,
        frameworks,
        grid_tables.in_text(stored_weights),
        kv_dtypes,
        latent_modes,
        memory_flags,
    )


@table_asset()
def memory_plan_residuals(
    memory_plans: pl.LazyFrame,
    llama_cpp_layers: pl.LazyFrame,
    llama_cpp_compute: pl.LazyFrame,
    kv_dtypes: pl.LazyFrame,
    tensors: pl.LazyFrame,
    quantize_facts: pl.LazyFrame,
    gguf_mix_rules: pl.LazyFrame,
    gguf_fallbacks: pl.LazyFrame,
    quants: pl.LazyFrame,
    gguf_files: pl.LazyFrame,
) -> pl.LazyFrame:
    """Weights, context memory and compute buffers estimated for every row of llama.cpp's planner, beside its
    answer."""
    weights = plan_weights.planned_weights(
        memory_plans,
        grid_tables.census(grid_tables.in_text(tensors)),
        grid_tables.in_text(quantize_facts),
        grid_tables.in_text(gguf_mix_rules),
        grid_tables.in_text(gguf_fallbacks),
        grid_tables.in_text(quants),
        grid_tables.in_text(gguf_files),
    )
    return plans.memory_plan_residuals(
        memory_plans,
        grid_tables.in_text(llama_cpp_layers),
        llama_cpp_compute,
        grid_tables.in_text(kv_dtypes),
        weights.collect().lazy(),
    )


@table_asset()
def memory_accuracy(
    memory_residuals: pl.LazyFrame, memory_logs: pl.LazyFrame, models: pl.LazyFrame
) -> pl.LazyFrame:
    """Errors of the memory estimates by figure and group."""
    return memory_judged.memory_accuracy(memory_residuals, memory_logs, models)


@table_asset()
def memory_plan_accuracy(memory_plan_residuals: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """Errors against llama.cpp's planner by setting and architecture."""
    return plans.memory_plan_accuracy(memory_plan_residuals, models)


@table_asset(deps=(*sizes_beside.READS, *OUTPUT_COPY_READS))
def file_size_residuals(tables: dg.ResourceParam[TableStore]) -> pl.LazyFrame:
    """The bytes that the rules give for every published file, beside its size."""
    read = tables.read({*sizes_beside.READS, *OUTPUT_COPY_READS})
    named = {name: grid_tables.in_text(frame.lazy()) for name, frame in read.items()}
    census, *others = (named[name] for name in OUTPUT_COPY_READS)
    copies = files_with_output_copy(grid_tables.census(census), *others)
    return sizes_beside.file_size_residuals(named, copies)


@table_asset()
def file_size_accuracy(file_size_residuals: pl.LazyFrame) -> pl.LazyFrame:
    """Errors of the estimated file sizes by group."""
    return sizes_judged.file_size_accuracy(grid_tables.in_text(file_size_residuals))


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
