"""What engines other than llama.cpp reserve: figures from their logs and rules, and what must always hold."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.attention_state import ENGINE_SETTINGS, cache_bytes_by_setting, with_engine_settings
from estimator.engine_cache import RULES, attention_block_tokens, reserved_cache
from tests.estimator.cube_cases import layer_frame

NOTHING: dict[str, Any] = dict.fromkeys({**RULES, **ENGINE_SETTINGS})
VLLM = {**NOTHING, "cache_layout": "block_groups", "block_tokens": 16, "in_flight_tokens": 4096,
        "keeps_chunks_whole": True, "latent_block_tokens": 128, "state_pages": 2,
        "half_state_types": "qwen3_next", "index_bytes_per_element": 1.03125, "block_flag": "--block-size",
        "window_flag": "--disable-hybrid-kv-cache-manager", "state_flag": "--no-enable-prefix-caching",
        "latent_flag": "--decode-context-parallel-size"}  # fmt: skip
SGLANG = {**NOTHING, "cache_layout": "window_share", "block_tokens": 1, "in_flight_tokens": 0,
          "window_share": 0.8}  # fmt: skip
LMDEPLOY = {**NOTHING, "cache_layout": "whole", "block_tokens": 64, "in_flight_tokens": 0}
MLX = {**NOTHING, "cache_layout": "layers", "block_tokens": 256, "in_flight_tokens": 0,
       "window_margin_tokens": 2047}  # fmt: skip
ENGINES = [VLLM, SGLANG, LMDEPLOY, MLX]
GEMMA_3_27B = (
    {"mixer": "sliding", "n_layers": 52, "n_kv_heads": 16, "window_tokens": 1024},
    {"group": 1, "n_layers": 10, "n_kv_heads": 16},
)
GPT_OSS_20B = (
    {"mixer": "sliding", "n_layers": 12, "k_head_dim": 64, "v_head_dim": 64, "window_tokens": 128},
    {"group": 1, "n_layers": 12, "k_head_dim": 64, "v_head_dim": 64},
)
QWEN3_NEXT = (
    {"mixer": "linear", "n_layers": 36, "n_kv_heads": None, "k_head_dim": None, "v_head_dim": None,
     "f32_state_elements": 524_288, "conv_state_elements": 24_576},
    {"group": 1, "n_layers": 12, "n_kv_heads": 2, "k_head_dim": 256, "v_head_dim": 256},
)  # fmt: skip
DEEPSEEK_V32 = (
    {"mixer": "mla", "n_layers": 61, "n_heads": 128, "n_kv_heads": None, "k_head_dim": 192,
     "latent_dim": 576, "index_head_dim": 128, "selected_tokens": 2048},
)  # fmt: skip


def reserved(
    layers: tuple[dict[str, Any], ...],
    engine: dict[str, Any],
    context: int,
    n_gpus: int = 1,
    model_type: str | None = None,
    **storage: Any,
) -> dict[str, Any]:
    values = {"setting": 0, "context_tokens": context, "k_bytes_per_element": 2.0, "v_bytes_per_element": 2.0,
              "n_gpus": n_gpus, **engine, **storage}  # fmt: skip
    one = pl.LazyFrame([values], schema_overrides={**ENGINE_SETTINGS, **RULES})
    typed = layer_frame(*layers).with_columns(model_type=pl.lit(model_type, dtype=pl.String))
    found = reserved_cache(typed, one).collect()
    assert found.height == 1
    return found.row(0, named=True)


@pytest.mark.parametrize(
    ("state_bytes", "token_bytes", "is_latent", "tokens"),
    [
        pytest.param(524_288 * 2 + 24_576 * 2, 2 * 512 * 2, False, 544, id="qwen3-next, 16-bit state"),
        pytest.param(786_432 * 4 + 30_720 * 2, 4 * 512, False, 1568, id="qwen3.5-27b, fp8 cache"),
        pytest.param(786_432 * 4 + 30_720 * 2, 4 * 512 * 2, False, 784, id="qwen3.5-27b, 16-bit cache"),
        pytest.param(1_572_864 * 4, 576 * 2, True, 5504, id="latent beside states: steps of 128"),
        pytest.param(0, 4096, False, 16, id="no state"),
        pytest.param(10**6, 0, False, 16, id="no attention"),
    ],
)
def test_blocks_are_raised_to_the_page_of_a_state(
    state_bytes: int, token_bytes: int, is_latent: bool, tokens: int
) -> None:
    """544 and 1568 are blocks that vLLM's own logs print for these models."""
    row = pl.DataFrame(
        {"block_tokens": [16], "latent_block_tokens": [128], "is_latent": [is_latent],
         "largest_state_bytes": [state_bytes], "largest_token_bytes": [token_bytes]}
    )  # fmt: skip
    assert row.select(attention_block_tokens()).item() == tokens


