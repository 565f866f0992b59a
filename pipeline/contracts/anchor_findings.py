"""Reads what was found out about measured rows: `sources/anchors/{corrections,flags,publishers}.csv`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog, unknown_name
from pipeline.contracts.reading import read_csv, read_rows
from pipeline.contracts.strict import StrictRow, Text

FOLDER = "anchors"
CORRECTION_SCHEMA: dict[str, type[pl.DataType]] = {
    "anchor_id": pl.String, "field": pl.String, "old_value": pl.String, "new_value": pl.String,
    "reason": pl.String,
    "citation": pl.String,
}  # fmt: skip
FLAG_SCHEMA: dict[str, type[pl.DataType]] = {
    "anchor_id": pl.String, "flag": pl.String, "effect": pl.String, "detail": pl.String,
    "citation": pl.String,
}  # fmt: skip
PUBLISHER_SCHEMA: dict[str, type[pl.DataType]] = {
    "set": pl.String, "publisher": pl.String, "scope": pl.String, "trust": pl.String, "reason": pl.String,
    "citation": pl.String,
}  # fmt: skip


class Correction(StrictRow):
    """A value that replaces what a row says, and why; without `old_value` the row's cell must be empty."""

    anchor_id: Text
    field: Text
    old_value: Text | None = None
    new_value: Text
    reason: Text
    citation: Text


class AnchorFlag(StrictRow):
    """Something found about one row. `effect`: its state, only its prefill, or only its worth for
    calibration.
    """

    anchor_id: Text
    flag: Literal[
        "above-bandwidth", "above-roofline", "copied-figures", "cpu-run", "derived", "device-name-doubt",
        "die-count-unclear", "dummy-weights", "duplicate", "early-stop", "far-from-study", "flat-scaling",
        "mlperf-outlier", "partial-offload", "pcie-x1-host", "precision-label", "prefix-cache",
        "quant-inferred",
        "slow-prefill", "slow-unexplained", "superlinear-step", "synthetic-acceptance", "throughput-drop",
        "unit-mismatch",
    ]  # fmt: skip
    effect: Literal["state", "prefill", "trust"]
    detail: Text
    citation: Text


class PublisherTrust(StrictRow):
    """A publisher whose rows an audit distrusts for calibration, in all they say or in their prefill only."""

    set: Literal["decode", "serving"]
    publisher: Text
    scope: Literal["all", "prefill"]
    trust: Literal["flagged"]
    reason: Text
    citation: Text


def read_corrections(root: Path, anchors: pl.DataFrame, log: FaultLog, use: CitationUse) -> pl.DataFrame:
    """The corrections that apply to `anchors` (raw rows of one set). A correction of another row is left out
    here.

    Faults: an unknown field, or an `old_value` that is not what the row says (raw is never edited).
    """
    path = root / FOLDER / "corrections.csv"
    rows: list[dict[str, object]] = []
    if path.is_file():
        places = {anchor_id: at for at, anchor_id in enumerate(anchors["anchor_id"])}
        for line, row in read_rows(path, Correction, log):
            use.note(row.citation, path, line)
            at = places.get(row.anchor_id)
            if at is None:
                continue
            if row.field not in anchors.columns:
                log.add(path, "field", row.field, unknown_name(row.field, anchors.columns, "column"), line)
                continue
            said = anchors.item(at, row.field)
            if (None if said is None else str(said)) != row.old_value:
                words = f"{row.field} of the row is {'empty' if said is None else repr(said)}"
                log.add(path, "old_value", row.old_value, f"must be what stands there: {words}", line)
                continue
            rows.append(row.model_dump())
    return pl.DataFrame(rows, schema=CORRECTION_SCHEMA, orient="row")


def read_flags(root: Path, log: FaultLog, use: CitationUse) -> pl.DataFrame:
    """All flags, one per `anchor_id` and `flag`."""
    return _read(root / FOLDER / "flags.csv", AnchorFlag, FLAG_SCHEMA, log, use)


def read_publisher_trust(root: Path, log: FaultLog, use: CitationUse) -> pl.DataFrame:
    """All publishers that an audit distrusts, one per set, publisher and scope."""
    return _read(root / FOLDER / "publishers.csv", PublisherTrust, PUBLISHER_SCHEMA, log, use)


def check_anchor_ids(root: Path, anchor_ids: pl.Series, log: FaultLog) -> None:
    """Every row that flags or corrections name must exist; `anchor_ids` are those of both sets."""
    known = {*anchor_ids, *log.refused}
    for name, columns in (
        ("flags.csv", AnchorFlag.model_fields),
        ("corrections.csv", Correction.model_fields),
    ):
        path = root / FOLDER / name
        if not path.is_file():
            continue
        quiet = FaultLog(root)  # faults of the file itself are logged by its reader
        for line, cells in read_csv(path, list(columns), quiet):
            anchor_id = cells.get("anchor_id", "")
            if anchor_id not in known:
                log.add(path, "anchor_id", anchor_id, unknown_name(anchor_id, known, "anchor"), line)


def _read(
    path: Path,
    model: type[AnchorFlag] | type[PublisherTrust],
    schema: dict[str, type[pl.DataType]],
    log: FaultLog,
    use: CitationUse,
) -> pl.DataFrame:
    rows: list[dict[str, object]] = []
    if path.is_file():
        for line, row in read_rows(path, model, log):
            use.note(row.citation, path, line)
            rows.append(row.model_dump())
    return pl.DataFrame(rows, schema=schema, orient="row")
