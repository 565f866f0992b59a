"""What llama.cpp does with an architecture, read from `llama_cpp.toml`: one table per model_type."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

import polars as pl

from pipeline.contracts.architectures.traits import all_traits

WORDS: Final = {
    "attention_rows": ("heads", "hidden", "none"),
    "rotated_attention": ("serial", "kept", "row"),
}


@dataclass(frozen=True)
class LlamaCppTraits:
    """One architecture as llama.cpp runs it; the comments of `llama_cpp.toml` say what the words mean."""

    uses_window: bool = False
    caches_latent: bool = True
    keeps_prediction: bool = False
    attention_rows: str = "heads"
    rotated_attention: str = "serial"
    extra_rows: int = 0
    output_rows: int = 0
    last_rows: int = 8
    score_query_rows: int = 2
    score_hidden_rows: int = 2


def read_llama_cpp_traits(text: str) -> dict[str, LlamaCppTraits]:
    """The architectures of a `llama_cpp.toml`. Raises ValueError for an unknown field or word."""
    known = {entry.name for entry in fields(LlamaCppTraits)}
    read: dict[str, LlamaCppTraits] = {}
    for model_type, table in tomllib.loads(text).items():
        unknown = sorted(set(table) - known)
        if unknown:
            raise ValueError(f"llama_cpp.toml [{model_type}]: unknown {', '.join(unknown)}")
        for name, words in WORDS.items():
            if table.get(name, words[0]) not in words:
                raise ValueError(f"llama_cpp.toml [{model_type}]: {name} is one of {', '.join(words)}")
        read[model_type] = LlamaCppTraits(**table)
    return read


@cache
def llama_cpp_traits() -> dict[str, LlamaCppTraits]:
    """Every architecture that the repository's file names."""
    path = Path(__file__).with_name("llama_cpp.toml")
    return read_llama_cpp_traits(path.read_text(encoding="utf-8"))


def llama_cpp_trait_frame(traits: dict[str, LlamaCppTraits] | None = None) -> pl.DataFrame:
    """One row per architecture that the repository knows: model_type and the fields of `LlamaCppTraits`."""
    named = llama_cpp_traits() if traits is None else traits
    rows: list[dict[str, Any]] = [
        {"model_type": model_type, **asdict(named.get(model_type, LlamaCppTraits()))}
        for model_type in sorted(set(all_traits()) | set(named))
    ]
    return pl.DataFrame(rows)
