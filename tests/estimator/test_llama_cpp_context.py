"""What llama.cpp allocates for a context: by hand, against its planner, and as properties."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.llama_cpp_context import (
    CELL_STEP,
    context_bytes,
    fullest_context_bytes,
    window_cells,
    with_llama_cpp_layers,
)
from tests.estimator.cube_cases import llama_cpp_frame

MIB = 2**20
SETTING: dict[str, Any] = {
    "context_tokens": 8192, "ubatch_tokens": 512, "slots": 1, "kv_unified": True, "k_bytes_per_element": 2.0,
    "v_bytes_per_element": 2.0, "flash_attention": True, "swa_full": False, "n_gpus": 1,
}  # fmt: skip
GEMMA_3_27B = (
    {"mixer": "sliding", "n_layers": 52, "n_kv_heads": 16, "window_tokens": 1024, "uses_window": True},
    {"group": 1, "n_layers": 10, "n_kv_heads": 16},
)
# values of 8 x 256 in 25 windows of 1,024, of 2 x 512 in five full layers
GEMMA_4_26B = (
    {"mixer": "sliding", "n_layers": 25, "n_kv_heads": 8, "k_head_dim": 256, "v_head_dim": 256,
     "window_tokens": 1024, "uses_window": True},
    {"group": 1, "n_layers": 5, "n_kv_heads": 2, "k_head_dim": 512, "v_head_dim": 512},
)  # fmt: skip
MLA = {
    "mixer": "mla",
    "n_layers": 61,
    "n_heads": 128,
    "n_kv_heads": None,
    "k_head_dim": 192,
    "latent_dim": 576,
}
QWEN3_NEXT = (
    {"mixer": "linear", "n_layers": 36, "n_heads": None, "n_kv_heads": None, "k_head_dim": None,
     "v_head_dim": None, "f32_state_elements": 524_288, "conv_state_elements": 24_576},
    {"group": 1, "n_layers": 12, "n_heads": 16, "n_kv_heads": 2, "k_head_dim": 256, "v_head_dim": 256},
)  # fmt: skip


def allocated(*layers: dict[str, Any], **changes: Any) -> list[int]:
    """Bytes per device."""
    cached = with_llama_cpp_layers(llama_cpp_frame(*layers))
    found = context_bytes(cached, pl.LazyFrame([{**SETTING, **changes}])).collect().sort("device")
    return found.get_column("context_bytes").to_list()


def test_full_attention_keeps_every_position() -> None:
    """Llama-3.1-8B: 32 layers x 8 heads x (128 + 128) x 2 bytes; 8,000 positions are rounded up to 8,192."""
    assert allocated({}) == allocated({}, context_tokens=8000) == [8192 * 131_072]


def test_slots_share_a_unified_cache_and_split_the_other() -> None:
    """Three slots of 8,192: 2,730 each, in whole steps 2,816."""
    assert allocated({}, slots=3) == [8192 * 131_072]
    assert allocated({}, slots=3, kv_unified=False) == [3 * 2816 * 131_072]


@pytest.mark.parametrize(
    ("layers", "changes", "planner_mib"),
    [
        pytest.param(GEMMA_3_27B, {}, 1264.0, id="windows"),
        pytest.param(GEMMA_3_27B, {"slots": 4}, 2512.0, id="windows-of-four-slots"),
        pytest.param(GEMMA_4_26B, {}, 460.0, id="widths-differ"),
        pytest.param(GEMMA_4_26B, {"flash_attention": False}, 540.0, id="widest-value"),
        pytest.param((MLA,), {}, 549.0, id="latent-keeps-no-values"),
        pytest.param(({**MLA, "index_head_dim": 128},), {}, 671.0, id="indexer-keys"),
        pytest.param(QWEN3_NEXT, {}, 267.375, id="state"),
        pytest.param(QWEN3_NEXT, {"slots": 4}, 493.5, id="state-per-slot"),
        pytest.param(({},), {"k_bytes_per_element": 1.0625, "v_bytes_per_element": 1.0625}, 544.0, id="q8_0"),
    ],
)
def test_against_the_planner(
    layers: tuple[dict[str, Any], ...], changes: dict[str, Any], planner_mib: float
) -> None:
    """Rows of llama-fit-params of llama.cpp 0c1e57098 at 8,192."""
    assert allocated(*layers, **changes) == [planner_mib * MIB]


def test_swa_full_keeps_windows_whole() -> None:
    assert allocated(*GEMMA_3_27B, swa_full=True) == [62 * 8192 * 8192]


def test_ignored_windows_and_shared_layers() -> None:
    ignored = {"mixer": "sliding", "window_tokens": 1024}
    assert allocated(ignored) == allocated({})
    shared = ({"n_layers": 20}, {"group": 1, "n_layers": 12, "shares_kv": True})
    assert allocated(*shared) == [8192 * 131_072 * 20 // 32]


def test_latents_spelt_out_keep_keys_and_values_per_head() -> None:
    """MiniCPM3-4B: 62 layers x 40 heads x (96 + 64) x 2 bytes."""
    layer = {"mixer": "mla", "n_layers": 62, "n_heads": 40, "n_kv_heads": None, "k_head_dim": 96,
             "v_head_dim": 64, "latent_dim": 288, "caches_latent": False}  # fmt: skip
    assert allocated(layer) == [8192 * 62 * 40 * 160 * 2]


def test_compressed_entries_lie_beside_the_window() -> None:
    """Window pad(128 + 512) = 768 cells, 8,192 / 4 entries, an index key of 128 for each."""
    layer = {"mixer": "sliding", "n_layers": 1, "n_kv_heads": 1, "k_head_dim": 512, "v_head_dim": 0,
             "window_tokens": 128, "uses_window": True, "kv_compression": 4,
             "index_head_dim": 128}  # fmt: skip
    assert allocated(layer) == [2 * ((768 + 2048) * 512 + 2048 * 128)]


def test_layers_are_dealt_out_with_the_output_as_one_more() -> None:
    """33 units over two devices: 17 layers and 15 with the output; 61 MLA layers and one prediction layer:
    32.
    """
    layer = 8192 * 131_072 // 32
    assert allocated({}, n_gpus=2) == [17 * layer, 15 * layer]
    assert allocated({}, n_gpus=3) == [11 * layer, 11 * layer, 10 * layer]
    latent = 8192 * 576 * 2
    assert allocated(MLA, n_gpus=2) == [31 * latent, 30 * latent]
    assert allocated({**MLA, "prediction_layers": 1}, n_gpus=2) == [32 * latent, 29 * latent]


def test_the_fullest_device() -> None:
    cached = with_llama_cpp_layers(llama_cpp_frame({}))
    found = fullest_context_bytes(cached, pl.LazyFrame([{**SETTING, "n_gpus": 2}])).collect()
    assert found.get_column("context_bytes").to_list() == [17 * 8192 * 4096]


_LAYERS = st.fixed_dictionaries(
    {
        "n_layers": st.integers(1, 40),
        "n_kv_heads": st.integers(1, 16),
        "v_head_dim": st.sampled_from([64, 128, 256]),
        "window_tokens": st.sampled_from([None, 128, 1024, 4096]),
        "f32_state_elements": st.integers(0, 10**6),
    }
)


@settings(max_examples=25, deadline=None)
@given(
    runs=st.lists(_LAYERS, min_size=1, max_size=3),
    context=st.integers(1, 60_000), more=st.integers(0, 60_000), slots=st.integers(1, 8),
    ubatch=st.integers(1, 4096), unified=st.booleans(), fused=st.booleans(), n_gpus=st.integers(1, 5),
)  # fmt: skip
def test_bytes_grow_and_devices_add_up(
    runs: list[dict[str, Any]], context: int, more: int, slots: int, ubatch: int, unified: bool, fused: bool,
    n_gpus: int,
) -> None:  # fmt: skip
    layers = [
        {**run, "group": at, "mixer": "sliding" if run["window_tokens"] else "full", "uses_window": True}
        for at, run in enumerate(runs)
    ]
    here = {"context_tokens": context, "slots": slots, "ubatch_tokens": ubatch, "kv_unified": unified,
            "flash_attention": fused}  # fmt: skip
    (one,) = allocated(*layers, **here)
    assert sum(allocated(*layers, **here, n_gpus=n_gpus)) == one
    grown = {"context_tokens": context + more, "ubatch_tokens": 2 * ubatch}
    if unified:  # separate parts are rounded up each, so more of them can take less
        grown["slots"] = slots + 1
    for name, larger in grown.items():
        assert one <= allocated(*layers, **{**here, name: larger})[0], name
    assert one <= allocated(*layers, **{**here, "flash_attention": False})[0]
    assert one <= allocated(*layers, **{**here, "swa_full": True})[0]


@settings(max_examples=40)
@given(
    window=st.integers(1, 20_000),
    slots=st.integers(1, 8),
    ubatch=st.integers(0, 3000),
    blocks=st.integers(1, 600),
)
def test_cells_are_enough_and_whole(window: int, slots: int, ubatch: int, blocks: int) -> None:
    context = CELL_STEP * blocks
    setting = SETTING | {"context_tokens": context, "slots": slots, "ubatch_tokens": ubatch}
    cells = pl.DataFrame([setting]).select(window_cells(pl.lit(window))).item()
    assert min(window, context) <= cells <= context
    assert cells % CELL_STEP == 0
    assert cells < window * slots + ubatch + CELL_STEP
