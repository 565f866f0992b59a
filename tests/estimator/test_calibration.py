"""Levels are looked up by name, absent ones are off, and the GPU's numbers are the ones kernels use."""

from __future__ import annotations

import polars as pl
import pytest

from estimator.calibration import coefficient, gpu_coefficients, gpu_value, recipe_coefficients, serving_rates
from tests.estimator.speed_cases import coefficients, gpu_frame, recipe_frame

COEFFICIENTS = coefficients()


def one(frame: pl.DataFrame, backend: str = "cuda") -> dict[str, float]:
    return frame.filter(pl.col("backend") == backend).row(0, named=True)


def test_recipe_multiplies_engine_and_quant_levels() -> None:
    row = recipe_coefficients(recipe_frame(), COEFFICIENTS).collect().row(0, named=True)
    # 0.9774 mu x 0.8016 llama.cpp|cuda x 0.9952 q4k x 1.0247 q4k|cuda
    assert row["decode_weight_efficiency"] == pytest.approx(0.9774 * 0.8016 * 0.9952 * 1.0247, rel=1e-6)
    # 115.6795 us x 0.6735
    assert row["decode_layer_s"] == pytest.approx(77.910e-6, rel=1e-4)
    # 0.4875 x 2.0572: llama.cpp reads its cache at full bandwidth
    assert row["decode_kv_efficiency"] == pytest.approx(1.00289, rel=1e-4)
    # 0.3319 x 1.2467 x 0.9645 x 1.0434
    assert row["prefill_efficiency"] == pytest.approx(0.41642, rel=1e-4)
    assert row["engine_known"] is True


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "nonesuch", "backend": "nowhere", "quant_class": "unheard-of"},
        {"engine": None, "backend": None, "quant_class": None},
    ],
)
def test_unknown_levels_count_as_one(change: dict[str, str | None]) -> None:
    row = recipe_coefficients(recipe_frame({}, change), COEFFICIENTS).collect().row(1, named=True)
    assert row["decode_weight_efficiency"] == pytest.approx(0.9774)
    assert row["decode_layer_s"] == pytest.approx(115.6795e-6)
    assert row["prefill_attention_efficiency"] == pytest.approx(0.4613)
    assert row["engine_known"] is False


def test_levels_of_past_years_are_not_used() -> None:
    present = recipe_coefficients(recipe_frame({"backend": "opencl"}), COEFFICIENTS).collect()
    assert present.item(0, "decode_weight_efficiency") == pytest.approx(0.9774 * 0.9952)


def test_few_cells_shift_but_do_not_make_an_engine_known() -> None:
    row = (
        recipe_coefficients(recipe_frame({"engine": "tensorrt-llm"}), COEFFICIENTS)
        .collect()
        .row(0, named=True)
    )
    assert row["decode_weight_efficiency"] == pytest.approx(0.9774 * 1.1259 * 0.9952 * 1.0247)
    assert row["engine_known"] is False  # 2 cells


def test_recipes_keep_their_order_and_columns() -> None:
    changes = [{"context_tokens": tokens} for tokens in (3, 1, 2)]
    frame = recipe_coefficients(recipe_frame(*changes), COEFFICIENTS).collect()
    assert frame.get_column("context_tokens").to_list() == [3, 1, 2]
    assert not [name for name in frame.columns if name.startswith("_") or name.endswith(("_eng", "_qc"))]


def test_gpu_on_its_own_backend() -> None:
    row = one(gpu_coefficients(gpu_frame(), COEFFICIENTS))
    assert row["family_known"] is True
    assert 1 / row["weight_s_per_byte"] == pytest.approx(1.3917 * 1008e9)
    # 16.5954 bytes x 1.1782 nvidia x 128 units x 2.52 GHz
    assert 1 / row["clock_s_per_byte"] == pytest.approx(16.5954 * 1.1782 * 128 * 2.52e9)
    assert 1 / row["prefill_s_per_flop"] == pytest.approx(0.9909 * 330.3e12)
    assert 1 / row["attention_s_per_flop"] == pytest.approx(330.3e12)
    assert 1 / row["bound_s_per_flop"] == pytest.approx(660.6e12)
    # PCIe 4 x16 one way at link efficiency 0.5
    assert 1 / row["link_s_per_byte"] == pytest.approx(16 * 1.969e9 * 0.5)


