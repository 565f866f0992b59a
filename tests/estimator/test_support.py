"""The evaluator of the support rules, on rules made up for each case."""

from __future__ import annotations

import fnmatch

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.support import (
    SupportTables,
    is_runnable,
    refused_head_sizes,
    refused_shards,
    supported_architectures,
    supported_formats,
    supported_hardware,
    supported_kv_dtypes,
    supported_parallelism,
    why_not,
)

HARDWARE = {
    "rule": pl.String, "framework": pl.String, "backend": pl.String, "vendor": pl.String,
    "arch_min": pl.Int16,
    "arch_max": pl.Int16, "arch_glob": pl.String, "supported": pl.String, "reason": pl.String,
    "confidence": pl.String, "citation": pl.String,
}  # fmt: skip
FORMATS = {**HARDWARE, "quant_glob": pl.String, "arithmetic": pl.String}
KV_DTYPES = {**HARDWARE, "kv_glob": pl.String}
ARCHITECTURES = {
    "rule": pl.String, "framework": pl.String, "match_key": pl.String, "architecture": pl.String,
    "model_type": pl.String, "kind": pl.String, "supported": pl.String, "arch_min": pl.Int16,
    "note": pl.String,
    "confidence": pl.String, "citation": pl.String,
}  # fmt: skip
PARALLELISM = {
    "rule": pl.String, "framework": pl.String, "parallel_mode": pl.String, "quant_glob": pl.String,
    "n_gpus_max": pl.Int16, "heads_divide": pl.Boolean, "kv_heads": pl.String, "ffn_divides": pl.Boolean,
    "shard_multiple": pl.Int16, "supported": pl.String, "reason": pl.String, "confidence": pl.String,
    "citation": pl.String,
}  # fmt: skip

FRAMEWORKS = pl.DataFrame(
    [
        ("engine", "engine", "cuda;vulkan;metal;cpu", "tensor"),
        ("wrapper", "engine", "cuda", "layer"),
    ],
    schema=["framework", "engine", "backends", "parallel_mode"],
    orient="row",
)
GPUS = pl.DataFrame(
    [
        ("pascal", "nvidia", "consumer", "sm_61"),
        ("volta", "nvidia", "datacenter", "sm_70"),
        ("ampere", "nvidia", "consumer", "sm_86"),
        ("ada", "nvidia", "consumer", "sm_89"),
        ("blackwell", "nvidia", "consumer", "sm_120"),
        ("unnamed", "nvidia", "consumer", None),
        ("mac", "apple", "apple", "apple-m3-max"),
        ("radeon", "amd", "consumer", "gfx1100"),
        ("epyc", "amd", "cpu", "zen4"),
    ],
    schema=["gpu", "vendor", "category", "compute_capability"],
    orient="row",
)
MODELS = pl.DataFrame(
    [
        ("dense", "LlamaForCausalLM", "llama", 32, 32, 8, 14336, None, "gqa"),
        ("wide", "Qwen2ForCausalLM", "qwen2", 80, 64, 8, 29568, None, "gqa"),
        ("latent", "DeepseekV4ForCausalLM", "deepseek", 61, 128, 1, 18432, 2048, "mla"),
        ("recurrent", "MambaForCausalLM", "mamba", 48, None, None, None, None, "recurrent"),
    ],
    schema=[
        "model", "architecture", "model_type", "n_layers", "n_heads", "n_kv_heads", "ffn_size",
        "expert_ffn_size",
        "attention_kind",
    ],
    orient="row",
)  # fmt: skip


def rules(schema: dict[str, type[pl.DataType]], *given_rules: dict[str, object]) -> pl.DataFrame:
    filled = [
        {
            "rule": f"r{number}", "framework": "engine", "supported": "yes", "confidence": "high",
            "citation": f"c/{number}", **rule,
        }
        for number, rule in enumerate(given_rules)
    ]  # fmt: skip
    return pl.DataFrame([{name: rule.get(name) for name in schema} for rule in filled], schema=schema)


def answer(frame: pl.DataFrame, **where: object) -> str | None:
    """The answer of the one row that holds `where`; None when there is none."""
    found = frame.filter(*(pl.col(name) == value for name, value in where.items()))
    assert found.height <= 1, found
    return found.item(0, "supported") if found.height else None


def test_ranges_of_compute_capability_and_no_rule() -> None:
    frame = supported_hardware(FRAMEWORKS, GPUS, rules(
        HARDWARE, {"backend": "cuda", "vendor": "nvidia", "arch_min": 75},
        {"backend": "cuda", "vendor": "nvidia", "arch_max": 61, "supported": "no"},
    ))  # fmt: skip
    on_cuda = {gpu: answer(frame, framework="engine", backend="cuda", gpu=gpu) for gpu in GPUS["gpu"]}
    assert on_cuda == {
        "pascal": "no", "volta": "unknown", "ampere": "yes", "ada": "yes", "blackwell": "yes",
        "unnamed": "unknown", "mac": None, "radeon": None, "epyc": None,
    }  # fmt: skip


