"""Weights in bytes by role, engine and number of GPUs, worked out by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.stored_weights import own_densities
from tests.estimator.cube_cases import (
    BF16,
    LLAMA_CPP,
    MODEL,
    Q4_K_M,
    QWEN3_30B,
    VLLM,
    counts,
    format_frame,
    model_frame,
    placed_weights,
)

MIB = 2**20
GEMMA_3_27B = {"is_tied": True, "embedding_params": 1_409_630_208, "head_params": 0, "n_layers": 62,
               "body_params": 25_599_716_096}  # fmt: skip
GEMMA_4_E4B = {"is_tied": True, "embedding_params": 671_088_640, "head_params": 0,
               "per_layer_embedding_params": 2_818_572_288, "body_params": 3_973_352_490}  # fmt: skip
EXLLAMA: dict[str, Any] = {**VLLM, "framework": "exllamav3", "engine": "exllamav3"}
EXL3: dict[str, Any] = {**BF16, "quant": "exl3/4.0bpw", "body_bpw": 4.0, "head_bpw": 6.0}
MXFP4: dict[str, Any] = {
    **BF16, "quant": "fp4/mxfp4", "scope": "experts", "body_bpw": 4.25, "rest_bpw": 16.0,
}  # fmt: skip


def row(change: dict[str, Any], *format_parts: dict[str, Any], n_gpus: int = 1) -> dict[str, Any]:
    merged = {key: value for part in format_parts for key, value in part.items()}
    found = placed_weights(model_frame(change), format_frame(merged), counts(n_gpus)).collect()
    assert found.height == 1
    return found.row(0, named=True)


def test_llama_cpp_keeps_the_embedding_on_the_host() -> None:
    """Llama-3.1-8B: body 6,979,588,096 x 4.8 / 8; head 525,336,576 x 6.5625 / 8; embedding x 4.5 / 8."""
    found = row({}, LLAMA_CPP, Q4_K_M)
    body, head, embedding = 4_187_752_858, 430_940_160, 295_501_824
    assert embedding / MIB == pytest.approx(281.81, abs=0.01)  # "CPU_Mapped ... 281.81 MiB" of real logs
    assert found["host_bytes"] == embedding
    assert found["device_bytes"] == found["weights_bytes"] == body + head
    assert found["dense_read_bytes"] == body + head + 2304  # and one row of 4,096 x 4.5 / 8
    assert found["file_bytes"] == body + head + embedding
    assert found["expert_bytes"] == found["expert_read_bytes"] == 0


def test_vllm_keeps_everything_on_the_device_and_reads_no_embedding() -> None:
    """8,030,261,248 parameters of 2 bytes; a token reads all but 525,336,576 of them."""
    found = row({}, VLLM, BF16)
    assert found["device_bytes"] == found["file_bytes"] == 16_060_522_496
    assert found["host_bytes"] == 0
    assert found["dense_read_bytes"] == 16_060_522_496 - 1_050_673_152 + 8192  # one row is read


def test_a_tied_model_has_its_head_once_on_the_gpu_and_a_copy_on_the_host() -> None:
    """Gemma-3-27B: 1,409,630,208 x 6.5625 / 8 = 1,156,337,280 (1102.8 MiB), in the file once."""
    found = row(GEMMA_3_27B, LLAMA_CPP, Q4_K_M)
    head = 1_156_337_280
    assert found["host_bytes"] == head
    assert found["device_bytes"] == found["file_bytes"] == round(25_599_716_096 * 4.8 / 8) + head
    shared = row(GEMMA_3_27B, VLLM, BF16)
    assert shared["device_bytes"] == shared["file_bytes"] == 2 * (25_599_716_096 + 1_409_630_208)
    assert shared["dense_read_bytes"] == shared["device_bytes"] + 2 * 1_409_630_208 // 128_256  # one row
    assert shared["host_bytes"] == 0


def test_per_layer_embeddings_take_the_type_of_a_tied_output() -> None:
    """Gemma-4-E4B Q4_K_M in llama.cpp's own planner: host 2,730.0 MiB = 2,205 per layer + 525 embedding."""
    found = row(GEMMA_4_E4B, LLAMA_CPP, Q4_K_M)
    assert found["host_bytes"] / MIB == pytest.approx(2205.0 + 525.0, abs=0.05)
    assert found["file_bytes"] - found["device_bytes"] == pytest.approx(2205.0 * MIB, abs=0.05 * MIB)
    # elsewhere they are on the device, and are looked up, not read
    there = row(GEMMA_4_E4B, VLLM, BF16)
    rows = 2 * (2_818_572_288 + 671_088_640) // 128_256
    assert there["device_bytes"] - there["dense_read_bytes"] == 2 * 2_818_572_288 - rows


