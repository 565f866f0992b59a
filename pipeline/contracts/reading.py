"""Reads TOML, JSON and CSV files of `sources/` into plain values, with faults that name the file and line."""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pipeline.contracts.faults import FaultLog, nearest

RecordModel = TypeVar("RecordModel", bound=BaseModel)
_ID_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_PLACE = re.compile(r" \(at line \d+, column \d+\)")


class NotFinite(Exception):
    """A number that JSON or a float cannot hold; its text as written."""


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
        if not _ID_PART.fullmatch(part) or ".." in part:
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
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        log.add(path, "", None, "is UTF-16: save the file as UTF-8", 1)
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        said = f"not UTF-8: byte 0x{data[error.start]:02x} cannot be read; save the file as UTF-8"
        log.add(path, "", None, said, line)
        return None
    if not text.strip():
        log.add(path, "", None, "file is empty")
        return None
    return text


def read_toml(path: Path, log: FaultLog) -> dict[str, Any] | None:
    """The TOML document, or None with a fault that names the line."""
    text = read_text(path, log)
    if text is None:
        return None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        line = int(found.group(1)) if found else text.count("\n") + 1
        log.add(path, "", None, f"broken TOML: {_PLACE.sub('', str(error))}", line)
    except (ValueError, RecursionError) as error:
        log.add(path, "", None, f"broken TOML: {_why(error)}")
    return None


def read_json(path: Path, log: FaultLog) -> dict[str, Any] | None:
    """The JSON object, or None with a fault. NaN, Infinity and repeated keys are refused."""
    text = read_text(path, log)
    if text is None:
        return None
    try:
        document = json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_finite, parse_float=_finite
        )
    except json.JSONDecodeError as error:
        log.add(path, "", None, f"broken JSON: {error.msg}", error.lineno)
        return None
    except NotFinite as error:
        line = _line_of_number(text, str(error))
        log.add(path, "", None, f"broken JSON: {error} is not a finite number", line)
        return None
    except (ValueError, RecursionError) as error:
        log.add(path, "", None, f"broken JSON: {_why(error)}")
        return None
    if not isinstance(document, dict):
        log.add(path, "", None, "must be one JSON object")
        return None
    return document


def read_csv(path: Path, columns: list[str], log: FaultLog) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV file as (line number, non-empty cells by column); header and row lengths must match."""
    text = read_text(path, log)
    if text is None:
        _refuse_rows(path, 0, log)
        return
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    begins = 1  # the line where the row begins that is being read: an open quote goes on to the end
    try:
        header = next(reader)
        if header != columns:
            _add_header_faults(path, header, columns, log)
            _refuse_rows(path, 0, log)
            return
        begins = reader.line_num + 1
        for cells in reader:
            begins = reader.line_num + 1
            if len(cells) != len(columns):
                said = f"row has {len(cells)} cells, the header has {len(columns)}"
                log.add(path, "", None, said, reader.line_num)
                log.refused |= _row_ids(cells)
                continue
            named = zip(columns, cells, strict=True)
            yield reader.line_num, {name: cell for name, cell in named if cell != ""}
    except csv.Error as error:
        log.add(path, "", None, f"broken CSV: {error}", begins)
        _refuse_rows(path, begins - 1, log)


def read_rows(path: Path, model: type[RecordModel], log: FaultLog) -> Iterator[tuple[int, RecordModel]]:
    """Validated rows of a CSV file whose header is the model's fields; faulty ones are logged, left out."""
    for line, cells in read_csv(path, list(model.model_fields), log):
        try:
            yield line, model.model_validate(cells)
        except ValidationError as error:
            log.add_validation(path, error, line)
            log.refused |= _row_ids(list(cells.values()))


def validate(
    path: Path, model: type[RecordModel], document: Mapping[str, Any], log: FaultLog
) -> RecordModel | None:
    """The document as a record of the model, or None with a fault for every wrong field."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        log.add_validation(path, error, fields=model.model_fields)
        return None


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "brackets are nested too deep"
    return "a number has thousands of digits" if "digits" in str(error) else str(error)


def _refuse_rows(path: Path, after_line: int, log: FaultLog) -> None:
    """Notes the ids of the rows that a broken file holds all the same, as far as they can be told."""
    lines = path.read_bytes().decode("utf-8", errors="replace").splitlines()[after_line:]
    for line in lines:
        log.refused |= _row_ids(line.split(","))


def _row_ids(cells: list[str]) -> set[str]:
    """What other files may call a row by: its first cell, or for KV cache types its first two."""
    return {*cells[:2], " ".join(cells[:2])}


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        repeated = sorted({key for key, _ in pairs if [name for name, _ in pairs].count(key) > 1})
        raise ValueError(f"key {', '.join(repeated)} is given twice")
    return document


def _finite(number: str) -> float:
    """The value of a number as written; `NaN`, `Infinity` and what is too large for a float are refused."""
    if not math.isfinite(float(number)):
        raise NotFinite(number)
    return float(number)


def _line_of_number(text: str, number: str) -> int:
    """The first line that holds the number outside of quotes."""
    for found in re.finditer(r'"(?:\\.|[^"\\])*"|[^\s,:\[\]{}"]+', text):
        if found.group() == number:
            return text.count("\n", 0, found.start()) + 1
    return 0


def _add_header_faults(path: Path, header: list[str], columns: list[str], log: FaultLog) -> None:
    if len(set(header) & set(columns)) < len(columns) / 2:
        log.add(path, "", None, f"the first line must name the columns: {','.join(columns)}", 1)
        return
    for name in [name for name in header if name not in columns]:
        log.add(path, name, None, f"unknown column{nearest(name, columns)}", 1)
    for name in [name for name in columns if name not in header]:
        log.add(path, name, None, "column is missing", 1)
    if sorted(header) == sorted(columns):
        log.add(path, "", None, f"columns must be in this order: {', '.join(columns)}", 1)
    elif len(set(header)) != len(header):
        log.add(path, "", None, "a column is given twice", 1)
