"""Works on parts two at a time: one is computed while another is written. Results keep the order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")

AT_ONCE = 2  # a part keeps one core busy for half of its time; more parts at once would only need more memory


def side_by_side(work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[tuple[Part, Result]]:
    """(part, work(part)) for each part in order. The first exception ends it; parts not begun are left alone.

    `work` runs in threads: polars, Parquet and SQLite leave Python's lock while they work.
    """
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        begun: deque[tuple[Part, Future[Result]]] = deque()
        try:
            for part in parts:
                begun.append((part, pool.submit(work, part)))
                if len(begun) > AT_ONCE:
                    first, result = begun.popleft()
                    yield first, result.result()
            while begun:
                first, result = begun.popleft()
                yield first, result.result()
        finally:
            for _, result in begun:
                result.cancel()
