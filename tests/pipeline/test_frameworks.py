"""Frameworks: inheritance of wrappers, settings that step, and records that must be refused."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.frameworks import read_frameworks
from warehouse.dictionary import violations

SOURCES = Path(__file__).parents[2] / "sources"
ENGINE = """name = "Engine"
role = "engine"
backends = ["cuda"]
parallel_mode = "layer"
serves = false
confidence = "high"
[profile]
ubatch_tokens = 512
[memory]
policy = "fixed"
[runtime]
context_mib = 457
[[step]]
setting = "prefill_tokens"
by = "memory_gib"
at_least = 0
value = 2048
[cite]
"a/b" = ["profile.ubatch_tokens", "runtime.context_mib", "step"]
"""
WRAPPER = """name = "Wrapper"
role = "wrapper"
engine = "engine"
backends = ["cuda"]
parallel_mode = "layer"
serves = false
confidence = "low"
[runtime]
context_mib = 100
[cite]
"a/c" = ["runtime.context_mib"]
"""


def read(root: Path, files: dict[str, str]) -> tuple[dict[str, pl.DataFrame], list[str]]:
    (root / "frameworks").mkdir(parents=True)
    for name, text in files.items():
        (root / "frameworks" / name).write_text(text, encoding="utf-8")
    log = FaultLog(root)
    return read_frameworks(root, log, CitationUse()), [str(fault) for fault in log]


@pytest.fixture(scope="module")
def frames() -> dict[str, pl.DataFrame]:
    log = FaultLog(SOURCES)
    frames = read_frameworks(SOURCES, log, CitationUse())
    assert [str(fault) for fault in log] == []
    for name, frame in frames.items():
        assert violations(frame, name, frames) == []
    return frames


def row(frames: dict[str, pl.DataFrame], framework: str) -> dict[str, object]:
    return frames["frameworks"].row(by_predicate=pl.col("framework") == framework, named=True)


def test_sources_hold_sixteen_engines_and_wrappers(frames: dict[str, pl.DataFrame]) -> None:
    usable = frames["frameworks"].filter(pl.col("role").cast(pl.String) != "measured-only")
    assert usable.height == 16


def test_settings_as_the_engines_state_them(frames: dict[str, pl.DataFrame]) -> None:
    vllm, llama = row(frames, "vllm"), row(frames, "llama.cpp")
    assert (vllm["memory_policy"], vllm["memory_fraction"]) == ("utilization_of_total", 0.92)
    assert (vllm["profile_kv_block_tokens"], vllm["parallel_mode"], vllm["serves"]) == (16, "tensor", True)
    assert (llama["profile_ubatch_tokens"], llama["overhead_mib"], llama["overhead_metal_mib"]) == (
        512,
        457,
        512,
    )
    assert row(frames, "tensorrt-llm")["memory_policy"] == "fraction_of_free"


def test_wrappers_take_what_they_do_not_set_from_their_engine(frames: dict[str, pl.DataFrame]) -> None:
    ollama = row(frames, "ollama")
    assert (ollama["engine"], ollama["profile_slots"]) == ("llama.cpp", 1)  # its own slots
    assert ollama["profile_batch_tokens"] == row(frames, "llama.cpp")["profile_batch_tokens"] == 2048
    assert row(frames, "vllm-ascend")["memory_fraction"] == 0.92


def test_steps_are_inherited_unless_the_wrapper_has_the_setting(frames: dict[str, pl.DataFrame]) -> None:
    steps = frames["framework_steps"].filter(pl.col("setting") == "prefill_tokens")
    vllm = steps.filter(pl.col("framework") == "vllm").select("at_least", "value").rows()
    assert vllm == [(0.0, 2048.0), (70.0, 8192.0), (160.0, 16384.0)]
    assert steps.filter(pl.col("framework") == "vllm-ascend").select("at_least", "value").rows() == vllm


def test_a_small_wrapper_inherits(tmp_path: Path) -> None:
    frames, faults = read(tmp_path, {"engine.toml": ENGINE, "wrapper.toml": WRAPPER})
    assert faults == []
    assert row(frames, "wrapper")["overhead_mib"] == 100
    assert row(frames, "wrapper")["profile_ubatch_tokens"] == 512
    assert frames["framework_steps"].height == 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"engine.toml": ENGINE.replace('"cuda"', '"cuda12"')}, "nearest: cuda"),
        ({"engine.toml": ENGINE.replace("457", "-1")}, "runtime.context_mib = -1"),
        ({"engine.toml": ENGINE.replace('"runtime.context_mib", ', "")}, "runtime.context_mib = 457: number"),
        ({"engine.toml": ENGINE.replace(', "step"', "")}, "steps without a citation"),
        ({"engine.toml": ENGINE.replace('policy = "fixed"', "fraction = 0.9")}, "fraction needs policy"),
        ({"engine.toml": ENGINE.replace('parallel_mode = "layer"\n', "")}, "parallel_mode is missing"),
        ({"engine.toml": ENGINE.replace("ubatch_tokens = 512", "ubatch = 512")}, "ubatch = 512: unknown"),
        ({"wrapper.toml": WRAPPER.replace('engine = "engine"\n', "")}, "a wrapper names its engine"),
        ({"engine.toml": ENGINE, "wrapper.toml": WRAPPER.replace('"engine"\n', '"engin"\n')},
         "nearest: engine"),
        ({"engine.toml": ENGINE, "wrapper.toml": WRAPPER, "third.toml": WRAPPER.replace(
            'engine = "engine"', 'engine = "wrapper"')}, "must be an engine, not a wrapper"),
        ({"two words.toml": ENGINE}, "an id has letters"),
    ],
)  # fmt: skip
def test_faulty_records_are_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    _, faults = read(tmp_path, files)
    assert any(message in fault for fault in faults), faults
