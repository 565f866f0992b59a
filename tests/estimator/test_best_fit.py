"""The short answer: what is chosen, and in which order of importance."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from estimator.best_fit import KEY, best_fit, fidelity

ROW: dict[str, Any] = {
    "gpu": "card",
    "n_gpus": 1,
    "model": "m",
    "framework": "llama.cpp",
    "context_tokens": 4096,
    "backend": "cuda",
    "quant": "gguf/q4_k_m",
    "kv_dtype": "f16",
    "verdict": "comfortable",
    "kv_cache_gib": 2.0,
    "total_gib": 10.0,
    "decode_tok_s_mid": 50.0,
    "decode_start_tok_s": 60.0,
    "basis": "device",
}
QUANTS = ["gguf/q4_k_m", "gguf/q8_0", "native/bf16"]
# typed as the cube's columns are
TYPES = {
    "quant": pl.Enum(QUANTS),
    "backend": pl.Enum(["cuda", "vulkan"]),
    "kv_dtype": pl.Enum(["f16", "fp8", "q8_0"]),
    "verdict": pl.Enum(["comfortable", "tight", "no_fit"]),
    "model": pl.Enum(["a", "m"]),
    "framework": pl.Enum(["llama.cpp", "vllm"]),
    "gpu": pl.Enum(["card"]),
    "n_gpus": pl.Int16(),
    "context_tokens": pl.Int32(),
    "kv_cache_gib": pl.Float32(),
    "total_gib": pl.Float32(),
    "decode_tok_s_mid": pl.Float32(),
    "decode_start_tok_s": pl.Float32(),
}
RANKS = fidelity(pl.LazyFrame({"quant": QUANTS, "body_bpw": [4.8, 8.5, 16.0]})).with_columns(
    pl.col("quant").cast(TYPES["quant"])
)


def chosen(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    rows = (
        pl.DataFrame([ROW | change for change in changes])
        .with_columns(pl.col(name).cast(kind) for name, kind in TYPES.items())
        .sort(
            "model", "framework", "backend", "quant", "kv_dtype", "n_gpus", "context_tokens"
        )  # as the cube is
    )
    return best_fit(rows.lazy(), RANKS).collect().to_dicts()


BETTER_LAST = [
    pytest.param({"quant": "native/bf16", "verdict": "tight"}, {}, id="comfortable before more bits"),
    pytest.param({"decode_tok_s_mid": 500.0}, {"quant": "gguf/q8_0"}, id="bits before speed"),
    pytest.param(
        {"kv_dtype": "f16"},
        {"quant": "gguf/q8_0", "kv_dtype": "q8_0", "kv_cache_gib": 1.0},
        id="bits before the cache type",
    ),
    pytest.param(
        {"kv_dtype": "q8_0", "kv_cache_gib": 1.0, "decode_tok_s_mid": 500.0}, {}, id="cache type before speed"
    ),
    pytest.param({"backend": "vulkan"}, {"decode_tok_s_mid": 51.0}, id="the faster backend"),
    pytest.param({"backend": "vulkan"}, {}, id="the first backend when all is equal"),
    pytest.param(
        {"decode_tok_s_mid": 9000.0, "verdict": "tight"},
        {"decode_tok_s_mid": 0.5},
        id="comfortable before any speed",
    ),
    pytest.param(
        {"quant": "native/bf16", "verdict": "no_fit", "decode_tok_s_mid": None},
        {"verdict": "tight"},
        id="what fits",
    ),
]


@pytest.mark.parametrize(("worse", "better"), BETTER_LAST)
def test_order_of_importance(worse: dict[str, Any], better: dict[str, Any]) -> None:
    for order in ((worse, better), (better, worse)):
        (found,) = chosen(*order)
        expected = ROW | better
        assert {name: found[name] for name in found} == {name: expected[name] for name in found}


def test_where_nothing_fits_there_is_no_row() -> None:
    assert chosen({"verdict": "no_fit"}) == []


def test_one_row_per_question_sorted() -> None:
    found = chosen({"context_tokens": 8192}, {"n_gpus": 2}, {"model": "a"}, {"framework": "vllm"}, {})
    keys = [tuple(row[name] for name in KEY) for row in found]
    assert keys == sorted(set(keys))
    assert len(keys) == 5


def test_contexts_and_counts_do_not_run_into_each_other() -> None:
    """The largest values of the cube side by side: every combination is a question of its own."""
    questions = [
        {"context_tokens": context, "n_gpus": n_gpus, "framework": framework, "model": model}
        for context in (4096, 1_048_576)
        for n_gpus in (1, 8)
        for framework in ("llama.cpp", "vllm")
        for model in ("a", "m")
    ]
    assert len(chosen(*questions, *questions)) == len(questions)


def test_all_columns_are_of_the_same_row() -> None:
    (found,) = chosen({"total_gib": 1.0, "decode_start_tok_s": 1.0, "basis": "family"},
                      {"quant": "gguf/q8_0", "total_gib": 14.0, "decode_start_tok_s": 40.0})  # fmt: skip
    assert (found["quant"], found["total_gib"], found["decode_start_tok_s"], found["basis"]) == (
        "gguf/q8_0", 14.0, 40.0, "device",
    )  # fmt: skip


def test_fidelity_ranks_by_bits_then_name_and_unknown_last() -> None:
    ranks = fidelity(
        pl.LazyFrame({"quant": ["b", "a", "dense", "unknown"], "body_bpw": [4.5, 4.5, 16.0, None]})
    )
    assert ranks.collect().sort("fidelity").get_column("quant").to_list() == ["unknown", "a", "b", "dense"]
