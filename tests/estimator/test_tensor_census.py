"""The tensor census: one layer of every kind worked out by hand, and what must hold for any shapes.

Expected tensors are `name: (n_matrices, n_rows, row_length)`, as a GGUF file holds them, read off the
reference model's modeling file and llama.cpp's converter.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.layer_geometry import LAYER_GEOMETRY, MODEL_GEOMETRY
from estimator.parameters import layer_parameters, model_parameters
from estimator.tensor_census import CENSUS, PARTS, STORAGES, census, elements

Shapes = dict[str, Any]
LLAMA: Shapes = {  # Llama-3.1-8B
    "mixer": "full", "ffn": "dense", "hidden_size": 4096, "n_heads": 32, "n_kv_heads": 8, "k_head_dim": 128,
    "v_head_dim": 128, "ffn_size": 14336, "ffn_matrices": 3, "n_norms": 2,
}  # fmt: skip
LLAMA_TENSORS = {
    "attn_q": (1, 4096, 4096), "attn_k": (1, 1024, 4096), "attn_v": (1, 1024, 4096),
    "attn_output": (1, 4096, 4096), "ffn_gate": (1, 14336, 4096), "ffn_up": (1, 14336, 4096),
    "ffn_down": (1, 4096, 14336), "layer_norms": (1, 2, 4096),
}  # fmt: skip


def counted(layers: list[Shapes], **model: Any) -> pl.DataFrame:
    rows = [
        {"model": "m", "group": group, "n_layers": 1, "is_mtp": False, **layer}
        for group, layer in enumerate(layers)
    ]
    hidden = max(layer["hidden_size"] for layer in layers)
    geometry = {"model": "m", "hidden_size": hidden, "vocab_size": 1000, "final_norm": True, **model}
    return census(
        pl.LazyFrame(rows, schema=LAYER_GEOMETRY, orient="row"),
        pl.LazyFrame([geometry], schema=MODEL_GEOMETRY, orient="row"),
    ).collect()


def shapes_of(frame: pl.DataFrame) -> dict[str, tuple[int, int, int]]:
    rows = frame.select("tensor", "n_matrices", "n_rows", "row_length").rows()
    assert len({row[0] for row in rows}) == len(rows)
    return {name: (matrices, height, length) for name, matrices, height, length in rows}


def layer(**shapes: Any) -> dict[str, tuple[int, int, int]]:
    return shapes_of(counted([shapes]).filter(pl.col("group") == 0))


def storages(names: list[str], **shapes: Any) -> list[str]:
    stored = dict(counted([shapes]).filter(pl.col("group") == 0).select("tensor", "storage").rows())
    return [stored[name] for name in names]


def model(layers: list[Shapes], **shapes: Any) -> dict[str, tuple[int, int, int]]:
    return shapes_of(counted(layers, **shapes).filter(pl.col("group").is_null()))


def test_a_llama_layer_and_what_lies_outside_it() -> None:
    assert layer(**LLAMA) == LLAMA_TENSORS
    untied = model([LLAMA], vocab_size=128256, is_tied=False, rope_factors=64)
    assert untied == {
        "token_embd": (1, 128256, 4096), "output": (1, 128256, 4096), "output_norm": (1, 1, 4096),
        "rope_freqs": (1, 1, 64),
    }  # fmt: skip
    assert "output" not in model([LLAMA], is_tied=True)


def test_biases_are_vectors_in_32_bit() -> None:  # Qwen2.5-7B
    qwen = LLAMA | {"hidden_size": 3584, "n_heads": 28, "n_kv_heads": 4, "ffn_size": 18944, "qkv_bias": True}
    biases = {name: shape for name, shape in layer(**qwen).items() if name.endswith(".bias")}
    assert biases == {"attn_q.bias": (1, 1, 3584), "attn_k.bias": (1, 1, 512), "attn_v.bias": (1, 1, 512)}
    assert set(storages(list(biases), **qwen)) == {"f32"}


def test_phi_3_keeps_its_fused_matrices() -> None:  # Phi-3-mini
    fused = layer(
        mixer="full", ffn="dense", hidden_size=3072, n_heads=32, n_kv_heads=32, k_head_dim=96, v_head_dim=96,
        ffn_size=8192, ffn_matrices=3, n_norms=2, fused_qkv=True, fused_gate_up=True,
    )  # fmt: skip
    assert fused == {
        "attn_qkv": (1, 9216, 3072), "attn_output": (1, 3072, 3072), "ffn_up": (1, 16384, 3072),
        "ffn_down": (1, 3072, 8192), "layer_norms": (1, 2, 3072),
    }  # fmt: skip


def test_a_layer_without_gate_has_two_matrices() -> None:  # StarCoder2-3B
    plain = layer(**LLAMA | {"ffn_matrices": 2, "ffn_bias": True, "norm_bias": True})
    assert "ffn_gate" not in plain
    assert "ffn_gate.bias" not in plain
    assert plain["ffn_up.bias"] == (1, 1, 14336)
    assert plain["ffn_down.bias"] == (1, 1, 4096)
    assert plain["layer_norms.bias"] == (1, 2, 4096)


MLA: Shapes = {  # DeepSeek-V3
    "mixer": "mla", "ffn": "moe", "hidden_size": 7168, "n_heads": 128, "k_head_dim": 192, "v_head_dim": 128,
    "q_latent_dim": 1536, "kv_latent_dim": 512, "qk_nope_dim": 128, "qk_rope_dim": 64, "latent_dim": 576,
    "ffn_matrices": 3, "n_experts": 256, "n_experts_used": 8, "expert_ffn_size": 2048,
    "shared_ffn_size": 2048, "router_bias": True, "n_norms": 2,
}  # fmt: skip
MLA_TENSORS = {
    "attn_q_a": (1, 1536, 7168), "attn_q_b": (1, 24576, 1536), "attn_kv_a_mqa": (1, 576, 7168),
    "attn_k_b": (128, 512, 128), "attn_v_b": (128, 128, 512), "attn_output": (1, 7168, 16384),
    "attn_q_a_norm": (1, 1, 1536), "attn_kv_a_norm": (1, 1, 512), "layer_norms": (1, 2, 7168),
    "ffn_gate_exps": (256, 2048, 7168), "ffn_up_exps": (256, 2048, 7168), "ffn_down_exps": (256, 7168, 2048),
    "ffn_gate_shexp": (1, 2048, 7168), "ffn_up_shexp": (1, 2048, 7168), "ffn_down_shexp": (1, 7168, 2048),
    "ffn_gate_inp": (1, 256, 7168), "exp_probs_b": (1, 1, 256),
}  # fmt: skip


def test_latent_attention_splits_its_up_projection_by_head() -> None:
    assert layer(**MLA) == MLA_TENSORS
    assert storages(["ffn_gate_inp", "attn_k_b"], **MLA) == ["f32", "matrix"]
    whole = layer(**MLA | {"fused_kv_up": True})  # MiniCPM3
    assert whole["attn_kv_b"] == (1, 128 * 256, 512)
    assert not {"attn_k_b", "attn_v_b"} & set(whole)
    full_queries = layer(**MLA | {"q_latent_dim": 0})  # DeepSeek-V2-Lite
    assert full_queries["attn_q"] == (1, 24576, 7168)
    assert not {"attn_q_a", "attn_q_b", "attn_q_a_norm"} & set(full_queries)


def test_a_sparse_indexer_adds_a_key_shared_by_its_heads() -> None:  # DeepSeek-V3.2
    added = layer(**MLA, index_n_heads=64, index_head_dim=128)
    assert {name: added[name] for name in added if name.startswith("indexer")} == {
        "indexer.attn_q_b": (1, 8192, 1536), "indexer.attn_k": (1, 128, 7168), "indexer.proj": (1, 64, 7168),
        "indexer.k_norm": (1, 1, 128), "indexer.k_norm.bias": (1, 1, 128),
    }  # fmt: skip


def test_a_router_kept_in_16_bit() -> None:  # DBRX
    assert storages(["ffn_gate_inp"], **MLA, keeps_router_type=True) == ["bf16"]


def test_gated_delta_net() -> None:  # Qwen3-Next-80B-A3B: 16 key heads, 32 value heads of 128
    delta: Shapes = {
        "mixer": "linear", "ffn": "none", "hidden_size": 2048, "linear_kind": "gated_delta",
        "linear_key_heads": 16, "linear_value_heads": 32, "linear_key_dim": 128, "linear_value_dim": 128,
        "conv_kernel": 4, "n_norms": 2, "ffn_matrices": 3,
    }  # fmt: skip
    assert layer(**delta, fused_delta_gates=True) == {
        "attn_qkv": (1, 8192, 2048), "attn_gate": (1, 4096, 2048), "ssm_ba": (1, 64, 2048),
        "ssm_conv1d": (1, 8192, 4), "ssm_a": (1, 1, 32), "ssm_dt.bias": (1, 1, 32), "ssm_norm": (1, 1, 128),
        "ssm_out": (1, 2048, 4096), "layer_norms": (1, 2, 2048),
    }  # fmt: skip
    apart = layer(**delta)  # Qwen3.5
    assert apart["ssm_alpha"] == apart["ssm_beta"] == (1, 32, 2048)
    full = layer(**LLAMA | {"output_gate_size": 4096, "fused_query_gate": True})
    assert full["attn_q"] == (1, 8192, 4096)
    assert "attn_gate" not in full


def test_kimi_delta_attention() -> None:  # Kimi-Linear-48B: 32 heads of 128, gates of rank 128
    kimi = layer(
        mixer="linear", ffn="none", hidden_size=2304, linear_kind="kimi_delta", linear_key_heads=32,
        linear_value_heads=32, linear_key_dim=128, linear_value_dim=128, linear_gate_rank=128, conv_kernel=4,
        n_norms=2, ffn_matrices=3,
    )  # fmt: skip
    assert kimi == {
        **{f"attn_{one}": (1, 4096, 2304) for one in "qkv"},
        **{f"ssm_conv1d_{one}": (1, 4096, 4) for one in "qkv"},
        **{f"ssm_{one}_a": (1, 128, 2304) for one in "fg"},
        **{f"ssm_{one}_b": (1, 4096, 128) for one in "fg"},
        "ssm_beta": (1, 32, 2304), "ssm_a": (1, 1, 32), "ssm_dt.bias": (1, 1, 4096), "ssm_norm": (1, 1, 128),
        "attn_output": (1, 2304, 4096), "layer_norms": (1, 2, 2304),
    }  # fmt: skip


def test_kimi_k3_gates_its_output_at_full_rank_and_attends_to_earlier_residuals() -> None:
    shapes: Shapes = {
        "mixer": "linear", "ffn": "none", "hidden_size": 7168, "linear_kind": "kimi_delta",
        "linear_key_heads": 96, "linear_value_heads": 96, "linear_key_dim": 128, "linear_value_dim": 128,
        "linear_gate_rank": 128, "linear_output_gate_rank": 0, "conv_kernel": 4, "residual_scores": 2,
    }  # fmt: skip
    kimi = layer(**shapes)
    assert kimi["ssm_f_a"] == (1, 128, 7168)
    assert kimi["ssm_f_b"] == (1, 12288, 128)
    assert kimi["ssm_g"] == (1, 12288, 7168)
    assert not {"ssm_f", "ssm_g_a", "ssm_g_b"} & set(kimi)
    assert kimi["res_score"] == kimi["res_norm"] == (1, 2, 7168)  # GGUF keeps their product only
    assert storages(["res_score", "res_norm"], **shapes) == ["f32", "checkpoint_only"]
    outside = model([shapes], residual_scores=1)
    assert outside["output_res_score"] == outside["output_res_norm"] == (1, 1, 7168)


def test_an_indexer_may_pool_its_keys_by_a_learned_gate() -> None:  # GLM-5.3-Flash: 16 positions
    pooled = layer(**MLA, index_n_heads=32, index_head_dim=128, index_pool_tokens=16)
    assert pooled["indexer.kpool_gate"] == (1, 128, 7168)
    assert pooled["indexer.kpool_ape"] == (1, 16, 128)
    assert "indexer.kpool_gate" not in layer(**MLA, index_pool_tokens=16)


def test_mamba_of_both_versions() -> None:
    first = layer(  # mamba-2.8b: inner 5120, state 16, rank 160
        mixer="mamba", ffn="none", hidden_size=2560, mamba_inner=5120, mamba_state=16, mamba_dt_rank=160,
        conv_kernel=4, conv_bias=True, n_norms=1, ffn_matrices=3,
    )  # fmt: skip
    assert first == {
        "ssm_in": (1, 10240, 2560), "ssm_conv1d": (1, 5120, 4), "ssm_x": (1, 192, 5120),
        "ssm_dt": (1, 5120, 160), "ssm_a": (1, 5120, 16), "ssm_out": (1, 2560, 5120),
        "ssm_conv1d.bias": (1, 1, 5120), "ssm_dt.bias": (1, 1, 5120), "ssm_d": (1, 1, 5120),
        "layer_norms": (1, 1, 2560),
    }  # fmt: skip
    second = layer(  # Mamba-Codestral-7B: inner 8192, 128 heads, 8 groups of state 128
        mixer="mamba", ffn="none", hidden_size=4096, mamba_inner=8192, mamba_state=128, mamba_heads=128,
        mamba_groups=8, mamba_norm_size=8192, conv_kernel=4, conv_bias=True, n_norms=1, ffn_matrices=3,
    )  # fmt: skip
    assert second == {
        "ssm_in": (1, 2 * 8192 + 2 * 1024 + 128, 4096), "ssm_conv1d": (1, 10240, 4),
        "ssm_out": (1, 4096, 8192), "ssm_conv1d.bias": (1, 1, 10240), "ssm_dt.bias": (1, 1, 128),
        "ssm_a_per_head": (1, 1, 128), "ssm_d": (1, 1, 128), "ssm_norm": (1, 1, 8192),
        "layer_norms": (1, 1, 4096),
    }  # fmt: skip


def test_short_convolution() -> None:  # LFM2-1.2B
    short: Shapes = {"mixer": "conv", "ffn": "none", "hidden_size": 2048, "conv_kernel": 3, "n_norms": 2}
    assert layer(**short) == {
        "shortconv.in_proj": (1, 6144, 2048), "shortconv.conv": (1, 2048, 3),
        "shortconv.out_proj": (1, 2048, 2048), "layer_norms": (1, 2, 2048),
    }  # fmt: skip
    assert storages(["shortconv.conv"], **short) == ["f32"]


def test_gpt_oss_has_biases_everywhere_and_sinks() -> None:  # gpt-oss-20b
    oss = layer(
        mixer="full", ffn="moe", hidden_size=2880, n_heads=64, n_kv_heads=8, k_head_dim=64, v_head_dim=64,
        n_sinks=64, qkv_bias=True, o_bias=True, ffn_matrices=3, n_experts=32, n_experts_used=4,
        expert_ffn_size=2880, expert_bias=True, router_bias=True, n_norms=2,
    )  # fmt: skip
    assert oss == {
        "attn_q": (1, 4096, 2880), "attn_k": (1, 512, 2880), "attn_v": (1, 512, 2880),
        "attn_output": (1, 2880, 4096), "attn_q.bias": (1, 1, 4096), "attn_k.bias": (1, 1, 512),
        "attn_v.bias": (1, 1, 512), "attn_output.bias": (1, 1, 2880), "attn_sinks": (1, 1, 64),
        **{f"ffn_{one}_exps": (32, 2880, 2880) for one in ("gate", "up", "down")},
        **{f"ffn_{one}_exps.bias": (1, 32, 2880) for one in ("gate", "up", "down")},
        "ffn_gate_inp": (1, 32, 2880), "exp_probs_b": (1, 1, 32), "layer_norms": (1, 2, 2880),
    }  # fmt: skip


GEMMA_3N: Shapes = {  # Gemma-3n-E2B
    "mixer": "sliding", "ffn": "dense", "hidden_size": 2048, "n_heads": 8, "n_kv_heads": 2, "k_head_dim": 256,
    "v_head_dim": 256, "q_norm_size": 256, "k_norm_size": 256, "ffn_size": 8192, "ffn_matrices": 3,
    "n_norms": 4, "per_layer_input_size": 256, "altup_inputs": 4, "laurel_rank": 64,
}  # fmt: skip


def test_gemma_3n_mixes_its_residuals() -> None:
    assert layer(**GEMMA_3N) == {
        "attn_q": (1, 2048, 2048), "attn_k": (1, 512, 2048), "attn_v": (1, 512, 2048),
        "attn_output": (1, 2048, 2048), "ffn_gate": (1, 8192, 2048), "ffn_up": (1, 8192, 2048),
        "ffn_down": (1, 2048, 8192), "attn_q_norm": (1, 1, 256), "attn_k_norm": (1, 1, 256),
        "altup_correct_coef": (1, 4, 4), "altup_predict_coef": (1, 16, 4), "altup_router": (1, 4, 2048),
        "altup_correct_scale": (1, 1, 2048), "laurel_l": (1, 64, 2048), "laurel_r": (1, 2048, 64),
        "inp_gate": (1, 256, 2048), "proj": (1, 2048, 256), "layer_norms": (1, 7, 2048),
    }  # fmt: skip
    kept = ["altup_correct_coef", "altup_router", "laurel_l", "inp_gate"]
    assert storages(kept, **GEMMA_3N) == ["f32", "bf16", "bf16", "matrix"]


def test_the_per_layer_embedding_of_gemma_3n_is_lengthened() -> None:
    frame = counted(
        [GEMMA_3N | {"n_layers": 30}], vocab_size=262400, per_layer_vocab_size=262144, is_tied=True,
        per_layer_padded_vocab_size=262400, per_layer_input_size=256, altup_inputs=4,
    )  # fmt: skip
    rows = frame.filter(pl.col("tensor") == "per_layer_token_embd").select("storage", "n_rows", "row_length")
    assert sorted(rows.rows()) == [("matrix", 262144, 7680), ("padding", 256, 7680)]
    outside = dict(frame.filter(pl.col("group").is_null()).select("tensor", "n_matrices").rows())
    assert outside["altup_proj"] == outside["altup_unembd_proj"] == 3


def test_gemma_4_merges_gate_and_up_of_its_experts() -> None:  # Gemma-4-26B-A4B
    gemma = layer(
        mixer="full", ffn="moe", hidden_size=2816, n_heads=16, n_kv_heads=2, k_head_dim=512, v_head_dim=512,
        value_is_key=True, q_norm_size=512, k_norm_size=512, ffn_size=2112, ffn_matrices=3, n_experts=128,
        n_experts_used=8, expert_ffn_size=704, fused_expert_gate_up=True, router_scale=True, n_norms=7,
        n_scalars=1,
    )  # fmt: skip
    assert gemma == {
        "attn_q": (1, 8192, 2816), "attn_k": (1, 1024, 2816), "attn_output": (1, 2816, 8192),
        "ffn_gate": (1, 2112, 2816), "ffn_up": (1, 2112, 2816), "ffn_down": (1, 2816, 2112),
        "ffn_gate_up_exps": (128, 1408, 2816), "ffn_down_exps": (128, 2816, 704),
        "ffn_gate_inp": (1, 128, 2816), "ffn_gate_inp.scale": (1, 1, 2816),
        "ffn_down_exps.scale": (1, 1, 128),
        "attn_q_norm": (1, 1, 512), "attn_k_norm": (1, 1, 512), "layer_norms": (1, 7, 2816),
        "layer_output_scale": (1, 1, 1),
    }  # fmt: skip


def test_compressed_attention_of_deepseek_v4() -> None:
    v4: Shapes = {
        "mixer": "sliding", "ffn": "none", "hidden_size": 4096, "n_heads": 64, "n_kv_heads": 1,
        "k_head_dim": 512, "v_head_dim": 0, "q_latent_dim": 1024, "o_groups": 8, "o_latent_dim": 1024,
        "n_sinks": 64, "n_norms": 2, "residual_streams": 4, "kv_compression": 128, "ffn_matrices": 3,
    }  # fmt: skip
    coarse = {
        "attn_q_a": (1, 1024, 4096), "attn_q_b": (1, 32768, 1024), "attn_kv": (1, 512, 4096),
        "attn_output_a": (1, 1024, 32768), "attn_output_b": (1, 4096, 8192), "attn_sinks": (1, 1, 64),
        "attn_compressor_kv": (1, 512, 4096), "attn_compressor_gate": (1, 512, 4096),
        "attn_compressor_ape": (1, 128, 512), "attn_q_a_norm": (1, 1, 1024), "attn_kv_norm": (1, 1, 512),
        "attn_compressor_norm": (1, 1, 512), "hc_fn": (1, 48, 16384), "hc_base": (1, 1, 54),
        "layer_norms": (1, 2, 4096),
    }  # fmt: skip
    assert layer(**v4) == coarse
    fine = layer(**v4 | {"kv_compression": 4, "index_n_heads": 64, "index_head_dim": 128})
    assert fine["attn_compressor_kv"] == (1, 1024, 4096)  # two overlapping windows
    assert fine["attn_compressor_ape"] == (1, 4, 1024)
    assert fine["indexer.attn_q_b"] == (1, 8192, 1024)
    assert fine["indexer.compressor_kv"] == (1, 256, 4096)


def test_experts_in_a_latent_width() -> None:  # Nemotron-3-Super
    latent = layer(
        mixer="none", ffn="moe", hidden_size=4096, ffn_matrices=2, n_experts=512, n_experts_used=22,
        expert_ffn_size=2688, expert_input_size=1024, shared_ffn_size=5376, router_bias=True, n_norms=1,
    )  # fmt: skip
    assert latent == {
        "ffn_up_exps": (512, 2688, 1024), "ffn_down_exps": (512, 1024, 2688),
        "ffn_up_shexp": (1, 5376, 4096), "ffn_down_shexp": (1, 4096, 5376),
        "ffn_latent_down": (1, 1024, 4096), "ffn_latent_up": (1, 4096, 1024),
        "ffn_gate_inp": (1, 512, 4096), "exp_probs_b": (1, 1, 512), "layer_norms": (1, 1, 4096),
    }  # fmt: skip


def test_a_prediction_layer_brings_a_joining_matrix_and_copies() -> None:  # GLM-4.5
    frame = counted([LLAMA, LLAMA | {"is_mtp": True}], vocab_size=1000, mtp_embedding_copies=2)
    joining = frame.filter(pl.col("tensor").str.starts_with("nextn"))
    assert joining["is_mtp"].all()
    assert shapes_of(joining) == {
        "nextn.eh_proj": (1, 4096, 8192), "nextn.norms": (1, 3, 4096),
        "nextn.embed_tokens": (1, 1000, 4096), "nextn.shared_head_head": (1, 1000, 4096),
    }  # fmt: skip


def test_a_prediction_layer_mixes_its_streams_at_its_head() -> None:  # DeepSeek-V4; ERNIE-4.5 has two norms
    layers = [LLAMA, LLAMA | {"is_mtp": True}]
    frame = counted(layers, vocab_size=1000, residual_streams=4, mtp_norms=2)
    joining = frame.filter(pl.col("tensor").str.starts_with("nextn"))
    assert shapes_of(joining) == {
        "nextn.eh_proj": (1, 4096, 8192), "nextn.norms": (1, 2, 4096),
        "nextn.hc_head_fn": (1, 4, 16384), "nextn.hc_head_base": (1, 1, 5),
    }  # fmt: skip


def test_a_table_may_give_every_token_its_experts() -> None:  # DeepSeek-V4-Flash, first three layers
    by_token = layer(**MLA | {"router_bias": False, "token_route_rows": 129280, "n_experts_used": 6})
    assert by_token["ffn_gate_tid2eid"] == (1, 129280, 6)
    assert "exp_probs_b" not in by_token


def test_the_embedding_may_be_longer_than_the_vocabulary() -> None:  # Llama-3.2-11B-Vision
    longer = model([LLAMA], vocab_size=128256, is_tied=False, extra_embedding_rows=8)
    assert longer["token_embd"] == (1, 128264, 4096)
    assert longer["output"] == (1, 128256, 4096)


def test_words_and_columns() -> None:
    frame = counted([LLAMA, MLA, GEMMA_3N])
    assert tuple(frame.columns) == CENSUS
    assert set(frame["part"]) <= set(PARTS)
    assert set(frame["storage"]) <= set(STORAGES)


SIZES = ("n_heads", "n_kv_heads", "k_head_dim", "v_head_dim", "q_norm_size", "ffn_size", "n_experts",
         "expert_ffn_size", "shared_ffn_size", "kv_latent_dim", "qk_nope_dim", "qk_rope_dim", "q_latent_dim",
         "mamba_inner", "mamba_state", "mamba_heads", "mamba_groups", "conv_kernel", "n_norms", "n_sinks",
         "per_layer_input_size", "altup_inputs", "laurel_rank", "n_scalars", "residual_scores")  # fmt: skip
FLAGS = ("qkv_bias", "o_bias", "ffn_bias", "expert_bias", "router_bias", "shared_gate", "norm_bias",
         "conv_bias", "fused_qkv", "fused_gate_up", "fused_expert_gate_up", "keeps_router_type")  # fmt: skip
# The other sizes decide which kind of part a layer has (MLA for heads, one Mamba for the other).
GROWING = ("n_heads", "ffn_size", "n_experts", "expert_ffn_size", "shared_ffn_size", "n_norms", "n_sinks",
           "per_layer_input_size", "laurel_rank", "n_scalars", "hidden_size", "qk_rope_dim")  # fmt: skip
any_layer = st.fixed_dictionaries(
    {"hidden_size": st.integers(1, 64), "ffn_matrices": st.sampled_from([2, 3]), "mixer": st.just("full"),
     **{name: st.integers(0, 32) for name in SIZES}, **{name: st.booleans() for name in FLAGS}}
)  # fmt: skip


def total(frame: pl.DataFrame) -> int:
    return int(frame.select(elements().sum()).item())


@settings(max_examples=12, deadline=None)
@given(any_layer, st.sampled_from(GROWING), st.integers(1, 8))
def test_elements_never_fall_when_a_size_rises(shapes: Shapes, name: str, more: int) -> None:
    assert total(counted([shapes | {name: shapes[name] + more}])) >= total(counted([shapes]))


@settings(max_examples=12, deadline=None)
@given(any_layer)
def test_fusing_and_storing_change_no_number_of_elements(shapes: Shapes) -> None:
    apart = shapes | {
        name: False for name in FLAGS if name.startswith("fused_") or name == "keeps_router_type"
    }
    assert total(counted([shapes])) == total(counted([apart]))


@settings(max_examples=12, deadline=None)
@given(st.lists(any_layer, min_size=1, max_size=3), st.booleans(), st.integers(0, 40))
def test_parts_sum_to_the_parameters(layers: list[Shapes], tied: bool, factors: int) -> None:
    rows = [
        {"model": "m", "group": group, "n_layers": group + 1, "is_mtp": False, **shapes, "hidden_size": 16}
        for group, shapes in enumerate(layers)
    ]
    models = pl.LazyFrame(
        [{"model": "m", "hidden_size": 16, "vocab_size": 50, "is_tied": tied, "rope_factors": factors}],
        schema=MODEL_GEOMETRY, orient="row",
    )  # fmt: skip
    frame = pl.LazyFrame(rows, schema=LAYER_GEOMETRY, orient="row")
    weights = census(frame, models).filter(~pl.col("storage").is_in(["generated", "padding"]))
    counted_by_hand = weights.select((elements() * pl.col("n_layers")).sum()).collect().item()
    computed = model_parameters(layer_parameters(frame), models).select("computed_params").collect().item()
    assert counted_by_hand == computed


@pytest.mark.parametrize("part", ["mixer", "ffn"])
def test_a_layer_without_the_part_has_none_of_its_tensors(part: str) -> None:
    empty = counted([{"mixer": "none", "ffn": "none", "hidden_size": 64, "ffn_matrices": 3, "n_norms": 1}])
    assert empty.filter((pl.col("group") == 0) & (pl.col("part") == part)).height == 0
