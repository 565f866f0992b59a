"""How many factors a GGUF file stores for a rotary embedding that is scaled per dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.contracts.architectures.config_view import ConfigView


def rope_factors(view: ConfigView) -> int:
    """Numbers in the tensors `rope_freqs` or `rope_factors_long` and `_short`; 0 where one factor scales all.

    llama.cpp 0c1e57098: conversion/llama.py (llama3: one per pair of dimensions), conversion/phi.py and
    minicpm.py (longrope: both lists), conversion/gemma.py (proportional: pairs of the full layers' head).
    """
    scaling = view.get("rope_scaling") or view.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping):
        return 0
    full = scaling.get("full_attention")
    if isinstance(full, Mapping):
        proportional = full.get("rope_type") == "proportional"
        return view.optional("global_head_dim") // 2 if proportional else 0
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "llama3":
        return _head_size(view) // 2
    return _listed(scaling.get("long_factor")) + _listed(scaling.get("short_factor"))


def _listed(factors: Any) -> int:
    return len(factors) if isinstance(factors, list) else 0


def _head_size(view: ConfigView) -> int:
    heads = view.optional("n_heads")
    return view.optional("head_dim") or (view.number("hidden_size") // heads if heads else 0)
