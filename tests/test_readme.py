"""README and docs: every command exists, every query runs and answers as printed, the example GPU passes.

Answers are compared on the core grid: a printed row whose gpu, model or context the core grid lacks was
checked on the full release only, when it was printed. To print all answers anew from a full release:

    PYTHONPATH=. .venv/bin/python tests/test_readme.py warehouse/releases/<version>
"""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars as pl
import pytest
from typer.testing import CliRunner

from pipeline.build import build_dataset
from pipeline.cli import app
from pipeline.contracts.faults import SourceFaults
from pipeline.contracts.sources import read_sources
from pipeline.progress import Messages
from pipeline.project import project
from warehouse.dictionary import table, table_names
from warehouse.duckdb_file import open_release

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
NEW_CARD = "rtx-5080-super-24gb"
# These depend on which other GPUs of the grid were measured: the core grid has fewer neighbours.
OF_EVIDENCE = {"tok_s", "low", "high", "basis"}

# A query, and the table printed below it.
_QUERY = re.compile(r"```sql\n(?P<sql>.*?)```\n(?:\n(?P<answer>(?:\|[^\n]*\n)+))?", re.DOTALL)
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_SQLITE = re.compile(r'\$ sqlite3 tokcube\.sqlite "(?P<sql>[^"]+)"\n(?P<answer>(?:[^`$\n]+\n)*)')
_TABLES = re.compile(r"^\| `(?P<name>\w+)` \| (?P<title>.+?) \| (?P<rows>[\d,]+) \|$", re.MULTILINE)


# --- what the pages say ---


def queries() -> list[tuple[str, str, str]]:
    """(where, sql, printed answer) of every query of every page."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for match in _QUERY.finditer(text):
            where = f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}"
            found.append((where, match["sql"], match["answer"] or ""))
    return found


def blocks(page: Path, language: str) -> list[str]:
    return [m["text"] for m in _BLOCK.finditer(page.read_text("utf-8")) if m["language"] == language]


def commands() -> list[str]:
    """Every `make ...` and `tokcube ...` of the pages, in code blocks or in backticks."""
    found = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        lines = [line for block in blocks(page, "console") for line in block.splitlines()]
        shown = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for words in (*shown, *re.findall(r"`([^`\n]+)`", text)):
            command = words.removeprefix(".venv/bin/")
            if re.match(r"(make|tokcube) [a-z]", command):
                found.add(command)
    return sorted(found)


def printed_rows(answer: str) -> list[list[str]]:
    """The cells of a printed table, without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in answer.splitlines()][2:]


def in_core(row: list[str], columns: list[str], held: dict[str, set[str]]) -> bool:
    return all(cell in held[name] for name, cell in zip(columns, row, strict=True) if name in held)


# --- what a release answers ---


def shown(value: object) -> str:
    """A value as the pages print it."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def asked(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[list[str], list[list[str]]]:
    result = connection.execute(sql)
    columns = [str(column[0]) for column in result.description or []]
    return columns, [[shown(value) for value in row] for row in result.fetchall()]


def as_table(columns: list[str], rows: list[list[str]]) -> str:
    numeric = [all(re.fullmatch(r"-?[\d.]*", row[i]) for row in rows) for i in range(len(columns))]
    rule = ["---:" if right else "---" for right in numeric]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (columns, rule, *rows))


def sqlite_answer(release: Path, sql: str) -> str:
    with sqlite3.connect(f"file:{release / 'tokcube.sqlite'}?mode=ro", uri=True) as connection:
        rows = connection.execute(sql).fetchall()
    return "".join("|".join(shown(value) for value in row) + "\n" for row in rows)


def row_counts(release: Path) -> dict[str, int]:
    with open_release(release) as connection:
        return {
            name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchall()[0][0]
            for name in table_names()
        }


# --- fixtures ---


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of the core grid, built once."""
    built = project(None, tmp_path_factory.mktemp("warehouse"), "core", None)
    report = build_dataset(built, Messages(lambda _: None))
    assert report.release is not None
    return report.release


