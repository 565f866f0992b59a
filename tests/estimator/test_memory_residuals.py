"""Every memory log beside its estimate: the modes of latent attention, pools, reasons, and how good it is."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from estimator.memory_accuracy import memory_accuracy
from estimator.memory_residuals import PARTS, memory_residuals
from pipeline.contracts.sources import read_sources
from pipeline.grid_tables import in_text

SOURCES = Path(__file__).parents[2] / "sources"
NOT_JUDGED = "a reason"


@cache
def tables() -> dict[str, pl.DataFrame]:
    return read_sources(SOURCES)


def residuals(logs: pl.DataFrame, flags: pl.DataFrame | None = None) -> pl.DataFrame:
    lazy = {name: table.lazy() for name, table in tables().items()}
    none = tables()["memory_flags"].clear() if flags is None else flags
    return memory_residuals(
        logs.lazy(), lazy["models"], lazy["layers"], in_text(lazy["llama_cpp_layers"]),
        lazy["llama_cpp_compute"], lazy["frameworks"], in_text(lazy["stored_weights"]), lazy["kv_dtypes"],
        lazy["latent_modes"], none.lazy(),
    ).collect()  # fmt: skip


def kv(**log: Any) -> dict[str, Any]:
    """The kv row of one log with these columns."""
    schema = tables()["memory_logs"].schema
    blank = {"log_id": "ml-000000000000", "engine_name": "x", "basis": "parsed-log", "citation": "c"}
    one = pl.DataFrame([{**dict.fromkeys(schema), **blank, **log}], schema=schema)
    return residuals(one).filter(pl.col("part") == "kv").row(0, named=True)


IK = {"framework": "ik_llama.cpp", "model": "deepseek-ai/DeepSeek-R1", "kv_cpu_mib": 0.0}


@pytest.mark.parametrize(
    ("mode", "flash", "types", "context", "mib"),
    [
        # 61 layers; figures printed by ik_llama.cpp itself
        pytest.param(0, "off", "f16", 512, 2440.0, id="keys and values of 128 heads"),
        pytest.param(0, "on", "q8_0/f16", 8192, 28_060.0, id="keys in 8 bit"),
        pytest.param(1, "off", "f16", 16_384, 2074.0, id="the latent and its transpose"),
        pytest.param(1, "on", "f16", 16_384, 1098.0, id="the latent alone with flash attention"),
        pytest.param(2, "off", "f16", 20_480, 1372.5, id="mode 2"),
        pytest.param(3, "on", "q8_0", 32_768, 1166.625, id="mode 3"),
        pytest.param(3, "on", "q8_KV", 65_536, 61 * 584 / 16, id="8 bytes per row beside the elements"),
    ],
)
def test_modes_of_latent_attention(mode: int, flash: str, types: str, context: int, mib: float) -> None:
    found = kv(
        **IK,
        mla_mode=mode,
        flash_attention=flash,
        kv_cache_name=types,
        context_tokens=context,
        kv_gpu_mib=mib,
    )
    assert found["estimated_mib"] == mib
    assert found["ratio"] == 1.0


def test_rows_of_keys_and_values_have_a_scale_each() -> None:
    """Qwen3-32B, 64 layers x 8 heads of 128: 1,024 + 8 bytes of keys and as many of values."""
    found = kv(framework="ik_llama.cpp", model="Qwen/Qwen3-32B", kv_cache_name="q8_KV", context_tokens=8192,
               kv_gpu_mib=1.0)  # fmt: skip
    assert found["estimated_mib"] == 64 * 2 * 1032 * 8192 / 2**20


def test_windows_are_kept_whole_by_ik_llama_cpp_and_in_cells_by_llama_cpp() -> None:
    gemma = {"model": "google/gemma-3-27b-it", "kv_gpu_mib": 1.0, "context_tokens": 32_768, "n_slots": 1,
             "ubatch_tokens": 512}  # fmt: skip
    assert kv(framework="ik_llama.cpp", **gemma)["estimated_mib"] == 15_872.0
    assert kv(framework="llama.cpp", **gemma)["estimated_mib"] == 3184.0


def test_pools_are_judged_by_their_tokens() -> None:
    """Kimi-K2-Thinking on eight ranks, DCP 8: 715,136 tokens each of 61 x 576 x 2 bytes."""
    kimi = {"framework": "vllm", "model": "moonshotai/Kimi-K2-Thinking", "tensor_parallel": 8,
            "kv_gpu_mib": 47_923.2, "kv_tokens": 5_721_088}  # fmt: skip
    assert kv(**kimi, note="DCP=8: tokens x8")["estimated_mib"] == pytest.approx(715_136 * 70_272 / 2**20)
    assert kv(**kimi)["ratio"] > 7.9


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ({"model": None, "kv_gpu_mib": 1.0}, "unknown model"),
        ({"kv_gpu_mib": None, "kv_cpu_mib": None}, "the log states no cache"),
        ({"kv_gpu_mib": 1.0}, "the log states no tokens"),
        ({"kv_gpu_mib": 1.0, "context_tokens": 512, "kv_cache_name": "q99"}, "unknown cache type"),
        (
            {"kv_gpu_mib": 1.0, "context_tokens": 512, "n_layers_counted": 31},
            "the log counts layers of another model",
        ),
        (
            {"framework": "vllm", "kv_gpu_mib": 1.0, "context_tokens": 512},
            "the pool is what is left of the memory, whatever the context",
        ),
        (
            {"framework": "vllm", "model": "google/gemma-3-27b-it", "kv_gpu_mib": 1.0, "kv_tokens": 512},
            "a pool of windows or state has no bytes per token",
        ),
    ],
)
def test_reasons(log: dict[str, Any], reason: str) -> None:
    found = kv(**{**IK, **log})
    assert found["reason"] == reason
    assert found["ratio"] is None


def test_every_log_has_every_part_and_a_ratio_or_a_reason() -> None:
    found = residuals(tables()["memory_logs"], tables()["memory_flags"])
    assert found.height == len(PARTS) * tables()["memory_logs"].height
    compared = pl.col("ratio").is_not_null()
    assert found.filter(compared == pl.col("reason").is_not_null()).select("log_id", "part").rows() == []


def test_the_cache_is_within_one_percent_of_nearly_every_log() -> None:
    """97 of 100 compared logs; without the flags nine of ten."""
    logs, models = tables()["memory_logs"], tables()["models"]

    def within(flags: pl.DataFrame | None) -> tuple[int, float]:
        rows = memory_accuracy(residuals(logs, flags).lazy(), logs.lazy(), models.lazy()).collect()
        of_all = rows.filter((pl.col("part") == "kv") & (pl.col("slice") == "all"))
        return of_all.select("n_compared", "within_1_percent").row(0)

    n_compared, share = within(tables()["memory_flags"])
    assert n_compared >= 105
    assert share >= 97
    n_unflagged, unflagged = within(None)
    assert n_unflagged > n_compared
    assert unflagged >= 90


def test_a_flag_is_a_reason_and_hides_no_other() -> None:
    logs = tables()["memory_logs"].filter(pl.col("kv_gpu_mib").is_null(), pl.col("kv_cpu_mib").is_null())
    first = logs.item(0, "log_id")
    flag = pl.DataFrame(
        [{"log_id": first, "part": "kv", "reason": NOT_JUDGED, "citation": "c", "locator": "l"}],
        schema=tables()["memory_flags"].schema,
    )
    found = residuals(logs, flag).filter((pl.col("log_id") == first) & (pl.col("part") == "kv"))
    assert found.item(0, "reason") != NOT_JUDGED


def test_accuracy_counts_what_is_compared() -> None:
    rows = pl.LazyFrame(
        {"log_id": ["a", "b", "c", "d"], "part": ["kv"] * 4, "framework": ["vllm"] * 4, "model": ["m"] * 4,
         "ratio": [1.0, 1.005, 1.5, None]}
    )  # fmt: skip
    logs = pl.LazyFrame({"log_id": ["a", "b", "c", "d"], "kv_cache_name": ["f16", "f16", "f16", None]})
    models = pl.LazyFrame({"model": ["m"], "is_moe": [True]})
    found = memory_accuracy(rows, logs, models).collect()
    whole = found.filter(pl.col("slice") == "all").row(0, named=True)
    assert (whole["n_logs"], whole["n_compared"]) == (4, 3)
    assert whole["median_ratio"] == 1.005
    assert whole["median_absolute_error_percent"] == 0.5
    assert whole["within_1_percent"] == 66.67
    assert found.filter(pl.col("slice") == "cache_type").get_column("value").to_list() == ["f16", "unknown"]
    assert found.filter(pl.col("slice") == "model_kind").get_column("value").to_list() == ["moe"]