def test_family_is_off_where_it_was_never_seen() -> None:
    frame = gpu_coefficients(gpu_frame(family="made-up"), COEFFICIENTS)
    assert not frame.get_column("family_known").any()
    assert 1 / one(frame)["weight_s_per_byte"] == pytest.approx(1008e9)
    rare = one(gpu_coefficients(gpu_frame(), COEFFICIENTS), "vulkan")  # one cell: shifts, is not known
    assert (rare["family_known"], 1 / rare["weight_s_per_byte"]) == (False, pytest.approx(1.0477 * 1008e9))


@pytest.mark.parametrize("missing", ["compute_units", "boost_clock_mhz"])
def test_clock_term_is_left_out_when_unknown(missing: str) -> None:
    assert one(gpu_coefficients(gpu_frame(**{missing: None}), COEFFICIENTS))["clock_s_per_byte"] == 0.0


def test_apple_clock_follows_from_its_fp32_rate() -> None:
    # M3 Max: 14.2 TFLOPS / (40 cores x 256) = 1.387 GHz; 16.5954 x 1.0489 bytes per core and clock
    apple = gpu_frame(
        vendor="apple", family="apple-m3", boost_clock_mhz=None, compute_units=40, fp32_tflops=14.2
    )
    row = one(gpu_coefficients(apple, COEFFICIENTS), "metal")
    assert 1 / row["clock_s_per_byte"] == pytest.approx(16.5954 * 1.0489 * 14.2e12 / 256)


def test_rates_stay_unknown_when_no_source_states_one() -> None:
    names = ["fp16_dense_tflops", "fp16_fp16acc_dense_tflops", "bf16_dense_tflops", "fp8_dense_tflops",
             "int8_dense_tops", "fp32_tflops"]  # fmt: skip
    unknown: dict[str, None] = dict.fromkeys(names)
    row = one(gpu_coefficients(gpu_frame(**unknown), COEFFICIENTS))
    assert row["prefill_s_per_flop"] is None
    assert row["attention_s_per_flop"] is None
    assert row["bound_s_per_flop"] == 0.0  # the bound then rests on bytes alone


def test_vector_stub_gives_way_to_fp32() -> None:
    # Tesla P40: FP16 vector rate 0.18, FP32 11.76 TFLOPS
    row = one(gpu_coefficients(gpu_frame(fp16_fp16acc_dense_tflops=None, fp16_dense_tflops=0.18,
                                         bf16_dense_tflops=None, fp32_tflops=11.76),
                               COEFFICIENTS))  # fmt: skip
    assert row["prefill_tflops"] == 11.76


def test_stated_link_is_halved_and_goes_before_pcie() -> None:
    assert one(gpu_coefficients(gpu_frame(link_gb_s=900.0), COEFFICIENTS))["link_one_way_gb_s"] == 450.0
    no_link = gpu_frame(pcie_gen=None, pcie_lanes=None)
    assert one(gpu_coefficients(no_link, COEFFICIENTS))["link_s_per_byte"] is None


def test_bound_uses_the_larger_bandwidth() -> None:
    row = one(gpu_coefficients(gpu_frame(bandwidth_arithmetic_gb_s=1100.0), COEFFICIENTS))
    assert row["bandwidth_bound_gb_s"] == 1100.0
    assert row["kv_s_per_byte"] == pytest.approx(1 / 1008e9)  # the estimate stays with the marketed one


def test_serving_rate_follows_the_arithmetic_of_the_format() -> None:
    rates = dict(serving_rates(gpu_frame()).select("compute_dtype", "serving_tflops").iter_rows())
    assert rates == {"fp16": 165.2, "bf16": 165.2, "fp8": 330.3, "int8": 660.6, "fp4": 165.2}


def test_missing_constant_is_named() -> None:
    with pytest.raises(KeyError, match="decode/mu/efficiency"):
        coefficient(COEFFICIENTS.filter(pl.col("block") != "mu"), "decode", "mu", "efficiency")


def test_gpu_value_is_a_column_or_a_number() -> None:
    frame = pl.DataFrame({"x": [2.0]})
    assert frame.select(gpu_value("x", None), y=gpu_value("x", {"x": 3.0})).row(0) == (2.0, 3.0)
    assert frame.select(y=gpu_value("x", {"x": None})).item() is None
