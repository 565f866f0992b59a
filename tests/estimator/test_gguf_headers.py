"""Bytes of a GGUF file besides its tensors, against counts by hand and a file whose tensors are printed."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from estimator.gguf_headers import gguf_headers, tensor_entries

DENSE = "meta-llama/Llama-3.1-8B-Instruct"
LAYER = {
    "attn_q": (4096, 4096), "attn_k": (1024, 4096), "attn_v": (1024, 4096), "attn_output": (4096, 4096),
    "ffn_gate": (14336, 4096), "ffn_up": (14336, 4096), "ffn_down": (4096, 14336), "layer_norms": (2, 4096),
}  # fmt: skip
OUTSIDE = {"output": (128256, 4096), "token_embd": (128256, 4096), "output_norm": (1, 4096)}
TOKENIZERS = pl.LazyFrame(
    {
        "tokenizer": ["llama-3", "other-128k", "small"],
        "kind": ["bpe", "bpe", "spm"],
        "vocab_size": [128256, 128256, 32000],
        "model_types": [None, "other third", None],
        "metadata_bytes": [7_823_738, 5_000_000, 718_234],
    }
)


def row(tensor: str, shape: tuple[int, int], group: int | None, n_layers: int, **more: Any) -> dict[str, Any]:
    f32 = "norm" in tensor
    plain = {"is_mtp": False, "part": "norms" if f32 else "mixer", "n_matrices": 1, "model": DENSE}
    return {
        **plain, "tensor": tensor, "storage": "f32" if f32 else "matrix", "group": group,
        "n_layers": n_layers, "n_rows": shape[0], "row_length": shape[1], **more,
    }  # fmt: skip


def llama() -> list[dict[str, Any]]:
    inside = [row(name, shape, 0, 32) for name, shape in LAYER.items()]
    return [*inside, *(row(name, shape, None, 1) for name, shape in OUTSIDE.items())]


def frame(rows: list[dict[str, Any]]) -> pl.LazyFrame:
    return pl.LazyFrame(rows, schema_overrides={"group": pl.Int64})


def models(**changes: Any) -> pl.LazyFrame:
    return pl.LazyFrame([{"model": DENSE, "model_type": "llama", "vocab_size": 128256, **changes}])


def test_entries_of_llama_counted_by_hand() -> None:
    """Nine tensors in each of 32 layers: 131 letters of names, 16 dimensions; 54 digits number the layers;
    three tensors outside have 48 letters and 5 dimensions.
    """
    in_layers = 32 * (9 * 24 + 131 + 16 * 8 + 9 * len("blk..")) + 9 * 54
    outside = 3 * 24 + 48 + 5 * 8
    [found] = tensor_entries(frame(llama())).collect().to_dicts()
    assert found["n_tensors"] == 32 * 9 + 3
    assert found["entry_bytes"] == in_layers + outside == 17_286


def test_header_of_a_file_whose_tensors_are_printed() -> None:
    """bartowski's Q8_0: 8,540,775,840 bytes of file, 8,532,934,912 of tensors (sources/file_sizes/gpustack).
    Its list has one more, rope_freqs.weight, of 49 bytes.
    """
    published = 8_540_775_840 - 8_532_934_912
    [found] = gguf_headers(frame(llama()), models(), TOKENIZERS).collect().to_dicts()
    assert found["header_bytes"] % 32 == 0
    assert found["header_bytes"] == -(-(7_823_738 + 17_286) // 32) * 32
    assert abs(found["header_bytes"] + 49 - published) < 256  # template and description of another copy


def test_stacked_experts_are_one_tensor_of_three_dimensions() -> None:
    flat = row("ffn_up_exps", (768, 2048), 0, 4)
    one, many = (
        tensor_entries(frame([{**flat, "n_matrices": n}])).collect().item(0, "entry_bytes") for n in (1, 128)
    )
    assert many - one == 4 * 8


def test_prediction_layers_are_in_one_variant_only() -> None:
    rows = [*llama(), row("attn_q", (4096, 4096), 1, 1, is_mtp=True)]
    found = tensor_entries(frame(rows)).sort("with_mtp").collect()
    assert found["with_mtp"].to_list() == [False, True]
    # number 32 follows: blk.32.attn_q.weight
    assert found["entry_bytes"][1] - found["entry_bytes"][0] == 24 + 16 + len("blk.32.attn_q.weight")


def test_what_no_gguf_file_holds_is_not_listed() -> None:
    rows = [*llama(), row("activation_scalars", (1, 8), 0, 32, storage="checkpoint_only")]
    assert tensor_entries(frame(rows)).collect().item(0, "entry_bytes") == 17_286


@pytest.mark.parametrize(
    ("changes", "tokenizer", "metadata"),
    [
        ({}, "llama-3", 7_823_738),
        ({"vocab_size": 128_258}, "llama-3", 7_823_738),  # two tokens more
        ({"model_type": "third"}, "other-128k", 5_000_000),
        # none of this size: the middle of what its kind takes per token
        ({"vocab_size": 129_280}, None, round((7_823_738 / 128256 + 5_000_000 / 128256) / 2 * 129_280)),
        ({"vocab_size": 32_768}, None, round(718_234 / 32000 * 32_768)),
    ],
)
def test_metadata_are_those_of_the_vocabulary(
    changes: dict[str, Any], tokenizer: str | None, metadata: int
) -> None:
    [found] = gguf_headers(frame(llama()), models(**changes), TOKENIZERS).collect().to_dicts()
    assert (found["tokenizer"], found["metadata_bytes"]) == (tokenizer, metadata)
    assert found["metadata_basis"] == ("estimated" if tokenizer is None else "measured")
