"""Ids behind the names of measured rows: alias tables and readings joined in, memory sizes and defaults
chosen.

Names as written stay as they are; everything here adds columns. What the rows are worth is in `anchor_state`.
"""

from __future__ import annotations

import polars as pl

RESOLVED_KINDS = ("gpu", "model", "quant", "framework")
READING_KEYS = ("source", "framework_name", "framework_version", "model_name", "quant_name", "gpu_name")
LLAMA_CPP_FAMILY = ("llama.cpp", "ik_llama.cpp", "ollama", "lm-studio", "koboldcpp")
BACKENDS = (
    "cann",
    "cpu",
    "cuda",
    "hpu",
    "metal",
    "musa",
    "neuron",
    "opencl",
    "rocm",
    "sycl",
    "tpu",
    "vulkan",
    "xpu",
)
# Model, kind and size at the start of a catalogue's file name: "gemma2:9b", "qwen2.5:coder-7b".
CATALOGUE_TAG = r"^([^:/]+:(?:[a-z]+-)?[0-9.]+[bm])"
CONFIDENCE = pl.Enum(["low", "medium", "high"])
_NAME_COLUMNS = {"gpu": "gpu_name", "model": "model_name", "quant": "quant_name",
                 "framework": "framework_name",
                 "kv_dtype": "kv_cache_name"}  # fmt: skip


def corrected(anchors: pl.DataFrame, corrections: pl.DataFrame) -> pl.DataFrame:
    """Puts each correction's new value in place of the old one and lists the fields in `corrected_fields` (or
    null).

    `corrections`: anchor_id, field, new_value (text, cast to the field's type).
    """
    fields = corrections.group_by("anchor_id").agg(
        pl.col("field").sort().str.join(";").alias("corrected_fields")
    )
    result = anchors.join(fields, on="anchor_id", how="left", maintain_order="left")
    for field in corrections["field"].unique().sort():
        new = corrections.filter(pl.col("field") == field).select(
            "anchor_id", pl.col("new_value").alias("_new")
        )
        result = (
            result.join(new, on="anchor_id", how="left", maintain_order="left")
            .with_columns(pl.coalesce(pl.col("_new").cast(anchors.schema[field]), pl.col(field)).alias(field))
            .drop("_new")
        )
    return result


def resolved(
    anchors: pl.DataFrame,
    used_in: str,
    aliases: pl.DataFrame,
    readings: pl.DataFrame,
    gpus: pl.DataFrame,
    models: pl.DataFrame,
    quants: pl.DataFrame,
    frameworks: pl.DataFrame,
) -> pl.DataFrame:
    """Adds gpu, memory_stated, model, model_relation, quant, framework, backend, backend_basis, kv_dtype,
    value_kv_dtype, kv_basis, kv_trait and name_confidence (the lowest one that was needed).

    `used_in` is `decode` or `serving`. A name is read in this order: a reading of its publisher, an id
    spelled out, an alias made for this set, an alias made for any. An alias that stands for two ids is no
    answer.
    """
    tables = {"gpu": gpus, "model": models, "quant": quants, "framework": frameworks}
    result = anchors
    for kind, table in tables.items():
        known = table.get_column(kind)
        result = _with_id(result, kind, used_in, aliases, readings, known)
    result = _with_stated_memory(result, gpus)
    result = _with_backend(result, gpus)
    result = _with_kv_dtype(result, used_in, aliases, readings)
    confidences = [pl.col(f"_{kind}_confidence").cast(CONFIDENCE) for kind in RESOLVED_KINDS]
    return result.with_columns(pl.min_horizontal(confidences).cast(pl.String).alias("name_confidence")).drop(
        [f"_{kind}_confidence" for kind in RESOLVED_KINDS]
    )


def unresolved_names(*anchors: pl.DataFrame) -> pl.DataFrame:
    """Names that stand for no known id: kind, name as written (`(not stated)` when absent), rows; most rows
    first.
    """
    return (
        pl.concat(
            frame.filter(pl.col(kind).is_null()).select(
                pl.lit(kind).alias("kind"),
                pl.col(_NAME_COLUMNS[kind]).fill_null("(not stated)").alias("name"),
            )
            for frame in anchors
            for kind in RESOLVED_KINDS
        )
        .group_by("kind", "name")
        .len("rows")
        .sort(["rows", "kind", "name"], descending=[True, False, False])
        .cast({"rows": pl.Int32})
    )


