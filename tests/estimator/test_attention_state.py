"""Cache and state to the byte: the windows, latents and shared layers by hand, and what must always hold."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.attention_state import (
    cache_bytes_by_setting,
    conv_state_elements,
    cross_cache_bytes,
    f32_state_elements,
    kv_cache_bytes,
    with_engine_settings,
)
from estimator.layer_geometry import LAYER_GEOMETRY

SCHEMA: dict[str, Any] = {
    "model": pl.String, "n_layers": pl.Int16, "mixer": pl.String, "n_kv_heads": pl.Int16,
    "k_head_dim": pl.Int16,
    "v_head_dim": pl.Int16, "window_tokens": pl.Int32, "shares_kv": pl.Boolean, "latent_dim": pl.Int16,
    "index_head_dim": pl.Int16, "selected_tokens": pl.Int32, "kv_compression": pl.Int16,
    "f32_state_elements": pl.Int64, "conv_state_elements": pl.Int64,
}  # fmt: skip
GQA: dict[str, Any] = {"mixer": "full", "n_kv_heads": 8, "k_head_dim": 128, "v_head_dim": 128}
MLA: dict[str, Any] = {"mixer": "mla", "latent_dim": 576}


def layer(n_layers: int = 1, **columns: Any) -> dict[str, Any]:
    defaults = {"shares_kv": False, "f32_state_elements": 0, "conv_state_elements": 0}
    return {"model": "m", "n_layers": n_layers, **defaults, **columns}


def cache(
    rows: list[dict[str, Any]], context: int, element_bytes: tuple[float, float] = (2, 2), **settings: int
) -> dict[str, int]:
    frame = pl.LazyFrame(rows, schema=SCHEMA, orient="row")
    return kv_cache_bytes(frame, [context], element_bytes, **settings).collect().row(0, named=True)


def test_grouped_queries_keep_keys_and_values_of_every_kv_head() -> None:
    assert cache([layer(32, **GQA)], 1000)["kv_bytes"] == 1000 * 131_072  # Llama-3.1-8B
    assert cache([layer(32, **GQA)], 1000, (1.0625, 0.5625))["kv_bytes"] == 32 * 1000 * 1024 * 1.625


@pytest.mark.parametrize(("context", "positions"), [(100, 100), (1024, 1024), (9000, 1024)])
def test_a_window_and_a_chunk_stop_at_their_length(context: int, positions: int) -> None:
    for mixer in ("sliding", "chunked"):
        row = layer(**GQA | {"mixer": mixer, "window_tokens": 1024})
        assert cache([row], context)["kv_bytes"] == positions * 4096


def test_mla_keeps_one_latent_and_the_indexer_one_key() -> None:
    assert cache([layer(61, **MLA)], 10)["kv_bytes"] == 10 * 70_272  # DeepSeek-V3
    assert cache([layer(61, **MLA, index_head_dim=128)], 10)["kv_bytes"] == 10 * 85_888  # DeepSeek-V3.2


def test_what_a_token_reads_stops_at_what_the_indexer_selects_but_its_keys_are_all_read() -> None:
    row = layer(**MLA, index_head_dim=128, selected_tokens=2048)
    assert cache([row], 10_000)["kv_read_bytes"] == 2 * (2048 * 576 + 10_000 * 128)
    assert cache([row], 1000)["kv_read_bytes"] == cache([row], 1000)["kv_bytes"]


def test_layers_that_share_cross_attend_or_do_not_attend_cache_no_text() -> None:
    rows = [layer(**GQA | {"shares_kv": True}), layer(**GQA | {"mixer": "cross"}), layer(mixer="none")]
    assert cache(rows, 5000) == {"model": "m", "context_tokens": 5000, "kv_bytes": 0, "state_bytes": 0,
                                 "kv_read_bytes": 0}  # fmt: skip


def test_cross_attention_caches_image_positions() -> None:
    frame = pl.LazyFrame([layer(8, **GQA | {"mixer": "cross"})], schema=SCHEMA, orient="row").with_columns(
        k_bytes_per_element=2.0, v_bytes_per_element=2.0, n_gpus=pl.lit(1, pl.Int64)
    )
    images = with_engine_settings(frame).select(
        (cross_cache_bytes(pl.lit(1601 * 4, pl.Int64)) * pl.col("n_layers")).sum()
    )
    assert images.collect().item() == 209_846_272  # Llama-3.2-11B-Vision, four tiles


def test_deepseek_v4_keeps_a_window_and_one_entry_per_compressed_position() -> None:
    row: dict[str, Any] = {
        "mixer": "sliding",
        "n_kv_heads": 1,
        "k_head_dim": 512,
        "v_head_dim": 0,
        "window_tokens": 128,
    }
    fine = layer(**row, kv_compression=4, index_head_dim=128, selected_tokens=512)
    assert cache([layer(**row)], 5000)["kv_bytes"] == 2 * 128 * 512
    assert cache([layer(**row, kv_compression=128)], 5000)["kv_bytes"] == 2 * (128 + 39) * 512
    assert cache([fine], 5000)["kv_bytes"] == 2 * ((128 + 1250) * 512 + 1250 * 128)
    assert cache([fine], 5000)["kv_read_bytes"] == 2 * ((128 + 512) * 512 + 1250 * 128)


def test_state_does_not_grow_and_is_read_and_written() -> None:
    row = layer(10, mixer="linear", f32_state_elements=1000, conv_state_elements=30)
    for context in (1, 100_000):
        assert cache([row], context)["state_bytes"] == 10 * (4000 + 60)
        assert cache([row], context)["kv_read_bytes"] == 2 * 10 * (4000 + 60)
    assert cache([row], 1, conv_bytes=4)["state_bytes"] == 10 * (4000 + 120)  # llama.cpp


def test_tensor_parallel_splits_kv_heads_until_there_is_one_each_and_repeats_latents() -> None:
    per_gpu = {n: cache([layer(**GQA)], 100, n_gpus=n)["kv_bytes"] for n in (1, 2, 8, 16)}
    assert per_gpu == {1: 409_600, 2: 204_800, 8: 51_200, 16: 51_200}
    assert cache([layer(**MLA)], 100, n_gpus=8) == cache([layer(**MLA)], 100)


def test_settings_keep_their_own_columns() -> None:
    one = {"context_tokens": 10, "k_bytes_per_element": 2.0, "v_bytes_per_element": 2.0, "n_gpus": 1}
    settings = pl.LazyFrame(
        [one | {"kv_dtype": "f16"}, one | {"kv_dtype": "fp8", "k_bytes_per_element": 1.0}]
    )
    frame = pl.LazyFrame([layer(**GQA)], schema=SCHEMA, orient="row")
    result = cache_bytes_by_setting(frame, settings).sort("kv_dtype").collect()
    assert result.select("kv_dtype", "kv_bytes").rows() == [("f16", 40_960), ("fp8", 30_720)]


def test_state_elements_of_each_recurrent_mixer() -> None:
    rows = [
        {"mixer": "linear", "linear_key_heads": 16, "linear_value_heads": 32, "linear_key_dim": 128,
         "linear_value_dim": 128, "conv_kernel": 4},
        {"mixer": "linear", "linear_key_heads": 64, "linear_value_heads": 64, "linear_key_dim": 128,
         "linear_value_dim": 128, "conv_kernel": 0},
        {"mixer": "mamba", "mamba_inner": 4096, "mamba_state": 128, "mamba_groups": 8, "conv_kernel": 4},
        {"mixer": "mamba", "mamba_inner": 8192, "mamba_state": 16, "conv_kernel": 4},
        {"mixer": "conv", "hidden_size": 2048, "conv_kernel": 3},
        {"mixer": "full", "hidden_size": 2048},
    ]  # fmt: skip
    frame = pl.LazyFrame(rows, schema=LAYER_GEOMETRY, orient="row")
    elements = frame.select(state=f32_state_elements(), conv=conv_state_elements()).collect()
    assert elements.rows() == [
        (32 * 128 * 128, 8192 * 3), (64 * 128 * 128, 0), (64 * 64 * 128, 6144 * 3), (8192 * 16, 8192 * 3),
        (0, 2048 * 2), (0, 0),
    ]  # fmt: skip


LAYERS = st.lists(
    st.one_of(
        st.builds(lambda n, g: layer(n, **GQA | {"n_kv_heads": g}), st.integers(1, 9), st.integers(1, 16)),
        st.builds(
            lambda n, w: layer(n, **GQA | {"mixer": "sliding", "window_tokens": w}),
            st.integers(1, 9),
            st.integers(1, 5000),
        ),
        st.builds(lambda n: layer(n, **MLA, index_head_dim=128, selected_tokens=64), st.integers(1, 9)),
        st.builds(
            lambda n, s: layer(n, mixer="mamba", f32_state_elements=s), st.integers(1, 9), st.integers(1, 99)
        ),
    ),
    min_size=1,
    max_size=4,
)
BITS = st.sampled_from([(0.5625, 0.5625), (1.0, 1.0), (1.0625, 1.0625), (2.0, 2.0), (4.0, 4.0)])


@settings(max_examples=40, deadline=None)
@given(rows=LAYERS, context=st.integers(1, 20_000), more=st.integers(0, 20_000), low=BITS, high=BITS)
def test_need_never_falls_when_context_or_bits_or_layers_rise(
    rows: list[dict[str, Any]], context: int, more: int, low: tuple[float, float], high: tuple[float, float]
) -> None:
    low, high = sorted((low, high))
    least = cache(rows, context, low)
    assert cache(rows, context + more, low)["kv_bytes"] >= least["kv_bytes"]
    assert cache(rows, context, high)["kv_bytes"] >= least["kv_bytes"]
    assert cache([*rows, layer(**GQA)], context, low)["kv_bytes"] > least["kv_bytes"]
    assert cache(rows, context, low)["kv_read_bytes"] <= least["kv_bytes"] + 2 * least["state_bytes"]


@settings(max_examples=25, deadline=None)
@given(rows=LAYERS, context=st.integers(1, 5000), n_gpus=st.integers(2, 8))
def test_all_gpus_together_hold_at_least_the_whole_need(
    rows: list[dict[str, Any]], context: int, n_gpus: int
) -> None:
    alone, shared = cache(rows, context), cache(rows, context, n_gpus=n_gpus)
    assert alone["kv_bytes"] <= n_gpus * shared["kv_bytes"]
    assert shared["kv_bytes"] <= alone["kv_bytes"]
