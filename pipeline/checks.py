"""The blocking checks of every table: it conforms to the dictionary and its columns agree with each other."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg
import polars as pl

from estimator.residuals import ABOVE_BOUND
from pipeline.asset_metadata import findings
from pipeline.side_by_side import side_by_side
from pipeline.table_store import NotStaged, TableStore
from warehouse.dictionary import Table, Violation, violations

CONFORMS = "conforms"
_CHECK_STEP = "check_"
_FLOAT32_SUM_TOLERANCE = 1e-5
_BOUND_TOLERANCE = 1e-6  # float32 keeps 7 digits
_ABOVE_BOUND_ALLOWED = 0.005  # more measured cells than this above the bound mean that the bound is wrong
_EXAMPLES = 5


@dataclass(frozen=True)
class Invariant:
    """What must hold in every row: `breach` is true in a row where it does not. Nulls do not breach."""

    name: str
    description: str
    breach: pl.Expr
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Share:
    """What may fail in a small share of the rows: of those that are `counted`, those that `breach`."""

    name: str
    description: str
    counted: pl.Expr
    breach: pl.Expr
    allowed: float
    is_warning: bool = False


def _above(value: str, bound: str) -> pl.Expr:
    return (pl.col(value) > pl.col(bound) * (1 + _BOUND_TOLERANCE)).fill_null(False)


def _sum_differs(parts: Sequence[str], total: str) -> pl.Expr:
    difference = (pl.sum_horizontal(pl.col(parts).cast(pl.Float64)) - pl.col(total)).abs()
    return difference > pl.col(total).abs() * _FLOAT32_SUM_TOLERANCE


def _in_order(low: str, mid: str, high: str) -> Invariant:
    return Invariant(
        f"{mid.removesuffix('_mid')}_interval_is_in_order",
        f"{low} <= {mid} <= {high}",
        _above(low, mid) | _above(mid, high),
        (low, mid, high),
    )


INVARIANTS: dict[str, tuple[Invariant, ...]] = {
    "estimates": (
        Invariant(
            "no_speed_above_the_bound",
            "No estimated speed is above its physical limit.",
            _above("decode_tok_s_high", "decode_tok_s_bound")
            | _above("decode_tok_s_mid", "decode_tok_s_bound")
            | _above("decode_start_tok_s", "decode_start_tok_s_bound"),
            ("decode_tok_s_mid", "decode_tok_s_high", "decode_tok_s_bound", "decode_start_tok_s"),
        ),
        Invariant(
            "memory_adds_up",
            "weights_gib + kv_cache_gib + runtime_gib = total_gib",
            _sum_differs(("weights_gib", "kv_cache_gib", "runtime_gib"), "total_gib"),
            ("weights_gib", "kv_cache_gib", "runtime_gib", "total_gib"),
        ),
        _in_order("decode_tok_s_low", "decode_tok_s_mid", "decode_tok_s_high"),
    ),
    "serving": (_in_order("output_tok_s_low", "output_tok_s_mid", "output_tok_s_high"),),
}

SHARES: dict[str, tuple[Share, ...]] = {
    "anchor_residuals": (
        Share(
            "the_bound_holds",
            "At most 0.5 % of otherwise sound decode measurements are above the physical limit.",
            (pl.col("metric").cast(pl.String) == "decode_tok_s")
            & ((pl.col("state").cast(pl.String) == "accepted") | (pl.col("reason") == ABOVE_BOUND))
            & pl.col("is_above_bound").is_not_null(),
            pl.col("is_above_bound"),
            _ABOVE_BOUND_ALLOWED,
        ),
    ),
    "unresolved_names": (
        Share(
            "names_are_resolved",
            "Names of measured rows that no alias resolves: shown and counted, never a fault.",
            pl.col("rows") > 0,
            pl.lit(True),
            0.0,
            is_warning=True,
        ),
    ),
}


def table_checks(one: Table, gpus: Sequence[str]) -> dg.AssetChecksDefinition:
    """All checks of a table as one step that reads it once: `conforms`, its invariants and its shares.

    A cube is read one gpu's part at a time; parts that are not staged yet are left out, and counted.
    """
    invariants, shares = INVARIANTS.get(one.name, ()), SHARES.get(one.name, ())
    special: list[Invariant | Share] = [*invariants, *shares]
    specs = [
        dg.AssetCheckSpec(
            CONFORMS,
            asset=one.name,
            blocking=True,
            description="Columns, types, nulls, enums, ranges and keys are as the dictionary says.",
        ),
        *(
            dg.AssetCheckSpec(rule.name, asset=one.name, blocking=True, description=rule.description)
            for rule in special
        ),
    ]

    @dg.multi_asset_check(name=f"{_CHECK_STEP}{one.name}", specs=specs)
    def check_table(tables: dg.ResourceParam[TableStore]) -> Iterator[dg.AssetCheckResult]:
        others, unchecked = _referenced(tables, one)
        tallies: list[_Conformity | _Breaches | _Counted] = [
            _Conformity(one, others, unchecked),
            *(_Breaches(rule, one) for rule in invariants),
            *(_Counted(share, one) for share in shares),
        ]
        parts = _parts(tables, one, gpus)
        read = (lambda part: parts[part].collect().lazy()) if one.is_cube else parts.__getitem__
        for part, frame in side_by_side(read, parts):  # a part is read once for all rules
            for tally in tallies:
                tally.see(part, frame)
        for tally in tallies:
            yield tally.result()

    return check_table


def is_check(step: str) -> bool:
    """Whether a step of a run is the checks of a table."""
    return step.startswith(_CHECK_STEP)


def _parts(tables: TableStore, one: Table, gpus: Sequence[str]) -> dict[str, pl.LazyFrame]:
    """The table in the pieces it is checked in: by gpu for a cube, else one piece named after the table."""
    if not one.is_cube:
        return {one.name: tables.scan(one.name)}
    wanted = set(gpus)
    return {
        gpu: tables.scan_partition(one.name, gpu)
        for gpu in tables.staged_partitions(one.name)
        if gpu in wanted
    }


@dataclass
class _Conformity:
    """What the dictionary finds wrong, over all parts of a table."""

    one: Table
    others: Mapping[str, pl.DataFrame]
    unchecked: Sequence[str]
    parts: int = 0
    found: dict[tuple[str, str], Violation] = field(default_factory=dict)

    def see(self, part: str, frame: pl.LazyFrame) -> None:
        """Add what is wrong with one part."""
        self.parts += 1
        broken = violations(frame, self.one.name, {} if self.one.is_cube else self.others)
        if self.one.is_cube:
            known = _known_values(self.one, self.others)
            broken += _unknown_categories(frame, self.one, known) + _wrong_partition(frame, self.one, part)
        for violation in broken:
            key = (violation.column, violation.rule)
            first = self.found.get(key)
            count = violation.count + (first.count if first else 0)
            examples = first.examples if first else violation.examples
            self.found[key] = Violation(self.one.name, violation.column, violation.rule, count, examples)

    def result(self) -> dg.AssetCheckResult:
        """The verdict over all parts seen."""
        found = list(self.found.values())
        return dg.AssetCheckResult(
            check_name=CONFORMS,
            asset_key=self.one.name,
            passed=not found,
            description="; ".join(str(violation) for violation in found[:_EXAMPLES]) or None,
            metadata={
                "parts": self.parts,
                **({"references_not_staged": ", ".join(self.unchecked)} if self.unchecked else {}),
                **({"violations": _violation_table(found)} if found else {}),
            },
        )


@dataclass
class _Breaches:
    """Rows that break an invariant, over all parts of a table."""

    rule: Invariant
    one: Table
    count: int = 0
    examples: list[tuple[object, ...]] = field(default_factory=list)

    @property
    def shown(self) -> list[str]:
        """Columns an example shows."""
        return list(dict.fromkeys([*self.one.key, *self.rule.shown]))

    def see(self, part: str, frame: pl.LazyFrame) -> None:
        """Count one part's rows."""
        broken = frame.select(self.rule.breach.sum()).collect(engine="streaming").item() or 0
        self.count += broken
        if broken and len(self.examples) < _EXAMPLES:
            self.examples += (
                frame.filter(self.rule.breach).select(self.shown).head(_EXAMPLES).collect().rows()
            )

    def result(self) -> dg.AssetCheckResult:
        """The verdict over all parts seen."""
        rule = self.rule
        return dg.AssetCheckResult(
            check_name=rule.name,
            asset_key=self.one.name,
            passed=self.count == 0,
            description=f"{self.count:,} row(s) break it: {rule.description}"
            if self.count
            else rule.description,
            metadata={
                "rows": self.count,
                **({"examples": findings(self.examples, self.shown)} if self.examples else {}),
            },
        )


