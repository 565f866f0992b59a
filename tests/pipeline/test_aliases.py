"""Alias tables: an unknown id is a fault with the nearest one; the place of use is read from the context."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipeline.contracts.aliases import nearest_ids, read_aliases, read_readings
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog

IDS = {"gpu": ["rtx-4090-24gb", "rtx-3090-24gb"], "quant": ["gguf/q4_k_m"], "kv_dtype": ["llama.cpp f16"]}


def write(tmp_path: Path, file: str, *lines: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_an_alias_to_an_unknown_id_is_a_fault_with_the_nearest(tmp_path: Path) -> None:
    write(
        tmp_path,
        "aliases/gpus.csv",
        "alias,context,gpu,confidence,reason,memory_stated",
        "RTX 4090,anchors_single_stream.csv:gpu,rtx-4090-24gb,high,,true",
        "RTX 4090 D,anchors_serving.csv:gpu,rtx-4090-48gb,high,,true",
        "Pi 5,anchors_single_stream.csv:gpu,,high,a small board,",
    )
    log = FaultLog(tmp_path)
    aliases = read_aliases(tmp_path, log, IDS)
    assert [str(fault) for fault in log] == [
        "aliases/gpus.csv:3: gpu = 'rtx-4090-48gb': unknown gpu; nearest: rtx-4090-24gb"
    ]
    assert aliases.select("name", "used_in", "id", "memory_stated").rows() == [
        ("RTX 4090", "decode", "rtx-4090-24gb", True),
        ("Pi 5", "decode", None, None),
    ]


def test_kv_labels_are_checked_with_their_framework(tmp_path: Path) -> None:
    write(
        tmp_path,
        "aliases/kv_dtypes.csv",
        "label,framework,kv_dtype,value_kv_dtype,trait,confidence,reason",
        "f16/f16,llama.cpp,f16,,,high,",
        "q8_0,llama.cpp,q8,,,high,",
        "tq4bit,mlx-lm,,,exotic,medium,",
    )
    log = FaultLog(tmp_path)
    aliases = read_aliases(tmp_path, log, IDS)
    assert [str(fault) for fault in log] == [
        "aliases/kv_dtypes.csv:3: kv_dtype = 'llama.cpp q8': unknown kv_dtype; nearest: llama.cpp f16"
    ]
    assert aliases.get_column("trait").to_list() == [None, "exotic"]


def test_a_reading_must_point_to_a_known_id(tmp_path: Path) -> None:
    write(
        tmp_path,
        "anchors/readings.csv",
        "set,publisher,kind,name,source,framework_name,framework_version,model_name,quant_name,gpu_name,id,"
        "confidence,reason,citation",
        "decode,someone,quant,,,ollama,,,,,gguf/q4_k,high,default tag,measured-x/a",
    )
    log, use = FaultLog(tmp_path), CitationUse()
    assert read_readings(tmp_path, log, use, IDS).is_empty()
    assert [str(fault) for fault in log] == [
        "anchors/readings.csv:2: id = 'gguf/q4_k': unknown quant; nearest: gguf/q4_k_m"
    ]
    assert set(use.used) == {"measured-x/a"}


def test_the_nearest_id_is_of_the_same_kind_and_may_be_missing() -> None:
    names = pl.DataFrame({"kind": ["gpu", "quant", "gpu"], "name": ["RTX 4090 24GB", "Q4_K_S", "xyzzy"]})
    assert nearest_ids(names, IDS).get_column("nearest").to_list() == ["rtx-4090-24gb", "gguf/q4_k_m", None]
