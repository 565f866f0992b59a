"""`why_not` and the cubes give the same answer: a combination is in the cube exactly when every rule lets it
run.
"""

from __future__ import annotations

import polars as pl
import pytest

from estimator.runnable import gpu_formats, model_settings, refused_splits
from estimator.support import compute_capability_number, is_runnable, why_not
from tests.estimator.support_cases import FORMAT_ROWS, GPUS, MODELS, tables

N_GPUS = (1, 8)


def in_the_cube() -> set[tuple[str, str, int, int]]:
    """(gpu, model, n_gpus, format) as the cubes join and filter them."""
    held = tables()
    capable = pl.col("arch_min").is_null() | (pl.col("capability").fill_null(0) >= pl.col("arch_min"))
    rows = (
        gpu_formats(FORMAT_ROWS, held)
        .join(FORMAT_ROWS, on="format")
        .join(GPUS.select("gpu", capability=compute_capability_number()), on="gpu")
        .join(model_settings(FORMAT_ROWS, N_GPUS, held), on=["framework", "kv_dtype"])
        .join(
            refused_splits(FORMAT_ROWS, N_GPUS, held),
            on=["framework", "quant", "model", "n_gpus"],
            how="anti",
        )
        .filter(capable)
    )
    return set(rows.select("gpu", "model", "n_gpus", "format").rows())


@pytest.mark.parametrize("gpu", ["v100", "rtx-4090", "m3-max"])
@pytest.mark.parametrize(("model", "n_gpus"), [("odd", 8), ("newest", 1)])
def test_why_not_agrees_with_the_cube(gpu: str, model: str, n_gpus: int) -> None:
    present = in_the_cube()
    for row in FORMAT_ROWS.to_dicts():
        answers = why_not(
            tables(),
            gpu=gpu,
            model=model,
            quant=row["quant"],
            framework=row["framework"],
            kv_dtype=row["kv_dtype"],
            n_gpus=n_gpus,
        )
        of_backend = answers.filter(pl.col("backend").is_null() | (pl.col("backend") == row["backend"]))
        on_backend = answers.filter(pl.col("backend") == row["backend"]).height > 0
        runs = on_backend and of_backend.select(is_runnable().all()).item()
        assert runs == ((gpu, model, n_gpus, row["format"]) in present), (gpu, model, n_gpus, row)


def test_the_cube_holds_both_answers() -> None:
    present = in_the_cube()
    assert ("v100", "llama", 1, 1) in present
    assert ("v100", "llama", 1, 4) not in present
    assert ("b200", "newest", 1, 4) in present
    assert ("rtx-4090", "newest", 1, 4) not in present  # the architecture needs sm_100
    assert {model for _, model, _, _ in present} == set(MODELS.get_column("model")) - {"unheard-of"}
