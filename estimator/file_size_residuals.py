"""Published sizes of weight files beside the sizes that the rules give. Pure polars.

What a file was made like (importance matrix, rules before or after the change of 2026, prediction layers, a
copy of the output matrix) is read off its note, name, publisher, printed parameters or the other files of its
repository, never off its own size.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Final

import polars as pl

BYTES_PER_GIB: Final = 2**30
DECIMALS: Final = 5
KEY: Final = ("file_id",)
# llama.cpp 0c1e57098 src/llama-quant.cpp, `tensor_requires_imatrix` and quantize.cpp: refused without one.
NEEDS_IMATRIX: Final = ("gguf/iq1_s", "gguf/iq1_m", "gguf/iq2_xxs", "gguf/iq2_xs", "gguf/iq2_s",
                        "gguf/q2_k_s")  # fmt: skip
# Formats that were made for importance matrices: made with one unless the publisher makes none.
MADE_FOR_IMATRIX: Final = r"^gguf/iq"
NAMES_IMATRIX: Final = r"(?i)(^|[-_./])(i1|imat|imatrix)([-_./]|$)"
# A catalogue's default variant: Cortex builds Q4_K_M where nothing else is asked for.
DEFAULT_VARIANT: Final = "default variant"
DEFAULT_QUANT: Final = "gguf/q4_k_m"
# gpt-oss is published in MXFP4: files made from that checkpoint have the experts as they are, whatever their
# label.
MXFP4_TYPE: Final = "gpt_oss"
MXFP4_QUANT: Final = "gguf/mxfp4_bf16"
AS_PUBLISHED: Final = ("same", "quantised-variant")
RULES_CHANGED: Final = date(2026, 1, 1)  # first file sizes by the new rules are of models of February 2026
# The converter has always kept prediction layers of these; of others it has since spring 2026.
ALWAYS_WITH_MTP: Final = ("glm4_moe", "glm_moe_dsa", "hy_v3")
MTP_KEPT_SINCE: Final = date(2026, 4, 20)
RECIPE: Final = ("with_imatrix", "is_before_2026", "with_mtp", "with_output_copy")
FITS_PERCENT: Final = 0.1  # a size that fits so well, or within its rounding, speaks for a variant
TOWER_BYTES_PER_WEIGHT: Final = 2  # mlx-vlm, AWQ and FP8 recipes leave towers in 16 bit
# Printed parameters this far from the model's are those of another model; a rounded label says 1 % at most.
OTHER_MODEL: Final = 0.02
VOTES_FOR_UNUSUAL: Final = 2
PART_OF_A_FILE: Final = 0.2  # a size below this share of the estimate is that of one part of a split file
# Cards of mradermacher print files below 10 GB 0.1 GB larger: all 21 of Qwen1.5-4B-i1 are round(GB + 0.1).
ADDS_TENTH: Final = r"^measured-huggingface/mradermacher-"
ADDS_TENTH_BELOW_GIB: Final = 10 * 10**9 / BYTES_PER_GIB
# Files of this type come from checkpoints that are partly quantized already, not from llama-quantize.
CONVERTED: Final = ("gguf/nvfp4",)
OWN_RECIPE_NAME: Final = (
    r"(?i)([-_/]ud[-_]|qat|autoround|apex|neo[-_]|brainstorm|reap|pruned|otq|mtp[-_.]|otf|hybrid|max[-_]?plus|"
    r"q4_0_[48]_[48]|newbpe|mxfp4[-_]experimental)"
)
DYNAMIC: Final = "gguf/ud-"


READS: Final = (
    "file_sizes", "models", "quantize_facts", "gguf_files", "gguf_headers", "stored_weights",
    "gguf_publishers", "gguf_tokenizers", "unsloth_dynamic",
)  # fmt: skip


def file_size_residuals(tables: Mapping[str, pl.LazyFrame], copies: pl.LazyFrame) -> pl.LazyFrame:
    """The table `file_size_residuals`: one row per file_id, estimated and published bytes and the error.

    `tables`: all of READS by name, closed sets as text; `copies`: what
    `gguf_output_copies.files_with_output_copy` gives.
    Rows without an estimate say why in `unmatched_reason`; rows that are estimated but say nothing about the
    rules say why in `explanation`.
    """
    rows = _with_habits(
        _with_recipe_facts(tables["file_sizes"], tables["models"], tables["quantize_facts"]),
        tables["gguf_publishers"],
    )
    headers = tables["gguf_headers"]
    ggufs = _chosen_variants(_variants(_with_imatrix(rows), tables["gguf_files"], copies, headers))
    others = _by_stored_weights(
        rows.join(ggufs.select("file_id"), on="file_id", how="anti"), tables["stored_weights"], headers
    )
    joined = _with_errors(pl.concat([ggufs, others], how="diagonal_relaxed"))
    judged = _judged(joined, tables["gguf_tokenizers"], tables["unsloth_dynamic"])
    return judged.select(COLUMNS).sort(KEY)


COLUMNS: Final = (
    "file_id", "kind", "hf_repo", "model", "quant", "quant_basis", "size_kind", "basis", *RECIPE,
    "imatrix_basis", "variant_basis", "tensor_bytes", "header_bytes", "metadata_basis", "estimated_bytes",
    "published_bytes", "published_gib", "tolerance_gib", "error_bytes", "error_percent", "is_within_rounding",
    "is_basis", "is_judged", "unmatched_reason", "explanation", "citation",
)  # fmt: skip


def _with_recipe_facts(sizes: pl.LazyFrame, models: pl.LazyFrame, facts: pl.LazyFrame) -> pl.LazyFrame:
    """Adds publisher, quant_basis and what is known of the model; reads a 16-bit label of gpt-oss as
    MXFP4.
    """
    known = models.select(
        "model",
        "model_type",
        "release_date",
        "computed_params",
        "embedding_params",
        "mtp_params",
        tower_bytes=_tower_bytes(),
    ).join(facts.select("model", "is_tied", "gguf_has_mtp"), on="model", how="left")
    assumed = (
        pl.col("quant").is_null()
        & pl.col("quant_name").is_null()
        & pl.col("model").is_not_null()
        & pl.col("note").str.starts_with(DEFAULT_VARIANT).fill_null(False)
    )
    published_in_mxfp4 = (
        (pl.col("model_type") == MXFP4_TYPE)
        & pl.col("quant").is_in(["gguf/f16", "gguf/bf16"])
        & pl.col("model_relation").is_in(AS_PUBLISHED)
    )
    return (
        sizes.join(known, on="model", how="left")
        .with_columns(
            publisher=pl.coalesce(
                pl.col("hf_repo").str.extract(r"^([^/]+)/"),
                pl.when(pl.col("hf_repo").is_null()).then(pl.col("citation").str.extract(r"^measured-([^/]+)/")),
            ),
            quant_basis=pl.when(assumed).then(pl.lit("assumed"))
            .when(pl.col("quant").is_not_null()).then(pl.lit("stated")),
            quant=pl.when(assumed).then(pl.lit(DEFAULT_QUANT))
            .when(published_in_mxfp4).then(pl.lit(MXFP4_QUANT))
            .otherwise("quant"),
            published=pl.coalesce(pl.col("size_bytes").cast(pl.Float64), pl.col("size_gib") * BYTES_PER_GIB),
        )
        .with_columns(
            usual_before=(pl.col("release_date") < RULES_CHANGED).fill_null(True),
            usual_mtp=_usual_mtp(),
            usual_copy=_printed_copy(),
        )
    )  # fmt: skip


def _tower_bytes() -> pl.Expr:
    """Bytes of the parameters that are no part of the language model, in 16 bit: towers that see or hear."""
    beside = pl.col("total_params") - pl.col("computed_params") - pl.col("mtp_params").fill_null(0)
    has_tower = pl.col("params_difference_reason").str.contains("tower").fill_null(False)
    return pl.when(has_tower & (beside > 0)).then(beside * TOWER_BYTES_PER_WEIGHT).otherwise(0)


def _usual_mtp() -> pl.Expr:
    """Whether the file has prediction layers: by the parameters it prints, else by when the converter began
    to keep them.
    """
    more = (pl.col("params_exact") - pl.col("computed_params")).abs()
    printed = (pl.col("params_exact") - pl.col("computed_params") - pl.col("mtp_params")).abs() < more
    kept = pl.col("model_type").is_in(ALWAYS_WITH_MTP) | (pl.col("release_date") >= MTP_KEPT_SINCE)
    has = pl.col("gguf_has_mtp").fill_null(False) & (pl.col("mtp_params") > 0)
    return has & pl.coalesce(printed, kept.fill_null(False))


def _printed_copy() -> pl.Expr:
    """Whether the parameters that a file prints are those of a model with an output matrix of its own."""
    more = pl.col("params_exact") - pl.col("computed_params")
    return pl.col("is_tied").fill_null(False) & (
        (more - pl.col("embedding_params")).abs() < more.abs()
    ).fill_null(False)


def _with_habits(rows: pl.LazyFrame, publishers: pl.LazyFrame) -> pl.LazyFrame:
    """Adds habit_imatrix and habit_recipe: what the first habit of the publisher that holds says of each."""
    habits = publishers.rename({name: f"habit_{name}" for name in ("quants", "with_imatrix", "recipe")})
    held = (
        rows.join(
            habits.select("publisher", "order", "repo_part", "released_from", "habit_quants",
                          "habit_with_imatrix", "habit_recipe", habit_types="model_types"),
            on="publisher",
        )
        .filter(
            _absent_or("repo_part", pl.col("hf_repo").str.contains(pl.col("repo_part"), literal=True)),
            _absent_or("habit_quants", _is_listed("habit_quants", "quant")),
            _absent_or("habit_types", _is_listed("habit_types", "model_type")),
            _absent_or("released_from", pl.col("release_date") >= pl.col("released_from")),
        )
        .sort("file_id", "order")
        .group_by("file_id", maintain_order=True)
        .agg(
            habit_imatrix=pl.col("habit_with_imatrix").drop_nulls().first(),
            habit_recipe=pl.col("habit_recipe").filter(pl.col("habit_recipe") != "plain").first(),
        )
    )  # fmt: skip
    from_mxfp4 = (pl.col("model_type") == MXFP4_TYPE) & pl.col("model_relation").is_in(AS_PUBLISHED)
    return rows.join(held, on="file_id", how="left").with_columns(
        habit_recipe=pl.coalesce("habit_recipe", pl.when(from_mxfp4).then(pl.lit("keeps_mxfp4")))
    )


def _absent_or(condition: str, holds: pl.Expr) -> pl.Expr:
    return pl.col(condition).is_null() | holds.fill_null(False)


def _is_listed(names: str, name: str) -> pl.Expr:
    padded = pl.concat_str(pl.lit(" "), names, pl.lit(" "))
    return padded.str.contains(pl.concat_str(pl.lit(" "), name, pl.lit(" ")), literal=True)


def _with_imatrix(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Adds with_imatrix and imatrix_basis: note, name, publisher, required by the format, or default."""
    note = pl.col("note").str.extract(r"(?i)\b(imatrix|static)\b").str.to_lowercase()
    named = pl.concat_str(["hf_repo", "file_name"], separator="/", ignore_nulls=True).str.contains(
        NAMES_IMATRIX
    ).fill_null(False)  # fmt: skip
    needs = pl.col("quant").is_in(NEEDS_IMATRIX)
    habit = pl.col("habit_imatrix").is_not_null()
    return rows.with_columns(
        imatrix_basis=pl.when(note.is_not_null()).then(pl.lit("note"))
        .when(named).then(pl.lit("name"))
        .when(needs).then(pl.lit("required"))
        .when(habit).then(pl.lit("publisher"))
        .otherwise(pl.lit("default")),
    ).with_columns(
        with_imatrix=pl.when(pl.col("imatrix_basis") == "note").then(note == "imatrix")
        .when(pl.col("imatrix_basis") == "publisher").then("habit_imatrix")
        .when(pl.col("imatrix_basis") == "default").then(pl.col("quant").str.contains(MADE_FOR_IMATRIX))
        .otherwise(True),
    )  # fmt: skip