@pytest.fixture(scope="module")
def answering(core: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with open_release(core) as connection:
        yield connection


@pytest.fixture(scope="module")
def core_holds() -> dict[str, set[str]]:
    grid = tomllib.loads((ROOT / "sources/grid.toml").read_text("utf-8"))["core"]
    contexts = {str(tokens) for tokens in grid["contexts_tokens"]}
    return {
        "gpu": set(grid["gpus"]),
        "model": set(grid["models"]),
        "n_gpus": {str(n) for n in grid["n_gpus"]},
        "context": contexts,
        "context_tokens": contexts,
    }


@pytest.fixture(scope="module")
def with_new_card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real sources and the two files of the README's example."""
    root = tmp_path_factory.mktemp("copy") / "sources"
    shutil.copytree(ROOT / "sources", root)
    record, citation = blocks(README, "toml")[:2]
    for path, text in ((f"gpus/nvidia/{NEW_CARD}.toml", record), ("citations/rtx-5080-super.toml", citation)):
        assert f"`sources/{path}`" in README.read_text("utf-8")
        assert not (root / path).exists(), "the card exists by now: take another one"
        (root / path).write_text(text, "utf-8")
    return root


# --- tests ---


@pytest.mark.parametrize("command", commands())
def test_commands_exist(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "make":
        made = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        return
    verbs = [word for word in words if re.fullmatch(r"[a-z]+", word)]
    options = [word for word in words if word.startswith("--")]
    verbs = [verb for verb in verbs if words[words.index(verb) - 1] not in options or verb == words[0]]
    helped = CliRunner().invoke(app, [*verbs, "--help"])
    assert helped.exit_code == 0, helped.output
    for option in options:
        assert option in helped.output


def test_linked_files_exist() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_code_that_is_named_exists() -> None:
    """Files that the pages name in backticks, such as `estimator/weights.py`."""
    pattern = re.compile(r"`((?:estimator|pipeline|warehouse|sources|tests)/[\w./-]+\.(?:py|toml|csv|json))`")
    for page in PAGES:
        for path in pattern.findall(page.read_text("utf-8")):
            assert NEW_CARD in path or "rtx-5080-super" in path or (ROOT / path).exists(), path


def test_table_of_tables_is_that_of_the_dictionary() -> None:
    listed = {match["name"]: match["title"] for match in _TABLES.finditer(README.read_text("utf-8"))}
    assert listed == {name: table(name).title for name in table_names()}


def test_five_queries_are_answered() -> None:
    numbered = README.read_text("utf-8").split("### ")[1:6]
    assert [part[:2] for part in numbered] == ["1.", "2.", "3.", "4.", "5."]
    assert all(_QUERY.search(part) and _QUERY.search(part)["answer"] for part in numbered)  # type: ignore[index]


def test_v100_page_is_quoted_exactly() -> None:
    """The page's side of query 2 against the golden copy of the page."""
    page = pl.read_csv(ROOT / "tests/golden/v100_8b_page.csv", infer_schema=False)
    of_page = {(row["context_tokens"], row["tier"]): row for row in page.iter_rows(named=True)}
    answer = next(answer for _, sql, answer in queries() if "rule_of_thumb" in sql)
    rows = printed_rows(answer)
    assert len(rows) == 18
    for context, tier, weights, _, kv, _, total, _, speed, *_ in rows:
        printed = of_page[context, tier]
        assert float(weights) == float(printed["weights_gb"])
        assert float(kv) == float(printed["kv_cache_gib"])
        assert float(total) == float(printed["total_gb"])
        assert speed == f"{printed['decode_tok_s_low']} to {printed['decode_tok_s_high']}"


@pytest.mark.slow
def test_queries_answer_what_is_printed(
    answering: duckdb.DuckDBPyConnection, core_holds: dict[str, set[str]]
) -> None:
    for where, sql, answer in queries():
        columns, rows = asked(answering, sql)
        if not answer:
            continue
        printed = [row for row in printed_rows(answer) if in_core(row, columns, core_holds)]
        assert printed, f"{where}: no printed row is in the core grid"
        kept = [i for i, name in enumerate(columns) if name not in OF_EVIDENCE]
        expected, found = ([[row[i] for i in kept] for row in some] for some in (printed, rows))
        # Under a LIMIT the core grid, which has less to show, may show more of its own.
        assert ([row for row in found if row in expected] if "LIMIT" in sql else found) == expected, where


@pytest.mark.slow
def test_sqlite_answers_what_is_printed(core: Path) -> None:
    found = list(_SQLITE.finditer(README.read_text("utf-8")))
    assert found
    for match in found:
        assert match["answer"] == sqlite_answer(core, match["sql"])


@pytest.mark.slow
def test_rows_claimed_exist(core: Path) -> None:
    """No table claims more rows than the sources give; the cubes and factors span more in the full grid."""
    counts = row_counts(core)
    text = README.read_text("utf-8")
    of_grid = {name for name in table_names() if table(name).room in ("cubes", "factors")}
    for match in _TABLES.finditer(text):
        if match["name"] not in of_grid | {"best_fit", "rule_of_thumb"}:
            assert int(match["rows"].replace(",", "")) <= counts[match["name"]], match["name"]


@pytest.mark.slow
def test_counts_claimed_are_held(core: Path, core_holds: dict[str, set[str]]) -> None:
    """The numbers of the first paragraph are at most what is published."""
    text = README.read_text("utf-8")
    claimed = re.search(
        r"of (\d+) accelerators .*?, (\d+) models, (\d+) serving\s+frameworks", text, re.DOTALL
    )
    assert claimed is not None
    with open_release(core) as connection:
        for number, sql in zip(
            claimed.groups(),
            (
                "FROM gpus WHERE published",
                "FROM models WHERE published",
                "FROM frameworks WHERE role <> 'measured-only'",
            ),
            strict=True,
        ):
            assert int(number) <= connection.execute(f"SELECT count(*) {sql}").fetchall()[0][0]
        anchors = connection.execute(
            "SELECT (SELECT count(*) FROM anchors) + (SELECT count(*) FROM serving_anchors)"
        ).fetchall()[0][0]
    measured = re.search(r"Of ([\d,]+) measured rows", text)
    assert measured is not None
    assert int(measured[1].replace(",", "")) <= anchors
    small = re.search(r"\((\d+) accelerators, (\d+) models\)", text)
    assert small is not None
    assert [int(number) for number in small.groups()] == [len(core_holds["gpu"]), len(core_holds["model"])]


@pytest.mark.slow
def test_example_card_passes(with_new_card: Path) -> None:
    gpus = read_sources(with_new_card)["gpus"]
    assert gpus.filter(pl.col("gpu") == NEW_CARD).get_column("published").to_list() == [True]


@pytest.mark.slow
def test_faults_of_the_example_are_those_printed(with_new_card: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "sources"
    shutil.copytree(with_new_card, spoilt)
    path = spoilt / f"gpus/nvidia/{NEW_CARD}.toml"
    text = path.read_text("utf-8").replace("= 1024", "= 1.024").replace('"pcie_gen", ', "")
    path.write_text(text, "utf-8")
    printed = next(block for block in blocks(README, "console") if "fault(s)" in block)
    with pytest.raises(SourceFaults) as found:
        read_sources(spoilt)
    rows = [line for line in printed.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row.strip("│").split("│")] for row in rows] == [
        [fault.file, str(fault.line or ""), fault.field, fault.value, fault.allowed]
        for fault in found.value.faults
    ]


# --- printing the answers anew ---


def print_answers(release: Path) -> None:
    """Rewrite every printed answer and the table of tables from a full release."""
    with open_release(release) as connection:
        for page in PAGES:
            text = page.read_text("utf-8")

            def answered(match: re.Match[str]) -> str:
                return f"```sql\n{match['sql']}```\n\n{as_table(*asked(connection, match['sql']))}"

            text = _QUERY.sub(answered, text)
            text = _SQLITE.sub(
                lambda m: f'$ sqlite3 tokcube.sqlite "{m["sql"]}"\n{sqlite_answer(release, m["sql"])}', text
            )
            page.write_text(text, "utf-8")
    counts = row_counts(release)
    text = README.read_text("utf-8")
    README.write_text(
        _TABLES.sub(lambda m: f"| `{m['name']}` | {table(m['name']).title} | {counts[m['name']]:,} |", text),
        "utf-8",
    )


if __name__ == "__main__":
    print_answers(Path(sys.argv[1]))
