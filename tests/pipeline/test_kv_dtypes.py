"""Cache formats: bytes as the engines lay them out, and rows that must be refused."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.frameworks import read_frameworks
from pipeline.contracts.kv_dtypes import KvDtypeRow, read_kv_dtypes
from warehouse.dictionary import violations

SOURCES = Path(__file__).parents[2] / "sources"
HEADER = ",".join(KvDtypeRow.model_fields) + "\n"


def read(root: Path, *lines: str) -> tuple[pl.DataFrame, list[str]]:
    (root / "kv_dtypes").mkdir(parents=True)
    (root / "kv_dtypes" / "engines.csv").write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    log = FaultLog(root)
    return read_kv_dtypes(root, log, CitationUse(), ["vllm"]), [str(fault) for fault in log]


@pytest.fixture(scope="module")
def kv_dtypes() -> pl.DataFrame:
    log, use = FaultLog(SOURCES), CitationUse()
    frameworks = read_frameworks(SOURCES, log, use)["frameworks"]
    frame = read_kv_dtypes(SOURCES, log, use, frameworks.get_column("framework").to_list())
    assert [str(fault) for fault in log] == []
    assert violations(frame, "kv_dtypes", {"frameworks": frameworks}) == []
    usable = frameworks.filter(pl.col("role").cast(pl.String) != "measured-only").get_column("framework")
    assert set(usable) == set(frame.filter("is_default").get_column("framework")) & set(usable)
    return frame


def bytes_of(kv_dtypes: pl.DataFrame, framework: str, kv_dtype: str, head_dim: int) -> float:
    """Bytes of K and V per token, layer and KV head, by the formula of the dictionary."""
    found = kv_dtypes.row(
        by_predicate=(pl.col("framework") == framework) & (pl.col("kv_dtype") == kv_dtype), named=True
    )
    return sum(
        head_dim * found[f"{side}_bytes_per_element"] + (found[f"{side}_bytes_per_head"] or 0)
        for side in "kv"
    )


@pytest.mark.parametrize(
    ("framework", "kv_dtype", "expected"),
    [
        ("llama.cpp", "f16", 512), ("llama.cpp", "q8_0", 2 * 136), ("llama.cpp", "q4_0", 2 * 72),
        ("vllm", "fp8", 256), ("vllm", "int8_per_token_head", 2 * 132),
        ("vllm", "turboquant_k3v4_nc", 50 + 68),
        ("vllm", "turboquant_k8v4", 128 + 68), ("vllm", "turboquant_3bit_nc", 50 + 52),
        ("lmdeploy", "int8", 2 * 132), ("lmdeploy", "int4", 2 * 68), ("lmdeploy", "turboquant_k4v2", 68 + 34),
        ("mlx-lm", "q8_g64", 2 * 136), ("mlx-lm", "q4_g64", 2 * 72), ("exllamav3", "q4", 2 * 72),
    ],
)  # fmt: skip
def test_bytes_of_a_head_of_128(
    kv_dtypes: pl.DataFrame, framework: str, kv_dtype: str, expected: float
) -> None:
    assert bytes_of(kv_dtypes, framework, kv_dtype, 128) == pytest.approx(expected)


def test_flag_that_does_not_exist_is_gone(kv_dtypes: pl.DataFrame) -> None:
    sglang = kv_dtypes.filter(pl.col("framework") == "sglang")
    assert set(sglang["kv_dtype"]) == {"f16", "fp8", "fp8_e5m2", "mxfp8", "nvfp4", "fp4_mx_block16"}
    assert not sglang.get_column("flag").drop_nulls().str.contains("e2m1").any()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["vlm,f16,2,2,,,,,,,,true,,high,,a/b,"], ":2: framework = 'vlm': unknown framework; nearest: vllm"),
        (["vllm,f16,2,,,,,,,,,true,,high,,a/b,"], "are given together"),
        (["vllm,f16,2,2,,,656,,,,,true,,high,,a/b,"], "stands in place of bytes per element"),
        (["vllm,f16,,,,,,,,,,true,,high,,a/b,"], "the default format needs its bytes"),
        (["vllm,f16,2,2,,,,,,,,true,,high,,a/b,"] * 2, "is given twice for vllm"),
        (
            ["vllm,f16,2,2,,,,,,,,true,,high,,a/b,", "vllm,fp8,1,1,,,,,,,,true,,high,,a/b,"],
            "has another default",
        ),
        (["vllm,f16,0,0,,,,,,,,true,,high,,a/b,"], "k_bytes_per_element"),
        (["vllm,f16,2,2,,,,,,,,true,,high,,,"], "citation: required field is missing"),
    ],
)
def test_faulty_rows_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    _, faults = read(tmp_path, *lines)
    assert any(message in fault for fault in faults), faults