def _variants(
    rows: pl.LazyFrame, files: pl.LazyFrame, copies: pl.LazyFrame, headers: pl.LazyFrame
) -> pl.LazyFrame:
    """Rows of GGUF files x is_before_2026 x with_mtp x with_output_copy that the model has: tensor_bytes,
    header_bytes, estimated_bytes and whether they fit.
    """
    on = ["model", "quant", "with_imatrix"]
    columns = [*on, "is_before_2026", "with_mtp", "tensor_bytes", "expert_bytes"]
    made = pl.concat(
        [
            files.select(columns).with_columns(with_output_copy=pl.lit(False)),
            copies.select(columns).with_columns(with_output_copy=pl.lit(True)),
        ],
        how="vertical_relaxed",
    )
    kept_experts = made.filter(pl.col("quant") == MXFP4_QUANT).select(
        "model", *RECIPE, kept_expert_bytes="expert_bytes"
    )
    tensors = pl.when((pl.col("habit_recipe") == "keeps_mxfp4").fill_null(False)).then(
        pl.col("tensor_bytes") - pl.col("expert_bytes") + pl.col("kept_expert_bytes").fill_null(0)
    ).otherwise("tensor_bytes")  # fmt: skip
    head = headers.select("model", "with_mtp", "header_bytes", "metadata_basis")
    return (
        rows.filter(pl.col("format") == "gguf")
        .join(made, on=on)
        .join(kept_experts, on=["model", *RECIPE], how="left")
        .join(head, on=["model", "with_mtp"], how="left")
        .with_columns(tensor_bytes=tensors, basis=pl.lit("tensors"))
        .with_columns(estimated_bytes=_whole_bytes())
        .with_columns(fits=_fits())
    )  # fmt: skip


