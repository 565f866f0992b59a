"""Shares of several GPUs: every byte is somewhere, nothing is held twice unless it has to be."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.parallel import (
    all_reduce_bytes,
    fullest_stage_fraction,
    kv_per_gpu_fraction,
    kv_replication,
    pipeline_stages,
    tensor_ranks,
    weights_per_gpu_bytes,
)

BASE: dict[str, Any] = {
    "n_gpus": 4, "parallel_mode": "tensor", "n_layers": 30, "n_kv_heads": 8, "hidden_size": 4096,
    "attention_kind": "gqa", "body_bytes": 30e9, "outside_bytes": 2e9, "kv_replication": 1.0,
}  # fmt: skip


def value(expression: pl.Expr, **changes: Any) -> float:
    schema = {"n_kv_heads": pl.Int32(), "attention_kind": pl.String()}
    return pl.DataFrame([{**BASE, **changes}], schema_overrides=schema).select(expression.alias("x")).item()


def test_modes() -> None:
    assert (value(tensor_ranks()), value(pipeline_stages())) == (4, 1)
    assert (
        value(tensor_ranks(), parallel_mode="layer"),
        value(pipeline_stages(), parallel_mode="layer"),
    ) == (1, 4)
    assert (value(tensor_ranks(), parallel_mode="none"), value(pipeline_stages(), parallel_mode="none")) == (
        1,
        1,
    )


@pytest.mark.parametrize(
    ("changes", "copies"),
    [
        ({}, 1),  # 8 heads on 4 ranks: two each
        ({"n_gpus": 8, "n_kv_heads": 4}, 2),  # 4 heads on 8 ranks: each twice
        ({"n_gpus": 8, "n_kv_heads": 1}, 8),
        ({"n_gpus": 4, "n_kv_heads": 6}, 4 * 2 / 6),  # two heads on every rank, 8 slots for 6
        ({"attention_kind": "mla"}, 4),  # the latent is on every rank
        ({"attention_kind": "mla", "parallel_mode": "layer"}, 1),
        ({"n_kv_heads": None}, 1),
    ],
)
def test_kv_replication(changes: dict[str, Any], copies: float) -> None:
    assert value(kv_replication(), **changes) == pytest.approx(copies)


def test_layer_split_is_as_good_as_its_fullest_gpu() -> None:
    assert value(fullest_stage_fraction(), parallel_mode="layer") == 8 / 30
    assert value(fullest_stage_fraction()) == 1
    # 8 8 8 6 layers: the last has room for the head
    assert value(weights_per_gpu_bytes(), parallel_mode="layer") == 8e9
    # 5 x 6 layers: the last has the head as well
    assert value(weights_per_gpu_bytes(), parallel_mode="layer", n_gpus=5) == 8e9
    assert value(weights_per_gpu_bytes()) == 8e9  # 32 GB cut in four


def test_kv_share() -> None:
    assert value(kv_per_gpu_fraction(), kv_replication=2.0) == 0.5
    assert value(kv_per_gpu_fraction(), parallel_mode="layer") == 8 / 30


def test_all_reduce_volume() -> None:
    # 2 a layer x 30 layers x 2 x 3/4 of 10 tokens x 4096 x 2 bytes
    assert value(all_reduce_bytes(pl.lit(10))) == 2 * 30 * 1.5 * 10 * 4096 * 2
    assert value(all_reduce_bytes(pl.lit(10)), parallel_mode="layer") == 0


@given(gpus=st.integers(1, 16), layers=st.integers(1, 130), mode=st.sampled_from(["tensor", "layer"]))
def test_the_fullest_gpu_holds_at_least_an_even_share(gpus: int, layers: int, mode: str) -> None:
    changes = {"n_gpus": gpus, "n_layers": layers, "parallel_mode": mode}
    held = value(weights_per_gpu_bytes(), **changes)
    assert 32e9 / gpus * (1 - 1e-9) <= held <= 32e9 * (1 + 1e-9)
    assert 1 / gpus <= value(kv_per_gpu_fraction(), **changes) <= 1
