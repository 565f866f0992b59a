"""Each rule flags the case it is for and leaves its neighbours alone."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from estimator.anchor_state import decode_state, depth_tokens, serving_state

GPUS = pl.DataFrame({"gpu": ["rtx-4090-24gb", "cpu-x"], "memory_gib": [24.0, 64.0]})
MODELS = pl.DataFrame({"model": ["Qwen/Qwen3-8B"], "n_layers": [36], "total_params": [8.2e9]})
QUANTS = pl.DataFrame({"quant": ["gguf/q4_k_m", "gguf/f32"], "body_bpw": [4.8, 32.0]})
NO_FLAGS = pl.DataFrame(schema={"anchor_id": pl.String, "flag": pl.String, "effect": pl.String})
TRUST = pl.DataFrame(
    [("decode", "hasty", "all", "whole numbers"), ("decode", "server", "prefill", "round trip")],
    schema=["set", "publisher", "scope", "reason"],
    orient="row",
)
DECODE: dict[str, Any] = {
    "anchor_id": "al-1",
    "publisher": "someone",
    "gpu": "rtx-4090-24gb",
    "model": "Qwen/Qwen3-8B",
    "quant": "gguf/q4_k_m",
    "framework": "llama.cpp",
    "backend": "cuda",
    "backend_basis": "stated",
    "n_gpus": 1,
    "gpu_name": "RTX 4090",
    "host_note": None,
    "framework_name": "llama.cpp",
    "framework_version": "b1",
    "backend_name": "cuda",
    "model_name": "qwen3 8B",
    "quant_name": "Q4_K_M",
    "kv_cache_name": None,
    "kv_trait": None,
    "value_kv_dtype": None,
    "flash_attention": "on",
    "start_depth_tokens": 0,
    "prompt_tokens": 512,
    "generated_tokens": 128.0,
    "n_requests": 1,
    "offload": "ngl=99",
    "speculation": None,
    "rate_kind": "decode",
    "prefill_tok_s": 1000.0,
    "decode_tok_s": 100.0,
    "model_size_gib": None,
    "physics_flag": None,
    "note": None,
    "locator": "a.md:1",
}
NAMES = ("gpu", "model", "quant", "framework")
TYPES: dict[str, Any] = {name: pl.String for name, value in DECODE.items() if value is None or name in NAMES}
TYPES |= {"model_size_gib": pl.Float64, "n_gpus": pl.Int16, "prefill_tok_s": pl.Float64}


def judge(*changes: dict[str, Any], flags: pl.DataFrame = NO_FLAGS) -> pl.DataFrame:
    rows = [DECODE | {"anchor_id": f"al-{at}"} | change for at, change in enumerate(changes)]
    frame = pl.DataFrame(rows, schema_overrides=TYPES, infer_schema_length=None)
    return decode_state(frame, flags, TRUST, GPUS, MODELS, QUANTS)


def test_a_plain_row_is_accepted_in_all_three_ways() -> None:
    row = judge({}).row(0, named=True)
    assert (row["state"], row["prefill_state"], row["trust"], row["state_reason"]) == (
        "accepted",
        "accepted",
        "accepted",
        None,
    )
    assert row["depth_tokens"] == 64


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"speculation": "mtp"}, "speculation"),
        ({"kv_trait": "speculation"}, "speculation-in-label"),
        ({"framework": "ollama", "model_name": "gemma4:12b-mlx"}, "speculation-in-label"),
        ({"framework": "vllm", "model_name": "Qwen3.6-27B-MTP"}, "speculation-in-label"),
        ({"kv_trait": "exotic"}, "exotic-kv"),
        ({"value_kv_dtype": "f16"}, "asymmetric-kv"),
        ({"offload": "ngl=20"}, "partial-offload"),
        ({"offload": "-ngl 99 -ot exps=CPU"}, "partial-offload"),
        ({"backend_name": "cuda+cpu"}, "partial-offload"),
        ({"model_size_gib": 24.5}, "larger-than-memory"),
        ({"quant": "gguf/f32"}, "larger-than-memory"),
        ({"host_note": "llama.cpp RPC over 2 hosts"}, "over-network"),
        ({"n_requests": 8}, "several-requests"),
        (
            {"publisher": "xiongjiedai", "locator": "LLaMA 2/Gaming GPUs/a.ipynb:1", "n_gpus": 4},
            "split-by-rows",
        ),
        ({"physics_flag": "exceeds-bandwidth"}, "impossible-rate"),
        ({"n_gpus": None}, "gpu-count-unknown"),
    ],
)
def test_a_rule_flags_its_case(change: dict[str, Any], reason: str) -> None:
    row = judge(change).row(0, named=True)
    assert (row["state"], row["state_reason"]) == ("flagged", reason)
    assert (row["prefill_state"], row["prefill_reason"]) == ("flagged", reason)


@pytest.mark.parametrize(
    "change",
    [
        {"speculation": "mtp on/off flag=off"},
        {"speculation": "draft-mtp model (llama-bench: not used)"},
        {"model_name": "Qwen3.6-27B-MTP-GGUF"},
        {"offload": "ngl=36"},
        {"offload": "ngl=1", "backend": "metal"},
        {"offload": "CPU", "backend": "cpu"},
        {"gpu": "cpu-x", "backend": "cpu", "model_size_gib": 600.0},
        {"model_size_gib": 40.0, "n_gpus": 2},
        {"publisher": "xiongjiedai", "locator": "LLaMA 3/Gaming GPUs/a.ipynb:1", "n_gpus": 4},
        {"publisher": "xiongjiedai", "locator": "LLaMA 2/Gaming GPUs/a.ipynb:1"},
    ],
)
def test_a_neighbour_is_accepted(change: dict[str, Any]) -> None:
    assert judge(change).item(0, "state") == "accepted"


def test_a_missing_name_is_unresolved_whatever_else_is_wrong() -> None:
    row = judge({"model": None, "quant": None, "n_requests": 8}).row(0, named=True)
    assert (row["state"], row["unresolved_kinds"], row["state_reason"]) == (
        "unresolved",
        "model;quant",
        "several-requests",
    )
    assert row["prefill_state"] == "unresolved"


def test_flags_act_where_they_say() -> None:
    flags = pl.DataFrame(
        [
            ("al-0", "cpu-run", "state"),
            ("al-1", "prefix-cache", "prefill"),
            ("al-2", "far-from-study", "trust"),
        ],
        schema=["anchor_id", "flag", "effect"],
        orient="row",
    )
    judged = judge({}, {"gpu_name": "b"}, {"gpu_name": "c"}, flags=flags)
    assert judged.select("state", "prefill_state", "trust").rows() == [
        ("flagged", "flagged", "accepted"),
        ("accepted", "flagged", "accepted"),
        ("accepted", "accepted", "flagged"),
    ]
    assert judged.get_column("trust_reason").to_list() == [None, None, "far-from-study"]


def test_distrust_of_a_publisher_keeps_the_state() -> None:
    judged = judge({"publisher": "hasty"}, {"publisher": "server"}, {"rate_kind": "wall"})
    assert judged.get_column("state").to_list() == ["accepted"] * 3
    assert judged.get_column("trust_reason").to_list() == ["whole numbers", None, "whole-request-rate"]
    assert judged.get_column("prefill_reason").to_list() == [None, "round trip", None]


def test_a_prompt_cannot_be_faster_behind_a_filled_cache() -> None:
    judged = judge(
        {"prefill_tok_s": 100.0},
        {"prefill_tok_s": 90.0, "start_depth_tokens": 8192},
        {"prefill_tok_s": 300.0, "start_depth_tokens": 16384},
        {"prefill_tok_s": 300.0, "start_depth_tokens": 16384, "note": "llama-sweep-bench"},
        {"prefill_tok_s": None, "start_depth_tokens": 0},
        {"prefill_tok_s": 300.0, "prompt_tokens": 4096},
    )
    assert judged.get_column("prefill_state").to_list() == [
        "accepted",
        "accepted",
        "flagged",
        "accepted",
        None,
        "accepted",
    ]


def test_a_prefix_cache_run_has_no_prompt_speed() -> None:
    row = judge({"note": "objective=prefix_cache; tps_kind=aggregate_output"}).row(0, named=True)
    assert (row["state"], row["prefill_state"], row["prefill_reason"]) == (
        "accepted",
        "flagged",
        "prefix-cache-run",
    )


def test_depth_is_the_start_plus_half_of_what_was_generated() -> None:
    frame = pl.DataFrame(
        {
            "start_depth_tokens": [1000, None, None, 5],
            "prompt_tokens": [None, 500, None, 900],
            "generated_tokens": [128.0, 1023.0, 64.0, None],
        }
    )
    assert frame.select(depth_tokens()).to_series().to_list() == [1064, 1012, None, 5]


SERVING: dict[str, Any] = {
    "anchor_id": "srv-1",
    "publisher": "someone",
    "gpu": "rtx-4090-24gb",
    "model": "Qwen/Qwen3-8B",
    "quant": "gguf/q4_k_m",
    "framework": "vllm",
    "backend": "cuda",
    "n_gpus": 1,
    "n_nodes": 1,
    "speculation": None,
    "rate_kind": "wall",
    "output_tok_s": 100.0,
    "output_tok_s_per_request": None,
    "total_tok_s": None,
    "ttft_mean_ms": None,
    "ttft_median_ms": None,
    "ttft_p99_ms": None,
    "tpot_mean_ms": None,
    "tpot_median_ms": None,
    "tpot_p99_ms": None,
}


@pytest.mark.parametrize(
    ("change", "state", "reason"),
    [
        ({}, "accepted", None),
        ({"output_tok_s": None}, "flagged", "nothing-measured"),
        ({"output_tok_s": None, "ttft_mean_ms": 5.0}, "accepted", None),
        ({"speculation": "EAGLE"}, "flagged", "speculation"),
        ({"n_nodes": 2}, "flagged", "several-nodes"),
        ({"rate_kind": "disaggregated"}, "flagged", "disaggregated"),
        ({"rate_kind": "fitted"}, "flagged", "fitted"),
        ({"gpu": None}, "unresolved", None),
    ],
)
def test_serving_rules(change: dict[str, Any], state: str, reason: str | None) -> None:
    types = {
        "speculation": pl.String,
        "gpu": pl.String,
        "ttft_mean_ms": pl.Float64,
        "output_tok_s": pl.Float64,
    }
    frame = pl.DataFrame([SERVING | change], schema_overrides=types)
    row = serving_state(frame, NO_FLAGS, TRUST, GPUS, MODELS, QUANTS).row(0, named=True)
    assert (row["state"], row["state_reason"]) == (state, reason)