def test_exllama_stores_a_quantized_head_beside_the_16_bit_embedding() -> None:
    found = row(GEMMA_3_27B, EXLLAMA, EXL3)
    body, head, embedding = 25_599_716_096 // 2, 1_057_222_656, 2_819_260_416
    assert found["device_bytes"] == body + head
    assert found["host_bytes"] == embedding
    assert found["file_bytes"] == body + head + embedding


def test_a_token_reads_k_of_e_experts() -> None:
    """Qwen3-30B-A3B bf16: 28,991,029,248 x 2 bytes of experts, 8 of 128 of them read."""
    found = row(QWEN3_30B, VLLM, BF16)
    assert found["expert_bytes"] == 57_982_058_496
    assert found["expert_read_bytes"] == 57_982_058_496 // 16
    assert found["dense_read_bytes"] == 2 * (918_763_520 + 311_164_928) + 2 * 311_164_928 // 128_256
    assert found["device_bytes"] == 2 * (918_763_520 + 2 * 311_164_928) + 57_982_058_496


def test_a_format_for_experts_leaves_the_rest_alone() -> None:
    """gpt-oss-120b: body and both ends in 16 bit, experts 114,701,598,720 x 4.25 / 8: the checkpoint's 65.2
    GB.
    """
    gpt_oss = {**QWEN3_30B, "n_experts_used": 4, "body_params": 969_291_072, "embedding_params": 579_133_440,
               "head_params": 579_133_440, "expert_params": 114_701_598_720}  # fmt: skip
    found = row(gpt_oss, VLLM, MXFP4)
    assert found["device_bytes"] == 1_938_582_144 + 2_316_533_760 + 60_935_224_320
    assert found["expert_read_bytes"] == 60_935_224_320 // 32
    # a dense model has no experts to store that way
    assert placed_weights(model_frame(), format_frame({**VLLM, **MXFP4}), counts(1)).collect().is_empty()


@pytest.mark.parametrize("role", ["body_bpw", "embedding_bpw", "head_bpw"])
def test_formats_of_unknown_density_are_left_out(role: str) -> None:
    unknown = format_frame({**VLLM, **BF16, role: None})
    assert placed_weights(model_frame(), unknown, counts(1)).collect().is_empty()


def test_layer_split_deals_out_whole_layers_and_puts_the_head_last() -> None:
    """32 layers over 3 GPUs: 11, 11 and 10 with the head; a layer is 4,187,752,858 / 32 bytes."""
    found = row({}, LLAMA_CPP, Q4_K_M, n_gpus=3)
    layer = 4_187_752_858 / 32
    assert found["weights_bytes"] == pytest.approx(max(11 * layer, 10 * layer + 430_940_160), abs=1)
    assert found["device_bytes"] == 4_187_752_858 + 430_940_160  # all GPUs together


def test_tensor_parallel_cuts_evenly() -> None:
    assert row({}, VLLM, BF16, n_gpus=4)["weights_bytes"] == 16_060_522_496 // 4
    assert row({}, VLLM, BF16, n_gpus=4)["dense_read_bytes"] == row({}, VLLM, BF16)["dense_read_bytes"]


def test_an_engine_that_cannot_split_has_one_gpu() -> None:
    alone = {**LLAMA_CPP, **Q4_K_M, "parallel_mode": "none"}
    found = placed_weights(model_frame(), format_frame(alone), counts(1, 2, 4)).collect()
    assert found.get_column("n_gpus").to_list() == [1]


