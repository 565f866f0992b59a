"""Applies the support rules: what runs on what, why, and who says so.

**Which rule decides.** A rule matches when everything it states holds; what it leaves empty is any. Among
those that match, a framework's own rule goes before one of the engine it wraps, then the one with the longest
exact part of the format name, then the narrowest hardware (named architectures, a closed range, an open
range, a vendor, any), then one that names the backend; of equals the most cautious answer holds. Where no
rule matches the answer is unknown, which is not taken as running; `partial` runs with a drawback and counts.

The rules are the `support_*` tables; here is no fact about any engine, except which vendors a backend is for.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import polars as pl

RUNNABLE = ("yes", "partial")
# Kinds of architecture entries that say a text model of that class is served.
TEXT_KINDS = ("text-generation", "multimodal", "transformers-backend", "plugin", "removed")
# Vendors whose hardware a backend is made for; `cpu` stands for processors of any vendor.
BACKEND_VENDORS = {
    "cuda": ("nvidia",),
    "rocm": ("amd",),
    "vulkan": ("nvidia", "amd", "intel"),
    "metal": ("apple",),
    "sycl": ("intel",),
    "xpu": ("intel",),
    "hpu": ("intel",),
    "cpu": ("cpu",),
    "cann": ("huawei",),
    "tpu": ("google",),
    "musa": ("moore-threads",),
    "neuron": ("aws",),
    "opencl": ("qualcomm",),
}
_CAUTION = {"no": 0, "unknown": 1, "partial": 2, "yes": 3}
_ANSWER = ("supported", "reason", "confidence", "citation", "rule")
_CLASS = ("hardware_vendor", "arch")  # hardware that no rule can tell apart


@dataclass(frozen=True)
class SupportTables:
    """All that `why_not` needs: the tables of things and the five tables of rules, each with its published
    columns.
    """

    gpus: pl.DataFrame
    models: pl.DataFrame
    layers: pl.DataFrame
    quants: pl.DataFrame
    frameworks: pl.DataFrame
    kv_dtypes: pl.DataFrame
    hardware_rules: pl.DataFrame
    format_rules: pl.DataFrame
    kv_dtype_rules: pl.DataFrame
    architecture_rules: pl.DataFrame
    parallelism_rules: pl.DataFrame


def is_runnable(supported: str = "supported") -> pl.Expr:
    """Whether the answer in column `supported` counts as running: yes or partial."""
    return pl.col(supported).cast(pl.String).is_in(RUNNABLE)


def supported_hardware(frameworks: pl.DataFrame, gpus: pl.DataFrame, rules: pl.DataFrame) -> pl.DataFrame:
    """Which framework runs on which GPU through which backend.

    In: frameworks (framework, engine, backends), gpus (gpu, vendor, category, compute_capability), rules
    `support_hardware`. Out: framework, backend, gpu, supported, reason, confidence, citation, rule; one row
    per framework, GPU and backend of the framework that is made for the GPU's vendor, `unknown` where no rule
    speaks. A GPU that none of a framework's backends is made for has one row with an empty backend.
    """
    places = _places(frameworks, gpus, with_empty=True)
    silent = pl.when(pl.col("backend").is_null()).then(pl.lit("no backend for this vendor"))
    decided = _decide(places, _with_patterns(rules), key=["framework", "backend", *_CLASS])
    return (
        places.join(decided, on=["framework", "backend", *_CLASS], how="left", nulls_equal=True)
        .join(_classes(gpus), on=_CLASS, nulls_equal=True)
        .select(
            "framework", "backend", "gpu", pl.col("supported").fill_null("unknown"),
            pl.col("reason").fill_null(silent.otherwise(pl.lit("no rule"))), "confidence", "citation", "rule",
        )
        .sort("framework", "backend", "gpu")
    )  # fmt: skip


def supported_formats(
    frameworks: pl.DataFrame, gpus: pl.DataFrame, quants: pl.DataFrame, rules: pl.DataFrame
) -> pl.DataFrame:
    """Which framework runs which weight format on which GPU.

    In: frameworks and gpus as for `supported_hardware`, quants (quant), rules `support_formats`. Out:
    framework, backend, gpu, quant, supported, arithmetic (native, weight_only or empty), reason, confidence,
    citation, rule. Only what a rule speaks of is there: an absent row is unknown. Whether the framework runs
    on the GPU at all is a question of its own.
    """
    matched = _with_subjects(rules, quants.select("quant").unique(), "quant", "quant_glob")
    return _by_gpu(_places(frameworks, gpus), gpus, matched, "quant", extra=("arithmetic",))


def supported_kv_dtypes(
    frameworks: pl.DataFrame, gpus: pl.DataFrame, kv_dtypes: pl.DataFrame, rules: pl.DataFrame
) -> pl.DataFrame:
    """Which framework stores its cache how on which GPU.

    In: frameworks and gpus as for `supported_hardware`, kv_dtypes (framework, kv_dtype), rules
    `support_kv_dtypes`. Out: framework, backend, gpu, kv_dtype, supported, reason, confidence, citation,
    rule; an absent row is unknown.
    """
    matched = _with_subjects(rules, kv_dtypes.select("kv_dtype").unique(), "kv_dtype", "kv_glob")
    offered = kv_dtypes.select("framework", "kv_dtype")
    return _by_gpu(_places(frameworks, gpus), gpus, matched, "kv_dtype").join(
        offered, on=["framework", "kv_dtype"], how="semi"
    )


def refused_head_sizes(layers: pl.DataFrame, kv_dtypes: pl.DataFrame) -> pl.DataFrame:
    """Cache formats whose blocks do not fit the heads of a model.

    In: layers (model, k_head_dim, v_head_dim, latent_dim), kv_dtypes (framework, kv_dtype, head_dim_multiple,
    citation). Out: model, framework, kv_dtype, supported (always no), reason, citation; nothing for what
    fits. A latent cache is one vector per token, so its width counts instead of the head sizes.
    """
    latent = pl.col("latent_dim").is_not_null()
    widths = pl.concat(
        [
            layers.filter(~latent).select("model", width="k_head_dim"),
            layers.filter(~latent).select("model", width="v_head_dim"),
            layers.filter(latent).select("model", width="latent_dim"),
        ]
    ).drop_nulls()
    blocked = kv_dtypes.filter(pl.col("head_dim_multiple").is_not_null())
    return (
        widths.unique()
        .join(blocked.select("framework", "kv_dtype", "head_dim_multiple", "citation"), how="cross")
        .filter(pl.col("width") % pl.col("head_dim_multiple") != 0)
        .sort("model", "framework", "kv_dtype", "width")
        .unique(["model", "framework", "kv_dtype"], keep="first", maintain_order=True)
        .select(
            "model", "framework", "kv_dtype", supported=pl.lit("no"),
            reason=pl.format("head size {} is not a multiple of {}", "width", "head_dim_multiple"),
            citation="citation",
        )
    )  # fmt: skip


def supported_architectures(
    models: pl.DataFrame, frameworks: pl.DataFrame, rules: pl.DataFrame
) -> pl.DataFrame:
    """Which framework knows the architecture of which model.

    In: models (model, architecture, model_type), frameworks (framework, engine), rules
    `support_architectures`. Out: framework, model, supported, arch_min (compute capability the architecture
    needs there), reason, confidence, citation, rule; an absent row is unknown. A framework's own entries go
    before its engine's; of several own ones (an engine can have two code paths) the most favourable holds.
    """
    speaking = rules.rename({"framework": "rule_framework"}).filter(
        pl.col("kind").cast(pl.String).is_in(TEXT_KINDS)
    )
    by_class = models.select("model", "architecture").join(speaking, on="architecture")
    by_type = models.select("model", "model_type").join(
        speaking.filter(pl.col("match_key").cast(pl.String) == "model_type"), on="model_type"
    )
    columns = ["model", "rule_framework", "supported", "arch_min", "note", "confidence", "citation", "rule"]
    spoken = pl.concat([by_class.select(columns), by_type.select(columns)]).unique(maintain_order=True)
    return (
        _own_and_engine(frameworks)
        .join(spoken, on="rule_framework")
        .with_columns(_favour=_caution())
        .sort("framework", "model", "is_inherited", -pl.col("_favour"), "rule")
        .unique(["framework", "model"], keep="first", maintain_order=True)
        .select(
            "framework", "model", pl.col("supported").cast(pl.String), "arch_min",
            reason=pl.coalesce("note", pl.lit("architecture is listed")),
            confidence=pl.col("confidence").cast(pl.String), citation="citation", rule="rule",
        )
    )  # fmt: skip


def supported_parallelism(
    models: pl.DataFrame, frameworks: pl.DataFrame, n_gpus: Sequence[int], rules: pl.DataFrame
) -> pl.DataFrame:
    """Over how many GPUs a framework splits which model, in the mode that `frameworks` names for it.

    In: models (model, n_layers, n_heads, n_kv_heads, ffn_size, expert_ffn_size, attention_kind), frameworks
    (framework, engine, parallel_mode), rules `support_parallelism` without a weight format. Out: framework,
    model, n_gpus, supported, reason, confidence, citation, rule. One GPU needs no rule. More need one, and
    what it names must divide: an unknown head count is unknown, a model with a latent cache has no KV heads
    to divide.
    """
    split = rules.filter(pl.col("quant_glob").is_null()).with_columns(pl.col("parallel_mode").cast(pl.String))
    own = _own_and_engine(frameworks, "parallel_mode").join(
        split.rename({"framework": "rule_framework"}),
        on=["rule_framework", "parallel_mode"],
        nulls_equal=False,
    )
    rule_of = own.sort("framework", "is_inherited", "rule").unique(
        "framework", keep="first", maintain_order=True
    )
    counts = pl.DataFrame({"n_gpus": list(n_gpus)}, schema={"n_gpus": pl.Int16})
    wanted = models.select(
        "model", "n_layers", "n_heads", "n_kv_heads", "ffn_size", "expert_ffn_size",
        is_latent=pl.col("attention_kind").cast(pl.String).eq("mla").fill_null(False),
    ).join(counts, how="cross")  # fmt: skip
    several = wanted.filter(pl.col("n_gpus") > 1).join(rule_of, how="cross").with_columns(refusal=_refusal())
    split_over = several.select(
        "framework", "model", "n_gpus",
        supported=pl.when(pl.col("refusal").is_null()).then(pl.col("supported").cast(pl.String))
        .when(pl.col("refusal") == _HEADS_UNKNOWN).then(pl.lit("unknown")).otherwise(pl.lit("no")),
        reason=pl.coalesce("refusal", "reason"), confidence=pl.col("confidence").cast(pl.String),
        citation="citation", rule="rule",
    )  # fmt: skip
    alone = wanted.filter(pl.col("n_gpus") == 1).join(frameworks.select("framework"), how="cross").select(
        "framework", "model", "n_gpus", supported=pl.lit("yes"), reason=pl.lit("one GPU"),
        confidence=pl.lit("high"), citation=pl.lit(None, pl.String), rule=pl.lit(None, pl.String),
    )  # fmt: skip
    return pl.concat([alone, split_over]).sort("framework", "model", "n_gpus")


def refused_shards(
    models: pl.DataFrame,
    frameworks: pl.DataFrame,
    quants: pl.DataFrame,
    n_gpus: Sequence[int],
    rules: pl.DataFrame,
) -> pl.DataFrame:
    """Weight formats that cannot be split over so many GPUs although the model can.

    In: models (model, ffn_size, expert_ffn_size), frameworks (framework, engine, parallel_mode), quants
    (quant), rules `support_parallelism` with a weight format. Out: framework, quant, model, n_gpus, supported
    (the rule's answer where its condition is not met: no, or partial), reason, confidence, citation, rule;
    nothing for what can be split.
    """
    formats = _with_subjects(
        rules.filter(pl.col("quant_glob").is_not_null()).with_columns(pl.col("parallel_mode").cast(pl.String)),
        quants.select("quant").unique(), "quant", "quant_glob",
    ).rename({"framework": "rule_framework"})  # fmt: skip
    counts = pl.DataFrame({"n_gpus": list(n_gpus)}, schema={"n_gpus": pl.Int16}).filter(pl.col("n_gpus") > 1)
    part = pl.col("n_gpus").cast(pl.Int32) * pl.col("shard_multiple")
    uneven = pl.any_horizontal(
        (pl.col(width) % part != 0).fill_null(False) for width in ("ffn_size", "expert_ffn_size")
    )
    return (
        _own_and_engine(frameworks, "parallel_mode")
        .join(formats, on=["rule_framework", "parallel_mode"])
        .join(counts, how="cross")
        .join(models.select("model", "ffn_size", "expert_ffn_size"), how="cross")
        .filter(uneven | (pl.col("n_gpus") > pl.col("n_gpus_max")).fill_null(False))
        .sort("framework", "quant", "model", "n_gpus", "is_inherited", "rule")
        .unique(["framework", "quant", "model", "n_gpus"], keep="first", maintain_order=True)
        .select(
            "framework", "quant", "model", "n_gpus", pl.col("supported").cast(pl.String), "reason",
            pl.col("confidence").cast(pl.String), "citation", "rule",
        )
    )  # fmt: skip


def why_not(
    tables: SupportTables,
    *,
    gpu: str,
    model: str,
    quant: str,
    framework: str,
    kv_dtype: str,
    n_gpus: int = 1,
    backend: str | None = None,
) -> pl.DataFrame:
    """What every rule says about one combination: the answer to "why can I not run this".

    Out: backend, question (hardware, format, cache, head_size, architecture, gpus, shards), supported,
    reason, confidence, citation, rule; hardware, format and cache once per backend (only `backend` when
    given), the other questions once with an empty backend. A question without a rule is there as `unknown`.
    Raises ValueError for an id that the tables do not hold, with the nearest ones.
    """
    gpus = _only(tables.gpus, "gpu", gpu)
    models = _only(tables.models, "model", model)
    frameworks = _only(tables.frameworks, "framework", framework)
    quants = _only(tables.quants, "quant", quant)
    offered = tables.kv_dtypes.filter(pl.col("framework") == framework)
    kv_dtypes = _only(offered, "kv_dtype", kv_dtype)
    hardware = supported_hardware(frameworks, gpus, tables.hardware_rules)
    if backend is not None:
        _check_known("backend", backend, hardware.get_column("backend").drop_nulls().to_list())
        hardware = hardware.filter(pl.col("backend") == backend)
    backends = hardware.select("backend")
    layers = tables.layers.filter(pl.col("model") == model)
    asked = [
        _question("hardware", hardware, backends),
        _question("format", supported_formats(frameworks, gpus, quants, tables.format_rules), backends),
        _question("cache", supported_kv_dtypes(frameworks, gpus, kv_dtypes, tables.kv_dtype_rules), backends),
        _question("head_size", refused_head_sizes(layers, kv_dtypes), silent="yes"),
        _question("architecture", _with_capability(
            supported_architectures(models, frameworks, tables.architecture_rules), gpus)),
        _question("gpus", supported_parallelism(models, frameworks, [n_gpus], tables.parallelism_rules)),
        _question("shards", refused_shards(
            models, frameworks, quants, [n_gpus], tables.parallelism_rules), silent="yes"),
    ]  # fmt: skip
    return pl.concat(asked)


def compute_capability_number(column: str = "compute_capability") -> pl.Expr:
    """The number of an NVIDIA compute capability (`sm_89` -> 89), empty for any other architecture."""
    return pl.col(column).str.extract(r"^sm_(\d+)$").cast(pl.Int16)


_HEADS_UNKNOWN = "number of heads not known"


def _refusal() -> pl.Expr:
    """Why a rule of `support_parallelism` does not let a model be split over n_gpus; empty where it does."""
    n = pl.col("n_gpus")
    heads, kv_heads, ffn = pl.col("heads_divide").fill_null(False), pl.col("kv_heads"), pl.col("ffn_divides")
    replicates = kv_heads.cast(pl.String).eq("divide_or_replicate").fill_null(False)
    kv_fits = (
        (pl.col("n_kv_heads") % n == 0) | (replicates & (n % pl.col("n_kv_heads") == 0)) | pl.col("is_latent")
    )
    return (
        pl.when(n > pl.col("n_gpus_max")).then(pl.format("at most {} GPUs", "n_gpus_max"))
        .when(n > pl.col("n_layers")).then(pl.format("only {} layers", "n_layers"))
        .when(heads & pl.col("n_heads").is_null()).then(pl.lit(_HEADS_UNKNOWN))
        .when(heads & (pl.col("n_heads") % n != 0))
        .then(pl.format("{} heads do not divide by {}", "n_heads", n))
        .when(kv_heads.is_not_null() & ~kv_fits)
        .then(pl.format("{} KV heads do not divide by {}", "n_kv_heads", n))
        .when(ffn.fill_null(False) & (pl.col("ffn_size") % n != 0))
        .then(pl.format("width {} does not divide by {}", "ffn_size", n))
        .when(ffn.fill_null(False) & (pl.col("expert_ffn_size") % n != 0))
        .then(pl.format("expert width {} does not divide by {}", "expert_ffn_size", n))
    )  # fmt: skip


def _classes(gpus: pl.DataFrame) -> pl.DataFrame:
    """gpu with what rules look at: hardware_vendor (`cpu` for processors) and arch in lower case."""
    return gpus.select(
        "gpu",
        hardware_vendor=pl.when(pl.col("category").cast(pl.String) == "cpu").then(pl.lit("cpu"))
        .otherwise(pl.col("vendor").cast(pl.String)),
        arch=pl.col("compute_capability").str.to_lowercase(),
    )  # fmt: skip


def _places(frameworks: pl.DataFrame, gpus: pl.DataFrame, with_empty: bool = False) -> pl.DataFrame:
    """framework, engine, backend and class of hardware, wherever the backend is made for the vendor.

    `with_empty` adds a row with an empty backend where a framework has none for a vendor.
    """
    classes = _classes(gpus).select(*_CLASS).unique(maintain_order=True)
    made_for = pl.DataFrame(
        [(backend, vendor) for backend, vendors in BACKEND_VENDORS.items() for vendor in vendors],
        schema={"backend": pl.String, "hardware_vendor": pl.String},
        orient="row",
    )
    backends = (
        frameworks.select("framework", "engine", backend=pl.col("backends").fill_null("").str.split(";"))
        .explode("backend", empty_as_null=True)
        .join(made_for, on="backend")
    )
    places = backends.join(classes, on="hardware_vendor")
    if not with_empty:
        return places
    every = frameworks.select("framework", "engine", backend=pl.lit(None, pl.String)).join(
        classes, how="cross"
    )
    without = every.join(places, on=["framework", *_CLASS], how="anti", nulls_equal=True)
    return pl.concat([places, without.select(places.columns)])


def _own_and_engine(frameworks: pl.DataFrame, *carried: str) -> pl.DataFrame:
    """framework with rule_framework: itself, and the engine it wraps (is_inherited)."""
    own = frameworks.select("framework", *carried, rule_framework="framework", is_inherited=pl.lit(False))
    wrapped = frameworks.filter(pl.col("engine") != pl.col("framework")).select(
        "framework", *carried, rule_framework="engine", is_inherited=pl.lit(True)
    )
    return pl.concat([own, wrapped]).with_columns(pl.col(name).cast(pl.String) for name in carried)


def _glob_pattern(column: str) -> pl.Expr:
    """Regular expression of one or several globs joined by semicolons, in lower case."""
    escaped = pl.col(column).str.to_lowercase().str.replace_all(r"[.+?^${}()|\[\]\\]", r"\$0")
    any_of = escaped.str.replace_all("*", ".*", literal=True).str.replace_all(";", "|", literal=True)
    return pl.concat_str(pl.lit("^(?:"), any_of, pl.lit(")$"))


def _caution() -> pl.Expr:
    return pl.col("supported").cast(pl.String).replace_strict(_CAUTION, return_dtype=pl.Int8)


def _with_patterns(rules: pl.DataFrame) -> pl.DataFrame:
    """The rules with what their matching needs: pattern of architectures, and how specific they are."""
    low, high, glob = pl.col("arch_min"), pl.col("arch_max"), pl.col("arch_glob")
    exact = glob.is_not_null() & ~glob.str.contains("*", literal=True)
    closed = low.is_not_null() & high.is_not_null()
    return rules.with_columns(
        pl.col("backend").cast(pl.String),
        arch_pattern=_glob_pattern("arch_glob"),
        _hardware=pl.when(exact | (closed & (low == high))).then(4)
        .when(glob.is_not_null() | closed).then(3)
        .when(low.is_not_null() | high.is_not_null()).then(2)
        .when(pl.col("vendor").is_not_null()).then(1)
        .otherwise(0),
        _width=pl.when(closed).then(high - low).otherwise(pl.lit(32_767, pl.Int16)),
        _names_backend=pl.col("backend").is_not_null(),
        _caution=_caution(),
    )  # fmt: skip


def _with_subjects(rules: pl.DataFrame, subjects: pl.DataFrame, subject: str, glob: str) -> pl.DataFrame:
    """The rules once per format that their glob names, with the length of the glob's exact part."""
    name = pl.col(subject).str.to_lowercase()
    return (
        rules.with_columns(
            _pattern=_glob_pattern(glob),
            _exact=pl.col(glob).str.replace_all("*", "", literal=True).str.len_chars()
            + pl.when(pl.col(glob).str.contains("*", literal=True)).then(0).otherwise(1_000),
        )
        .join(subjects, how="cross")
        .filter(name.str.contains(pl.col("_pattern")))
        .drop("_pattern")
    )


def _decide(
    places: pl.DataFrame, rules: pl.DataFrame, key: list[str], extra: Collection[str] = ()
) -> pl.DataFrame:
    """For each key the answer of the most specific matching rule; `rules` come from `_with_patterns`."""
    held = rules.rename({"framework": "rule_framework", "backend": "rule_backend"})
    order = [name for name in ("_exact",) if name in rules.columns]
    sm = compute_capability_number("arch")
    return (
        places.join(_own_and_engine(places.select("framework", "engine").unique()), on="framework")
        .join(held, on="rule_framework")
        .filter(
            (pl.col("rule_backend").is_null() | (pl.col("rule_backend") == pl.col("backend")))
            & (pl.col("vendor").is_null() | (pl.col("vendor") == pl.col("hardware_vendor")))
            & (pl.col("arch_min").is_null() | (sm >= pl.col("arch_min")))
            & (pl.col("arch_max").is_null() | (sm <= pl.col("arch_max")))
            & (pl.col("arch_pattern").is_null() | pl.col("arch").str.contains(pl.col("arch_pattern")))
        )
        .sort(
            *key, "is_inherited", *order, "_hardware", "_width", "_names_backend", "_caution", "rule",
            descending=[*[False] * (len(key) + 1), *[True] * len(order), True, False, True, False, False],
        )
        .unique(key, keep="first", maintain_order=True)
        .select(*key, pl.col("supported").cast(pl.String), *(pl.col(name).cast(pl.String) for name in extra),
                "reason", pl.col("confidence").cast(pl.String), "citation", "rule")
    )  # fmt: skip


def _by_gpu(
    places: pl.DataFrame, gpus: pl.DataFrame, rules: pl.DataFrame, subject: str, extra: Collection[str] = ()
) -> pl.DataFrame:
    key = ["framework", "backend", *_CLASS, subject]
    decided = _decide(places, _with_patterns(rules), key, extra)
    return decided.join(_classes(gpus), on=_CLASS, nulls_equal=True).select(
        "framework",
        "backend",
        "gpu",
        subject,
        "supported",
        *extra,
        "reason",
        "confidence",
        "citation",
        "rule",
    )


def _with_capability(architectures: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """The answers with `no` where the GPU's compute capability is below what the architecture needs."""
    sm = gpus.select(sm=compute_capability_number()).item()
    below = pl.lit(sm, pl.Int16).fill_null(0) < pl.col("arch_min")
    return architectures.with_columns(
        supported=pl.when(below).then(pl.lit("no")).otherwise(pl.col("supported")),
        reason=pl.when(below)
        .then(pl.format("needs compute capability {}", "arch_min"))
        .otherwise(pl.col("reason")),
    )


def _question(
    question: str, answers: pl.DataFrame, backends: pl.DataFrame | None = None, silent: str = "unknown"
) -> pl.DataFrame:
    """The answers as rows of `why_not`; `silent` is what no row means."""
    missing = [name for name in ("backend", *_ANSWER) if name not in answers.columns]
    answers = answers.with_columns(pl.lit(None, pl.String).alias(name) for name in missing)
    asked = pl.DataFrame({"backend": [None]}, schema={"backend": pl.String}) if backends is None else backends
    reason = "no rule" if silent == "unknown" else "fits"
    return asked.join(answers.select("backend", *_ANSWER), on="backend", how="left", nulls_equal=True).select(
        "backend",
        question=pl.lit(question),
        supported=pl.col("supported").fill_null(silent),
        reason=pl.when(pl.col("supported").is_null()).then(pl.lit(reason)).otherwise(pl.col("reason")),
        confidence="confidence",
        citation="citation",
        rule="rule",
    )


def _only(table: pl.DataFrame, column: str, value: str) -> pl.DataFrame:
    _check_known(column, value, table.get_column(column).cast(pl.String).to_list())
    return table.filter(pl.col(column).cast(pl.String) == value)


def _check_known(kind: str, value: str, known: list[str]) -> None:
    if value not in known:
        near = difflib.get_close_matches(value, known, n=3, cutoff=0.4)
        hint = f"; nearest: {', '.join(near)}" if near else f"; there are: {', '.join(sorted(known)[:8])}"
        raise ValueError(f"unknown {kind} '{value}'{hint}")
