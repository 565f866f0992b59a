"""The model sources: counts against known totals, caches against hand arithmetic, messages for bad files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from estimator.attention_state import kv_cache_bytes
from pipeline.contracts.architectures.config_fields import known_fields
from pipeline.contracts.architectures.traits import all_traits
from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.hugging_face_config import interpret
from pipeline.contracts.models import read_models
from warehouse.dictionary import polars_schema, violations

ROOT = Path(__file__).parents[2] / "sources"
GOLDEN = Path(__file__).parents[1] / "golden"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
RECORD: dict[str, Any] = {
    "family": "Llama",
    "licence": "llama3.1",
    "release_date": "2024-07-18",
    "total_params": 8030261248,
    "provenance": "verbatim-config",
    "confidence": "high",
    "config": LLAMA,
    "cite": {"someone/llama": ["config", "total_params"]},
}
Write = Callable[..., Path]


@pytest.fixture(scope="session")
def tables() -> dict[str, pl.DataFrame]:
    log = FaultLog(ROOT)
    found = read_models(ROOT, log, CitationUse())
    assert [str(fault) for fault in log] == []
    return found


@pytest.fixture
def read(tmp_path: Path) -> Callable[[dict[str, Any]], tuple[dict[str, pl.DataFrame], list[str]]]:
    """Reads files given as {"org/name": record or raw text}."""

    def read_files(files: dict[str, Any]) -> tuple[dict[str, pl.DataFrame], list[str]]:
        for model, content in files.items():
            path = tmp_path / "models" / f"{model}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        log = FaultLog(tmp_path)
        found = read_models(tmp_path, log, CitationUse())
        return found, [str(fault) for fault in log]

    return read_files


def golden(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def with_config(**changes: Any) -> dict[str, Any]:
    config = {name: value for name, value in (LLAMA | changes).items() if value is not ...}
    return RECORD | {"config": config}


# the real sources


def test_tables_are_as_their_dictionaries_promise(tables: dict[str, pl.DataFrame]) -> None:
    assert violations(tables["models"], "models", {"models": tables["models"]}) == []
    assert violations(tables["layers"], "layers", {"models": tables["models"]}) == []


def test_most_models_are_published_and_each_other_says_why_not(tables: dict[str, pl.DataFrame]) -> None:
    models = tables["models"]
    assert models.filter("published").height >= 400
    assert models.filter(pl.col("published") == pl.col("unpublished_reason").is_not_null()).is_empty()
    published = models.filter("published")
    for column in ("computed_params", "active_params", "native_context_tokens", "attention_kind", "n_layers"):
        assert published[column].null_count() == 0, column
    assert set(published["model"]) <= set(tables["layers"]["model"])


@pytest.mark.parametrize("row", golden("model_parameters.csv"), ids=lambda row: row["model"])
def test_counted_parameters_equal_the_known_number(
    tables: dict[str, pl.DataFrame], row: dict[str, str]
) -> None:
    model = tables["models"].row(by_predicate=pl.col("model") == row["model"], named=True)
    predicting = model["mtp_params"] if row["with_prediction_layer"] == "true" else 0
    assert model["computed_params"] + predicting == int(row["parameters"]), row["basis"]


def test_layers_add_up_to_their_model(tables: dict[str, pl.DataFrame]) -> None:
    count = pl.col("n_layers").cast(pl.Int64)
    sums = tables["layers"].group_by("model").agg(
        layers=count.sum(),
        experts=(pl.col("expert_params") * count).sum(),
        body=(pl.sum_horizontal("mixer_params", "ffn_params", "norm_params") * count).sum(),
    )  # fmt: skip
    joined = tables["models"].join(sums, on="model")
    assert joined.filter(pl.col("layers") != pl.col("n_layers")).is_empty()
    assert joined.filter(pl.col("experts") != pl.col("expert_params")).is_empty()
    assert joined.filter(pl.col("body") > pl.col("body_params")).is_empty()
    parts = ("embedding_params", "head_params", "per_layer_embedding_params", "body_params", "expert_params")
    assert joined.filter(pl.sum_horizontal(parts) != pl.col("computed_params")).is_empty()


@pytest.mark.parametrize(
    "row", golden("kv_examples.csv"), ids=lambda row: f"{row['attention']} {row['model']}"
)
def test_cache_equals_hand_arithmetic_to_the_byte(
    tables: dict[str, pl.DataFrame], row: dict[str, str]
) -> None:
    layers = tables["layers"].filter(pl.col("model") == row["model"])
    if row["attention"].startswith("MTP head"):  # the prediction layer is one more layer of the last kind
        layers = layers.tail(1).with_columns(n_layers=pl.lit(1, pl.Int16))
    near, far = 2**21, 2**22  # beyond every window
    cached = kv_cache_bytes(layers.lazy(), [near, far], (2, 2)).sort("context_tokens").collect()
    per_token = (cached["kv_bytes"][1] - cached["kv_bytes"][0]) / (far - near)
    fixed = cached["kv_bytes"][0] - per_token * near + cached["state_bytes"][0]
    assert per_token == int(row["bytes_per_token"])
    if row["attention"].startswith("Cross"):  # the fixed part is per image, see tests/estimator
        assert fixed == 0
    elif row["fixed_bytes"]:
        assert fixed == int(row["fixed_bytes"])


# interpretation of configurations


@pytest.mark.parametrize(
    ("changes", "mixers"),
    [
        ({"model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": False}, {"full": 32}),
        ({"model_type": "llama", "sliding_window": 4096}, {"full": 32}),  # a window alone means nothing
        ({"model_type": "mistral", "sliding_window": 4096}, {"sliding": 32}),
        ({"model_type": "mistral", "sliding_window": None}, {"full": 32}),
        ({"model_type": "phi3", "sliding_window": 262144}, {"full": 32}),  # longer than the context
        ({"model_type": "gemma2", "sliding_window": 4096}, {"sliding": 16, "full": 16}),
        ({"model_type": "gemma3_text", "sliding_window": 512}, {"sliding": 27, "full": 5}),
        ({"model_type": "exaone4", "sliding_window": 99, "sliding_window_pattern": "LLLG"},
         {"sliding": 24, "full": 8}),
        ({"model_type": "llama4", "attention_chunk_size": 8192, "no_rope_layers": []},
         {"chunked": 24, "full": 8}),
        ({"model_type": "mllama", "cross_attention_layers": [3, 8]}, {"cross": 2, "full": 30}),
        ({"model_type": "llama", "layer_types": ["full_attention"] * 32}, {"full": 32}),
    ],
)  # fmt: skip
def test_which_layers_slide(changes: dict[str, Any], mixers: dict[str, int]) -> None:
    found: dict[str, int] = {}
    shapes = interpret(LLAMA | changes)
    assert shapes.missing == ()
    for run in shapes.layers:
        found[run["mixer"]] = found.get(run["mixer"], 0) + run["n_layers"]
    assert found == mixers


@pytest.mark.parametrize(
    ("changes", "moe_layers"),
    [
        ({"n_routed_experts": 8, "first_k_dense_replace": 3, "n_shared_experts": 1}, 29),
        ({"num_local_experts": 8, "interleave_moe_layer_step": 2}, 16),
        ({"num_experts": 8, "mlp_only_layers": [0, 1]}, 30),
        ({"num_experts": 8, "decoder_sparse_step": 2}, 16),
        ({"moe_num_experts": 8, "moe_layer_start_index": 3, "moe_layer_end_index": 30}, 28),
        ({"num_experts": 8, "expert_layer_period": 2, "expert_layer_offset": 1}, 16),
        ({"num_experts": 8, "mlp_layer_types": ["dense"] + ["sparse"] * 31}, 31),
        ({"num_experts": 8, "moe_layer_freq": [0, 0] + [1] * 30}, 30),
        ({"num_experts": 1}, 0),
    ],
)  # fmt: skip
def test_which_layers_have_experts(changes: dict[str, Any], moe_layers: int) -> None:
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
    runs = interpret(LLAMA | experts | changes).layers
    assert sum(run["n_layers"] for run in runs if run["ffn"] == "moe") == moe_layers


def test_other_names_for_the_same_sizes() -> None:
    gpt2 = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    shapes = interpret(gpt2)
    (run,) = shapes.layers
    assert (run["n_layers"], run["n_heads"], run["k_head_dim"], run["ffn_size"]) == (12, 12, 64, 3072)
    assert (shapes.native_context_tokens, shapes.architecture) == (1024, "GPT2LMHeadModel")
    nested = interpret({"model_type": "qwen3_vl", "text_config": LLAMA | {"model_type": "qwen3_vl_text"}})
    assert nested.layers[0]["n_kv_heads"] == 8


# what a bad file is told

MESSAGES: list[tuple[str, dict[str, Any], str]] = [
    ("unknown field", {"a/b": RECORD | {"colour": "blue"}},
     "models/a/b.json: colour = 'blue': unknown field"),
    ("another id", {"a/b": RECORD | {"id": "a/c"}},
     "models/a/b.json: id = 'a/c': must be 'a/b', the id its path gives, or be left out"),
    ("no organisation", {"b": RECORD},
     "models/b.json: path = 'b': must be models/<organisation>/<name>.json"),
    ("case", {"a/Model": RECORD, "a/model": RECORD},
     "models/a/model.json: id = 'a/model': already given as 'a/Model' (case does not count)"),
    ("uncited total", {"a/b": RECORD | {"cite": {"someone/llama": ["config"]}}},
     "models/a/b.json: total_params = 8030261248: number without a citation: list it under [cite]"),
    ("uncited config", {"a/b": RECORD | {"cite": {"someone/llama": ["total_params"]}}},
     "models/a/b.json: config: without a citation: list it under cite"),
    ("total by a thousand", {"a/b": RECORD | {"total_params": 8030261248000}},
     "models/a/b.json: total_params = 8030261248000: the configuration amounts to 8030261248, -99.90%: "
     "give params_difference"),
    ("total by the scales of a quantized copy", {"a/b": RECORD | {"total_params": 8030687168}},
     "models/a/b.json: total_params = 8030687168: the configuration amounts to 8030261248, -0.0053%: "
     "give params_difference"),
    ("implausible total", {"a/b": RECORD | {"total_params": 8030}},
     "models/a/b.json: total_params = 8030: must be at least 1000000"),
    ("needless difference",
     {"a/b": RECORD | {"params_difference": {"reason": "vision", "certainty": "plausible"}}},
     "models/a/b.json: params_difference: is not needed: the configuration amounts to 8030261248, +0.00%"),
    ("certainty", {"a/b": RECORD | {"params_difference": {"reason": "vision", "certainty": "plausable"}}},
     "models/a/b.json: params_difference.certainty = 'plausable': must be one of stated, plausible; "
     "nearest: plausible"),
    ("missing size", {"a/b": with_config(intermediate_size=...)},
     "models/a/b.json: config.intermediate_size: the shapes need it: give it, or list it under missing"),
    ("size as text", {"a/b": with_config(hidden_size="4096")},
     "models/a/b.json: config.hidden_size: the shapes need it: give it, or list it under missing"),
    ("not missing", {"a/b": RECORD | {"missing": ["head_dim"]}},
     "models/a/b.json: missing = 'head_dim': is not missing: the shapes are complete without it"),
    ("unknown architecture", {"a/b": with_config(model_type="lama")},
     "models/a/b.json: config.model_type = 'lama': unknown architecture; nearest: llama; describe it in "
     "traits.toml or give unpublished_reason"),
    ("strange layer", {"a/b": with_config(layer_types=["full_attention"] * 31 + ["holographic"])},
     "models/a/b.json: config.layer_types: the shapes need it: give it, or list it under missing"),
    ("too many layers", {"a/b": with_config(num_hidden_layers=10**12)},
     "models/a/b.json: config.num_hidden_layers: the shapes need it: give it, or list it under missing"),
    ("not a configuration",
     {"a/b": with_config(model_type="nemotron-nas", block_configs=[{"attention": {}}])},
     "models/a/b.json: config: cannot be read as a configuration: KeyError 'ffn'"),
    ("misspelt field", {"a/b": with_config(num_key_value_heads=..., num_key_value_head=8)},
     "models/a/b.json: config.num_key_value_head: unknown configuration field; nearest: num_key_value_heads; "
     "if it is real, add it to config_fields.toml"),
    ("heads", {"a/b": with_config(num_key_value_heads=7)},
     "models/a/b.json: config.num_key_value_heads = 7: 32 query heads are not a multiple of 7 key-value "
     "heads"),
    ("experts", {"a/b": with_config(num_experts=4, num_experts_per_tok=8, moe_intermediate_size=64)},
     "models/a/b.json: config.num_experts_per_tok = 8: a token cannot use more than the 4 experts there are"),
    ("dangling base", {"a/b": RECORD, "a/c": RECORD | {"config_equals": "a/bb"}},
     "models/a/c.json: config_equals = 'a/bb': unknown model; nearest: a/b"),
    ("chained base",
     {"a/b": RECORD, "a/c": RECORD | {"config_equals": "a/b"}, "a/d": RECORD | {"config_equals": "a/c"}},
     "models/a/d.json: config_equals = 'a/c': must name 'a/b', which it equals itself"),
    ("date", {"a/b": RECORD | {"release_date": "18.07.2024"}},
     "models/a/b.json: release_date = '18.07.2024': must be a date written YYYY-MM-DD"),
    ("filled without reason", {"a/b": RECORD | {"filled": {"head_dim": 128}}},
     "models/a/b.json: filled and filled_reason are given together"),
    ("filled twice", {"a/b": RECORD | {"filled": {"hidden_size": 1}, "filled_reason": "x"}},
     "models/a/b.json: filled repeats config: hidden_size"),
    ("a key twice", {"a/b": '{"family": "A", "family": "B"}'},
     "models/a/b.json: broken JSON: key family is given twice"),
    ("no JSON", {"a/b": '{"family": \n}'}, "models/a/b.json:2: broken JSON: Expecting value"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "message"), [pytest.param(*case[1:], id=case[0]) for case in MESSAGES])
def test_a_bad_file_is_told_what_is_wrong(
    read: Callable[[dict[str, Any]], tuple[dict[str, pl.DataFrame], list[str]]],
    files: dict[str, Any],
    message: str,
) -> None:
    _, faults = read(files)
    assert message in faults


def test_faults_of_several_files_come_together_and_the_sound_ones_are_kept(
    read: Callable[[dict[str, Any]], tuple[dict[str, pl.DataFrame], list[str]]],
) -> None:
    found, faults = read({"a/b": RECORD, "a/c": RECORD | {"x": 1}, "a/d": with_config(vocab_size=...)})
    assert len(faults) == 2
    assert found["models"]["model"].to_list() == ["a/b"]


def test_an_incomplete_model_is_kept_unpublished_with_empty_counts(
    read: Callable[[dict[str, Any]], tuple[dict[str, pl.DataFrame], list[str]]],
) -> None:
    found, faults = read({"a/b": with_config(intermediate_size=...) | {"missing": ["intermediate_size"]}})
    assert faults == []
    (row,) = found["models"].rows(named=True)
    assert (row["published"], row["computed_params"], row["hidden_size"]) == (False, None, 4096)
    assert row["unpublished_reason"] == "configuration lacks intermediate_size"
    assert found["layers"].is_empty()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (RECORD | {"confidence": "low"}, "low confidence"),
        (with_config(max_position_embeddings=...), "native context length not known"),
        (RECORD | {"unpublished_reason": "gated"}, "gated"),
    ],
)
def test_why_a_complete_model_is_not_published(
    read: Callable[[dict[str, Any]], tuple[dict[str, pl.DataFrame], list[str]]],
    record: dict[str, Any],
    reason: str,
) -> None:
    found, faults = read({"a/b": record})
    assert faults == []
    assert found["models"]["unpublished_reason"].to_list() == [reason]


def test_a_model_completes_its_configuration_from_the_one_it_equals(
    read: Callable[[dict[str, Any]], tuple[dict[str, pl.DataFrame], list[str]]],
) -> None:
    sparse = with_config(intermediate_size=..., vocab_size=1000) | {"config_equals": "a/b"}
    found, faults = read({"a/b": RECORD, "a/c": {k: v for k, v in sparse.items() if k != "total_params"}
                          | {"cite": {"someone/llama": ["config"]}}})  # fmt: skip
    assert faults == []
    assert found["models"]["ffn_size"].to_list() == [14336, 14336]
    assert found["models"]["vocab_size"].to_list() == [128256, 1000]


def test_no_files_give_empty_tables_with_the_right_columns(tmp_path: Path) -> None:
    found = read_models(tmp_path, FaultLog(tmp_path), CitationUse())
    for name, frame in found.items():
        assert frame.schema == pl.Schema(polars_schema(name))
        assert frame.is_empty()


def test_every_architecture_names_only_fields_that_exist() -> None:
    for traits in all_traits().values():
        flags = [traits.qkv_bias, traits.o_bias, traits.ffn_bias, traits.head_bias, traits.qk_norm_if]
        named = {*traits.needs, *(flag for flag in flags if isinstance(flag, str) and flag)}
        assert named <= known_fields(), traits.model_type
