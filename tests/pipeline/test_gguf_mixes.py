"""The GGUF mix rules: applied to Llama-3.1-8B they give the density that each format states for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.gguf_mixes import MixRule, read_gguf_mixes
from pipeline.contracts.quants import REFERENCE_PARAMS, read_quants
from warehouse.dictionary import violations

SOURCES = Path(__file__).parents[2] / "sources"
LAYERS = 32
EMBEDDING = 128_256 * 4_096
NORMS = 65 * 4_096  # kept in F32
PER_LAYER = {
    "attn_q": 4_096 * 4_096, "attn_k": 4_096 * 1_024, "attn_v": 4_096 * 1_024, "attn_output": 4_096 * 4_096,
    "ffn_gate": 4_096 * 14_336, "ffn_up": 4_096 * 14_336, "ffn_down": 14_336 * 4_096,
}  # fmt: skip


@pytest.fixture(scope="module")
def frames() -> dict[str, pl.DataFrame]:
    log = FaultLog(SOURCES)
    frames = read_quants(SOURCES, log, CitationUse())
    assert [str(fault) for fault in log] == []
    for name in ("gguf_mix_rules", "gguf_fallbacks"):
        assert violations(frames[name], name, frames) == []
    return frames


def in_layers(layers: str, layer: int) -> bool:
    eighth = LAYERS // 8
    middle = eighth <= layer < 7 * eighth
    return {
        "all": True, "first_2": layer < 2, "first_4": layer < 4, "first_eighth": layer < eighth,
        "first_eighth_counted": layer < eighth, "first_sixteenth": layer < LAYERS // 16, "middle": middle,
        "more": not middle or (layer - eighth) % 3 == 2,
    }[layers]  # fmt: skip


def type_of(rules: list[dict[str, Any]], tensor: str, layer: int, imatrix: bool) -> str:
    """The first rule that holds for Llama-3.1-8B: four heads per KV head, no experts, not a 70B."""
    for rule in rules:
        if (
            rule["tensor"] in (tensor, "any")
            and in_layers(rule["layers"], layer)
            and (rule["gqa_min"] or 0) <= 4
            and rule["n_experts"] is None
            and rule["n_experts_min"] is None
            and not rule["is_70b"]
            and not rule["is_falcon"]
            and not rule["is_before_2026"]
            and rule["row_not_multiple_of"] is None  # all its rows are whole blocks
            and rule["with_imatrix"] in (None, imatrix)
        ):
            return str(rule["tensor_type"])
    raise AssertionError(f"no rule for {tensor}")


def density(frames: dict[str, pl.DataFrame], quant: str, imatrix: bool) -> float:
    rules = frames["gguf_mix_rules"].filter(pl.col("quant") == quant).sort("order").to_dicts()
    bpw = dict(frames["quants"].select("quant", "exact_bpw").iter_rows())
    bits = 32.0 * NORMS + sum(
        bpw[type_of(rules, name, 0, imatrix)] * EMBEDDING for name in ("output", "token_embd")
    )
    bits += sum(
        bpw[type_of(rules, name, layer, imatrix)] * params
        for layer in range(LAYERS)
        for name, params in PER_LAYER.items()
    )
    return bits / REFERENCE_PARAMS


def test_rules_give_every_stated_density_of_the_reference_model(frames: dict[str, pl.DataFrame]) -> None:
    stated = frames["quants"].filter(pl.col("density_basis").cast(pl.String) == "reference").join(
        frames["gguf_mix_rules"].select("quant").unique(), on="quant"
    )  # fmt: skip
    assert stated.height == 39
    for quant, with_matrix, without in stated.select(
        "quant", "reference_bpw", "static_reference_bpw"
    ).iter_rows():
        assert density(frames, quant, True) == pytest.approx(with_matrix, abs=6e-5), quant
        assert density(frames, quant, False) == pytest.approx(without, abs=6e-5), quant


def test_embedding_and_head_agree_with_the_formats(frames: dict[str, pl.DataFrame]) -> None:
    bpw = dict(frames["quants"].select("quant", "exact_bpw").iter_rows())
    formats = {row["quant"]: row for row in frames["quants"].to_dicts()}
    for row in (
        frames["gguf_mix_rules"]
        .filter(
            pl.col("tensor").cast(pl.String).is_in(["output", "token_embd"]),
            pl.col("is_falcon").is_null() & pl.col("row_not_multiple_of").is_null(),
        )
        .to_dicts()
    ):
        column = "head_bpw" if row["tensor"] == "output" else "embedding_bpw"
        assert formats[row["quant"]][column] == bpw[row["tensor_type"]], row


def test_fallbacks_end_in_a_type_without_blocks(frames: dict[str, pl.DataFrame]) -> None:
    instead = dict(frames["gguf_fallbacks"].select("tensor_type", "fallback_type").iter_rows())
    for start in instead:
        chain = [start]
        while chain[-1] in instead:
            chain.append(instead[chain[-1]])
            assert len(chain) < 5, chain
        # ik_llama.cpp replaces no type of blocks of 32, and its Q6_0 is in no file of llama.cpp
        assert chain[-1] in ("ggml/f16", "ik/q6_0")


def test_row_multiples_are_the_block_sizes(frames: dict[str, pl.DataFrame]) -> None:
    blocks = dict(frames["quants"].select("quant", "block_size").iter_rows())
    for tensor_type, multiple in frames["gguf_fallbacks"].select("tensor_type", "row_multiple").iter_rows():
        assert blocks[tensor_type] == multiple


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["gguf/q4,1,any,all,,,,,,,,,,ggml/q4,a/b"], "unknown quant; nearest: gguf/q4_0"),
        (["gguf/q4_0,1,any,first_8,,,,,,,,,,ggml/q4_0,a/b"], "layers"),
        (["gguf/q4_0,1,output,all,,,,,,,,,,ggml/q4_0,a/b"], "needs a last rule for any tensor"),
        (["gguf/q4_0,1,any,all,4,,,,,,,,,ggml/q4_0,a/b"], "needs a last rule for any tensor"),
        (["gguf/q4_0,1,any,all,,,,,,,,,,ggml/q4_0,a/b"] * 2, "is given twice"),
    ],
)
def test_faulty_rules_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    (tmp_path / "quants").mkdir()
    text = "\n".join([",".join(MixRule.model_fields), *lines]) + "\n"
    (tmp_path / "quants" / "gguf_mix_rules.csv").write_text(text, encoding="utf-8")
    log = FaultLog(tmp_path)
    read_gguf_mixes(tmp_path, log, CitationUse(), ["gguf/q4_0", "ggml/q4_0"])
    assert any(message in str(fault) for fault in log), list(map(str, log))
