"""All 42 rows of the public page, digit for digit, and how its inputs are derived."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from estimator.rule_of_thumb import (
    ADVICE_CODE,
    CITATION,
    STATUS,
    TIER,
    as_printed,
    full_attention_kv_f16_bytes_per_token,
    half_up,
    nominal_billions,
    rule_of_thumb,
)
from warehouse.dictionary import conform, violations

PAGE = Path(__file__).parents[1] / "golden" / "v100_8b_page.csv"
V100 = pl.LazyFrame({"gpu": ["v100-sxm2-32gb"], "memory_gib": [32.0], "bandwidth_gb_s": [900.0]})
# Qwen3-8B: 36 layers x 2 x 8 heads x 128 x 2 bytes = 147456 bytes per token
QWEN3_8B = pl.LazyFrame({
    "model": ["Qwen/Qwen3-8B"], "params_billions": [8.0], "kv_f16_bytes_per_token": [147456.0],
    "native_context_tokens": [40960],
})  # fmt: skip


def test_every_row_of_the_page_comes_out() -> None:
    types = {"tier": TIER, "status": STATUS, "advice": ADVICE_CODE, "context_tokens": pl.Int32}
    numbers = ["weights_gb", "kv_cache_gib", "total_gb", "decode_tok_s_low", "decode_tok_s_high"]
    page = pl.read_csv(PAGE, schema_overrides=types | dict.fromkeys(numbers, pl.Float64)).sort(
        "tier", "context_tokens"
    )
    ours = (
        as_printed(rule_of_thumb(V100, QWEN3_8B))
        .select(page.columns)
        .collect()
        .sort("tier", "context_tokens")
    )
    assert page.height == 42
    for name in page.columns:
        assert ours.get_column(name).to_list() == page.get_column(name).to_list(), name


def test_table_is_what_the_dictionary_says() -> None:
    frame = conform(rule_of_thumb(V100, QWEN3_8B).collect(), "rule_of_thumb",
                    {"gpus.gpu": ["v100-sxm2-32gb"], "models.model": ["Qwen/Qwen3-8B"],
                     "citations.citation": [CITATION]})  # fmt: skip
    assert violations(frame, "rule_of_thumb") == []


def test_unknown_native_context_is_never_beyond() -> None:
    unknown = QWEN3_8B.with_columns(native_context_tokens=pl.lit(None, dtype=pl.Int32))
    assert not rule_of_thumb(V100, unknown).collect().get_column("beyond_native").any()


@pytest.mark.parametrize(
    ("model", "total", "billions"),
    [
        ("Qwen/Qwen3-8B", 8_190_735_360, 8.0),
        ("Qwen/Qwen3-1.7B", 1_720_574_976, 1.7),
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616, 7.0),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46_702_792_704, 46.7),  # 7B is one expert
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624, 30.0),
        ("google/gemma-3n-E4B-it", 7_849_978_192, 7.8),  # 4B is what it acts like
        ("microsoft/phi-4", 14_659_507_200, 14.7),
        ("example/unknown", None, None),
    ],
)
def test_nominal_size_is_what_people_say(model: str, total: int | None, billions: float | None) -> None:
    frame = pl.DataFrame(
        {"model": [model], "total_params": [total]}, schema={"model": pl.String, "total_params": pl.Int64}
    )
    assert frame.select(nominal_billions().alias("b")).item() == billions


@pytest.mark.parametrize(
    ("value", "digits", "printed"), [(4.25, 1, 4.3), (2.5, 0, 3), (0.5625, 2, 0.56), (1.005, 2, 1.01)]
)
def test_halves_go_up(value: float, digits: int, printed: float) -> None:
    assert pl.DataFrame({"x": [value]}).select(half_up("x", digits)).item() == pytest.approx(printed)


def test_only_layers_that_keep_everything_grow() -> None:
    base: dict[str, Any] = {"model": "m", "n_layers": 10, "mixer": "full", "n_kv_heads": 8, "k_head_dim": 128,
            "v_head_dim": 128, "latent_dim": None, "shares_kv": False}  # fmt: skip
    rows = [
        base,
        {**base, "mixer": "sliding"},
        {**base, "shares_kv": True},
        {**base, "model": "latent", "mixer": "mla", "latent_dim": 576},
        {**base, "model": "recurrent", "mixer": "mamba", "n_kv_heads": None},
        {**base, "model": "unstated", "n_kv_heads": None},
    ]
    layers = pl.LazyFrame(rows, schema_overrides={"latent_dim": pl.Int64, "n_kv_heads": pl.Int64})
    found = dict(full_attention_kv_f16_bytes_per_token(layers).collect().iter_rows())
    assert found == {"m": 10 * 2 * 8 * 128 * 2, "latent": 10 * 576 * 2, "recurrent": 0, "unstated": None}