def alias_report(aliases: pl.DataFrame) -> pl.DataFrame:
    """The table `alias_names`: one row per kind, name, place of use and framework, with the id it stands for.

    `id` is null where the name is known to stand for nothing of ours, and where its aliases disagree (`n_ids`
    > 1).
    """
    keys = ["kind", "name", "used_in", "framework_name"]
    n_ids = pl.col("id").drop_nulls().n_unique()
    return (
        aliases.with_columns(
            pl.col("name").fill_null("(not stated)"), pl.col("framework_name").fill_null("any")
        )
        .group_by(keys)
        .agg(
            pl.when(pl.col("id").n_unique() == 1).then(pl.col("id").first()).alias("id"),
            n_ids.cast(pl.Int16).alias("n_ids"),
            pl.col("relation").drop_nulls().first(),
            pl.col("memory_stated").all().alias("memory_stated"),
            pl.col("trait").drop_nulls().first(),
            pl.col("confidence").cast(CONFIDENCE).min().cast(pl.String),
            pl.col("reason").drop_nulls().unique().sort().str.join("; ").alias("reason"),
        )
        .with_columns(
            pl.when(pl.col("kind") == "gpu").then(pl.col("memory_stated")).alias("memory_stated"),
            pl.when(pl.col("reason") != "").then(pl.col("reason")).alias("reason"),
        )
        .sort(keys)
    )


def file_size_names(
    sizes: pl.DataFrame, aliases: pl.DataFrame, models: pl.DataFrame, quants: pl.DataFrame
) -> pl.DataFrame:
    """Adds model, model_relation and quant to published file sizes. The model by repository, else by model
    name, else by the catalogue's tag at the start of the file name (`qwen2.5:7b`); the quant by its label.
    """
    known = models.get_column("model")
    tagged = sizes.with_columns(_tag=pl.col("file_name").str.extract(CATALOGUE_TAG))
    by_repo = with_alias_id(tagged, "model", "hf_repo", "file_sizes", aliases, known)
    others = [
        with_alias_id(tagged, "model", name, "file_sizes", aliases, known) for name in ("model_name", "_tag")
    ]
    found = by_repo
    for other in others:
        found = found.with_columns(
            pl.coalesce("model", other.get_column("model")).alias("model"),
            pl.when(pl.col("model").is_not_null()).then(pl.col("model_relation"))
            .otherwise(other.get_column("model_relation")).alias("model_relation"),
        )  # fmt: skip
    return with_alias_id(
        found, "quant", "quant_name", "file_sizes", aliases, quants.get_column("quant"), "format"
    ).drop("_model_confidence", "_quant_confidence", "_tag")


def memory_log_names(
    logs: pl.DataFrame,
    aliases: pl.DataFrame,
    gpus: pl.DataFrame,
    models: pl.DataFrame,
    quants: pl.DataFrame,
    frameworks: pl.DataFrame,
) -> pl.DataFrame:
    """Adds gpu, memory_stated, model, model_relation, quant and framework to memory logs.

    A model is, in this order: what an alias of the file's name says, which is more than the name inside the
    file (often a family's); what an alias of the name says; the model whose id is spelled like the file or
    the name. A name that an alias knows to be none of ours stays unresolved unless the file says more.
    """
    known = models.get_column("model")
    result = logs
    kinds = [
        ("gpu", gpus, "gpu_name"),
        ("model", models, "model_name"),
        ("quant", quants, "quant_name"),
        ("framework", frameworks, "engine_name"),
    ]
    for kind, table, name in kinds:
        result = with_alias_id(result, kind, name, "memory", aliases, table.get_column(kind), "engine_name")
    by_file = with_alias_id(logs, "model", "file_name", "memory", aliases, known, "engine_name")
    of_file = by_file.select("log_id", _file_id="model", _file_relation="model_relation")
    is_alias = pl.col("model_name").is_in(
        aliases.filter(pl.col("kind") == "model").get_column("name").drop_nulls().unique().implode()
    )
    spelled = pl.coalesce("_by_file", pl.when(~is_alias).then(pl.col("_by_name")))
    in_order = pl.coalesce("_file_id", "model", spelled)
    return (
        _with_spelled(_with_spelled(result, known, "file_name", "_by_file"), known, "model_name", "_by_name")
        .join(of_file, on="log_id", how="left", maintain_order="left")
        .with_columns(
            model=in_order,
            model_relation=pl.when(pl.col("_file_id").is_not_null())
            .then("_file_relation")
            .when(pl.col("model").is_null() & in_order.is_not_null())
            .then(pl.lit("same"))
            .otherwise("model_relation"),
        )
        .select(pl.exclude("^_.*$"))
    )