def _whole_bytes() -> pl.Expr:
    header = pl.when(pl.col("size_kind") == "file").then(pl.col("header_bytes").fill_null(0)).otherwise(0)
    return pl.col("tensor_bytes") + header


def _fits() -> pl.Expr:
    error = (pl.col("estimated_bytes") - pl.col("published")).abs()
    rounding = pl.col("tolerance_gib") * BYTES_PER_GIB
    return error <= pl.max_horizontal(rounding, pl.col("published") * FITS_PERCENT / 100)


def _chosen_variants(variants: pl.LazyFrame) -> pl.LazyFrame:
    """One row per file: the variant its parameters or the OTHER files of its repository speak for, else the
    usual one. variant_basis: parameters, repository, usual.

    A variant that is not usual needs VOTES_FOR_UNUSUAL files more than the usual one.
    """
    variant = ["is_before_2026", "with_mtp", "with_output_copy"]
    is_usual = (
        (pl.col("is_before_2026") == pl.col("usual_before"))
        & (pl.col("with_mtp") == pl.col("usual_mtp"))
        & (pl.col("with_output_copy") == pl.col("usual_copy"))
    )
    fits = pl.col("fits").cast(pl.Int32)
    elsewhere = fits.sum().over("hf_repo", "model", *variant) - fits
    counts = pl.col("hf_repo").is_not_null() & pl.col("params_exact").is_null()
    votes = pl.when(counts).then(elsewhere).otherwise(0)
    return (
        variants.with_columns(is_usual=is_usual)
        .with_columns(votes=votes + pl.when("is_usual").then(VOTES_FOR_UNUSUAL - 1).otherwise(0))
        .sort("file_id", "votes", "is_usual", *variant,
              descending=[False, True, True, True, False, False])
        .unique("file_id", keep="first", maintain_order=True)
        .with_columns(
            variant_basis=pl.when(pl.col("params_exact").is_not_null()).then(pl.lit("parameters"))
            .when(pl.col("is_usual")).then(pl.lit("usual"))
            .otherwise(pl.lit("repository"))
        )
    )  # fmt: skip


