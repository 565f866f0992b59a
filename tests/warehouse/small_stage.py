"""A tiny stage: two gpus' estimates and the small tables around them, all made up."""

from __future__ import annotations

import datetime
from pathlib import Path

import polars as pl

from warehouse import dictionary, parquet

VERSION = "2026.12.0"
GPUS = ("alpha-24gb", "beta-8gb")
MODELS = ("maker/large", "maker/small")
IDS = {
    "gpus.gpu": list(GPUS),
    "models.model": list(MODELS),
    "frameworks.framework": ["llama.cpp"],
    "quants.quant": ["gguf/q4_k_m", "gguf/q8_0"],
    "kv_dtypes.kv_dtype": ["f16"],
    "citations.citation": ["made-up/sheet"],
}


def citations() -> pl.DataFrame:
    """One citation, by its address."""
    row = dict.fromkeys(dictionary.table("citations").column_names) | {
        "citation": "made-up/sheet",
        "title": "Sheet",
        "publisher": "Nobody",
        "url": "https://example.org/sheet",
        "read_on": datetime.date(2026, 11, 30),
        "access": "read",
    }
    return dictionary.conform(pl.DataFrame([row], infer_schema_length=None), "citations")


def estimates(gpu: str) -> pl.DataFrame:
    """Four rows of one gpu in key order; the large model does not fit."""
    fits = pl.col("model") == "maker/small"
    speeds = [
        column.name
        for column in dictionary.table("estimates").columns
        if column.unit in ("tok/s", "ms") and not column.name.startswith("measured_")
    ]
    frame = (
        pl.DataFrame({"model": MODELS})
        .join(pl.DataFrame({"quant": IDS["quants.quant"]}), how="cross", maintain_order="left_right")
        .with_columns(
            pl.lit(gpu).alias("gpu"),
            pl.lit(1).alias("n_gpus"),
            pl.lit("llama.cpp").alias("framework"),
            pl.lit("cuda").alias("backend"),
            pl.lit("f16").alias("kv_dtype"),
            pl.lit(8192).alias("context_tokens"),
            pl.lit(4.78).alias("weights_gib"),
            pl.lit(1.0).alias("kv_cache_gib"),
            pl.lit(0.5).alias("runtime_gib"),
            pl.lit(6.28).alias("total_gib"),
            pl.when(fits).then(pl.lit("tight")).otherwise(pl.lit("no_fit")).alias("verdict"),
            pl.when(~fits).then(pl.lit("n_gpus")).alias("fits_with"),
            pl.lit(None).alias("fits_with_kv_dtype"),
            pl.lit(None).alias("fits_with_quant"),
            pl.when(~fits).then(2).alias("fits_with_n_gpus"),
            pl.lit(None).alias("verdict_windows"),
            pl.lit("native").alias("context_state"),
            pl.lit("family").alias("basis"),
            pl.lit(None).alias("measured_start_tok_s"),
            pl.lit(None).alias("measured_full_tok_s"),
            pl.lit(0).alias("n_anchors"),
            *(pl.when(fits).then(47.8).alias(name) for name in speeds),
            *(
                pl.lit("made-up/sheet").alias(f"{one}_citation")
                for one in ("gpu", "model", "quant", "framework")
            ),
        )
    )
    return dictionary.conform(frame, "estimates", IDS)


def best_fit() -> pl.DataFrame:
    """Four rows with values of many sizes."""
    frame = pl.DataFrame(
        {
            "gpu": ["alpha-24gb", "alpha-24gb", "beta-8gb", "beta-8gb"],
            "n_gpus": [1, 2, 1, 1],
            "model": ["maker/small", "maker/large", "maker/large", "maker/small"],
            "framework": ["llama.cpp"] * 4,
            "context_tokens": [4096, 131072, 4096, 8192],
            "backend": ["cuda", "cuda", "vulkan", "cuda"],
            "quant": ["gguf/q8_0", "gguf/q4_k_m", "gguf/q4_k_m", "gguf/q8_0"],
            "kv_dtype": ["f16"] * 4,
            "verdict": ["comfortable", "tight", "tight", "tight"],
            "total_gib": [6.28, 44.1, 7.9, 7.53],
            "decode_tok_s_mid": [47.8, 0.00123, 1230.0, 12345.0],
            "decode_start_tok_s": [51.2, 0.05, 1420.0, 99999.0],
            "basis": ["measured", "engine", "family", "spec_only"],
        }
    )
    return dictionary.conform(frame, "best_fit", IDS)


def write_stage(folder: Path, version: str = VERSION) -> Path:
    """The made-up tables as Parquet files in `folder`."""
    parquet.write_table(citations(), "citations", folder, version)
    parquet.write_table(best_fit(), "best_fit", folder, version)
    for gpu in GPUS:
        parquet.write_cube_part(estimates(gpu), "estimates", gpu, folder, version)
    return folder