@dataclass
class _Counted:
    """Rows that a share counts, and those of them that breach it, over all parts of a table."""

    rule: Share
    one: Table
    counted: int = 0
    breached: int = 0

    def _said(self, share: float) -> str:
        if self.rule.is_warning:
            return f"{self.breached} row(s). {self.rule.description}"
        return f"{self.breached} of {self.counted} rows ({100 * share:.2f} %). {self.rule.description}"

    def see(self, part: str, frame: pl.LazyFrame) -> None:
        """Count one part's rows."""
        both = frame.select(
            counted=self.rule.counted.sum(),
            breached=(self.rule.counted & self.rule.breach.fill_null(False)).sum(),
        ).collect(engine="streaming")
        self.counted += both.item(0, "counted") or 0
        self.breached += both.item(0, "breached") or 0

    def result(self) -> dg.AssetCheckResult:
        """The verdict over all parts seen."""
        rule = self.rule
        share = self.breached / self.counted if self.counted else 0.0
        return dg.AssetCheckResult(
            check_name=rule.name,
            asset_key=self.one.name,
            passed=share <= rule.allowed,
            severity=dg.AssetCheckSeverity.WARN if rule.is_warning else dg.AssetCheckSeverity.ERROR,
            description=self._said(share),
            metadata={
                "rows": self.counted,
                "breached": self.breached,
                "share": share,
                "allowed": rule.allowed,
            },
        )


