"""Two models, two engines and one GPU as small tables, shared by the tests of memory and of the cubes."""

from __future__ import annotations

from functools import cache
from typing import Any

import polars as pl

from estimator import cube, measured
from estimator.calibration import gpu_coefficients
from estimator.kv_cache import engine_windows, kv_cache
from estimator.llama_cpp_compute import COEFFICIENTS as COMPUTE_COEFFICIENTS
from estimator.llama_cpp_compute import compute_shapes, with_coefficients
from estimator.llama_cpp_context import with_llama_cpp_layers
from estimator.recipes import recipes
from estimator.runtime import attention_shapes, runtime
from estimator.stored_weights import stored_weights
from estimator.weights import weights
from tests.estimator.speed_cases import coefficients, gpu_frame

COEFFICIENTS = coefficients()
DENSE, MOE = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B"
GPU = "rtx-4090-24gb"
# the cubes take the parts of a stack as Enums
STACK_IDS = (
    pl.col("engine").cast(pl.Enum(["llama.cpp", "vllm"])),
    pl.col("backend").cast(pl.Enum(["cuda", "rocm"])),
)
CONTEXTS = (4096, 32768, 131072, 262144, 524288)
N_GPUS = (1, 2)

LAYER: dict[str, Any] = {
    "model": DENSE, "group": 0, "n_layers": 32, "mixer": "full", "n_heads": 32, "n_kv_heads": 8,
    "k_head_dim": 128, "v_head_dim": 128, "window_tokens": None, "shares_kv": False, "latent_dim": None,
    "index_head_dim": None, "selected_tokens": None, "kv_compression": None, "f32_state_elements": 0,
    "conv_state_elements": 0,
}  # fmt: skip
_LAYER_SCHEMA = {
    name: pl.String() if name in ("model", "mixer") else pl.Boolean() if name == "shares_kv" else pl.Int64()
    for name in LAYER
}
# as llama.cpp sees the same layer
LLAMA_CPP_LAYER: dict[str, Any] = {
    **LAYER, "prediction_layers": 0, "hidden_size": 4096, "vocab_size": 128_256, "position_rows": 0,
    "ffn": "dense", "kv_latent_dim": None, "qk_rope_dim": None, "q_latent_dim": None, "index_n_heads": None,
    "linear_key_heads": None, "linear_value_heads": None, "linear_key_dim": None, "linear_value_dim": None,
    "conv_kernel": None, "mamba_inner": None, "mamba_state": None, "mamba_heads": None, "mamba_groups": None,
    "ffn_size": 14336, "ffn_matrices": 3, "n_experts_used": None, "expert_ffn_size": None,
    "expert_input_size": None, "shared_ffn_size": None, "per_layer_input_size": None, "uses_window": False,
    "caches_latent": True, "attention_rows": "heads", "rotated_attention": "serial", "extra_rows": 0,
    "output_rows": 0, "last_rows": 8, "score_query_rows": 2, "score_hidden_rows": 2,
}  # fmt: skip
_LLAMA_CPP_SCHEMA = {
    name: pl.String()
    if name in ("model", "mixer", "ffn", "attention_rows", "rotated_attention")
    else pl.Boolean()
    if name in ("shares_kv", "uses_window", "caches_latent")
    else pl.Int64()
    for name in LLAMA_CPP_LAYER
}
MODEL: dict[str, Any] = {
    "model": DENSE, "model_type": "llama", "n_layers": 32, "n_moe_layers": 0, "n_linear_layers": 0,
    "hidden_size": 4096, "n_heads": 32, "n_kv_heads": 8, "attention_kind": "gqa", "is_moe": False,
    "n_experts": None, "n_experts_used": None, "ffn_size": 14336, "ffn_matrices": 3, "expert_ffn_size": None,
    "is_tied": False, "embedding_params": 525_336_576, "head_params": 525_336_576,
    "per_layer_embedding_params": 0, "body_params": 6_979_588_096, "expert_params": 0,
    "vocab_size": 128_256, "active_params": 7_504_924_672, "native_context_tokens": 131_072,
    "model_citation": "llama",
}  # fmt: skip
_MODEL_SCHEMA = {
    name: pl.Boolean()
    if name.startswith("is_")
    else pl.String()
    if name in ("model", "model_type", "attention_kind", "model_citation")
    else pl.Int64()
    for name in MODEL
}
QWEN3_30B: dict[str, Any] = {
    "model": MOE, "model_type": "qwen3_moe", "n_layers": 48, "n_moe_layers": 48, "hidden_size": 2048,
    "n_kv_heads": 4, "is_moe": True, "n_experts": 128, "n_experts_used": 8, "ffn_size": None,
    "expert_ffn_size": 768, "embedding_params": 311_164_928, "head_params": 311_164_928,
    "body_params": 918_763_520, "expert_params": 28_991_029_248, "active_params": 3_041_867_776,
    "native_context_tokens": 40_960, "model_citation": "qwen",
}  # fmt: skip
Q4_K_M: dict[str, Any] = {
    "quant": "gguf/q4_k_m", "quant_class": "q4k", "body_bpw": 4.8, "rest_bpw": None, "embedding_bpw": 4.5,
    "head_bpw": 6.5625, "scope": "all", "compute_dtype": "fp16", "quant_citation": "gguf",
}  # fmt: skip
BF16: dict[str, Any] = {
    **Q4_K_M, "quant": "native/bf16", "quant_class": "16bit", "body_bpw": 16.0, "embedding_bpw": 16.0,
    "head_bpw": 16.0, "compute_dtype": "bf16", "quant_citation": "native",
}  # fmt: skip
AWQ: dict[str, Any] = {
    **BF16, "quant": "awq/int4-g128", "quant_class": "int4", "body_bpw": 4.15, "quant_citation": "awq",
}  # fmt: skip
LLAMA_CPP: dict[str, Any] = {
    "framework": "llama.cpp", "engine": "llama.cpp", "backend": "cuda", "parallel_mode": "layer",
    "memory_utilization": None, "share_of_free": None, "framework_citation": "llama.cpp", "kv_dtype": "f16",
    "k_bytes_per_element": 2.0, "v_bytes_per_element": 2.0, "kv_dtype_citation": "kv",
}  # fmt: skip
VLLM: dict[str, Any] = {
    **LLAMA_CPP, "framework": "vllm", "engine": "vllm", "parallel_mode": "tensor",
    "memory_utilization": 0.92, "framework_citation": "vllm",
}  # fmt: skip
_SHARES = ("memory_utilization", "share_of_free", "k_bytes_per_element", "v_bytes_per_element")
_FORMAT_SCHEMA = {
    name: pl.Float64() if name.endswith("_bpw") or name in _SHARES else pl.String()
    for name in {**LLAMA_CPP, **Q4_K_M}
}
RESERVES = (
    "reserve_base_mib", "reserve_per_prefill_token_mib", "reserve_per_gpu_mib", "reserve_per_graph_batch_mib",
    "reserve_per_prefill_graph_mib", "reserve_latent_graphs_mib", "reserve_floor_mib",
    "reserve_floor_above_gib", "reserve_first_gpu_mib",
)  # fmt: skip
# profile and memory facts of sources/frameworks
PROFILES = pl.LazyFrame(
    {
        "framework": ["llama.cpp", "vllm"],
        "activation_rule": ["llama_cpp_compute_buffer", "vllm_activation"],
        "profile_slots": [4, None],
        "profile_ubatch_tokens": [512, None],
        "profile_flash_attention": [True, True],
        "profile_kv_block_tokens": [None, 16],
        "profile_context_step_tokens": [256, None],
        "overhead_mib": [457.0, 204.8],
        "overhead_metal_mib": [512.0, None],
        "graph_mib": [None, 368.64],
        "profile_batch_tokens": [2048, None],
        "cache_layout": [None, "block_groups"],
        "cache_batches_in_flight": [None, 2],
        "cache_keeps_chunks_whole": [None, True],
        "cache_latent_block_tokens": [None, 128],
        "cache_state_pages": [None, 2],
        "cache_half_state_types": [None, "qwen3_next"],
        "cache_block_flag": ["--parallel", "--block-size"],
        "cache_window_flag": ["--swa-full", "--disable-hybrid-kv-cache-manager"],
        **{name: [None, None] for name in RESERVES},
    },
    schema_overrides=dict.fromkeys(RESERVES, pl.Float64),
)
STEPS = pl.LazyFrame(
    {"framework": ["vllm", "vllm"], "setting": ["prefill_tokens"] * 2, "depends_on": ["memory_gib"] * 2,
     "at_least": [0.0, 70.0], "value": [2048.0, 8192.0]}
)  # fmt: skip


