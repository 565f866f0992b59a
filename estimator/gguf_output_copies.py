"""GGUF files of models with tied embeddings whose checkpoint holds the output matrix all the same.

Some checkpoints of tied models are saved with a copy of the embedding as output matrix. The converter then
writes both, and llama-quantize gives each its own type. Pure polars.
"""

from __future__ import annotations

import polars as pl

from estimator.gguf_files import gguf_files


def files_with_output_copy(
    census: pl.LazyFrame,
    facts: pl.LazyFrame,
    rules: pl.LazyFrame,
    fallbacks: pl.LazyFrame,
    quants: pl.LazyFrame,
) -> pl.LazyFrame:
    """As `gguf_files.gguf_files`, of tied models only, each with an output matrix shaped like the embedding.

    `census`: `tensor_census.census`; `facts`: the table quantize_facts; the rest as for `gguf_files`.
    """
    tied = facts.filter("is_tied").with_columns(is_tied=pl.lit(False))
    whole = with_output_copy(census.join(tied.select("model"), on="model", how="semi"))
    return gguf_files(whole, tied, rules, fallbacks, quants)


def with_output_copy(census: pl.LazyFrame) -> pl.LazyFrame:
    """The census with an `output` beside every `token_embd`."""
    copies = census.filter(pl.col("tensor") == "token_embd").with_columns(
        tensor=pl.lit("output"), part=pl.lit("head").cast(census.collect_schema()["part"])
    )
    return pl.concat([census, copies])
