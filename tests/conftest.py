"""Settings shared by all tests: reproducible hypothesis, no telemetry, nobody's own Dagster home."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "tokcube", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tokcube")
os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"


@pytest.fixture(autouse=True)
def no_kept_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of tests must not appear in anybody's run history."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
