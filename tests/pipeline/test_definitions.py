"""The asset graph is what we think it is, loads, and a run started in the UI does what the command line does.

After a wanted change of the graph: `python -m tests.pipeline.test_definitions` writes asset_graph.txt anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from pipeline.assets import all_assets
from pipeline.definitions import assemble, defs
from pipeline.jobs import BUILD, CHECK_SOURCES
from pipeline.partitions import RANGE_END, RANGE_START, StalePartitions, check_current
from pipeline.project import Project, data_version, project
from pipeline.table_store import TableStore
from tests.pipeline.small_project import GPUS, small_assets, write_dictionary
from warehouse.dictionary import tables

SNAPSHOT = Path(__file__).with_name("asset_graph.txt")


def whole_graph() -> dg.Definitions:
    """The project's definitions over three gpus that need not exist."""
    built = project(version="2026.12.0")
    return assemble(built, GPUS, all_assets(built, GPUS, lambda root: {}))


def described(definitions: dg.Definitions) -> Iterator[str]:
    """One line per asset: room, name, what it depends on, its checks."""
    graph = definitions.resolve_asset_graph()
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        checks = sorted(check.name for check in graph.asset_check_keys if check.asset_key == key)
        parents = sorted(parent.to_user_string() for parent in node.parent_keys)
        name = f"{node.group_name}/{key.to_user_string()}{' [by gpu]' if node.is_partitioned else ''}"
        yield f"{name} <- {', '.join(parents) or '-'} | {', '.join(checks) or '-'}"


def test_the_asset_graph_is_the_one_on_record() -> None:
    assert sorted(described(whole_graph())) == SNAPSHOT.read_text(encoding="utf-8").splitlines()


def test_every_table_has_one_asset_with_its_columns_and_a_check() -> None:
    graph = whole_graph().resolve_asset_graph()
    keys = {key.path[-1] for key in graph.get_all_asset_keys()}
    assert keys == {*tables(), "release"}
    for name, one in tables().items():
        node = graph.get(dg.AssetKey(name))
        shown = [column.name for column in node.metadata["dagster/column_schema"].columns]
        assert shown == list(one.column_names)
        assert one.title in str(node.description)
        assert dg.AssetCheckKey(node.key, "conforms") in graph.asset_check_keys


def test_definitions_load_as_the_ui_loads_them() -> None:
    loaded = defs()
    dg.Definitions.validate_loadable(loaded)
    assert {job.name for job in loaded.resolve_all_job_defs()} >= {BUILD, CHECK_SOURCES}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    write_dictionary(tmp_path / "dictionary")
    monkeypatch.setattr("warehouse.dictionary.FOLDER", tmp_path / "dictionary")
    return Project(tmp_path / "sources", tmp_path / "stage", tmp_path / "releases", "2026.12.0")


def test_the_build_job_asks_for_every_partition_by_itself(built: Project) -> None:
    definitions = assemble(built, GPUS, small_assets(built))
    job = definitions.resolve_job_def(BUILD)
    assert (job.tags[RANGE_START], job.tags[RANGE_END]) == ("big", "small")
    with dg.DagsterInstance.ephemeral() as instance:
        assert job.execute_in_process(instance=instance).success
        assert instance.get_materialized_partitions(dg.AssetKey("speeds")) == set(GPUS)
        assert instance.get_latest_materialization_event(dg.AssetKey("summary")) is not None


def test_one_partition_can_be_asked_for_alone(built: Project) -> None:
    definitions = assemble(built, GPUS, small_assets(built))
    with dg.DagsterInstance.ephemeral() as instance:
        definitions.resolve_job_def(CHECK_SOURCES).execute_in_process(instance=instance)
        run = definitions.resolve_job_def(BUILD).execute_in_process(
            instance=instance,
            asset_selection=[dg.AssetKey("speeds")],
            tags={RANGE_START: "medium", RANGE_END: "medium"},
        )
    assert run.success
    assert TableStore(built.stage, built.version).staged_partitions("speeds") == ["medium"]


def test_pictures_and_previews_reach_a_run_that_is_kept(built: Project, tmp_path: Path) -> None:
    definitions = assemble(built, GPUS, small_assets(built))
    with dg.DagsterInstance.ephemeral() as instance:
        run = definitions.resolve_job_def(CHECK_SOURCES).execute_in_process(instance=instance)
    [event] = run.get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert metadata["dagster/row_count"].value == len(GPUS)
    assert "| big | 96 |" in str(metadata["preview"].value)


def test_gpus_that_changed_since_loading_are_named() -> None:
    with pytest.raises(StalePartitions, match=r"new: d; gone: a, b, c, e, f and 1 more"):
        check_current(["a", "b", "c", "e", "f", "g"], ["d"])
    check_current(["a"], ["a"])


def test_the_changelog_names_the_version(tmp_path: Path) -> None:
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changes\n\n## Unreleased\n\n## 2027.1.3 - soon\n\n## 2026.12.0\n")
    assert data_version(changelog) == "2027.1.3"
    changelog.write_text("# Changes\n")
    with pytest.raises(ValueError, match=r"CHANGELOG.md has no heading"):
        data_version(changelog)


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(sorted(described(whole_graph()))) + "\n", encoding="utf-8")
