"""The cube `estimates`: one GPU meets all recipes it can run. Elementwise arithmetic only, so that 10^8 rows
stream.

`recipes` (see `recipes.recipes`) are sorted and typed by the caller; nothing here reorders or joins more than
a table of a few dozen rows, except where measurements of this GPU exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from estimator.alternatives import Candidates, alternatives, candidates
from estimator.bound import decode_tok_s_bound
from estimator.capacity import claimed_gib, engine_usable_gib, verdict
from estimator.decode import decode_tok_s
from estimator.intervals import BASIS, basis, interval_table
from estimator.measured import SETTING
from estimator.prefill import prefill_tok_s, prompt_s, ttft_ms

SIGNIFICANT_FIGURES = 3
INTERVAL_FIGURES = 2
RATES = (
    "weight_s_per_byte", "clock_s_per_byte", "kv_s_per_byte", "link_s_per_byte", "prefill_s_per_flop",
    "attention_s_per_flop", "bound_s_per_byte", "bound_s_per_flop",
)  # fmt: skip
MEASURED = ("measured_start_tok_s", "measured_full_tok_s")
INTERVALS = ("interval_low", "interval_high", "measured_low", "measured_high")


def published(value: pl.Expr) -> pl.Expr:
    """A speed or time as published: three significant figures, which is more than any estimate knows."""
    return value.cast(pl.Float32).round_sig_figs(SIGNIFICANT_FIGURES)


def published_end(value: pl.Expr) -> pl.Expr:
    """The end of an interval as published: two significant figures. Intervals are at least 15 % wide to each
    side, which no rounding to two figures can use up.
    """
    return value.cast(pl.Float32).round_sig_figs(INTERVAL_FIGURES)


def stacks(
    gpu_rates: pl.DataFrame,
    evidence: pl.DataFrame,
    coefficients: pl.DataFrame,
    formats: pl.DataFrame,
    quantity: str = "decode",
) -> pl.DataFrame:
    """Per gpu, engine, backend and kind of model (dense or MoE): the GPU's rates, the basis and the interval.

    `gpu_rates`: `calibration.gpu_coefficients`; `evidence`: `measured.evidence`; `formats`: engine, backend;
    `quantity`: whose interval (decode or serving). The basis here is the one of a row without its own
    measurement; rows with one take `measured_low` and `measured_high`.
    """
    known = (
        formats.select("engine", "backend")
        .unique()
        .join(gpu_rates, on="backend")
        .join(evidence, on=["gpu", "engine", "backend"], how="left")
        .join(pl.DataFrame({"is_moe": [False, True]}), how="cross")
        .with_columns(
            has_anchor_at_key=pl.lit(False),
            device_has_anchor_for_engine=pl.col("device_measured"),
            family_known=pl.col("family_measured"),
            engine_known=pl.col("engine_measured"),
        )
        .with_columns(basis=basis())
    )
    spans = interval_table(coefficients, quantity)
    measured = spans.filter(pl.col("basis").cast(pl.String) == "measured").select(
        "backend", "is_moe", measured_low="interval_low", measured_high="interval_high"
    )
    return (
        known.join(spans, on=["basis", "backend", "is_moe"])
        .join(measured, on=["backend", "is_moe"])
        .select("gpu", "engine", "backend", "is_moe",
                *[pl.col(name).cast(pl.Float32) for name in (*RATES, *INTERVALS)], "basis")
        .sort("gpu", "engine", "backend", "is_moe")
    )  # fmt: skip


def estimates(
    recipes: pl.DataFrame,
    gpu: Mapping[str, object],
    gpu_stacks: pl.DataFrame,
    measured_start: pl.DataFrame,
    measured_full: pl.DataFrame,
    found: Candidates | None = None,
) -> pl.LazyFrame:
    """The rows of one GPU, in the order of `recipes`, with every column of the table but typed ids.

    `recipes`: those this GPU can run, engine and backend as Enums; `gpu`: gpu, memory_gib, usable_gib (own
    system), usable_windows_gib, citation; `gpu_stacks`: this GPU's rows of `stacks`, typed likewise; the
    measured frames: this GPU's rows of `measured.measured_start` and `measured_full`, typed likewise;
    `found`: `alternatives.candidates` of the recipes, where they are known already.
    """
    usable = _usable(gpu, "usable_gib")
    claimed = recipes.select(claimed_gib=claimed_gib())
    judged = pl.concat([recipes.select("memory_utilization"), claimed], how="horizontal")
    fits = judged.select(verdict(pl.col("claimed_gib"), usable) != "no_fit").to_series()
    changes = alternatives(recipes, candidates(recipes) if found is None else found, fits)
    rows = with_stack(recipes, gpu_stacks, (*RATES, *INTERVALS, "basis"))
    measured = measured_columns(recipes, measured_start, measured_full)
    return (
        pl.concat([rows, claimed, measured, changes], how="horizontal")
        .lazy()
        .with_columns(
            gpu=pl.lit(gpu["gpu"]),
            gpu_citation=pl.lit(gpu["citation"]),
            verdict=verdict(pl.col("claimed_gib"), usable),
            verdict_windows=_windows_verdict(gpu),
            has_measurement=pl.col("n_anchors") > 0,
        )
        .with_columns(
            fits=pl.col("verdict") != "no_fit",
            bound=decode_tok_s_bound("full"),
            bound_start=decode_tok_s_bound("start"),
            mid=decode_tok_s("full"),
            start=decode_tok_s("start"),
            prompt_seconds=prompt_s(),
            low_share=pl.when("has_measurement").then("measured_low").otherwise("interval_low"),
            high_share=pl.when("has_measurement").then("measured_high").otherwise("interval_high"),
        )
        .with_columns(
            decode_tok_s_low=pl.when("fits").then(published_end(pl.col("mid") * pl.col("low_share"))),
            decode_tok_s_mid=_if_fits(pl.col("mid")),
            decode_tok_s_high=pl.when("fits").then(_high_end()),
            decode_tok_s_bound=_if_fits(pl.col("bound")),
            decode_start_tok_s=_if_fits(pl.col("start")),
            decode_start_tok_s_bound=_if_fits(pl.col("bound_start")),
            prefill_tok_s=_if_fits(prefill_tok_s(pl.col("prompt_seconds"))),
            ttft_ms=_if_fits(ttft_ms(pl.col("prompt_seconds"))),
            basis=pl.when("has_measurement").then(pl.lit("measured", dtype=BASIS)).otherwise("basis"),
        )
    )


def with_stack(recipes: pl.DataFrame, gpu_stacks: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Adds `columns` of the stack of each row (its engine, backend and kind of model), null where there is
    none.

    The stacks are laid out by the codes of the Enums and gathered from: a join that keeps the order of 10^8
    rows takes longer than all the arithmetic. Row order is kept.
    """
    code = _stack_code(recipes)
    table = gpu_stacks.with_columns(code=code)
    codes = recipes.select(code=code).get_column("code")
    every = pl.DataFrame({"code": range(1 + max(_largest(table.get_column("code")), _largest(codes)))})
    laid_out = every.cast({"code": pl.UInt32}).join(table, on="code", how="left", maintain_order="left")
    return pl.concat([recipes, laid_out.select(columns)[codes]], how="horizontal")


