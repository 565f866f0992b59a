from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.usable_memory import usable_memory

READINGS = Path(__file__).parents[2] / "sources" / "usable_memory"
GPU_SCHEMA = {
    "gpu": pl.String, "vendor": pl.String, "category": pl.String, "memory_type": pl.String,
    "memory_gib": pl.Float64, "unified_memory": pl.Boolean,
}  # fmt: skip
READING_SCHEMA = {
    "gpu": pl.String, "os": pl.String, "measure": pl.String, "reading_mib": pl.Float64, "state": pl.String,
}  # fmt: skip
NONE = pl.DataFrame(schema=READING_SCHEMA)
RULES = dict(
    pl.read_csv(READINGS.parent / "capacity_rules" / "rules.csv").select("rule", "value").iter_rows()
)


def one(
    vendor: str, category: str, memory_type: str | None, memory_gib: float | None, unified: bool = False
) -> pl.DataFrame:
    return pl.DataFrame([("x", vendor, category, memory_type, memory_gib, unified)], GPU_SCHEMA, orient="row")


def readings(*rows: tuple[str, str, float, str]) -> pl.DataFrame:
    return pl.DataFrame([("x", *row) for row in rows], READING_SCHEMA, orient="row")


def usable(
    gpus: pl.DataFrame, read: pl.DataFrame = NONE
) -> tuple[float | None, float | None, float | None, str | None]:
    gpu, *values = usable_memory(gpus, read, RULES).row(0)
    assert gpu == "x"
    return tuple(values)  # type: ignore[return-value]


# By hand: share of the memory that nvidia-smi shows, less 0.45 GiB for the driver; Windows one GiB less.
@pytest.mark.parametrize(
    ("gpu", "linux", "windows"),
    [
        (one("nvidia", "consumer", "GDDR6X", 24), 23.538, 22.538),
        (one("nvidia", "consumer", "GDDR7", 32), 31.39, 30.39),
        (one("nvidia", "workstation", "GDDR6", 48), 47.526, 46.526),
        (one("nvidia", "datacenter", "GDDR6", 48), 44.526, None),
        (one("nvidia", "datacenter", "HBM3", 80), 79.15, None),
        (one("huawei", "npu", "HBM2e", 64), 61.248, None),
        (one("amd", "laptop", "LPDDR5X", 128, unified=True), 107.52, 106.52),
        (one("nvidia", "edge", "LPDDR5", 8, unified=True), 6.72, None),
        (one("other", "consumer", None, 8), 7.546, 6.546),
    ],
)
def test_derived_by_class(gpu: pl.DataFrame, linux: float, windows: float | None) -> None:
    assert usable(gpu) == (
        pytest.approx(linux),
        windows if windows is None else pytest.approx(windows),
        None,
        "derived",
    )


@pytest.mark.parametrize(
    ("memory_gib", "macos"),
    [
        (8, 5.33333),
        (16, 10.66667),
        (24, 16),
        (32, 21.33333),
        (36, 27),
        (48, 36),
        (96, 72),
        (128, 107.52),
        (192, 144),
    ],
)
def test_apple_has_macos_only(memory_gib: float, macos: float) -> None:
    gpu = one("apple", "apple", "LPDDR5", memory_gib, unified=True)
    assert usable(gpu) == (None, None, pytest.approx(macos), "derived")


def test_the_lowest_reading_counts() -> None:
    gpu = one("nvidia", "consumer", "GDDR6X", 24)
    read = readings(
        ("linux", "cuda-total", 24080.0, "accepted"), ("unstated", "engine-total", 24064.0, "accepted")
    )
    assert usable(gpu, read) == (23.5, 22.5, None, "measured")


def test_flagged_readings_are_not_used() -> None:
    gpu = one("nvidia", "consumer", "GDDR6X", 24)
    assert usable(gpu, readings(("linux", "cuda-total", 20000.0, "flagged"))) == usable(gpu)


def test_what_nvidia_smi_shows_replaces_the_share_but_not_the_driver_reserve() -> None:
    gpu = one("nvidia", "datacenter", "HBM3e", 288)
    read = readings(("linux", "nvidia-smi-total", 275040.0, "accepted"))
    assert usable(gpu, read) == (pytest.approx(275040 / 1024 - 0.45, abs=1e-5), None, None, "derived")