def spelling(name: pl.Expr) -> pl.Expr:
    """Letters and digits of a model's name as logs and files write it, without publisher, part number, weight
    format, length or way of quantizing.

    "unsloth_Qwen3-30B-A3B-128K-UD-Q4_K_XL-00001-of-00002.gguf" is spelled like "Qwen/Qwen3-30B-A3B".
    """
    bare = (
        name.str.replace(r"^.*/", "")
        .str.to_lowercase()
        .str.replace(r"\.gguf$", "")
        .str.replace(r"-\d{5}-of-\d{5}$", "")
        .str.replace(r"^[a-z0-9]+_", "")
        .str.replace(r"[-_. ](ud-)?(i?q\d|bf16|f16|fp16|f32|mxfp4|tq\d|int4|int8|fp8|awq|gptq).*$", "")
        .str.replace(r"([-_. ](gguf|hf|mix|qat|imat|merged|autoround|\d+k))+$", "")
    )
    return _letters_and_digits(bare)


def _letters_and_digits(name: pl.Expr) -> pl.Expr:
    return name.str.to_lowercase().str.replace_all(r"[^a-z0-9]", "")


def _with_spelled(rows: pl.DataFrame, known: pl.Series, name: str, found: str) -> pl.DataFrame:
    """Adds `found`: the one model whose id is spelled like the column `name`, null where none or several
    are.
    """
    own = _letters_and_digits(pl.col("_id").str.replace(r"^.*/", ""))
    ids = known.to_frame("_id").with_columns(_spelling=own)
    alone = ids.filter(pl.len().over("_spelling") == 1).rename({"_id": found})
    return (
        rows.with_columns(_spelling=spelling(pl.col(name)))
        .join(alone, on="_spelling", how="left", maintain_order="left")
        .drop("_spelling")
    )


def with_alias_id(
    frame: pl.DataFrame,
    kind: str,
    name: str,
    used_in: str,
    aliases: pl.DataFrame,
    known: pl.Series,
    framework: str = "framework_name",
) -> pl.DataFrame:
    """Adds the column `kind` (the id, null when none) and `_<kind>_confidence`; for models model_relation,
    for gpus memory_stated.

    In order: an id spelled out, an alias made for `used_in`, an alias made for any rows; an alias that stands
    for two ids is no answer. Labels of quants belong to the framework that writes them (column `framework`).
    """
    by_framework = kind == "quant"
    for_set = _unique_aliases(aliases.filter(pl.col("used_in") == used_in), kind, by_framework)
    for_any = _unique_aliases(aliases, kind, by_framework)
    on = [name, framework] if by_framework else [name]
    is_id = pl.col(name).is_in(known.implode())
    from_set = pl.col("_set_id").is_not_null()

    def of_alias(column: str) -> pl.Expr:
        return pl.when(from_set).then(pl.col(f"_set_{column}")).otherwise(pl.col(f"_any_{column}"))

    found = pl.coalesce(pl.when(is_id).then(pl.col(name)), "_set_id", "_any_id")
    extra = {
        "gpu": [of_alias("memory_stated").alias("memory_stated")],
        "model": [
            pl.when(is_id).then(pl.lit("same")).otherwise(of_alias("relation")).alias("model_relation")
        ],
    }.get(kind, [])
    return (
        _with_aliases(_with_aliases(frame, for_set, on, "_set"), for_any, on, "_any")
        .with_columns(
            pl.when(found.is_in(known.implode())).then(found).alias(kind),
            pl.when(is_id)
            .then(pl.lit("high"))
            .otherwise(of_alias("confidence"))
            .alias(f"_{kind}_confidence"),
            *extra,
        )
        .select(pl.exclude("^_(set|any)_.*$"))
    )


def _with_id(
    anchors: pl.DataFrame,
    kind: str,
    used_in: str,
    aliases: pl.DataFrame,
    readings: pl.DataFrame,
    known: pl.Series,
) -> pl.DataFrame:
    """As `with_alias_id`, but a reading of the publisher comes first."""
    found = with_alias_id(anchors, kind, _NAME_COLUMNS[kind], used_in, aliases, known)
    result = _with_reading(found, kind, used_in, readings)
    read = pl.col("_reading_id").is_in(known.implode()).fill_null(False)
    return result.with_columns(
        pl.when(read).then(pl.col("_reading_id")).otherwise(pl.col(kind)).alias(kind),
        pl.when(read).then(pl.col("_reading_confidence")).otherwise(pl.col(f"_{kind}_confidence"))
        .alias(f"_{kind}_confidence"),
    ).drop("_reading_id", "_reading_confidence")  # fmt: skip


