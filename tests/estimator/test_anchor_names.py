"""Names become ids by reading, id, alias of the set, alias of any set; doubt stays unresolved."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from estimator.anchor_names import (
    alias_report,
    corrected,
    memory_log_names,
    resolved,
    spelling,
    unresolved_names,
)

TEXT = pl.String
GPUS = pl.DataFrame(
    [
        ("rtx-4090-24gb", "nvidia", "consumer", 24.0, False),
        ("apple-m3-max-40c-64gb", "apple", "apple", 64.0, True),
        ("apple-m3-max-40c-128gb", "apple", "apple", 128.0, True),
        ("rx-7900-xtx-24gb", "amd", "consumer", 24.0, False),
    ],
    schema=["gpu", "vendor", "category", "memory_gib", "unified_memory"],
    orient="row",
)
MODELS = pl.DataFrame({"model": ["Qwen/Qwen3-8B", "Qwen/Qwen3-4B"]})
QUANTS = pl.DataFrame({"quant": ["gguf/q4_k_m", "gguf/q8_0", "fp8/e4m3-per_tensor", "native/f16"]})
FRAMEWORKS = pl.DataFrame({"framework": ["llama.cpp", "ollama", "tensorrt-llm"]})
ALIAS_COLUMNS = [
    "kind",
    "name",
    "used_in",
    "context",
    "framework_name",
    "id",
    "value_id",
    "relation",
    "memory_stated",
    "trait",
    "confidence",
    "reason",
]
READING_COLUMNS = [
    "set",
    "publisher",
    "kind",
    "name",
    "source",
    "framework_name",
    "framework_version",
    "model_name",
    "quant_name",
    "gpu_name",
    "id",
    "confidence",
    "reason",
    "citation",
]


def aliases(*rows: dict[str, Any]) -> pl.DataFrame:
    schema = {name: pl.Boolean if name == "memory_stated" else TEXT for name in ALIAS_COLUMNS}
    return pl.DataFrame(
        [dict.fromkeys(ALIAS_COLUMNS) | {"used_in": "any", "confidence": "high"} | row for row in rows],
        schema=schema,
        orient="row",
    )


def readings(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(
        [dict.fromkeys(READING_COLUMNS) | {"set": "decode", "confidence": "medium"} | row for row in rows],
        schema=dict.fromkeys(READING_COLUMNS, TEXT),
        orient="row",
    )


ALIASES = aliases(
    {"kind": "gpu", "name": "RTX 4090", "id": "rtx-4090-24gb", "memory_stated": True},
    {"kind": "gpu", "name": "M3 Max", "id": "apple-m3-max-40c-64gb", "memory_stated": False},
    {"kind": "gpu", "name": "7900 XTX", "id": "rx-7900-xtx-24gb", "memory_stated": True},
    {
        "kind": "model",
        "name": "qwen3 8B",
        "id": "Qwen/Qwen3-8B",
        "relation": "quantised-variant",
        "confidence": "medium",
    },
    {"kind": "model", "name": "qwen3", "id": "Qwen/Qwen3-8B", "used_in": "decode", "relation": "same"},
    {"kind": "model", "name": "qwen3", "id": "Qwen/Qwen3-4B", "used_in": "serving", "relation": "same"},
    {"kind": "model", "name": "unclear", "id": "Qwen/Qwen3-8B", "relation": "same"},
    {"kind": "model", "name": "unclear", "id": "Qwen/Qwen3-4B", "relation": "same"},
    {"kind": "quant", "name": "Q4", "framework_name": "llama.cpp", "id": "gguf/q4_k_m"},
    {"kind": "quant", "name": "FP8", "framework_name": "trt", "id": "fp8/e4m3-per_tensor"},
    {"kind": "quant", "name": "FP16", "framework_name": "trt", "id": "native/f16"},
    {"kind": "framework", "name": "trt", "id": "tensorrt-llm"},
    {"kind": "kv_dtype", "name": "q8_0/q8_0", "framework_name": "llama.cpp", "id": "q8_0"},
    {"kind": "kv_dtype", "name": "tq4bit", "framework_name": "llama.cpp", "trait": "exotic"},
)
BASE: dict[str, Any] = {
    "anchor_id": "al-1",
    "publisher": "someone",
    "citation": "measured-x/a",
    "gpu_name": "RTX 4090",
    "host_note": None,
    "framework_name": "llama.cpp",
    "framework_version": None,
    "backend_name": "cuda",
    "model_name": "qwen3 8B",
    "quant_name": "Q4",
    "kv_cache_name": None,
    "n_gpus": 1,
}


def resolve(change: dict[str, Any], *reads: dict[str, Any], used_in: str = "decode") -> dict[str, Any]:
    schema = {name: pl.Int16 if name == "n_gpus" else TEXT for name in BASE}
    frame = pl.DataFrame([BASE | change], schema=schema)
    found = resolved(frame, used_in, ALIASES, readings(*reads), GPUS, MODELS, QUANTS, FRAMEWORKS)
    assert found.height == 1
    return found.row(0, named=True)


def test_names_are_resolved_and_the_lowest_confidence_is_kept() -> None:
    row = resolve({})
    assert (row["gpu"], row["model"], row["quant"], row["framework"], row["backend"]) == (
        "rtx-4090-24gb",
        "Qwen/Qwen3-8B",
        "gguf/q4_k_m",
        "llama.cpp",
        "cuda",
    )
    assert (row["model_relation"], row["name_confidence"], row["backend_basis"]) == (
        "quantised-variant",
        "medium",
        "stated",
    )


def test_an_id_spelled_out_needs_no_alias() -> None:
    row = resolve({"model_name": "Qwen/Qwen3-4B"})
    assert (row["model"], row["model_relation"]) == ("Qwen/Qwen3-4B", "same")


def test_the_alias_of_the_set_comes_first_and_two_ids_are_no_answer() -> None:
    assert resolve({"model_name": "qwen3"})["model"] == "Qwen/Qwen3-8B"
    assert resolve({"model_name": "qwen3"}, used_in="serving")["model"] == "Qwen/Qwen3-4B"
    assert resolve({"model_name": "unclear"})["model"] is None


def test_a_label_belongs_to_its_framework() -> None:
    assert resolve({"quant_name": "FP8"})["quant"] is None
    assert resolve({"quant_name": "FP8", "framework_name": "trt"})["quant"] == "fp8/e4m3-per_tensor"


def test_the_reading_that_names_more_wins_and_other_publishers_are_untouched() -> None:
    general = {"publisher": "someone", "kind": "quant", "framework_name": "llama.cpp", "id": "gguf/q4_k_m"}
    special = general | {"model_name": "qwen3 8B", "id": "gguf/q8_0"}
    assert resolve({"quant_name": None}, general)["quant"] == "gguf/q4_k_m"
    assert resolve({"quant_name": None}, general, special)["quant"] == "gguf/q8_0"
    assert resolve({"quant_name": None, "publisher": "other"}, general, special)["quant"] is None
    assert resolve({"quant_name": None, "model_name": "qwen3"}, general, special)["quant"] == "gguf/q4_k_m"


def test_memory_is_taken_as_stated_else_the_largest() -> None:
    stated = resolve({"gpu_name": "M3 Max", "host_note": "macOS 15; M3 Max 64 GB"})
    assert (stated["gpu"], stated["memory_stated"]) == ("apple-m3-max-40c-64gb", True)
    silent = resolve({"gpu_name": "M3 Max"})
    assert (silent["gpu"], silent["memory_stated"]) == ("apple-m3-max-40c-128gb", False)
    field = resolve({"gpu_name": "M3 Max", "host_note": "cpu=Apple; ram=64.0; os=macos"})
    assert field["gpu"] == "apple-m3-max-40c-64gb"
    other = resolve({"gpu_name": "M3 Max", "host_note": "M3 Max 36 GB"})
    assert other["memory_stated"] is False
    card = resolve({"host_note": "host with 128 GB"})
    assert (card["gpu"], card["memory_stated"]) == ("rtx-4090-24gb", True)


def test_an_unstated_backend_is_the_makers_own() -> None:
    row = resolve({"gpu_name": "7900 XTX", "backend_name": None})
    assert (row["backend"], row["backend_basis"]) == ("rocm", "native")
    assert resolve({"backend_name": "cuda+cpu"})["backend"] == "cuda"


def test_kv_cache_labels_and_defaults() -> None:
    assert [resolve({"kv_cache_name": name})["kv_dtype"] for name in (None, "q8_0/q8_0", "tq4bit", "?")] == [
        "f16",
        "q8_0",
        None,
        None,
    ]
    assert resolve({"kv_cache_name": "tq4bit"})["kv_trait"] == "exotic"
    fp8 = {"framework_name": "trt", "quant_name": "FP8"}
    assert (resolve(fp8)["kv_dtype"], resolve(fp8)["kv_basis"]) == (None, "unknown")
    assert resolve(fp8 | {"quant_name": "FP16"})["kv_basis"] == "engine-default"
    inherited = {
        "publisher": "someone",
        "kind": "kv_dtype",
        "framework_name": "trt",
        "quant_name": "FP8",
        "id": "fp8",
    }
    assert (resolve(fp8, inherited)["kv_dtype"], resolve(fp8, inherited)["kv_basis"]) == ("fp8", "inherited")


def test_unresolved_names_are_counted() -> None:
    frame = pl.DataFrame(
        {
            "gpu": [None, None, "a"],
            "gpu_name": ["x", "x", "y"],
            "model": [None, "m", "m"],
            "model_name": [None, "n", "n"],
            "quant": ["q"] * 3,
            "quant_name": ["q"] * 3,
            "framework": ["f"] * 3,
            "framework_name": ["f"] * 3,
        }
    )
    assert unresolved_names(frame, frame).rows() == [("gpu", "x", 4), ("model", "(not stated)", 2)]


def test_corrections_replace_values_and_are_listed() -> None:
    frame = pl.DataFrame({"anchor_id": ["a", "b"], "model_name": [None, "m"], "n_gpus": [1, 2]})
    fixes = pl.DataFrame(
        {"anchor_id": ["a", "a"], "field": ["n_gpus", "model_name"], "new_value": ["4", "Qwen3"]}
    )
    fixed = corrected(frame, fixes)
    assert fixed.select("model_name", "n_gpus", "corrected_fields").rows() == [
        ("Qwen3", 4, "model_name;n_gpus"),
        ("m", 2, None),
    ]
    assert fixed.schema["n_gpus"] == frame.schema["n_gpus"]


def test_the_alias_report_has_one_row_per_name_and_shows_doubt() -> None:
    report = alias_report(ALIASES)
    unclear = report.filter(pl.col("name") == "unclear").row(0, named=True)
    assert (unclear["id"], unclear["n_ids"]) == (None, 2)
    assert not report.select("kind", "name", "used_in", "framework_name").is_duplicated().any()


@pytest.mark.parametrize(
    ("name", "as_spelled"),
    [
        ("Qwen/Qwen3-30B-A3B", "qwen330ba3b"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL-00001-of-00002.gguf", "qwen330ba3b"),
        ("Qwen3 30B A3B", "qwen330ba3b"),
        ("DeepSeek-R1-0528-IQ4_KS_R4-00001-of-00009.gguf", "deepseekr10528"),
        ("DeepSeek R1 0528 Bf16", "deepseekr10528"),
        ("Qwen3-235B-A22B-FP8", "qwen3235ba22b"),
        ("gpt-oss-20b-mxfp4.gguf", "gptoss20b"),
        ("Qwen3.5-27B", "qwen3527b"),
        ("Qwen3-235B-A22B-128K-Q6_K-00001-of-00004.gguf", "qwen3235ba22b"),
        ("unsloth_DeepSeek R1 BF16", "deepseekr1"),
        ("google_gemma-3-27b-it-qat-Q4_K_M.gguf", "gemma327bit"),
    ],
)
def test_spelling_leaves_out_publisher_part_and_format(name: str, as_spelled: str) -> None:
    assert pl.DataFrame({"name": [name]}).select(spelling(pl.col("name"))).item() == as_spelled


def test_names_of_memory_logs_by_file_then_alias_then_spelling() -> None:
    """The file's alias, the name's alias, a file or name spelled like an id; known to be none stays none."""
    ids = ["meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-13b-chat-hf", "Qwen/Qwen3-32B", "Qwen/Qwen3-8B"]
    columns = ["kind", "name", "used_in", "framework_name", "id", "confidence", "relation", "memory_stated"]
    aliases = pl.DataFrame(
        [
            ("model", "LLaMA v2", "memory", None, ids[0], "low", "same", None),
            ("model", "13b-chat.gguf", "memory", None, ids[1], "high", "same", None),
            ("model", "Qwen3 8B", "memory", None, None, "high", "none", None),
        ],
        schema=dict.fromkeys(columns, pl.String) | {"memory_stated": pl.Boolean},
        orient="row",
    )
    logs = pl.DataFrame(
        [
            ("a", "LLaMA v2", "13b-chat.gguf"), ("b", "LLaMA v2", None), ("c", "Qwen3 32B", None),
            ("d", "Models", "Qwen3-32B-UD-Q5_K_XL.gguf"), ("e", "Qwen3 8B", None), ("f", None, None),
        ],
        schema=["log_id", "model_name", "file_name"],
        orient="row",
    ).with_columns(
        pl.lit(None, dtype=pl.String).alias(name) for name in ("gpu_name", "quant_name", "engine_name")
    )  # fmt: skip
    none = pl.Series("", [], dtype=pl.String)
    found = memory_log_names(
        logs, aliases, none.to_frame("gpu"), pl.DataFrame({"model": ids}), none.to_frame("quant"),
        none.to_frame("framework"),
    )  # fmt: skip
    assert found.get_column("model").to_list() == [ids[1], ids[0], ids[2], ids[2], None, None]
    assert found.get_column("model_relation").to_list() == ["same"] * 4 + ["none", None]
    assert found.get_column("log_id").to_list() == list("abcdef")
