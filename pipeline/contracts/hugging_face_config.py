"""Turns a Hugging Face configuration into shapes: one record for the model, one per run of identical layers.

Only shapes: no parameter counts, no bytes. What a configuration lacks is named, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pipeline.contracts.architectures.attention_shapes import attention_shapes, layer_overrides
from pipeline.contracts.architectures.config_view import ConfigView, text_config
from pipeline.contracts.architectures.feed_forward_shapes import feed_forward_shapes
from pipeline.contracts.architectures.layer_pattern import (
    block_pattern,
    ffn_pattern,
    mixer_pattern,
    mtp_block_pattern,
)
from pipeline.contracts.architectures.recurrent_shapes import mamba_shapes, recurrent_shapes
from pipeline.contracts.architectures.rotary_factors import rope_factors
from pipeline.contracts.architectures.traits import Traits, all_traits

Shapes = dict[str, Any]
MAX_LAYERS = 1000  # more is a slip of the pen
_ATTENTION = ("full", "sliding", "chunked", "cross")


@dataclass(frozen=True)
class ModelShapes:
    """`model`: columns of MODEL_GEOMETRY; `layers`: columns of LAYER_GEOMETRY; `missing`: configuration
    fields that the shapes need and that are absent (the shapes are then incomplete and must not be used).
    """

    model: Shapes
    layers: list[Shapes]
    missing: tuple[str, ...]
    model_type: str
    architecture: str
    native_context_tokens: int | None


def interpret(config: Mapping[str, Any]) -> ModelShapes:
    """The shapes a configuration describes. An unknown or absent model_type is reported as missing."""
    text = text_config(config)
    view = ConfigView(text)
    model_type = str(config.get("model_type") or text.get("model_type") or "")
    traits = all_traits().get(model_type)
    context = view.get("context_tokens")
    context = context if isinstance(context, int) else None
    if traits is None:
        stated = {name: view.get(name) for name in ("hidden_size", "vocab_size", "n_layers")}
        return ModelShapes(stated, [], ("model_type",), model_type, _stated_class(config), context)
    for name in traits.needs:
        if view.get(name) is None:
            view.missing.add(name)
    stored = {
        **traits.fused_columns(),
        "scalars_in_metadata": traits.scalars_in_metadata,
        "keeps_router_type": traits.keeps_router_type,
    }
    layers = _runs([layer | stored for layer in _layers(view, traits) + _mtp_layers(view, traits)])
    model = _model(view, traits)
    missing = tuple(sorted(view.missing))
    architecture = _stated_class(config) or traits.architecture
    return ModelShapes(model, [] if missing else layers, missing, model_type, architecture, context)


def _stated_class(config: Mapping[str, Any]) -> str:
    return str((config.get("architectures") or [""])[0])


def _model(view: ConfigView, traits: Traits) -> Shapes:
    rows = view.number(traits.position_rows) + traits.extra_position_rows if traits.position_rows else 0
    per_layer = view.optional("hidden_size_per_layer_input")
    tied = view.get("text_tie_word_embeddings", view.get("tie_word_embeddings", traits.tied))
    return {
        "n_layers": view.optional("n_layers"),
        "hidden_size": view.number("hidden_size"),
        "vocab_size": view.number("vocab_size"),
        "is_tied": bool(tied),
        "head_bias": traits.flag(traits.head_bias, view),
        "n_positions_learned": rows,
        "embedding_norm": traits.embedding_norm,
        "final_norm": traits.final_norm,
        "norm_bias": traits.norm_bias,
        "per_layer_vocab_size": view.number("vocab_size_per_layer_input") if per_layer else 0,
        "per_layer_padded_vocab_size": view.number("vocab_size") if traits.pads_per_layer_vocab else None,
        "per_layer_input_size": per_layer,
        "altup_inputs": view.optional("altup_num_inputs"),
        "residual_streams": view.optional("hc_mult") if traits.hyper_head else 0,
        "residual_scores": int(view.optional("attn_res_block_size") > 0),
        "extra_embedding_rows": traits.extra_embedding_rows,
        "mtp_norms": traits.mtp_norms,
        "mtp_embedding_copies": int(view.get("mtp_embedding_copies", traits.mtp_embedding_copies)),
        "rope_factors": rope_factors(view),
    }


def _layers(view: ConfigView, traits: Traits) -> list[Shapes]:
    if traits.mixers == "blocks":
        return [_block(view, traits, *kinds, layer) for layer, kinds in enumerate(block_pattern(view))]
    if view.get("block_configs") is not None:
        return _searched_layers(view, traits)
    n_layers = view.number("n_layers")
    if n_layers > MAX_LAYERS:
        view.missing.add("num_hidden_layers")
        return []
    mixers, ffns = mixer_pattern(view, traits, n_layers), ffn_pattern(view, traits, n_layers)
    if len(mixers) < n_layers:
        view.missing.add("layer_types")
    if len(ffns) < n_layers:
        view.missing.add("mlp_layer_types")
    if view.missing & {"layer_types", "mlp_layer_types"}:
        return []
    return [_layer(view, traits, mixers[layer], ffns[layer], layer, n_layers) for layer in range(n_layers)]


def _layer(view: ConfigView, traits: Traits, mixer: str, ffn: str, layer: int, n_layers: int) -> Shapes:
    if mixer in _ATTENTION:
        mixing = attention_shapes(view, traits, mixer, layer, n_layers)
        if traits.mixers == "parallel_mamba2":
            mixing |= mamba_shapes(view, traits)
    else:
        mixing = recurrent_shapes(view, traits, mixer)
    return {
        "is_mtp": False,
        "hidden_size": view.number("hidden_size"),
        **mixing,
        **feed_forward_shapes(layer_overrides(view, layer), traits, ffn, layer),
        "n_norms": _norms(view, traits, ffn),
        "norm_bias": traits.norm_bias,
        "per_layer_input_size": view.optional("hidden_size_per_layer_input"),
        "altup_inputs": view.optional("altup_num_inputs"),
        "laurel_rank": view.optional("laurel_rank"),
        "residual_streams": view.optional("hc_mult"),
        "residual_scores": 2 if view.optional("attn_res_block_size") else 0,
        "n_scalars": 2 if mixer == "cross" else traits.scalars,
    }


def _norms(view: ConfigView, traits: Traits, ffn: str) -> int:
    if traits.model_type == "falcon" and view.flag("new_decoder_architecture"):
        return 2  # one for attention, one for the feed-forward, side by side
    if traits.dense_beside_experts and ffn == "moe":
        return traits.norms + 3
    return traits.norms


def _block(view: ConfigView, traits: Traits, mixer: str, ffn: str, layer: int) -> Shapes:
    mixing: Shapes = {"mixer": "none"}
    if mixer == "full":
        mixing = attention_shapes(view, traits, mixer, layer, 0)
        mixing["shares_kv"] = False
    if mixer == "mamba":
        mixing = recurrent_shapes(view, traits, mixer)
    return {
        "is_mtp": False,
        "hidden_size": view.number("hidden_size"),
        **mixing,
        **feed_forward_shapes(view, traits, ffn, layer),
        "n_norms": traits.norms,
        "norm_bias": traits.norm_bias,
    }


def _searched_layers(view: ConfigView, traits: Traits) -> list[Shapes]:
    """Architecture-searched Llama (`block_configs`): per layer its own group size and width, or no
    attention.
    """
    layers = []
    for layer, block in enumerate(view.get("block_configs")):
        attention, ffn = block["attention"], block["ffn"]
        if attention.get("replace_with_linear") or ffn.get("replace_with_linear"):
            view.missing.add("block_configs.replace_with_linear")
        own = dict(view.config)
        if not attention.get("no_op"):
            own["num_key_value_heads"] = view.number("n_heads") // attention["n_heads_in_group"]
        if not ffn.get("no_op"):
            own["intermediate_size"] = _searched_width(ffn["ffn_mult"], view.number("hidden_size"))
        own_view = ConfigView(own, view.missing)
        mixing: Shapes = {"mixer": "none"}
        if not attention.get("no_op"):
            mixing = attention_shapes(own_view, traits, "full", layer, 0) | {"shares_kv": False}
        kind = "none" if ffn.get("no_op") else "dense"
        norms = (mixing["mixer"] != "none") + (kind != "none")
        layers.append(
            {
                "is_mtp": False,
                "hidden_size": view.number("hidden_size"),
                **mixing,
                **feed_forward_shapes(own_view, traits, kind, layer),
                "n_norms": norms,
                "norm_bias": False,
            }
        )
    return layers


def _searched_width(multiple: float, hidden_size: int) -> int:
    """Width of a gated feed-forward of that multiple: two thirds of it, rounded up to a multiple of 256."""
    width = int(2 * multiple * hidden_size / 3)
    return -(-width // 256) * 256


def _mtp_layers(view: ConfigView, traits: Traits) -> list[Shapes]:
    blocks = mtp_block_pattern(view)
    if traits.mixers == "blocks":
        return [_block(view, traits, mixer, ffn, 0) | {"is_mtp": True} for mixer, ffn in blocks]
    count = view.optional("n_mtp_layers") if view.get("n_mtp_layers") is not None else traits.mtp_layers
    n_layers = view.optional("n_layers")
    if not count or not n_layers or view.missing:
        return []
    ffn = traits.mtp_ffn or ("moe" if view.get("n_experts") else "dense")
    own_indexer = {name: value for name, value in view.config.items() if name != "indexer_types"}
    own = ConfigView(own_indexer, view.missing)
    layer = _layer(own, traits, traits.mtp_mixer, ffn, _mtp_position(view, traits, n_layers), n_layers)
    streams = layer["residual_streams"] if traits.hyper_head else 0
    return [layer | {"is_mtp": True, "residual_streams": streams}] * count


def _mtp_position(view: ConfigView, traits: Traits, n_layers: int) -> int:
    """Where in the configuration's lists a prediction layer is described: after the last layer if they go so
    far, else at the last layer with its mixer.
    """
    if len(view.get("compress_ratios") or ()) > n_layers:
        return n_layers
    alike = [
        layer
        for layer, mixer in enumerate(mixer_pattern(view, traits, n_layers))
        if mixer == traits.mtp_mixer
    ]
    return alike[-1] if alike else n_layers - 1


def _runs(layers: list[Shapes]) -> list[Shapes]:
    runs: list[Shapes] = []
    for shapes, run in groupby(layers):
        runs.append({**shapes, "group": len(runs), "n_layers": len(list(run))})
    return runs
