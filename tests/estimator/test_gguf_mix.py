"""Types that llama-quantize chooses, worked out by hand from its rules for small models.

Rules: `sources/quants/gguf_mix_rules.csv`. A model of 8 layers "uses more bits" (i < L/8, i >= 7L/8, or every
third between) in layers 0, 3, 6 and 7.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from estimator.gguf_files import kept_bytes
from estimator.gguf_mix import all_variants, quantize_facts, tensor_groups, tensor_types, typed_bytes
from estimator.layer_geometry import LAYER_GEOMETRY, MODEL_GEOMETRY
from estimator.tensor_census import census
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.quants import read_quants

Shapes = dict[str, Any]
Types = dict[str, dict[str, int]]
SOURCES = Path(__file__).parents[2] / "sources"
DENSE: Shapes = {
    "mixer": "full", "ffn": "dense", "hidden_size": 2048, "n_heads": 32, "n_kv_heads": 8, "k_head_dim": 64,
    "v_head_dim": 64, "ffn_size": 8192, "ffn_matrices": 3, "n_norms": 2,
}  # fmt: skip
EXPERTS: Shapes = {
    **DENSE, "ffn": "moe", "ffn_size": 0, "n_experts": 8, "n_experts_used": 2, "expert_ffn_size": 4096,
}  # fmt: skip
MANY: Shapes = {
    **EXPERTS, "n_kv_heads": 16, "n_experts": 128, "n_experts_used": 8, "expert_ffn_size": 512,
    "shared_ffn_size": 512,
}  # fmt: skip
FUSED: Shapes = {**DENSE, "fused_qkv": True}
LATENT: Shapes = {
    "mixer": "mla", "ffn": "moe", "hidden_size": 2048, "n_heads": 16, "k_head_dim": 192, "v_head_dim": 128,
    "q_latent_dim": 512, "kv_latent_dim": 512, "qk_nope_dim": 128, "qk_rope_dim": 64, "ffn_matrices": 3,
    "n_experts": 64, "n_experts_used": 6, "expert_ffn_size": 512, "shared_ffn_size": 1024, "n_norms": 2,
}  # fmt: skip


@cache
def tables() -> dict[str, pl.DataFrame]:
    log = FaultLog(SOURCES)
    read = read_quants(SOURCES, log, CitationUse())
    assert [str(fault) for fault in log] == []
    return read


def frames(layers: list[Shapes], model_type: str, **model: Any) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    rows = [
        {"model": "m", "group": group, "n_layers": 1, "is_mtp": False, **layer}
        for group, layer in enumerate(layers)
    ]
    geometry = {
        "model": "m", "hidden_size": layers[0]["hidden_size"], "vocab_size": 32000, "is_tied": False,
        "final_norm": True, **model,
    }  # fmt: skip
    models = pl.LazyFrame([geometry], schema=MODEL_GEOMETRY, orient="row")
    return pl.LazyFrame(rows, schema=LAYER_GEOMETRY, orient="row"), models.with_columns(
        model_type=pl.lit(model_type)
    )


def typed(layers: list[Shapes], model_type: str = "llama", **model: Any) -> pl.DataFrame:
    shaped, models = frames(layers, model_type, **model)
    facts = quantize_facts(shaped, models)
    groups = tensor_groups(census(shaped, models), facts)
    read = tables()
    chosen = tensor_types(
        groups, facts, read["gguf_mix_rules"].lazy(), read["gguf_fallbacks"].lazy(), every_recipe()
    )
    return chosen.filter(~pl.col("with_mtp")).collect()


def every_recipe() -> pl.LazyFrame:
    """Every file type with and without importance matrix, before and after 2026."""
    return tables()["gguf_mix_rules"].lazy().select("quant").unique().join(all_variants(), how="cross")


def stays(tensors: pl.LazyFrame) -> pl.DataFrame:
    """Bytes by part of what no file type changes."""
    counted = tensors.with_columns(bytes=kept_bytes() * pl.col("n_layers").cast(pl.Int64))
    return counted.group_by("part").agg(pl.col("bytes").sum()).filter(pl.col("bytes") > 0).collect()


def choices(frame: pl.DataFrame, quant: str, imatrix: bool = False, before_2026: bool = False) -> Types:
    """Per tensor, how many are stored in which type."""
    name = quant if "/" in quant else f"gguf/{quant}"
    here = frame.filter(
        (pl.col("quant").cast(pl.String) == name)
        & (pl.col("with_imatrix") == imatrix)
        & (pl.col("is_before_2026") == before_2026)
    )
    found: dict[str, Counter[str]] = {}
    for name, chosen, count in here.select("tensor", "tensor_type", "n_tensors").rows():
        found.setdefault(name, Counter())[str(chosen).removeprefix("ggml/")] += count
    return {name: dict(counts) for name, counts in found.items()}


def test_ik_iq4_ks_and_iq2_k_of_a_dense_model(dense: pl.DataFrame) -> None:
    plain = {name: {"ik/iq4_ks": 8} for name in ("attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up")}
    assert choices(dense, "ik/iq4_ks") == plain | {
        "token_embd": {"ik/iq4_ks": 1}, "output": {"q6_k": 1}, "attn_v": {"ik/iq5_k": 8},
        "ffn_down": {"q5_k": 1, "ik/iq4_ks": 7},
    }  # fmt: skip
    assert choices(dense, "ik/iq4_ks", imatrix=True)["ffn_down"] == {"ik/iq4_ks": 8}
    low = choices(dense, "ik/iq2_k")
    assert (low["output"], low["attn_v"], low["attn_output"]) == (
        {"q5_k": 1}, {"ik/iq4_k": 8}, {"ik/iq3_k": 8}
    )  # fmt: skip


def test_ik_gives_a_tied_embedding_a_type_of_its_own() -> None:
    tied = typed([DENSE] * 8, is_tied=True)
    assert choices(tied, "ik/iq2_k")["token_embd"] == {"ik/iq4_k": 1}
    assert choices(tied, "ik/iq4_kss")["token_embd"] == {"ik/iq5_k": 1}
    assert choices(tied, "ik/iq4_k")["token_embd"] == {"q6_k": 1}


def test_ik_keys_of_mixtures_by_name_and_layer_0_of_iq2_kt(many_experts: pl.DataFrame) -> None:
    mixed = choices(many_experts, "ik/iq2_kt")
    assert mixed["attn_q"] == mixed["attn_k"] == {"q4_k": 8}
    assert mixed["ffn_down_exps"] == {"ik/iq3_k": 1, "ik/iq2_kt": 7}
    assert mixed["ffn_up_exps"] == {"ik/iq3_k": 1, "ik/iq2_kt": 7}
    assert mixed["ffn_up_shexp"] == {"ik/iq3_k": 1, "ik/iq4_k": 7}
    latent = typed([{**LATENT}] * 2, model_type="deepseek_v3")
    by_name = choices(latent, "ik/iq4_k")
    assert by_name["attn_kv_a_mqa"] == by_name["attn_k_b"] == {"q8_0": 2}
    assert by_name["attn_v_b"] == by_name["attn_q_a"] == {"ik/iq4_k": 2}


def test_ik_gives_8b_models_with_a_large_vocabulary_smaller_queries() -> None:
    small = typed([DENSE] * 32)
    large = typed([DENSE] * 32, vocab_size=128256)
    assert choices(small, "ik/iq5_k")["attn_q"] == {"ik/iq5_k": 32}
    assert choices(large, "ik/iq5_k")["attn_q"] == {"ik/iq4_k": 32}
    assert choices(large, "ik/iq5_k")["attn_v"] == {"ik/iq6_k": 32}
    assert choices(large, "q5_k_s") == choices(small, "q5_k_s")


@pytest.fixture(scope="module")
def dense() -> pl.DataFrame:
    return typed([DENSE] * 8)


@pytest.fixture(scope="module")
def eight_experts() -> pl.DataFrame:
    return typed([EXPERTS] * 8)


@pytest.fixture(scope="module")
def many_experts() -> pl.DataFrame:
    return typed([MANY] * 8)


def test_a_dense_model_of_eight_layers(dense: pl.DataFrame) -> None:
    assert choices(dense, "q4_k_m") == {
        "token_embd": {"q4_k": 1}, "output": {"q6_k": 1}, "attn_q": {"q4_k": 8}, "attn_k": {"q4_k": 8},
        "attn_v": {"q6_k": 4, "q4_k": 4}, "attn_output": {"q4_k": 8}, "ffn_gate": {"q4_k": 8},
        "ffn_up": {"q4_k": 8}, "ffn_down": {"q6_k": 4, "q4_k": 4},
    }  # fmt: skip
    assert choices(dense, "q3_k_m") == {
        "token_embd": {"q3_k": 1}, "output": {"q6_k": 1}, "attn_q": {"q3_k": 8}, "attn_k": {"q3_k": 8},
        "attn_v": {"q5_k": 2, "q4_k": 6}, "attn_output": {"q4_k": 8}, "ffn_gate": {"q3_k": 8},
        "ffn_up": {"q3_k": 8}, "ffn_down": {"q4_k": 8},
    }  # fmt: skip
    assert choices(dense, "q2_k") == {
        "token_embd": {"q2_k": 1}, "output": {"q6_k": 1}, "attn_q": {"q2_k": 8}, "attn_k": {"q2_k": 8},
        "attn_v": {"q4_k": 8}, "attn_output": {"q3_k": 8}, "ffn_gate": {"q2_k": 8}, "ffn_up": {"q2_k": 8},
        "ffn_down": {"q3_k": 8},
    }  # fmt: skip
    assert choices(dense, "q4_k_s")["attn_v"] == {"q5_k": 4, "q4_k": 4}
    assert choices(dense, "q4_k_s")["ffn_down"] == {"q5_k": 1, "q4_k": 7}
    assert choices(dense, "iq3_xs")["ffn_up"] == {"iq3_xxs": 6, "iq3_s": 2}
    assert choices(dense, "tq2_0")["token_embd"] == {"q4_k": 1}


def test_which_layers_get_more_bits(dense: pl.DataFrame) -> None:
    downs = dense.filter(
        (pl.col("quant").cast(pl.String) == "gguf/q4_k_m") & ~pl.col("with_imatrix")
        & ~pl.col("is_before_2026") & (pl.col("tensor") == "ffn_down")
    )  # fmt: skip
    chosen = pl.col("tensor_type").cast(pl.String)
    lifted = downs.group_by("more", "first_eighth", chosen).agg(pl.col("n_tensors").sum())
    assert sorted(lifted.rows()) == [
        (False, False, "ggml/q4_k", 4), (True, False, "ggml/q6_k", 3), (True, True, "ggml/q6_k", 1),
    ]  # fmt: skip


def test_16_bit_files_do_not_mix(dense: pl.DataFrame) -> None:
    assert {kind for counts in choices(dense, "bf16").values() for kind in counts} == {"bf16"}


def test_an_importance_matrix_changes_some_types(dense: pl.DataFrame) -> None:
    without, with_one = choices(dense, "iq3_xxs"), choices(dense, "iq3_xxs", imatrix=True)
    assert without == {
        "token_embd": {"iq3_s": 1}, "output": {"q5_k": 1}, "attn_q": {"iq2_s": 8}, "attn_k": {"iq2_s": 8},
        "attn_v": {"q4_k": 8}, "attn_output": {"iq3_s": 8}, "ffn_gate": {"iq3_xxs": 8},
        "ffn_up": {"iq3_xxs": 8}, "ffn_down": {"q4_k": 1, "q3_k": 7},
    }  # fmt: skip
    assert with_one == without | {"ffn_down": {"iq3_xxs": 8}}
    assert choices(dense, "q4_0")["ffn_down"] == {"q4_0": 8}
    assert choices(dense, "q4_0", imatrix=True)["ffn_down"] == {"q4_1": 1, "q4_0": 7}
    assert choices(dense, "iq4_xs")["ffn_down"] == {"q5_k": 1, "iq4_xs": 7}
    assert choices(dense, "iq4_xs", imatrix=True)["ffn_down"] == {"iq4_xs": 8}
    assert choices(dense, "q4_k_m", imatrix=True) == choices(dense, "q4_k_m")


def test_eight_experts_lift_attention(eight_experts: pl.DataFrame) -> None:
    chosen = choices(eight_experts, "q4_k_m")
    assert chosen == {
        "token_embd": {"q4_k": 1}, "output": {"q6_k": 1}, "attn_q": {"q4_k": 8}, "attn_k": {"q8_0": 8},
        "attn_v": {"q8_0": 8}, "attn_output": {"q5_k": 8}, "ffn_gate_exps": {"q4_k": 8},
        "ffn_up_exps": {"q4_k": 8}, "ffn_down_exps": {"q6_k": 4, "q4_k": 4},
    }  # fmt: skip
    assert choices(eight_experts, "q3_k_l")["attn_output"] == {"q3_k": 8}
    assert choices(eight_experts, "iq3_m")["ffn_down_exps"] == {"q4_k": 4, "iq3_s": 4}
    assert choices(eight_experts, "iq2_xxs")["attn_k"] == {"q4_k": 8}


def test_128_experts_do_not(many_experts: pl.DataFrame) -> None:
    chosen = choices(many_experts, "q4_k_m")
    assert chosen["attn_v"] == {"q6_k": 4, "q4_k": 4}
    assert chosen["attn_k"] == {"q4_k": 8}
    assert chosen["attn_output"] == {"q4_k": 8}
    assert chosen["ffn_down_exps"] == chosen["ffn_down_shexp"] == {"q6_k": 4, "q4_k": 4}
    assert choices(many_experts, "q2_k")["attn_v"] == {"q3_k": 8}  # two heads per KV head
    low = choices(many_experts, "iq2_xxs")
    assert low["attn_v"] == {"q4_k": 8}  # four experts or more
    # a plain counter, which the shared expert's tensor advances too: one tensor of the first eighth
    assert low["ffn_down_exps"] == {"q2_k": 1, "iq2_xxs": 7}
    assert low["ffn_down_shexp"] == {"iq2_xxs": 8}


def test_mxfp4_is_for_stacked_tensors(many_experts: pl.DataFrame) -> None:
    chosen = choices(many_experts, "mxfp4_moe")
    stacked = {name for name, counts in chosen.items() if counts == {"mxfp4": 8}}
    assert stacked == {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}
    assert all(set(counts) == {"q8_0"} for name, counts in chosen.items() if name not in stacked)


@pytest.mark.parametrize(("model_type", "expected"), [("deepseek_v3", "mxfp4"), ("bailing_hybrid", "q8_0")])
def test_projections_per_head_count_as_stacked_but_in_ling_3(model_type: str, expected: str) -> None:
    latent = MANY | {"mixer": "mla", "kv_latent_dim": 512, "qk_nope_dim": 64, "qk_rope_dim": 32}
    chosen = choices(typed([latent] * 2, model_type), "mxfp4_moe")
    assert chosen["attn_k_b"] == chosen["attn_v_b"] == {expected: 2}
    assert chosen["ffn_up_exps"] == {"mxfp4": 2}


def test_rows_of_896_fall_back_and_a_tied_embedding_is_the_output() -> None:  # as in Qwen2.5-0.5B
    small = DENSE | {"hidden_size": 896, "n_heads": 14, "n_kv_heads": 2, "ffn_size": 4864}
    frame = typed([small] * 8, is_tied=True)
    assert choices(frame, "q4_k_m") == {
        "token_embd": {"q8_0": 1}, "attn_q": {"q5_0": 8}, "attn_k": {"q5_0": 8},
        "attn_v": {"q8_0": 4, "q5_0": 4}, "attn_output": {"q5_0": 8}, "ffn_gate": {"q5_0": 8},
        "ffn_up": {"q5_0": 8}, "ffn_down": {"q6_k": 4, "q4_k": 4},
    }  # fmt: skip
    assert choices(frame, "q2_k")["attn_q"] == {"q4_0": 8}
    assert choices(frame, "iq4_xs")["attn_q"] == {"iq4_nl": 8}
    # the output rule looks at the blocks of the file type, which fit; its own choice does not
    assert choices(frame, "q4_0")["token_embd"] == {"q8_0": 1}
    fallback = frame.filter(pl.col("quant").cast(pl.String) == "gguf/q4_k_m").select("tensor", "is_fallback")
    assert ("attn_q", True) in fallback.rows()
    assert ("ffn_down", True) not in fallback.rows()


def test_rows_of_2880_fall_back() -> None:  # as in gpt-oss: 11.25 blocks of 256
    oss = MANY | {"hidden_size": 2880, "expert_ffn_size": 2880, "shared_ffn_size": 0}
    frame = typed([oss] * 8)
    chosen = choices(frame, "q4_k_m")
    assert chosen["ffn_up_exps"] == {"q5_0": 8}
    assert chosen["ffn_down_exps"] == {"q8_0": 4, "q5_0": 4}
    assert chosen["attn_output"] == {"q4_k": 8}  # rows of 32 x 64
    assert chosen["output"] == {"q8_0": 1}
    assert choices(frame, "q5_k_s")["ffn_up_exps"] == {"q5_1": 8}
    assert choices(frame, "mxfp4_moe")["ffn_up_exps"] == {"mxfp4": 8}


def test_rows_that_fit_no_block_stay_in_16_bit() -> None:
    frame = typed([DENSE | {"hidden_size": 720}] * 2)  # 22.5 blocks of 32
    assert choices(frame, "q4_k_m")["ffn_up"] == {"f16": 2}
    assert choices(frame, "q8_0")["ffn_up"] == {"f16": 2}


def test_untied_embeddings_follow_their_own_rule_tied_ones_the_output_rule() -> None:
    per_layer: Shapes = {"per_layer_vocab_size": 32000, "per_layer_input_size": 256}
    untied = choices(typed([DENSE] * 8, is_tied=False, **per_layer), "q2_k")
    tied = choices(typed([DENSE] * 8, is_tied=True, **per_layer), "q2_k")
    assert untied["token_embd"] == untied["per_layer_token_embd"] == {"q2_k": 1}
    assert tied["token_embd"] == tied["per_layer_token_embd"] == {"q6_k": 1}


def test_fused_projections_had_a_rule_of_their_own_before_2026() -> None:
    frame = typed([FUSED] * 8, "phi3")
    assert choices(frame, "q4_k_m")["attn_qkv"] == {"q6_k": 4, "q4_k": 4}
    assert choices(frame, "q4_k_m", before_2026=True)["attn_qkv"] == {"q5_k": 8}
    assert choices(frame, "q2_k")["attn_qkv"] == {"q4_k": 8}
    assert choices(frame, "q2_k", before_2026=True)["attn_qkv"] == {"q2_k": 8}


def test_falcon_keeps_more_of_its_base_type() -> None:
    # 16 layers: one in the first sixteenth, more bits in 0, 1, 4, 7, 10, 13, 14 and 15
    frame = typed([FUSED | {"ffn_matrices": 2}] * 16, "falcon")
    chosen = choices(frame, "q4_k_m")
    assert chosen["ffn_down"] == {"q6_k": 1, "q5_k": 7, "q4_k": 8}
    assert chosen["output"] == {"q8_0": 1}
    assert choices(frame, "q3_k_m")["attn_output"] == {"q3_k": 16}


@pytest.mark.parametrize(("model_type", "rest"), [("llama", "q5_k"), ("qwen3", "q4_k")])
def test_80_layers_of_llama_lift_the_values(model_type: str, rest: str) -> None:
    chosen = choices(typed([DENSE] * 80, model_type), "q4_k_m")
    assert chosen["attn_v"] == {"q6_k": 40, rest: 40}


def test_dense_blocks_without_ffn_are_counted_against_all_layers() -> None:
    # as in Nemotron-H: 4 feed-forwards in 16 blocks, the first 16 / 8 of them lifted
    mamba = {
        "mixer": "mamba", "ffn": "none", "hidden_size": 2048, "mamba_inner": 4096, "mamba_state": 128,
        "mamba_heads": 64, "mamba_groups": 8, "conv_kernel": 4, "ffn_matrices": 2, "n_norms": 1,
    }  # fmt: skip
    mlp = {
        "mixer": "none", "ffn": "dense", "hidden_size": 2048, "ffn_size": 8192, "ffn_matrices": 2,
        "n_norms": 1,
    }  # fmt: skip
    attention = DENSE | {"ffn": "none", "ffn_size": 0, "n_norms": 1}
    frame = typed([mamba, mlp, mamba, attention] * 4, "nemotron_h")
    chosen = choices(frame, "q2_k_s")
    assert chosen["ffn_down"] == {"q4_k": 2, "q2_k": 2}
    assert chosen["attn_v"] == {"q2_k": 4}  # the first block has no KV heads, so no grouping is seen
    assert choices(frame, "q4_k_m")["attn_v"] == {"q6_k": 2, "q4_k": 2}


def facts(layers: list[Shapes], model_type: str = "llama") -> dict[str, Any]:
    return quantize_facts(*frames(layers, model_type)).collect().row(0, named=True)


def test_grouping_is_what_the_first_layer_says() -> None:
    assert facts([DENSE, DENSE | {"n_kv_heads": 32}])["gqa"] == 4
    latent = DENSE | {"mixer": "mla", "n_kv_heads": None, "kv_latent_dim": 512}
    assert facts([latent])["gqa"] == 32  # one latent KV head
    assert facts([latent | {"fused_kv_up": True}])["gqa"] == 1
    delta = {
        "mixer": "linear", "ffn": "none", "hidden_size": 2048, "linear_kind": "gated_delta", "ffn_matrices": 3
    }  # fmt: skip
    assert facts([delta, DENSE])["gqa"] == 4  # one number for all layers
    assert facts([delta | {"linear_kind": "kimi_delta"}, latent])["gqa"] == 0


def test_prediction_layers_shift_the_count_of_layers() -> None:
    shaped, models = frames([DENSE] * 7 + [DENSE | {"is_mtp": True}], "llama")
    known = quantize_facts(shaped, models)
    groups = tensor_groups(census(shaped, models), known)
    read = tables()
    chosen = tensor_types(
        groups, known, read["gguf_mix_rules"].lazy(), read["gguf_fallbacks"].lazy(), every_recipe()
    ).collect()
    # 7 layers: 7 // 8 = 0, so from 49 // 8 = 6 on and every third from 2; 8 layers: 0, 3, 6 and 7
    assert choices(chosen.filter(~pl.col("with_mtp")), "q4_k_m")["ffn_down"] == {"q6_k": 3, "q4_k": 4}
    assert choices(chosen.filter("with_mtp"), "q4_k_m")["ffn_down"] == {"q6_k": 4, "q4_k": 4}


def test_bytes_are_whole_blocks_and_vectors_are_32_bit(dense: pl.DataFrame) -> None:
    sizes = tables()["quants"].filter(pl.col("block_size").is_not_null())
    blocks = sizes.select("block_size", "block_bytes", "row_overhead_bytes", tensor_type="quant")
    sized = typed_bytes(dense.lazy(), blocks.lazy()).collect()
    here = sized.filter(
        (pl.col("quant").cast(pl.String) == "gguf/q8_0") & ~pl.col("with_imatrix") & ~pl.col("is_before_2026")
    )
    matrices = 8 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192) + 2 * 32000 * 2048
    assert here["bytes"].sum() == matrices // 32 * 34  # every matrix of this model in Q8_0
    shaped, models = frames([DENSE] * 8, "llama")
    stay = stays(census(shaped, models))
    assert stay["bytes"].sum() == 4 * (8 * 2 + 1) * 2048
    kept = stays(census(*frames([EXPERTS | {"keeps_router_type": True}], "dbrx")))
    assert kept.filter(pl.col("part") == "ffn")["bytes"].to_list() == [2 * 8 * 2048]
