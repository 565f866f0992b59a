"""Bytes of checkpoints, worked out by hand for small matrices in each kind of layout."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.checkpoint_bytes import (
    checkpoint_bytes,
    checkpoint_tensors,
    is_more_bits,
    layout_bytes,
    split_runs,
    tensor_layouts,
)

LAYOUT_SCHEMA: dict[str, Any] = {
    "layout": pl.String, "recipe": pl.String, "second_layout": pl.String, "bits": pl.Float64,
    **dict.fromkeys(
        ("group_size", "block_rows", "scale_bytes", "zero_bits", "outer_group_size", "outer_scale_bytes",
         "row_bytes", "column_bytes", "matrix_bytes", "row_multiple", "padded_row", "padded_rows"), pl.Int32),
}  # fmt: skip
PLAIN: dict[str, Any] = {
    "layout": "plain", "recipe": None, "second_layout": None, "bits": 16.0, "block_rows": 1, "scale_bytes": 0,
    "zero_bits": 0, "outer_scale_bytes": 0, "row_bytes": 0, "column_bytes": 0, "matrix_bytes": 0,
}  # fmt: skip
AWQ = {"bits": 4.0, "group_size": 128, "scale_bytes": 2, "zero_bits": 4, "row_multiple": 128}
MLX = {"bits": 4.0, "group_size": 64, "scale_bytes": 4, "row_multiple": 64}
RECIPE_SCHEMA: dict[str, Any] = {
    "recipe": pl.String, "order": pl.Int16, "tensor": pl.String, "part": pl.String, "storage": pl.String,
    "model_type": pl.String, "with_experts": pl.Boolean, "is_mtp": pl.Boolean, "layers": pl.String,
    "layout": pl.String,
}  # fmt: skip
CENSUS_SCHEMA: dict[str, Any] = {
    "model": pl.String, "group": pl.Int16, "n_layers": pl.Int32, "is_mtp": pl.Boolean, "tensor": pl.String,
    "part": pl.String, "storage": pl.String, "n_matrices": pl.Int64, "n_rows": pl.Int64,
    "row_length": pl.Int64,
}  # fmt: skip
TENSOR: dict[str, Any] = {
    "model": "m", "group": 0, "n_layers": 1, "is_mtp": False, "tensor": "ffn_up", "part": "ffn",
    "storage": "matrix", "n_matrices": 1, "n_rows": 256, "row_length": 512,
}  # fmt: skip
BF16 = {"layout": "native/bf16"}
LINEAR = [{"part": "mixer ffn experts", "storage": "matrix", "layout": "own"}, BF16]


def layout_frame(*rows: dict[str, Any]) -> pl.LazyFrame:
    whole = [{**dict.fromkeys(LAYOUT_SCHEMA), **PLAIN, **row} for row in rows]
    return pl.DataFrame(whole, LAYOUT_SCHEMA).lazy()


def recipe_frame(*rows: dict[str, Any], recipe: str = "r") -> pl.LazyFrame:
    numbered = [
        {**dict.fromkeys(RECIPE_SCHEMA), "recipe": recipe, "order": order, "layers": "all", **row}
        for order, row in enumerate(rows, 1)
    ]
    return pl.DataFrame(numbered, RECIPE_SCHEMA).lazy()


def census_frame(*rows: dict[str, Any]) -> pl.LazyFrame:
    return pl.DataFrame([{**TENSOR, **row} for row in rows], CENSUS_SCHEMA).lazy()


def matrix_bytes(rows: int, row_length: int, layout: dict[str, Any]) -> int:
    shape = pl.DataFrame({"n_rows": [rows], "row_length": [row_length]}).lazy()
    return int(shape.join(layout_frame(layout), how="cross").select(layout_bytes()).collect().item())


def total(tensors: list[dict[str, Any]], recipe: list[dict[str, Any]], own: dict[str, Any],
          *layouts: dict[str, Any], model_type: str = "llama") -> int:  # fmt: skip
    known = layout_frame({"layout": "native/bf16"}, {"layout": "own-format", "recipe": "r", **own}, *layouts)
    models = pl.LazyFrame({"model": ["m"], "model_type": [model_type]})
    found = checkpoint_bytes(census_frame(*tensors), models, recipe_frame(*recipe), known).collect()
    assert found["quant"].unique().to_list() == ["own-format"]
    return int(found["bytes"].sum())


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        pytest.param({"bits": 16.0}, 262_144, id="16 bit: 131,072 x 2"),
        pytest.param({"bits": 32.0}, 524_288, id="32 bit"),
        pytest.param(AWQ, 65_536 + 1_024 * 2 + 1_024 // 2, id="AWQ: 4 groups a row, zero of 4 bits"),
        pytest.param({**AWQ, "column_bytes": 4}, 65_536 + 2_048 + 512 + 512 * 4, id="GPTQ: g_idx per column"),
        pytest.param({"bits": 4.0, "scale_bytes": 2, "zero_bits": 4, "column_bytes": 4},
                     65_536 + 256 * 2 + 128 + 2_048, id="GPTQ per channel: the group is the row"),
        pytest.param({"bits": 8.0, "group_size": 128, "scale_bytes": 2, "zero_bits": 8, "column_bytes": 4},
                     131_072 + 2_048 + 1_024 + 2_048, id="GPTQ 8 bit"),
        pytest.param({"bits": 3.0, "group_size": 128, "scale_bytes": 2, "zero_bits": 3, "column_bytes": 4},
                     49_152 + 2_048 + 384 + 2_048, id="GPTQ 3 bit"),
        pytest.param({"bits": 4.0, "group_size": 32, "scale_bytes": 2, "matrix_bytes": 16},
                     65_536 + 4_096 * 2 + 16, id="compressed-tensors: shape of two 64-bit numbers"),
        pytest.param({"bits": 8.0, "matrix_bytes": 8}, 131_072 + 8, id="FP8 per tensor: two 32-bit scales"),
        pytest.param({"bits": 8.0, "row_bytes": 2}, 131_072 + 512, id="FP8 or INT8 per channel"),
        pytest.param({"bits": 8.0, "group_size": 128, "block_rows": 128, "scale_bytes": 4},
                     131_072 + 2 * 4 * 4, id="FP8 in tiles: 2 x 4 of them"),
        pytest.param({"bits": 4.0, "group_size": 16, "scale_bytes": 1, "matrix_bytes": 8},
                     65_536 + 8_192 + 8, id="NVFP4"),
        pytest.param({"bits": 4.0, "group_size": 32, "scale_bytes": 1}, 65_536 + 4_096, id="MXFP4"),
        pytest.param({"bits": 4.0, "group_size": 64, "scale_bytes": 4, "matrix_bytes": 64},
                     65_536 + 2_048 * 4 + 64, id="NF4: 32-bit absmax, code of 16"),
        pytest.param({"bits": 4.0, "group_size": 64, "scale_bytes": 1, "outer_group_size": 16_384,
                      "outer_scale_bytes": 4, "matrix_bytes": 1_088},
                     65_536 + 2_048 + 8 * 4 + 1_088, id="NF4 with double quantization"),
        pytest.param(MLX, 65_536 + 2_048 * 4, id="MLX: scale and bias of 2 bytes"),
        pytest.param({"bits": 4.0, "row_bytes": 2, "column_bytes": 2, "padded_row": 128, "padded_rows": 128},
                     65_536 + 512 + 1_024, id="EXL3: two vectors of signs"),
        pytest.param({"bits": 2.0, "row_bytes": 2, "matrix_bytes": 1_048_576},
                     32_768 + 512 + 1_048_576, id="AQLM 1x16: codebook of 1 MiB"),
    ],
)  # fmt: skip
def test_a_matrix_of_256_rows_of_512(layout: dict[str, Any], expected: int) -> None:
    assert matrix_bytes(256, 512, layout) == expected


def test_edges_are_rounded_up() -> None:
    tiles = {"bits": 8.0, "group_size": 128, "block_rows": 128, "scale_bytes": 4}
    assert matrix_bytes(129, 200, tiles) == 129 * 200 + 2 * 2 * 4
    # MLC q3f16_1: rows of 100 are filled up to 120 = 3 groups of 40; 4 words and a scale of 2 bytes each
    mlc = {"bits": 3.2, "group_size": 40, "scale_bytes": 2, "padded_row": 40}
    assert matrix_bytes(7, 100, mlc) == 7 * 3 * 18
    padded = {"bits": 4.0, "padded_row": 128, "padded_rows": 128, "row_bytes": 2, "column_bytes": 2}
    assert matrix_bytes(130, 100, padded) == 256 * 128 // 2 + 2 * 256 + 2 * 128


def test_only_matrices_of_the_layers_are_quantized() -> None:
    """AWQ: 2 layers of one matrix; embedding and norms stay in 16 bit."""
    tensors = [
        {"n_layers": 2},
        {"n_layers": 2, "tensor": "layer_norms", "part": "norms", "storage": "f32", "n_rows": 2},
        {"group": None, "tensor": "token_embd", "part": "embedding", "n_rows": 1_000},
        {"group": None, "tensor": "rope_freqs", "part": "model", "storage": "generated", "n_rows": 1},
    ]
    assert total(tensors, LINEAR, AWQ) == 2 * 68_096 + 2 * 2 * 512 * 2 + 1_000 * 512 * 2


def test_rows_that_do_not_fit_stay_in_16_bit() -> None:
    assert total([{"row_length": 96}], LINEAR, MLX) == 256 * 96 * 2
    # mlx-lm asks for the format's own multiple whatever layout the layer would get
    eight = {"layout": "eight", "bits": 8.0, "group_size": 32, "scale_bytes": 4}
    recipe = [{"tensor": "ffn_up", "layout": "eight"}, BF16]
    assert total([{"row_length": 96}], recipe, MLX, eight) == 256 * 96 * 2


def test_experts_have_what_a_matrix_has_each() -> None:
    nvfp4 = {"bits": 4.0, "group_size": 16, "scale_bytes": 1, "matrix_bytes": 8}
    experts = {"tensor": "ffn_up_exps", "part": "experts", "n_matrices": 10, "n_layers": 3}
    assert total([experts], LINEAR, nvfp4) == 30 * (65_536 + 8_192 + 8)


def test_the_first_row_that_matches_decides() -> None:
    gate = {"tensor": "ffn_gate_inp", "storage": "f32", "n_rows": 8}
    eight = {"layout": "eight", "bits": 8.0, "group_size": 64, "scale_bytes": 4}
    of_routers = {"tensor": "ffn_gate_inp ffn_gate_inp_shexp", "model_type": "qwen3_moe mixtral"}
    recipe = [{**of_routers, "layout": "eight"}, *LINEAR]
    assert total([gate], recipe, MLX, eight, model_type="qwen3_moe") == 8 * 512 + 8 * 8 * 4
    assert total([gate], recipe, MLX, eight, model_type="qwen3") == 8 * 512 * 2
    shared = {**gate, "tensor": "ffn_gate_inp_shexp"}
    assert total([shared], recipe, MLX, eight, model_type="mixtral") == 8 * 512 + 8 * 8 * 4


def test_conditions_on_experts_and_prediction_layers() -> None:
    experts = {"tensor": "ffn_up_exps", "part": "experts"}
    of_dense = [{"part": "ffn", "with_experts": False, "layout": "own"}, BF16]
    assert total([{}], of_dense, MLX) == 73_728
    assert total([{}, experts], of_dense, MLX) == 2 * 262_144
    not_mtp = [{"is_mtp": True, **BF16}, *LINEAR]
    assert total([{}, {"group": 1, "is_mtp": True}], not_mtp, MLX) == 73_728 + 262_144


def test_mixed_recipes_give_more_bits_to_some_layers() -> None:
    """16 layers: 0, 1 and 14, 15, and every third of those between from the fifth on."""
    layers = pl.LazyFrame({"layer": range(16), "of": [16] * 16}).filter(is_more_bits()).collect()["layer"]
    assert layers.to_list() == [0, 1, 4, 7, 10, 13, 14, 15]
    runs = census_frame({"n_layers": 5}, {"group": 1, "n_layers": 11}, {"group": 2, "is_mtp": True})
    split = split_runs(runs).sort("group", "is_more").collect()
    assert split.select("group", "is_more", "n_layers").rows() == [
        (0, False, 2), (0, True, 3), (1, False, 6), (1, True, 5), (2, False, 1),
    ]  # fmt: skip
    six = {"layout": "six", "bits": 6.0, "group_size": 64, "scale_bytes": 4}
    recipe = [{"tensor": "ffn_up", "layers": "more", "layout": "second"}, *LINEAR]
    found = total([{"n_layers": 16}], recipe, {**MLX, "second_layout": "six"}, six)
    assert found == 8 * (65_536 + 8_192) + 8 * (98_304 + 8_192)


def test_latent_halves_are_one_matrix_in_checkpoints() -> None:
    """2 heads, 192 + 256 rows each of a latent of 512: 7 x 4 tiles, not 2 x (8 + 8)."""
    halves = census_frame(
        {"tensor": "attn_k_b", "part": "mixer", "n_matrices": 2, "n_rows": 512, "row_length": 192},
        {"tensor": "attn_v_b", "part": "mixer", "n_matrices": 2, "n_rows": 256, "row_length": 512},
    )
    joined = checkpoint_tensors(halves).collect()
    shape = joined.select("tensor", "n_matrices", "n_rows", "row_length")
    assert shape.rows() == [("attn_kv_b", 1, 896, 512)]
    assert joined.columns == list(CENSUS_SCHEMA)


def test_a_tied_output_is_stored_again_where_the_recipe_says_so() -> None:
    """ExLlamaV3: the embedding in 16 bit and a quantized head, of the same 1,000 x 512 numbers."""
    embedding = {"group": None, "tensor": "token_embd", "part": "embedding", "n_rows": 1_000}
    recipe = [{"tensor": "output tied_output", "layout": "own"}, BF16]
    eight = {"bits": 8.0}
    assert total([embedding], recipe, eight) == 1_024_000 + 512_000
    head = {**embedding, "tensor": "output", "part": "head"}
    assert total([embedding, head], recipe, eight) == 1_024_000 + 512_000
    assert total([embedding], [BF16], eight) == 1_024_000


def test_every_tensor_gets_one_layout() -> None:
    known = layout_frame({"layout": "native/bf16"}, {"layout": "a", "recipe": "r", **MLX},
                         {"layout": "b", "recipe": "r", **AWQ})  # fmt: skip
    tensors = census_frame({}, {"row_length": 64}, {"tensor": "ffn_down", "row_length": 65}, {"group": 1})
    flags = {"model_type": pl.lit("llama"), "with_experts": pl.lit(False)}
    marked = split_runs(tensors).with_columns(**flags)
    laid_out = tensor_layouts(marked, recipe_frame(*LINEAR), known).collect()
    counted = laid_out.group_by("quant").agg(pl.col("n_layers").sum())
    assert dict(counted.iter_rows()) == {"a": 4, "b": 4}
    chosen = laid_out.filter(pl.col("row_length") == 64).select("quant", "layout").unique().sort("quant")
    assert chosen.rows() == [("a", "a"), ("b", "native/bf16")]


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 600),
    row_length=st.integers(1, 600),
    bits=st.sampled_from([1.0, 2.0, 3.0, 3.2, 4.0, 6.0, 8.0]),
    group=st.sampled_from([16, 32, 64, 128, None]),
    block=st.sampled_from([1, 128]),
    scale=st.integers(0, 4),
)
def test_bytes_grow_with_bits_and_hold_the_packed_numbers(
    rows: int, row_length: int, bits: float, group: int | None, block: int, scale: int
) -> None:
    layout = {"group_size": group, "block_rows": block, "scale_bytes": scale}
    found = matrix_bytes(rows, row_length, {**layout, "bits": bits})
    assert found >= rows * row_length * bits / 8 - 1e-6
    assert found <= matrix_bytes(rows, row_length, {**layout, "bits": bits + 1})
    assert found <= matrix_bytes(rows + 1, row_length, {**layout, "bits": bits})