def _unique_aliases(aliases: pl.DataFrame, kind: str, by_framework: bool) -> pl.DataFrame:
    """One row per name (and framework): the id when all its aliases agree on one, else null."""
    keys = ["name", "framework_name"] if by_framework else ["name"]
    one_id = pl.when(pl.col("id").n_unique() == 1).then(pl.col("id").first())
    return (
        aliases.filter(pl.col("kind") == kind)
        .group_by(keys, maintain_order=True)
        .agg(
            one_id.alias("id"),
            pl.col("confidence").cast(CONFIDENCE).min().cast(pl.String),
            pl.col("relation").first(),
            pl.col("memory_stated").all(ignore_nulls=False).alias("memory_stated"),
        )
    )


def _with_aliases(frame: pl.DataFrame, aliases: pl.DataFrame, on: list[str], prefix: str) -> pl.DataFrame:
    keys = dict(zip(["name", "framework_name"], on, strict=False))
    values = {value: f"{prefix}_{value}" for value in ("id", "confidence", "relation", "memory_stated")}
    return frame.join(
        aliases.rename(keys | values), on=on, how="left", nulls_equal=True, maintain_order="left"
    )


def _with_reading(anchors: pl.DataFrame, kind: str, used_in: str, readings: pl.DataFrame) -> pl.DataFrame:
    """Adds `_reading_id` and `_reading_confidence` from the reading that names most of the row's keys."""
    name = _NAME_COLUMNS[kind]
    mine = readings.filter((pl.col("kind") == kind) & (pl.col("set") == used_in))
    keys = [key for key in READING_KEYS if key != name]
    shapes = mine.select(pl.col(keys).is_not_null()).unique().rows()
    result = anchors.with_columns(pl.col("citation").alias("source"))
    found: list[str] = []
    for at, shape in enumerate(sorted(shapes, key=sum, reverse=True)):
        given = [key for key, is_given in zip(keys, shape, strict=True) if is_given]
        rows = mine.filter(
            [pl.col(key).is_not_null() == is_given for key, is_given in zip(keys, shape, strict=True)]
        )
        rows = rows.select(
            "publisher", pl.col("name").alias(name), *given,
            pl.col("id").alias(f"_found_{at}_id"), pl.col("confidence").alias(f"_found_{at}_confidence"),
        )  # fmt: skip
        on = ["publisher", name, *given]
        first = rows.unique(on, keep="first", maintain_order=True)
        result = result.join(first, on=on, how="left", nulls_equal=True, maintain_order="left")
        found.append(f"_found_{at}")
    none = pl.lit(None, dtype=pl.String)
    return result.with_columns(
        pl.coalesce([f"{one}_id" for one in found] or none).alias("_reading_id"),
        pl.coalesce([f"{one}_confidence" for one in found] or none).alias("_reading_confidence"),
    ).select(pl.exclude("^_found_.*$", "source"))


