"""Reads a Hugging Face configuration under its many names, and remembers what it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# Our name -> the names configurations use for it, best first. A dot reaches into a nested object.
NAMES: Final[dict[str, tuple[str, ...]]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "n_layers": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads"),
    "n_kv_heads": (
        "num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv",
        "attn_config.kv_n_heads", "num_attention_groups",
    ),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "ffn_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "ff_intermediate_size"),
    "context_tokens": (
        "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "context_length",
        "model_max_length", "max_sequence_length",
    ),
    "n_experts": (
        "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts",
        "ffn_config.moe_num_experts",
    ),
    "n_experts_used": (
        "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_topk",
        "top_k_experts", "ffn_config.moe_top_k",
    ),
    "expert_ffn_size": ("moe_intermediate_size", "expert_intermediate_size", "ffn_config.ffn_hidden_size"),
    "n_shared_experts": (
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert",
    ),
    "shared_ffn_size": (
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
        "shared_intermediate_size", "shared_experts_intermediate_size", "share_expert_dim",
    ),
    "n_dense_first": ("first_k_dense_replace", "num_dense_layers"),
    "window_tokens": ("sliding_window", "sliding_window_size"),
    "n_mtp_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    "conv_kernel": (
        "linear_conv_kernel_dim", "linear_attn_config.short_conv_kernel_size", "short_conv_kernel_size",
    ),
}  # fmt: skip


@dataclass
class ConfigView:
    """A configuration read by our names. `missing` collects the Hugging Face names of what was needed and
    absent.
    """

    config: Mapping[str, Any]
    missing: set[str] = field(default_factory=set)
    _found: dict[str, Any] = field(default_factory=dict)  # asked once per layer, so remembered

    def get(self, name: str, default: Any = None) -> Any:
        """The value under our name (or a plain Hugging Face name); `default` where it is absent or null."""
        if name not in self._found:
            values = (self._reach(written) for written in NAMES.get(name, (name,)))
            self._found[name] = next((value for value in values if value is not None), None)
        value = self._found[name]
        return default if value is None else value

    def number(self, name: str) -> int:
        """A whole number that must be there; 0, and noted as missing, where it is not one."""
        value = self.get(name)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
            self.missing.add(NAMES.get(name, (name,))[0])
            return 0
        return int(value)

    def optional(self, name: str) -> int:
        """A whole number, 0 where it is absent or null."""
        return self.number(name) if self.get(name) is not None else 0

    def at_layer(self, name: str, layer: int) -> int:
        """A number that may be given once or per layer."""
        value = self.get(name)
        if isinstance(value, list):
            if layer < len(value) and isinstance(value[layer], int):
                return int(value[layer])
            self.missing.add(NAMES.get(name, (name,))[0])
            return 0
        return self.number(name)

    def flag(self, name: str, default: bool = False) -> bool:
        """A flag that may be absent."""
        return bool(self.get(name, default))

    def _reach(self, written: str) -> Any:
        value: Any = self.config
        for part in written.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the text part: a nested `text_config` (or `language_config`) laid over the outer
    one.
    """
    for name in ("text_config", "language_config", "llm_config"):
        nested = config.get(name)
        if isinstance(nested, Mapping):
            return {**{key: value for key, value in config.items() if key != name}, **nested}
    return dict(config)
