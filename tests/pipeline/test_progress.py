"""Progress says enough and not too much."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from pipeline.progress import Messages, ProgressBars, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (3900, "1 h 5 min")],
)
def test_durations_are_said_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_messages_come_every_ten_seconds_and_at_the_end() -> None:
    said: list[str] = []
    now = iter([0.0, 4.0, 8.0, 12.0, 16.0])
    messages = Messages(said.append, clock=lambda: next(now))
    messages.start("estimates", 4)
    for gpu in ("a", "b", "c", "d"):
        messages.advance("estimates", gpu, 1000)
    assert said == [
        "estimates: 3 of 4 gpus, 3,000 rows, about 4 s left",
        "estimates: 4 of 4 gpus, 4,000 rows, about 0 s left",
    ]


def test_bars_count_tables_and_partitions() -> None:
    output = io.StringIO()
    columns = (TextColumn("{task.description}"), TextColumn("{task.fields[detail]}"))
    bars = Progress(*columns, console=Console(file=output, width=100), auto_refresh=False)
    with bars:
        shown = ProgressBars(bars)
        shown.wrote("gpus", 300)
        shown.start("estimates", 2)
        shown.advance("estimates", "a", 10)
        shown.advance("estimates", "b", 5)
        shown.wrote("estimates", 15)
    assert [(task.description, task.completed) for task in bars.tasks] == [("tables", 1), ("estimates", 2)]
    assert "15 rows" in output.getvalue()
