"""Which mixer and which feed-forward each layer has: the many ways a configuration says it, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pipeline.contracts.architectures.config_view import ConfigView
from pipeline.contracts.architectures.traits import Traits

# Hugging Face layer_types -> our mixers.
LAYER_TYPES: Final[Mapping[str, str]] = {
    "full_attention": "full",
    "attention": "full",
    "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba",
    "conv": "conv",
}
# Nemotron-H: every layer is one mixer or one feed-forward.
BLOCKS: Final[Mapping[str, tuple[str, str]]] = {
    "M": ("mamba", "none"),
    "*": ("full", "none"),
    "-": ("none", "dense"),
    "E": ("none", "moe"),
    "mamba": ("mamba", "none"),
    "attention": ("full", "none"),
    "mlp": ("none", "dense"),
    "moe": ("none", "moe"),
}
_RECURRENT: Final = {
    "gated_delta": "linear",
    "kimi_delta": "linear",
    "lightning": "linear",
    "mamba1": "mamba",
    "mamba2": "mamba",
    "conv": "conv",
}


def mixer_pattern(view: ConfigView, traits: Traits, n_layers: int) -> list[str]:
    """The mixer of every layer (full, sliding, chunked, linear, mamba, conv, cross); notes in `view` what is
    lacking.
    """
    stated = view.get("layer_types")
    if isinstance(stated, list) and view.get("linear_attn_config.full_attn_layers") is None:
        return _stated_pattern(view, stated, n_layers)
    if view.get("hybrid_layer_pattern") is not None:
        return ["sliding" if slides else "full" for slides in view.get("hybrid_layer_pattern")]
    if view.get("cross_attention_layers") is not None:
        crossing = set(view.get("cross_attention_layers"))
        return ["cross" if layer in crossing else "full" for layer in range(n_layers)]
    if traits.mixers in _RECURRENT:
        return _hybrid_pattern(view, traits, n_layers)
    if view.get("attention_chunk_size") and traits.model_type == "llama4":
        return _chunked_pattern(view, n_layers)
    return _sliding_pattern(view, traits, n_layers)


def _stated_pattern(view: ConfigView, stated: list[Any], n_layers: int) -> list[str]:
    pattern = [LAYER_TYPES.get(str(kind), "") for kind in stated[:n_layers]]
    if "" in pattern or len(pattern) < n_layers:
        view.missing.add("layer_types")
    return pattern


def _hybrid_pattern(view: ConfigView, traits: Traits, n_layers: int) -> list[str]:
    recurrent = _RECURRENT[traits.mixers]
    if traits.model_type in ("mamba", "mamba2", "falcon_mamba"):
        return [recurrent] * n_layers
    if view.get("linear_attn_config.full_attn_layers") is not None:
        full = set(view.get("linear_attn_config.full_attn_layers"))  # counted from 1
        return ["full" if layer + 1 in full else recurrent for layer in range(n_layers)]
    if view.get("full_attention_interval"):
        every = view.number("full_attention_interval")
        return ["full" if (layer + 1) % every == 0 else recurrent for layer in range(n_layers)]
    if view.get("attn_layer_period"):
        every, offset = view.number("attn_layer_period"), view.optional("attn_layer_offset")
        return ["full" if layer % every == offset else recurrent for layer in range(n_layers)]
    if view.get("attn_type_list") is not None:
        return ["full" if kind == 1 else recurrent for kind in view.get("attn_type_list")]
    if view.get("num_full_attention_layers") is not None:
        full_count = view.number(
            "num_full_attention_layers"
        )  # where they are is not known and does not matter
        return [recurrent] * (n_layers - full_count) + ["full"] * full_count
    view.missing.add("layer_types")
    return []


def _chunked_pattern(view: ConfigView, n_layers: int) -> list[str]:
    # Llama 4: every fourth layer is global; no_rope_layers, when given, has 0 on the global ones.
    stated = view.get("no_rope_layers")
    if stated:
        return ["chunked" if rope else "full" for rope in stated]
    return ["full" if (layer + 1) % 4 == 0 else "chunked" for layer in range(n_layers)]


def _sliding_pattern(view: ConfigView, traits: Traits, n_layers: int) -> list[str]:
    window = view.get("window_tokens")
    named = view.get("sliding_window_pattern", view.get("_sliding_window_pattern"))
    if isinstance(named, str):
        return ["sliding" if named[layer % len(named)] == "L" else "full" for layer in range(n_layers)]
    every = int(named) if isinstance(named, int) else traits.sliding_period
    if every and window:
        return ["full" if (layer + 1) % every == 0 else "sliding" for layer in range(n_layers)]
    if every:
        view.missing.add("sliding_window")
    used = view.get("use_sliding_window", True)
    context = view.get("context_tokens", 0)
    if traits.window_everywhere and window and used and not (context and window >= context):
        return ["sliding"] * n_layers
    return ["full"] * n_layers


def ffn_pattern(view: ConfigView, traits: Traits, n_layers: int) -> list[str]:
    """Whether each layer's feed-forward is `dense`, `moe` or `none`."""
    if traits.model_type in ("mamba", "mamba2", "falcon_mamba"):
        return ["none"] * n_layers
    experts = view.get("n_experts")
    if not experts or experts == 1 or view.get("enable_moe_block") is False:
        return ["dense"] * n_layers
    stated = view.get("mlp_layer_types")
    if isinstance(stated, list):
        return ["dense" if kind == "dense" else "moe" for kind in stated]
    frequency = view.get("moe_layer_freq")
    if isinstance(frequency, list):
        return ["moe" if routed else "dense" for routed in frequency]
    return ["moe" if _is_moe_layer(view, layer) else "dense" for layer in range(n_layers)]


def _is_moe_layer(view: ConfigView, layer: int) -> bool:
    if view.get("expert_layer_period"):
        return layer % view.number("expert_layer_period") == view.optional("expert_layer_offset")
    if view.get("moe_layer_start_index") is not None:
        last = view.get("moe_layer_end_index", layer)
        inside = view.number("moe_layer_start_index") <= layer <= (last if last >= 0 else layer)
        return bool(inside and (layer + 1) % view.get("moe_layer_interval", 1) == 0)
    if view.get("interleave_moe_layer_step"):
        return (layer + 1) % view.number("interleave_moe_layer_step") == 0
    if layer in (view.get("mlp_only_layers") or ()):
        return False
    if layer < view.get("n_dense_first", 0):
        return False
    step = view.get("decoder_sparse_step", view.get("moe_layer_freq", 1))
    return bool((layer + 1) % step == 0)


def block_pattern(view: ConfigView) -> list[tuple[str, str]]:
    """Nemotron-H: (mixer, feed-forward) of every block, from the override pattern or the list of
    block types.
    """
    stated = view.get("hybrid_override_pattern", view.get("layers_block_type"))
    if stated is None:
        view.missing.add("hybrid_override_pattern")
        return []
    return _blocks(view, stated)


def mtp_block_pattern(view: ConfigView) -> list[tuple[str, str]]:
    """The blocks of one multi-token-prediction module, empty when there is none."""
    return _blocks(view, view.get("mtp_hybrid_override_pattern", view.get("mtp_layers_block_type", ())))


def _blocks(view: ConfigView, stated: Any) -> list[tuple[str, str]]:
    if any(block not in BLOCKS for block in stated):
        view.missing.add("hybrid_override_pattern")
        return []
    return [BLOCKS[block] for block in stated]
