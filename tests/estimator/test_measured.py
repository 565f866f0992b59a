"""Which measurement stands beside which row, and how near the evidence is."""

from __future__ import annotations

import polars as pl
import pytest

from estimator.measured import evidence, measured_full, measured_start
from tests.estimator.cube_cases import anchor_frame, contexts

GPUS = pl.LazyFrame(
    {"gpu": ["rtx-4090-24gb", "rtx-4080-16gb", "h100"], "family": ["nv-ada", "nv-ada", "nv-hopper"]}
)


def start(*changes: dict[str, object]) -> list[tuple[float, int]]:
    found = measured_start(anchor_frame(*changes)).collect()
    return found.select("measured_start_tok_s", "n_start_anchors").rows()


def full(*depths: int) -> dict[int, tuple[float, int]]:
    anchors = anchor_frame(*[{"depth_tokens": depth, "decode_tok_s": float(depth)} for depth in depths])
    found = measured_full(anchors, contexts(4096, 8192, 32768)).collect()
    return {
        row["context_tokens"]: (row["measured_full_tok_s"], row["n_full_anchors"]) for row in found.to_dicts()
    }


def test_the_cache_is_empty_below_1500_tokens() -> None:
    assert start({"depth_tokens": 1499}) == [(130.0, 1)]
    assert start({"depth_tokens": 1500}) == []
    assert start({"depth_tokens": 0}) == [(130.0, 1)]
    assert start({"depth_tokens": None}) == [(130.0, 1)]  # benchmark defaults are shallow


def test_a_shallow_measurement_fills_no_context() -> None:
    anchors = anchor_frame({"depth_tokens": 1499}, {"depth_tokens": None})
    assert measured_full(anchors, contexts(1500, 2000)).collect().is_empty()
    deep = anchor_frame({"depth_tokens": 1500})
    assert measured_full(deep, contexts(1500, 2000)).collect().height == 2


@pytest.mark.parametrize(
    ("depth", "context"),
    [(3071, None), (3072, 4096), (4096, 4096), (5120, 4096), (5121, None), (6144, 8192), (10_240, 8192),
     (24_575, None), (24_576, 32768), (40_960, 32768), (40_961, None)],
)  # fmt: skip
def test_a_context_is_met_within_a_quarter(depth: int, context: int | None) -> None:
    """0.75 x 4096 = 3072 to 1.25 x 4096 = 5120, and so on."""
    assert list(full(depth)) == ([] if context is None else [context])


def test_medians_of_what_was_measured() -> None:
    assert start({"decode_tok_s": 100.0}, {"decode_tok_s": 130.0}, {"decode_tok_s": 190.0}) == [(130.0, 3)]
    assert start({"decode_tok_s": 100.0}, {"decode_tok_s": 130.0}) == [(115.0, 2)]
    assert full(3500, 4000, 4100, 8000) == {4096: (4000.0, 3), 8192: (8000.0, 1)}


def test_only_accepted_speeds_count() -> None:
    assert start({"state": "flagged"}, {"state": "unresolved"}, {"decode_tok_s": None}) == []


def test_settings_are_kept_apart() -> None:
    anchors = anchor_frame(
        {}, {"n_gpus": 2}, {"kv_dtype": "q8_0"}, {"quant": "gguf/q8_0"}, {"backend": "vulkan"}
    )
    assert measured_start(anchors).collect().height == 5


def test_evidence_by_device_family_and_engine() -> None:
    """Measured: llama.cpp on one Ada card."""
    found = evidence(anchor_frame({}, {}), GPUS).collect().rows_by_key("gpu", named=True, unique=True)
    levels = {
        gpu: (row["device_measured"], row["family_measured"], row["engine_measured"])
        for gpu, row in found.items()
    }
    assert levels == {
        "rtx-4090-24gb": (True, True, True),
        "rtx-4080-16gb": (False, True, True),
        "h100": (False, False, True),
    }


def test_evidence_holds_for_the_engine_and_backend_measured() -> None:
    """A stack nobody measured has no row; one measured on Hopper says nothing about the device under
    another.
    """
    vllm = {"gpu": "h100", "engine": "vllm", "framework": "vllm"}
    found = evidence(anchor_frame({}, vllm, {"backend": "vulkan"}), GPUS).collect()
    assert found.select("engine", "backend").unique().height == 3
    ada = found.filter(pl.col("gpu") == "rtx-4090-24gb").sort("engine", "backend")
    assert ada.select("engine", "backend", "device_measured").rows() == [
        ("llama.cpp", "cuda", True), ("llama.cpp", "vulkan", True), ("vllm", "cuda", False),
    ]  # fmt: skip
    assert found.equals(found.sort("gpu", "engine", "backend"))


def test_measurements_on_unknown_gpus_are_no_evidence() -> None:
    assert evidence(anchor_frame({"gpu": "elsewhere"}), GPUS).collect().is_empty()