def test_state_pages_are_as_large_as_attention_pages() -> None:
    """Qwen3-Next on vLLM: blocks of 544 tokens x 2,048 bytes; 12 full layers are one group and 36 states
    three; a request of 32,768 tokens takes 61 blocks and two pages of each group of states.
    """
    found = reserved(QWEN3_NEXT, VLLM, 32_768, model_type="qwen3_next")
    assert found["reserved_bytes"] == 12 * (61 + 3 * 2) * 544 * 2048
    assert found["reserve_flag"] == "--no-enable-prefix-caching"


def test_windows_reserve_as_much_as_full_layers_with_large_batches() -> None:
    """gpt-oss-20b, 32 requests of 8,192 tokens on a card that computes 8,192 tokens at a time: 12.0 GiB
    (hf-mem pull request 70 saw that); the layers' own need is half of it.
    """
    found = reserved(GPT_OSS_20B, {**VLLM, "in_flight_tokens": 16_384}, 8192)
    per_layer = 16 * 8 * 128 * 2
    assert found["reserved_bytes"] == 12 * (512 + 513) * per_layer
    assert round(32 * found["reserved_bytes"] / 2**30, 1) == 12.0


def test_gemma_4_31b_on_an_h200() -> None:
    """ConfigIQ issue 112: 626,949 tokens in 64.68 GiB and 1,007,303 in 103.92, so 108.2 KiB per token at
    262,144 tokens, one batch of 8,192 in flight: 10 full layers x 4 heads of 512, 50 windows of
    1,024 x 16 heads of 256.
    """
    layers = ({"n_layers": 10, "n_kv_heads": 4, "k_head_dim": 512, "v_head_dim": 512},
              {"group": 1, "mixer": "sliding", "n_layers": 50, "n_kv_heads": 16, "k_head_dim": 256,
               "v_head_dim": 256, "window_tokens": 1024})  # fmt: skip
    found = reserved(layers, {**VLLM, "in_flight_tokens": 8192}, 262_144)["reserved_bytes"]
    assert round(found / 262_144 / 1024, 1) == 108.2
    for pool_gib, tokens in ((64.68, 626_949), (103.92, 1_007_303)):
        assert pool_gib * 2**30 / found * 262_144 == pytest.approx(tokens, rel=1e-4)


def test_last_blocks_are_whole() -> None:
    """1,000 tokens are 63 blocks of 16, 16 of 64, or 4 steps of 256."""
    per_token = 131_072
    for engine, tokens in ((VLLM, 1008), (LMDEPLOY, 1024), (MLX, 1024), (SGLANG, 1000)):
        assert reserved(({},), engine, 1000)["reserved_bytes"] == tokens * per_token


