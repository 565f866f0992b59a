"""Bytes of GGUF files and of their share of every GPU, against what llama.cpp's own tools print.

`golden/llama_quantize.csv`: tensor bytes of `llama-quantize --dry-run`; `golden/llama_cpp_devices.csv`: model
memory of `llama-fit-params` on two equal devices, Q4_K_M. Both of llama.cpp 0c1e57098, over files
of a header alone.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from estimator.gguf_files import device_bytes, gguf_files
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.hugging_face_config import interpret
from pipeline.contracts.model_tables import counted_layers, quantize_facts_table, tensors_table
from pipeline.contracts.models import read_models
from pipeline.contracts.quants import read_quants
from pipeline.grid_tables import census, in_text

SOURCES = Path(__file__).parents[2] / "sources"
GOLDEN = Path(__file__).parents[1] / "golden"
MIB = 2**20
TOOL = pl.read_csv(GOLDEN / "llama_quantize.csv")
DEVICES = pl.read_csv(GOLDEN / "llama_cpp_devices.csv")
# What llama-bench of ik_llama.cpp prints as model size (sources/file_sizes/ikawrakow.csv), for files that its
# llama-quantize made without options: quant, model, with an importance matrix, size, unit.
IK = pl.DataFrame(
    [
        ("ik/iq2_ks", "meta-llama/Llama-3.1-8B-Instruct", True, 2.30, 2**30),
        ("ik/iq4_ks", "meta-llama/Llama-3.1-8B-Instruct", True, 4.14, 2**30),
        ("ik/q8_k_r8", "meta-llama/Llama-3.1-8B-Instruct", False, 7.56, 2**30),
        ("ik/iq2_bn", "microsoft/bitnet-b1.58-2B-4T", False, 934.16, 2**20),
    ],
    schema=["quant", "model", "with_imatrix", "printed", "unit"],
    orient="row",
)
NAMED = pl.concat([TOOL.select("model"), DEVICES.select("model"), IK.select("model")]).unique()
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


# Sizes by the tool for files whose shapes are not the published ones, and the fields that differ: published
# totals are met by a vocabulary of 32,768 (also Lightning-AI/litgpt#1845) and by 64 heads in sliding layers.
OTHER_SHAPES = [
    ("mistralai/Mixtral-8x22B-v0.1", {"vocab_size": 32000}, "gguf/q4_k_m", 85591511040),
    ("mistralai/Mixtral-8x22B-v0.1", {"vocab_size": 32000}, "gguf/iq3_xxs", 57766440960),
    ("poolside/Laguna-XS.2", {"num_attention_heads_per_layer": None}, "gguf/q4_k_m", 20128463872),
    ("poolside/Laguna-XS.2", {"num_attention_heads_per_layer": None}, "gguf/iq3_xxs", 13493220352),
]


@pytest.mark.parametrize(("model", "changes", "quant", "tensor_bytes"), OTHER_SHAPES)
def test_sizes_of_files_made_from_other_shapes(
    model: str, changes: dict[str, Any], quant: str, tensor_bytes: int
) -> None:
    record = json.loads((SOURCES / "models" / f"{model}.json").read_text(encoding="utf-8"))
    shapes = {model: interpret(record["config"] | changes)}
    layers = counted_layers(shapes)
    lazy = known()
    made = gguf_files(
        census(in_text(tensors_table(shapes, layers).lazy())), quantize_facts_table(shapes, layers).lazy(),
        lazy["gguf_mix_rules"].filter(pl.col("quant") == quant), lazy["gguf_fallbacks"], lazy["quants"],
    ).filter(~pl.col("is_before_2026"), ~pl.col("with_imatrix")).collect()  # fmt: skip
    assert made["tensor_bytes"].to_list() == [tensor_bytes]


def test_sizes_that_ik_llama_cpp_prints() -> None:
    today = files().filter(~pl.col("is_before_2026"), ~pl.col("with_mtp"))
    met = IK.join(today, on=["model", "quant", "with_imatrix"], validate="1:1").with_columns(
        ours=pl.col("tensor_bytes") / pl.col("unit")
    )
    assert met.height == IK.height
    half_a_digit = 0.005
    assert met.filter((pl.col("ours") - pl.col("printed")).abs() > half_a_digit).is_empty(), met


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