def test_a_windows_limit_leaves_linux_derived() -> None:
    gpu = one("amd", "laptop", "LPDDR5X", 128, unified=True)
    assert usable(gpu, readings(("windows", "os-limit", 98304.0, "accepted"))) == (
        107.52,
        96.0,
        None,
        "derived",
    )


def test_unknown_memory_stays_unknown() -> None:
    assert usable(one("nvidia", "edge", None, None)) == (None, None, None, None)


def test_order_and_number_of_rows_are_kept() -> None:
    gpus = pl.concat(
        [one("nvidia", "consumer", "GDDR6", size).with_columns(gpu=pl.lit(f"g{size}")) for size in (16, 4, 8)]
    )
    assert usable_memory(gpus, NONE, RULES).get_column("gpu").to_list() == ["g16", "g4", "g8"]


sizes = st.floats(min_value=1, max_value=2048, allow_nan=False)
kinds = st.sampled_from(["GDDR5", "GDDR6", "GDDR7", "HBM2e", "HBM3", "LPDDR5X", None])
categories = st.sampled_from(["consumer", "workstation", "laptop", "datacenter", "npu", "edge", "apple"])


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(["nvidia", "amd", "intel", "apple", "huawei"]), categories, kinds, sizes, st.booleans()
)
def test_usable_is_between_nothing_and_the_memory(
    vendor: str, category: str, kind: str | None, memory_gib: float, unified: bool
) -> None:
    linux, windows, macos, basis = usable(one(vendor, category, kind, memory_gib, unified))
    for value in (linux, windows, macos):
        assert value is None or 0 <= value <= memory_gib
    assert (macos is None) != (linux is None)
    assert windows is None or (linux is not None and windows <= linux)
    assert basis == "derived"


def test_the_rules_agree_with_the_readings_in_the_sources() -> None:
    schema = {"reading_mib": pl.Float64}
    files = [pl.read_csv(path, schema_overrides=schema) for path in sorted(READINGS.glob("*.csv"))]
    read = pl.concat(files).filter(pl.col("state") == "accepted", pl.col("gpu").is_not_null())
    memory_mib = read.get_column("gpu").str.extract(r"-(\d+)gb$").cast(pl.Float64) * 1024
    read = read.with_columns((pl.col("reading_mib") / memory_mib).alias("share"))
    shown = read.filter(pl.col("measure") == "nvidia-smi-total")

    def lowest_share(*gpus: str) -> float:
        return shown.filter(pl.col("gpu").is_in(gpus)).get_column("share").min()  # type: ignore[return-value]

    plain = lowest_share(
        "rtx-3070-8gb", "rtx-3080-10gb", "rtx-3090-24gb", "rtx-4070-ti-12gb", "rtx-4090-24gb"
    )
    assert plain == pytest.approx(RULES["shown_share_plain"], abs=1e-4)
    assert lowest_share("a40-48gb", "l40s-48gb") == pytest.approx(RULES["shown_share_inline_ecc"], abs=5e-4)
    hbm = lowest_share("h100-pcie-80gb", "a100-pcie-80gb", "gb200-186gb", "rtx-5090-32gb")
    assert hbm == pytest.approx(RULES["shown_share_hbm"], abs=5e-4)
    of_cuda = read.filter(pl.col("measure").is_in(["cuda-total", "engine-total"]))
    kept = shown.join(of_cuda, on="gpu").select((pl.col("reading_mib") - pl.col("reading_mib_right")) / 1024)
    assert kept.to_series().median() == pytest.approx(RULES["driver_reserve"], abs=0.03)
    metal = read.filter(pl.col("measure") == "metal-working-set")
    expected = (
        pl.when(memory_of(metal) <= 32).then(2 / 3).when(memory_of(metal) == 128).then(0.84).otherwise(0.75)
    )
    assert metal.filter((pl.col("share") / expected - 1).abs() > 1e-3).height == 0


def memory_of(frame: pl.DataFrame) -> pl.Series:
    return frame.get_column("gpu").str.extract(r"-(\d+)gb$").cast(pl.Float64)
