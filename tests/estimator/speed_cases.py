"""One GPU, one model and the real coefficients, shared by the tests of the speed formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.coefficients import read_coefficients
from pipeline.contracts.faults import FaultLog

SOURCES = Path(__file__).parents[2] / "sources"

RTX_4090: dict[str, Any] = {
    "gpu": "rtx-4090-24gb", "vendor": "nvidia", "category": "consumer", "family": "nv-ada",
    "memory_gib": 24.0, "bandwidth_gb_s": 1008.0, "bandwidth_arithmetic_gb_s": 1008.0, "compute_units": 128,
    "boost_clock_mhz": 2520.0, "link_gb_s": None, "pcie_gen": 4, "pcie_lanes": 16, "fp16_dense_tflops": 165.2,
    "fp16_fp16acc_dense_tflops": 330.3, "bf16_dense_tflops": 165.2, "fp8_dense_tflops": 330.3,
    "int8_dense_tops": 660.6, "fp4_dense_tflops": None, "fp32_tflops": 82.58,
}  # fmt: skip
# Llama-3-8B: 32 layers, 8 KV heads of 128; 8.03 B parameters of which 0.525 B embedding are not read.
LLAMA_8B_Q4: dict[str, Any] = {
    "engine": "llama.cpp", "backend": "cuda", "quant_class": "q4k", "n_gpus": 1, "parallel_mode": "none",
    "n_layers": 32, "n_moe_layers": 0, "n_linear_layers": 0, "hidden_size": 4096,
    "dense_read_bytes": 4.6175e9, "expert_read_bytes": 0.0, "kv_read_bytes": 4096 * 131072.0,
    "kv_read_start_bytes": 0.0, "kv_replication": 1.0, "active_params": 7.505e9, "expert_active_params": 0.0,
    "weights_bytes": 4.6175e9, "context_tokens": 4096,
    "attention_prefill_flops": 2 * 32 * 4096.0**3, "attention_decode_flops": 4 * 32 * 4096.0**2,
}  # fmt: skip
_GPU_SCHEMA = {
    name: pl.String() if isinstance(value, str) else pl.Float64() for name, value in RTX_4090.items()
}


def coefficients() -> pl.DataFrame:
    """The coefficients of the repository; fails when their files have a fault."""
    log = FaultLog(SOURCES)
    table = read_coefficients(SOURCES, log, CitationUse())
    log.raise_if_any()
    return table


def gpu_frame(**changes: Any) -> pl.DataFrame:
    """The RTX 4090 as one row of `gpus`, with changes."""
    return pl.DataFrame([{**RTX_4090, **changes}], schema=_GPU_SCHEMA)


def recipe_frame(*changes: dict[str, Any]) -> pl.LazyFrame:
    """The 8B recipe, once per set of changes (once unchanged when none is given)."""
    return pl.LazyFrame([{**LLAMA_8B_Q4, **change} for change in changes or ({},)])