def test_a_vendor_no_backend_is_made_for_has_one_row_that_says_so() -> None:
    frame = supported_hardware(FRAMEWORKS, GPUS, rules(
        HARDWARE, {"framework": "wrapper", "vendor": "apple", "supported": "no", "reason": "CUDA library"},
        {"backend": "cuda", "vendor": "nvidia"},
    ))  # fmt: skip
    wrapper = frame.filter(pl.col("framework") == "wrapper")
    mac = wrapper.row(by_predicate=pl.col("gpu") == "mac", named=True)
    assert (mac["backend"], mac["supported"], mac["reason"]) == (None, "no", "CUDA library")
    radeon = wrapper.row(by_predicate=pl.col("gpu") == "radeon", named=True)
    assert (radeon["supported"], radeon["reason"]) == ("unknown", "no backend for this vendor")


def test_processors_are_a_vendor_of_their_own() -> None:
    frame = supported_hardware(FRAMEWORKS, GPUS, rules(HARDWARE, {"vendor": "cpu"}, {"vendor": "amd"}))
    assert answer(frame, framework="engine", backend="cpu", gpu="epyc") == "yes"
    assert answer(frame, framework="engine", backend="vulkan", gpu="epyc") is None
    assert answer(frame, framework="engine", backend="vulkan", gpu="radeon") == "yes"


@pytest.mark.parametrize(
    ("special", "expected"),
    [
        ({"arch_glob": "sm_86"}, "partial"), ({"arch_glob": "sm_8*"}, "partial"),
        ({"arch_min": 80, "arch_max": 88}, "partial"), ({"backend": "cuda"}, "partial"), ({}, "no"),
    ],
)  # fmt: skip
def test_the_more_specific_rule_wins_in_any_order(special: dict[str, object], expected: str) -> None:
    general: dict[str, object] = {"vendor": "nvidia", "supported": "no"}
    narrow: dict[str, object] = {"vendor": "nvidia", "supported": "partial", **special}
    for order in ((general, narrow), (narrow, general)):
        frame = supported_hardware(FRAMEWORKS, GPUS, rules(HARDWARE, *order))
        assert answer(frame, framework="engine", backend="cuda", gpu="ampere") == expected


def test_a_wrapper_asks_its_engine_only_where_it_is_silent() -> None:
    frame = supported_hardware(FRAMEWORKS, GPUS, rules(
        HARDWARE, {"vendor": "nvidia", "arch_glob": "sm_86"}, {"vendor": "nvidia", "arch_glob": "sm_89"},
        {"framework": "wrapper", "vendor": "nvidia", "arch_max": 88, "supported": "no"},
    ))  # fmt: skip
    assert answer(frame, framework="wrapper", gpu="ampere") == "no"  # its own, though less specific
    assert answer(frame, framework="wrapper", gpu="ada") == "yes"  # its engine's


def test_formats_by_glob_hardware_and_arithmetic() -> None:
    quants = pl.DataFrame({"quant": ["fp8/e4m3-block128", "fp8/w8a16", "gguf/q4_k_m"]})
    frame = supported_formats(FRAMEWORKS, GPUS, quants, rules(
        FORMATS,
        {"quant_glob": "fp8/*", "vendor": "nvidia", "arch_min": 89, "arithmetic": "native"},
        {"quant_glob": "fp8/*", "vendor": "nvidia", "arch_max": 88, "supported": "no"},
        {"quant_glob": "fp8/w8a16", "vendor": "nvidia", "arithmetic": "weight_only"},
    ))  # fmt: skip
    cuda = frame.filter((pl.col("framework") == "engine") & (pl.col("backend") == "cuda"))
    assert answer(cuda, gpu="ampere", quant="fp8/e4m3-block128") == "no"
    assert answer(cuda, gpu="ada", quant="fp8/e4m3-block128") == "yes"
    assert answer(cuda, gpu="ampere", quant="fp8/w8a16") == "yes"  # the exact name goes before the hardware
    assert cuda.filter(gpu="ampere", quant="fp8/w8a16").item(0, "arithmetic") == "weight_only"
    assert answer(cuda, gpu="ada", quant="gguf/q4_k_m") is None
    assert answer(frame, framework="engine", backend="metal", gpu="mac", quant="fp8/w8a16") is None


