"""Limits solved on knots, against the real functions asked at the limit and one step further."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimator import limits
from estimator.capacity import claimed_gib, engine_usable_gib, gib, total_gib
from estimator.gpu_steps import sizes as step_sizes
from estimator.kv_cache import engine_windows, kv_cache
from estimator.limits import REQUEST_TOKENS, SMALLEST_CONTEXT_TOKENS
from estimator.runtime import attention_shapes, runtime
from tests.estimator.cube_cases import (
    AWQ,
    BF16,
    COEFFICIENTS,
    DENSE,
    LLAMA_CPP,
    N_GPUS,
    PROFILES,
    Q4_K_M,
    STEPS,
    VLLM,
    as_llama_cpp_layers,
    contexts,
    counts,
    format_frame,
    layer_frame,
    llama_cpp_shapes,
    model_frame,
    no_refusals,
    placed_weights,
)

GRID = (4096, 8192, 32768, 131072)
FACTOR = 4
FORMATS = format_frame(
    {**LLAMA_CPP, **Q4_K_M},
    {**LLAMA_CPP, **BF16},
    {**LLAMA_CPP, **Q4_K_M, "kv_dtype": "q8_0", "k_bytes_per_element": 1.0625, "v_bytes_per_element": 1.0625},
    {**VLLM, **BF16},
    {**VLLM, **AWQ},
).with_columns(serves=pl.col("framework") == "vllm")
# a micro-batch that grows at a context, as one engine has it
BENDS = pl.concat(
    [
        STEPS.with_columns(depends_on=pl.lit("memory_gib")),
        pl.LazyFrame(
            {
                "framework": ["llama.cpp"],
                "setting": ["ubatch_tokens"],
                "at_least": [4097.0],
                "value": [1024.0],
                "depends_on": ["context_tokens"],
            }
        ),
    ],
    how="diagonal",
)  # fmt: skip

Case = tuple[pl.LazyFrame, pl.LazyFrame]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One model of random shape: full, windowed, latent and recurrent layers, and its native context."""
    kinds: list[dict[str, Any]] = draw(
        st.lists(
            st.sampled_from(
                [
                    {},
                    {"window_tokens": 512},
                    {"window_tokens": 1000},
                    {"window_tokens": 4096},
                    {"mixer": "chunked", "window_tokens": 8192},
                    {"mixer": "mla", "latent_dim": 576, "k_head_dim": 192},
                    {"mixer": "linear", "f32_state_elements": 524_288, "conv_state_elements": 24_576},
                ]
            ),
            min_size=1,
            max_size=3,
        )
    )
    shapes = [
        {
            "group": at,
            "n_layers": draw(st.integers(1, 40)),
            "n_kv_heads": draw(st.sampled_from([1, 2, 5, 8])),
            "k_head_dim": draw(st.sampled_from([64, 96, 128])),
            **kind,
        }
        for at, kind in enumerate(kinds)
    ]
    native = draw(st.sampled_from([2048, 5000, 40_960, 131_072, 1_010_000]))
    layers = layer_frame(*shapes)
    n_layers = sum(shape["n_layers"] for shape in shapes)
    model = {
        "n_layers": n_layers,
        "hidden_size": draw(st.sampled_from([1024, 4096])),
        "native_context_tokens": native,
        "body_params": draw(st.integers(10**8, 10**10)),
    }
    return model_frame(model), layers


def held_from(at_least_gib: float) -> pl.LazyFrame:
    """The steps of GPUs with that much memory, as if they were those of the smallest."""
    held = STEPS.filter(pl.col("at_least") <= at_least_gib).sort("at_least")
    return held.last().with_columns(at_least=pl.lit(0.0))


def step_of(gpu: dict[str, Any]) -> int:
    return 70 if gpu["memory_gib"] >= 70 else 0


def bytes_at(case: Case, tokens: tuple[int, ...], at_least_gib: int = 0) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """kv_cache and runtime of the real functions, on GPUs with that much memory."""
    models, layers = case
    steps = held_from(at_least_gib)
    storages = FORMATS.unique(["framework", "kv_dtype"], keep="first", maintain_order=True)
    cache = kv_cache(
        models.select("model", "model_type", "n_layers", "model_citation"),
        layers,
        as_llama_cpp_layers(layers),
        storages.join(engine_windows(PROFILES, steps), on="framework"),
        contexts(*tokens),
        counts(*N_GPUS),
    )
    engines = FORMATS.select("framework", "backend", "framework_citation").unique(maintain_order=True)
    rest = runtime(
        models.join(attention_shapes(layers), on="model"),
        llama_cpp_shapes(as_llama_cpp_layers(layers)),
        engines.join(PROFILES, on="framework"),
        contexts(*tokens),
        counts(*N_GPUS),
        steps,
        COEFFICIENTS,
    )
    return cache, rest


