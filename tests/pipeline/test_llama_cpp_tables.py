"""What is read of llama.cpp: words of architectures, coefficients, plans; the repository's are sound, faults
name the line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.contracts.architectures.llama_cpp import (
    LlamaCppTraits,
    llama_cpp_trait_frame,
    read_llama_cpp_traits,
)
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.llama_cpp_compute import LlamaCppComputeRow, read_llama_cpp_compute
from pipeline.contracts.memory_plans import MemoryPlanRow, read_memory_plans

MODEL = "meta-llama/Llama-3.1-8B"
PLAN: dict[str, str] = {
    "model": MODEL, "weights": "Q4_K_M", "quant": "gguf/q4_k_m", "prediction_layers": "left_out",
    "context_tokens": "8192", "ubatch_tokens": "512", "slots": "4", "kv_unified": "true",
    "flash_attention": "on", "kv_dtype": "f16", "outputs": "4", "n_gpus": "1", "device": "gpu0",
    "weights_mib": "4155.992", "context_mib": "1024", "compute_mib": "116.01", "citation": "c/a",
}  # fmt: skip


def written(path: Path, columns: list[str], *rows: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(columns), *(",".join(row.get(name, "") for name in columns) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def plans(
    root: Path, *changes: dict[str, str], more: tuple[dict[str, str], ...] = ()
) -> tuple[pl.DataFrame, list[str]]:
    columns = list(MemoryPlanRow.model_fields)
    written(root / "memory_plans" / "a.csv", columns, *({**PLAN, **change} for change in changes))
    if more:
        written(root / "memory_plans" / "b.csv", columns, *({**PLAN, **change} for change in more))
    log = FaultLog(root)
    found = read_memory_plans(root, log, CitationUse(), {MODEL}, {"gguf/q4_k_m"}, {"f16", "q8_0"})
    return found, [str(fault) for fault in log]


def test_architectures_without_a_table_have_the_defaults() -> None:
    frame = llama_cpp_trait_frame({"gemma3": LlamaCppTraits(uses_window=True)})
    found = {row.pop("model_type"): row for row in frame.to_dicts()}
    assert found["gemma3"]["uses_window"] is True
    assert found["llama"] == {
        "uses_window": False, "caches_latent": True, "keeps_prediction": False, "attention_rows": "heads",
        "rotated_attention": "serial", "extra_rows": 0, "output_rows": 0, "last_rows": 8,
        "score_query_rows": 2, "score_hidden_rows": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gemma3]\nuse_window = true", r"\[gemma3\]: unknown use_window"),
        ('[phi3]\nattention_rows = "nothing"', "attention_rows is one of heads, hidden, none"),
        ('[phi3]\nrotated_attention = "rows"', "rotated_attention is one of serial, kept, row"),
    ],
)
def test_unknown_words_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_llama_cpp_traits(text)


def test_plans_of_all_files_are_read_together(tmp_path: Path) -> None:
    found, faults = plans(tmp_path, {}, {"device": "host", "context_mib": "0"}, more=({"slots": "1"},))
    assert faults == []
    assert found.get_column("device").to_list() == ["gpu0", "gpu0", "host"]
    assert found.get_column("kv_unified").to_list() == [True] * 3


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"model": "meta-llama/Llama-3.1-8"}, "model = 'meta-llama/Llama-3.1-8'"),
        ({"quant": "gguf/q4"}, "quant = 'gguf/q4'"),
        ({"kv_dtype": "q8"}, "kv_dtype = 'q8'"),
        ({"device": "gpu1"}, "device = 'gpu1': is none of host, gpu0"),
        ({"device": "host"}, "context_mib = 1024.0: the cache lies on the GPUs"),
        ({"compute_mib": "-1"}, "compute_mib = '-1': must be at least 0"),
        ({"flash_attention": "yes"}, "flash_attention = 'yes'"),
    ],
)
def test_a_fault_in_a_plan_names_its_line(tmp_path: Path, change: dict[str, str], fault: str) -> None:
    found, faults = plans(tmp_path, {"context_tokens": "4096"}, change)
    assert found.height == 1
    assert len(faults) == 1
    assert faults[0].startswith(f"memory_plans/a.csv:3: {fault}")


def test_a_setting_is_given_once_over_all_files(tmp_path: Path) -> None:
    found, faults = plans(tmp_path, {}, more=({"compute_mib": "117"},))
    assert found.height == 1
    assert faults == [
        f"memory_plans/b.csv:2: model = '{MODEL}': has this setting already at memory_plans/a.csv:2"
    ]


def coefficients(root: Path, *rows: dict[str, Any]) -> tuple[pl.DataFrame, list[str]]:
    path = root / "coefficients" / "llama_cpp_compute.csv"
    given = [{"model": MODEL, "citation": "c/a", **row} for row in rows]
    written(path, list(LlamaCppComputeRow.model_fields), *given)
    log = FaultLog(root)
    return read_llama_cpp_compute(root, log, CitationUse(), {MODEL}), [str(fault) for fault in log]


def test_coefficients_leave_out_what_the_closed_form_gives(tmp_path: Path) -> None:
    found, faults = coefficients(tmp_path, {"layer_floats": "100", "first_device_floats": "-5"})
    assert faults == []
    assert found.row(0, named=True)["first_device_floats"] == -5.0
    assert found.item(0, "score_floats") is None


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({}, f"model = '{MODEL}': has no coefficient"),
        ({"model": "meta-llama/Llama", "layer_floats": "1"}, "model = 'meta-llama/Llama'"),
        ({"slot_floats": "1"}, "slot_floats = 1.0: needs layer_floats"),
        ({"output_masks": "1"}, "output_masks = 1.0: needs output_floats"),
        ({"layer_floats": "-1"}, "layer_floats = -1.0: must be at least 0"),
    ],
)
def test_a_fault_in_a_coefficient_names_its_line(tmp_path: Path, row: dict[str, Any], fault: str) -> None:
    found, faults = coefficients(tmp_path, row)
    assert found.is_empty()
    assert len(faults) == 1
    assert faults[0].startswith(f"coefficients/llama_cpp_compute.csv:2: {fault}")


def test_a_model_has_one_row(tmp_path: Path) -> None:
    _, faults = coefficients(tmp_path, {"layer_floats": "1"}, {"layer_floats": "2"})
    assert faults == [f"coefficients/llama_cpp_compute.csv:3: model = '{MODEL}': is given twice"]


def test_a_missing_file_is_a_fault(tmp_path: Path) -> None:
    log = FaultLog(tmp_path)
    assert read_llama_cpp_compute(tmp_path, log, CitationUse(), {MODEL}).is_empty()
    assert [str(fault) for fault in log] == ["coefficients/llama_cpp_compute.csv: path: file is missing"]
