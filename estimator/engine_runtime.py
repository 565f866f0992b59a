"""Activations, graphs, communication buffers and reserves of engines other than llama.cpp, per GPU, and how
they grow with the GPU's memory.

Engines choose larger prompts at a time and larger captured batches on larger GPUs (`framework_steps`). The
table `runtime` holds what the smallest GPUs take; `runtime_steps` holds what larger ones take beside that.
Constants come from `sources/coefficients/runtime.csv` and from the frameworks' facts.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.calibration import coefficient

BYTES_PER_MIB: Final = 2**20
ACTIVATION_BYTES: Final = 2.0  # activations are 16 bit
STEPPED: Final = ("prefill_tokens", "max_graph_batch", "max_graph_batch_from_4_gpus", "prefill_graphs")
MANY_GPUS: Final = 4
SIZED_RULES: Final = ("vllm_activation", "sglang_reserve")


def constant(coefficients: pl.DataFrame, block: str, level: str) -> float:
    """One constant of `sources/coefficients/runtime.csv`."""
    return coefficient(coefficients, "runtime", block, level)


def steps_by_memory(steps: pl.LazyFrame) -> pl.LazyFrame:
    """framework, at_least_gib and the columns `STEPPED`: what holds from that much memory on.

    `steps`: the table framework_steps. Every threshold of a framework has a row, and so has 0.
    """
    by_memory = steps.filter(pl.col("depends_on").cast(pl.String) == "memory_gib").select(
        "framework", "setting", "at_least", "value"
    )
    thresholds = by_memory.select("framework", at_least_gib="at_least").unique()
    held = thresholds.join(by_memory, on="framework").filter(pl.col("at_least") <= pl.col("at_least_gib"))
    latest = pl.col("value").sort_by("at_least")
    return held.group_by("framework", "at_least_gib").agg(
        latest.filter(pl.col("setting").sort_by("at_least") == name).last().alias(name) for name in STEPPED
    )


def smallest_steps(stacks: pl.LazyFrame, steps: pl.LazyFrame) -> pl.LazyFrame:
    """The stacks with the columns `STEPPED` of the smallest GPUs, null where the engine states none."""
    base = steps_by_memory(steps).filter(pl.col("at_least_gib") == 0)
    return stacks.join(base, on="framework", how="left").with_columns(pl.col("at_least_gib").fill_null(0.0))


def activation_bytes(coefficients: pl.DataFrame) -> pl.Expr:
    """Peak activations of the tensor-parallel servers: 2 x tokens x attention width x factor, at least a
    floor.

    The factor falls with tensor parallelism and is twice as large for MoE; tokens are those of one step: the
    engine's for this memory, its batch, or the usual. Source: ai-dynamo/aiconfigurator@095f58a backend memory
    model.
    """
    tokens = pl.coalesce(
        "prefill_tokens", "profile_batch_tokens", pl.lit(constant(coefficients, "prefill_tokens", "unstated"))
    )
    dense, moe = (_by_gpus(coefficients, "activation_factor", f"{kind}|") for kind in ("dense", "moe"))
    factor = pl.when(pl.col("is_moe")).then(moe).otherwise(dense)
    floor = constant(coefficients, "activation_floor", "all") * BYTES_PER_MIB
    return pl.max_horizontal(ACTIVATION_BYTES * tokens * pl.col("attention_width") * factor, pl.lit(floor))


def _by_gpus(coefficients: pl.DataFrame, block: str, prefix: str) -> pl.Expr:
    """The constant of 1, of 2 to 3, or of 4 and more GPUs."""
    one, two, four = (constant(coefficients, block, f"{prefix}{n}") for n in (1, 2, 4))
    n_gpus = pl.col("n_gpus")
    return pl.when(n_gpus >= MANY_GPUS).then(four).when(n_gpus >= 2).then(two).otherwise(one)


def communication_bytes(coefficients: pl.DataFrame) -> pl.Expr:
    """Buffers of collective communication on each rank (NCCL): none on one GPU.

    Source: ai-dynamo/aiconfigurator@095f58a systems/*.yaml, 0, 342, 392 and 392 MiB for 1, 2, 4 and 8 GPUs.
    """
    two, four = (constant(coefficients, "communication", str(n)) for n in (2, 4))
    n_gpus = pl.col("n_gpus")
    mib = pl.when(n_gpus >= MANY_GPUS).then(four).when(n_gpus >= 2).then(two).otherwise(0.0)
    return mib * BYTES_PER_MIB


def reserve_bytes(coefficients: pl.DataFrame) -> pl.Expr:
    """What SGLang keeps out of its static pool.

    base + per prefill token (at least the usual) + per GPU + per request of the largest captured batch + per
    captured prompt length (a fixed sum for latent attention), at least the floor of large GPUs. Source:
    sglang 0.5.23 srt/arg_groups/memory_hook.py:294-400.
    """
    usual = constant(coefficients, "prefill_tokens", "unstated")
    tokens = pl.max_horizontal(pl.col("prefill_tokens").fill_null(0), pl.lit(usual))
    batch = (
        pl.when(pl.col("n_gpus") >= MANY_GPUS)
        .then(pl.coalesce("max_graph_batch_from_4_gpus", "max_graph_batch"))
        .otherwise("max_graph_batch")
    )
    graphs = (
        pl.when(pl.col("absorbed_width") > 0)
        .then("reserve_latent_graphs_mib")
        .otherwise(pl.col("reserve_per_prefill_graph_mib") * pl.col("prefill_graphs"))
    )
    computed = (
        pl.col("reserve_base_mib")
        + pl.col("reserve_per_prefill_token_mib") * tokens
        + pl.col("reserve_per_gpu_mib") * pl.col("n_gpus")
        + (pl.col("reserve_per_graph_batch_mib") * batch).fill_null(0)
        + graphs.fill_null(0)
    )
    is_large = pl.col("at_least_gib") >= pl.col("reserve_floor_above_gib")
    floor = pl.when(is_large.fill_null(False)).then("reserve_floor_mib").otherwise(0.0)
    return pl.max_horizontal(computed, floor) * BYTES_PER_MIB


def sized_compute_bytes(coefficients: pl.DataFrame) -> pl.Expr:
    """Compute memory of the engines whose rule depends on the GPU's memory, for the row's `STEPPED`."""
    return (
        pl.when(pl.col("activation_rule").cast(pl.String) == "sglang_reserve")
        .then(reserve_bytes(coefficients))
        .otherwise(activation_bytes(coefficients))
    )


def fixed_bytes(coefficients: pl.DataFrame) -> pl.Expr:
    """Context, libraries, captured graphs and memory kept free per GPU from the framework's facts, in bytes.

    A framework that states no overhead of its own still has the backend's context (Ollama fb30760
    ml/device.go:356, the least memory it reserves per device). SGLang's reserve contains all of it; servers
    that cut every layer have communication buffers.
    """
    reserves = pl.col("activation_rule").cast(pl.String) == "sglang_reserve"
    metal = pl.coalesce("overhead_metal_mib", pl.lit(constant(coefficients, "backend_context", "metal")))
    other = pl.coalesce("overhead_mib", pl.lit(constant(coefficients, "backend_context", "other")))
    context = pl.when(pl.col("backend") == "metal").then(metal).otherwise(other)
    serves_ranks = pl.col("activation_rule").cast(pl.String) == "vllm_activation"
    ranks = pl.when(serves_ranks).then(communication_bytes(coefficients)).otherwise(0.0)
    stated = (
        context + pl.col("graph_mib").fill_null(0.0) + pl.col("reserve_first_gpu_mib").fill_null(0.0)
    ) * BYTES_PER_MIB
    return (
        pl.when(reserves.fill_null(False))
        .then(pl.col("graph_mib").fill_null(0.0) * BYTES_PER_MIB)
        .otherwise(stated + ranks)
    )


def runtime_steps(
    shapes: pl.LazyFrame,
    frameworks: pl.LazyFrame,
    n_gpus: pl.LazyFrame,
    steps: pl.LazyFrame,
    coefficients: pl.DataFrame,
) -> pl.LazyFrame:
    """The table `runtime_steps`: model x framework x n_gpus x at_least_gib -> extra_bytes.

    What a GPU with at least that much memory takes more than `runtime` says, because the engine computes more
    prompt tokens at a time there or captures larger batches. `shapes`: as for `runtime`; `frameworks`: the
    table's rows that are asked for, with framework_citation; only engines with such a rule and more than one
    step have rows.
    """
    sized = frameworks.filter(pl.col("activation_rule").cast(pl.String).is_in(SIZED_RULES))
    held = steps_by_memory(steps)
    rows = shapes.join(sized, how="cross").join(n_gpus, how="cross")
    single = (pl.col("n_gpus") == 1) | (pl.col("parallel_mode").cast(pl.String) != "none")
    of_steps = (
        rows.filter(single)
        .join(held, on="framework")
        .with_columns(compute=sized_compute_bytes(coefficients).ceil())
    )
    key = ["model", "framework", "n_gpus"]
    base = of_steps.filter(pl.col("at_least_gib") == 0).select(*key, base="compute")
    return (
        of_steps.filter(pl.col("at_least_gib") > 0)
        .join(base, on=key)
        .select(
            "model",
            "framework",
            pl.col("n_gpus").cast(pl.Int16),
            pl.col("at_least_gib").cast(pl.Int16),
            prefill_tokens=pl.col("prefill_tokens").cast(pl.Int32),
            # SGLang captures smaller batches from 35 GiB on than from 20: larger is not always more.
            extra_bytes=(pl.col("compute") - pl.col("base")).cast(pl.Int64),
            framework_citation="framework_citation",
        )
        .sort(*key, "at_least_gib")
    )