def test_cache_formats_only_where_the_framework_offers_them() -> None:
    offered = pl.DataFrame({"framework": ["engine", "engine", "wrapper"], "kv_dtype": ["f16", "q8_0", "f16"]})
    frame = supported_kv_dtypes(FRAMEWORKS, GPUS, offered, rules(KV_DTYPES, {"kv_glob": "*"}))
    assert answer(frame, framework="engine", backend="cuda", gpu="ada", kv_dtype="q8_0") == "yes"
    assert answer(frame, framework="wrapper", backend="cuda", gpu="ada", kv_dtype="q8_0") is None


def test_a_head_size_off_the_blocks_is_refused() -> None:
    layers = pl.DataFrame(
        {"model": ["even", "odd", "odd", "mla"], "k_head_dim": [128, 128, 80, 192],
         "v_head_dim": [128, 128, 80, 100], "latent_dim": [None, None, None, 576]},
    )  # fmt: skip
    kv_dtypes = pl.DataFrame(
        {"framework": ["engine", "engine"], "kv_dtype": ["f16", "q8_0"], "head_dim_multiple": [None, 32],
         "citation": ["c/1", "c/2"]},
    )  # fmt: skip
    refused = refused_head_sizes(layers, kv_dtypes)
    assert refused.select("model", "kv_dtype", "reason", "citation").rows() == [
        ("odd", "q8_0", "head size 80 is not a multiple of 32", "c/2")
    ]


def test_architectures_by_class_by_type_and_by_engine() -> None:
    frame = supported_architectures(MODELS, FRAMEWORKS, rules(
        ARCHITECTURES,
        {"match_key": "architecture", "architecture": "LlamaForCausalLM", "kind": "text-generation"},
        {"match_key": "architecture", "architecture": "LlamaForCausalLM", "kind": "removed",
         "supported": "no"},
        {"match_key": "model_type", "model_type": "qwen2", "kind": "text-generation", "supported": "partial"},
        {"match_key": "architecture", "architecture": "MambaForCausalLM", "kind": "embedding"},
        {"framework": "wrapper", "match_key": "architecture", "architecture": "LlamaForCausalLM",
         "kind": "text-generation", "supported": "no"},
    ))  # fmt: skip
    assert answer(frame, framework="engine", model="dense") == "yes"  # the favourable of two code paths
    assert answer(frame, framework="engine", model="wide") == "partial"
    assert answer(frame, framework="engine", model="recurrent") is None  # an embedding entry serves no text
    assert answer(frame, framework="wrapper", model="dense") == "no"  # its own entry
    assert answer(frame, framework="wrapper", model="wide") == "partial"  # its engine's


TENSOR = {
    "parallel_mode": "tensor",
    "heads_divide": True,
    "kv_heads": "divide_or_replicate",
    "ffn_divides": True,
}


@pytest.mark.parametrize(
    ("model", "n_gpus", "rule", "expected"),
    [
        ("dense", 8, TENSOR, "yes"), ("dense", 16, TENSOR, "yes"), ("dense", 3, TENSOR, "no"),
        ("dense", 16, {**TENSOR, "kv_heads": "divide"}, "no"), ("wide", 16, TENSOR, "yes"),
        ("wide", 64, {**TENSOR, "ffn_divides": False}, "yes"), ("latent", 8, TENSOR, "yes"),
        ("dense", 12, TENSOR, "no"), ("recurrent", 2, TENSOR, "unknown"),
        ("dense", 8, {**TENSOR, "n_gpus_max": 4}, "no"), ("dense", 64, {"parallel_mode": "tensor"}, "no"),
    ],
)  # fmt: skip
def test_what_must_divide(model: str, n_gpus: int, rule: dict[str, object], expected: str) -> None:
    frame = supported_parallelism(MODELS, FRAMEWORKS, [1, n_gpus], rules(PARALLELISM, rule))
    assert answer(frame, framework="engine", model=model, n_gpus=n_gpus) == expected
    assert answer(frame, framework="engine", model=model, n_gpus=1) == "yes"
    assert answer(frame, framework="wrapper", model=model, n_gpus=n_gpus) is None  # its mode has no rule


def test_blocks_that_a_shard_would_cut() -> None:
    quants = pl.DataFrame({"quant": ["fp8/block", "fp8/tensor"]})
    frame = refused_shards(MODELS, FRAMEWORKS, quants, [1, 2, 8], rules(
        PARALLELISM, {"parallel_mode": "tensor", "quant_glob": "fp8/block", "shard_multiple": 128,
                      "supported": "no"},
    ))  # fmt: skip
    assert frame.select("quant", "model", "n_gpus").rows() == [  # 29568 = 231 x 128
        ("fp8/block", "wide", 2), ("fp8/block", "wide", 8),
    ]  # fmt: skip


