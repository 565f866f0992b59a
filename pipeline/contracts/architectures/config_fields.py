"""Which configuration fields exist: a misspelt field must not pass for one that is absent."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path


@cache
def known_fields() -> frozenset[str]:
    """Every field of `config_fields.toml`."""
    document = tomllib.loads(Path(__file__).with_name("config_fields.toml").read_text(encoding="utf-8"))
    return frozenset(document["shapes"]) | frozenset(document["other"])