def at_sizes(case: Case, tokens: tuple[int, ...]) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """As `bytes_at`, once per step of the engines that have any."""
    stepped = pl.col("framework") == "vllm"
    parts = []
    for at_least in (0, 70):
        size = pl.lit(at_least, pl.Int16)
        made = [frame.with_columns(at_least_gib=size) for frame in bytes_at(case, tokens, at_least)]
        parts.append(made if at_least == 0 else [frame.filter(stepped) for frame in made])
    cache, rest = (pl.concat(frames) for frames in zip(*parts, strict=True))
    return cache, rest


def solved(case: Case, gpu: dict[str, Any], share: float | None = None) -> pl.DataFrame:
    """The limits of one GPU, with what the checks need beside them. `share`: of free memory, in vLLM."""
    models, layers = case
    knots = pl.concat(limits.knot_contexts(layers, PROFILES, BENDS))
    tokens = {*GRID, *knots.get_column("context_tokens")}
    cache, rest = at_sizes(case, tuple(sorted(tokens)))
    sizes = placed_weights(models, FORMATS, counts(*N_GPUS))
    made = limits.limit_recipes(
        with_share(share).drop("quant_citation"), settings_of(), no_refusals(), models, layers, sizes, cache,
        rest, limits.context_steps(PROFILES), step_sizes(STEPS), min(GRID), FACTOR,
    )  # fmt: skip
    steps = pl.DataFrame({"framework": ["vllm"], "at_least_gib": [step_of(gpu)]})
    mine = limits.at_size(made.recipes, steps)
    found = limits.limits(mine, made.knots, gpu)
    beside = mine.select("memory_utilization", "share_of_free", "step_tokens", "reach_tokens")
    return pl.concat([found, beside], how="horizontal").join(
        sizes.collect(), on=["model", "framework", "quant", "n_gpus"]
    )


def with_share(share: float | None) -> pl.LazyFrame:
    """The formats, with vLLM taking a share of what is free instead of a share of all memory."""
    if share is None:
        return FORMATS
    is_vllm = pl.col("framework") == "vllm"
    return FORMATS.with_columns(
        memory_utilization=pl.when(~is_vllm).then("memory_utilization"),
        share_of_free=pl.when(is_vllm).then(pl.lit(share)),
    )


def settings_of() -> pl.LazyFrame:
    return (
        FORMATS.select("framework", "kv_dtype")
        .unique(maintain_order=True)
        .join(counts(*N_GPUS).select(pl.col("n_gpus").cast(pl.Int16)), how="cross")
        .with_columns(model=pl.lit(DENSE), arch_min=pl.lit(None, dtype=pl.Int16))
    )


def with_totals(case: Case, rows: pl.DataFrame, gpu: dict[str, Any]) -> pl.DataFrame:
    """Adds total_gib at each row's context_tokens as the cube judges it, and what the engine may use."""
    tokens = tuple(sorted(set(rows.get_column("context_tokens"))))
    cache, rest = bytes_at(case, tokens, step_of(gpu))
    usable = engine_usable_gib(
        pl.lit(gpu["usable_gib"], dtype=pl.Float32), pl.lit(gpu["memory_gib"], dtype=pl.Float32)
    )
    place = ["model", "framework", "n_gpus", "context_tokens"]
    return (
        rows.lazy()
        .join(cache, on=[*place, "kv_dtype"])
        .join(rest, on=[*place, "backend"])
        .with_columns(
            weights_gib=gib("weights_bytes"),
            kv_cache_gib=gib("reserved_bytes"),
            runtime_gib=gib("runtime_bytes"),
        )
        .with_columns(total_gib=total_gib())
        .with_columns(total_gib=claimed_gib(), usable_gib=usable)
        .collect()
    )  # fmt: skip


shares = st.sampled_from([None, 0.8, 0.9])
sizes = st.sampled_from([4.0, 8.0, 12.0, 16.0, 24.0, 48.0, 80.0])


