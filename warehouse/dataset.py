"""What the dataset is: its name, the version of its schema, its licence. Constants only."""

from __future__ import annotations

import re

DATASET = "tokcube"
TITLE = "Tokcube"
SCHEMA_VERSION = "1.0.0"  # semver of tables and columns; the data version (YYYY.M.N) is separate
LICENCE = "CC-BY-4.0"

VERSION_PATTERN = re.compile(r"(\d{4})\.([1-9]|1[0-2])\.(0|[1-9]\d*)")


def version_key(version: str) -> tuple[int, int, int]:
    """The data version as numbers that sort by age. Raises ValueError when it is not YYYY.M.N."""
    found = VERSION_PATTERN.fullmatch(version)
    if found is None:
        raise ValueError(f"data version {version!r} must be written YYYY.M.N, such as 2026.12.0")
    year, month, number = (int(part) for part in found.groups())
    return year, month, number


# Tables of millions of rows beside the cubes. DuckDB reads them where they lie, as the cubes; in SQLite
# one is coded, and the rule of thumb, arithmetic over gpus and models, is left out.
LARGE_TABLES = ("best_fit", "rule_of_thumb")
# Left out of SQLite too: what `weights` is made of. A phone's copy of the answers does not need every tensor.
PARTS_OF_WEIGHTS = ("gguf_files", "stored_weights", "tensors")
