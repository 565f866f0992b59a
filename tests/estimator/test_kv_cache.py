"""What engines reserve for one request, against llama.cpp's planner and figures worked out by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.engine_cache import RULES
from estimator.kv_cache import engine_windows, kv_cache
from tests.estimator.cube_cases import (
    LLAMA_CPP,
    PROFILES,
    STEPS,
    VLLM,
    contexts,
    counts,
    layer_frame,
    llama_cpp_frame,
    model_frame,
)

MIB = 2**20
ONE_SLOT = {"is_llama_cpp": True, "ubatch_tokens": 512, "flash_attention": True, "slots": 1,
            "window_slack_tokens": 512, "window_step_tokens": 256}  # fmt: skip
FOUR_SLOTS = ONE_SLOT | {"slots": 4}
_RULES: dict[str, Any] = {**dict.fromkeys(RULES), "is_llama_cpp": False, "ubatch_tokens": 0,
                          "flash_attention": True, "slots": 1, "window_slack_tokens": 0,
                          "window_step_tokens": 1}  # fmt: skip
# vLLM: two batches of 2,048 tokens in flight and blocks of 16
PAGED = {**_RULES, "cache_layout": "block_groups", "block_tokens": 16, "in_flight_tokens": 4096,
         "keeps_chunks_whole": True, "latent_block_tokens": 128, "state_pages": 2,
         "half_state_types": "qwen3_next", "block_flag": "--block-size",
         "window_flag": "--disable-hybrid-kv-cache-manager"}  # fmt: skip
EXACT = {**_RULES, "cache_layout": "layers", "block_tokens": 1, "in_flight_tokens": 0}
MLA = {"mixer": "mla", "n_layers": 61, "n_heads": 128, "n_kv_heads": None, "k_head_dim": 192,
       "latent_dim": 576}  # fmt: skip
GEMMA_3_27B = (
    {"mixer": "sliding", "n_layers": 52, "n_kv_heads": 16, "window_tokens": 1024},
    {"group": 1, "n_layers": 10, "n_kv_heads": 16},
)
QWEN3_NEXT = (
    {"mixer": "linear", "n_layers": 36, "n_heads": None, "n_kv_heads": None, "k_head_dim": None,
     "v_head_dim": None, "f32_state_elements": 524_288, "conv_state_elements": 24_576},
    {"group": 1, "n_layers": 12, "n_heads": 16, "n_kv_heads": 2, "k_head_dim": 256, "v_head_dim": 256},
)  # fmt: skip


def cache(
    layers: tuple[dict[str, Any], ...],
    engine: dict[str, Any],
    windows: dict[str, Any],
    context: int,
    n_gpus: int = 1,
    uses_window: bool = True,
) -> dict[str, Any]:
    n_layers = sum(layer.get("n_layers", 32) for layer in layers)
    storages = pl.LazyFrame([{**engine, **windows}], schema_overrides={"parallel_mode": pl.String, **RULES})
    found = kv_cache(
        model_frame({"n_layers": n_layers}).select("model", "model_type", "n_layers", "model_citation"),
        layer_frame(*layers),
        llama_cpp_frame(*({**layer, "uses_window": uses_window} for layer in layers)),
        storages,
        contexts(context),
        counts(n_gpus),
    ).collect()
    assert found.height == 1
    return found.row(0, named=True)


@pytest.mark.parametrize(("engine", "windows"), [(LLAMA_CPP, FOUR_SLOTS), (VLLM, PAGED)])
def test_full_attention_takes_what_it_needs(engine: dict[str, Any], windows: dict[str, Any]) -> None:
    """Llama-3.1-8B: 32 layers x 8 heads x (128 + 128) x 2 bytes = 131,072 bytes per token; slots share
    them.
    """
    found = cache(({},), engine, windows, 8192)
    assert found["needed_bytes"] == found["reserved_bytes"] == found["read_bytes"] == 8192 * 131_072
    assert found["start_read_bytes"] == 0


def test_cache_types_scale_the_bytes() -> None:
    """q8_0 keeps 34 bytes per 32 elements: 17/32 of f16."""
    q8 = LLAMA_CPP | {"kv_dtype": "q8_0", "k_bytes_per_element": 1.0625, "v_bytes_per_element": 1.0625}
    assert cache(({},), q8, FOUR_SLOTS, 8192)["needed_bytes"] == 8192 * 131_072 * 17 // 32


@pytest.mark.parametrize(
    ("windows", "context", "planner_mib"),
    [
        (ONE_SLOT, 8192, 1264.0),
        (FOUR_SLOTS, 8192, 2512.0),
        (ONE_SLOT, 32768, 3184.0),
        (FOUR_SLOTS, 32768, 4432.0),
    ],
)
def test_windows_of_llama_cpp(windows: dict[str, Any], context: int, planner_mib: float) -> None:
    """Gemma-3-27B, 8 KiB per token and layer, 52 windows of 1,024 tokens and 10 full layers.

    cells: pad(1024 + 512, 256) = 1536 with one slot, pad(4 x 1024 + 512, 256) = 4608 with four; planner
    figures of llama.cpp 0c1e57098.
    """
    found = cache(GEMMA_3_27B, LLAMA_CPP, windows, context)
    cells = 1536 if windows["slots"] == 1 else 4608
    assert found["reserved_bytes"] == 8192 * (10 * context + 52 * cells)
    assert found["reserved_bytes"] / MIB == planner_mib
    assert found["needed_bytes"] == found["read_bytes"] == 8192 * (10 * context + 52 * 1024)


def test_windows_never_exceed_the_context() -> None:
    assert cache(GEMMA_3_27B, LLAMA_CPP, FOUR_SLOTS, 4096)["reserved_bytes"] == 62 * 8192 * 4096


def test_windows_of_vllm_are_whole_blocks() -> None:
    """ceil((1024 - 1 + 4096) / 16) + 1 = 321 blocks; 52 windowed layers make 6 groups of 10, as the full ones
    do.
    """
    found = cache(GEMMA_3_27B, VLLM, PAGED, 32768)
    assert found["reserved_bytes"] == 10 * (32768 // 16 + 6 * 321) * 16 * 8192
    assert found["reserve_flag"] == "--disable-hybrid-kv-cache-manager"


def test_engines_without_a_block_keep_the_window() -> None:
    found = cache(GEMMA_3_27B, VLLM, EXACT, 32768)
    assert found["reserved_bytes"] == found["needed_bytes"]


def test_windows_that_llama_cpp_ignores() -> None:
    """The model needs 4,096 positions; llama.cpp keeps all of them, vLLM the window."""
    layers = ({"mixer": "sliding", "window_tokens": 4096},)
    ignored = cache(layers, LLAMA_CPP, FOUR_SLOTS, 65536, uses_window=False)
    assert ignored["needed_bytes"] == 4096 * 131_072
    assert ignored["reserved_bytes"] == 65536 * 131_072
    assert cache(layers, VLLM, EXACT, 65536)["reserved_bytes"] == 4096 * 131_072
    assert cache(layers, LLAMA_CPP, ONE_SLOT, 65536)["reserved_bytes"] == 4608 * 131_072


def test_engine_windows_come_from_the_profiles() -> None:
    found = engine_windows(PROFILES, STEPS).collect().rows_by_key("framework", named=True, unique=True)
    assert {name: found["llama.cpp"][name] for name in FOUR_SLOTS} == FOUR_SLOTS
    paged = {name: found["vllm"][name] for name in RULES}
    assert paged == {name: PAGED[name] for name in RULES}  # twice the smallest card's 2,048 tokens


def test_an_engine_that_states_nothing_keeps_exactly_the_window() -> None:
    bare = pl.LazyFrame(
        {"framework": ["bare"], "activation_rule": [None], "profile_slots": [None],
         "profile_ubatch_tokens": [None], "profile_kv_block_tokens": [None],
         "profile_context_step_tokens": [None], "profile_flash_attention": [None]},
        schema_overrides={"activation_rule": pl.String, "profile_flash_attention": pl.Boolean},
    )  # fmt: skip
    assert engine_windows(bare, STEPS).collect().drop("framework").row(0, named=True) == EXACT


def test_deepseek_r1_at_32k() -> None:
    """61 layers x 576 x 2 bytes x 32,768 tokens."""
    assert cache((MLA,), LLAMA_CPP, FOUR_SLOTS, 32768)["needed_bytes"] == 2_302_672_896


def test_a_latent_cache_is_on_every_rank_and_read_by_every_rank() -> None:
    found = cache((MLA,), VLLM, PAGED, 32768, n_gpus=8)
    assert found["needed_bytes"] == found["reserved_bytes"] == 2_302_672_896
    assert found["read_bytes"] == 8 * 2_302_672_896


def test_heads_are_replicated_beyond_their_number() -> None:
    """Qwen3-235B-A22B: 94 layers x 4 heads x 256 x 2 bytes = 192,512 bytes per token, 1.469 GiB at 8K."""
    layers = ({"n_layers": 94, "n_kv_heads": 4},)
    whole = cache(layers, VLLM, PAGED, 8192)["needed_bytes"]
    assert whole == 8192 * 192_512
    assert round(whole / 2**30, 3) == 1.469
    for n_gpus, share in ((2, 2), (4, 4), (8, 4)):
        found = cache(layers, VLLM, PAGED, 8192, n_gpus=n_gpus)
        assert found["needed_bytes"] == found["reserved_bytes"] == whole // share
        # over all ranks: one copy while the heads last, two copies on eight ranks
        assert found["read_bytes"] == whole // share * n_gpus


def test_gpt_oss_120b() -> None:
    """18 full layers x 8 x 128 x 2 = 36,864 bytes per token; 18 windows of 128 tokens: 4,718,592 bytes."""
    half = {"n_layers": 18, "n_heads": 64, "k_head_dim": 64, "v_head_dim": 64}
    layers = ({**half, "mixer": "sliding", "window_tokens": 128}, {**half, "group": 1})
    for context in (4096, 131_072):
        assert cache(layers, VLLM, PAGED, context)["needed_bytes"] == 36_864 * context + 4_718_592


def test_recurrent_state_is_kept_per_slot() -> None:
    """Qwen3-Next: 36 x (524,288 + 24,576) x 4 bytes = 75.375 MiB a slot in llama.cpp, 24,576 B per token.

    Planner of llama.cpp 0c1e57098 at 8,192: 267.375 MiB with one slot, 493.5 MiB with four.
    """
    one, four = (cache(QWEN3_NEXT, LLAMA_CPP, slots, 8192) for slots in (ONE_SLOT, FOUR_SLOTS))
    state = 36 * (524_288 + 24_576) * 4
    assert one["reserved_bytes"] / MIB == 267.375
    assert four["reserved_bytes"] / MIB == 493.5
    assert one["needed_bytes"] == four["needed_bytes"] == 8192 * 24_576 + state
    # read and written once per token, whatever the cache holds
    assert four["start_read_bytes"] == 2 * state
    assert four["read_bytes"] == 8192 * 24_576 + 2 * state


def test_convolution_state_is_16_bit_outside_llama_cpp() -> None:
    found = cache(QWEN3_NEXT, VLLM, PAGED, 8192)
    assert found["needed_bytes"] == 8192 * 24_576 + 36 * (524_288 * 4 + 24_576 * 2)


def test_recurrent_state_is_shared_out_among_ranks() -> None:
    """Eight ranks: 2 KV heads are replicated four times, the state is not."""
    one, eight = (cache(QWEN3_NEXT, VLLM, PAGED, 8192, n_gpus=n) for n in (1, 8))
    state = 36 * (524_288 * 4 + 24_576 * 2)
    assert eight["needed_bytes"] == 8192 * 24_576 // 2 + state // 8
    assert eight["start_read_bytes"] == one["start_read_bytes"] == 2 * state
    assert eight["read_bytes"] == 4 * 8192 * 24_576 + 2 * state


def test_layer_split_shares_out_whole_layers() -> None:
    """61 layers over 2 GPUs: 31 on the fuller one; what is read does not shrink."""
    found = cache((MLA,), LLAMA_CPP, FOUR_SLOTS, 32768, n_gpus=2)
    assert found["needed_bytes"] == found["reserved_bytes"] == 31 * 576 * 2 * 32768
    assert found["read_bytes"] == 2_302_672_896


def test_an_engine_that_cannot_split_has_one_gpu() -> None:
    alone = pl.LazyFrame([{**LLAMA_CPP, **ONE_SLOT, "parallel_mode": "none"}])
    models = model_frame().select("model", "model_type", "n_layers", "model_citation")
    found = kv_cache(
        models, layer_frame(), llama_cpp_frame(), alone, contexts(4096), counts(1, 2, 4)
    ).collect()
    assert found.get_column("n_gpus").to_list() == [1]


def test_frameworks_of_one_setting_each_have_their_row() -> None:
    """Ollama and KoboldCpp keep one slot of the same engine: computed once, listed twice."""
    twins = pl.LazyFrame([{**LLAMA_CPP, **ONE_SLOT, "framework": name} for name in ("ollama", "koboldcpp")])
    models = model_frame().select("model", "model_type", "n_layers", "model_citation")
    found = kv_cache(
        models, layer_frame(), llama_cpp_frame(), twins, contexts(4096, 8192), counts(1)
    ).collect()
    assert found.get_column("framework").to_list() == ["koboldcpp"] * 2 + ["ollama"] * 2
    assert found.get_column("needed_bytes").to_list() == [4096 * 131_072, 8192 * 131_072] * 2


@settings(max_examples=10)
@given(
    window=st.sampled_from([None, 128, 1024, 4096]),
    state=st.integers(0, 10**6),
    heads=st.integers(1, 16),
    blocks=st.integers(1, 512),
    n_gpus=st.sampled_from([1, 2, 4, 8]),
    engine=st.sampled_from([(LLAMA_CPP, FOUR_SLOTS), (VLLM, PAGED)]),
)
def test_needed_is_at_most_reserved_and_grows(
    window: int | None, state: int, heads: int, blocks: int, n_gpus: int,
    engine: tuple[dict[str, Any], dict[str, Any]],
) -> None:  # fmt: skip
    layers = (
        {"mixer": "sliding" if window else "full", "window_tokens": window, "n_kv_heads": heads},
        {"group": 1, "mixer": "linear", "n_layers": 8, "f32_state_elements": state},
    )
    here, longer = (cache(layers, *engine, context, n_gpus) for context in (256 * blocks, 512 * blocks))
    alone = cache(layers, *engine, 256 * blocks)
    for name in ("needed_bytes", "reserved_bytes", "read_bytes"):
        assert here[name] <= longer[name]
    assert here["needed_bytes"] <= here["reserved_bytes"]
    assert here["needed_bytes"] <= alone["needed_bytes"] <= n_gpus * here["needed_bytes"] + n_gpus * 40
    assert here["start_read_bytes"] <= here["read_bytes"]
