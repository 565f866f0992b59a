"""A few cards, engines and rules that mirror the published ones, shared by the tests of what can run."""

from __future__ import annotations

from typing import Any

import polars as pl

from estimator.support import SupportTables
from tests.estimator.test_support import ARCHITECTURES, FORMATS, HARDWARE, KV_DTYPES, PARALLELISM, rules

GPUS = pl.DataFrame(
    [
        ("v100", "nvidia", "datacenter", "sm_70", 8),
        ("a100-40gb", "nvidia", "datacenter", "sm_80", 8),
        ("a100-80gb", "nvidia", "datacenter", "sm_80", 8),
        ("rtx-4090", "nvidia", "consumer", "sm_89", 4),
        ("b200", "nvidia", "datacenter", "sm_100", 8),
        ("m3-max", "apple", "apple", "apple-m3-max", 1),
        ("mi300x", "amd", "datacenter", "gfx942", 8),
        ("unknown-card", "amd", "consumer", None, 4),
    ],
    schema=["gpu", "vendor", "category", "compute_capability", "n_gpus_max"],
    orient="row",
)
MODELS = pl.DataFrame(
    [
        ("llama", "LlamaForCausalLM", "llama", 32, 32, 8, 14336, None, "gqa"),
        ("odd", "LlamaForCausalLM", "llama", 24, 14, 2, 4864, None, "gqa"),
        ("narrow", "LlamaForCausalLM", "llama", 32, 32, 32, 10240, None, "mha"),
        ("newest", "NewestForCausalLM", "newest", 61, 64, 64, 18432, None, "mha"),
        ("unheard-of", "OddForCausalLM", "odd_type", 8, 8, 8, 1024, None, "mha"),
    ],
    schema=["model", "architecture", "model_type", "n_layers", "n_heads", "n_kv_heads", "ffn_size",
            "expert_ffn_size", "attention_kind"],
    schema_overrides={"expert_ffn_size": pl.Int64},
    orient="row",
)  # fmt: skip
FRAMEWORK_ROWS = pl.DataFrame(
    [
        ("vllm", "vllm", "cuda;rocm", "tensor"),
        ("llama.cpp", "llama.cpp", "cuda;rocm;metal", "layer"),
        ("mlx-lm", "mlx-lm", "metal", "none"),
    ],
    schema=["framework", "engine", "backends", "parallel_mode"],
    orient="row",
)
FORMAT_ROWS = pl.DataFrame(
    [
        (1, "llama.cpp", "cuda", "gguf/q4_k_m", "f16"),
        (2, "llama.cpp", "cuda", "gguf/q4_k_m", "q8_0"),
        (3, "llama.cpp", "metal", "gguf/q4_k_m", "f16"),
        (4, "vllm", "cuda", "native/bf16", "f16"),
        (5, "vllm", "cuda", "fp8/e4m3-block128", "f16"),
        (6, "vllm", "cuda", "awq/int4-g128", "fp8"),
        (7, "vllm", "rocm", "native/bf16", "f16"),
        (8, "mlx-lm", "metal", "native/bf16", "f16"),
    ],
    schema=["format", "framework", "backend", "quant", "kv_dtype"],
    orient="row",
)


def tables(**changes: Any) -> SupportTables:
    """Rules as published in kind: vLLM needs Turing, FP8 Ada, q8_0 caches heads of 32, AWQ whole groups."""
    llama = {"match_key": "architecture", "architecture": "LlamaForCausalLM", "kind": "text-generation"}
    given: dict[str, Any] = {
        "gpus": GPUS,
        "models": MODELS,
        "layers": pl.DataFrame(
            {
                "model": ["llama", "odd", "narrow", "newest"],
                "k_head_dim": [128, 64, 80, 128],
                "v_head_dim": [128, 64, 80, 128],
                "latent_dim": [None] * 4,
            },
            schema_overrides={"latent_dim": pl.Int64},
        ),
        "quants": FORMAT_ROWS.select("quant").unique(maintain_order=True),
        "frameworks": FRAMEWORK_ROWS,
        "kv_dtypes": FORMAT_ROWS.select("framework", "kv_dtype")
        .unique(maintain_order=True)
        .with_columns(
            head_dim_multiple=pl.when(pl.col("kv_dtype") == "q8_0").then(32).cast(pl.Int64),
            citation=pl.lit("c/kv"),
        ),
        "hardware_rules": rules(
            HARDWARE,
            {"framework": "vllm", "backend": "cuda", "vendor": "nvidia", "arch_min": 75},
            {"framework": "vllm", "backend": "cuda", "vendor": "nvidia", "arch_max": 74, "supported": "no"},
            {"framework": "vllm", "backend": "rocm", "arch_glob": "gfx94*"},
            {"framework": "llama.cpp", "backend": "cuda", "vendor": "nvidia"},
            {"framework": "llama.cpp", "backend": "metal", "vendor": "apple"},
            {"framework": "mlx-lm", "backend": "metal", "vendor": "apple"},
        ),
        "format_rules": rules(
            FORMATS,
            {"framework": "llama.cpp", "quant_glob": "gguf/*"},
            {"framework": "vllm", "quant_glob": "native/*"},
            {"framework": "vllm", "quant_glob": "awq/*"},
            {"framework": "vllm", "quant_glob": "fp8/*", "vendor": "nvidia", "arch_min": 89},
            {
                "framework": "vllm",
                "quant_glob": "fp8/*",
                "vendor": "nvidia",
                "arch_min": 75,
                "arch_max": 88,
                "supported": "partial",
            },
            {"framework": "mlx-lm", "quant_glob": "native/*"},
        ),
        "kv_dtype_rules": rules(
            KV_DTYPES,
            {"framework": "llama.cpp", "kv_glob": "*"},
            {"framework": "vllm", "kv_glob": "f16"},
            {"framework": "vllm", "kv_glob": "fp8", "arch_min": 89},
            {"framework": "mlx-lm", "kv_glob": "f16"},
        ),
        "architecture_rules": rules(
            ARCHITECTURES,
            *[llama | {"framework": name} for name in ("vllm", "llama.cpp", "mlx-lm")],
            llama | {"framework": "vllm", "architecture": "NewestForCausalLM", "arch_min": 100},
        ),
        "parallelism_rules": rules(
            PARALLELISM,
            {
                "framework": "vllm",
                "parallel_mode": "tensor",
                "heads_divide": True,
                "kv_heads": "divide_or_replicate",
            },
            {"framework": "llama.cpp", "parallel_mode": "layer"},
            {
                "framework": "vllm",
                "parallel_mode": "tensor",
                "quant_glob": "awq/*",
                "shard_multiple": 128,
                "supported": "no",
            },
        ),
    }
    return SupportTables(**(given | changes))