def _stack_code(typed: pl.DataFrame) -> pl.Expr:
    """One integer for engine, backend and is_moe; the Enums are those of `typed`."""
    backend = typed.schema["backend"]
    assert isinstance(backend, pl.Enum)
    engine_code = pl.col("engine").to_physical().cast(pl.UInt32) * len(backend.categories)
    return (engine_code + pl.col("backend").to_physical().cast(pl.UInt32)) * 2 + pl.col("is_moe").cast(
        pl.UInt32
    )


def _largest(codes: pl.Series) -> int:
    largest = codes.max()
    return largest if isinstance(largest, int) else -1


def _if_fits(value: pl.Expr) -> pl.Expr:
    return pl.when("fits").then(published(value))


def _high_end() -> pl.Expr:
    """The upper end, never above the bound as published."""
    return pl.min_horizontal(published_end(pl.col("mid") * pl.col("high_share")), published(pl.col("bound")))


def _usable(gpu: Mapping[str, object], name: str) -> pl.Expr:
    usable = pl.lit(gpu[name], dtype=pl.Float32)
    return engine_usable_gib(usable, pl.lit(gpu["memory_gib"], dtype=pl.Float32))


def _windows_verdict(gpu: Mapping[str, object]) -> pl.Expr:
    if gpu["usable_windows_gib"] is None:
        return pl.lit(None, dtype=pl.String)
    return verdict(pl.col("claimed_gib"), _usable(gpu, "usable_windows_gib"))


def measured_columns(
    recipes: pl.DataFrame, measured_start: pl.DataFrame, measured_full: pl.DataFrame
) -> pl.DataFrame:
    """measured_start_tok_s, measured_full_tok_s and n_anchors beside the recipes, row by row.

    A GPU has few measurements: only rows of measured models are joined, the others stay empty.
    """
    setting = [name for name in SETTING if name != "gpu"]
    models = pl.concat([measured_start.get_column("model"), measured_full.get_column("model")]).unique()
    met = (
        recipes.select(*setting, "context_tokens")
        .with_row_index("row")
        .filter(pl.col("model").is_in(models.implode()))
        .join(measured_start, on=setting, how="left")
        .join(measured_full, on=[*setting, "context_tokens"], how="left")
        .with_columns(
            n_anchors=pl.col("n_start_anchors").fill_null(0) + pl.col("n_full_anchors").fill_null(0)
        )
        .filter(pl.col("n_anchors") > 0)
        .sort("row")
    )
    rows = met.get_column("row")
    nothing = pl.Series([None], dtype=pl.Float32).new_from_index(0, recipes.height)
    none = pl.Series([0], dtype=pl.Int16).new_from_index(0, recipes.height)
    start, full = (met.select(published(pl.col(name))).to_series() for name in MEASURED)
    return pl.DataFrame(
        {
            MEASURED[0]: nothing.clone().scatter(rows, start),
            MEASURED[1]: nothing.clone().scatter(rows, full),
            "n_anchors": none.scatter(rows, met.get_column("n_anchors").cast(pl.Int16)),
        }
    )