def test_chunks_are_kept_whole_unless_vllm_is_told_otherwise() -> None:
    layers = ({"mixer": "chunked", "n_layers": 36, "window_tokens": 8192}, {"group": 1, "n_layers": 12})
    whole = reserved(layers, VLLM, 131_072)["reserved_bytes"]
    assert whole == 48 * 4096 * 131_072
    allowed = reserved(layers, {**VLLM, "keeps_chunks_whole": False}, 131_072)["reserved_bytes"]
    assert allowed == 12 * 16 * 4096 * (131_072 // 16 + 3 * ((8192 - 1 + 4096 + 15) // 16 + 1))


def test_smaller_pages_hold_more_tokens_or_are_padded() -> None:
    """Two head sizes: half the bytes per token make blocks of 32 tokens; 3/4 of them are padded to 4/4."""
    full = {"n_layers": 10, "n_kv_heads": 16}
    for heads, window_blocks in ((8, 160 + 1), (12, 320 + 1)):
        layers = (full, {"group": 1, "mixer": "sliding", "n_layers": 10, "n_kv_heads": heads,
                         "window_tokens": 1024})  # fmt: skip
        found = reserved(layers, VLLM, 8192)["reserved_bytes"]
        assert found == 10 * (512 + window_blocks) * 16 * 8192


def test_groups_are_padded_when_kinds_are_nearly_as_many() -> None:
    """13 full and 12 windowed layers: two groups of 13 (one place unused), not 12 and 24."""
    layers = ({"n_layers": 13}, {"group": 1, "mixer": "sliding", "n_layers": 12, "window_tokens": 128})
    found = reserved(layers, VLLM, 4096)["reserved_bytes"]
    assert found == 13 * (256 + 257) * 16 * 4096


def test_sglang_gives_windows_four_fifths_of_the_context() -> None:
    per_layer = 8192
    assert reserved(GEMMA_3_27B, SGLANG, 32_768)["reserved_bytes"] == per_layer * (10 * 32_768 + 52 * 26_215)
    alone = ({"mixer": "sliding", "window_tokens": 1024},)
    assert (
        reserved(alone, SGLANG, 32_768)["reserved_bytes"] == 32 * 4096 * 32_768
    )  # no full layer to share with


def test_mlx_keeps_a_window_and_the_tokens_of_one_step() -> None:
    """RotatingKVCache: W + 2,048 - 1 while the prompt is read, in steps of 256."""
    assert reserved(GEMMA_3_27B, MLX, 32_768)["reserved_bytes"] == 8192 * (10 * 32_768 + 52 * 3072)


def test_lmdeploy_keeps_windows_whole_and_scales_per_head() -> None:
    """int8: one byte per element and 4 bytes of scale and zero point per token, head and side."""
    int8 = {"k_bytes_per_element": 1.0, "v_bytes_per_element": 1.0, "k_bytes_per_head": 4.0,
            "v_bytes_per_head": 4.0}  # fmt: skip
    found = reserved(GEMMA_3_27B, LMDEPLOY, 32_768, **int8)
    assert found["reserved_bytes"] == 62 * 16 * (256 + 8) * 32_768


def test_sparse_latents_and_their_indexer() -> None:
    """DeepSeek-V3.2: 576 x 2 + 132 bytes in 16 bit, 656 + 132 with an fp8 cache, on every rank."""
    for storage, per_token in (
        ({}, 1152 + 132),
        ({"k_bytes_per_element": 1.0, "sparse_latent_bytes": 656.0}, 788),
    ):
        for n_gpus in (1, 8):
            found = reserved(DEEPSEEK_V32, VLLM, 32_768, n_gpus, **storage)
            assert found["reserved_bytes"] == 61 * per_token * 32_768
            flag = "--block-size" if n_gpus == 1 else "--decode-context-parallel-size"
            assert found["reserve_flag"] == flag


def _needed(layers: tuple[dict[str, Any], ...], context: int, n_gpus: int) -> int:
    one = pl.LazyFrame(
        {"context_tokens": [context], "k_bytes_per_element": [2.0], "v_bytes_per_element": [2.0],
         "n_gpus": [n_gpus]}
    )  # fmt: skip
    found = cache_bytes_by_setting(layer_frame(*layers), one).collect()
    return int(found.item(0, "kv_bytes")) + int(found.item(0, "state_bytes"))


@settings(max_examples=25)
@given(
    window=st.sampled_from([None, 128, 1024, 4096]),
    state=st.sampled_from([0, 1, 4096, 600_000]),
    heads=st.integers(1, 16),
    n_layers=st.integers(1, 40),
    context=st.integers(1, 40_000),
    more=st.integers(0, 40_000),
    n_gpus=st.sampled_from([2, 4, 8]),
    engine=st.sampled_from(ENGINES),
)
def test_reserved_holds_what_is_needed_and_grows_with_the_context(
    window: int | None, state: int, heads: int, n_layers: int, context: int, more: int, n_gpus: int,
    engine: dict[str, Any],
) -> None:  # fmt: skip
    layers = (
        {"mixer": "sliding" if window else "full", "window_tokens": window, "n_kv_heads": heads,
         "n_layers": n_layers},
        {"group": 1, "n_kv_heads": heads, "n_layers": 6},
        {"group": 2, "mixer": "linear", "n_layers": 8, "f32_state_elements": state},
    )  # fmt: skip
    here = reserved(layers, engine, context)["reserved_bytes"]
    assert here >= _needed(layers, context, 1)
    assert reserved(layers, engine, context + more)["reserved_bytes"] >= here
    split = reserved(layers, engine, context, n_gpus)["reserved_bytes"]
    assert _needed(layers, context, n_gpus) <= split <= here


@settings(max_examples=25)
@given(
    bits=st.sampled_from([2, 3, 4, 5, 6, 8]),
    n_layers=st.integers(1, 40),
    heads=st.integers(1, 16),
    context=st.integers(1, 40_000),
    engine=st.sampled_from(ENGINES),
)
def test_uniform_models_grow_with_bits_and_layers(
    bits: int, n_layers: int, heads: int, context: int, engine: dict[str, Any]
) -> None:
    """Of one kind of layer. Groups and padded pages of several kinds may shrink: the engine's rule."""
    layer = {"n_kv_heads": heads, "n_layers": n_layers}
    density = {"k_bytes_per_element": (bits + 0.5) / 8, "v_bytes_per_element": (bits + 0.5) / 8}
    denser = {name: value + 0.125 for name, value in density.items()}
    here = reserved((layer,), engine, context, **density)["reserved_bytes"]
    assert here < reserved((layer,), engine, context, **denser)["reserved_bytes"]
    more_layers = {**layer, "n_layers": n_layers + 1}
    assert here < reserved((more_layers,), engine, context, **density)["reserved_bytes"]


def test_what_a_frame_lacks_is_null() -> None:
    found = with_engine_settings(pl.LazyFrame({"k_bytes_per_head": [4.0]})).collect()
    assert found.item(0, "k_bytes_per_head") == 4.0
    assert {
        found.item(0, name) for name in (*ENGINE_SETTINGS, "model_type") if name != "k_bytes_per_head"
    } == {None}
