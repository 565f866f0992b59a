"""Bytes of GGUF files and of their share of every GPU, against what llama.cpp's own tools print.

`golden/llama_quantize.csv`: tensor bytes of `llama-quantize --dry-run`; `golden/llama_cpp_devices.csv`: model
memory of `llama-fit-params` on two equal devices, Q4_K_M. Both of llama.cpp 0c1e57098, over files
of a header alone.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import polars as pl
import pytest

from estimator.gguf_files import device_bytes, gguf_files
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.models import read_models
from pipeline.contracts.quants import read_quants
from pipeline.grid_tables import census, in_text

SOURCES = Path(__file__).parents[2] / "sources"
GOLDEN = Path(__file__).parents[1] / "golden"
MIB = 2**20
TOOL = pl.read_csv(GOLDEN / "llama_quantize.csv")
DEVICES = pl.read_csv(GOLDEN / "llama_cpp_devices.csv")
NAMED = pl.concat([TOOL.select("model"), DEVICES.select("model")]).unique()
RECIPE = ["model", "quant", "with_imatrix", "with_mtp"]


@cache
def known() -> dict[str, pl.LazyFrame]:
    """The tables of models and formats, of the models named in the golden files."""
    log, use = FaultLog(SOURCES), CitationUse()
    tables = {**read_models(SOURCES, log, use), **read_quants(SOURCES, log, use)}
    lazy = {name: in_text(frame.lazy()) for name, frame in tables.items()}
    for name in ("tensors", "quantize_facts"):
        lazy[name] = lazy[name].join(NAMED.lazy(), on="model", how="semi")
    return lazy


@cache
def files() -> pl.DataFrame:
    lazy = known()
    return gguf_files(
        census(lazy["tensors"]), lazy["quantize_facts"], lazy["gguf_mix_rules"], lazy["gguf_fallbacks"],
        lazy["quants"],
    ).collect()  # fmt: skip


def test_every_size_of_the_tool_to_the_byte() -> None:
    today = files().filter(~pl.col("is_before_2026"))
    met = TOOL.join(today, on=RECIPE, how="left", suffix="_ours", validate="1:1")
    wrong = met.filter(pl.col("tensor_bytes").ne_missing(pl.col("tensor_bytes_ours")))
    assert wrong.select(*RECIPE, "tensor_bytes", "tensor_bytes_ours").rows() == []


def test_roles_add_up_and_prediction_layers_are_apart() -> None:
    roles = ["output_bytes", "embedding_bytes", "per_layer_embedding_bytes", "expert_bytes", "dense_bytes",
             "mtp_bytes"]  # fmt: skip
    assert files().select((pl.sum_horizontal(roles) == pl.col("tensor_bytes")).all()).item()
    assert files().select(((pl.col("mtp_bytes") > 0) == pl.col("with_mtp")).all()).item()


@pytest.mark.parametrize("with_mtp", [False, True])
def test_every_device_of_the_planner(with_mtp: bool) -> None:
    lazy = known()
    rows = DEVICES.filter(pl.col("with_mtp") == with_mtp)
    recipes = rows.lazy().select("model", "with_mtp").unique().with_columns(
        quant=pl.lit("gguf/q4_k_m"), with_imatrix=pl.lit(False), is_before_2026=pl.lit(False)
    )  # fmt: skip
    dealt = device_bytes(
        census(lazy["tensors"]), lazy["quantize_facts"], lazy["gguf_mix_rules"], lazy["gguf_fallbacks"],
        lazy["quants"], recipes, pl.LazyFrame({"n_gpus": [2]}),
    ).collect()  # fmt: skip
    met = rows.join(dealt, on=["model", "device"], validate="1:1")
    assert met.height == rows.height > 0
    errors = met.select((pl.col("bytes") / MIB - pl.col("mib")).abs().max()).item()
    assert errors < 0.001, met  # the planner prints thousandths of a MiB


def test_embeddings_per_layer_before_2026() -> None:
    """Gemma 3n E2B, 262,144 x 7,680: as plain embeddings and without padding before, like the output of a
    tied model and with 256 rows of padding since. Q4_K is 144 bytes per 256 numbers, Q6_K 210.
    """
    lazy = known()
    model = pl.LazyFrame({"model": ["google/gemma-3n-E2B-it"]})
    log, use = FaultLog(SOURCES), CitationUse()
    read = {name: in_text(one.lazy()) for name, one in read_models(SOURCES, log, use).items()}
    of_model = {
        name: read[name].join(model, on="model", how="semi") for name in ("tensors", "quantize_facts")
    }
    found = gguf_files(
        census(of_model["tensors"]), of_model["quantize_facts"], lazy["gguf_mix_rules"],
        lazy["gguf_fallbacks"], lazy["quants"],
    ).filter(pl.col("quant") == "gguf/q4_k_m", ~pl.col("with_imatrix")).collect()  # fmt: skip
    sizes = dict(found.select("is_before_2026", "per_layer_embedding_bytes").iter_rows())
    assert sizes == {True: 262_144 * 7_680 // 256 * 144, False: 262_400 * 7_680 // 256 * 210}
