"""The checkpoint recipes applied to real models: published files to the byte, totals to the scale."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from estimator.checkpoint_bytes import checkpoint_bytes, checkpoint_tensors, split_runs, tensor_layouts
from estimator.layer_geometry import MODEL_GEOMETRY
from estimator.tensor_census import census
from pipeline.contracts.checkpoint_recipes import (
    LAYOUTS_FILE,
    RECIPES_FILE,
    Layout,
    RecipeRow,
    read_checkpoint_recipes,
)
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.hugging_face_config import interpret
from pipeline.contracts.model_tables import counted_layers
from pipeline.contracts.quants import read_quants
from warehouse.dictionary import violations

SOURCES = Path(__file__).parents[2] / "sources"
# Sizes of exo's model cards (sources/file_sizes/exo-explore.csv), prediction layers left out by mlx-lm.
MLX_FILES = [
    ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "mlx/4bit-g64", 39_688_355_840),
    ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "mlx/8bit-g64", 74_964_549_632),
    ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "native/bf16", 141_107_412_992),
    ("MiniMaxAI/MiniMax-M2.1", "mlx/3bit-g64", 100_086_644_736),
    ("MiniMaxAI/MiniMax-M2.5", "mlx/4bit-g64", 128_666_664_960),
    ("MiniMaxAI/MiniMax-M2.5", "mlx/6bit-g64", 185_826_705_408),
    ("MiniMaxAI/MiniMax-M2.5", "mlx/8bit-g64", 242_986_745_856),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "mlx/4bit-g64", 17_775_342_336),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "mlx/5bit-g64", 21_721_476_864),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "mlx/6bit-g64", 25_667_611_392),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "mlx/8bit-g64", 33_559_880_448),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "native/bf16", 63_155_889_408),
    ("zai-org/GLM-4.7", "mlx/6bit-g64", 286_737_579_648),
    ("zai-org/GLM-5", "native/bf16", 1_487_822_475_264),
]  # fmt: skip
# The same of models that see: the rest of the file is the vision tower in 16 bit (sources/models).
SEEING_FILES = [
    ("Qwen/Qwen3.5-9B", "mlx/4bit-g64", 5_950_062_560, 456_010_480),
    ("Qwen/Qwen3.5-27B", "mlx/8bit-g64", 29_500_943_328, 460_730_096),
    ("Qwen/Qwen3.5-35B-A3B", "mlx/8bit-g64", 37_721_130_592, 446_571_248),
    ("Qwen/Qwen3.5-122B-A10B", "native/bf16", 245_125_640_160, 451_290_864),
    ("google/gemma-4-26B-A4B-it", "native/bf16", 51_611_872_412, 572_794_416),
]  # fmt: skip
# As printed on the hub, sums of rounded shards (sources/file_sizes/huggingface.csv): GB and half a step.
PRINTED_FILES = [
    ("meta-llama/Llama-3.1-8B-Instruct", "awq/int4-g128", 5.73, 0.01),
    ("meta-llama/Llama-3.1-8B-Instruct", "awq/int4-g32", 6.13, 0.01),
    ("Qwen/Qwen2.5-7B-Instruct", "awq/int4-g128", 5.57, 0.01),
    ("Qwen/Qwen2.5-32B-Instruct", "awq/int4-g128", 19.33, 0.025),
    ("meta-llama/Llama-3.1-8B-Instruct", "fp8/e4m3-per_tensor", 9.08, 0.01),
    ("meta-llama/Llama-3.1-70B-Instruct", "fp8/e4m3-per_tensor", 72.7, 0.05),
]  # fmt: skip
# What the published total has above the counted parameters (sources/models): one scale per tile.
TILES = [
    ("Qwen/Qwen3-8B-FP8", 423_936), ("Qwen/Qwen3-32B-FP8", 1_904_640), ("Qwen/Qwen3-30B-A3B-FP8", 1_824_768),
    ("Qwen/Qwen3-235B-A22B-FP8", 14_269_952), ("MiniMaxAI/MiniMax-M2.5", 13_880_064),
    ("deepseek-ai/DeepSeek-V3", 41_540_496), ("deepseek-ai/DeepSeek-V3.2-Exp", 41_591_584),
    ("zai-org/GLM-5-FP8", 45_885_024),
]  # fmt: skip
# Published totals of NVIDIA's checkpoints: 4-bit numbers counted in pairs, 8-bit scales counted.
NVFP4_TOTALS = [
    ("nvidia/DeepSeek-V3.1-NVFP4", 393_632_819_968), ("nvidia/DeepSeek-V3.2-NVFP4", 394_498_304_256),
    ("nvidia/GLM-5-NVFP4", 435_238_854_912), ("nvidia/Qwen3-235B-A22B-NVFP4", 132_806_618_624),
]  # fmt: skip
FILES = (MLX_FILES, SEEING_FILES, PRINTED_FILES, TILES, NVFP4_TOTALS)
MODELS = sorted({str(row[0]) for rows in FILES for row in rows})


@pytest.fixture(scope="module")
def frames() -> dict[str, pl.DataFrame]:
    log = FaultLog(SOURCES)
    frames = read_quants(SOURCES, log, CitationUse())
    assert [str(fault) for fault in log] == []
    for name in ("checkpoint_layouts", "checkpoint_recipes"):
        assert violations(frames[name], name, frames) == []
    return frames


def config(model: str) -> dict[str, object]:
    record = json.loads((SOURCES / "models" / f"{model}.json").read_text(encoding="utf-8"))
    base = config(record["config_equals"]) if "config_equals" in record else {}
    own = {name: value for name, value in record["config"].items() if value is not None}
    return {**base, **own, **record.get("filled", {})}


@pytest.fixture(scope="module")
def tensors() -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """The census of MODELS, and their model_type."""
    shapes = {model: interpret(config(model)) for model in MODELS}
    rows = [{"model": model, **{name: one.model[name] for name in MODEL_GEOMETRY if name != "model"}}
            for model, one in shapes.items()]  # fmt: skip
    geometry = pl.DataFrame(rows, schema=MODEL_GEOMETRY, orient="row").lazy()
    types = pl.LazyFrame({"model": list(shapes), "model_type": [one.model_type for one in shapes.values()]})
    return census(counted_layers(shapes).lazy(), geometry).collect().lazy(), types


@pytest.fixture(scope="module")
def loaded_bytes(
    frames: dict[str, pl.DataFrame], tensors: tuple[pl.LazyFrame, pl.LazyFrame]
) -> dict[tuple[str, str], int]:
    recipes, layouts = frames["checkpoint_recipes"].lazy(), frames["checkpoint_layouts"].lazy()
    found = checkpoint_bytes(*tensors, recipes, layouts)
    summed = found.filter(~pl.col("is_mtp")).group_by("model", "quant").agg(pl.col("bytes").sum()).collect()
    return {(model, quant): size for model, quant, size in summed.iter_rows()}


def laid_out(
    frames: dict[str, pl.DataFrame], tensors: tuple[pl.LazyFrame, pl.LazyFrame], quant: str
) -> pl.LazyFrame:
    found, types = tensors
    marked = checkpoint_tensors(found).join(types, on="model").with_columns(
        with_experts=(pl.col("part") == "experts").any().over("model")
    )  # fmt: skip
    layouts = frames["checkpoint_layouts"].lazy()
    return tensor_layouts(split_runs(marked), frames["checkpoint_recipes"].lazy(), layouts).filter(
        pl.col("quant") == quant
    )


@pytest.mark.parametrize(("model", "quant", "size"), MLX_FILES)
def test_mlx_files_to_the_byte(
    loaded_bytes: dict[tuple[str, str], int], model: str, quant: str, size: int
) -> None:
    assert loaded_bytes[model, quant] == size


@pytest.mark.parametrize(("model", "quant", "size", "tower"), SEEING_FILES)
def test_mlx_files_with_a_vision_tower_to_the_byte(
    loaded_bytes: dict[tuple[str, str], int], model: str, quant: str, size: int, tower: int
) -> None:
    assert loaded_bytes[model, quant] + 2 * tower == size


@pytest.mark.parametrize(("model", "quant", "gigabytes", "half_a_step"), PRINTED_FILES)
def test_printed_sizes_within_their_rounding(
    loaded_bytes: dict[tuple[str, str], int], model: str, quant: str, gigabytes: float, half_a_step: float
) -> None:
    assert loaded_bytes[model, quant] / 1e9 == pytest.approx(gigabytes, abs=half_a_step)


@pytest.mark.parametrize(("model", "tiles"), TILES)
def test_fp8_tiles_are_those_the_published_total_counts(
    frames: dict[str, pl.DataFrame], tensors: tuple[pl.LazyFrame, pl.LazyFrame], model: str, tiles: int
) -> None:
    quantized = laid_out(frames, tensors, "fp8/e4m3-block128").filter(
        (pl.col("model") == model) & (pl.col("layout") == "fp8/e4m3-block128")
    )
    count = ((pl.col("n_rows") + 127) // 128) * ((pl.col("row_length") + 127) // 128)
    found = quantized.select((count * pl.col("n_matrices") * pl.col("n_layers")).sum()).collect().item()
    assert found == tiles


@pytest.mark.parametrize(("model", "published"), NVFP4_TOTALS)
def test_nvfp4_totals_as_the_hub_counts_them(
    frames: dict[str, pl.DataFrame], tensors: tuple[pl.LazyFrame, pl.LazyFrame], model: str, published: int
) -> None:
    numbers = pl.col("n_rows") * pl.col("row_length") * pl.col("n_matrices") * pl.col("n_layers")
    stored = pl.when(pl.col("layout") == "fp4/nvfp4").then(numbers // 2 + numbers // 16).otherwise(numbers)
    rows = laid_out(frames, tensors, "fp4/nvfp4").filter(pl.col("model") == model)
    assert rows.select(stored.sum()).collect().item() == published


def test_every_recipe_is_used(frames: dict[str, pl.DataFrame]) -> None:
    used = set(frames["checkpoint_layouts"]["recipe"].drop_nulls())
    assert used == set(frames["checkpoint_recipes"]["recipe"])


def test_layouts_have_the_density_of_their_format(frames: dict[str, pl.DataFrame]) -> None:
    """Packed bits, scales and zero points per group are the bits per weight that the format states."""
    layouts = frames["checkpoint_layouts"].filter(pl.col("group_size").is_not_null())
    per_group = 8 * pl.col("scale_bytes") + pl.col("zero_bits")
    outer = 8 * pl.col("outer_scale_bytes") / pl.col("outer_group_size")
    of_group = per_group / (pl.col("group_size") * pl.col("block_rows"))
    stated = frames["quants"].select("quant", "level", "exact_bpw")
    compared = (
        layouts.join(stated, left_on="layout", right_on="quant")
        .filter(pl.col("level") == "tensor-type")
        .select("layout", "exact_bpw", bpw=pl.col("bits") + of_group + outer.fill_null(0))
    )
    assert compared.height > 40
    off = compared.filter((pl.col("bpw") - pl.col("exact_bpw")).abs() > 1e-9)
    assert off.rows() == []


GOOD_LAYOUT = "native/bf16,r,,16,,1,0,0,,0,0,0,0,,,,a/b"
GOOD_RECIPE = "r,1,,,,,,,all,own,a/b"


def write(root: Path, layouts: list[str], recipes: list[str]) -> None:
    (root / "quants").mkdir()
    for path, model, rows in ((LAYOUTS_FILE, Layout, layouts), (RECIPES_FILE, RecipeRow, recipes)):
        text = "\n".join([",".join(model.model_fields), *rows]) + "\n"
        (root / path).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("layouts", "recipes", "message"),
    [
        ([GOOD_LAYOUT.replace("bf16", "bf17")], [GOOD_RECIPE], "unknown quant; nearest: native/bf16"),
        ([GOOD_LAYOUT.replace(",r,", ",s,")], [GOOD_RECIPE], "recipe = 's': unknown recipe"),
        ([GOOD_LAYOUT.replace(",r,,", ",r,x,")], [GOOD_RECIPE], "second_layout = 'x': unknown layout"),
        ([GOOD_LAYOUT.replace(",16,", ",64,")], [GOOD_RECIPE], "bits"),
        ([GOOD_LAYOUT.replace("1,0,0,,0", "1,0,0,256,0")], [GOOD_RECIPE], "is given with outer_scale_bytes"),
        ([GOOD_LAYOUT] * 2, [GOOD_RECIPE], "is given twice"),
        ([GOOD_LAYOUT], [GOOD_RECIPE] * 2, "is given twice"),
        ([GOOD_LAYOUT], ["r,1,,ffm,,,,,all,own,a/b", "r,2,,,,,,,all,own,a/b"], "part = 'ffm': unknown part"),
        ([GOOD_LAYOUT], ["r,1,,,,qwen9,,,all,own,a/b", "r,2,,,,,,,all,own,a/b"], "unknown model_type"),
        ([GOOD_LAYOUT], ["r,1,,,,,,,all,native/bf17,a/b"], "unknown layout; nearest: native/bf16"),
        ([GOOD_LAYOUT], ["r,1,,,,,,,all,second,a/b", "r,2,,,,,,,all,own,a/b"], "has no second_layout"),
        ([GOOD_LAYOUT], ["r,1,,ffn,,,,,all,own,a/b"], "needs a last row without a condition"),
        ([GOOD_LAYOUT], ["r,1,,,,,true,,all,own,a/b"], "needs a last row without a condition"),
        ([GOOD_LAYOUT.replace("0,,,,a/b", "0,64,,,a/b")], [GOOD_RECIPE], "whose layout always fits"),
    ],
)  # fmt: skip
def test_faulty_rows_are_refused(
    tmp_path: Path, layouts: list[str], recipes: list[str], message: str
) -> None:
    write(tmp_path, layouts, recipes)
    log = FaultLog(tmp_path)
    read_checkpoint_recipes(tmp_path, log, CitationUse(), ["native/bf16"])
    assert any(message in str(fault) for fault in log), list(map(str, log))


def test_good_rows_pass(tmp_path: Path) -> None:
    write(tmp_path, [GOOD_LAYOUT], [GOOD_RECIPE])
    log = FaultLog(tmp_path)
    frames = read_checkpoint_recipes(tmp_path, log, CitationUse(), ["native/bf16"])
    assert list(map(str, log)) == []
    assert {name: frame.height for name, frame in frames.items()} == {
        "checkpoint_layouts": 1, "checkpoint_recipes": 1,
    }  # fmt: skip
