"""The support rules as they stand in `sources/`, asked about known cases, and faulty rules."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from estimator.support import (
    supported_formats,
    supported_hardware,
    supported_kv_dtypes,
    supported_parallelism,
)
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.frameworks import read_frameworks
from pipeline.contracts.kv_dtypes import read_kv_dtypes
from pipeline.contracts.quants import read_quants
from pipeline.contracts.support import FormatRule, HardwareRule, matches_glob, read_support
from warehouse.dictionary import violations

SOURCES = Path(__file__).parents[2] / "sources"
GPUS = pl.DataFrame(
    [
        ("gtx-1080", "nvidia", "consumer", "sm_61"), ("v100", "nvidia", "datacenter", "sm_70"),
        ("t4", "nvidia", "datacenter", "sm_75"), ("rtx-3090", "nvidia", "consumer", "sm_86"),
        ("rtx-4090", "nvidia", "consumer", "sm_89"), ("h100", "nvidia", "datacenter", "sm_90"),
        ("rtx-5090", "nvidia", "consumer", "sm_120"), ("mi300x", "amd", "datacenter", "gfx942"),
        ("rx-7900-xtx", "amd", "consumer", "gfx1100"), ("arc-b580", "intel", "consumer", "bmg-g21"),
        ("m3-max", "apple", "apple", "apple-m3-max"), ("910b3", "huawei", "npu", "ascend910b3"),
        ("xeon", "intel", "cpu", "sapphirerapids"), ("tpu", "google", "npu", "tpu-v6e"),
    ],
    schema=["gpu", "vendor", "category", "compute_capability"],
    orient="row",
)  # fmt: skip


@pytest.fixture(scope="module")
def tables() -> dict[str, pl.DataFrame]:
    log, use = FaultLog(SOURCES), CitationUse()
    frames = read_quants(SOURCES, log, use) | read_frameworks(SOURCES, log, use)
    frameworks = frames["frameworks"].get_column("framework").to_list()
    frames["kv_dtypes"] = read_kv_dtypes(SOURCES, log, use, frameworks)
    quants, kv_dtypes = frames["quants"]["quant"].to_list(), frames["kv_dtypes"]["kv_dtype"].to_list()
    rules = read_support(SOURCES, log, use, frameworks, quants, kv_dtypes)
    assert [str(fault) for fault in log] == []
    for name, frame in rules.items():
        assert violations(frame, name, frames) == []
    return frames | rules


@pytest.fixture(scope="module")
def hardware(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    return supported_hardware(tables["frameworks"], GPUS, tables["support_hardware"])


@pytest.fixture(scope="module")
def formats(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    return supported_formats(tables["frameworks"], GPUS, tables["quants"], tables["support_formats"])


@pytest.fixture(scope="module")
def caches(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    return supported_kv_dtypes(tables["frameworks"], GPUS, tables["kv_dtypes"], tables["support_kv_dtypes"])


def answers(frame: pl.DataFrame, **where: object) -> set[str]:
    found = frame.filter(*(pl.col(name) == value for name, value in where.items()))
    return set(found.get_column("supported")) or {"unknown"}


def test_enough_rules_were_kept(tables: dict[str, pl.DataFrame]) -> None:
    counts = {name: tables[f"support_{name}"].height for name in ("hardware", "formats", "architectures")}
    assert counts["hardware"] >= 100
    assert counts["formats"] >= 250
    assert counts["architectures"] == 1969


@pytest.mark.parametrize(
    ("framework", "gpu", "backend", "expected"),
    [
        ("vllm", "v100", "cuda", "partial"), ("vllm", "t4", "cuda", "yes"),
        ("vllm", "gtx-1080", "cuda", "no"),
        ("vllm", "mi300x", "rocm", "yes"), ("vllm", "arc-b580", "xpu", "yes"), ("vllm", "tpu", "tpu", "yes"),
        ("llama.cpp", "gtx-1080", "cuda", "yes"), ("llama.cpp", "rx-7900-xtx", "rocm", "yes"),
        ("llama.cpp", "rx-7900-xtx", "vulkan", "yes"), ("llama.cpp", "rtx-4090", "vulkan", "yes"),
        ("llama.cpp", "m3-max", "metal", "yes"), ("llama.cpp", "arc-b580", "sycl", "yes"),
        ("llama.cpp", "xeon", "cpu", "yes"), ("llama.cpp", "910b3", "cann", "yes"),
        ("koboldcpp", "rtx-4090", "cuda", "yes"), ("lm-studio", "rx-7900-xtx", "vulkan", "yes"),
        ("tensorrt-llm", "v100", "cuda", "no"), ("tensorrt-llm", "h100", "cuda", "yes"),
        ("exllamav3", "rtx-3090", "cuda", "yes"), ("exllamav3", "t4", "cuda", "partial"),
        ("mlx-lm", "m3-max", "metal", "yes"), ("lmdeploy", "v100", "cuda", "yes"),
        ("vllm-ascend", "910b3", "cann", "yes"), ("sglang", "v100", "cuda", "no"),
    ],
)  # fmt: skip
def test_engines_on_hardware(
    hardware: pl.DataFrame, framework: str, gpu: str, backend: str, expected: str
) -> None:
    assert answers(hardware, framework=framework, gpu=gpu, backend=backend) == {expected}


def test_engines_of_one_vendor_run_nowhere_else(hardware: pl.DataFrame) -> None:
    runs = hardware.filter(pl.col("supported").is_in(["yes"]))
    vendors = runs.join(GPUS, on="gpu").group_by("framework").agg(pl.col("vendor").unique())
    by_framework = dict(vendors.iter_rows())
    assert by_framework["tensorrt-llm"] == ["nvidia"]
    assert by_framework["exllamav3"] == ["nvidia"]
    assert by_framework["mlx-lm"] == ["apple"]
    assert by_framework["mindie"] == by_framework["vllm-ascend"] == ["huawei"]


@pytest.mark.parametrize(
    ("framework", "gpu", "quant", "expected"),
    [
        # FP8 arithmetic starts at 8.9; before it the weights alone can be FP8
        ("vllm", "rtx-4090", "fp8/e4m3-per_tensor", "yes"),
        ("vllm", "rtx-3090", "fp8/e4m3-per_tensor", "partial"),
        ("vllm", "rtx-3090", "fp8/w8a16", "yes"), ("tensorrt-llm", "rtx-3090", "fp8/e4m3-per_tensor", "no"),
        ("tensorrt-llm", "h100", "fp8/e4m3-per_tensor", "yes"),
        ("lmdeploy", "rtx-3090", "fp8/e4m3-block128", "unknown"),
        ("vllm", "t4", "awq/int4-g128", "yes"), ("vllm", "v100", "awq/int4-g128", "no"),
        ("vllm", "v100", "native/bf16", "partial"), ("vllm", "t4", "native/bf16", "partial"),
        ("vllm", "v100", "gptq/int4-g128", "partial"), ("lmdeploy", "v100", "awq/int4-g128", "yes"),
        ("vllm", "rtx-5090", "fp4/nvfp4", "yes"), ("tensorrt-llm", "h100", "fp4/nvfp4", "no"),
        ("vllm", "rtx-3090", "fp4/nvfp4", "yes"), ("vllm", "rtx-4090", "exl3/4.0bpw", "no"),
        ("vllm", "rtx-4090", "gguf/q4_k_m", "partial"), ("llama.cpp", "rtx-4090", "awq/int4-g128", "no"),
        ("llama.cpp", "rx-7900-xtx", "gguf/q4_k_m", "yes"), ("llama.cpp", "910b3", "gguf/q4_k_m", "no"),
        ("llama.cpp", "910b3", "gguf/q8_0", "yes"), ("ollama", "m3-max", "gguf/q4_k_m", "yes"),
        ("koboldcpp", "gtx-1080", "gguf/q4_k_m", "yes"), ("lm-studio", "rtx-4090", "mlx/4bit-g64", "no"),
        ("lm-studio", "m3-max", "mlx/4bit-g64", "yes"), ("mlx-lm", "m3-max", "gguf/q4_k_m", "no"),
        ("exllamav3", "rtx-4090", "exl3/4.0bpw", "yes"), ("exllamav3", "rtx-4090", "exl2/4.0bpw", "no"),
        ("ik_llama.cpp", "rtx-4090", "ik/iq4_ks", "yes"), ("llama.cpp", "rtx-4090", "ik/iq4_ks", "no"),
        ("ollama", "rtx-4090", "ik/iq4_ks", "no"), ("vllm", "tpu", "mlx/4bit-g64", "no"),
    ],
)  # fmt: skip
def test_formats_on_hardware(
    formats: pl.DataFrame, framework: str, gpu: str, quant: str, expected: str
) -> None:
    assert answers(formats, framework=framework, gpu=gpu, quant=quant) == {expected}


def test_weight_only_is_said(formats: pl.DataFrame) -> None:
    on_vllm = formats.filter(framework="vllm", backend="cuda", quant="fp8/e4m3-block128")
    arithmetic = dict(on_vllm.select("gpu", "arithmetic").iter_rows())
    assert (arithmetic["rtx-3090"], arithmetic["rtx-4090"], arithmetic["h100"]) == (
        "weight_only", "native", "native",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("framework", "gpu", "kv_dtype", "expected"),
    [
        ("vllm", "rtx-4090", "fp8", "yes"), ("vllm", "rtx-3090", "fp8", "partial"),
        ("vllm", "t4", "fp8", "no"),
        ("vllm", "rtx-4090", "f16", "yes"), ("llama.cpp", "rtx-4090", "q8_0", "yes"),
        ("llama.cpp", "m3-max", "q8_0", "partial"), ("sglang", "h100", "nvfp4", "unknown"),
        ("sglang", "rtx-5090", "nvfp4", "yes"), ("tensorrt-llm", "h100", "int8", "no"),
        ("tensorrt-llm", "h100", "fp8", "yes"), ("mlx-lm", "m3-max", "q8_g64", "yes"),
        ("ollama", "rx-7900-xtx", "q8_0", "yes"), ("koboldcpp", "rtx-4090", "q8_0", "yes"),
        ("vllm-ascend", "910b3", "f16", "yes"), ("lmdeploy", "v100", "int8", "yes"),
    ],
)  # fmt: skip
def test_caches_on_hardware(
    caches: pl.DataFrame, framework: str, gpu: str, kv_dtype: str, expected: str
) -> None:
    assert answers(caches, framework=framework, gpu=gpu, kv_dtype=kv_dtype) == {expected}


def test_every_default_cache_runs_where_its_engine_does(
    tables: dict[str, pl.DataFrame], hardware: pl.DataFrame, caches: pl.DataFrame
) -> None:
    usable = (
        tables["frameworks"].filter(pl.col("role").cast(pl.String) != "measured-only").select("framework")
    )
    runs = hardware.filter(pl.col("supported").is_in(["yes", "partial"])).join(usable, on="framework")
    default = caches.filter(kv_dtype="f16").select("framework", "backend", "gpu", "supported")
    without = runs.join(default, on=["framework", "backend", "gpu"], how="anti")
    assert without.is_empty(), without


def test_splitting_follows_each_engine(tables: dict[str, pl.DataFrame]) -> None:
    models = pl.DataFrame({
        "model": ["m"], "n_layers": [32], "n_heads": [32], "n_kv_heads": [4], "ffn_size": [11008],
        "expert_ffn_size": [None], "attention_kind": ["gqa"],
    }, schema_overrides={"expert_ffn_size": pl.Int32})  # fmt: skip
    rules = tables["support_parallelism"]
    frame = supported_parallelism(models, tables["frameworks"], [1, 2, 3, 8], rules)
    assert answers(frame, framework="vllm", n_gpus=8) == {"yes"}  # four KV heads are replicated
    assert answers(frame, framework="tgi", n_gpus=8) == {"no"}  # and here not
    assert answers(frame, framework="vllm", n_gpus=3) == {"no"}
    assert answers(frame, framework="llama.cpp", n_gpus=3) == {"yes"}  # layers need not divide
    assert answers(frame, framework="mlx-lm", n_gpus=2) == {"no"}
    assert answers(frame, framework="ollama", n_gpus=2) == {"yes"}


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("hardware", "vlm,cuda,nvidia,75,,,yes,r,high,a/b,", "unknown framework; nearest: vllm"),
        ("hardware", "vllm,cuda,nvidi,75,,,yes,r,high,a/b,", "unknown vendor; nearest: nvidia"),
        ("hardware", "vllm,cudda,nvidia,75,,,yes,r,high,a/b,", "nearest: cuda"),
        ("hardware", "vllm,cuda,nvidia,90,75,,yes,r,high,a/b,", "arch_min 90 is above arch_max 75"),
        ("hardware", "vllm,cuda,nvidia,75,,sm_*,yes,r,high,a/b,", "in place of arch_min and arch_max"),
        ("hardware", "vllm,cuda,nvidia,75,,,maybe,r,high,a/b,", "must be one of yes, partial, no, unknown"),
        ("formats", "vllm,,awq/int4g128,nvidia,,,,yes,,r,high,a/b,", "nearest: awq/int4-g128"),
        ("formats", "vllm,,awq/*,nvidia,,,,yes,fast,r,high,a/b,", "arithmetic"),
    ],
)  # fmt: skip
def test_faulty_rules_are_refused(tmp_path: Path, file: str, line: str, message: str) -> None:
    model = {"hardware": HardwareRule, "formats": FormatRule}[file]
    (tmp_path / "support").mkdir()
    text = ",".join(model.model_fields) + "\n" + line + "\n"
    (tmp_path / "support" / f"{file}.csv").write_text(text, encoding="utf-8")
    log = FaultLog(tmp_path)
    frames = read_support(tmp_path, log, CitationUse(), ["vllm"], ["awq/int4-g128"], ["f16"])
    assert frames[f"support_{file}"].is_empty()
    assert any(f"{file}.csv:2:" in str(fault) and message in str(fault) for fault in log), list(map(str, log))


def test_the_same_conditions_twice_are_refused(tmp_path: Path) -> None:
    (tmp_path / "support").mkdir()
    rows = "vllm,cuda,nvidia,75,,,yes,r,high,a/b,\nvllm,cuda,nvidia,75,,,no,s,low,a/c,\n"
    text = ",".join(HardwareRule.model_fields) + "\n" + rows
    (tmp_path / "support" / "hardware.csv").write_text(text, encoding="utf-8")
    log = FaultLog(tmp_path)
    read_support(tmp_path, log, CitationUse(), ["vllm"], [], [])
    assert any("hardware.csv:3:" in str(fault) and "same conditions as line 2" in str(fault) for fault in log)


@pytest.mark.parametrize(
    ("name", "glob", "expected"),
    [
        ("gguf/q4_k_m", "gguf/*", True), ("gguf/q4_k_m", "gguf/q*_k*", True),
        ("gguf/q4_0", "gguf/q*_k*", False),
        ("awq/int4", "awq/int4", True), ("awq/int4-g128", "awq/int4", False), ("ab", "a*b", True),
        ("aba", "ab*ba", False),
    ],
)  # fmt: skip
def test_globs(name: str, glob: str, expected: bool) -> None:
    assert matches_glob(name, glob) is expected
