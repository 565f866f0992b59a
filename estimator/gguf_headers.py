"""Bytes that a GGUF file has besides its tensors: metadata, most of it the vocabulary, and one entry per
tensor.

A file is magic, version and two counts, then key-value metadata, then an entry per tensor, then the tensors,
each of these parts from a whole step of 32 bytes on (specification: ggml docs/gguf.md; gguf-py 0.19.0
`gguf_writer.py`). Pure polars over the tensor census.
"""

from __future__ import annotations

from typing import Final

import polars as pl

ALIGNMENT_BYTES: Final = 32
# Of an entry, besides its name and its dimensions: length of the name (8), number of dimensions (4),
# type (4), offset (8).
ENTRY_BYTES: Final = 24
DIMENSION_BYTES: Final = 8
# The census counts the norms of a layer together; they go by these names, in this order.
NORM_NAMES: Final = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
COUNTED_TOGETHER: Final = ("layer_norms", "layer_norms.bias", "nextn.norms")
NEXTN_NORM_NAME: Final = "nextn.shared_head_norm"
MEASURED: Final = "measured"
ESTIMATED: Final = "estimated"
PIECE, PAIR = "spm", "bpe"
# Vocabularies this much apart in size are one, padded or with a few tokens more.
SAME_VOCABULARY: Final = 0.002
# Vocabularies of sentence pieces: small ones of Llama 2 and its kin, and Gemma's.
LARGEST_PIECE_VOCABULARY: Final = 33_000
PIECE_MODEL_TYPES: Final = r"^(gemma($|[23])|t5|internlm2|minicpm)"


def tensor_entries(census: pl.LazyFrame) -> pl.LazyFrame:
    """model, with_mtp, n_tensors and entry_bytes: the tensors of a GGUF file and what their list takes.

    `census`: `tensor_census.census`. Layers are numbered in the names, so deeper models have longer ones.
    Models without prediction layers have only with_mtp false.
    """
    stored = census.filter(~pl.col("storage").is_in(["padding", "checkpoint_only"]))
    counted = _layer_numbers(stored).with_columns(
        n_norms=pl.when(pl.col("tensor").is_in(COUNTED_TOGETHER)).then("n_rows").otherwise(1)
    )
    n_here = pl.col("n_layers") * pl.col("n_norms")
    prefix = pl.when(pl.col("group").is_not_null()).then(
        pl.col("n_norms") * (pl.col("digits") + pl.col("n_layers") * len("blk.."))
    ).otherwise(0)  # fmt: skip
    names = pl.col("n_layers") * _names_bytes()
    dimensions = pl.when(pl.col("n_matrices") > 1).then(3).when(_is_matrix()).then(2).otherwise(1)
    per_entry = ENTRY_BYTES + DIMENSION_BYTES * dimensions
    each = counted.with_columns(n_tensors=n_here, entry_bytes=n_here * per_entry + prefix + names)
    plain = each.filter(~pl.col("is_mtp")).with_columns(with_mtp=pl.lit(False))
    predicting = each.filter("is_mtp").select("model").unique()
    whole = each.join(predicting, on="model", how="semi").with_columns(with_mtp=pl.lit(True))
    return (
        pl.concat([plain, whole])
        .group_by("model", "with_mtp")
        .agg(pl.col("n_tensors").sum(), pl.col("entry_bytes").sum())
    )


def _is_matrix() -> pl.Expr:
    return (pl.col("n_rows") > 1) & ~pl.col("tensor").is_in(COUNTED_TOGETHER)


def _names_bytes() -> pl.Expr:
    """Letters of the names of one layer's tensors of a census row, without layer number."""
    name = pl.col("tensor")
    own = name.str.len_bytes().cast(pl.Int64) + pl.when(name.str.ends_with(".bias")).then(0).otherwise(
        len(".weight")
    )
    lengths = [len(f"{norm}.weight") for norm in NORM_NAMES]
    by_count = pl.lit(0, dtype=pl.Int64)
    for count, length in enumerate(lengths):
        by_count = by_count + pl.when(pl.col("n_rows") > count).then(length).otherwise(0)
    return (
        pl.when(name == "nextn.norms").then(pl.col("n_rows") * len(f"{NEXTN_NORM_NAME}.weight"))
        .when(name.is_in(COUNTED_TOGETHER)).then(by_count)
        .otherwise(own)
    )  # fmt: skip


