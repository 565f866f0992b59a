"""llama.cpp's compute buffers: against its planner, by hand, and as properties."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.llama_cpp_compute import (
    device_compute_bytes,
    fullest_compute_bytes,
    host_compute_bytes,
)
from tests.estimator.cube_cases import DENSE, llama_cpp_frame, llama_cpp_shapes

MIB = 2**20
SETTING: dict[str, Any] = {
    "context_tokens": 8192, "ubatch_tokens": 512, "slots": 4, "kv_unified": True, "k_bytes_per_element": 2.0,
    "flash_attention": True, "swa_full": False, "n_gpus": 1, "outputs": 4,
}  # fmt: skip
LLAMA_70B = {"n_layers": 80, "hidden_size": 8192, "n_heads": 64, "ffn_size": 28672}
QWEN3_0_6B = {"n_layers": 28, "hidden_size": 1024, "n_heads": 16, "ffn_size": 3072, "vocab_size": 151_936}
MOE = {"ffn": "moe", "ffn_size": None}
QWEN3_30B = MOE | {"hidden_size": 2048, "n_kv_heads": 4, "n_experts_used": 8, "expert_ffn_size": 768}
MIXTRAL = MOE | {"n_experts_used": 2, "expert_ffn_size": 14336}
GPT_OSS = MOE | {"n_layers": 12, "hidden_size": 2880, "n_heads": 64, "k_head_dim": 64, "v_head_dim": 64,
                 "n_experts_used": 4, "expert_ffn_size": 2880}  # fmt: skip
GPT_OSS_20B = (
    {**GPT_OSS, "mixer": "sliding", "window_tokens": 128, "uses_window": True},
    {**GPT_OSS, "group": 1},
)
GEMMA = {"hidden_size": 5376, "n_kv_heads": 16, "ffn_size": 21504, "vocab_size": 262_208}
GEMMA_3_27B = (
    {**GEMMA, "mixer": "sliding", "n_layers": 52, "window_tokens": 1024, "uses_window": True},
    {**GEMMA, "group": 1, "n_layers": 10},
)
STARCODER2_3B = {"hidden_size": 3072, "n_heads": 24, "n_kv_heads": 2, "ffn_size": 12288, "ffn_matrices": 2}
MLA = {"mixer": "mla", "n_layers": 61, "hidden_size": 7168, "n_heads": 128, "n_kv_heads": None,
       "k_head_dim": 192, "v_head_dim": 128, "latent_dim": 576, "kv_latent_dim": 512, "qk_rope_dim": 64,
       "q_latent_dim": 1536, "ffn_size": 18432, "vocab_size": 129_280}  # fmt: skip
DEEPSEEK_V3 = (
    {**MLA, "n_layers": 3},
    {**MLA, "group": 1, "n_layers": 58, "ffn": "moe", "ffn_size": None, "n_experts_used": 8,
     "expert_ffn_size": 2048, "shared_ffn_size": 2048},
)  # fmt: skip
HY3 = {**MOE, "n_layers": 79, "n_heads": 64, "n_experts_used": 8, "expert_ffn_size": 1536,
       "shared_ffn_size": 1536, "vocab_size": 120_832}  # fmt: skip
PHI_4 = {"n_layers": 40, "hidden_size": 5120, "n_heads": 40, "n_kv_heads": 10, "ffn_size": 17920,
         "vocab_size": 100_352, "attention_rows": "none", "score_query_rows": 1,
         "score_hidden_rows": 1}  # fmt: skip
GEMMA_2 = {"n_layers": 26, "hidden_size": 2304, "n_heads": 8, "n_kv_heads": 4, "k_head_dim": 256,
           "v_head_dim": 256, "ffn_size": 9216, "vocab_size": 256_000}  # fmt: skip
GEMMA_2_2B = (
    {**GEMMA_2, "n_layers": 13, "mixer": "sliding", "window_tokens": 4096, "uses_window": True},
    {**GEMMA_2, "group": 1, "n_layers": 13},
)
DEEPSEEK_V32 = {**MLA, "index_n_heads": 64, "index_head_dim": 128, "selected_tokens": 2048}
PHI3 = {"hidden_size": 3072, "k_head_dim": 96, "v_head_dim": 96, "n_kv_heads": 32, "ffn_size": 8192,
        "vocab_size": 32064, "attention_rows": "none"}  # fmt: skip
MAMBA_2_8B = {"mixer": "mamba", "ffn": "none", "n_layers": 64, "hidden_size": 2560, "vocab_size": 50280,
              "n_heads": None, "n_kv_heads": None, "k_head_dim": None, "v_head_dim": None, "ffn_size": None,
              "mamba_inner": 5120, "mamba_state": 16, "conv_kernel": 4}  # fmt: skip


def planned(
    *layers: dict[str, Any], coefficients: dict[str, Any] | None = None, **changes: Any
) -> dict[str, float]:
    """Bytes of every device, of the fullest, and of the host."""
    known = [{"model": DENSE, **coefficients}] if coefficients else []
    shapes = llama_cpp_shapes(llama_cpp_frame(*layers), *known)
    setting = {**SETTING, **changes}
    found = shapes.join(pl.LazyFrame([setting]), how="cross").select(
        *(device_compute_bytes(pl.lit(at)).alias(f"gpu{at}") for at in range(setting["n_gpus"])),
        fullest=fullest_compute_bytes(),
        host=host_compute_bytes(),
    )
    return found.collect().row(0, named=True)


@pytest.mark.parametrize(
    ("layers", "changes", "planner_mib"),
    [
        pytest.param(({},), {}, 116.01, id="llama-3.1-8b"),
        pytest.param(({},), {"context_tokens": 32768}, 140.01, id="llama-3.1-8b-32k"),
        pytest.param(({},), {"outputs": 2048}, 258.5, id="llama-3.1-8b-logits-of-every-token"),
        pytest.param(({},), {"flash_attention": False}, 564.0, id="llama-3.1-8b-without-flash-attention"),
        pytest.param(
            ({},),
            {
                "flash_attention": False,
                "context_tokens": 2048,
                "ubatch_tokens": 256,
                "slots": 2,
                "kv_unified": False,
                "outputs": 2,
            },
            53.003,
            id="few-cells-without-flash-attention",
        ),
        pytest.param((PHI_4,), {"flash_attention": False, "slots": 1}, 681.006, id="fused-projection-scores"),
        pytest.param(GEMMA_2_2B, {"flash_attention": False, "slots": 1}, 178.01, id="two-caches-scores"),
        pytest.param((LLAMA_70B,), {"context_tokens": 32768, "slots": 1}, 248.01, id="llama-3.1-70b-32k"),
        pytest.param((QWEN3_0_6B,), {"flash_attention": False}, 288.006, id="qwen3-0.6b-scores"),
        pytest.param((QWEN3_30B,), {}, 92.01, id="experts-3p-q"),
        pytest.param((MIXTRAL,), {}, 200.01, id="experts-3p"),
        pytest.param(GPT_OSS_20B, {"context_tokens": 4096, "slots": 1}, 91.518, id="gpt-oss-20b-one-slot"),
        pytest.param(GPT_OSS_20B, {}, 95.768, id="gpt-oss-20b-four-slots"),
        pytest.param(GEMMA_3_27B, {"slots": 1}, 164.518, id="gemma-3-27b-one-slot"),
        pytest.param(GEMMA_3_27B, {"context_tokens": 32768}, 191.518, id="gemma-3-27b-four-slots"),
        pytest.param((STARCODER2_3B,), {}, 50.01, id="without-gate"),
        pytest.param((PHI3,), {"slots": 1}, 68.01, id="fused-projection"),
        pytest.param(DEEPSEEK_V3, {}, 386.006, id="absorbed-latents"),
        pytest.param((DEEPSEEK_V32,), {"slots": 1}, 627.07, id="indexer-8k"),
        pytest.param((DEEPSEEK_V32,), {"slots": 1, "context_tokens": 32768}, 784.07, id="indexer-32k"),
        pytest.param((DEEPSEEK_V32,), {"slots": 1, "context_tokens": 131_072}, 1123.07, id="indexer-128k"),
    ],
)
def test_one_device_against_the_planner(
    layers: tuple[dict[str, Any], ...], changes: dict[str, Any], planner_mib: float
) -> None:
    """Rows of llama-fit-params of llama.cpp 0c1e57098, micro-batch of 512."""
    found = planned(*layers, **changes)
    assert found["fullest"] == found["gpu0"]
    assert found["gpu0"] / MIB == pytest.approx(planner_mib, rel=0.0005)


def test_two_devices_against_the_planner() -> None:
    """Llama-3.1-70B at 32,768: 408.04 and 472.04 MiB; Gemma-3-27B at 8,192: the last 289.07 MiB."""
    found = planned(LLAMA_70B, context_tokens=32768, n_gpus=2)
    assert found["gpu0"] / MIB == pytest.approx(408.04, abs=0.05)
    assert found["gpu1"] / MIB == pytest.approx(472.04, abs=0.05)
    assert found["fullest"] == found["gpu1"]
    assert planned(*GEMMA_3_27B, n_gpus=2)["gpu1"] / MIB == pytest.approx(289.07, abs=0.05)


def test_shared_experts_in_a_pipeline_against_the_planner() -> None:
    """Hy3 of 79 layers with attention narrower than two hidden rows: 232.04 and 256.04 MiB."""
    found = planned(HY3, n_gpus=2, slots=1, outputs=1)
    assert found["gpu0"] == pytest.approx(243_310_592, rel=0.0002)
    assert found["gpu1"] == pytest.approx(268_476_544, rel=0.0002)


def test_rows_cross_behind_a_mamba_block() -> None:
    """Mamba-2.8B on two devices: 120.4 and 180.4 MiB."""
    found = planned(MAMBA_2_8B, n_gpus=2, slots=1, outputs=1)
    assert found["gpu0"] == pytest.approx(126_279_808, rel=0.008)
    assert found["gpu1"] == pytest.approx(189_112_576, rel=0.008)


def test_a_device_with_the_output_alone_holds_logits() -> None:
    """Six layers and the output are seven units: the fourth device has the last of them."""
    found = planned({"n_layers": 6}, n_gpus=4, slots=1, outputs=1)
    assert found["gpu3"] == 4 * (128_256 + 4096)


def test_a_device_without_attention_has_no_masks() -> None:
    """The first of two devices has Mamba layers alone."""
    mamba = {**MAMBA_2_8B, "n_layers": 8, "hidden_size": 4096, "mamba_inner": 8192}
    with_masks, without = (
        planned(mamba, {"group": 1, "n_layers": 7}, n_gpus=2, context_tokens=cells) for cells in (8192, 4096)
    )
    assert with_masks["gpu0"] == without["gpu0"]
    assert with_masks["gpu1"] - without["gpu1"] == 4 * 2 * 512 * 4096


def test_llama_3_1_8b_by_hand() -> None:
    """4 x 512 x (3 x 14336 + 2 x 4096 + 4096 + 5) + 2 x 512 x 8192."""
    assert planned({})["gpu0"] == 4 * 512 * 55_301 + 2 * 512 * 8192


def test_mamba_by_hand() -> None:
    """No masks: 512 x (2 x 2560 + 5 x 5120) floats and one state of 5120 x (2 x 3 + 16)."""
    found = planned(MAMBA_2_8B, slots=1, outputs=1)
    assert found["gpu0"] == 4 * (512 * 30_720 + 5120 * 22)
    assert found["host"] == 4 * 512 * 2 * 2560


@pytest.mark.parametrize(
    ("layer", "delta"),
    [
        # rotations of 128 x 128 and 64 x 64; the attention output of a hidden row's size makes room
        ({}, 128**2 + 64**2 - 512 * 4096),
        (QWEN3_0_6B, 128**2 + 64**2),
        ({"hidden_size": 5120}, 128**2 + 64**2 + 512 * 4096),
        ({"rotated_attention": "kept"}, 128**2 + 64**2),
        ({"rotated_attention": "row"}, 128**2 + 64**2 + 512 * 4096),
        ({"k_head_dim": 80, "v_head_dim": 80, "n_heads": 32, "hidden_size": 2560}, 0),
    ],
)
def test_a_quantised_cache_is_rotated(layer: dict[str, Any], delta: int) -> None:
    plain, rotated = (planned(layer, k_bytes_per_element=size)["gpu0"] for size in (2.0, 1.0625))
    assert rotated - plain == 4 * delta


def test_the_host_hands_out_the_rotations() -> None:
    plain, rotated = (planned({}, k_bytes_per_element=size)["host"] for size in (2.0, 1.0625))
    assert rotated - plain == 4 * (128**2 + 64**2)


def test_a_coefficient_replaces_what_rotation_changes() -> None:
    known = {"rotated_floats": 100.0}
    plain, rotated = (
        planned({}, coefficients=known, k_bytes_per_element=size)["gpu0"] for size in (2.0, 0.5625)
    )
    assert rotated - plain == 4 * (128**2 + 64**2 + 512 * 100)


def test_host_buffers_against_the_planner() -> None:
    """Qwen3-0.6B: 12.01 MiB, without flash attention 24.01; Llama-3.1-8B 24.01, Gemma-3-27B 30.52."""
    assert planned(QWEN3_0_6B)["host"] / MIB == pytest.approx(12.01, abs=0.01)
    assert planned(QWEN3_0_6B, flash_attention=False)["host"] / MIB == pytest.approx(24.01, abs=0.01)
    assert planned({})["host"] / MIB == pytest.approx(24.01, abs=0.01)
    assert planned(*GEMMA_3_27B, slots=1)["host"] / MIB == pytest.approx(30.518, abs=0.01)


def test_host_buffer_of_a_pipeline() -> None:
    """Five hidden rows, four copies of the masks, the positions and the cache indices."""
    assert planned({}, n_gpus=2)["host"] == 4 * 512 * (5 * 4096 + 4 * 5) + 4 * 2 * 512 * 8192


def test_coefficients_take_the_place_of_parts() -> None:
    found = planned({}, coefficients={"layer_floats": 100_000.0, "slot_floats": 10.0})
    assert found["gpu0"] == 4 * (512 * 100_000 + 4 * 10) + 2 * 512 * 8192
    more = planned({}, coefficients={"output_floats": 4096.0, "output_masks": 1.0}, outputs=512)
    assert more["gpu0"] == 4 * 512 * (128_256 + 2 * 4096) + 2 * 512 * 8192
    plain = planned({}, n_gpus=2)
    moved = planned({}, n_gpus=2, coefficients={"first_device_floats": 0.0, "last_device_floats": 4096.0})
    assert plain["gpu0"] - moved["gpu0"] == 16 * 512 * 4096
    assert plain["gpu1"] - moved["gpu1"] == 28 * 512 * 4096
    scores = planned({}, flash_attention=False, coefficients={"score_floats": 1000.0})["gpu0"]
    assert scores == 4 * 512 * (32 * 8192 + 1000 + 3) + 4 * 512 * 8192


def test_scores_are_those_of_the_layer_with_most() -> None:
    """64 heads over 1,024 cells of a window are fewer scores than 48 heads over 8,192."""
    layers = (
        {"n_heads": 64, "mixer": "sliding", "window_tokens": 512, "uses_window": True},
        {"group": 1, "n_heads": 48},
    )
    found = planned(*layers, slots=1, flash_attention=False, coefficients={"score_floats": 0.0})["gpu0"]
    assert found == 4 * 512 * (48 * 8192 + 3) + 4 * 512 * (8192 + 1024)


@settings(max_examples=25, deadline=None)
@given(
    hidden=st.integers(64, 20_000), ffn=st.integers(0, 60_000), experts=st.integers(1, 16),
    width=st.integers(1, 5000), window=st.sampled_from([None, 128, 4096]), gated=st.booleans(),
    is_moe=st.booleans(), fused=st.booleans(), blocks=st.integers(1, 500), slots=st.integers(1, 8),
    n_gpus=st.sampled_from([2, 4, 8]),
)  # fmt: skip
def test_buffers_grow(
    hidden: int, ffn: int, experts: int, width: int, window: int | None, gated: bool, is_moe: bool, fused:
    bool,
    blocks: int, slots: int, n_gpus: int,
) -> None:  # fmt: skip
    layer = {"hidden_size": hidden, "ffn": "moe" if is_moe else "dense", "ffn_size": None if is_moe else ffn,
             "n_experts_used": experts if is_moe else None, "expert_ffn_size": width if is_moe else None,
             "ffn_matrices": 3 if gated else 2}  # fmt: skip
    slides = {**layer, "mixer": "sliding", "window_tokens": window, "uses_window": True}
    layers = (slides, {**layer, "group": 1}) if window else (layer,)
    here = {"context_tokens": 256 * blocks, "flash_attention": fused, "slots": slots, "outputs": 1}
    one = planned(*layers, **here)
    assert one["gpu0"] > 0
    for changes in ({"context_tokens": 256 * blocks + 256}, {"ubatch_tokens": 1024}, {"slots": slots + 1},
                    {"outputs": 512}):  # fmt: skip
        more = planned(*layers, **{**here, **changes})
        assert one["gpu0"] <= more["gpu0"], changes
        assert one["host"] <= more["host"], changes
    several = planned(*layers, **here, n_gpus=n_gpus)
    # The first of several has no mask of layers it does not hold, so only the fullest must need more.
    assert one["gpu0"] < several["fullest"]
    assert several["gpu0"] <= several["fullest"]
    assert one["host"] < several["host"]
