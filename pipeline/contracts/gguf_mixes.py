"""Reads the mix rules of `sources/quants/`: which type a tensor gets in a GGUF file of a given file type.

Densities of whole files are stored with the formats themselves (`quants.py`); applying these rules to the
tensors of a model is the estimator's.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import polars as pl

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_rows
from pipeline.contracts.strict import PositiveInt, PositiveShort, StrictRow, Text
from warehouse.dictionary import polars_schema

RULES_FILE = "quants/gguf_mix_rules.csv"
FALLBACKS_FILE = "quants/gguf_fallbacks.csv"


class MixRule(StrictRow):
    """A row of `gguf_mix_rules.csv`: the conditions that are given must all hold."""

    quant: Text
    order: PositiveShort
    tensor: Literal[
        "output", "token_embd", "attn_v", "attn_k", "attn_q", "attn_output", "ffn_down", "ffn_gate", "ffn_up",
        "attn_qkv", "tied_output", "shared_expert", "named_attn_k", "named_attn_q", "expert", "any",
    ]  # fmt: skip
    layers: Literal[
        "all", "first", "first_2", "first_4", "first_eighth", "first_eighth_counted", "first_sixteenth",
        "middle", "more",
    ]  # fmt: skip
    gqa_min: PositiveShort | None = None
    n_experts: PositiveShort | None = None
    n_experts_min: PositiveShort | None = None
    with_imatrix: bool | None = None
    is_70b: bool | None = None
    is_large_vocab_8b: bool | None = None
    is_falcon: bool | None = None
    is_before_2026: bool | None = None
    row_not_multiple_of: PositiveInt | None = None
    tensor_type: Text
    citation: Text


class Fallback(StrictRow):
    """A row of `gguf_fallbacks.csv`."""

    tensor_type: Text
    row_multiple: PositiveInt
    fallback_type: Text
    citation: Text


def read_gguf_mixes(
    root: Path, log: FaultLog, use: CitationUse, quants: Collection[str]
) -> dict[str, pl.DataFrame]:
    """The tables `gguf_mix_rules` and `gguf_fallbacks`; faults go to `log`, citations to `use`.

    `quants` are the known format ids. Every file type ends in a rule without conditions for any tensor.
    """
    rules = _read(root / RULES_FILE, MixRule, ("quant", "tensor_type"), ("quant", "order"), quants, log, use)
    fallbacks = _read(
        root / FALLBACKS_FILE, Fallback, ("tensor_type", "fallback_type"), ("tensor_type",), quants, log, use
    )
    last = {str(rule["quant"]): rule for rule in sorted(rules, key=lambda rule: rule["order"])}
    for quant, rule in last.items():
        if rule["tensor"] != "any" or rule["layers"] != "all" or _has_condition(rule):
            log.add(root / RULES_FILE, "quant", quant, "needs a last rule for any tensor without a condition")
    return {
        "gguf_mix_rules": _frame("gguf_mix_rules", rules),
        "gguf_fallbacks": _frame("gguf_fallbacks", fallbacks),
    }


def _has_condition(rule: dict[str, Any]) -> bool:
    conditions = ("gqa_min", "n_experts", "n_experts_min", "with_imatrix", "is_70b",
                  "is_large_vocab_8b", "is_falcon", "is_before_2026", "row_not_multiple_of")  # fmt: skip
    return any(rule[name] is not None for name in conditions)


def _read(
    path: Path,
    model: type[StrictRow],
    names: tuple[str, ...],
    key: tuple[str, ...],
    quants: Collection[str],
    log: FaultLog,
    use: CitationUse,
) -> list[dict[str, Any]]:
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    if not path.is_file():
        return []
    for line, record in read_rows(path, model, log):
        row = record.model_dump()
        unknown = [name for name in names if row[name] not in quants]
        for name in unknown:
            log.add(path, name, row[name], unknown_name(row[name], quants, "quant"), line)
        keyed = tuple(row[name] for name in key)
        if keyed in rows:
            log.add(path, key[-1], row[key[-1]], "is given twice", line)
        elif not unknown:
            use.note(row["citation"], path, line)
            rows[keyed] = row
    return [rows[keyed] for keyed in sorted(rows)]


def _frame(table: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = polars_schema(table)
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in rows], schema=schema)