def tables() -> SupportTables:
    return SupportTables(
        gpus=GPUS,
        models=MODELS,
        layers=pl.DataFrame({"model": ["dense"], "k_head_dim": [80], "v_head_dim": [80],
                             "latent_dim": [None]},
                            schema_overrides={"latent_dim": pl.Int64}),
        quants=pl.DataFrame({"quant": ["fp8/block", "gguf/q4_k_m"]}),
        frameworks=FRAMEWORKS,
        kv_dtypes=pl.DataFrame({"framework": ["engine", "engine"], "kv_dtype": ["f16", "q8_0"],
                                "head_dim_multiple": [None, 32], "citation": ["c/k", "c/k"]}),
        hardware_rules=rules(HARDWARE, {"backend": "cuda", "vendor": "nvidia", "arch_min": 75}),
        format_rules=rules(FORMATS, {"quant_glob": "gguf/*", "supported": "no", "reason": "no loader"}),
        kv_dtype_rules=rules(KV_DTYPES, {"kv_glob": "f16"}),
        architecture_rules=rules(ARCHITECTURES, {
            "match_key": "architecture", "architecture": "DeepseekV4ForCausalLM", "kind": "text-generation",
            "arch_min": 100}),
        parallelism_rules=rules(PARALLELISM, TENSOR),
    )  # fmt: skip


def test_why_not_gives_every_rule_that_speaks() -> None:
    frame = why_not(
        tables(), gpu="ampere", model="dense", quant="gguf/q4_k_m", framework="engine", kv_dtype="q8_0",
        n_gpus=3, backend="cuda",
    )  # fmt: skip
    assert frame.select("question", "supported").rows() == [
        ("hardware", "yes"), ("format", "no"), ("cache", "unknown"), ("head_size", "no"),
        ("architecture", "unknown"), ("gpus", "no"), ("shards", "yes"),
    ]  # fmt: skip
    assert frame.filter(question="format").item(0, "reason") == "no loader"
    assert frame.filter(question="gpus").item(0, "reason") == "32 heads do not divide by 3"
    assert frame.filter(question="hardware").item(0, "citation") == "c/0"


@pytest.mark.parametrize(("gpu", "expected"), [("ada", "no"), ("blackwell", "yes")])
def test_an_architecture_may_need_a_newer_gpu(gpu: str, expected: str) -> None:
    frame = why_not(
        tables(), gpu=gpu, model="latent", quant="fp8/block", framework="engine", kv_dtype="f16"
    ).filter(question="architecture")
    assert frame.item(0, "supported") == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gpu": "ampre"}, "unknown gpu 'ampre'; nearest: ampere"),
        ({"quant": "gguf/q4_k"}, "unknown quant 'gguf/q4_k'; nearest: gguf/q4_k_m"),
        ({"kv_dtype": "q8"}, "unknown kv_dtype 'q8'; nearest: q8_0"),
        ({"backend": "rocm"}, "unknown backend 'rocm'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(wrong: dict[str, str], message: str) -> None:
    asked = {
        "gpu": "ampere",
        "model": "dense",
        "quant": "gguf/q4_k_m",
        "framework": "engine",
        "kv_dtype": "f16",
    }
    with pytest.raises(ValueError, match=message):
        why_not(tables(), **(asked | wrong))  # type: ignore[arg-type]


def test_partial_runs_and_unknown_does_not() -> None:
    answers = pl.DataFrame({"supported": ["yes", "partial", "no", "unknown", None]})
    assert answers.select(is_runnable()).to_series().to_list() == [True, True, False, False, None]


@given(
    glob=st.text(alphabet="abq4_.+*/", min_size=1, max_size=8),
    name=st.text(alphabet="abq4_.+/", min_size=1, max_size=8),
)
def test_globs_match_as_in_a_shell(glob: str, name: str) -> None:
    frame = supported_formats(
        FRAMEWORKS, GPUS.head(1), pl.DataFrame({"quant": [name]}), rules(FORMATS, {"quant_glob": glob})
    )
    assert (frame.height > 0) == fnmatch.fnmatchcase(name, glob)


@given(st.lists(st.sampled_from([
    {"vendor": "nvidia"}, {"arch_min": 80}, {"arch_glob": "sm_86"}, {"backend": "cuda"}, {"arch_max": 88},
    {"vendor": "nvidia", "supported": "no"}, {"arch_min": 80, "arch_max": 90, "supported": "partial"},
]), min_size=1, max_size=5), st.randoms(use_true_random=False))  # fmt: skip
def test_the_order_of_the_rules_does_not_matter(given_rules: list[dict[str, object]], random: object) -> None:
    shuffled = list(given_rules)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = (
        supported_hardware(FRAMEWORKS, GPUS, rules(HARDWARE, *order)).drop("rule", "citation")
        for order in (given_rules, shuffled)
    )
    assert one.equals(other)