def _by_stored_weights(rows: pl.LazyFrame, stored: pl.LazyFrame, headers: pl.LazyFrame) -> pl.LazyFrame:
    """The other rows with the bytes of `stored_weights`: checkpoints, and GGUF files without rules.

    Prediction layers are left out of MLX checkpoints (mlx-lm drops them) and of GGUF files. Checkpoints of
    models that see or hear hold their towers.
    """
    head = headers.filter(~pl.col("with_mtp")).select("model", "header_bytes", "metadata_basis")
    drops = pl.col("format").is_in(["mlx-safetensors", "gguf"])
    is_gguf = pl.col("format") == "gguf"
    return (
        rows.join(stored.select("model", "quant", "basis", "file_bytes", "mtp_bytes"),
                  on=["model", "quant"], how="left")
        .join(head, on="model", how="left")
        .with_columns(
            tensor_bytes=pl.col("file_bytes")
            - pl.when(drops).then("mtp_bytes").otherwise(0)
            + pl.when(is_gguf).then(0).otherwise("tower_bytes"),
            header_bytes=pl.when(is_gguf & (pl.col("basis") != "density")).then("header_bytes"),
            metadata_basis=pl.when(is_gguf & (pl.col("basis") != "density")).then("metadata_basis"),
            is_before_2026=pl.lit(None, pl.Boolean),
            basis=pl.col("basis").cast(pl.String),
        )
        .with_columns(estimated_bytes=_whole_bytes())
    )  # fmt: skip


def _with_errors(rows: pl.LazyFrame) -> pl.LazyFrame:
    error = pl.col("estimated_bytes") - pl.col("published")
    rounding = pl.col("tolerance_gib") * BYTES_PER_GIB
    return rows.with_columns(
        published_bytes="size_bytes",
        published_gib="size_gib",
        error_bytes=error.round(0).cast(pl.Int64),
        error_percent=(100 * error / pl.col("published")).round(DECIMALS),
        # a catalogue rounds to its step: half of it is still the same figure
        is_within_rounding=(error.abs() <= rounding * (1 + 1e-9)),
    )


