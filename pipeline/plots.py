"""Pictures for the Dagster UI, where looking beats reading. Each takes a small table and gives PNG bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_INCHES, _HEIGHT_INCHES, _DPI = 6.4, 4.4, 90
_MOST_BARS = 60


@dataclass(frozen=True)
class Plot:
    """A picture of a table: its title in the UI and the function that draws it."""

    title: str
    draw: Callable[[pl.DataFrame], bytes]


def memory_and_bandwidth(gpus: pl.DataFrame) -> bytes:
    """Memory against bandwidth of every accelerator, one colour per vendor, both axes logarithmic."""
    figure, axes = _blank("memory (GiB)", "bandwidth (GB/s)")
    _scatter_by(axes, gpus, "vendor", "memory_gib", "bandwidth_gb_s")
    axes.set(xscale="log", yscale="log")
    return _png(figure)


def stated_and_computed(models: pl.DataFrame) -> bytes:
    """Parameter count computed from the configuration over the published one, per model."""
    both = models.drop_nulls(["total_params", "computed_params"]).with_columns(
        billions=pl.col("total_params") / 1e9,
        difference_percent=(pl.col("computed_params") / pl.col("total_params") - 1) * 100,
    )
    figure, axes = _blank("published parameters (billions)", "computed - published (%)")
    _scatter_by(axes, both, "attention_kind", "billions", "difference_percent")
    axes.set(xscale="log")
    axes.set_yscale("symlog", linthresh=1)
    axes.axhline(0, color="black", linewidth=0.8)
    return _png(figure)


def estimate_and_measurement(residuals: pl.DataFrame) -> bytes:
    """Estimated against measured decode speed, coloured by state; the line is equality, the band 25 %."""
    decode = residuals.filter(pl.col("metric") == "decode_tok_s").drop_nulls(["measured", "estimated_mid"])
    figure, axes = _blank("measured (tok/s)", "estimated (tok/s)")
    _scatter_by(axes, decode, "state", "measured", "estimated_mid")
    axes.set(xscale="log", yscale="log")
    if decode.height:
        ends = _range(decode, "measured", "estimated_mid")
        axes.plot(ends, ends, color="black", linewidth=0.8)
        slower, faster = [0.8 * end for end in ends], [1.25 * end for end in ends]
        axes.fill_between(ends, slower, faster, color="grey", alpha=0.2)
    return _png(figure)


def error_by_group(accuracy: pl.DataFrame) -> bytes:
    """Median absolute error of decode speed per framework and GPU family: held-out devices where known."""
    decode = accuracy.filter(
        (pl.col("metric") == "decode_tok_s") & pl.col("slice").is_in(["all", "framework", "gpu_family"])
    )
    held_out = decode.filter(pl.col("split") == "held_out_device")
    shown, split = (held_out, "held-out devices") if held_out.height else (decode, "anchors of the fit")
    groups = shown.sort("slice", "median_absolute_error_percent").head(_MOST_BARS)
    return _bars(
        [f"{row['slice']}: {row['value']} ({row['n_anchors']})" for row in groups.iter_rows(named=True)],
        groups.get_column("median_absolute_error_percent").to_list(),
        f"median absolute error, {split} (%)",
    )


def bits_per_weight(quants: pl.DataFrame) -> bytes:
    """Storage density of the body weights, one bar per quant class (median)."""
    classes = (
        quants.drop_nulls("body_bpw")
        .group_by("quant_class")
        .agg(pl.col("body_bpw").median())
        .sort("body_bpw")
    )
    return _bars(
        classes.get_column("quant_class").cast(pl.String).to_list(),
        classes.get_column("body_bpw").to_list(),
        "bits per weight (median of the class)",
    )


PLOTS: dict[str, Plot] = {
    "gpus": Plot("memory and bandwidth", memory_and_bandwidth),
    "models": Plot("published and computed parameters", stated_and_computed),
    "quants": Plot("bits per weight", bits_per_weight),
    "anchor_residuals": Plot("estimate and measurement", estimate_and_measurement),
    "accuracy": Plot("error by group", error_by_group),
}


def _blank(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure  # here: it takes half a second, which the command line need not pay

    figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(True, alpha=0.3)
    return figure, axes


def _scatter_by(axes: Axes, frame: pl.DataFrame, group: str, x: str, y: str) -> None:
    sound = frame.drop_nulls([x, y])
    for (name,), rows in sorted(sound.group_by(group), key=lambda item: -item[1].height):
        label = f"{name} ({rows.height})"
        axes.scatter(rows.get_column(x).to_list(), rows.get_column(y).to_list(), s=8, alpha=0.6, label=label)
    if sound.height:
        axes.legend(fontsize=7, markerscale=1.5, loc="best")


def _bars(labels: list[str], values: list[float], x_label: str) -> bytes:
    figure, axes = _blank(x_label, "")
    figure.set_figheight(max(2.0, 0.24 * len(labels) + 1))
    axes.barh(range(len(labels)), values, color="tab:blue")
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    return _png(figure)


def _range(frame: pl.DataFrame, *columns: str) -> list[Any]:
    lowest = frame.select(pl.min_horizontal(pl.col(columns).min())).item()
    highest = frame.select(pl.max_horizontal(pl.col(columns).max())).item()
    return [lowest, highest]


def _png(figure: Figure) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", metadata={"Software": None})
    return data.getvalue()
