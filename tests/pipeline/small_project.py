"""A project of three gpus and one table per room, with its own dictionary: what the tests here build."""

from collections.abc import Callable, Sequence
from pathlib import Path

import dagster as dg
import polars as pl

from pipeline.assets.sources import source_assets
from pipeline.assets.table_asset import cube_asset, table_asset
from pipeline.partitions import fill_partitions, gpu_partitions
from pipeline.progress import Progress
from pipeline.project import Project
from pipeline.table_store import TableStore
from warehouse.dictionary import cube_schema, tables

GPUS = ("big", "medium", "small")

_ROOMS = {"cards": "sources", "sizes": "factors", "speeds": "cubes", "summary": "evidence"}
_COLUMNS = {
    "cards": [("card", "str", ""), ("memory_gib", "f64", "exclusive_min = 0")],
    "sizes": [("card", "str", 'references = "cards.card"'), ("half_gib", "f64", "min = 0")],
    "speeds": [
        ("gpu", "id", 'enum_of = "cards.card"'),
        ("context_tokens", "i32", ""),
        ("tok_s", "f32", "max = 100"),
    ],
    "summary": [("what", "str", ""), ("value", "f64", "")],
}
_KEYS = {"cards": ["card"], "sizes": ["card"], "speeds": ["gpu", "context_tokens"], "summary": ["what"]}


def write_dictionary(folder: Path) -> None:
    """The four tables' dictionary files."""
    folder.mkdir()
    for name, room in _ROOMS.items():
        key = ", ".join(f'"{column}"' for column in _KEYS[name])
        lines = [f'table = "{name}"', f'title = "{name.title()}"', f'description = "The {name}."']
        lines += [f'room = "{room}"', f"key = [{key}]"]
        for column, dtype, rule in _COLUMNS[name]:
            lines += [
                "[[column]]",
                f'name = "{column}"',
                f'dtype = "{dtype}"',
                f'description = "{column}"',
                rule,
            ]
        (folder / f"{name}.toml").write_text("\n".join(lines) + "\n")


def read_cards(root: Path) -> dict[str, pl.DataFrame]:
    """The source table, as `read_sources` would give it."""
    return {"cards": pl.DataFrame({"card": list(GPUS), "memory_gib": [96.0, 24.0, 8.0]})}


def speeds_of(gpu: str, tok_s: float = 10.0) -> pl.LazyFrame:
    """One gpu's part of the cube."""
    schema = cube_schema("speeds", {"cards.card": GPUS})
    rows = {"gpu": [gpu, gpu], "context_tokens": [4096, 8192], "tok_s": [tok_s, tok_s / 2]}
    return pl.DataFrame(rows, schema=schema).lazy()


def small_assets(
    built: Project,
    gpus: Sequence[str] = GPUS,
    part: Callable[[str], pl.LazyFrame] = speeds_of,
    read: Callable[[Path], dict[str, pl.DataFrame]] = read_cards,
) -> list[dg.AssetsDefinition]:
    """One asset per room, the cube partitioned."""

    @table_asset()
    def sizes(cards: pl.LazyFrame) -> pl.LazyFrame:
        return cards.select("card", half_gib=pl.col("memory_gib") / 2)

    @cube_asset(gpu_partitions(gpus), deps=["sizes"])
    def speeds(
        context: dg.AssetExecutionContext,
        tables: dg.ResourceParam[TableStore],
        progress: dg.ResourceParam[Progress],
    ) -> None:
        fill_partitions(context, tables, progress, part)

    @table_asset()
    def summary(speeds: pl.LazyFrame, sizes: pl.DataFrame) -> pl.DataFrame:
        assert isinstance(sizes, pl.DataFrame)
        rows = speeds.select(pl.len()).collect().item()
        return pl.DataFrame({"what": ["rows"], "value": [float(rows)]})

    return [source_assets({"cards": tables()["cards"]}, built.sources, read), sizes, speeds, summary]
