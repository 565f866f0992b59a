"""Estimates beside measurements: every resolved anchor gets an estimate for exactly its own setting. Pure
polars.

Nothing is fitted here, and no anchor is left out because of its measured value.
"""

from __future__ import annotations

import polars as pl

from estimator.anchor_settings import cache_at_depth, with_recipe
from estimator.bound import bound_work, decode_tok_s_bound
from estimator.calibration import gpu_coefficients, recipe_coefficients, serving_rates
from estimator.decode import decode_tok_s, decode_work
from estimator.intervals import basis, interval_table
from estimator.parallel import tensor_ranks
from estimator.prefill import prefill_tok_s, prefill_work, prompt_s
from estimator.serving import serving_estimates

SHARED = ("anchor_id", "metric", "gpu", "n_gpus", "model", "framework", "backend", "quant", "kv_dtype",
          "depth_tokens", "concurrency", "measured", "state", "reason", "citation")  # fmt: skip
# Throughput over the wall clock of complete requests; other rates measure something the estimate is not
# about.
SERVED_RATES = ("request-time", "static-batch", "wall")
ABOVE_BOUND = "above-the-bound"
# Everything an anchor's own setting is computed from.
SETTING_TABLES = ("gpus", "models", "layers", "quants", "frameworks", "kv_dtypes", "coefficients",
                  "stored_weights")  # fmt: skip
STACK = ("metric", "engine", "backend")


def anchor_residuals(
    anchors: pl.LazyFrame, serving_anchors: pl.LazyFrame, tables: dict[str, pl.DataFrame]
) -> pl.LazyFrame:
    """The table `anchor_residuals`: decode, prefill and serving throughput of all resolved anchors.

    `tables`: gpus, models, layers, quants, frameworks, kv_dtypes, coefficients. Anchors whose setting cannot
    be computed (no density, no bandwidth, unknown count) have no row.
    """
    parts = [
        _decode(anchors, tables),
        _prefill(anchors, tables),
        _serving(serving_anchors, tables),
    ]
    return pl.concat([_judged(part, anchors, serving_anchors, tables) for part in parts]).sort(
        "anchor_id", "metric"
    )


def _decode(anchors: pl.LazyFrame, tables: dict[str, pl.DataFrame]) -> pl.LazyFrame:
    rows = _measured(anchors, "decode_tok_s", "state", "state_reason").with_columns(
        pl.col("depth_tokens").fill_null(0)
    )
    # As in the table kv_cache: what all ranks read, each of them its own heads and state.
    settled = _settled(rows, tables, "depth_tokens", tensor_ranks()).with_columns(
        kv_read_bytes=pl.col("kv_step_bytes") * tensor_ranks(),
        kv_read_start_bytes=pl.col("kv_start_bytes") * tensor_ranks(),
        kv_replication=pl.lit(1.0),
    )
    coefficients = tables["coefficients"]
    worked = recipe_coefficients(settled, coefficients).with_columns(
        *decode_work(coefficients), *bound_work()
    )
    return _on_gpu(worked, tables).with_columns(
        estimated_mid=decode_tok_s("full"), bound=decode_tok_s_bound("full")
    )


def _prefill(anchors: pl.LazyFrame, tables: dict[str, pl.DataFrame]) -> pl.LazyFrame:
    rows = (
        _measured(anchors, "prefill_tok_s", "prefill_state", "prefill_reason")
        .filter(pl.col("start_depth_tokens").fill_null(0) == 0, pl.col("prompt_tokens") > 0)
        .with_columns(depth_tokens=pl.col("prompt_tokens"), context_tokens=pl.col("prompt_tokens"))
    )
    settled = _settled(rows, tables, "prompt_tokens")
    coefficients = tables["coefficients"]
    worked = recipe_coefficients(settled, coefficients).with_columns(*prefill_work(coefficients))
    on_gpu = _on_gpu(worked, tables).with_columns(prompt_seconds=prompt_s())
    return on_gpu.with_columns(
        estimated_mid=prefill_tok_s(pl.col("prompt_seconds")), bound=pl.lit(None, dtype=pl.Float64)
    )


