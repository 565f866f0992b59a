"""Which type llama.cpp and ik_llama.cpp store each tensor in, for every file type, and in how many bytes.

The choices themselves are facts, one rule per row in `sources/quants/gguf_mix_rules.csv`; here they meet the
tensor census. How llama-quantize counts and compares is from llama.cpp 0c1e57098, src/llama-quant.cpp:
`tensor_get_category`, `llama_tensor_get_type_impl`, `tensor_type_fallback`; for the types of ik_llama.cpp
from 8337e4c, src/llama-quantize.cpp: `llama_tensor_get_type`. Pure polars.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.tensor_census import elements

LAYER_WORDS: Final = ("all", "first", "first_2", "first_4", "first_eighth", "first_eighth_counted",
                      "first_sixteenth", "middle", "more")  # fmt: skip
_POSITIONS: Final = tuple(word for word in LAYER_WORDS if word != "all")
_RULE_CONDITIONS: Final = ("gqa_min", "n_experts", "n_experts_min", "with_imatrix", "is_70b",
                           "is_large_vocab_8b", "is_falcon", "is_before_2026",
                           "row_not_multiple_of")  # fmt: skip
CATEGORIES: Final = ("output", "token_embd", "attn_v", "attn_k", "attn_q", "attn_output", "ffn_up",
                     "ffn_gate", "ffn_down", "other")  # fmt: skip
# Rules for some tensors only: the rule's word and the flag of the case that it asks for.
_SUBJECT_FLAGS: Final = {"expert": "is_stacked", "attn_qkv": "is_fused_qkv", "tied_output": "is_tied",
                         "shared_expert": "is_shared_expert", "named_attn_k": "is_named_attn_k",
                         "named_attn_q": "is_named_attn_q"}  # fmt: skip
_CASE: Final = ("category", "row_length", *_SUBJECT_FLAGS.values(), "gqa", "n_experts", "is_70b",
                "is_large_vocab_8b", "is_falcon", "by_rules", *_POSITIONS)  # fmt: skip
_ATTN_V: Final = ("attn_v", "attn_qkv", "attn_kv_b")
# llm_type 70B: src/models/llama.cpp, qwen2.cpp, deci.cpp, olmo.cpp. Model types that convert to llama's code:
# conversion/llama.py registers them.
LAYERS_OF_70B: Final = 80
# 8B, for rules that ask for it with a large vocabulary: ik_llama.cpp 8337e4c, src/llama-hparams.cpp.
LAYERS_OF_8B: Final = 32
LAYERS_OF_QWEN3_8B: Final = 36
HIDDEN_OF_QWEN3_4B: Final = 2560
LARGE_VOCABULARY: Final = 127_999
LLAMA_TYPES: Final = (
    "llama",
    "mistral",
    "mixtral",
    "aquila",
    "internlm",
    "internlm3",
    "iquestcoder",
    "hyperclovax",
)
QUANTIZED: Final = ("matrix", "padding")
F32_BYTES: Final = 4
BF16_BYTES: Final = 2
FALLBACK_STEPS: Final = 2


def category() -> pl.Expr:
    """The kind of tensor that rules speak of, by its name: `output`, `token_embd`, `attn_v` (values alone or
    fused with more), `attn_k`, `attn_q`, `attn_output`, `ffn_up`, `ffn_gate`, `ffn_down`, else `other`.

    Tied models have no `output`: their embeddings are quantized as one (reads is_tied).
    """
    name = pl.col("tensor")
    embeds = name.is_in(["token_embd", "per_layer_token_embd"])
    return (
        pl.when((name == "output") | (embeds & pl.col("is_tied")))
        .then(pl.lit("output"))
        .when(embeds)
        .then(pl.lit("token_embd"))
        .when(name.is_in(_ATTN_V))
        .then(pl.lit("attn_v"))
        .when(name.is_in(["attn_k", "indexer.attn_k"]))
        .then(pl.lit("attn_k"))
        .when(name.is_in(["attn_q", "attn_output"]))
        .then(name)
        .when(name.str.starts_with("ffn_up"))
        .then(pl.lit("ffn_up"))
        .when(name.str.starts_with("ffn_gate"))
        .then(pl.lit("ffn_gate"))
        .when(name.str.starts_with("ffn_down"))
        .then(pl.lit("ffn_down"))
        .otherwise(pl.lit("other"))
    )


def placed_tensors(census: pl.LazyFrame) -> pl.LazyFrame:
    """The census with one row per layer: adds `layer`, counted from 0 through prediction layers, null outside
    the layers.
    """
    runs = (
        census.filter(pl.col("group").is_not_null())
        .select("model", "group", "n_layers")
        .unique()
        .sort("model", "group")
        .with_columns(first=pl.col("n_layers").cum_sum().over("model") - pl.col("n_layers"))
        .select("model", "group", layer=pl.int_ranges("first", pl.col("first") + pl.col("n_layers")))
        .explode("layer")
    )
    outside = census.filter(pl.col("group").is_null()).with_columns(layer=pl.lit(None, dtype=pl.Int64))
    inside = census.join(runs.with_columns(pl.col("layer").cast(pl.Int64)), on=["model", "group"])
    return pl.concat([outside, inside]).drop("n_layers")


def positions(placed: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """Adds category and, per word of `LAYER_WORDS` but `all`, whether the tensor lies there.

    `placed`: matrices of `placed_tensors`; `models`: model, is_tied, n_experts. Attention values are counted
    among their like. Feed-forward tensors are counted by layer where there are experts, else among their
    like, against all layers of the file. `first_eighth_counted` counts among their like always.
    """
    last = pl.col("layer").max().over("model") + 1
    like = pl.int_range(pl.len()).over("model", "category")
    count = pl.len().over("model", "category")
    is_value = pl.col("category") == "attn_v"
    has_experts = (pl.col("n_experts").fill_null(0) > 1) & ~is_value
    return (
        placed.join(models.select("model", "is_tied", "n_experts"), on="model")
        .with_columns(category=category())
        .sort("model", "layer", "tensor", "storage", "n_rows", nulls_last=False)  # no ties: counted below
        .with_columns(
            counted=like.cast(pl.Int64),
            of=pl.when(is_value).then(count.cast(pl.Int64)).otherwise(last).fill_null(0),
        )
        .with_columns(index=pl.when(has_experts).then("layer").otherwise("counted").fill_null(0))
        .with_columns(**{word: _lies(word) for word in _POSITIONS})
        .drop("counted", "of", "index", "is_tied", "n_experts")
    )


def _lies(word: str) -> pl.Expr:
    i, n = pl.col("index"), pl.col("of")
    eighth, last_eighth = n // 8, 7 * n // 8
    where = {
        "first": pl.col("layer").fill_null(-1) == 0,
        "first_2": i < 2,
        "first_4": i < 4,
        "first_eighth": i < eighth,
        "first_eighth_counted": pl.col("counted") < eighth,
        "first_sixteenth": i < n // 16,
        "middle": (i >= eighth) & (i < last_eighth),
        "more": (i < eighth) | (i >= last_eighth) | ((i - eighth) % 3 == 2),
    }
    return where[word]


def tensor_groups(census: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """Matrices that no rule can tell apart, with and without prediction layers: one row per model, with_mtp,
    tensor, part, shape and position, and `n_tensors`, how many there are.

    `census`: `tensor_census.census`; `models`: model, is_tied, n_experts. Models without prediction layers
    have only with_mtp false.
    """
    placed = placed_tensors(census)
    plain = placed.filter(~pl.col("is_mtp")).with_columns(with_mtp=pl.lit(False))
    predicting = placed.filter("is_mtp").select("model").unique()
    whole = placed.join(predicting, on="model", how="semi").with_columns(with_mtp=pl.lit(True))
    keys = ["model", "with_mtp", "is_mtp", "tensor", "part", "storage", "category", "n_matrices", "n_rows",
            "row_length", *_POSITIONS]  # fmt: skip
    quantized = pl.col("storage").is_in(QUANTIZED)
    each = [
        positions(variant.filter(quantized), models).group_by(keys).agg(n_tensors=pl.len())
        for variant in (plain, whole)
    ]
    return pl.concat(each).select(*keys, pl.col("n_tensors").cast(pl.Int64))


def all_variants() -> pl.LazyFrame:
    """Every way a file type can be made: with_imatrix x is_before_2026."""
    flags = pl.LazyFrame({"flag": [False, True]})
    return flags.select(with_imatrix="flag").join(flags.select(is_before_2026="flag"), how="cross")


def tensor_types(
    groups: pl.LazyFrame,
    models: pl.LazyFrame,
    rules: pl.LazyFrame,
    fallbacks: pl.LazyFrame,
    recipes: pl.LazyFrame,
) -> pl.LazyFrame:
    """The type of every matrix in every file type: `groups` x quant x with_imatrix x is_before_2026, with
    tensor_type and is_fallback (the rule's own type did not fit).

    `models`: the columns of `quantize_facts`; `rules` and `fallbacks`: the tables gguf_mix_rules and
    gguf_fallbacks. The first rule whose conditions hold decides; a fallback applies where the row is not a
    whole number of blocks, twice if need be. 16-bit file types have no fallback. `recipes`: which quant,
    with_imatrix, is_before_2026 to work out.
    """
    facts = models.select("model", "gqa", "is_tied", "is_70b", "is_large_vocab_8b", "is_falcon",
                          "only_experts_stack", n_experts=pl.col("n_experts").fill_null(0))  # fmt: skip
    is_expert = pl.col("category").str.starts_with("ffn_")
    known = (
        _with_earlier_categories(groups)
        .join(facts, on="model")
        .with_columns(
            is_stacked=(pl.col("n_matrices") > 1) & (is_expert | ~pl.col("only_experts_stack")),
            is_fused_qkv=pl.col("tensor") == "attn_qkv",
            is_shared_expert=pl.col("tensor").str.ends_with("_shexp"),
            is_named_attn_k=pl.col("tensor").str.contains("attn_k", literal=True),
            is_named_attn_q=pl.col("tensor").str.contains("attn_q", literal=True),
        )
    )
    cases = (
        known.select(_CASE)
        .unique()
        .sort(_CASE)
        .with_row_index("case")
        .with_columns(pl.col("case").cast(pl.Int64))
    )
    decided = fitting_types(_first_rules(cases, rules, recipes), fallbacks)
    return (
        known.join(cases, on=_CASE)
        .join(decided, on="case")
        .drop("case", "gqa", "n_experts", "is_70b", "is_large_vocab_8b", "is_falcon", "only_experts_stack",
              "by_rules", *_SUBJECT_FLAGS.values())
    )  # fmt: skip


def _with_earlier_categories(groups: pl.LazyFrame) -> pl.LazyFrame:
    """Adds by_rules: which rules a row stands for, `all`, those of `before` 2026 or those `since`.

    Embeddings per layer follow the output of a tied model since the rules went by category (2026); before,
    their name alone decided, which is that of embeddings. The converter pads them since Gemma 3n's images
    are read (conversion/gemma.py), about the same time.
    """
    changes = (pl.col("tensor") == "per_layer_token_embd") & (pl.col("category") == "output")
    is_padding = pl.col("storage").cast(pl.String) == "padding"
    is_new = changes | is_padding
    marked = groups.with_columns(by_rules=pl.when(is_new).then(pl.lit("since")).otherwise(pl.lit("all")))
    earlier = groups.filter(changes & ~is_padding).with_columns(
        category=pl.lit("token_embd"), by_rules=pl.lit("before")
    )
    return pl.concat([marked, earlier])


def _first_rules(cases: pl.LazyFrame, rules: pl.LazyFrame, recipes: pl.LazyFrame) -> pl.LazyFrame:
    """case, row_length, quant, with_imatrix, is_before_2026, tensor_type: the first rule that holds."""
    named = rules.rename({name: f"rule_{name}" for name in (*_RULE_CONDITIONS, "tensor")})
    subjects = named.with_columns(category=_subjects()).explode("category")
    held = cases.join(subjects, on="category").join(recipes, on="quant").filter(_holds())
    return (
        held.sort("case", "quant", "order")
        .group_by("case", "quant", "with_imatrix", "is_before_2026", maintain_order=True)
        .agg(pl.col("row_length").first(), pl.col("tensor_type").first())
    )


def _subjects() -> pl.Expr:
    """The categories a rule is about, as a list."""
    subject = pl.col("rule_tensor").cast(pl.String)
    return (
        pl.when(subject.is_in(["any", "expert", "shared_expert", "named_attn_k", "named_attn_q"]))
        .then(pl.lit(list(CATEGORIES)))
        .when(subject == "attn_qkv")
        .then(pl.lit(["attn_v"]))
        .when(subject == "tied_output")
        .then(pl.lit(["output"]))
        .otherwise(pl.concat_list(subject))
    )


def _holds() -> pl.Expr:
    """Whether a rule's conditions hold for a case; a condition that is not given always does."""
    subject = pl.col("rule_tensor").cast(pl.String)
    layers = pl.col("layers").cast(pl.String)
    by_rules = pl.col("by_rules")
    conditions = (
        (by_rules == "all") | ((by_rules == "before") == pl.col("is_before_2026")),
        *((subject != word) | pl.col(name) for word, name in _SUBJECT_FLAGS.items()),
        (layers == "all") | pl.any_horizontal(*[(layers == word) & pl.col(word) for word in _POSITIONS]),
        _given("gqa_min", pl.col("gqa") >= pl.col("rule_gqa_min")),
        _given("n_experts", pl.col("n_experts") == pl.col("rule_n_experts")),
        _given("n_experts_min", pl.col("n_experts") >= pl.col("rule_n_experts_min")),
        _given("row_not_multiple_of", pl.col("row_length") % pl.col("rule_row_not_multiple_of") != 0),
        *(
            _given(name, pl.col(name) == pl.col(f"rule_{name}"))
            for name in ("with_imatrix", "is_before_2026", "is_70b", "is_large_vocab_8b", "is_falcon")
        ),
    )
    return pl.all_horizontal(*conditions)


def _given(condition: str, holds: pl.Expr) -> pl.Expr:
    return pl.col(f"rule_{condition}").is_null() | holds


def fitting_types(chosen: pl.LazyFrame, fallbacks: pl.LazyFrame) -> pl.LazyFrame:
    """Replaces tensor_type where row_length is not a whole number of its blocks; adds is_fallback."""
    replaced = chosen.with_columns(is_fallback=pl.lit(False))
    for _ in range(FALLBACK_STEPS):
        misfits = pl.col("row_length") % pl.col("row_multiple") != 0
        replaced = (
            replaced.join(fallbacks.select("tensor_type", "row_multiple", "fallback_type"),
                          on="tensor_type", how="left")
            .with_columns(misfits=misfits.fill_null(False))
            .with_columns(
                tensor_type=pl.when("misfits").then("fallback_type").otherwise("tensor_type"),
                is_fallback=pl.col("is_fallback") | pl.col("misfits"),
            )
            .drop("row_multiple", "fallback_type", "misfits")
        )  # fmt: skip
    return replaced.drop("row_length")


def typed_bytes(typed: pl.LazyFrame, tensor_types: pl.LazyFrame) -> pl.LazyFrame:
    """Adds `bytes` of all matrices of a row: whole blocks of their type and what it stores once per row; null
    where the row does not fit.

    `tensor_types`: tensor_type, block_size, block_bytes, row_overhead_bytes of the table quants.
    """
    fits = pl.col("row_length") % pl.col("block_size") == 0
    count = elements() * pl.col("n_tensors")
    rows = pl.col("n_matrices") * pl.col("n_rows") * pl.col("n_tensors")
    overhead = rows * pl.col("row_overhead_bytes").fill_null(0)
    size = (count // pl.col("block_size") * pl.col("block_bytes") + overhead).cast(pl.Int64)
    return typed.join(tensor_types, on="tensor_type").with_columns(bytes=pl.when(fits).then(size))


def quantize_facts(layers: pl.LazyFrame, models: pl.LazyFrame) -> pl.LazyFrame:
    """What the rules ask of a whole model: model, is_tied, n_experts, gqa, is_70b, is_large_vocab_8b (8B or
    70B with 127,999 tokens or more), is_falcon and only_experts_stack (Ling 3: rules for stacked tensors do
    not mean MLA's projections per head).

    `layers`: LAYER_GEOMETRY; `models`: MODEL_GEOMETRY and model_type. gqa is heads per KV head of the first
    layer, where llama.cpp sees one KV head in MLA and none in a recurrent layer (hparams.n_gqa, converters'
    head_count_kv), unless the architecture writes one number for all layers (gated delta networks).
    """
    heads = pl.col("n_heads").fill_null(0)
    is_latent = pl.col("kv_latent_dim").fill_null(0) > 0
    kv_heads = (
        pl.when(is_latent & pl.col("fused_kv_up"))
        .then(heads)
        .when(is_latent)
        .then(1)
        .otherwise(pl.col("n_kv_heads").fill_null(0))
    )
    per_layer = layers.filter(~pl.col("is_mtp")).with_columns(kv_heads=kv_heads, heads=heads)
    attends = pl.col("kv_heads") > 0
    first_gated = (pl.col("linear_kind") == "gated_delta").fill_null(False).first()
    first = (
        pl.when(first_gated)
        .then(pl.col("kv_heads").filter(attends).first())
        .otherwise(pl.col("kv_heads").first())
    )
    counted = per_layer.sort("model", "group").group_by("model", maintain_order=True).agg(
        n_experts=pl.col("n_experts").max(),
        first_heads=pl.when(first_gated).then(pl.col("heads").filter(attends).first()).otherwise(
            pl.col("heads").first()
        ),
        first_kv_heads=first,
        layer_count=pl.col("n_layers").cast(pl.Int64).sum(),
    )  # fmt: skip
    gqa = pl.when(pl.col("first_kv_heads") > 0).then(pl.col("first_heads") // pl.col("first_kv_heads"))
    is_70b = (pl.col("layer_count") == LAYERS_OF_70B) & (
        pl.col("model_type").is_in(["qwen2", "nemotron-nas", "deci", "olmo"])
        | (pl.col("model_type").is_in(LLAMA_TYPES) & (pl.col("first_heads") != pl.col("first_kv_heads")))
    )
    is_8b = ((pl.col("layer_count") == LAYERS_OF_8B) & pl.col("model_type").is_in(LLAMA_TYPES)) | (
        (pl.col("layer_count") == LAYERS_OF_QWEN3_8B) & (pl.col("model_type") == "qwen3")
        & (pl.col("hidden_size") != HIDDEN_OF_QWEN3_4B)
    )  # fmt: skip
    return models.join(counted, on="model").select(
        "model", "is_tied", "n_experts", gqa=gqa.fill_null(0), is_70b=is_70b,
        is_large_vocab_8b=(is_8b | is_70b) & (pl.col("vocab_size") >= LARGE_VOCABULARY),
        is_falcon=pl.col("model_type") == "falcon",
        only_experts_stack=pl.col("model_type") == "bailing_hybrid",
    )  # fmt: skip