def _with_stated_memory(anchors: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """Of a chip sold with several memory sizes takes the one the device or host text states, else the
    largest.

    Only chips with unified memory: elsewhere a number of GB beside the device may be the host's memory.
    """
    base = pl.col("gpu").str.replace(r"-\d+gb$", "")
    options = (
        gpus.filter(pl.col("unified_memory"))
        .select(base.alias("_base"), pl.col("gpu").alias("_option"),
                pl.col("gpu").str.extract(r"-(\d+)gb$").cast(pl.Int32).alias("_option_gb"))
    )  # fmt: skip
    largest = options.sort("_option_gb").group_by("_base", maintain_order=True).last().select(
        "_base", pl.col("_option").alias("_largest"))  # fmt: skip
    stated = pl.coalesce(_memory_in(pl.col("gpu_name")), _memory_in(pl.col("host_note"))).alias("_option_gb")
    return (
        anchors.with_columns(base.alias("_base"), stated)
        .join(options, on=["_base", "_option_gb"], how="left", maintain_order="left")
        .join(largest, on="_base", how="left", maintain_order="left")
        .with_columns(
            pl.when(pl.col("_option").is_not_null()).then(pl.col("_option"))
            .when(pl.col("memory_stated").not_().fill_null(False)).then(pl.coalesce("_largest", "gpu"))
            .otherwise(pl.col("gpu")).alias("gpu"),
            (pl.col("_option").is_not_null() | pl.col("memory_stated").fill_null(pl.col("gpu").is_not_null()))
            .alias("memory_stated"),
        )
        .drop("_base", "_option_gb", "_option", "_largest")
    )  # fmt: skip


def _memory_in(text: pl.Expr) -> pl.Expr:
    in_words = text.str.extract(r"\b(\d{1,4}) ?Gi?B\b")
    as_field = text.str.extract(r"\bram=(\d{1,4})\b")
    return pl.coalesce(in_words, as_field).cast(pl.Int32)


def _with_backend(anchors: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """Adds `backend` (the one stated, else the native one of the maker) and `backend_basis` (stated or
    native).
    """
    stated = (
        pl.when(pl.col("backend_name") == "cuda+cpu").then(pl.lit("cuda"))
        .when(pl.col("backend_name").is_in(BACKENDS)).then(pl.col("backend_name"))
    )  # fmt: skip
    kinds = gpus.select(
        "gpu", pl.col("vendor").str.to_lowercase().alias("_vendor"), pl.col("category").alias("_category")
    )
    return (
        anchors.join(kinds, on="gpu", how="left", maintain_order="left")
        .with_columns(stated.alias("_stated"))
        .with_columns(
            pl.coalesce("_stated", native_backend()).alias("backend"),
            pl.when(pl.col("_stated").is_not_null()).then(pl.lit("stated"))
            .when(native_backend().is_not_null()).then(pl.lit("native")).alias("backend_basis"),
        )
        .drop("_stated", "_vendor", "_category")
    )  # fmt: skip


def native_backend() -> pl.Expr:
    """The compute stack of the maker of a GPU (`_vendor`, `_category`, `gpu`, `framework`), null when not
    known.
    """
    vendor = pl.col("_vendor")
    return (
        pl.when(pl.col("_category") == "cpu").then(pl.lit("cpu"))
        .when(vendor == "nvidia").then(pl.lit("cuda"))
        .when(vendor == "amd").then(pl.lit("rocm"))
        .when(vendor == "apple").then(pl.lit("metal"))
        .when(pl.col("gpu").str.starts_with("gaudi")).then(pl.lit("hpu"))
        .when((vendor == "intel") & pl.col("framework").is_in(LLAMA_CPP_FAMILY)).then(pl.lit("sycl"))
        .when(vendor == "intel").then(pl.lit("xpu"))
        .when(vendor == "huawei").then(pl.lit("cann"))
        .when(vendor == "google").then(pl.lit("tpu"))
    )  # fmt: skip


def _with_kv_dtype(
    anchors: pl.DataFrame, used_in: str, aliases: pl.DataFrame, readings: pl.DataFrame
) -> pl.DataFrame:
    """Adds kv_dtype, value_kv_dtype (else null), kv_trait and kv_basis (stated, inherited, engine-default,
    unknown).

    A missing label means the engine's 16-bit default, except under TensorRT-LLM with FP8 or FP4 weights:
    there the checkpoint decides and nothing is assumed.
    """
    labels = aliases.filter(pl.col("kind") == "kv_dtype").select(
        pl.col("name").alias("kv_cache_name"), pl.col("framework_name").alias("framework"),
        pl.col("id").alias("_alias_id"), pl.col("value_id").alias("value_kv_dtype"),
               pl.col("trait").alias("kv_trait"),
    )  # fmt: skip
    unlabelled = pl.col("kv_cache_name").is_null()
    checkpoint_decides = (pl.col("framework") == "tensorrt-llm") & ~pl.col("quant").str.starts_with(
        "native/"
    ).fill_null(False)
    default = unlabelled & pl.col("framework").is_not_null() & ~checkpoint_decides
    return (
        _with_reading(anchors, "kv_dtype", used_in, readings)
        .join(labels, on=["kv_cache_name", "framework"], how="left", maintain_order="left")
        .with_columns(
            pl.coalesce("_alias_id", "_reading_id", pl.when(default).then(pl.lit("f16"))).alias("kv_dtype"),
            pl.when(pl.col("_alias_id").is_not_null()).then(pl.lit("stated"))
            .when(pl.col("_reading_id").is_not_null()).then(pl.lit("inherited"))
            .when(default).then(pl.lit("engine-default"))
            .otherwise(pl.lit("unknown")).alias("kv_basis"),
        )
        .drop("_alias_id", "_reading_id", "_reading_confidence")
    )  # fmt: skip
