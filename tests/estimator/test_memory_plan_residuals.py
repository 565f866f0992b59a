"""Estimates beside llama.cpp's planner: right rows meet right settings, and slices count them."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from estimator.llama_cpp_compute import COEFFICIENTS
from estimator.memory_plan_residuals import memory_plan_accuracy, memory_plan_residuals
from estimator.memory_plan_weights import PLANNED_FILE
from tests.estimator.cube_cases import DENSE, llama_cpp_frame, model_frame

PLAN: dict[str, Any] = {
    "model": DENSE, "weights": "Q4_K_M", "quant": "gguf/q4_k_m", "prediction_layers": "left_out",
    "context_tokens": 8192, "ubatch_tokens": 512, "slots": 4, "kv_unified": True, "flash_attention": "on",
    "kv_dtype": "f16", "outputs": 4, "n_gpus": 1, "device": "gpu0", "weights_mib": 4155.992,
    "context_mib": 1024.0, "compute_mib": 116.01, "citation": "c",
}  # fmt: skip
KV_DTYPES = pl.LazyFrame(
    {"framework": ["llama.cpp", "llama.cpp", "vllm"], "kv_dtype": ["f16", "q8_0", "f16"],
     "k_bytes_per_element": [2.0, 1.0625, 9.0], "v_bytes_per_element": [2.0, 1.0625, 9.0]}
)  # fmt: skip
NO_COEFFICIENTS = pl.LazyFrame(schema={"model": pl.String(), **dict.fromkeys(COEFFICIENTS, pl.Float64())})


def residuals(*plans: dict[str, Any], **layer: Any) -> pl.DataFrame:
    frame = pl.LazyFrame([{**PLAN, **plan} for plan in plans])
    known = frame.select(*PLANNED_FILE, weights_bytes=pl.lit(4156 * 2**20)).unique()
    return memory_plan_residuals(
        frame.with_columns(pl.col("n_gpus").cast(pl.Int64)), llama_cpp_frame(layer), NO_COEFFICIENTS,
        KV_DTYPES, known.filter(pl.col("weights") == "Q4_K_M"),
    ).collect()  # fmt: skip


def test_a_run_of_one_device() -> None:
    """Llama-3.1-8B with four slots: 1,024 MiB of cache, 116.01 MiB, 24.01 MiB on the host."""
    host = {"device": "host", "context_mib": 0.0, "compute_mib": 24.012, "weights_mib": 281.812}
    gpu, on_host = residuals({}, host).to_dicts()
    assert (gpu["context_error_mib"], on_host["context_error_mib"]) == (0.0, 0.0)
    assert gpu["compute_estimated_mib"] == pytest.approx(116.01, abs=0.001)
    assert abs(gpu["compute_error_percent"]) < 0.01
    assert abs(on_host["compute_error_percent"]) < 0.02
    assert (gpu["weights_estimated_mib"], gpu["weights_error_mib"]) == (4156.0, 0.008)


def test_a_difference_of_weights_is_explained() -> None:
    host = {"device": "host", "weights_mib": 281.812}
    rows = residuals({}, {"weights_mib": 4150.0, "prediction_layers": "kept"}, {"weights": "by hand"})
    assert set(rows.select("weights", "prediction_layers", "weights_difference").rows()) == {
        ("Q4_K_M", "left_out", "none"), ("Q4_K_M", "kept", "layers"), ("by hand", "left_out", "no_file_type"),
    }  # fmt: skip
    assert rows.filter(weights="by hand").item(0, "weights_estimated_mib") is None
    split = residuals({"weights_mib": 4150.0}, host)
    assert split.get_column("weights_difference").to_list() == ["vocabulary", "vocabulary"]


def test_every_device_of_a_split_has_its_own_estimate() -> None:
    found = residuals({"n_gpus": 2}, {"n_gpus": 2, "device": "gpu1"})
    assert found.get_column("context_estimated_mib").to_list() == [17 * 32.0, 15 * 32.0]
    first, last = found.get_column("compute_estimated_mib").to_list()
    assert last - first == 4 * 512 * 4 * 4096 / 2**20


def test_prediction_layers_in_the_file_move_the_split() -> None:
    """With one more layer there are 34 units: 17 on each device, the last with the prediction layer and the
    output.
    """
    kept = {"n_gpus": 2, "prediction_layers": "kept"}
    found = residuals(kept, {**kept, "device": "gpu1"}, prediction_layers=2)
    assert found.get_column("context_estimated_mib").to_list() == [18 * 32.0, 14 * 32.0]
    left_out = residuals({"n_gpus": 2}, prediction_layers=2)
    assert left_out.item(0, "context_estimated_mib") == 17 * 32.0


def test_the_cache_type_of_llama_cpp_counts() -> None:
    found = residuals({"kv_dtype": "q8_0"}).row(0, named=True)
    assert found["context_estimated_mib"] == 1024.0 * 17 / 32


def test_accuracy_counts_slices() -> None:
    """One of two rows is 1 MiB and 10 % off."""
    off = {"context_mib": 1023.0, "compute_mib": 116.01 / 1.1, "flash_attention": "on", "outputs": 2048,
           "slots": 1}  # fmt: skip
    rows = residuals({}).with_columns(pl.lit(0.0).alias("compute_error_percent"))
    wrong = residuals(off).with_columns(
        pl.lit(10.0).alias("compute_error_percent"), pl.lit(1.0).alias("context_error_mib")
    )
    both = pl.concat([rows, wrong]).lazy()
    found = memory_plan_accuracy(both, model_frame()).collect()
    whole = found.filter(pl.col("slice") == "all").row(0, named=True)
    assert (whole["n_plans"], whole["n_models"]) == (2, 1)
    assert (whole["context_within_percent"], whole["compute_within_percent"]) == (50.0, 50.0)
    assert whole["context_largest_error_mib"] == 1.0
    assert (whole["n_weights"], whole["weights_exact_percent"]) == (2, 100.0)
    outputs = found.filter(pl.col("slice") == "outputs")
    assert outputs.select("value", "compute_within_percent").rows() == [
        ("per slot", 100.0),
        ("per token", 0.0),
    ]
    assert found.filter(pl.col("slice") == "model_type").item(0, "value") == "llama"
