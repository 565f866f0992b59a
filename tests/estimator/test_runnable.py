"""Support rules composed into what the cubes may hold, on tables small enough to check by eye."""

from __future__ import annotations

import polars as pl

from estimator.runnable import gpu_classes, gpu_formats, model_settings, refused_splits
from tests.estimator.support_cases import FORMAT_ROWS, GPUS, tables

N_GPUS = (1, 2, 4, 8)


def formats_of(gpu: str) -> list[int]:
    return gpu_formats(FORMAT_ROWS, tables()).filter(pl.col("gpu") == gpu).get_column("format").to_list()


def settings_of(model: str, framework: str, kv_dtype: str = "f16") -> list[int]:
    found = model_settings(FORMAT_ROWS, N_GPUS, tables())
    mine = (pl.col("model") == model) & (pl.col("framework") == framework) & (pl.col("kv_dtype") == kv_dtype)
    return found.filter(mine).get_column("n_gpus").to_list()


def test_a_v100_runs_llama_cpp_and_no_vllm() -> None:
    assert formats_of("v100") == [1, 2]


def test_hardware_format_and_cache_must_all_be_supported() -> None:
    """On an A100 FP8 weights are partial (weight only) and run; an FP8 cache needs Ada. On a 4090 all
    runs.
    """
    assert formats_of("a100-80gb") == [1, 2, 4, 5]
    assert formats_of("rtx-4090") == [1, 2, 4, 5, 6]
    assert formats_of("m3-max") == [3, 8]
    assert formats_of("mi300x") == [7]


def test_unknown_is_not_published_as_working() -> None:
    assert formats_of("unknown-card") == []
    silent = tables(kv_dtype_rules=tables().kv_dtype_rules.head(0))
    assert gpu_formats(FORMAT_ROWS, silent).is_empty()


def test_formats_are_sorted() -> None:
    found = gpu_formats(FORMAT_ROWS, tables())
    assert found.equals(found.sort("gpu", "format"))
    assert found.equals(gpu_formats(FORMAT_ROWS.reverse(), tables()))


def test_tensor_parallel_needs_heads_that_divide() -> None:
    """14 heads split over 1 and 2; 8 KV heads of 32 are no obstacle up to 8 GPUs; layers are always dealt
    out.
    """
    assert settings_of("llama", "vllm") == [1, 2, 4, 8]
    assert settings_of("odd", "vllm") == [1, 2]
    assert settings_of("odd", "llama.cpp") == [1, 2, 4, 8]
    assert settings_of("llama", "mlx-lm") == [1]  # no rule to split


def test_models_that_an_engine_does_not_know_are_left_out() -> None:
    found = model_settings(FORMAT_ROWS, N_GPUS, tables())
    assert "unheard-of" not in found.get_column("model")
    assert found.filter(pl.col("model") == "newest").get_column("framework").unique().to_list() == ["vllm"]


def test_cache_blocks_must_fit_the_heads() -> None:
    """q8_0 stores blocks of 32 elements; a head of 80 has none to spare."""
    assert settings_of("llama", "llama.cpp", "q8_0") == [1, 2, 4, 8]
    assert settings_of("narrow", "llama.cpp", "q8_0") == []
    assert settings_of("narrow", "llama.cpp") == [1, 2, 4, 8]


def test_the_capability_an_architecture_needs_is_carried() -> None:
    found = model_settings(FORMAT_ROWS, N_GPUS, tables())
    needs = found.select("model", "arch_min").unique().sort("model").rows()
    assert needs == [("llama", None), ("narrow", None), ("newest", 100), ("odd", None)]


def test_settings_come_once_per_cache_type_and_sorted() -> None:
    found = model_settings(FORMAT_ROWS, N_GPUS, tables())
    key = ["model", "framework", "kv_dtype", "n_gpus"]
    assert found.select(key).equals(found.select(key).unique().sort(key))
    assert set(found.filter(pl.col("framework") == "vllm").get_column("kv_dtype")) == {"f16", "fp8"}


def test_formats_refuse_shards_that_break_their_groups() -> None:
    """AWQ groups of 128: 14336 / 8 = 1792 = 14 groups; 10240 / 8 = 1280; 4864 / 4 = 1216 and / 8 = 608
    break.
    """
    found = refused_splits(FORMAT_ROWS, N_GPUS, tables())
    assert found.filter(pl.col("model") == "odd").select("framework", "quant", "n_gpus").sort(
        "n_gpus"
    ).rows() == [
        ("vllm", "awq/int4-g128", 4),
        ("vllm", "awq/int4-g128", 8),
    ]
    assert "llama" not in found.get_column("model")


def test_equal_gpus_share_a_class() -> None:
    found = gpu_classes(GPUS, gpu_formats(FORMAT_ROWS, tables()))
    classes = dict(found.select("gpu", "gpu_class").rows())
    assert classes["a100-40gb"] == classes["a100-80gb"]
    assert len(set(classes.values())) == len(classes) - 1
    assert "unknown-card" not in classes  # runs nothing
    assert found.equals(found.sort("gpu_class", "gpu"))


def test_what_recipes_are_filtered_by_sets_classes_apart() -> None:
    """The same formats, but another number of GPUs or another compute capability."""
    formats = pl.DataFrame({"gpu": ["a", "b", "c", "d"], "format": [1, 1, 1, 1]})
    gpus = pl.DataFrame({"gpu": ["a", "b", "c", "d"], "n_gpus_max": [4, 4, 8, 4],
                         "compute_capability": ["sm_89", "sm_89", "sm_89", "sm_86"]})  # fmt: skip
    classes = dict(gpu_classes(gpus, formats).select("gpu", "gpu_class").rows())
    assert classes["a"] == classes["b"]
    assert len({classes["a"], classes["c"], classes["d"]}) == 3
