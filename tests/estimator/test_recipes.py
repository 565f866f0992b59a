"""Recipes: which combinations there are, memory that adds up, and work by hand."""

from __future__ import annotations

import polars as pl
import pytest

from estimator.recipes import KEY, WORK_COLUMNS, context_state, expert_active_params, recipes
from tests.estimator.cube_cases import (
    COEFFICIENTS,
    CONTEXTS,
    DENSE,
    MOE,
    STACK_IDS,
    cache_table,
    cube_formats,
    cube_recipes,
    cube_settings,
    no_refusals,
    runtime_table,
    two_models,
    weight_table,
)


def only(model: str, quant: str, n_gpus: int, context: int) -> dict[str, object]:
    found = cube_recipes().filter(
        pl.col("model") == model, pl.col("quant") == quant, pl.col("n_gpus") == n_gpus,
        pl.col("context_tokens") == context,
    )  # fmt: skip
    assert found.height == 1
    return found.row(0, named=True)


def test_every_recipe_is_there_once_in_order() -> None:
    """3 formats x 2 GPU counts x (5 contexts up to 4 x 131,072, 3 up to 4 x 40,960)."""
    found = cube_recipes()
    assert found.select(KEY).equals(found.select(KEY).unique().sort(KEY))
    assert found.height == 3 * 2 * (5 + 3)
    assert (
        found.drop("arch_min", "memory_utilization", "share_of_free").null_count().sum_horizontal().item()
        == 0
    )


def test_contexts_end_at_four_times_the_native_one() -> None:
    by_model = cube_recipes().group_by("model").agg(pl.col("context_tokens").unique().sort())
    assert dict(by_model.rows()) == {DENSE: list(CONTEXTS), MOE: [4096, 32768, 131072]}


def test_beyond_the_native_context_is_extended() -> None:
    states = (
        cube_recipes().select("model", "context_tokens", pl.col("context_state").cast(pl.String)).unique()
    )
    extended = (
        states.filter(pl.col("context_state") == "extended").drop("context_state").sort("context_tokens")
    )
    assert extended.rows() == [(MOE, 131_072), (DENSE, 262_144), (DENSE, 524_288)]
    edge = pl.DataFrame({"context_tokens": [4096, 4097], "native_context_tokens": [4096, 4096]})
    assert edge.select(context_state()).to_series().to_list() == ["native", "extended"]


def test_models_without_a_native_context_have_no_recipes() -> None:
    models, layers = two_models()
    nowhere = models.with_columns(native_context_tokens=pl.lit(None, dtype=pl.Int64))
    assert build(models=nowhere, layers=layers).is_empty()


def build(
    models: pl.LazyFrame | None = None,
    layers: pl.LazyFrame | None = None,
    refused: pl.LazyFrame | None = None,
) -> pl.DataFrame:
    own_models, own_layers = two_models()
    return recipes(
        cube_formats().drop("quant_citation"), cube_settings(), no_refusals() if refused is None else refused,
        own_models if models is None else models, own_layers if layers is None else layers, weight_table(),
        cache_table(), runtime_table(), COEFFICIENTS, 4,
    ).collect()  # fmt: skip


def test_refused_splits_are_left_out() -> None:
    refused = pl.LazyFrame(
        {"framework": ["vllm"], "quant": ["awq/int4-g128"], "model": [MOE], "n_gpus": [2]},
        schema_overrides={"n_gpus": pl.Int16},
    )
    lost = cube_recipes().join(build(refused=refused).with_columns(STACK_IDS), on=KEY, how="anti")
    assert lost.select("quant", "model", "n_gpus").unique().rows() == [("awq/int4-g128", MOE, 2)]
    assert lost.height == 3


def test_two_calls_give_the_same_rows() -> None:
    assert build().equals(build())
    assert build().equals(cube_recipes())


