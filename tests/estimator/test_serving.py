"""Step time by hand, capacity, and how throughput may and may not move."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.serving import serving_estimates
from tests.estimator.speed_cases import coefficients

COEFFICIENTS = coefficients()
# Llama-3-8B in bf16 on an H100 SXM, 1024 in and 1024 out, 32 requests.
BASE: dict[str, Any] = {
    "n_gpus": 1, "parallel_mode": "none", "n_layers": 32, "hidden_size": 4096, "n_experts": None,
    "n_experts_used": None, "dense_read_bytes": 15.01e9, "expert_bytes": 0.0, "weights_bytes": 16.06e9,
    "active_params": 7.505e9, "body_active_params": 6.98e9, "kv_replication": 1.0, "input_tokens": 1024,
    "output_tokens": 1024, "concurrency": 32, "attention_prefill_flops": 2 * 32 * 4096 * 1024.0**2,
    "kv_sequence_bytes": 1536 * 131072.0, "kv_step_bytes": 1536 * 131072.0, "memory_utilization": None,
    "memory_gib": 80.0, "bandwidth_gb_s": 3350.0, "serving_tflops": 989.0, "link_one_way_gb_s": 450.0,
}  # fmt: skip
SCHEMA = {
    "n_experts": pl.Int32(), "n_experts_used": pl.Int32(), "memory_utilization": pl.Float64(),
    "serving_tflops": pl.Float64(), "link_one_way_gb_s": pl.Float64(),
}  # fmt: skip


def serve(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    rows = pl.LazyFrame([{**BASE, **change} for change in changes or ({},)], schema_overrides=SCHEMA)
    return serving_estimates(rows, COEFFICIENTS).collect().to_dicts()


def test_one_card_by_hand() -> None:
    """Step of 32 sequences:

    host     0.05266 + 32 x 0.1437 + 32 x 0.008477                = 4.9223 ms
    weights  15.01e9 / (3350e9 x 0.8969)                          = 4.9956 ms
    compute  2 x 7.505e9 x 32 / (989e12 x 0.4976)                 = 0.9760 ms
    together (4.9956^3 + 0.9760^3)^(1/3)                          = 5.0080 ms
    cache    32 x 1536 x 131072 / (3350e9 x 0.7238)               = 2.6570 ms

    Prompts of 32 x 1024 tokens:
    compute  32 x (2 x 6.98e9 x 1024 + 2 x 32 x 4096 x 1024^2) / (989e12 x 0.5554) = 848.8 ms
    (weights once, 5.0 ms, vanish) + 0.05266 + 32 x 0.1437        = 4.651 ms
    """
    row = serve()[0]
    assert row["step_s"] * 1e3 == pytest.approx(4.9223 + 5.0080 + 2.6570, rel=1e-4)
    assert row["prefill_s"] * 1e3 == pytest.approx(848.8 + 4.651, rel=1e-3)
    total_s = 0.85345 + 1024 * 0.0125873
    assert row["output_tok_s"] == pytest.approx(32 * 1024 / total_s, rel=1e-3)
    assert row["tpot_ms"] == pytest.approx(12.5873 + 853.45 / 1024, rel=1e-3)
    assert row["output_tok_s_per_request"] * row["tpot_ms"] == pytest.approx(1000)
    # own prompt (848.8 / 32 + 4.7, rounded by the smooth corner) + one step + 15 ms floor
    assert row["ttft_ms"] == pytest.approx(31.24 + 12.59 + 15, rel=2e-3)
    # (80 GiB x 0.9 - 1.5e9 - 16.06e9) / (1536 x 131072)
    assert row["max_concurrency"] == int((80 * 1024**3 * 0.9 - 1.5e9 - 16.06e9) // (1536 * 131072)) == 296
    assert row["limited_by"] == "bandwidth"


def test_measured_throughput_is_met_within_a_quarter() -> None:
    # One request on an H100, Llama-3-8B FP16: 87 to 109 output tokens per second (vLLM, serving study)
    assert serve({"concurrency": 1})[0]["output_tok_s"] == pytest.approx(98, rel=0.25)


def test_utilization_of_the_engine_goes_before_the_default() -> None:
    low, high = serve({"memory_utilization": 0.5}, {"memory_utilization": 0.95})
    assert low["max_concurrency"] < 296 < high["max_concurrency"]


def test_what_does_not_fit_has_no_speed() -> None:
    row = serve({"memory_gib": 16.0})[0]
    assert (row["limited_by"], row["max_concurrency"], row["output_tok_s"], row["ttft_ms"]) == (
        "memory",
        0,
        None,
        None,
    )


def test_requests_beyond_the_pool_wait() -> None:
    fits, over = serve({"concurrency": 296}, {"concurrency": 592})
    assert over["limited_by"] == "capacity"
    assert over["output_tok_s"] == pytest.approx(fits["output_tok_s"])
    assert over["output_tok_s_per_request"] == pytest.approx(fits["output_tok_s_per_request"])
    assert over["ttft_ms"] - fits["ttft_ms"] == pytest.approx(
        1e3 * 296 * 1024 / fits["output_tok_s"], rel=1e-6
    )


def test_long_prompts_are_limited_by_compute() -> None:
    change = {"input_tokens": 8192, "output_tokens": 16, "attention_prefill_flops": 2 * 32 * 4096 * 8192.0**2}
    assert serve(change)[0]["limited_by"] == "compute"


def test_distinct_experts_grow_with_the_batch() -> None:
    """Experts of 8 GB, 2 of 8 used: b tokens touch 1 - 0.75^b of them, at efficiency 0.3479."""
    expert = {
        "expert_bytes": 8e9,
        "n_experts": 8,
        "n_experts_used": 2,
        "serving_tflops": 1e9,
        "kv_step_bytes": 0.0,
    }
    dense = expert | {"expert_bytes": 0.0}
    for batch in (1, 4):
        with_experts, without = serve(expert | {"concurrency": batch}, dense | {"concurrency": batch})
        extra_s = 8e9 * (1 - 0.75**batch) / 0.3479 / (3350e9 * 0.8969)
        assert with_experts["step_s"] - without["step_s"] == pytest.approx(extra_s, rel=1e-6)


def test_tensor_parallel_shares_bytes_and_pays_latency_and_volume() -> None:
    one, four = serve({}, {"n_gpus": 4, "parallel_mode": "tensor"})
    latency_s = 2 * 32 * 2 * 4.41e-6
    volume_s = 2 * 32 * 1.5 * 32 * 4096 * 2 / (450e9 * 0.5)
    shared_s = (5.0080e-3 + 2.6570e-3) / 4
    assert four["step_s"] == pytest.approx(4.9223e-3 + shared_s + latency_s + volume_s, rel=1e-4)
    assert four["output_tok_s"] > one["output_tok_s"]


def test_layer_split_does_not_speed_up_one_request() -> None:
    one, split = serve({"concurrency": 1}, {"concurrency": 1, "n_gpus": 2, "parallel_mode": "layer"})
    assert split["step_s"] == pytest.approx(one["step_s"], rel=0.02)


def test_unknown_rate_or_link_gives_no_speed() -> None:
    no_rate, no_link, alone = serve(
        {"serving_tflops": None},
        {"link_one_way_gb_s": None, "n_gpus": 2, "parallel_mode": "tensor"},
        {"link_one_way_gb_s": None},
    )
    assert no_rate["output_tok_s"] is None
    assert no_rate["limited_by"] is None
    assert no_rate["max_concurrency"] == 296  # what fits is known all the same
    assert no_link["output_tok_s"] is None
    assert alone["output_tok_s"] > 0


def test_order_is_kept_and_nothing_internal_is_left() -> None:
    rows = pl.LazyFrame([{**BASE, "concurrency": n} for n in (8, 1, 32)], schema_overrides=SCHEMA)
    frame = serving_estimates(rows, COEFFICIENTS).collect()
    assert frame.get_column("concurrency").to_list() == [8, 1, 32]
    assert not [name for name in frame.columns if name.startswith("_")]


@settings(max_examples=40, deadline=None)
@given(
    concurrency=st.integers(1, 500),
    more=st.integers(1, 500),
    gpus=st.sampled_from([1, 2, 8]),
    mode=st.sampled_from(["layer", "tensor"]),
    kv=st.floats(0, 5e9),
    experts=st.floats(0, 2e10),
    prompt=st.integers(1, 100_000),
)
def test_total_output_never_falls_when_more_ask(
    concurrency: int, more: int, gpus: int, mode: str, kv: float, experts: float, prompt: int
) -> None:
    base = {"n_gpus": gpus, "parallel_mode": mode, "kv_sequence_bytes": kv, "kv_step_bytes": kv,
            "expert_bytes": experts, "weights_bytes": 16e9 + experts, "n_experts": 64,
            "n_experts_used": 4, "input_tokens": prompt}  # fmt: skip
    few, many = serve(base | {"concurrency": concurrency}, base | {"concurrency": concurrency + more})
    if few["output_tok_s"] is not None:
        assert many["output_tok_s"] >= few["output_tok_s"] * (1 - 1e-9)
        assert many["ttft_ms"] >= few["ttft_ms"] * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(concurrency=st.integers(1, 300), kv=st.floats(1e6, 1e9), more=st.floats(1.01, 20))
def test_more_bytes_are_slower_and_nothing_beats_the_bandwidth(
    concurrency: int, kv: float, more: float
) -> None:
    base = {"concurrency": concurrency, "kv_step_bytes": kv}
    first, cache, weights = serve(
        base, base | {"kv_step_bytes": kv * more}, base | {"dense_read_bytes": 15.01e9 * more}
    )
    assert cache["output_tok_s"] <= first["output_tok_s"]
    assert weights["output_tok_s"] <= first["output_tok_s"]
    served = first["served_concurrency"]
    assert first["output_tok_s"] < served * 3350e9 / (15.01e9 + served * kv)