def layer_frame(*changes: dict[str, Any]) -> pl.LazyFrame:
    """Runs of layers of Llama-3.1-8B, each with its changes."""
    return pl.LazyFrame([{**LAYER, **change} for change in changes or ({},)], schema=_LAYER_SCHEMA)


def llama_cpp_frame(*changes: dict[str, Any]) -> pl.LazyFrame:
    """Runs of layers of Llama-3.1-8B as llama.cpp sees them, each with its changes."""
    rows = [{**LLAMA_CPP_LAYER, **change} for change in changes or ({},)]
    return pl.LazyFrame(rows, schema=_LLAMA_CPP_SCHEMA)


def as_llama_cpp_layers(layers: pl.LazyFrame) -> pl.LazyFrame:
    """The same runs of layers as llama.cpp sees them, using their windows."""
    own = layers.collect_schema().names()
    rest = {name: value for name, value in LLAMA_CPP_LAYER.items() if name not in own}
    constants = {name: pl.lit(value, _LLAMA_CPP_SCHEMA[name]) for name, value in rest.items()}
    return layers.with_columns(**constants).with_columns(uses_window=pl.lit(True))


def llama_cpp_shapes(layers: pl.LazyFrame, *coefficients: dict[str, Any]) -> pl.LazyFrame:
    """What the compute buffers need of the layers, with the coefficients of models."""
    known = pl.LazyFrame(
        list(coefficients),
        schema={"model": pl.String(), **dict.fromkeys(COMPUTE_COEFFICIENTS, pl.Float64())},
    )
    return with_coefficients(compute_shapes(with_llama_cpp_layers(layers)), known)


