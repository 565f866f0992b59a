"""How much of an accelerator's memory a program can use, per operating system.

Readings of real devices come first. What no reading covers is derived from the shares and reserves of
`sources/capacity_rules/`, which follow from the readings in `sources/usable_memory/`.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

MIB_PER_GIB = 1024

# The rules by name; values, units and sources are in sources/capacity_rules/.
RULES = (
    "driver_reserve", "macos_small_at_most", "shown_share_hbm", "shown_share_inline_ecc", "shown_share_plain",
    "usable_share_ascend", "usable_share_macos", "usable_share_macos_128", "usable_share_macos_small",
    "usable_share_unified_linux", "windows_display_reserve",
)  # fmt: skip
MACOS_READ_APART_GIB = 128  # the one size whose share was read to differ from its neighbours'

USABLE_MEASURES = ("cuda-total", "engine-total", "metal-working-set", "os-limit")
VISIBLE_MEASURES = ("nvidia-smi-total",)
WINDOWS_CATEGORIES = ("consumer", "workstation", "laptop")


def usable_memory(gpus: pl.DataFrame, readings: pl.DataFrame, rules: Mapping[str, float]) -> pl.DataFrame:
    """Usable memory per operating system of every accelerator.

    `gpus`: gpu, vendor, category, memory_type, memory_gib (GiB as sold), unified_memory. `readings`: gpu, os,
    measure, reading_mib, state. `rules`: the value of each of `RULES`. Out, one row per row of `gpus`: gpu,
    usable_linux_gib, usable_windows_gib, usable_macos_gib (GiB) and usable_basis: `measured` where an
    accepted reading names the accelerator on its own system (macOS for Apple, else Linux), else `derived`.
    Empty where the memory is unknown or the system does not exist: only Apple has macOS, and Windows is given
    for the cards that people put into PCs. Of several readings the lowest counts. Raises polars'
    ColumnNotFoundError for a missing column, nothing else.

    Source: device readings in sources/usable_memory/, and the rules in sources/capacity_rules/.
    """
    best = lowest_readings(readings)
    linux = pl.coalesce("read_linux_gib", derived_linux_gib(rules))
    windows = pl.coalesce("read_windows_gib", linux - rules["windows_display_reserve"])
    macos = pl.coalesce("read_macos_gib", pl.col("memory_gib") * macos_share(rules))
    is_apple = pl.col("vendor") == "apple"
    own_reading = pl.when(is_apple).then(pl.col("read_macos_gib")).otherwise(pl.col("read_linux_gib"))
    known = pl.col("memory_gib").is_not_null()
    return (
        gpus.join(best, on="gpu", how="left", maintain_order="left")
        .select(
            "gpu",
            pl.when(known & ~is_apple).then(_within_memory(linux)).alias("usable_linux_gib"),
            pl.when(known & ~is_apple & pl.col("category").cast(pl.String).is_in(WINDOWS_CATEGORIES))
            .then(_within_memory(windows))
            .alias("usable_windows_gib"),
            pl.when(known & is_apple).then(_within_memory(macos)).alias("usable_macos_gib"),
            pl.when(known)
            .then(pl.when(own_reading.is_not_null()).then(pl.lit("measured")).otherwise(pl.lit("derived")))
            .alias("usable_basis"),
        )
    )  # fmt: skip


def lowest_readings(readings: pl.DataFrame) -> pl.DataFrame:
    """One row per gpu: lowest accepted reading per system, and the lowest total that nvidia-smi shows."""
    accepted = readings.filter(pl.col("gpu").is_not_null(), pl.col("state").cast(pl.String) == "accepted")
    measure, system = pl.col("measure").cast(pl.String), pl.col("os").cast(pl.String)
    usable = measure.is_in(USABLE_MEASURES)
    gib = pl.col("reading_mib") / MIB_PER_GIB
    return accepted.group_by("gpu").agg(
        # Readings without a stated system come from CUDA tools; a Windows host would show the same total.
        gib.filter(usable & system.is_in(["linux", "unstated"])).min().alias("read_linux_gib"),
        gib.filter(usable & (system == "windows")).min().alias("read_windows_gib"),
        gib.filter(usable & (system == "macos")).min().alias("read_macos_gib"),
        gib.filter(measure.is_in(VISIBLE_MEASURES)).min().alias("visible_gib"),
    )


def derived_linux_gib(rules: Mapping[str, float]) -> pl.Expr:
    """Discrete: what the driver shows less its reserve. Unified: memory less what the system keeps."""
    memory = pl.col("memory_gib")
    shown = pl.min_horizontal(pl.col("visible_gib"), memory * shown_share(rules))
    return (
        pl.when(pl.col("unified_memory"))
        .then(memory * rules["usable_share_unified_linux"])
        .when(pl.col("vendor") == "huawei")
        .then(memory * rules["usable_share_ascend"])
        .otherwise(shown - rules["driver_reserve"])
    )


def shown_share(rules: Mapping[str, float]) -> pl.Expr:
    """Share of the memory that the driver shows, by kind of memory and error correction."""
    kind = pl.col("memory_type").fill_null("")
    inline_ecc = (pl.col("category").cast(pl.String) == "datacenter") & kind.str.starts_with("GDDR")
    return (
        pl.when(kind.str.starts_with("HBM") | (kind == "GDDR7"))
        .then(rules["shown_share_hbm"])
        .when(inline_ecc)
        .then(rules["shown_share_inline_ecc"])
        .otherwise(rules["shown_share_plain"])
    )


def macos_share(rules: Mapping[str, float]) -> pl.Expr:
    """Metal's recommended working set as a share of the memory."""
    memory = pl.col("memory_gib")
    return (
        pl.when(memory <= rules["macos_small_at_most"])
        .then(rules["usable_share_macos_small"])
        .when(memory == MACOS_READ_APART_GIB)
        .then(rules["usable_share_macos_128"])
        .otherwise(rules["usable_share_macos"])
    )


def _within_memory(usable_gib: pl.Expr) -> pl.Expr:
    """Never less than nothing and never more than there is, rounded to a hundredth of a MiB."""
    return pl.min_horizontal(usable_gib.clip(lower_bound=0.0), pl.col("memory_gib")).round(5)