PARAMS = st.integers(10**6, 10**12)
BITS = st.floats(1.5, 16.0)


@settings(max_examples=12)
@given(
    embedding=PARAMS, body=PARAMS, experts=PARAMS, tied=st.booleans(), per_layer=st.integers(0, 10**10),
    bits=BITS, head_bits=BITS, more=st.floats(1.0, 2.0), n_gpus=st.integers(2, 8), layers=st.integers(1, 130),
    engine=st.sampled_from([LLAMA_CPP, VLLM, EXLLAMA]),
)  # fmt: skip
def test_bytes_are_conserved_and_grow_with_bits(
    embedding: int, body: int, experts: int, tied: bool, per_layer: int, bits: float, head_bits: float,
    more: float, n_gpus: int, layers: int, engine: dict[str, Any],
) -> None:  # fmt: skip
    change = {"embedding_params": embedding, "head_params": 0 if tied else embedding, "is_tied": tied,
              "per_layer_embedding_params": per_layer, "body_params": body, "expert_params": experts,
              "n_experts": 64, "n_experts_used": 4, "n_layers": layers}  # fmt: skip
    thin = {**engine, **Q4_K_M, "body_bpw": bits, "embedding_bpw": bits, "head_bpw": head_bits}
    thick = thin | {name: thin[name] * more for name in ("body_bpw", "embedding_bpw", "head_bpw")}
    one, several, denser = (
        row(change, thin), row(change, thin, n_gpus=n_gpus), row(change, thick)
    )  # fmt: skip
    # nothing of the file is lost; a tied matrix may be there twice
    assert one["device_bytes"] + one["host_bytes"] >= one["file_bytes"]
    if not tied:
        assert one["device_bytes"] + one["host_bytes"] == one["file_bytes"]
    assert one["weights_bytes"] == one["device_bytes"]
    assert several["device_bytes"] == one["device_bytes"]
    assert several["weights_bytes"] <= one["weights_bytes"] <= n_gpus * several["weights_bytes"] + n_gpus
    assert one["expert_read_bytes"] <= one["expert_bytes"]
    one_row = (one["host_bytes"] + embedding * 2 + per_layer * 2) // 128_256 + 1
    assert one["dense_read_bytes"] + one["expert_bytes"] <= one["device_bytes"] + one_row
    for name in ("weights_bytes", "host_bytes", "file_bytes", "dense_read_bytes", "expert_bytes"):
        assert denser[name] >= one[name]


def test_every_cell_is_there_once_and_sorted() -> None:
    formats = format_frame({**LLAMA_CPP, **Q4_K_M}, {**VLLM, **BF16})
    found = placed_weights(model_frame(QWEN3_30B, MODEL), formats, counts(2, 1)).collect()
    key = ["model", "framework", "quant", "n_gpus"]
    assert found.select(key).equals(found.select(key).unique().sort(key))
    assert found.height == 2 * 2 * 2
    assert found.null_count().sum_horizontal().item() == 0
    assert found.schema["n_gpus"] == pl.Int16


def test_a_published_file_of_the_same_shape_comes_before_the_usual_density() -> None:
    """8,030,261,248 parameters: the files of that size count, the median of two, no other size or format."""
    models = pl.LazyFrame(
        {
            "model": ["m"],
            "head_params": [525_336_576],
            "embedding_params": [525_336_576],
            "per_layer_embedding_params": [0],
            "body_params": [6_979_588_096],
            "expert_params": [None],
        },
        schema_overrides={"expert_params": pl.Int64},
    )
    files = pl.LazyFrame(
        {
            "quant": ["a", "a", "a", "b"],
            "n_params": [8_030_261_312, 8_030_261_248, 8_190_735_360, 70_000_000_000],
            "measured_bpw": [3.0, 3.5, 9.0, 4.0],
        }
    )
    assert own_densities(models, files).collect().rows() == [("m", "a", 3.25)]
