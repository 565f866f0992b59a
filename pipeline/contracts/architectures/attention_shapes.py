"""Shapes of one attention layer: heads, widths, window, biases, norms, latents, compression."""

from __future__ import annotations

from typing import Any

from pipeline.contracts.architectures.config_view import ConfigView
from pipeline.contracts.architectures.traits import Traits

Shapes = dict[str, Any]


def attention_shapes(view: ConfigView, traits: Traits, mixer: str, layer: int, n_layers: int) -> Shapes:
    """Geometry columns of an attention layer (`mixer` is full, sliding, chunked or cross) at position
    `layer`.
    """
    if traits.mixers == "compressed":
        return _compressed(view, traits, layer)
    if traits.mixers in ("mla", "kimi_delta") or view.get("kv_lora_rank"):
        return _latent(view, traits, mixer, layer)
    return _per_head(view, traits, mixer, layer, n_layers)


def _per_head(view: ConfigView, traits: Traits, mixer: str, layer: int, n_layers: int) -> Shapes:
    slides = mixer == "sliding"
    heads = view.at_layer("num_attention_heads_per_layer" if view.get("num_attention_heads_per_layer") else
                          "swa_num_attention_heads" if slides and view.get("swa_num_attention_heads") else
                          "n_heads", layer)  # fmt: skip
    kv_heads = _kv_heads(view, traits, mixer, layer, heads)
    k_dim, v_dim = _head_dims(view, mixer, heads)
    gated = traits.output_gate != "none" and view.get("attn_output_gate", True) is not False
    gate_sizes = {"none": 0, "dim": heads * v_dim, "head": heads}
    first_shared = n_layers - view.optional("num_kv_shared_layers")
    norm_on = traits.qk_norm_if == "" or view.flag(traits.qk_norm_if)
    qk_norm = "head" if mixer == "cross" else traits.qk_norm if norm_on else "none"
    norm_count = {"none": (0, 0), "head": (1, 1), "heads": (heads, kv_heads)}[qk_norm]
    shapes: Shapes = {
        "mixer": mixer,
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "k_head_dim": k_dim,
        "v_head_dim": v_dim,
        "qkv_bias": traits.flag(traits.qkv_bias, view),
        "o_bias": traits.flag(traits.o_bias, view),
        "q_norm_size": norm_count[0] * k_dim,
        "k_norm_size": norm_count[1] * k_dim,
        "qk_norm_bias": traits.qk_norm_bias,
        "attention_norm_size": heads * v_dim if traits.attention_norm else 0,
        "shares_kv": layer >= first_shared,
        "keeps_kv_weights": traits.keeps_shared_kv_weights,
        "value_is_key": not slides and view.flag("attention_k_eq_v"),
        "output_gate_size": gate_sizes[traits.output_gate] if gated else 0,
        "n_sinks": heads if traits.sinks == "all" or (traits.sinks == "sliding" and slides) else 0,
    }
    if slides:
        shapes["window_tokens"] = view.number("window_tokens")
    if mixer == "chunked":
        shapes["window_tokens"] = view.number("attention_chunk_size")
    return shapes


def _kv_heads(view: ConfigView, traits: Traits, mixer: str, layer: int, heads: int) -> int:
    if view.get("num_key_value_heads_per_layer"):
        return view.at_layer("num_key_value_heads_per_layer", layer)
    if mixer == "sliding" and view.get("swa_num_key_value_heads"):
        return view.number("swa_num_key_value_heads")
    if mixer == "full" and view.get("num_global_key_value_heads"):
        return view.number("num_global_key_value_heads")
    if view.get("multi_query") is True and not view.flag("new_decoder_architecture"):
        return 1  # Falcon: num_kv_heads is not read then
    if view.get("multi_query_attention") is False:
        return heads
    return view.at_layer("n_kv_heads", layer) if view.get("n_kv_heads") is not None else heads


def _head_dims(view: ConfigView, mixer: str, heads: int) -> tuple[int, int]:
    if mixer == "sliding" and view.get("swa_head_dim"):
        return view.number("swa_head_dim"), view.get("swa_v_head_dim", view.number("swa_head_dim"))
    if mixer == "full" and view.get("global_head_dim"):
        return view.number("global_head_dim"), view.number("global_head_dim")
    k_dim = view.optional("head_dim") or (view.number("hidden_size") // heads if heads else 0)
    return k_dim, view.get("v_head_dim", k_dim)


def _latent(view: ConfigView, traits: Traits, mixer: str, layer: int) -> Shapes:
    own = layer_overrides(view, layer)
    rank, rope = own.number("kv_lora_rank"), own.number("qk_rope_head_dim")
    heads, nope = own.number("n_heads"), own.number("qk_nope_head_dim")
    v_dim = own.number("v_head_dim")
    # An indexer that several layers share exists once, on the layer marked "full".
    kinds = view.get("indexer_types")
    layer_kind = (view.get("layer_types") or [None] * (layer + 1))[layer]
    indexed = (kinds is None or kinds[layer] == "full") and layer_kind != "sliding_attention"
    shapes: Shapes = {
        "mixer": "mla",
        "n_heads": heads,
        "k_head_dim": nope + rope,
        "v_head_dim": v_dim,
        "q_latent_dim": own.optional("q_lora_rank"),
        "kv_latent_dim": rank,
        "qk_nope_dim": nope,
        "qk_rope_dim": rope,
        "latent_dim": rank + rope,
        "index_n_heads": view.optional("index_n_heads") if indexed else 0,
        "index_head_dim": view.optional("index_head_dim") if indexed else 0,
        "index_pool_tokens": view.optional("index_kpool") if indexed else 0,
        "rope_key_norm_size": rope if traits.rope_key_norm else 0,
        "selected_tokens": view.get("index_topk") if mixer != "sliding" else None,
        "output_gate_size": heads if traits.output_gate == "head" else 0,
    }
    if view.flag("mla_use_output_gate"):
        shapes["output_gate_size"] = heads * v_dim
    if mixer == "sliding":
        shapes["window_tokens"] = view.number("window_tokens")
    return shapes


def layer_overrides(view: ConfigView, layer: int) -> ConfigView:
    """The configuration as this layer sees it: `per_layer_config` (keys "00", "01", ... or "0") laid over the
    rest.
    """
    per_layer = view.get("per_layer_config")
    if not isinstance(per_layer, dict):
        return view
    own = per_layer.get(f"{layer:02d}") or per_layer.get(str(layer)) or {}
    return ConfigView({**view.config, **own}, view.missing)


def _compressed(view: ConfigView, traits: Traits, layer: int) -> Shapes:
    ratio = view.at_layer("compress_ratios", layer)
    indexed = ratio == 4  # only the finely compressed layers select entries by an indexer
    heads, dim = view.number("n_heads"), view.number("head_dim")
    return {
        "mixer": "sliding",
        "window_tokens": view.number("window_tokens"),
        "n_heads": heads,
        "n_kv_heads": 1,
        "k_head_dim": dim,
        "v_head_dim": 0,  # keys and values are one tensor
        "q_latent_dim": view.number("q_lora_rank"),
        "kv_compression": ratio or None,
        "index_n_heads": view.number("index_n_heads") if indexed else 0,
        "index_head_dim": view.number("index_head_dim") if indexed else 0,
        "selected_tokens": view.get("index_topk") if indexed else None,
        "o_groups": view.number("o_groups"),
        "o_latent_dim": view.number("o_lora_rank"),
        "n_sinks": heads if traits.sinks == "all" else 0,
    }
