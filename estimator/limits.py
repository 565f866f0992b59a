"""The cube `limits`: the longest context and the most requests that one GPU's memory holds, solved exactly.

Bytes of cache and runtime are straight lines of the context between a few knots (where a window is full, or
where an engine changes its micro-batch). The knots of each setting are worked out once; a GPU then finds its
piece of the line by counting knots that fit, and the last step that fits by bisection over the published
rounding. Pure polars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from estimator.capacity import BYTES_PER_GIB, GIB_DECIMALS, engine_usable_gib, kept_free_units
from estimator.kv_cache import engine_windows

KEY = ("model", "framework", "backend", "quant", "kv_dtype", "n_gpus")
SMALLEST_CONTEXT_TOKENS = 256  # whole steps and blocks of every engine
REQUEST_TOKENS = 8192
FARTHEST_KNOTS = (2**22, 2**26)  # beyond the last kink everything is one line; no model goes farther
UNITS_PER_GIB = 10**GIB_DECIMALS  # memory is published in thousandths of a GiB
_LINE_TOLERANCE_BYTES = 2  # cache bytes are rounded up to whole bytes at each context
_SETTING = ("model", "framework", "backend", "kv_dtype", "n_gpus", "at_least_gib")
_KNOT = ("context", "kv_bytes", "kv_step_bytes", "runtime_bytes", "runtime_step_bytes", "steps")


def units(n_bytes: pl.Expr) -> pl.Expr:
    """Bytes in the whole units (0.001 GiB) that are published, rounded as `capacity.gib` rounds."""
    return (n_bytes / BYTES_PER_GIB * UNITS_PER_GIB).round()


def _cache_units(cache_bytes: pl.Expr) -> pl.Expr:
    """Units that a cache takes, with what its engine keeps free beside it (`capacity.claimed_gib`)."""
    taken = units(cache_bytes)
    return taken + kept_free_units(taken)


def _per_claim() -> pl.Expr:
    """The same in bytes, without rounding: what one byte of cache claims."""
    return (1.0 / pl.col("share_of_free").cast(pl.Float64)).fill_null(1.0)


def context_steps(frameworks: pl.LazyFrame) -> pl.LazyFrame:
    """framework, step_tokens: how an engine counts contexts: its step, else its cache block, else 1."""
    step = pl.coalesce("profile_context_step_tokens", "profile_kv_block_tokens", pl.lit(1))
    return frameworks.select("framework", step_tokens=step.cast(pl.Int64))


def knot_contexts(
    layers: pl.LazyFrame, frameworks: pl.LazyFrame, framework_steps: pl.LazyFrame
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Contexts besides the grid's at which bytes may bend: for models without windows, for models with them,
    and more for these in engines that keep what is in flight beside a window (cache_batches_in_flight).

    `frameworks` and `framework_steps`: the tables. The frames have the column context_tokens, sorted: where
    settings change with the context, and where the windows of `layers` are full in each engine.
    """
    bends = framework_steps.filter(pl.col("depends_on").cast(pl.String) == "context_tokens").select(
        "framework", context_tokens=pl.col("at_least").cast(pl.Int64)
    )
    ends = pl.LazyFrame({"context_tokens": [SMALLEST_CONTEXT_TOKENS, REQUEST_TOKENS, *FARTHEST_KNOTS]})
    plain = pl.concat([_around(bends, frameworks), ends])
    windows = layers.select(pl.col("window_tokens").cast(pl.Int64)).drop_nulls().unique()
    in_flight = framework_steps.filter(pl.col("setting") == "ubatch_tokens").select(
        "framework", slack=pl.col("value").cast(pl.Int64)
    )
    engines = engine_windows(frameworks, framework_steps)
    slack = pl.concat([engines.select("framework", slack="window_slack_tokens"), in_flight])
    step = pl.col("window_step_tokens")
    full = (pl.col("window_tokens") * pl.col("slots") + pl.col("slack") + step - 1) // step * step
    cells = (
        engines.join(slack, on="framework")
        .join(windows, how="cross")
        .select("framework", context_tokens=full)
    )
    flight = _in_flight(engines, framework_steps).join(windows, how="cross").select(
        "framework", context_tokens=pl.col("window_tokens") - 1 + pl.col("in_flight_tokens")
    )  # fmt: skip
    bare = engines.select("framework").join(windows, how="cross").rename({"window_tokens": "context_tokens"})
    windowed = pl.concat([plain, *(_around(full, frameworks) for full in (cells, bare))])
    beside = _around(flight, frameworks).join(windowed, on="context_tokens", how="anti")
    return _distinct(plain), _distinct(windowed), _distinct(beside)


