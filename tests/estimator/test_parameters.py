"""Parameter formulas against hand arithmetic, and what must hold for any shapes."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.layer_geometry import LAYER_GEOMETRY, MODEL_GEOMETRY
from estimator.parameters import layer_parameters, model_parameters

PARTS = ("mixer_params", "ffn_params", "expert_params", "norm_params")
LLAMA_3_8B: dict[str, Any] = {
    "mixer": "full", "ffn": "dense", "hidden_size": 4096, "n_heads": 32, "n_kv_heads": 8, "k_head_dim": 128,
    "v_head_dim": 128, "ffn_size": 14336, "ffn_matrices": 3, "n_norms": 2,
}  # fmt: skip


def layers(*rows: dict[str, Any]) -> pl.LazyFrame:
    filled = [
        {"model": "m", "group": group, "n_layers": 1, "is_mtp": False, **row}
        for group, row in enumerate(rows)
    ]
    return layer_parameters(pl.LazyFrame(filled, schema=LAYER_GEOMETRY, orient="row"))


def one(**shapes: Any) -> dict[str, int]:
    return layers(shapes).select(PARTS).collect().row(0, named=True)


def whole(rows: list[dict[str, Any]], **shapes: Any) -> dict[str, int]:
    geometry = {"model": "m", "final_norm": True, **shapes}
    models = pl.LazyFrame([geometry], schema=MODEL_GEOMETRY, orient="row")
    return model_parameters(layers(*rows), models).collect().row(0, named=True)


def test_a_llama_3_8b_layer_and_model() -> None:
    assert one(**LLAMA_3_8B) == {
        "mixer_params": 4096 * (32 + 8 + 8 + 32) * 128,
        "ffn_params": 3 * 4096 * 14336,
        "expert_params": 0,
        "norm_params": 2 * 4096,
    }
    counted = whole([LLAMA_3_8B | {"n_layers": 32}], hidden_size=4096, vocab_size=128256, is_tied=False)
    assert counted["computed_params"] == 8_030_261_248
    assert (
        counted["active_params"] == 8_030_261_248 - 128256 * 4096
    )  # one embedding row is read, not the table


def test_biases_norms_gate_and_sinks_of_attention() -> None:
    plain = one(**LLAMA_3_8B)
    dressed = one(**LLAMA_3_8B, qkv_bias=True, o_bias=True, q_norm_size=128, k_norm_size=128, n_sinks=32,
                  output_gate_size=4096)  # fmt: skip
    assert dressed["mixer_params"] - plain["mixer_params"] == 6144 + 4096 + 32 + 4096 * 4096
    assert dressed["norm_params"] - plain["norm_params"] == 256


def test_a_layer_that_shares_keys_and_values_has_no_projections_for_them() -> None:
    shared = one(**LLAMA_3_8B, shares_kv=True, k_norm_size=128)
    kept = one(**LLAMA_3_8B, shares_kv=True, k_norm_size=128, keeps_kv_weights=True)
    assert kept["mixer_params"] - shared["mixer_params"] == 2 * 4096 * 1024
    assert kept["norm_params"] - shared["norm_params"] == 128
    assert (
        one(**LLAMA_3_8B, value_is_key=True)["mixer_params"]
        == one(**LLAMA_3_8B)["mixer_params"] - 4096 * 1024
    )


def test_a_deepseek_v3_layer() -> None:
    counted = one(
        mixer="mla", ffn="moe", hidden_size=7168, n_heads=128, k_head_dim=192, v_head_dim=128,
        q_latent_dim=1536, kv_latent_dim=512, qk_nope_dim=128, qk_rope_dim=64, latent_dim=576, ffn_matrices=3,
        n_experts=256, n_experts_used=8, expert_ffn_size=2048, shared_ffn_size=2048, router_bias=True,
        n_norms=2,
    )  # fmt: skip
    assert (
        counted["mixer_params"] == 1536 * (7168 + 128 * 192) + 7168 * 576 + 512 * 128 * 256 + 7168 * 128 * 128
    )
    assert counted["expert_params"] == 256 * 3 * 7168 * 2048
    assert counted["ffn_params"] == 3 * 7168 * 2048 + 256 * 7168 + 256
    assert counted["norm_params"] == 2 * 7168 + 1536 + 512


def test_the_indexer_of_deepseek_v32() -> None:
    latent = {"mixer": "mla", "ffn": "none", "hidden_size": 7168, "n_heads": 128, "v_head_dim": 128,
              "q_latent_dim": 1536, "kv_latent_dim": 512, "qk_nope_dim": 128, "qk_rope_dim": 64}  # fmt: skip
    plain, indexed = one(**latent), one(**latent, index_n_heads=64, index_head_dim=128)
    assert indexed["mixer_params"] - plain["mixer_params"] == 1536 * 64 * 128 + 7168 * 128 + 7168 * 64
    assert indexed["norm_params"] - plain["norm_params"] == 2 * 128


def test_recurrent_mixers() -> None:
    d = 2048
    delta = one(mixer="linear", ffn="none", hidden_size=d, linear_kind="gated_delta", linear_key_heads=16,
                linear_value_heads=32, linear_key_dim=128, linear_value_dim=128, conv_kernel=4)  # fmt: skip
    assert delta["mixer_params"] == d * (2 * 2048 + 2 * 4096 + 64) + 8192 * 4 + 64 + 4096 * d
    assert delta["norm_params"] == 128
    second = one(mixer="mamba", ffn="none", hidden_size=d, mamba_inner=4096, mamba_state=128, mamba_heads=64,
                 mamba_groups=8, conv_kernel=4, conv_bias=True, mamba_norm_size=4096)  # fmt: skip
    assert second["mixer_params"] == d * (4096 + 6144 + 64) + 4096 * d + 6144 * 5 + 3 * 64
    first = one(mixer="mamba", ffn="none", hidden_size=d, mamba_inner=4096, mamba_state=16, mamba_dt_rank=128,
                conv_kernel=4, conv_bias=True)  # fmt: skip
    assert first["mixer_params"] == 3 * d * 4096 + 4096 * 5 + 4096 * 160 + 128 * 4096 + 4096 + 4096 * 17
    assert one(mixer="conv", ffn="none", hidden_size=d, conv_kernel=3)["mixer_params"] == 4 * d * d + 3 * d


def test_prediction_layers_are_counted_apart() -> None:
    plain = whole([LLAMA_3_8B], hidden_size=4096, vocab_size=1000)
    predicting = whole([LLAMA_3_8B, LLAMA_3_8B | {"is_mtp": True}], hidden_size=4096, vocab_size=1000)
    assert predicting["computed_params"] == plain["computed_params"]
    assert predicting["mtp_params"] == sum(one(**LLAMA_3_8B).values()) + 2 * 4096**2 + 3 * 4096


def test_a_tied_head_is_read_but_not_stored() -> None:
    tied = whole([LLAMA_3_8B], hidden_size=4096, vocab_size=1000, is_tied=True)
    untied = whole([LLAMA_3_8B], hidden_size=4096, vocab_size=1000, is_tied=False)
    assert (tied["head_params"], untied["head_params"]) == (0, 4_096_000)
    assert tied["active_params"] == untied["active_params"]


sizes = st.integers(1, 300)


@settings(max_examples=60, deadline=None)
@given(d=sizes, heads=sizes, kv=sizes, dim=sizes, ffn=sizes, experts=sizes, used=st.integers(1, 8), v=sizes,
       n=st.integers(1, 50))  # fmt: skip
def test_parts_add_up_and_active_is_within_total(
    d: int, heads: int, kv: int, dim: int, ffn: int, experts: int, used: int, v: int, n: int
) -> None:
    used = min(used, experts)
    row = {
        "mixer": "full", "ffn": "moe", "hidden_size": d, "n_heads": heads, "n_kv_heads": kv,
        "k_head_dim": dim, "v_head_dim": dim, "ffn_matrices": 3, "n_experts": experts, "n_experts_used": used,
        "expert_ffn_size": ffn, "n_norms": 2, "n_layers": n,
    }  # fmt: skip
    counted = whole([row], hidden_size=d, vocab_size=v)
    parts = ("embedding_params", "head_params", "per_layer_embedding_params", "body_params", "expert_params")
    assert counted["computed_params"] == sum(counted[part] for part in parts)
    assert 0 < counted["active_params"] < counted["computed_params"]
    assert (
        counted["expert_params"] * used
        == (counted["active_params"] - counted["body_params"] - v * d) * experts
    )


@settings(max_examples=40, deadline=None)
@given(column=st.sampled_from(["n_heads", "n_kv_heads", "k_head_dim", "v_head_dim", "ffn_size"]), more=sizes)
def test_a_larger_shape_never_has_fewer_parameters(column: str, more: int) -> None:
    larger = one(**LLAMA_3_8B | {column: LLAMA_3_8B[column] + more})
    assert sum(larger.values()) > sum(one(**LLAMA_3_8B).values())
