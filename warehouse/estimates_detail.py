"""The view `estimates_detail`: each estimate with what follows from it: room left, command, sources.

Only the SQL and the columns it gives, built from the tables a release has: without launch templates there are
no commands, without citations no sources. Running it belongs to `duckdb_file`.
"""

from __future__ import annotations

from collections.abc import Mapping

from warehouse.dictionary import Column, Table

DETAIL_VIEW = "estimates_detail"

_CITED = ("gpu", "model", "quant", "framework")
_NEEDED_OF_GPUS = {"name", "memory_gib", "usable_linux_gib", "usable_windows_gib", "usable_macos_gib"}
_NEEDED_OF_TEMPLATES = {"framework", "case", "template"}
_NEEDED_OF_KV_DTYPES = {"framework", "kv_dtype", "flag", "is_default"}
_NEEDED_OF_CITATIONS = {"citation", "title", "url", "repo", "commit", "path", "package", "derivation"}

_NEEDED_OF_ENGINES = {"framework", "memory_policy", "memory_fraction"}
_USABLE = "coalesce(g.usable_macos_gib, g.usable_linux_gib)"  # an Apple gpu has macOS only
# as the verdicts have it: 32 bits, and an engine with a share of the memory takes no more than that
_SHARE = (
    "(g.memory_gib::FLOAT * CASE WHEN f.memory_policy = 'utilization_of_total' "
    "THEN f.memory_fraction::FLOAT END)"
)
# an engine with a share of what is free leaves the rest of it free beside its cache
_KEPT = (
    "round(e.kv_cache_gib::DOUBLE * coalesce(1.0 / CASE WHEN f.memory_policy = 'fraction_of_free' "
    "THEN f.memory_fraction END - 1.0, 0.0), 3)"
)
_HEADROOM = "round(({0})::DOUBLE - e.total_gib::DOUBLE, 5)"


def _of_engine(usable: str, has_engines: bool) -> str:
    """What an engine may use of what the system leaves; null stays null."""
    narrowed = (
        f"CASE WHEN {usable} IS NOT NULL THEN (least(({usable})::FLOAT, {_SHARE}) - {_KEPT})::FLOAT END"
    )
    return narrowed if has_engines else f"({usable})::FLOAT"


def _gpu_columns(has_engines: bool) -> dict[str, tuple[str, str, str, str]]:
    own, windows = (_of_engine(usable, has_engines) for usable in (_USABLE, "g.usable_windows_gib"))
    return {
        "gpu_name": ("g.name", "str", "", "Name of the accelerator as its maker sells it."),
        "usable_gib": (own, "f32", "GiB", "Memory that the framework may use on the accelerator's own system "
                       "(Linux, or macOS): what the driver leaves, and no more than the framework's share."),
        "headroom_gib": (_HEADROOM.format(own), "f64", "GiB",
                         "usable_gib - total_gib: left free, or, below 0, missing (the verdict is no_fit)."),
        "headroom_windows_gib": (_HEADROOM.format(windows), "f64", "GiB", "The same on Windows."),
    }  # fmt: skip


_COMMAND = """replace(replace(replace(replace(
    CASE WHEN e.n_gpus = 1 THEN t.single_gpu
    ELSE coalesce(t.layer_split, t.tensor_parallel, t.graph_split, t.multi_gpu) END,
    '{repo}', CASE WHEN e.quant LIKE 'native/%' THEN e.model ELSE '{repo}' END),
    '{quant}', upper(split_part(e.quant, '/', 2))),
    '{context_tokens}', e.context_tokens::VARCHAR),
    '{n_gpus}', e.n_gpus::VARCHAR)"""
_COMMAND_WORDS = (
    "Command that starts it; a name left in braces is yours to fill in, such as the repository of the "
    "quantized weights. Empty where no command is known for the framework."
)
# min() makes one row per framework, whatever the table holds: the view must never repeat an estimate
_CASES = ("single_gpu", "layer_split", "tensor_parallel", "graph_split", "multi_gpu")
_BY_CASE = ", ".join(f"min(template) FILTER (\"case\" = '{case}') AS {case}" for case in _CASES)
_TEMPLATES = f"(SELECT framework, {_BY_CASE} FROM launch_templates GROUP BY framework)"
_KV_SETTING = "CASE WHEN NOT k.is_default THEN k.flag END"
_KV_SETTING_WORDS = "Setting to add for this kv_dtype, as the framework writes it; empty for its default."
_SOURCE = (
    "coalesce({0}.url, {0}.repo || '@' || {0}.commit || coalesce(':' || {0}.path, ''), {0}.package, "
    "{0}.derivation)"
)


def detail_query(tables: Mapping[str, Table]) -> str:
    """The SELECT of the view. `tables` are those the release has; `estimates` must be among them."""
    selected = ["e.*", *(f"{expression} AS {name}" for name, (expression, *_) in _added(tables).items())]
    joins = []
    if _has(tables, "gpus", _NEEDED_OF_GPUS):
        joins.append("LEFT JOIN gpus g ON g.gpu = e.gpu")
        if _has(tables, "frameworks", _NEEDED_OF_ENGINES):
            joins.append("LEFT JOIN frameworks f ON f.framework = e.framework")
    if _has(tables, "launch_templates", _NEEDED_OF_TEMPLATES):
        joins.append(f"LEFT JOIN {_TEMPLATES} t ON t.framework = e.framework")
    if _has(tables, "kv_dtypes", _NEEDED_OF_KV_DTYPES):
        joins.append("LEFT JOIN kv_dtypes k ON k.framework = e.framework AND k.kv_dtype = e.kv_dtype")
    if _has(tables, "citations", _NEEDED_OF_CITATIONS):
        joins += [f"LEFT JOIN citations {one}_c ON {one}_c.citation = e.{one}_citation" for one in _CITED]
    return f"SELECT {', '.join(selected)} FROM estimates e {' '.join(joins)}"


def detail_columns(tables: Mapping[str, Table]) -> tuple[Column, ...]:
    """The view's columns: those of `estimates` and the added ones."""
    added = (
        Column(name, dtype, description, unit=unit, nullable=True)
        for name, (_, dtype, unit, description) in _added(tables).items()
    )
    return (*tables["estimates"].columns, *added)


def _added(tables: Mapping[str, Table]) -> dict[str, tuple[str, str, str, str]]:
    """Name -> (expression, dtype, unit, description) of each column the view adds."""
    added: dict[str, tuple[str, str, str, str]] = {}
    if _has(tables, "gpus", _NEEDED_OF_GPUS):
        added |= _gpu_columns(_has(tables, "frameworks", _NEEDED_OF_ENGINES))
    if _has(tables, "launch_templates", _NEEDED_OF_TEMPLATES):
        added["launch_command"] = (_COMMAND, "str", "", _COMMAND_WORDS)
    if _has(tables, "kv_dtypes", _NEEDED_OF_KV_DTYPES):
        added["kv_setting"] = (_KV_SETTING, "str", "", _KV_SETTING_WORDS)
    if _has(tables, "citations", _NEEDED_OF_CITATIONS):
        for one in _CITED:
            words = f"Where {one}_citation was read: address, repository and file, package, or arithmetic."
            added[f"{one}_source"] = (_SOURCE.format(f"{one}_c"), "str", "", words)
    return added


def _has(tables: Mapping[str, Table], name: str, columns: set[str]) -> bool:
    return name in tables and columns <= set(tables[name].column_names)