def test_parts_add_up_to_the_total() -> None:
    found = cube_recipes()
    names = ("weights_gib", "kv_cache_gib", "runtime_gib", "total_gib")
    thousandths = found.select((pl.col(name).cast(pl.Float64) * 1000).round() for name in names)
    weights_gib, cache, rest, total = thousandths.get_columns()
    assert (weights_gib + cache + rest - total).abs().max() == 0


def test_memory_of_one_recipe_by_hand() -> None:
    """Llama-3.1-8B Q4_K_M at 32,768 in llama.cpp: 4,618,693,018 bytes of weights, 4 GiB of cache, 140.01 +
    457 MiB.
    """
    found = only(DENSE, "gguf/q4_k_m", 1, 32768)
    assert found["weights_gib"] == pytest.approx(4.301, abs=1e-6)
    assert found["kv_cache_gib"] == 4.0
    assert found["runtime_gib"] == pytest.approx((140.01 + 457) / 1024, abs=0.0006)


def test_work_of_one_recipe_by_hand() -> None:
    """What a token touches: weights without the embedding (2 bytes each), and 131,072 bytes per cached
    token.
    """
    found = only(DENSE, "native/bf16", 1, 4096)
    weights_read = 2 * 7_504_924_672
    assert found["bound_bytes"] == pytest.approx(weights_read + 4096 * 131_072, rel=1e-6)
    assert found["bound_start_bytes"] == pytest.approx(weights_read, rel=1e-6)
    # 2 x active parameters, and 4 x 32 layers x 32 heads x 128 x 4096 of attention
    assert found["bound_flops"] == pytest.approx(2 * 7_504_924_672 + 4 * 32 * 32 * 128 * 4096, rel=1e-6)


def test_tensor_parallel_halves_each_ranks_work_once() -> None:
    """Each of two ranks reads half the weights and half the heads of the cache, at any depth; layer split
    gains nothing.
    """
    one, two = (only(DENSE, "native/bf16", n, 131_072) for n in (1, 2))
    for name in (
        "bound_bytes",
        "bound_start_bytes",
        "bound_flops",
        "decode_kv_effective_bytes",
        "decode_weight_bytes",
        "prefill_reread_bytes",
        "prefill_least_flops",
    ):
        assert two[name] == pytest.approx(one[name] / 2, rel=1e-6), name
    split_one, split_two = (only(DENSE, "gguf/q4_k_m", n, 131_072) for n in (1, 2))
    for name in ("bound_bytes", "decode_kv_effective_bytes", "decode_weight_bytes", "prefill_reread_bytes"):
        assert split_two[name] == pytest.approx(split_one[name], rel=1e-6), name


def test_a_prompt_rereads_the_weights_of_all_gpus() -> None:
    """4,096 tokens are 8 micro-batches; the whole model once each (16,060,522,496 bytes), at 0.75 of the
    bandwidth.
    """
    found = only(DENSE, "native/bf16", 1, 4096)
    assert found["prefill_reread_bytes"] == pytest.approx(8 * 16_060_522_496 / 0.75, rel=1e-6)


def test_one_token_of_a_mixture_reads_k_of_e() -> None:
    """bf16: dense 918,763,520 + head 311,164,928, experts 28,991,029,248 x 8 / 128."""
    found = only(MOE, "native/bf16", 1, 4096)
    read = 2 * (918_763_520 + 311_164_928 + 28_991_029_248 // 16)
    assert found["bound_start_bytes"] == pytest.approx(read, rel=1e-6)


def test_active_experts() -> None:
    rows = pl.DataFrame(
        {"n_experts_used": [8, None, 0], "n_experts": [128, None, 0], "expert_params": [1280, 0, 0]}
    )
    assert rows.select(expert_active_params()).to_series().to_list() == [80.0, 0.0, 0.0]


def test_work_is_positive_and_finite() -> None:
    found = cube_recipes().select(WORK_COLUMNS)
    assert all(series.is_finite().all() and series.min() >= 0 for series in found.get_columns())