def _serving(anchors: pl.LazyFrame, tables: dict[str, pl.DataFrame]) -> pl.LazyFrame:
    whole = pl.col("n_requests").is_not_null() & (pl.col("input_tokens") > 0) & (pl.col("output_tokens") > 0)
    # One instance over all its GPUs, as the cube has it: no pipeline, no replicas side by side.
    one_instance = (
        (pl.col("pipeline_parallel").fill_null(1) == 1)
        & (pl.col("data_parallel").fill_null(1) == 1)
        & (pl.col("tensor_parallel").fill_null(pl.col("n_gpus")) == pl.col("n_gpus"))
    )
    rows = (
        anchors.filter(pl.col("rate_kind").cast(pl.String).is_in(SERVED_RATES), whole, one_instance)
        .with_columns(
            depth_tokens=(pl.col("input_tokens") + pl.col("output_tokens") / 2).cast(pl.Int32),
            prompt_tokens=pl.col("input_tokens").cast(pl.Int32),
        )
        .pipe(_measured, "output_tok_s", "state", "state_reason")
        .with_columns(concurrency=pl.col("n_requests"))
    )
    recipe = _recipe(rows, tables)
    middle = cache_at_depth(recipe, tables["layers"].lazy(), "anchor_id", "depth_tokens")
    prompt = cache_at_depth(recipe, tables["layers"].lazy(), "anchor_id", "prompt_tokens")
    rates = serving_rates(tables["gpus"]).lazy()
    gpus = _with_bandwidth(tables["gpus"]).lazy().select("gpu", "memory_gib", "bandwidth_gb_s")
    links = (
        gpu_coefficients(tables["gpus"], tables["coefficients"], ["cuda"])
        .lazy()
        .select("gpu", "link_one_way_gb_s")
    )
    joined = (
        recipe.join(middle.select("anchor_id", "kv_sequence_bytes", "kv_step_bytes"), on="anchor_id")
        .join(prompt.select("anchor_id", "attention_prefill_flops"), on="anchor_id")
        .join(gpus, on="gpu")
        .join(links, on="gpu")
        .with_columns(pl.col("compute_dtype").cast(pl.String))
        .join(rates, on=["gpu", "compute_dtype"])
    )
    return serving_estimates(joined, tables["coefficients"]).with_columns(
        estimated_mid=pl.col("output_tok_s"), bound=pl.lit(None, dtype=pl.Float64)
    )


def _measured(anchors: pl.LazyFrame, metric: str, state: str, reason: str) -> pl.LazyFrame:
    """Resolved rows that measured `metric`, with the shared columns."""
    return anchors.filter(
        pl.col(state).cast(pl.String) != "unresolved",
        pl.col(metric).is_not_null(),
        pl.col("n_gpus") >= 1,
        pl.col("backend").is_not_null(),
    ).with_columns(
        metric=pl.lit(metric),
        measured=pl.col(metric).cast(pl.Float64),
        state=pl.col(state).cast(pl.String),
        reason=pl.col(reason),
        concurrency=pl.lit(1, dtype=pl.Int32),
        backend=pl.col("backend").cast(pl.String),
    )


def _recipe(rows: pl.LazyFrame, tables: dict[str, pl.DataFrame]) -> pl.LazyFrame:
    names = ("models", "quants", "frameworks", "kv_dtypes", "stored_weights")
    lazy = {name: tables[name].lazy() for name in names}
    return with_recipe(
        rows, lazy["models"], lazy["quants"], lazy["frameworks"], lazy["kv_dtypes"], lazy["stored_weights"]
    )


def _settled(
    rows: pl.LazyFrame, tables: dict[str, pl.DataFrame], depth: str, ranks: pl.Expr | None = None
) -> pl.LazyFrame:
    recipe = _recipe(rows, tables)
    cache = cache_at_depth(recipe, tables["layers"].lazy(), "anchor_id", depth, ranks)
    return recipe.join(cache, on="anchor_id")


def _on_gpu(rows: pl.LazyFrame, tables: dict[str, pl.DataFrame]) -> pl.LazyFrame:
    rates = gpu_coefficients(_with_bandwidth(tables["gpus"]), tables["coefficients"])
    return rows.join(rates.lazy(), on=["gpu", "backend"])


def _with_bandwidth(gpus: pl.DataFrame) -> pl.DataFrame:
    """Without a bandwidth there is nothing to estimate from."""
    return gpus.filter(pl.col("bandwidth_gb_s").is_not_null())


