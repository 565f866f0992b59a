"""Lays out what the sources say of models and formats as the tables `gguf_files` and `stored_weights`."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from estimator.checkpoint_bytes import checkpoint_bytes
from estimator.gguf_files import gguf_files
from estimator.stored_weights import stored_weights
from pipeline import grid_tables
from warehouse.dictionary import conform


def weight_tables(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """`gguf_files` and `stored_weights` from models, tensors, quantize_facts, quants, the mix rules and the
    checkpoint recipes.
    """
    named = {name: grid_tables.in_text(frame.lazy()) for name, frame in tables.items()}
    facts, quants = named["quantize_facts"], named["quants"]
    census = grid_tables.census(named["tensors"])
    files = conform(
        gguf_files(census, facts, named["gguf_mix_rules"], named["gguf_fallbacks"], quants).collect(),
        "gguf_files",
    )
    checkpoints = checkpoint_bytes(
        census, named["models"], named["checkpoint_recipes"], named["checkpoint_layouts"]
    )
    stored = stored_weights(
        named["models"], facts, quants, files.lazy(), checkpoints.collect().lazy(), named["unsloth_dynamic"]
    )
    return {"gguf_files": files, "stored_weights": conform(stored.collect(), "stored_weights")}