def model_frame(*changes: dict[str, Any]) -> pl.LazyFrame:
    """Llama-3.1-8B, once per set of changes."""
    return pl.LazyFrame([{**MODEL, **change} for change in changes or ({},)], schema=_MODEL_SCHEMA)


def format_frame(*formats: dict[str, Any]) -> pl.LazyFrame:
    """Numbered formats: an engine and a quant each."""
    rows = pl.DataFrame(list(formats), schema=_FORMAT_SCHEMA)
    return rows.with_row_index("format").lazy()


def counts(*n_gpus: int) -> pl.LazyFrame:
    """The table of GPU counts."""
    return pl.LazyFrame({"n_gpus": list(n_gpus)}, schema={"n_gpus": pl.Int64})


def contexts(*tokens: int) -> pl.LazyFrame:
    """The table of contexts."""
    return pl.LazyFrame({"context_tokens": list(tokens)}, schema={"context_tokens": pl.Int64})


def two_models() -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Models and layers of the cube tests: Llama-3.1-8B and Qwen3-30B-A3B."""
    layers = layer_frame({}, {"model": MOE, "n_layers": 48, "n_kv_heads": 4})
    return model_frame({}, QWEN3_30B), layers


def two_models_in_llama_cpp() -> pl.LazyFrame:
    """The layers of both models as llama.cpp sees them."""
    experts = {"model": MOE, "n_layers": 48, "n_kv_heads": 4, "hidden_size": 2048, "vocab_size": 151_936,
               "ffn": "moe", "ffn_size": None, "n_experts_used": 8, "expert_ffn_size": 768}  # fmt: skip
    return llama_cpp_frame({}, experts)


def cube_formats() -> pl.LazyFrame:
    """Three formats: llama.cpp with Q4_K_M, vLLM with bf16 and with AWQ."""
    return format_frame({**LLAMA_CPP, **Q4_K_M}, {**VLLM, **BF16}, {**VLLM, **AWQ})


def cube_settings() -> pl.LazyFrame:
    """Both models in both engines on one and two GPUs."""
    both = pl.LazyFrame({"model": [DENSE, MOE]}).join(
        pl.LazyFrame({"framework": ["llama.cpp", "vllm"]}), how="cross"
    )
    return both.join(counts(*N_GPUS).select(pl.col("n_gpus").cast(pl.Int16)), how="cross").with_columns(
        kv_dtype=pl.lit("f16"), arch_min=pl.lit(None, dtype=pl.Int16)
    )


def no_refusals() -> pl.LazyFrame:
    """No weight format refuses a split."""
    return pl.LazyFrame(
        schema={"framework": pl.String, "quant": pl.String, "model": pl.String, "n_gpus": pl.Int16}
    )


def stored_table(models: pl.LazyFrame, formats: pl.LazyFrame) -> pl.LazyFrame:
    """The table `stored_weights` by density alone: no types of tensors and no layouts are known."""
    quants = formats.unique("quant", keep="first", maintain_order=True).with_columns(
        family=pl.col("quant").str.extract(r"^([^/]+)/"), with_imatrix=pl.lit(None, pl.Boolean)
    )
    nothing = {"model": pl.String, "quant": pl.String}
    roles = dict.fromkeys(
        [
            "output_bytes",
            "embedding_bytes",
            "per_layer_embedding_bytes",
            "dense_bytes",
            "expert_bytes",
            "mtp_bytes",
        ],
        pl.Int64,
    )
    flags = {"with_imatrix": pl.Boolean, "is_before_2026": pl.Boolean, "with_mtp": pl.Boolean}
    return stored_weights(
        models,
        pl.LazyFrame(schema={"model": pl.String, "gguf_has_mtp": pl.Boolean}),
        quants,
        pl.LazyFrame(schema={**nothing, **flags, **roles}),
        pl.LazyFrame(schema={**nothing, "is_mtp": pl.Boolean, "part": pl.String, "bytes": pl.Int64}),
        pl.LazyFrame(schema={"quant": pl.String, "n_params": pl.Int64, "measured_bpw": pl.Float64}),
    )


def placed_weights(models: pl.LazyFrame, formats: pl.LazyFrame, n_gpus: pl.LazyFrame) -> pl.LazyFrame:
    """The table `weights` of formats known by their density, dealt out evenly."""
    unsplit = {"model": pl.String, "quant": pl.String, "n_gpus": pl.Int64, "fullest_bytes": pl.Int64}
    known = models.select("model", "n_layers", "vocab_size", "n_experts", "n_experts_used", "model_citation")
    placed = formats.select(
        "framework",
        "engine",
        "parallel_mode",
        "quant",
        "quant_citation",
        mix_citation=pl.lit(None, pl.String),
    )
    return weights(stored_table(models, formats), known, placed, pl.LazyFrame(schema=unsplit), n_gpus)


def weight_table() -> pl.LazyFrame:
    """The table `weights` of the cube tests."""
    once = cube_formats().unique(["framework", "quant"], keep="first", maintain_order=True)
    return placed_weights(two_models()[0], once, counts(*N_GPUS))


def cache_table() -> pl.LazyFrame:
    """The table `kv_cache` of the cube tests."""
    models, layers = two_models()
    storages = cube_formats().unique(["framework", "kv_dtype"], keep="first", maintain_order=True)
    windows = storages.join(engine_windows(PROFILES, STEPS), on="framework")
    cited = models.select("model", "model_type", "n_layers", "model_citation")
    seen = two_models_in_llama_cpp()
    return kv_cache(cited, layers, seen, windows, contexts(*CONTEXTS), counts(*N_GPUS))


def runtime_table() -> pl.LazyFrame:
    """The table `runtime` of the cube tests."""
    models, layers = two_models()
    engines = cube_formats().select("framework", "backend", "framework_citation").unique(maintain_order=True)
    return runtime(
        models.select("model", "is_moe").join(attention_shapes(layers), on="model"),
        llama_cpp_shapes(two_models_in_llama_cpp()),
        engines.join(PROFILES, on="framework"),
        contexts(*CONTEXTS),
        counts(*N_GPUS),
        STEPS,
        COEFFICIENTS,
    )


@cache
def cube_recipes() -> pl.DataFrame:
    """All recipes of the two models."""
    models, layers = two_models()
    return (
        recipes(
            cube_formats().drop(
                "quant_citation", "body_bpw", "rest_bpw", "embedding_bpw", "head_bpw", "scope"
            ),
            cube_settings(),
            no_refusals(),
            models,
            layers,
            weight_table(),
            cache_table(),
            runtime_table(),
            COEFFICIENTS,
            4,
        )
        .with_columns(STACK_IDS)
        .collect()
    )


ANCHOR: dict[str, Any] = {
    "anchor_id": "a",
    "gpu": GPU,
    "n_gpus": 1,
    "model": DENSE,
    "framework": "llama.cpp",
    "engine": "llama.cpp",
    "backend": "cuda",
    "quant": "gguf/q4_k_m",
    "kv_dtype": "f16",
    "depth_tokens": 100,
    "decode_tok_s": 130.0,
    "state": "accepted",
}


def anchor_frame(*changes: dict[str, Any]) -> pl.LazyFrame:
    """Accepted decode anchors of Llama-3.1-8B on the RTX 4090, each with its changes."""
    rows = pl.LazyFrame(
        [{**ANCHOR, "anchor_id": f"a{at}", **change} for at, change in enumerate(changes)],
        schema={
            name: pl.Float64() if name == "decode_tok_s" else pl.Int32() if name == "depth_tokens" else
            pl.Int16() if name == "n_gpus" else pl.String()
            for name in ANCHOR
        },
    )  # fmt: skip
    return rows


def gpu_facts(**changes: Any) -> dict[str, Any]:
    """What `cube.estimates` reads of the RTX 4090."""
    return {"gpu": GPU, "memory_gib": 24.0, "usable_gib": 23.5, "usable_windows_gib": 22.5,
            "citation": "techpowerup"} | changes  # fmt: skip


def gpu_stacks(anchors: pl.LazyFrame, quantity: str = "decode") -> pl.DataFrame:
    """The stacks of the RTX 4090, resting on the given accepted anchors."""
    gpus = gpu_frame()
    rates = gpu_coefficients(gpus, COEFFICIENTS)
    evidence = measured.evidence(anchors, gpus.lazy()).collect()
    formats = cube_formats().select("engine", "backend").unique().collect()
    stacks = cube.stacks(rates, evidence, COEFFICIENTS, formats, quantity).drop("gpu")
    return stacks.with_columns(STACK_IDS)
