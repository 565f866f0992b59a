"""The made-up stage of `small_stage` as a fixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.warehouse.small_stage import write_stage


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """A stage with the made-up tables."""
    return write_stage(tmp_path / "stage")