@pytest.mark.slow
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), sizes, st.floats(0, 1), shares)
def test_the_longest_context_fits_and_one_step_more_does_not(
    case: Case, memory: float, reserve: float, share: float | None
) -> None:
    gpu = {"gpu": "x", "memory_gib": memory, "usable_gib": round(memory - 0.3 - reserve, 5)}
    found = solved(case, gpu, share)
    if found.is_empty():
        return
    step = pl.col("step_tokens").cast(pl.Int32)
    longest = pl.col("longest_context_tokens")
    at = with_totals(case, found.filter(longest.is_not_null()).with_columns(context_tokens=longest), gpu)
    assert at.height == found.height - found.get_column("longest_context_tokens").null_count()
    assert at.select((pl.col("total_gib") <= pl.col("usable_gib")).all()).item()
    assert at.select((pl.col("context_tokens") <= pl.col("reach_tokens")).all()).item()
    assert at.select((pl.col("context_tokens") % step == 0).all()).item()
    more = found.with_columns(
        context_tokens=pl.when(longest.is_null())
        .then(SMALLEST_CONTEXT_TOKENS)
        .otherwise(longest + step)
        .cast(pl.Int32)
    ).filter(pl.col("context_tokens") <= pl.col("reach_tokens"))  # fmt: skip
    if not more.is_empty():
        beyond = with_totals(case, more, gpu)
        assert beyond.select((pl.col("total_gib") > pl.col("usable_gib")).all()).item()


@pytest.mark.slow
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), sizes)
def test_a_context_of_the_grid_fits_up_to_the_longest(case: Case, memory: float) -> None:
    gpu = {"gpu": "x", "memory_gib": memory, "usable_gib": memory - 0.4}
    found = solved(case, gpu)
    on_grid = found.join(pl.DataFrame({"context_tokens": GRID}, {"context_tokens": pl.Int32}), how="cross")
    rows = with_totals(case, on_grid.filter(pl.col("context_tokens") <= pl.col("reach_tokens")), gpu)
    no_fit = pl.col("total_gib") > pl.col("usable_gib")
    assert rows.select(
        (no_fit == (pl.col("context_tokens") > pl.col("longest_context_tokens").fill_null(0))).all()
    ).item()


@pytest.mark.slow
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), sizes)
def test_as_many_requests_fit_and_one_more_does_not(case: Case, memory: float) -> None:
    gpu = {"gpu": "x", "memory_gib": memory, "usable_gib": memory - 0.4}
    found = solved(case, gpu)
    alone = found.filter(framework="llama.cpp")
    assert alone.get_column("max_concurrent_requests").null_count() == alone.height
    served = found.filter(
        (pl.col("framework") == "vllm") & (pl.col("reach_tokens") >= REQUEST_TOKENS)
    ).with_columns(context_tokens=pl.lit(REQUEST_TOKENS, pl.Int32))
    rows = with_totals(case, served, gpu)
    assert rows.get_column("max_concurrent_requests").null_count() == 0

    def total(requests: pl.Expr) -> pl.Expr:
        cache = (pl.col("reserved_bytes") * requests / 2**30).round(3)
        return (pl.col("weights_gib") + cache + pl.col("runtime_gib")).round(3).cast(pl.Float32)

    most = pl.col("max_concurrent_requests").cast(pl.Float64)
    assert rows.filter(most > 0).select((total(most) <= pl.col("usable_gib")).all()).item()
    assert rows.select((total(most + 1) > pl.col("usable_gib")).all()).item()


def test_by_hand() -> None:
    """Llama-3.1-8B in bf16 under vLLM on a 24 GiB card: 0.92 x 24 GiB, 128 KiB of cache per token."""
    case = model_frame({}), layer_frame({})
    gpu = {"gpu": "x", "memory_gib": 24.0, "usable_gib": 23.5}
    alone = (pl.col("framework") == "vllm") & (pl.col("n_gpus") == 1)
    row = solved(case, gpu).row(by_predicate=alone & (pl.col("quant") == "native/bf16"), named=True)
    at = with_totals(
        case, pl.DataFrame([row]).with_columns(context_tokens=pl.lit(4096, pl.Int32)), gpu
    ).row(0, named=True)  # fmt: skip
    room = 22.08 - at["weights_gib"] - at["runtime_gib"]
    assert row["longest_context_tokens"] == pytest.approx(room * 8192, abs=16)
    assert row["longest_context_tokens"] % 16 == 0
    assert row["max_concurrent_requests"] == int(room)