def _in_flight(engines: pl.LazyFrame, framework_steps: pl.LazyFrame) -> pl.LazyFrame:
    """framework, in_flight_tokens: prompt tokens beside a window, at every step of engines that state it."""
    step = framework_steps.filter(pl.col("setting") == "prefill_tokens").with_columns(
        smallest=pl.col("value").sort_by("at_least").first().over("framework")
    )
    flying = engines.filter(pl.col("in_flight_tokens") > 0).select("framework", "in_flight_tokens")
    times = (pl.col("in_flight_tokens") * pl.col("value") / pl.col("smallest")).cast(pl.Int64)
    return flying.join(step, on="framework").select("framework", in_flight_tokens=times).unique()


def _around(bends: pl.LazyFrame, frameworks: pl.LazyFrame) -> pl.LazyFrame:
    """The whole steps of its engine before and after each bend: no other context is asked about."""
    step, at = pl.col("step_tokens"), pl.col("context_tokens")
    places = [at // step * step, (at + step - 1) // step * step]
    return bends.join(context_steps(frameworks), on="framework").select(
        context_tokens=pl.concat_list(places)
    ).explode("context_tokens")  # fmt: skip


def _distinct(contexts: pl.LazyFrame) -> pl.DataFrame:
    return contexts.unique().filter(pl.col("context_tokens") > 0).sort("context_tokens").collect()


@dataclass(frozen=True)
class LimitRecipes:
    """`recipes`: one row per `KEY`, sorted; `knots`: the knots of all settings, one below the other."""

    recipes: pl.DataFrame
    knots: pl.DataFrame


def limit_recipes(
    formats: pl.LazyFrame,
    settings: pl.LazyFrame,
    refused: pl.LazyFrame,
    models: pl.LazyFrame,
    layers: pl.LazyFrame,
    weights: pl.LazyFrame,
    kv_cache: pl.LazyFrame,
    runtime: pl.LazyFrame,
    steps: pl.LazyFrame,
    sizes: pl.LazyFrame,
    smallest_of_cube: int,
    extended_context_factor: int,
) -> LimitRecipes:
    """Everything that does not depend on the GPU.

    The inputs are those of `recipes.recipes`; `kv_cache` and `runtime` hold the knots too (see
    `knot_contexts`) and every step of an engine (`gpu_steps.at_every_size`), `sizes`: those steps, `steps`:
    `context_steps`, `formats` also `serves`. A recipe is here once per step, see `at_size`. It is here
    where the cube has a row of it: where `smallest_of_cube`, the grid's smallest context, is within the
    model's reach.
    """
    strides = _model_strides(layers)
    reach = models.select(
        "model", reach_tokens=pl.col("native_context_tokens").cast(pl.Int64) * extended_context_factor
    ).filter(pl.col("reach_tokens") >= smallest_of_cube)
    wanted = (
        settings.join(
            formats.select("framework", "backend", "kv_dtype", "share_of_free").unique(),
            on=["framework", "kv_dtype"],
        )
        .join(reach, on="model", how="semi")
        .join(steps, on="framework")
        .join(strides, on="model", how="left")
        .join(sizes, on="framework", how="left")
        .with_columns(pl.col("at_least_gib").fill_null(0))
        .with_columns(step_tokens=pl.max_horizontal("step_tokens", "stride_tokens").cast(pl.Int64))
    )  # fmt: skip
    knots, lines = _knots(wanted, kv_cache, runtime)
    recipes = (
        settings.join(formats, on=["framework", "kv_dtype"])
        .join(sizes, on="framework", how="left")
        .with_columns(pl.col("at_least_gib").fill_null(0))
        .join(refused, on=["framework", "quant", "model", "n_gpus"], how="anti")
        .join(weights.select("model", "framework", "quant", "n_gpus", "weights_bytes"),
              on=["model", "framework", "quant", "n_gpus"])
        .join(reach, on="model")
        .join(lines.lazy(), on=list(_SETTING))
        .select(
            *KEY, "at_least_gib", "format", "arch_min",
            pl.col("memory_utilization").cast(pl.Float32),
            "share_of_free",
            pl.col("reach_tokens").cast(pl.Float64),
            pl.col("step_tokens").cast(pl.Float64),
            pl.col("first_knot").cast(pl.UInt32),
            "knot_units",
            weights_units=units(pl.col("weights_bytes").cast(pl.Float64)).cast(pl.Int32),
            request_units=pl.when("serves", pl.col("reach_tokens") >= REQUEST_TOKENS)
            .then(pl.col("request_runtime_units").cast(pl.Int32)),
            request_kv_bytes=pl.col("request_kv_bytes").cast(pl.Float64),
        )
        .sort(*KEY, "at_least_gib")
        .collect()
    )  # fmt: skip
    width = recipes.get_column("knot_units").list.len().max()
    wide = recipes.with_columns(
        pl.col("knot_units").list.get(at, null_on_oob=True).alias(f"knot_{at}")
        for at in range(width if isinstance(width, int) else 0)
    )
    return LimitRecipes(wide.drop("knot_units"), knots)


def at_size(recipes: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The recipes of one GPU's steps (framework, at_least_gib), in their order."""
    own: pl.Expr = pl.lit(0)
    for framework, at_least_gib in steps.select("framework", "at_least_gib").iter_rows():
        own = pl.when(pl.col("framework") == framework).then(at_least_gib).otherwise(own)
    return recipes.filter(pl.col("at_least_gib") == own)


def _model_strides(layers: pl.LazyFrame) -> pl.LazyFrame:
    """model, stride_tokens: compressed caches grow once per so many tokens (a power of two, as steps are)."""
    return layers.group_by("model").agg(stride_tokens=pl.col("kv_compression").cast(pl.Int64).max())


def _knots(
    wanted: pl.LazyFrame, kv_cache: pl.LazyFrame, runtime: pl.LazyFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The knots of each setting (columns `_KNOT`), and per setting its first one and the units at each.

    Contexts that are no whole step of the setting are left out, and so are knots on a straight line.
    """
    setting = list(_SETTING)
    every = (
        wanted.join(kv_cache.select("model", "framework", "kv_dtype", "n_gpus", "at_least_gib",
                                    "context_tokens", kv_bytes="reserved_bytes"),
                    on=["model", "framework", "kv_dtype", "n_gpus", "at_least_gib"])
        .join(runtime.select("model", "framework", "backend", "n_gpus", "at_least_gib", "context_tokens",
                             "runtime_bytes"),
              on=["model", "framework", "backend", "n_gpus", "at_least_gib", "context_tokens"])
        .select(*setting, "step_tokens", "share_of_free",
                *[pl.col(name).cast(pl.Float64) for name in ("kv_bytes", "runtime_bytes")],
                context=pl.col("context_tokens").cast(pl.Int64))
        .filter(pl.col("context") % pl.col("step_tokens") == 0, pl.col("context") >= SMALLEST_CONTEXT_TOKENS)
        .sort(*setting, "context")
        .collect()
    )  # fmt: skip
    request = every.filter(pl.col("context") == REQUEST_TOKENS).select(
        *setting, request_kv_bytes="kv_bytes", request_runtime_units=units(pl.col("runtime_bytes"))
    )
    same_before, same_after = _same_setting(1), _same_setting(-1)
    bends = _bends("kv_bytes") | _bends("runtime_bytes")
    kept = every.filter(~(same_before & same_after) | bends)
    steps = pl.when(_same_setting(-1)).then(
        (pl.col("context").shift(-1) - pl.col("context")) // pl.col("step_tokens")
    )
    knots = kept.with_columns(steps=steps.fill_null(0).cast(pl.Float64)).with_columns(
        kv_step_bytes=_per_step("kv_bytes"), runtime_step_bytes=_per_step("runtime_bytes"),
    ).with_row_index("knot")  # fmt: skip
    lines = (
        knots.with_columns(
            total=(_cache_units(pl.col("kv_bytes")) + units(pl.col("runtime_bytes"))).cast(pl.Int32)
        )
        .group_by(setting, maintain_order=True)
        .agg(pl.col("step_tokens").first(), first_knot=pl.col("knot").first(), knot_units=pl.col("total"))
        .join(request, on=setting, how="left")
    )
    return knots.select(pl.col(name).cast(pl.Float64) for name in _KNOT), lines


def _same_setting(shift: int) -> pl.Expr:
    """Whether the row before (1) or after (-1) is of the same setting."""
    same = [pl.col(name) == pl.col(name).shift(shift) for name in _SETTING]
    return pl.all_horizontal(same).fill_null(False)


def _bends(value: str) -> pl.Expr:
    """Whether the line through the neighbours misses this row by more than rounding."""
    x, y = pl.col("context"), pl.col(value)
    before, after = x - x.shift(1), x.shift(-1) - x
    miss = (y.shift(-1) - y) * before - (y - y.shift(1)) * after
    return (miss.abs() > _LINE_TOLERANCE_BYTES * (before + after)).fill_null(True)


def _per_step(value: str) -> pl.Expr:
    rise = pl.col(value).shift(-1) - pl.col(value)
    return pl.when(pl.col("steps") > 0).then(rise / pl.col("steps")).otherwise(0.0)


def limits(recipes: pl.DataFrame, knots: pl.DataFrame, gpu: Mapping[str, object]) -> pl.DataFrame:
    """One GPU's rows in the order of `recipes`: gpu, `KEY`, longest_context_tokens, max_concurrent_requests.

    `gpu`: gpu, memory_gib, usable_gib (own system). Both follow the published rounding: total_gib at the
    longest context is at most the memory the engine may use, and one step further is more.
    """
    usable = engine_usable_gib(
        pl.lit(gpu["usable_gib"], dtype=pl.Float32), pl.lit(gpu["memory_gib"], dtype=pl.Float32)
    )
    knot_columns = [name for name in recipes.columns if name.startswith("knot_")]
    rows = recipes.with_columns(usable=usable).with_columns(
        budget=_largest_units(pl.col("usable")) - pl.col("weights_units")
    )
    counted = rows.with_columns(
        knots_that_fit=pl.sum_horizontal(
            (pl.col(name) <= pl.col("budget")).fill_null(False).cast(pl.UInt32) for name in knot_columns
        )
    )
    at = counted.select(
        (pl.col("first_knot") + pl.col("knots_that_fit").cast(pl.Int64) - 1).clip(0).cast(pl.UInt32)
    ).to_series()
    placed = pl.concat([counted, knots[at]], how="horizontal")
    solved = _bisected(placed)
    reached = pl.col("context") + pl.col("low") * pl.col("step_tokens")
    reach = (pl.col("reach_tokens") / pl.col("step_tokens")).floor() * pl.col("step_tokens")
    return solved.select(
        *KEY,
        gpu=pl.lit(gpu["gpu"]),
        longest_context_tokens=pl.when(pl.col("knots_that_fit") > 0)
        .then(pl.min_horizontal(reached, reach))
        .cast(pl.Int32),
        max_concurrent_requests=_most_requests(),
    )


def _largest_units(usable: pl.Expr) -> pl.Expr:
    """The most units whose published total (32 bits) is not above `usable` (32 bits)."""
    near = (usable.cast(pl.Float64) * UNITS_PER_GIB).round()
    is_above = (near / UNITS_PER_GIB).cast(pl.Float32) > usable
    next_fits = ((near + 1) / UNITS_PER_GIB).cast(pl.Float32) <= usable
    moved = pl.when(is_above).then(near - 1).when(next_fits).then(near + 1).otherwise(near)
    return moved.cast(pl.Int32)


def _units_after(steps: str) -> pl.Expr:
    """Units of cache and runtime that many steps after the row's knot."""
    taken = pl.col(steps)
    cache = pl.col("kv_bytes") + taken * pl.col("kv_step_bytes")
    return _cache_units(cache) + units(pl.col("runtime_bytes") + taken * pl.col("runtime_step_bytes"))


def _bisected(placed: pl.DataFrame) -> pl.DataFrame:
    """Adds `low`: the most steps after the row's knot that fit.

    Rounding moves cache, runtime and what is kept free by half a unit each: below the line at two units less
    everything fits, above the line at two units more nothing does. Between the two, bisection asks the
    rounded sum itself.
    """
    slope = pl.col("kv_step_bytes") * _per_claim() + pl.col("runtime_step_bytes")
    start = pl.col("kv_bytes") * _per_claim() + pl.col("runtime_bytes")

    def steps_within(extra: int) -> pl.Expr:
        room = (pl.col("budget") + extra) * (BYTES_PER_GIB / UNITS_PER_GIB) - start
        return pl.when(slope > 0).then((room / slope).floor().clip(0)).otherwise(pl.col("steps"))

    last = (pl.col("steps") - 1).clip(0)  # the next knot does not fit
    rows = placed.with_columns(
        low=pl.min_horizontal(steps_within(-2), last),
        high=pl.min_horizontal(steps_within(2) + 1, pl.col("steps")),
    )
    widest = rows.select((pl.col("high") - pl.col("low")).max()).item() or 1.0
    for _ in range(math.ceil(math.log2(max(widest, 2.0))) + 1):
        rows = rows.with_columns(middle=((pl.col("low") + pl.col("high")) / 2).floor())
        fits = _units_after("middle") <= pl.col("budget")
        rows = rows.with_columns(
            low=pl.when(fits).then("middle").otherwise("low"),
            high=pl.when(fits).then("high").otherwise("middle"),
        )
    return rows


def _most_requests() -> pl.Expr:
    """The most requests of `REQUEST_TOKENS` whose caches fit beside weights and runtime; null where the
    engine serves one request at a time, or the model does not reach that far.
    """
    room = pl.col("budget") - pl.col("request_units")
    claimed = pl.col("request_kv_bytes") * _per_claim()
    by_line = ((room + 1.0) * (BYTES_PER_GIB / UNITS_PER_GIB) / claimed).floor()
    too_many = _cache_units(by_line * pl.col("request_kv_bytes")) > room
    most = pl.when(too_many).then(by_line - 1).otherwise(by_line).clip(0)
    return pl.when(room >= 0).then(most).when(room < 0).then(0.0).cast(pl.Int32)
