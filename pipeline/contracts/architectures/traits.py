"""What an architecture does that its configuration does not say: read from `traits.toml`, one table per
model_type.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.contracts.architectures.config_view import ConfigView

# A flag of an architecture: fixed, or the name of the configuration field that holds it (false when absent).
Flag = bool | str
# What a checkpoint may store as one matrix: the `fused_` columns of the layer geometry.
FUSIBLE = ("qkv", "query_gate", "kv_up", "gate_up", "expert_gate_up", "delta_gates")


@dataclass(frozen=True)
class Traits:
    """One architecture. Defaults are those of Llama; see the comments in `traits.toml` for the words."""

    model_type: str
    architecture: str = ""
    tied: bool = False
    mixers: str = "attention"
    norms: int = 2
    norm_bias: bool = False
    final_norm: bool = True
    embedding_norm: bool = False
    position_rows: str = ""
    extra_position_rows: int = 0
    qkv_bias: Flag = False
    o_bias: Flag = False
    qk_norm: str = "none"
    qk_norm_if: str = ""
    qk_norm_bias: bool = False
    attention_norm: bool = False
    output_gate: str = "none"
    sinks: str = "none"
    sliding_period: int = 0
    window_everywhere: bool = False
    linear_gate: str = "low_rank"
    hyper_head: bool = True
    ffn_matrices: int = 3
    ffn_bias: Flag = False
    ffn_norm: bool = False
    ffn_multiple: int = 0
    ffn_halved: bool = False
    head_bias: Flag = False
    expert_bias: bool = False
    shared_gate: bool = False
    router_bias: bool = False
    router_scale: bool = False
    keeps_router_type: bool = False
    pads_per_layer_vocab: bool = False
    dense_beside_experts: bool = False
    scalars: int = 0
    scalars_in_metadata: bool = False
    keeps_shared_kv_weights: bool = False
    fused: tuple[str, ...] = ()
    extra_embedding_rows: int = 0
    rope_key_norm: bool = False
    mtp_layers: int = 0
    mtp_mixer: str = "full"
    mtp_ffn: str = ""
    mtp_norms: int = 3
    mtp_embedding_copies: int = 0
    needs: tuple[str, ...] = ()

    def flag(self, value: Flag, view: ConfigView) -> bool:
        """A flag that may be the name of a configuration field."""
        return view.flag(value) if isinstance(value, str) else value

    def fused_columns(self) -> dict[str, bool]:
        """The `fused_` columns of the layer geometry."""
        return {f"fused_{what}": what in self.fused for what in FUSIBLE}


@cache
def all_traits() -> dict[str, Traits]:
    """Every architecture of `traits.toml` by model_type, with `like` resolved."""
    tables = tomllib.loads(Path(__file__).with_name("traits.toml").read_text(encoding="utf-8"))
    known = {entry.name for entry in fields(Traits)}
    traits: dict[str, Traits] = {}
    for name in tables:
        table = _resolved(name, tables)
        unknown = set(table) - known
        if unknown:
            raise ValueError(f"traits.toml [{name}]: unknown {', '.join(sorted(unknown))}")
        lists = {field: tuple(table.get(field, ())) for field in ("needs", "fused")}
        unfusable = set(lists["fused"]) - set(FUSIBLE)
        if unfusable:
            raise ValueError(f"traits.toml [{name}].fused: unknown {', '.join(sorted(unfusable))}")
        traits[name] = Traits(model_type=name, **{**table, **lists})
    return traits


def nearest_model_type(model_type: str) -> str:
    """The known model_type closest to one that is not known; empty when nothing is close."""
    found = difflib.get_close_matches(model_type, list(all_traits()), n=1, cutoff=0.5)
    return found[0] if found else ""


def _resolved(name: str, tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    table = dict(tables[name])
    parent = table.pop("like", None)
    if parent is None:
        return table
    inherited = _resolved(parent, tables)
    inherited.pop("architecture", None)
    return {**inherited, **table}
