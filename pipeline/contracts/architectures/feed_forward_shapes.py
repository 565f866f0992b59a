"""Shapes of one layer's feed-forward: dense width, experts, shared experts, router."""

from __future__ import annotations

from typing import Any

from pipeline.contracts.architectures.config_view import ConfigView
from pipeline.contracts.architectures.traits import Traits

Shapes = dict[str, Any]


def feed_forward_shapes(view: ConfigView, traits: Traits, kind: str, layer: int) -> Shapes:
    """Geometry columns of a feed-forward that is `dense`, `moe` or `none`."""
    common: Shapes = {"ffn": kind, "ffn_matrices": traits.ffn_matrices}
    if kind == "none":
        return common
    if kind == "dense":
        size = _dense_size(view, traits, layer)
        return {
            **common,
            "ffn_size": size,
            "ffn_bias": traits.flag(traits.ffn_bias, view),
            "ffn_norm_size": size if traits.ffn_norm else 0,
        }
    return {**common, **_expert_shapes(view, traits, layer)}


def _dense_size(view: ConfigView, traits: Traits, layer: int) -> int:
    if view.get("intermediate_size_mlp") is not None:  # Llama 4, whose intermediate_size is the experts'
        return view.number("intermediate_size_mlp")
    if view.get("dense_intermediate_size") is not None:
        return view.number("dense_intermediate_size")
    if traits.model_type == "granitemoehybrid" and view.get("shared_intermediate_size"):
        return view.number("shared_intermediate_size")
    if view.get("ffn_size") is None and traits.ffn_multiple:
        return traits.ffn_multiple * view.number("hidden_size")
    size = view.at_layer("ffn_size", layer)
    shared_from = view.optional("n_layers") - view.optional("num_kv_shared_layers")
    if view.flag("use_double_wide_mlp") and layer >= shared_from:
        size *= 2
    return size // 2 if traits.ffn_halved else size


def _expert_shapes(view: ConfigView, traits: Traits, layer: int) -> Shapes:
    written = view.get("expert_ffn_size")
    width = view.at_layer("expert_ffn_size" if written is not None else "ffn_size", layer)
    latent = view.get("moe_latent_size", view.get("routed_expert_hidden_size"))
    by_token = layer < view.optional("num_hash_layers")  # DeepSeek-V4: a table gives every token its experts
    shapes: Shapes = {
        "n_experts": view.number("n_experts"),
        "n_experts_used": view.at_layer("n_experts_used", layer),
        "expert_ffn_size": width,
        "expert_input_size": latent,
        "expert_bias": traits.expert_bias,
        "shared_ffn_size": _shared_size(view, traits, layer, width),
        "shared_gate": traits.shared_gate,
        "router_bias": traits.router_bias and not by_token,
        "token_route_rows": view.number("vocab_size") if by_token else 0,
        "latent_expert_norm": bool(latent) and view.flag("latent_moe_use_norm"),
        "router_scale": traits.router_scale,
    }
    if traits.dense_beside_experts:
        shapes["ffn_size"] = view.number("ffn_size")
    return shapes


def _shared_size(view: ConfigView, traits: Traits, layer: int, width: int) -> int:
    if traits.model_type == "llama4":
        return width
    shared = view.get("n_shared_experts")
    count = view.at_layer("n_shared_experts", layer) if shared is not None else 0
    if view.get("shared_ffn_size"):
        stated = view.number("shared_ffn_size")
        return stated * count if view.get("share_expert_dim") is None and count > 1 else stated
    return count * width
