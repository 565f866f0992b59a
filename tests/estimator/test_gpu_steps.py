"""Steps that GPUs reach, and tables and recipes with the memory of a step."""

from __future__ import annotations

import polars as pl
import pytest

from estimator.gpu_steps import SizedMemory, at_every_size, gpu_steps, sized_memory, sizes

STEPS = pl.LazyFrame(
    {
        "framework": ["vllm"] * 3 + ["ollama"],
        "setting": ["prefill_tokens"] * 3 + ["ubatch_tokens"],
        "depends_on": ["memory_gib"] * 3 + ["context_tokens"],
        "at_least": [0.0, 70.0, 160.0, 4096.0],
        "value": [2048.0, 8192.0, 16384.0, 1024.0],
    }
)
FRAMEWORKS = pl.LazyFrame(
    {"framework": ["vllm", "ollama"], "profile_smallest_step_names": ["a100;gb10", None]}
)


@pytest.mark.parametrize(
    ("gpu", "memory_gib", "expected"),
    [
        ("rtx-4090-24gb", 24.0, 0),
        ("h100-sxm5-80gb", 80.0, 70),
        ("a100-sxm4-80gb", 80.0, 0),  # by its name
        ("dgx-spark-gb10-128gb", 128.0, 0),
        ("a800-sxm4-80gb", 80.0, 70),
        ("h200-sxm-141gb", 141.0, 70),
        ("mi300x-192gb", 192.0, 160),
    ],
)
def test_the_last_step_reached_holds_but_for_named_devices(
    gpu: str, memory_gib: float, expected: int
) -> None:
    gpus = pl.LazyFrame({"gpu": [gpu], "memory_gib": [memory_gib]})
    found = gpu_steps(gpus, FRAMEWORKS, STEPS).collect()
    assert found.rows() == [(gpu, "vllm", expected)]


def table(value: str, n_bytes: int) -> pl.LazyFrame:
    """One row of kv_cache or runtime, for an engine with steps and for one without."""
    return pl.LazyFrame(
        {
            "model": ["m", "m"],
            "framework": ["vllm", "mlx-lm"],
            "backend": ["cuda", "metal"],
            "kv_dtype": ["f16", "f16"],
            "n_gpus": [1, 1],
            "context_tokens": [4096, 4096],
            value: [n_bytes, n_bytes],
        }
    )


def extra(value: int, at_least_gib: int, *key: str) -> pl.LazyFrame:
    kept = table("extra_bytes", value).filter(pl.col("framework") == "vllm")
    return kept.select(*key, "extra_bytes", at_least_gib=pl.lit(at_least_gib))


def test_a_table_gets_a_row_per_step() -> None:
    found = at_every_size(
        table("runtime_bytes", 100), extra(-7, 70, "model", "framework", "n_gpus"),
        ("model", "framework", "n_gpus"), "runtime_bytes", sizes(STEPS),
    ).collect()  # fmt: skip
    rows = found.select("framework", "at_least_gib", "runtime_bytes").sort("framework", "at_least_gib").rows()
    assert rows == [("mlx-lm", 0, 100), ("vllm", 0, 100), ("vllm", 70, 93), ("vllm", 160, 100)]


def memory() -> SizedMemory:
    gib = 2**30
    return sized_memory(
        table("reserved_bytes", gib).drop("backend"),
        extra(gib // 2, 160, "model", "framework", "kv_dtype", "n_gpus", "context_tokens"),
        table("runtime_bytes", gib).drop("kv_dtype"),
        extra(gib // 4, 70, "model", "framework", "n_gpus"),
        sizes(STEPS),
    )


@pytest.mark.parametrize(
    ("at_least_gib", "expected"), [(0, (1.0, 1.0, 12.0)), (70, (1.0, 1.25, 12.25)), (160, (1.5, 1.0, 12.5))]
)
def test_recipes_take_the_memory_of_a_step_and_their_parts_add_up(
    at_least_gib: int, expected: tuple[float, ...]
) -> None:
    """The rows in between keep their order, and engines without steps their memory."""
    names = ("kv_cache_gib", "runtime_gib", "total_gib")
    at = table("weights_gib", 10).with_columns(
        pl.lit(value).cast(pl.Float32).alias(name)
        for name, value in zip(names, (1.0, 1.0, 12.0), strict=True)
    )
    recipes = pl.concat([at, at.reverse()]).collect()
    steps = pl.DataFrame(
        {"framework": ["vllm"], "at_least_gib": [at_least_gib]}, schema_overrides={"at_least_gib": pl.Int16}
    )
    sized = memory()
    found = sized.at_size(sized.placed(recipes), steps)
    assert found.columns == recipes.columns
    assert found.get_column("framework").equals(recipes.get_column("framework"))
    is_vllm = pl.col("framework") == "vllm"
    assert set(found.filter(is_vllm).select(names).rows()) == {expected}
    assert set(found.filter(~is_vllm).select(names).rows()) == {(1.0, 1.0, 12.0)}