def _judged(rows: pl.LazyFrame, tokenizers: pl.LazyFrame, dynamic: pl.LazyFrame) -> pl.LazyFrame:
    """Adds kind, is_basis, unmatched_reason, explanation and is_judged."""
    bases = (
        tokenizers.select(file_id=pl.col("file_ids").str.split(" "))
        .explode("file_id")
        .unique()
        .with_columns(of_header=pl.lit(True))
    )
    measured = dynamic.select("quant", size_bytes="file_bytes").unique().with_columns(of_density=pl.lit(True))
    near = dynamic.select("quant", file_name="file").unique().with_columns(of_name=pl.lit(True))
    hidden = (
        rows.filter(pl.col("quant").str.starts_with(DYNAMIC))
        .select("model_name", "published", "citation")
        .unique()
        .with_columns(hides_dynamic=pl.lit(True))
    )
    has_estimate = pl.col("estimated_bytes").is_not_null()
    marked = (
        rows.join(bases, on="file_id", how="left")
        .join(measured, on=["quant", "size_bytes"], how="left")
        .join(near, on=["quant", "file_name"], how="left")
        .join(hidden, on=["model_name", "published", "citation"], how="left")
        .with_columns(
            is_basis=pl.any_horizontal(pl.col("of_header", "of_density", "of_name").fill_null(False)),
            kind=_kind(),
            unmatched_reason=pl.when(~has_estimate).then(_unmatched_reason()),
        )
    )
    return marked.with_columns(explanation=pl.when(has_estimate).then(_explanation())).with_columns(
        is_judged=has_estimate & pl.col("explanation").is_null() & ~pl.col("is_basis")
    )


def _kind() -> pl.Expr:
    precision = pl.col("precision").cast(pl.String)
    return pl.concat_str(pl.col("format").cast(pl.String), pl.lit(" "), "size_kind", pl.lit(", "), precision)


def _unmatched_reason() -> pl.Expr:
    return (
        pl.when(pl.col("model").is_null()).then(pl.lit("model_not_known"))
        .when(pl.col("quant").is_null()).then(pl.lit("quantization_not_named"))
        .otherwise(pl.lit("format_not_estimated"))
    )  # fmt: skip


def _is_another_model() -> pl.Expr:
    """Whether the parameters that a row prints are not those of the model its name stands for."""
    scale = pl.when(pl.col("params_label").str.ends_with("M")).then(1e6).otherwise(1e9)
    label = pl.col("params_label").str.extract(r"^([0-9]+\.[0-9]{2}) [BM]$").cast(pl.Float64) * scale
    printed = pl.coalesce(pl.col("params_exact").cast(pl.Float64), label)
    known = pl.col("computed_params")
    possible = [known, known + pl.col("mtp_params").fill_null(0), known + pl.col("embedding_params")]
    far = pl.all_horizontal(*[(printed / one - 1).abs() > OTHER_MODEL for one in possible])
    return far.fill_null(False)


def _explanation() -> pl.Expr:
    """Why a row says nothing about the rules: another recipe was used, or the row itself is not sure."""
    names = pl.concat_str(["hf_repo", "model_name", "file_name"], separator=" ", ignore_nulls=True)
    is_dynamic = pl.col("quant").str.starts_with(DYNAMIC)
    hides = pl.col("hides_dynamic").fill_null(False) & ~is_dynamic
    adds_tenth = pl.col("citation").str.contains(ADDS_TENTH) & (pl.col("size_gib") < ADDS_TENTH_BELOW_GIB)
    is_part = pl.col("published") < PART_OF_A_FILE * pl.col("estimated_bytes")
    return (
        pl.when(pl.col("confidence").cast(pl.String) == "low").then(pl.lit("unverified"))
        .when(_is_another_model()).then(pl.lit("other_parameters"))
        .when(pl.col("note").str.contains("older mix rules").fill_null(False)).then(pl.lit("older_rules"))
        .when(adds_tenth).then(pl.lit("printed_too_large"))
        .when(is_part).then(pl.lit("part_of_a_split_file"))
        .when(hides).then(pl.lit("dynamic_under_a_plain_label"))
        .when(pl.col("basis") == "density").then(pl.lit("density_only"))
        .when((pl.col("habit_recipe") == "own").fill_null(False)).then(pl.lit("own_recipe"))
        .when(pl.col("quant").is_in(CONVERTED)).then(pl.lit("converted_checkpoint"))
        .when(names.str.contains(OWN_RECIPE_NAME)).then(pl.lit("named_recipe"))
        .when(pl.col("quant_basis") == "assumed").then(pl.lit("quantization_assumed"))
    )  # fmt: skip