def _layer_numbers(census: pl.LazyFrame) -> pl.LazyFrame:
    """Adds `digits`: digits of the layer numbers of a run together; 0 outside the layers."""
    runs = (
        census.filter(pl.col("group").is_not_null())
        .select("model", "group", pl.col("n_layers").cast(pl.Int64))
        .unique()
        .sort("model", "group")
        .with_columns(end=pl.col("n_layers").cum_sum().over("model"))
        .select(
            "model",
            "group",
            digits=_digits_below(pl.col("end")) - _digits_below(pl.col("end") - pl.col("n_layers")),
        )
    )
    return census.with_columns(pl.col("n_layers").cast(pl.Int64)).join(
        runs, on=["model", "group"], how="left"
    ).with_columns(pl.col("digits").fill_null(0))  # fmt: skip


def _digits_below(end: pl.Expr) -> pl.Expr:
    """Digits of the numbers 0 .. end - 1 together; models have fewer than 1000 layers."""
    return end + (end - 10).clip(lower_bound=0) + (end - 100).clip(lower_bound=0)


def gguf_headers(census: pl.LazyFrame, models: pl.LazyFrame, tokenizers: pl.LazyFrame) -> pl.LazyFrame:
    """The table `gguf_headers`: model x with_mtp -> n_tensors, entry_bytes, tokenizer, metadata_basis,
    metadata_bytes and header_bytes.

    `models`: model, model_type, vocab_size; `tokenizers`: the table gguf_tokenizers. Metadata are those of
    the file that was measured with the same vocabulary: of the same size but for a few tokens and, where
    several share it, of the same kind of model. Else they are the vocabulary times the usual bytes per token
    of its kind, and metadata_basis says `estimated`.
    """
    return (
        tensor_entries(census)
        .join(_metadata(models, tokenizers), on="model")
        .with_columns(header_bytes=_aligned(pl.col("metadata_bytes") + pl.col("entry_bytes")))
        .select(
            "model",
            "with_mtp",
            "n_tensors",
            "entry_bytes",
            "tokenizer",
            "metadata_basis",
            "metadata_bytes",
            "header_bytes",
        )
        .sort("model", "with_mtp")
    )


def _aligned(size: pl.Expr) -> pl.Expr:
    return (size + ALIGNMENT_BYTES - 1) // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def _metadata(models: pl.LazyFrame, tokenizers: pl.LazyFrame) -> pl.LazyFrame:
    """model, tokenizer, metadata_basis, metadata_bytes."""
    known = models.filter(pl.col("vocab_size").is_not_null()).select(
        "model", pl.col("model_type").cast(pl.String), pl.col("vocab_size").cast(pl.Int64)
    )
    rows = tokenizers.select(
        "tokenizer",
        "metadata_bytes",
        named_types="model_types",
        of_tokenizer=pl.col("vocab_size").cast(pl.Int64),
    )
    apart = (pl.col("of_tokenizer") / pl.col("vocab_size") - 1).abs()
    is_named = pl.concat_str(pl.lit(" "), "named_types", pl.lit(" ")).str.contains(
        pl.concat_str(pl.lit(" "), "model_type", pl.lit(" ")), literal=True
    )
    same = (
        known.join(rows, how="cross")
        .with_columns(apart=apart)
        .filter(pl.col("apart") <= SAME_VOCABULARY, pl.col("named_types").is_null() | is_named)
        .sort("model", pl.col("named_types").is_null(), "apart", "tokenizer")
        .unique("model", keep="first", maintain_order=True)
        .select("model", "tokenizer", "metadata_bytes")
    )
    usual = tokenizers.group_by(kind=pl.col("kind").cast(pl.String)).agg(
        bytes_per_token=(pl.col("metadata_bytes") / pl.col("vocab_size")).median()
    )
    pieces = (pl.col("vocab_size") <= LARGEST_PIECE_VOCABULARY) | pl.col("model_type").str.contains(
        PIECE_MODEL_TYPES
    ).fill_null(False)
    return (
        known.with_columns(kind=pl.when(pieces).then(pl.lit(PIECE)).otherwise(pl.lit(PAIR)))
        .join(usual, on="kind", how="left")
        .join(same, on="model", how="left")
        .with_columns(
            metadata_basis=pl.when(pl.col("tokenizer").is_null())
            .then(pl.lit(ESTIMATED))
            .otherwise(pl.lit(MEASURED)),
            metadata_bytes=pl.coalesce(
                "metadata_bytes", (pl.col("bytes_per_token") * pl.col("vocab_size")).round(0).cast(pl.Int64)
            ),
        )
        .select("model", "tokenizer", "metadata_basis", "metadata_bytes")
        .filter(pl.col("metadata_bytes").is_not_null())
    )
