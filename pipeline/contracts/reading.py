"""Reads TOML, JSON and CSV files of `sources/` into plain values, with faults that name the file and line."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pipeline.contracts.faults import FaultLog

RecordModel = TypeVar("RecordModel", bound=BaseModel)
_ID_PART = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")


def source_files(root: Path, folder: str, suffix: str) -> list[Path]:
    """All files with `suffix` below `root/folder`, in path order (so that every reading is reproducible)."""
    return sorted(path for path in (root / folder).rglob(f"*{suffix}") if path.is_file())


def path_id(path: Path, folder: Path, log: FaultLog) -> str | None:
    """The id a file's path gives (`models/Qwen/Qwen3-8B.json` -> `Qwen/Qwen3-8B`).

    Refuses symbolic links and names that are not plain letters, digits, `.`, `_`, `+` and `-`.
    """
    relative = path.relative_to(folder).with_name(path.name.removesuffix(path.suffix))
    if path.is_symlink() or not path.resolve().is_relative_to(folder.resolve()):
        log.add(path, "path", relative.as_posix(), "must be a plain file inside its folder")
        return None
    for part in relative.parts:
        if not _ID_PART.match(part) or ".." in part:
            log.add(path, "path", part, "an id has letters, digits, '.', '_', '+' and '-' only and no '..'")
            return None
    return relative.as_posix()


def check_stated_id(path: Path, stated: str | None, from_path: str, log: FaultLog) -> bool:
    """A record may repeat its id; it must then be the one its path gives."""
    if stated is None or stated == from_path:
        return True
    log.add(path, "id", stated, f"must be '{from_path}', the id its path gives, or be left out")
    return False


def read_text(path: Path, log: FaultLog) -> str | None:
    """The file's UTF-8 text, or None with a fault when it is empty or in another encoding."""
    data = path.read_bytes()
    if not data.strip():
        log.add(path, "", None, "file is empty")
        return None
    try:
        return data.decode("utf-8-sig" if path.suffix == ".csv" else "utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        log.add(path, "", None, f"not UTF-8: byte 0x{data[error.start]:02x} cannot be read", line)
        return None


def read_toml(path: Path, log: FaultLog) -> dict[str, Any] | None:
    """The TOML document, or None with a fault that names the line."""
    text = read_text(path, log)
    if text is None:
        return None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        log.add(path, "", None, f"broken TOML: {error}", int(found.group(1)) if found else text.count("\n") + 1)
        return None


def read_json(path: Path, log: FaultLog) -> dict[str, Any] | None:
    """The JSON object, or None with a fault that names the line. NaN, Infinity and repeated keys are refused."""
    text = read_text(path, log)
    if text is None:
        return None
    try:
        document = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        log.add(path, "", None, f"broken JSON: {error.msg}", error.lineno)
        return None
    except ValueError as error:
        log.add(path, "", None, str(error))
        return None
    if not isinstance(document, dict):
        log.add(path, "", None, "must be one JSON object")
        return None
    return document


def read_csv(path: Path, columns: list[str], log: FaultLog) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV file as (line number, non-empty cells by column); header and row lengths must match."""
    text = read_text(path, log)
    if text is None:
        return
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader)
        if header != columns:
            _add_header_faults(path, header, columns, log)
            return
        for cells in reader:
            if len(cells) != len(columns):
                log.add(path, "", None, f"row has {len(cells)} cells, the header has {len(columns)}", reader.line_num)
                continue
            yield reader.line_num, {name: cell for name, cell in zip(columns, cells, strict=True) if cell != ""}
    except csv.Error as error:
        log.add(path, "", None, f"broken CSV: {error}", reader.line_num)


def read_rows(path: Path, model: type[RecordModel], log: FaultLog) -> Iterator[tuple[int, RecordModel]]:
    """Validated rows of a CSV file whose header is the model's fields; faulty rows are logged and left out."""
    for line, cells in read_csv(path, list(model.model_fields), log):
        try:
            yield line, model.model_validate(cells)
        except ValidationError as error:
            log.add_validation(path, error, line)


def validate(path: Path, model: type[RecordModel], document: Mapping[str, Any], log: FaultLog) -> RecordModel | None:
    """The document as a record of the model, or None with a fault for every wrong field."""
    try:
        return model.model_validate(dict(document))
    except ValidationError as error:
        log.add_validation(path, error)
        return None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        repeated = sorted({key for key, _ in pairs if [name for name, _ in pairs].count(key) > 1})
        raise ValueError(f"broken JSON: key {', '.join(repeated)} is given twice")
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"broken JSON: {name} is not a finite number")


def _add_header_faults(path: Path, header: list[str], columns: list[str], log: FaultLog) -> None:
    for name in [name for name in header if name not in columns]:
        log.add(path, name, None, "unknown column", 1)
    for name in [name for name in columns if name not in header]:
        log.add(path, name, None, "column is missing", 1)
    if sorted(header) == sorted(columns):
        log.add(path, "", None, f"columns must be in this order: {', '.join(columns)}", 1)
    elif len(set(header)) != len(header):
        log.add(path, "", None, "a column is given twice", 1)
