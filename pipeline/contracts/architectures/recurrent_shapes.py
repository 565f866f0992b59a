"""Shapes of one layer without a growing cache: linear attention, state space, short convolution."""

from __future__ import annotations

from typing import Any

from pipeline.contracts.architectures.config_view import ConfigView
from pipeline.contracts.architectures.traits import Traits

Shapes = dict[str, Any]


def recurrent_shapes(view: ConfigView, traits: Traits, mixer: str) -> Shapes:
    """Geometry columns of a layer whose `mixer` is linear, mamba or conv."""
    if mixer == "conv":
        return {"mixer": "conv", "conv_kernel": view.number("conv_L_cache")}
    if mixer == "mamba":
        return {"mixer": "mamba", **mamba_shapes(view, traits)}
    return {"mixer": "linear", **_linear_shapes(view, traits)}


def _linear_shapes(view: ConfigView, traits: Traits) -> Shapes:
    if traits.mixers == "gated_delta":
        return {
            "linear_kind": "gated_delta",
            "linear_key_heads": view.number("linear_num_key_heads"),
            "linear_value_heads": view.number("linear_num_value_heads"),
            "linear_key_dim": view.number("linear_key_head_dim"),
            "linear_value_dim": view.number("linear_value_head_dim"),
            "conv_kernel": view.number("conv_kernel"),
        }
    if traits.mixers == "kimi_delta":
        heads = view.get("linear_attn_config.num_heads", view.get("linear_num_heads"))
        dim = view.get("linear_attn_config.head_dim", view.get("linear_head_dim"))
        if heads is None or dim is None:
            view.missing.add("linear_attn_config")
        ranks = {"linear_gate_rank": (dim or 0) if traits.linear_gate == "low_rank" else 0}
        if view.flag("linear_attn_config.use_full_rank_gate"):
            ranks["linear_output_gate_rank"] = 0
        return _same_heads("kimi_delta", heads or 0, dim or 0, view.number("conv_kernel")) | ranks
    return _same_heads("lightning", view.number("n_heads"), view.number("head_dim"), 0)


def _same_heads(kind: str, heads: int, dim: int, kernel: int) -> Shapes:
    return {
        "linear_kind": kind, "linear_key_heads": heads, "linear_value_heads": heads, "linear_key_dim": dim,
        "linear_value_dim": dim, "conv_kernel": kernel,
    }  # fmt: skip


def mamba_shapes(view: ConfigView, traits: Traits) -> Shapes:
    """Geometry columns of a Mamba-1 or Mamba-2 mixer."""
    shapes: Shapes = {
        "conv_kernel": _either(view, "conv_kernel_size", "conv_kernel", "mamba_d_conv"),
        "mamba_state": _either(view, "state_size", "ssm_state_size", "mamba_d_state"),
        "conv_bias": view.get("use_conv_bias", view.get("mamba_conv_bias", True)),
        "mixer_bias": view.get("mamba_proj_bias", False),
    }
    if traits.mixers == "mamba1":
        expand = view.get("expand", view.get("mamba_expand", 2))
        inner = view.get("mamba_intermediate_size", expand * view.number("hidden_size"))
        rank = view.get("mamba_dt_rank", view.get("time_step_rank", -(-view.number("hidden_size") // 16)))
        norms = rank + 2 * shapes["mamba_state"] if traits.model_type == "jamba" else 0
        return {**shapes, "mamba_inner": inner, "mamba_dt_rank": rank, "mamba_norm_size": norms}
    heads = _either(view, "mamba_num_heads", "mamba_n_heads", "num_heads")
    dim = _either(view, "mamba_head_dim", "mamba_d_head")
    inner = view.get("mamba_d_ssm", heads * dim)
    return {
        **shapes,
        "mamba_inner": inner,
        "mamba_heads": heads,
        "mamba_groups": _either(view, "n_groups", "mamba_n_groups"),
        "mamba_norm_size": inner if view.get("mamba_rms_norm", True) else 0,
    }


def _either(view: ConfigView, *names: str) -> int:
    for name in names:
        if view.config.get(name) is not None:
            return int(view.config[name])
    view.missing.add(names[-1])
    return 0
