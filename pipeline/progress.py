"""Tells a person how far a build is: in the run's log, as bars on the command line, or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

SECONDS_BETWEEN_MESSAGES = 10.0


class Progress(Protocol):
    """What a build reports to: a cube starts, advances once per gpu and is written; a table is written."""

    def start(self, table: str, total: int) -> None:
        """A cube of `total` partitions starts."""

    def advance(self, table: str, partition: str, rows: int) -> None:
        """One partition is written."""

    def wrote(self, table: str, rows: int) -> None:
        """A table is complete."""


class Silent:
    """Reports nothing."""

    def start(self, table: str, total: int) -> None:
        """Nothing."""

    def advance(self, table: str, partition: str, rows: int) -> None:
        """Nothing."""

    def wrote(self, table: str, rows: int) -> None:
        """Nothing."""


@dataclass
class Messages:
    """Says every ten seconds how many partitions are done and about how long the rest takes."""

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _total: int = 0
    _done: int = 0
    _rows: int = 0
    _began: float = 0.0
    _said: float = 0.0

    def start(self, table: str, total: int) -> None:
        """A cube of `total` partitions starts."""
        self._total, self._done, self._rows = total, 0, 0
        self._began = self._said = self.clock()

    def advance(self, table: str, partition: str, rows: int) -> None:
        """One partition is written; a message follows when ten seconds have passed or it was the last."""
        self._done += 1
        self._rows += rows
        now = self.clock()
        if now - self._said < SECONDS_BETWEEN_MESSAGES and self._done < self._total:
            return
        self._said = now
        left_s = (now - self._began) / self._done * (self._total - self._done)
        self.say(
            f"{table}: {self._done} of {self._total} gpus, {self._rows:,} rows, about {duration(left_s)} left"
        )

    def wrote(self, table: str, rows: int) -> None:
        """Nothing: the table's own materialization says it."""


@dataclass
class ProgressBars:
    """Bars of rich: one line for the small tables, one bar for each cube with the time left."""

    bars: Bars
    _tasks: dict[str, TaskID] = field(default_factory=dict)
    _rows: dict[str, int] = field(default_factory=dict)
    _tables: int = 0

    def start(self, table: str, total: int) -> None:
        """A cube of `total` partitions starts."""
        self._rows[table] = 0
        self._tasks[table] = self.bars.add_task(table, total=total, detail="")

    def advance(self, table: str, partition: str, rows: int) -> None:
        """One partition is written."""
        self._rows[table] += rows
        detail = f"{self._rows[table]:,} rows, {partition}"
        self.bars.update(self._tasks[table], advance=1, detail=detail)

    def wrote(self, table: str, rows: int) -> None:
        """A table is complete."""
        if table in self._tasks:
            self.bars.update(self._tasks[table], detail=f"{rows:,} rows")
            return
        self._tables += 1
        if "tables" not in self._tasks:
            self._tasks["tables"] = self.bars.add_task("tables", total=None, detail="")
        detail = f"{self._tables} written, {table}"
        self.bars.update(self._tasks["tables"], completed=self._tables, detail=detail)


def duration(seconds: float) -> str:
    """`8 s`, `3 min 20 s`, `1 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
