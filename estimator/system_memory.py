"""The table `capacity`: what each operating system leaves to a program on each accelerator, and who keeps the
rest.
"""

from __future__ import annotations

import polars as pl

from estimator.capacity import tight_above_gib
from estimator.usable_memory import (
    MACOS_READ_APART_GIB,
    MIB_PER_GIB,
    USABLE_MEASURES,
    lowest_readings,
    shown_share,
)

SYSTEMS = ("linux", "windows", "macos")
_DECIMALS = 5
_OF_SYSTEM = {"linux": ("linux", "unstated"), "windows": ("windows",), "macos": ("macos",)}


def capacity(gpus: pl.DataFrame, readings: pl.DataFrame, rules: pl.DataFrame) -> pl.DataFrame:
    """One row per gpu and system it has: gpu, os, is_own_system, memory_gib, hidden_gib, driver_gib,
    system_gib, usable_gib, comfortable_gib (GiB), basis, rule, citation, locator. Sorted by gpu and os.

    `gpus`: the table (usable memory included), `readings`: usable_memory, `rules`: capacity_rules. A row is
    measured where an accepted reading names the gpu on that system, and cites the lowest one, which counts;
    else it cites its rule. The parts add up to memory_gib.
    """
    values = dict(rules.select("rule", "value").iter_rows())
    known = gpus.filter(pl.col("memory_gib").is_not_null()).with_columns(
        pl.col("vendor", "category").cast(pl.String)
    )
    shown = known.join(lowest_readings(readings).select("gpu", "visible_gib"), on="gpu", how="left")
    parts = [
        _rows(shown, system, values["macos_small_at_most"], shown_share(values))
        .join(_lowest_cited(readings, system), on="gpu", how="left")
        .join(rules.select("rule", rule_citation="citation", rule_locator="locator"), on="rule", how="left")
        for system in SYSTEMS
    ]
    is_read = pl.col("reading_citation").is_not_null()
    return (
        pl.concat(parts)
        .with_columns(
            basis=pl.when(is_read).then(pl.lit("measured")).otherwise(pl.lit("derived")),
            rule=pl.when(~is_read).then("rule"),
            citation=pl.when(is_read).then("reading_citation").otherwise("rule_citation"),
            locator=pl.when(is_read).then("reading_locator").otherwise("rule_locator"),
            comfortable_gib=tight_above_gib(pl.col("usable_gib")).clip(0).round(_DECIMALS),
        )
        .sort("gpu", "os")
    )


def _rows(gpus: pl.DataFrame, system: str, macos_small: float, share: pl.Expr) -> pl.DataFrame:
    memory, usable = pl.col("memory_gib"), pl.col("usable_gib")
    is_shared = pl.col("unified_memory") | (pl.col("vendor") == "apple")
    shows_all = is_shared | (pl.col("vendor") == "huawei")
    shown = pl.min_horizontal("visible_gib", memory * share)
    linux_usable = pl.coalesce("usable_linux_gib", "usable_gib")
    return (
        gpus.with_columns(usable_gib=f"usable_{system}_gib")
        .filter(usable.is_not_null())
        .with_columns(
            # a reading above the share of its class shows that less is hidden
            shown=pl.when(shows_all).then(memory).otherwise(pl.max_horizontal(shown, linux_usable)),
            rule=_rule(system, macos_small),
        )
        .with_columns(hidden_gib=(memory - pl.col("shown")).round(_DECIMALS))
        .with_columns(
            driver_gib=pl.when(is_shared)
            .then(0.0)
            .otherwise(
                pl.min_horizontal(pl.col("shown") - linux_usable, pl.col("shown") - usable).round(_DECIMALS)
            )
        )
        .select(
            "gpu",
            "memory_gib",
            "hidden_gib",
            "driver_gib",
            "usable_gib",
            "rule",
            os=pl.lit(system),
            is_own_system=(pl.col("vendor") == "apple") if system == "macos" else pl.lit(system == "linux"),
            system_gib=(memory - pl.col("hidden_gib") - pl.col("driver_gib") - usable)
            .clip(0)
            .round(_DECIMALS),
        )
    )


def _rule(system: str, macos_small: float) -> pl.Expr:
    """The rule that gives the usable memory of a gpu without a reading."""
    if system == "windows":
        return pl.lit("windows_display_reserve")
    if system == "macos":
        return (
            pl.when(pl.col("memory_gib") <= macos_small)
            .then(pl.lit("usable_share_macos_small"))
            .when(pl.col("memory_gib") == MACOS_READ_APART_GIB)
            .then(pl.lit("usable_share_macos_128"))
            .otherwise(pl.lit("usable_share_macos"))
        )
    return (
        pl.when("unified_memory")
        .then(pl.lit("usable_share_unified_linux"))
        .when(pl.col("vendor") == "huawei")
        .then(pl.lit("usable_share_ascend"))
        .otherwise(pl.lit("driver_reserve"))
    )


def _lowest_cited(readings: pl.DataFrame, system: str) -> pl.DataFrame:
    """gpu, reading_citation, reading_locator: of the lowest accepted reading on that system."""
    measure, os = pl.col("measure").cast(pl.String), pl.col("os").cast(pl.String)
    return (
        readings.filter(
            pl.col("gpu").is_not_null(),
            pl.col("state").cast(pl.String) == "accepted",
            measure.is_in(USABLE_MEASURES),
            os.is_in(_OF_SYSTEM[system]),
        )
        .sort("gpu", pl.col("reading_mib") / MIB_PER_GIB, "citation", "locator")
        .unique("gpu", keep="first", maintain_order=True)
        .select("gpu", reading_citation="citation", reading_locator="locator")
    )
