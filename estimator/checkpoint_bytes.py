"""Bytes of the weights in checkpoints that are not GGUF files: 16-bit, FP8, FP4, AWQ, GPTQ, MLX and others.

Two tables of facts meet the tensor census: `checkpoint_layouts` says what a matrix takes (packed numbers,
scales, zero points), `checkpoint_recipes` which tensors get which layout. Pure polars; bytes are whole
numbers.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.tensor_census import elements

LAYER_WORDS: Final = ("all", "more")
RECIPE_CONDITIONS: Final = ("tensor", "part", "storage", "model_type")  # lists of names, parted by spaces
OWN, SECOND = "own", "second"
TIED_OUTPUT: Final = "tied_output"  # stored only where a recipe names it
BITS_PER_BYTE: Final = 8
# Densities such as 3.2 bits have no exact float: what is smaller than this is no further byte.
_FLOAT_NOISE: Final = 1e-6
RECIPE_FLAGS: Final = ("with_experts", "is_mtp")
_CASE: Final = ("tensor", "part", "storage", "model_type", "with_experts", "is_mtp", "is_more")


def checkpoint_tensors(census: pl.LazyFrame) -> pl.LazyFrame:
    """The census as checkpoints cut it: without what only GGUF files hold, with the two halves of MLA's
    up-projection in one matrix of heads x (keys without position + values) rows (`kv_b_proj`), and with a
    `tied_output` where the embedding is the output matrix, for formats that store it a second time.

    Columns in and out: `tensor_census.CENSUS`.
    """
    stored = census.filter(~pl.col("storage").is_in(["generated", "padding"]))
    halves = pl.col("tensor").is_in(["attn_k_b", "attn_v_b"])
    latent = pl.when(pl.col("tensor") == "attn_k_b").then("n_rows").otherwise("row_length")
    shape = ("n_matrices", "n_rows", "row_length")
    columns = stored.collect_schema().names()
    joined = (
        stored.filter(halves)
        .with_columns(rows=elements() // latent, latent=latent, tensor=pl.lit("attn_kv_b"))
        .group_by([name for name in columns if name not in shape])
        .agg(
            n_matrices=pl.lit(1, dtype=pl.Int64),
            n_rows=pl.col("rows").sum(),
            row_length=pl.col("latent").first(),
        )
    )
    untied = stored.filter(pl.col("tensor") == "output").select("model")
    tied = (
        stored.filter(pl.col("tensor") == "token_embd")
        .join(untied, on="model", how="anti")
        .with_columns(tensor=pl.lit(TIED_OUTPUT), part=pl.lit("head"))
    )
    return pl.concat([stored.filter(~halves), joined.select(columns), tied.select(columns)])


def is_more_bits() -> pl.Expr:
    """Whether mlx-lm's mixed recipes give a layer more bits: first and last eighth, every third between.

    Reads layer and of (layers that are loaded). Source: mlx-lm@d78bf58e mlx_lm/convert.py:20-80.
    """
    layer, of = pl.col("layer"), pl.col("of")
    return (layer < of // 8) | (layer >= 7 * of // 8) | ((layer - of // 8) % 3 == 2)


def split_runs(census: pl.LazyFrame) -> pl.LazyFrame:
    """Parts every run into the layers that `is_more_bits` picks and the others: adds is_more, n_layers counts
    the layers of each part. Tensors outside the layers and prediction layers are not picked.
    """
    runs = (
        census.filter(pl.col("group").is_not_null() & ~pl.col("is_mtp"))
        .select("model", "group", pl.col("n_layers").cast(pl.Int64))
        .unique()
        .sort("model", "group")
        .with_columns(first=pl.col("n_layers").cum_sum().over("model") - pl.col("n_layers"),
                      of=pl.col("n_layers").sum().over("model"))
        .with_columns(layer=pl.int_ranges("first", pl.col("first") + pl.col("n_layers")))
        .explode("layer")
        .group_by("model", "group")
        .agg(n_more=is_more_bits().sum().cast(pl.Int64))
    )  # fmt: skip
    counted = census.join(runs, on=["model", "group"], how="left").with_columns(
        n_more=pl.when("is_mtp").then(0).otherwise(pl.col("n_more").fill_null(0)),
        n_layers=pl.col("n_layers").cast(pl.Int64),
    )
    picked = counted.with_columns(is_more=pl.lit(True), n_layers=pl.col("n_more"))
    others = counted.with_columns(is_more=pl.lit(False), n_layers=pl.col("n_layers") - pl.col("n_more"))
    return pl.concat([picked, others]).filter(pl.col("n_layers") > 0).drop("n_more")


def layout_bytes() -> pl.Expr:
    """Bytes of ONE matrix of n_rows rows of row_length numbers in its layout (columns of
    `checkpoint_layouts`): packed numbers of the padded matrix, one scale and zero point per group of a row
    (or tile of block_rows rows), a scale of scales, and what each row, column and matrix has besides.
    """
    rows, row_length = _padded("n_rows", "padded_rows"), _padded("row_length", "padded_row")
    count = rows * row_length
    group = pl.coalesce(pl.col("group_size"), row_length)
    groups = _divided_up(rows, pl.col("block_rows")) * _divided_up(row_length, group)
    outer = _divided_up(count, pl.col("outer_group_size")).fill_null(0) * pl.col("outer_scale_bytes")
    return (
        _whole_bytes(count * pl.col("bits"))
        + groups * pl.col("scale_bytes")
        + _whole_bytes(groups * pl.col("zero_bits"))
        + outer
        + rows * pl.col("row_bytes")
        + row_length * pl.col("column_bytes")
        + pl.col("matrix_bytes")
    )


def _padded(size: str, multiple: str) -> pl.Expr:
    by = pl.col(multiple).fill_null(1)
    return _divided_up(pl.col(size), by) * by


def _divided_up(value: pl.Expr, by: pl.Expr) -> pl.Expr:
    return (value + by - 1) // by


def _whole_bytes(bits: pl.Expr) -> pl.Expr:
    return (bits.cast(pl.Float64) / BITS_PER_BYTE - _FLOAT_NOISE).ceil().cast(pl.Int64)


def tensor_layouts(census: pl.LazyFrame, recipes: pl.LazyFrame, layouts: pl.LazyFrame) -> pl.LazyFrame:
    """The layout of every tensor in every format that has a recipe: census rows x quant, with the columns of
    `checkpoint_layouts` (layout names the one that was chosen).

    `census` has model_type, with_experts and is_more (`split_runs`). The first recipe row whose conditions
    hold decides, unless the tensor's rows are no multiple of what its layout, or the format's own, requires.
    """
    cases = census.select(_CASE).unique().sort(_CASE).with_row_index("case")  # sorted: the same in every use
    rules = recipes.rename({name: f"rule_{name}" for name in (*RECIPE_CONDITIONS, *RECIPE_FLAGS)})
    held = cases.join(rules, how="cross").filter(_holds()).select("case", "recipe", "order", choice="layout")
    formats = layouts.filter(pl.col("recipe").is_not_null()).select(
        "recipe", "second_layout", quant="layout", own_multiple="row_multiple"
    )
    chosen = held.join(formats, on="recipe").with_columns(
        layout=pl.when(pl.col("choice") == OWN)
        .then("quant")
        .when(pl.col("choice") == SECOND)
        .then("second_layout")
        .otherwise("choice")
    )
    stored = chosen.join(layouts.drop("recipe", "second_layout"), on="layout").select(
        "case", "quant", "order", "layout", *_LAYOUT_SIZES, "own_multiple", "row_multiple",
        is_quantized=pl.col("bits") < 16,
    )  # fmt: skip
    shapes = census.join(cases, on=list(_CASE)).select("case", "row_length").unique()
    decided = (
        shapes.join(stored, on="case")
        .filter(_fits())
        .sort("case", "row_length", "quant", "order")
        .unique(subset=["case", "row_length", "quant"], keep="first", maintain_order=True)
        .drop("order", "own_multiple", "row_multiple", "is_quantized")
    )
    return census.join(cases, on=list(_CASE)).join(decided, on=["case", "row_length"]).drop("case")


_LAYOUT_SIZES: Final = ("bits", "group_size", "block_rows", "scale_bytes", "zero_bits", "outer_group_size",
                        "outer_scale_bytes", "row_bytes", "column_bytes", "matrix_bytes",
                        "padded_row", "padded_rows")  # fmt: skip


def _fits() -> pl.Expr:
    """A quantized row is a whole number of its layout's and of the format's own multiple (mlx-lm asks for the
    latter whatever bits a layer gets, mlx_lm/utils.py `wrapped_predicate`).
    """
    rests = [pl.col("row_length") % pl.col(name).fill_null(1) for name in ("row_multiple", "own_multiple")]
    return ~pl.col("is_quantized") | pl.all_horizontal(*[rest == 0 for rest in rests])


def _holds() -> pl.Expr:
    lists = [_listed(pl.col(f"rule_{name}"), pl.col(name)) for name in RECIPE_CONDITIONS]
    flags = [pl.col(f"rule_{name}").eq(pl.col(name)).fill_null(True) for name in RECIPE_FLAGS]
    layers = (pl.col("layers").cast(pl.String) == "all") | pl.col("is_more")
    stored = (pl.col("tensor") != TIED_OUTPUT) | pl.col("rule_tensor").is_not_null()
    return pl.all_horizontal(*lists, *flags, layers, stored)


def _listed(names: pl.Expr, name: pl.Expr) -> pl.Expr:
    """Whether `name` is one of the names parted by spaces; an empty list holds always."""
    padded = pl.concat_str(pl.lit(" "), names, pl.lit(" "))
    inside = padded.str.contains(pl.concat_str(pl.lit(" "), name, pl.lit(" ")), literal=True)
    return names.is_null() | inside.fill_null(False)


def checkpoint_bytes(
    census: pl.LazyFrame, models: pl.LazyFrame, recipes: pl.LazyFrame, layouts: pl.LazyFrame
) -> pl.LazyFrame:
    """Bytes of every model in every format that has a recipe: model, quant, is_mtp, part, bytes.

    `census`: `tensor_census.census`; `models`: model, model_type; `recipes`, `layouts`: the tables
    checkpoint_recipes and checkpoint_layouts. Formats without a recipe do not appear.
    """
    typed = (
        checkpoint_tensors(census)
        .join(models.select("model", pl.col("model_type").cast(pl.String)), on="model")
        .with_columns(with_experts=(pl.col("part") == "experts").any().over("model"))
    )
    laid_out = tensor_layouts(split_runs(typed), recipes, layouts)
    return (
        laid_out.with_columns(bytes=layout_bytes() * pl.col("n_matrices") * pl.col("n_layers"))
        .group_by("model", "quant", "is_mtp", "part")
        .agg(pl.col("bytes").sum())
    )
