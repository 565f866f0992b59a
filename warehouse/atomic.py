"""Files that appear whole or not at all: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL_SUFFIX = ".partial"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; what was written there takes its place when the block ends well.

    On an exception the temporary file is removed and `path` stays as it was. The folder is made when missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    partial.unlink(missing_ok=True)
    try:
        yield partial
        sync_file(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with Unix line ends, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_bytes(text.encode("utf-8"))


def sync_file(path: Path) -> None:
    """Flush a written file to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to the disk."""
    sync_file(folder)