def _referenced(tables: TableStore, one: Table) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """The key columns that foreign keys of `one` lead to, by table, and the tables that are not staged."""
    columns: dict[str, set[str]] = {}
    for column in one.columns:
        if column.references:
            target, name = column.references.split(".")
            columns.setdefault(target, set()).add(name)
    others: dict[str, pl.DataFrame] = {}
    unchecked = []
    for target, names in sorted(columns.items()):
        try:
            others[target] = tables.scan(target).select(sorted(names)).collect()
        except NotStaged:
            unchecked.append(target)
    return others, unchecked


def _known_values(one: Table, others: Mapping[str, pl.DataFrame]) -> dict[str, set[str]]:
    """What each foreign key of `one` may hold."""
    known = {}
    for column in one.columns:
        if column.references:
            target, name = column.references.split(".")
            if target in others:
                known[column.name] = set(others[target].get_column(name).drop_nulls().cast(pl.String))
    return known


def _unknown_categories(frame: pl.LazyFrame, one: Table, known: Mapping[str, set[str]]) -> list[Violation]:
    """Foreign keys of a cube, by the categories of its Enum columns instead of 100 million texts."""
    schema = frame.collect_schema()
    found = []
    for name, values in known.items():
        dtype = schema[name]
        if not isinstance(dtype, pl.Enum):
            found.append(Violation(one.name, name, "must be an Enum of the known ids", 0))
            continue
        unknown = sorted(set(dtype.categories) - values)
        if unknown:
            rule = f"must exist in {one.column(name).references}"
            found.append(Violation(one.name, name, rule, len(unknown), tuple(unknown[:_EXAMPLES])))
    return found


def _wrong_partition(frame: pl.LazyFrame, one: Table, gpu: str) -> list[Violation]:
    wrong = frame.select((pl.col("gpu") != gpu).sum()).collect().item() or 0
    return [Violation(one.name, "gpu", f"must be the partition's gpu {gpu}", wrong)] if wrong else []


def _violation_table(found: Sequence[Violation]) -> dg.MarkdownMetadataValue:
    rows = [
        (violation.column, violation.rule, violation.count, ", ".join(violation.examples))
        for violation in found
    ]
    return findings(rows, ["column", "rule", "rows", "such as"])