def _judged(
    rows: pl.LazyFrame, anchors: pl.LazyFrame, serving_anchors: pl.LazyFrame, tables: dict[str, pl.DataFrame]
) -> pl.LazyFrame:
    """Interval, ratio and comparisons. The basis is what the estimate would rest on without this very
    measurement.

    An accepted measurement is therefore taken out of the counts before they are read.
    """
    engines = tables["frameworks"].lazy().select("framework", "engine")
    gpus = tables["gpus"].lazy().select("gpu", pl.col("family").cast(pl.String))
    seen = _accepted(anchors, serving_anchors, engines, gpus)
    itself = (pl.col("state") == "accepted").cast(pl.Int64)
    with_basis = (
        rows.select(*SHARED, "engine", "is_moe", "estimated_mid", "bound")
        .join(gpus, on="gpu")
        .join(_counted(seen, "n_device", "gpu"), on=[*STACK, "gpu"], how="left")
        .join(_counted(seen, "n_family", "family"), on=[*STACK, "family"], how="left")
        .join(_counted(seen, "n_engine"), on=list(STACK), how="left")
        .with_columns(
            has_anchor_at_key=pl.lit(False),
            device_has_anchor_for_engine=pl.col("n_device") > itself,
            family_known=pl.col("n_family") > itself,
            engine_known=pl.col("n_engine") > itself,
        )
        .with_columns(basis=basis())
    )
    spans = pl.concat(
        [
            interval_table(tables["coefficients"], quantity).with_columns(metric=pl.lit(metric))
            for quantity, metric in (
                ("decode", "decode_tok_s"),
                ("prefill", "prefill_tok_s"),
                ("serving", "output_tok_s"),
            )
        ]
    ).lazy()
    estimated = pl.col("estimated_mid").cast(pl.Float64)
    bound = pl.col("bound").cast(pl.Float64)
    return (
        with_basis.join(spans, on=["metric", "basis", "backend", "is_moe"], how="left")
        .with_columns(
            estimated_mid=estimated,
            bound=bound,
            estimated_low=estimated * pl.col("interval_low"),
            # min_horizontal skips nulls: prompts and serving have no bound; without an estimate there is no
            # end
            estimated_high=pl.when(estimated.is_not_null()).then(
                pl.min_horizontal(estimated * pl.col("interval_high"), bound)
            ),
            ratio=estimated / pl.col("measured"),
        )
        .with_columns(
            is_within_interval=pl.col("measured").is_between("estimated_low", "estimated_high"),
            is_above_bound=pl.col("measured") > pl.col("bound"),
            role=pl.lit("shown"),
        )
        .with_columns(_flag_above_bound())
        .select(*SHARED, "estimated_low", "estimated_mid", "estimated_high", "bound", "ratio",
                "is_within_interval", "is_above_bound", "role", "basis")
    )  # fmt: skip


def _accepted(
    anchors: pl.LazyFrame, serving_anchors: pl.LazyFrame, engines: pl.LazyFrame, gpus: pl.LazyFrame
) -> pl.LazyFrame:
    """The accepted measurements: metric, engine, backend, gpu and family of each."""
    measured = pl.concat(
        [
            _measured(anchors, "decode_tok_s", "state", "state_reason").select(
                "metric", "gpu", "framework", "backend", "state"
            ),
            _measured(anchors, "prefill_tok_s", "prefill_state", "prefill_reason").select(
                "metric", "gpu", "framework", "backend", "state"
            ),
            _measured(serving_anchors, "output_tok_s", "state", "state_reason").select(
                "metric", "gpu", "framework", "backend", "state"
            ),
        ]
    )
    return measured.filter(pl.col("state") == "accepted").join(engines, on="framework").join(gpus, on="gpu")


def _counted(seen: pl.LazyFrame, name: str, *by: str) -> pl.LazyFrame:
    """How many accepted measurements there are per stack and `by`."""
    return seen.group_by(*STACK, *by).agg(pl.len().cast(pl.Int64).alias(name))


def flag_above_bound(anchors: pl.DataFrame, residuals: pl.DataFrame) -> pl.DataFrame:
    """The anchors with those accepted ones flagged whose decode speed `residuals` found above the bound.

    `anchors`: anchor_id, state, state_reason and any other columns, which are kept, as is the order of rows.
    """
    above = residuals.filter(
        pl.col("reason") == ABOVE_BOUND, pl.col("metric").cast(pl.String) == "decode_tok_s"
    ).get_column("anchor_id")
    is_above = pl.col("anchor_id").is_in(above.implode())
    state = anchors.schema["state"]
    return anchors.with_columns(
        pl.when(is_above).then(pl.lit("flagged").cast(state)).otherwise("state").alias("state"),
        pl.when(is_above).then(pl.lit(ABOVE_BOUND)).otherwise("state_reason").alias("state_reason"),
    )


def _flag_above_bound() -> list[pl.Expr]:
    """An accepted measurement above the bound is flagged with that reason: shown, and kept out of what is
    joined.
    """
    breaks = pl.col("is_above_bound").fill_null(False) & (pl.col("state") == "accepted")
    return [
        pl.when(breaks).then(pl.lit("flagged")).otherwise("state").alias("state"),
        pl.when(breaks).then(pl.lit(ABOVE_BOUND)).otherwise("reason").alias("reason"),
    ]
