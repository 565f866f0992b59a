"""How much of an accelerator's memory a program can use, per operating system.

Readings of real devices come first. What no reading covers is derived from shares and reserves, taken from
the readings in `sources/usable_memory/` (tests compare the constants below with those files).
"""

from __future__ import annotations

import polars as pl

MIB_PER_GIB = 1024

# Share of the marketed memory that nvidia-smi shows. GDDR without ECC: 12282 of 12288, 16376 of 16384, 24564
# of 24576 MiB. GDDR5/6 of data-centre cards keeps 1/16 for ECC: A40 and L40S 46068 of 49152. HBM and GDDR7:
# H100 PCIe 81559 of 81920, RTX 5090 32606 of 32768, PRO 6000 Server 97887 of 98304, GB200 189471 of 190464.
PLAIN_SHARE = 0.9995
INLINE_ECC_SHARE = 0.937
HBM_SHARE = 0.995
# Ascend, 64 GB class: 62740 of 65536 MiB are left to programs (vllm-ascend), driver included.
ASCEND_SHARE = 0.957
# What the Linux driver keeps of what nvidia-smi shows: 484 and 487 MiB (RTX 4090), 430 and 452 (RTX 3090),
# 452 (RTX 5090).
DRIVER_RESERVE_GIB = 0.45
# Windows display driver model: budget below the Linux figure by 0.5 to 1 GiB (general knowledge); the
# cautious end.
WINDOWS_RESERVE_GIB = 1.0
# Unified memory under Linux: the lower end of what a 128 GB Strix Halo lets the GPU map, 108 GiB.
UNIFIED_LINUX_SHARE = 0.84
# Metal's recommendedMaxWorkingSetSize: exactly 2/3 at 8, 16 and 32 GB, 0.75 at 48, 64 and 192 GB, 0.84 at
# 128 GB.
MACOS_SMALL_SHARE = 2 / 3
MACOS_SMALL_LIMIT_GIB = 32
MACOS_LARGE_SHARE = 0.75
MACOS_128_SHARE = 0.84

USABLE_MEASURES = ("cuda-total", "engine-total", "metal-working-set", "os-limit")
VISIBLE_MEASURES = ("nvidia-smi-total",)
WINDOWS_CATEGORIES = ("consumer", "workstation", "laptop")


def usable_memory(gpus: pl.DataFrame, readings: pl.DataFrame) -> pl.DataFrame:
    """Usable memory per operating system of every accelerator.

    `gpus`: gpu, vendor, category, memory_type, memory_gib (GiB as sold), unified_memory. `readings`: gpu, os,
    measure, reading_mib, state. Out, one row per row of `gpus`: gpu, usable_linux_gib, usable_windows_gib,
    usable_macos_gib (GiB) and usable_basis: `measured` where an accepted reading names the accelerator on its
    own system (macOS for Apple, else Linux), else `derived`. Empty where the memory is unknown or the system
    does not exist: only Apple has macOS, and Windows is given for the cards that people put into PCs. Of
    several readings the lowest counts. Raises polars' ColumnNotFoundError for a missing column, nothing else.

    Source: device readings in sources/usable_memory/, and the shares and reserves at the top of this module.
    """
    best = _lowest_readings(readings)
    linux = pl.coalesce("read_linux_gib", _derived_linux_gib())
    windows = pl.coalesce("read_windows_gib", linux - WINDOWS_RESERVE_GIB)
    macos = pl.coalesce("read_macos_gib", pl.col("memory_gib") * _macos_share())
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


def _lowest_readings(readings: pl.DataFrame) -> pl.DataFrame:
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


def _derived_linux_gib() -> pl.Expr:
    """Discrete: what the driver shows less its reserve. Unified: memory less what the system keeps."""
    memory = pl.col("memory_gib")
    shown = pl.min_horizontal(pl.col("visible_gib"), memory * _visible_share())
    return (
        pl.when(pl.col("unified_memory"))
        .then(memory * UNIFIED_LINUX_SHARE)
        .when(pl.col("vendor") == "huawei")
        .then(memory * ASCEND_SHARE)
        .otherwise(shown - DRIVER_RESERVE_GIB)
    )


def _visible_share() -> pl.Expr:
    kind = pl.col("memory_type").fill_null("")
    inline_ecc = (pl.col("category").cast(pl.String) == "datacenter") & kind.str.starts_with("GDDR")
    return (
        pl.when(kind.str.starts_with("HBM") | (kind == "GDDR7"))
        .then(HBM_SHARE)
        .when(inline_ecc)
        .then(INLINE_ECC_SHARE)
        .otherwise(PLAIN_SHARE)
    )


def _macos_share() -> pl.Expr:
    memory = pl.col("memory_gib")
    return (
        pl.when(memory <= MACOS_SMALL_LIMIT_GIB)
        .then(MACOS_SMALL_SHARE)
        .when(memory == 128)
        .then(MACOS_128_SHARE)
        .otherwise(MACOS_LARGE_SHARE)
    )


def _within_memory(usable_gib: pl.Expr) -> pl.Expr:
    """Never less than nothing and never more than there is, rounded to a hundredth of a MiB."""
    return pl.min_horizontal(usable_gib.clip(lower_bound=0.0), pl.col("memory_gib")).round(5)
