"""Looks fitted coefficients up once, before recipes meet GPUs: small joins here, plain arithmetic everywhere
else.

`coefficients` is always the table of that name: model, block, level, value, unit, std_err, n_cells, citation.
A level that the fit has not seen counts as 1 (the effect is off), never as the level of another engine or
family. Formulas that use the coefficients do not belong here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

BACKENDS: Final = (
    "cuda", "rocm", "vulkan", "metal", "sycl", "xpu", "cpu", "cann", "hpu", "tpu", "musa", "neuron", "opencl",
)  # fmt: skip
# A level fitted on fewer cells still shifts the estimate (it is shrunk), but is not called known.
MIN_CELLS_KNOWN: Final = 3
# An Apple GPU core has 128 lanes, each one multiply-add per clock.
APPLE_FLOPS_PER_CORE_CLOCK: Final = 256.0
MICROSECOND_S: Final = 1e-6
GIGA: Final = 1e9
TERA: Final = 1e12

_RATES: Final = (
    "fp16_dense_tflops", "fp16_fp16acc_dense_tflops", "bf16_dense_tflops", "fp8_dense_tflops",
    "int8_dense_tops", "fp4_dense_tflops", "fp32_tflops",
)  # fmt: skip


def coefficient(coefficients: pl.DataFrame, model: str, block: str, level: str) -> float:
    """One value, in its own unit. Raises KeyError naming it when the table does not hold it."""
    found = coefficients.filter(
        (pl.col("model").cast(pl.String) == model) & (pl.col("block") == block) & (pl.col("level") == level)
    )
    if found.height != 1:
        raise KeyError(f"coefficients hold {found.height} rows of {model}/{block}/{level}, expected 1")
    return float(found.item(0, "value"))


def gpu_value(name: str, gpu: Mapping[str, float | None] | None) -> pl.Expr:
    """A number of the GPU: the column `name`, or a literal when one row of `gpu_coefficients` is given.

    Literals are Float32, so that a cross product of one GPU with many recipes computes in Float32.
    """
    return pl.col(name) if gpu is None else pl.lit(gpu[name], dtype=pl.Float32)


def recipe_coefficients(recipes: pl.LazyFrame, coefficients: pl.DataFrame) -> pl.LazyFrame:
    """Adds to each recipe what the fits say about its engine, backend and quantization.

    Reads `engine, backend, quant_class` (text or Enum; a null or unknown one leaves its multiplier at 1).
    Adds

    * `decode_layer_s`, `prefill_layer_s`: seconds per layer and token, and per layer and micro-batch
    * `decode_weight_efficiency`: share of the bandwidth at which dense weights stream, without the GPU family
    * `decode_kv_efficiency`: the same for the cache
    * `prefill_efficiency`, `prefill_attention_efficiency`: share of the compute rate in matrix products
      (without the GPU family) and in attention
    * `engine_known`: the decode fit has seen this engine on this backend on at least 3 cells

    Row order is kept. Raises KeyError when a global constant is missing. Source:
    `tokcube_study/single-request-*`: ln efficiency = mu + engine|backend + quant class + quant class|backend.
    """
    pair = pl.concat_str(pl.col("engine").cast(pl.String), pl.col("backend").cast(pl.String), separator="|")
    quant = pl.col("quant_class").cast(pl.String)
    quant_pair = pl.concat_str(quant, pl.col("backend").cast(pl.String), separator="|")
    keys = {"eng": pair, "t0eb": pair, "kvb": pair, "qc": quant, "qb": quant_pair}
    joined = recipes
    for model in ("decode", "prefill"):
        for block, key in keys.items():
            joined = _with_level(joined, coefficients, model, block, key)
    seen = (
        _levels(coefficients, "decode", "eng")
        .filter(pl.col("n_cells") >= MIN_CELLS_KNOWN)
        .get_column("level")
    )
    columns = [pair.is_in(seen.to_list()).fill_null(False).alias("engine_known")]
    for model, weights, cache in (
        ("decode", "decode_weight_efficiency", "decode_kv_efficiency"),
        ("prefill", "prefill_efficiency", "prefill_attention_efficiency"),
    ):
        layer_s = coefficient(coefficients, model, "t0", "layer") * MICROSECOND_S
        mu = coefficient(coefficients, model, "mu", "efficiency")
        kv = coefficient(coefficients, model, "kv", "efficiency")
        columns += [
            (layer_s * pl.col(f"{model}_t0eb")).alias(f"{model}_layer_s"),
            (mu * pl.col(f"{model}_eng") * pl.col(f"{model}_qc") * pl.col(f"{model}_qb")).alias(weights),
            (kv * pl.col(f"{model}_kvb")).alias(cache),
        ]
    return joined.with_columns(columns).drop(
        f"{model}_{block}" for model in ("decode", "prefill") for block in keys
    )


def gpu_coefficients(
    gpus: pl.DataFrame, coefficients: pl.DataFrame, backends: Sequence[str] = BACKENDS
) -> pl.DataFrame:
    """What one GPU is worth on each backend: seconds per byte and per operation. One row per (gpu, backend).

    Reads of `gpus`: gpu, vendor, category, family, bandwidth_gb_s, bandwidth_arithmetic_gb_s, compute_units,
    boost_clock_mhz, link_gb_s, pcie_gen, pcie_lanes and the rates `*_dense_tflops`, `int8_dense_tops`,
    `fp32_tflops`. Returns gpu, backend and

    * `family_known`: the decode fit has seen this family on this backend on at least 3 cells
    * `bandwidth_bound_gb_s`, `prefill_tflops`, `peak_tflops_bound`, `link_one_way_gb_s` (see the functions
      below)
    * `weight_s_per_byte`: 1 / (family x bandwidth), to be divided by the recipe's efficiency
    * `clock_s_per_byte`: 1 / (bytes per unit and clock x units x clock); 0 when units or clock are unknown,
      that term is then left out
    * `kv_s_per_byte`: 1 / bandwidth; `link_s_per_byte`: 1 / (one way x link efficiency), null when unknown
    * `prefill_s_per_flop`: 1 / (family x rate); `attention_s_per_flop`: 1 / rate; null when no rate is known
    * `bound_s_per_byte`, `bound_s_per_flop`: as `bound.py` uses them; the latter 0 when no rate is known

    Raises KeyError when a global constant is missing. Source: `tokcube_study/single-request-*`.
    """
    lanes = _levels(coefficients, "serving", "pcie_lane").select(
        pl.col("level").cast(pl.Int64).alias("pcie_gen"), pl.col("value").alias("pcie_lane_gb_s")
    )
    pair = pl.concat_str(pl.col("family").cast(pl.String), pl.col("backend"), separator="|")
    maker = pl.when(pl.col("category").cast(pl.String) == "cpu").then(pl.lit("cpu")).otherwise(
        pl.col("vendor").cast(pl.String)
    )  # fmt: skip
    table = (
        gpus.lazy()
        .with_columns(pl.col("pcie_gen").cast(pl.Int64))
        .join(lanes.lazy(), on="pcie_gen", how="left", maintain_order="left")
        .join(pl.LazyFrame({"backend": list(backends)}, schema={"backend": pl.String}), how="cross")
    )
    table = _with_level(table, coefficients, "decode", "fam", pair)
    table = _with_level(table, coefficients, "prefill", "fam", pair)
    table = _with_level(table, coefficients, "decode", "ceilv", maker)
    seen = (
        _levels(coefficients, "decode", "fam")
        .filter(pl.col("n_cells") >= MIN_CELLS_KNOWN)
        .get_column("level")
    )
    clock_bytes = coefficient(coefficients, "decode", "ceil", "clock_bytes")
    link_efficiency = coefficient(coefficients, "serving", "global", "link_efficiency")
    clock_bytes_s = clock_bytes * pl.col("decode_ceilv") * pl.col("compute_units") * clock_mhz() * 1e6
    return (
        table.with_columns(
            pair.is_in(seen.to_list()).fill_null(False).alias("family_known"),
            bandwidth_bound_gb_s().alias("bandwidth_bound_gb_s"),
            prefill_tflops().alias("prefill_tflops"),
            peak_tflops_bound().alias("peak_tflops_bound"),
            link_one_way_gb_s().alias("link_one_way_gb_s"),
        )
        .select(
            "gpu",
            "backend",
            "family_known",
            "bandwidth_bound_gb_s",
            "prefill_tflops",
            "peak_tflops_bound",
            "link_one_way_gb_s",
            (1 / (pl.col("decode_fam") * pl.col("bandwidth_gb_s") * GIGA)).alias("weight_s_per_byte"),
            (1 / clock_bytes_s).fill_null(0.0).alias("clock_s_per_byte"),
            (1 / (pl.col("bandwidth_gb_s") * GIGA)).alias("kv_s_per_byte"),
            (1 / (pl.col("link_one_way_gb_s") * link_efficiency * GIGA)).alias("link_s_per_byte"),
            (1 / (pl.col("prefill_fam") * pl.col("prefill_tflops") * TERA)).alias("prefill_s_per_flop"),
            (1 / (pl.col("prefill_tflops") * TERA)).alias("attention_s_per_flop"),
            (1 / (pl.col("bandwidth_bound_gb_s") * GIGA)).alias("bound_s_per_byte"),
            (1 / (pl.col("peak_tflops_bound") * TERA)).fill_null(0.0).alias("bound_s_per_flop"),
        )
        .collect()
    )


def bandwidth_bound_gb_s() -> pl.Expr:
    """The highest credible bandwidth in GB/s: the larger of the marketed one and bus width x data rate."""
    return pl.max_horizontal("bandwidth_gb_s", "bandwidth_arithmetic_gb_s")


def clock_mhz() -> pl.Expr:
    """The boost clock in MHz; for Apple, which states none, FP32 rate / (cores x 256), as in the fit."""
    derived = pl.col("fp32_tflops") * 1e6 / (pl.col("compute_units") * APPLE_FLOPS_PER_CORE_CLOCK)
    is_apple = pl.col("vendor").cast(pl.String) == "apple"
    return pl.coalesce(pl.col("boost_clock_mhz"), pl.when(is_apple).then(derived))


def prefill_tflops() -> pl.Expr:
    """The rate in TFLOPS against which prompt utilisation was fitted; null when none is known.

    FP16 with FP16 accumulation where given, else FP16, else BF16; the FP32 rate where that is higher, as on
    cards whose FP16 vector rate is a stub. Source: `tokcube_study/single-request-prefill`.
    """
    half = pl.coalesce("fp16_fp16acc_dense_tflops", "fp16_dense_tflops", "bf16_dense_tflops")
    return pl.max_horizontal(half, "fp32_tflops")


def peak_tflops_bound() -> pl.Expr:
    """The highest of all rates (TFLOPS or TOPS, any precision); null when none is known."""
    return pl.max_horizontal(*_RATES)


def link_one_way_gb_s() -> pl.Expr:
    """GB/s one way between two GPUs: half the stated link, else PCIe lane rate x lanes, else null."""
    return pl.coalesce(pl.col("link_gb_s") / 2, pl.col("pcie_lane_gb_s") * pl.col("pcie_lanes"))


def serving_rates(gpus: pl.DataFrame) -> pl.DataFrame:
    """The compute rate a serving kernel uses, per GPU and arithmetic of the quantization.

    Reads gpu and the rates of `gpus`. Returns gpu, compute_dtype (fp16 bf16 fp8 int8 fp4), `serving_tflops`
    (null when unknown). Where the GPU has no rate for the format, weights are unpacked and the 16-bit rate
    counts. Accumulation is FP32, as in the libraries the serving engines call.
    """
    fp16 = pl.max_horizontal(pl.coalesce("fp16_dense_tflops", "bf16_dense_tflops"), "fp32_tflops")
    bf16 = pl.max_horizontal(pl.coalesce("bf16_dense_tflops", "fp16_dense_tflops"), "fp32_tflops")
    rates = gpus.select(
        "gpu",
        fp16.alias("fp16"),
        bf16.alias("bf16"),
        pl.coalesce(pl.col("fp8_dense_tflops"), fp16).alias("fp8"),
        pl.coalesce(pl.col("int8_dense_tops"), fp16).alias("int8"),
        pl.coalesce(pl.col("fp4_dense_tflops"), fp16).alias("fp4"),
    )
    return rates.unpivot(index="gpu", variable_name="compute_dtype", value_name="serving_tflops")


def _levels(coefficients: pl.DataFrame, model: str, block: str) -> pl.DataFrame:
    rows = (pl.col("model").cast(pl.String) == model) & (pl.col("block") == block)
    return coefficients.filter(rows).select("level", "value", "n_cells")


def _with_level(
    frame: pl.LazyFrame, coefficients: pl.DataFrame, model: str, block: str, key: pl.Expr
) -> pl.LazyFrame:
    """Adds `<model>_<block>`: the value of the level that `key` names, 1 when the fit has no such level."""
    name = f"{model}_{block}"
    levels = _levels(coefficients, model, block).select(
        pl.col("level").alias("_level"), pl.col("value").alias(name)
    )
    return (
        frame.with_columns(key.alias("_level"))
        .join(levels.lazy(), on="_level", how="left", maintain_order="left")
        .with_columns(pl.col(name).fill_null(1.0))
        .drop("_level")
    )
