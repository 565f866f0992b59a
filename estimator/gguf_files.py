"""Bytes of the tensors of every GGUF file that llama-quantize can make of a model, by role; and how they are
dealt out to GPUs. Pure polars over the tensor census and the types that `estimator.gguf_mix` gives.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.gguf_mix import (
    BF16_BYTES,
    F32_BYTES,
    QUANTIZED,
    all_variants,
    placed_tensors,
    positions,
    tensor_groups,
    tensor_types,
    typed_bytes,
)
from estimator.tensor_census import elements

RECIPE: Final = ("with_imatrix", "is_before_2026", "with_mtp")
BUFFER_STEP_BYTES: Final = 32  # ggml-alloc.c of llama.cpp 0c1e57098, the alignment of its CPU and RPC buffers
ROLES: Final = {
    "output_bytes": ("head",),
    "embedding_bytes": ("embedding",),
    "per_layer_embedding_bytes": ("per_layer_embedding",),
    "expert_bytes": ("experts",),
    "dense_bytes": ("model", "mixer", "ffn", "norms"),
}


def gguf_files(
    census: pl.LazyFrame,
    models: pl.LazyFrame,
    rules: pl.LazyFrame,
    fallbacks: pl.LazyFrame,
    quants: pl.LazyFrame,
) -> pl.LazyFrame:
    """The table `gguf_files`: model x quant x with_imatrix x is_before_2026 x with_mtp -> bytes by role.

    `census`: `tensor_census.census`; `models`: `gguf_mix.quantize_facts`; `rules`, `fallbacks`, `quants`: the
    tables. tensor_bytes is the sum of all tensors, which `llama-bench` prints as model size; mtp_bytes are
    those of prediction layers, in no other role. Files that llama-quantize refuses (a row that no type fits)
    are left out.
    """
    groups = tensor_groups(census, models)
    recipes = rules.select("quant").unique().join(all_variants(), how="cross")
    typed = tensor_types(groups, models, rules, fallbacks, recipes)
    keys = ["model", "quant", *RECIPE]
    matrices = (
        typed_bytes(typed, block_sizes(quants))
        .group_by(keys)
        .agg(
            pl.col("bytes").is_null().any().alias("is_refused"),
            *_by_role(),
            n_fallback_tensors=pl.col("n_tensors").filter("is_fallback").sum(),
        )
    )
    fixed = _kept_bytes(census)
    summed = matrices.join(fixed, on=["model", "with_mtp"], suffix="_kept").filter(~pl.col("is_refused"))
    roles = [*ROLES, "mtp_bytes"]
    return summed.select(
        *keys,
        *[pl.col(name) + pl.col(f"{name}_kept") for name in roles],
        tensor_bytes=pl.sum_horizontal(*roles, *[f"{name}_kept" for name in roles]),
        n_fallback_tensors="n_fallback_tensors",
    ).sort(keys)


def block_sizes(quants: pl.LazyFrame) -> pl.LazyFrame:
    """tensor_type, block_size, block_bytes, row_overhead_bytes of the tensor types among `quants`."""
    known = quants.filter(pl.col("block_size").is_not_null())
    return known.select("block_size", "block_bytes", "row_overhead_bytes", tensor_type="quant")


def _by_role() -> list[pl.Expr]:
    plain = ~pl.col("is_mtp")
    return [
        *(pl.col("bytes").filter(plain & pl.col("part").is_in(parts)).sum().alias(name)
          for name, parts in ROLES.items()),
        pl.col("bytes").filter("is_mtp").sum().alias("mtp_bytes"),
    ]  # fmt: skip


def kept_bytes() -> pl.Expr:
    """Bytes of a tensor that no file type changes: 32-bit vectors and small matrices, 16-bit ones; 0 for
    matrices that are quantized and for what GGUF does not hold.
    """
    storage = pl.col("storage")
    per_number = (
        pl.when(storage == "bf16").then(BF16_BYTES)
        .when(storage.is_in(["f32", "generated"])).then(F32_BYTES)
        .otherwise(0)
    )  # fmt: skip
    return elements() * per_number


def _kept_bytes(census: pl.LazyFrame) -> pl.LazyFrame:
    """model, with_mtp, and the bytes by role of tensors that no file type changes."""
    counted = census.with_columns(bytes=kept_bytes() * pl.col("n_layers").cast(pl.Int64))
    plain = counted.filter(~pl.col("is_mtp")).with_columns(with_mtp=pl.lit(False))
    predicting = counted.filter("is_mtp").select("model").unique()
    whole = counted.join(predicting, on="model", how="semi").with_columns(with_mtp=pl.lit(True))
    return pl.concat([plain, whole]).group_by("model", "with_mtp").agg(_by_role())


def device_bytes(
    census: pl.LazyFrame,
    models: pl.LazyFrame,
    rules: pl.LazyFrame,
    fallbacks: pl.LazyFrame,
    quants: pl.LazyFrame,
    recipes: pl.LazyFrame,
    n_gpus: pl.LazyFrame,
) -> pl.LazyFrame:
    """model, quant, n_gpus, device, bytes: the weights on each of several equal GPUs under llama.cpp's layer
    split.

    `recipes`: model, quant, with_imatrix, is_before_2026, with_mtp; the rest as for `gguf_files`; `n_gpus`:
    one column. Units are the layers of the file, prediction layers among them, and the output; unit i of n
    goes to GPU floor(i x n_gpus / n). Embeddings stay on the host, prediction layers are not loaded, a tied
    embedding is loaded once more as output, and the factors of a rotary embedding on every GPU. Source:
    llama.cpp 0c1e57098 src/llama-model.cpp:1589-1614.
    """
    keys = ["model", "quant", *RECIPE]
    placed = placed_tensors(census)
    whole = pl.concat(
        [
            placed.filter(~pl.col("is_mtp")).with_columns(with_mtp=pl.lit(False)),
            placed.with_columns(with_mtp=pl.lit(True)),
        ]
    )
    wanted = whole.join(recipes.select("model", "with_mtp").unique(), on=["model", "with_mtp"], how="semi")
    units = wanted.group_by("model", "with_mtp").agg(n_units=pl.col("layer").max() + 2)
    loaded = wanted.filter(~pl.col("is_mtp"))
    fixed = (
        loaded.filter(pl.col("part") != "embedding", pl.col("storage") != "generated")
        .with_columns(bytes=_aligned(kept_bytes()), layer=_first_unit())
        .group_by("model", "with_mtp", "layer")
        .agg(pl.col("bytes").sum())
        .join(recipes, on=["model", "with_mtp"])
        .select(*keys, "layer", "bytes")
    )
    counted = positions(wanted.filter(pl.col("storage").is_in(QUANTIZED)), models)
    matrices = typed_bytes(
        tensor_types(
            counted.filter(~pl.col("is_mtp")).with_columns(n_tensors=pl.lit(1, dtype=pl.Int64)),
            models, rules, fallbacks, recipes.select("quant", "with_imatrix", "is_before_2026").unique(),
        ),
        block_sizes(quants),
    )  # fmt: skip
    on_device = (
        matrices.filter(~pl.col("part").is_in(["embedding", "per_layer_embedding"]) | _is_loaded_as_output())
        .group_by(*keys, "layer")
        .agg(pl.col("bytes").sum())
        .join(recipes, on=keys, how="semi")
        .select(*keys, "layer", "bytes")
    )
    copied = loaded.group_by("model", "with_mtp").agg(
        copied_bytes=_aligned(kept_bytes()).filter(pl.col("storage") == "generated").sum()
    )
    unit = pl.col("layer").fill_null(pl.col("n_units") - 1)
    return (
        pl.concat([fixed, on_device])
        .join(units, on=["model", "with_mtp"])
        .join(n_gpus.select(pl.col("n_gpus").cast(pl.Int64)), how="cross")
        .with_columns(device=unit * pl.col("n_gpus") // pl.col("n_units"))
        .join(copied, on=["model", "with_mtp"])
        .group_by("model", "quant", "n_gpus", "device")
        .agg(bytes=pl.col("bytes").sum() + pl.col("copied_bytes").first())
        .sort("model", "quant", "n_gpus", "device")
    )


def _aligned(size: pl.Expr) -> pl.Expr:
    """Bytes that a tensor takes in a buffer: the next one starts at a whole step."""
    return (size + BUFFER_STEP_BYTES - 1) // BUFFER_STEP_BYTES * BUFFER_STEP_BYTES


def fullest_bytes(
    census: pl.LazyFrame,
    facts: pl.LazyFrame,
    rules: pl.LazyFrame,
    fallbacks: pl.LazyFrame,
    quants: pl.LazyFrame,
    wanted: pl.LazyFrame,
    n_gpus: pl.LazyFrame,
) -> pl.LazyFrame:
    """model, quant, n_gpus, fullest_bytes: the weights on the fullest of several equal GPUs, of files as they
    are usually published.

    `facts`: the table quantize_facts; `wanted`: one column of quants; the rest as for `device_bytes`.
    """
    made = quants.select("quant", with_imatrix=pl.col("with_imatrix").fill_null(False))
    recipes = (
        wanted.select("quant").unique()
        .join(rules.select("quant").unique(), on="quant", how="semi")
        .join(made, on="quant")
        .join(facts.select("model", with_mtp="gguf_has_mtp"), how="cross")
        .with_columns(is_before_2026=pl.lit(False))
    )  # fmt: skip
    dealt = device_bytes(census, facts, rules, fallbacks, quants, recipes, n_gpus)
    return dealt.group_by("model", "quant", "n_gpus").agg(fullest_bytes=pl.col("bytes").max())


def _first_unit() -> pl.Expr:
    """The layer a tensor goes with: those that work on the input are with the first, outside of layers."""
    enters = pl.col("tensor").str.starts_with("token_embd_norm") | pl.col("tensor").str.starts_with(
        "per_layer_"
    )
    return pl.when(enters).then(0).otherwise("layer")


def _is_loaded_as_output() -> pl.Expr:
    return (pl.col("tensor") == "token_embd") & (pl.col("category") == "output")
