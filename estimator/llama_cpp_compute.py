"""Compute buffers that llama.cpp reserves, in closed form, per device and on the host.

llama.cpp plans one graph for a full micro-batch and reserves what its allocator needs at the widest place.
The forms below name what is alive there: input rows, masks, the feed-forward or the mixer of the widest
layer, the logits. They follow ggml-alloc.c and src/models/*.cpp at 0c1e57098 and were read off its own
planner; where no form is known a coefficient per model (sources/coefficients/llama_cpp_compute.csv) takes the
place of a part.

Sizes are counted in 4-byte floats: `*_floats` per micro-batch token, `slot_floats` per sequence.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.llama_cpp_context import sequence_cells, window_cells

F32_BYTES: Final = 4
MASK_BYTES: Final = 2  # masks are f16 with flash attention, f32 without
PIPELINE_COPIES: Final = 4  # GGML_SCHED_MAX_COPIES: inputs of a pipeline exist four times
OUTPUT_COPY_ROWS: Final = 8
FIRST_DEVICE_ROWS: Final = 4
POSITION_ROWS: Final = 3
POSITION_FLOATS: Final = 5  # positions and the indices of keys and values written
WINDOW_POSITION_FLOATS: Final = 4
INDEXER_POSITION_FLOATS: Final = 32
GATED_MATRICES: Final = 3
ROTATION_WIDTH: Final = 64

COEFFICIENTS: Final = (
    "layer_floats",
    "slot_floats",
    "output_floats",
    "output_masks",
    "score_floats",
    "first_device_floats",
    "last_device_floats",
    "first_device_scores_floats",
    "last_device_scores_floats",
    "rotated_floats",
)


def _number(column: str) -> pl.Expr:
    return pl.col(column).fill_null(0).cast(pl.Float64)


def dense_floats() -> pl.Expr:
    """Dense feed-forward: gate, up and their product; up alone without a gate. Reads ffn, ffn_size,
    ffn_matrices.
    """
    kept = pl.when(pl.col("ffn_matrices") == GATED_MATRICES).then(3.0).otherwise(1.0)
    return pl.when(pl.col("ffn") == "dense").then(kept * _number("ffn_size")).otherwise(0.0)


def routed_floats(attention: pl.Expr) -> pl.Expr:
    """Routed experts: p = experts used x their width, q = experts used x hidden size.

    3p where 2p >= q, 2p + q where the attention output's place holds p, else 3p + q; p + q without a gate.
    The allocator puts q into the place that gate and up have left when it fits.
    """
    used = _number("n_experts_used")
    inner = used * _number("expert_ffn_size")
    outer = used * pl.coalesce("expert_input_size", "hidden_size").cast(pl.Float64)
    small = pl.when(inner < attention).then(2 * inner + outer).otherwise(3 * inner + outer)
    gated = pl.when(2 * inner >= outer).then(3 * inner).otherwise(small)
    floats = pl.when(pl.col("ffn_matrices") == GATED_MATRICES).then(gated).otherwise(inner + outer)
    return pl.when(pl.col("ffn") == "moe").then(floats).otherwise(0.0)


def _projected_rows() -> pl.Expr:
    """One hidden row more where experts read a projection narrower than the hidden row (latent experts)."""
    narrow = _number("expert_input_size").is_between(1, _number("hidden_size") - 1)
    return pl.when((pl.col("ffn") == "moe") & narrow).then(_number("hidden_size")).otherwise(0.0)


def staged_routed_floats(attention: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """As `routed_floats`, on the first and on the later devices of a pipeline, beside shared experts.

    With a gate: the attention output's place is a hidden row smaller on later devices (on the first as well
    with norms behind the block), so that p does not fit where it fits on one device; with latent attention q
    does not fit the place of gate and up. Without a gate: a row less on the first device; on later ones
    none of the attention output's place.
    """
    used, hidden = _number("n_experts_used"), _number("hidden_size")
    inner = used * _number("expert_ffn_size")
    outer = used * pl.coalesce("expert_input_size", "hidden_size").cast(pl.Float64)
    is_shared = (pl.col("ffn") == "moe") & (_number("shared_ffn_size") > 0)
    gated = pl.col("ffn_matrices") == GATED_MATRICES
    fills = is_shared & gated & (attention > hidden) & (2 * inner < outer) & (inner > attention - hidden)
    pushed = is_shared & gated & pl.col("is_latent") & (2 * inner >= outer)
    whole, of_one = 3 * inner + outer, routed_floats(attention)
    early = (inner < attention) | (pl.col("rotated_attention") == "kept")
    kept = pl.max_horizontal(hidden, attention)
    first = (
        pl.when(fills & early).then(whole - hidden)
        .when(pushed).then(whole)
        .when(is_shared & ~gated).then(of_one - hidden + _projected_rows())
        .otherwise(of_one)
    )  # fmt: skip
    later = (
        pl.when(fills).then(whole - hidden)
        .when(pushed).then(whole)
        .when(is_shared & ~gated).then(of_one - kept + _projected_rows())
        .otherwise(of_one)
    )  # fmt: skip
    return first, later


def _staged_shared_floats(attention: pl.Expr) -> pl.Expr:
    """As `shared_floats` in a pipeline: where no attention output lies beside it, its gate takes the routed
    experts' place and leaves what it does not fill.
    """
    inner = _number("shared_ffn_size")
    outer = _number("n_experts_used") * _number("hidden_size")
    left = pl.when((attention == 0) & (inner > 0)).then((outer - inner).clip(0)).otherwise(0.0)
    return shared_floats() + pl.when(pl.col("ffn") == "moe").then(left).otherwise(0.0)


def shared_floats() -> pl.Expr:
    """Shared experts beside the routed experts' result, one hidden row; none without shared experts."""
    shared = 3 * _number("shared_ffn_size") + _number("hidden_size")
    return pl.when((pl.col("ffn") == "moe") & (_number("shared_ffn_size") > 0)).then(shared).otherwise(0.0)


def _attention_floats() -> pl.Expr:
    """Attention output of one layer: heads x head size of the values."""
    return _number("n_heads") * _number("v_head_dim")


def _query_floats() -> pl.Expr:
    """Queries of one layer: heads x head size (of the value under MLA)."""
    size = pl.when("is_latent").then("v_head_dim").otherwise("k_head_dim")
    return _number("n_heads") * size.fill_null(0).cast(pl.Float64)


def _rows_of_attention(attention: pl.Expr) -> pl.Expr:
    words = pl.col("attention_rows")
    return (
        pl.when(words == "none")
        .then(0.0)
        .when(words == "hidden")
        .then(_number("hidden_size"))
        .otherwise(attention)
    )


def absorbed_floats() -> pl.Expr:
    """MLA with absorbed keys: per head two latents and the query, beside hidden rows.

    Three rows behind routed experts, whose result lies beside the input; with dense layers alone two and one
    latent.
    """
    per_head = 2 * _number("latent_dim") + _number("k_head_dim")
    routed = (pl.col("ffn") == "moe").any().over("model")
    beside = pl.when(routed).then("hidden_size").otherwise("kv_latent_dim").cast(pl.Float64)
    return 2 * _number("hidden_size") + beside + _number("n_heads") * per_head


def channels() -> pl.Expr:
    """Channels of the convolution before a recurrence: x, B and C of Mamba-2; q, k and v of linear
    attention."""
    keys = _number("linear_key_heads") * _number("linear_key_dim")
    values = _number("linear_value_heads") * _number("linear_value_dim")
    mamba = _number("mamba_inner") + 2 * _number("mamba_groups") * _number("mamba_state")
    return 2 * keys + values + mamba


def _is_second_mamba() -> pl.Expr:
    return _number("mamba_heads") > 0


def projection_floats() -> pl.Expr:
    """Input projection of Mamba-2: gate, channels and time steps."""
    return _number("mamba_inner") + channels() + _number("mamba_heads")


def _rows_before_scan() -> pl.Expr:
    """Rows alive beside the scan of Mamba-2.

    Three hidden rows; two in a model of nothing else; beside attention of the same layer two and its output.
    """
    hidden = _number("hidden_size")
    mixes_alone = ((pl.col("mixer") == "mamba") & (pl.col("ffn") == "none")).all().over("model")
    third = (
        pl.when(pl.col("mixer") != "mamba").then(_attention_floats())
        .when(mixes_alone).then(0.0)
        .otherwise(hidden)
    )  # fmt: skip
    return 2 * hidden + third


def recurrent_floats() -> pl.Expr:
    """Per token, the widest place of a recurrent mixer.

    Mamba-1: two hidden rows and five inner rows. Mamba-2: the rows before the scan, the input projection, two
    rows of channels, the scan's output. Linear attention with a convolution: two hidden rows, three rows of
    channels.
    """
    inner, hidden = _number("mamba_inner"), _number("hidden_size")
    second = _rows_before_scan() + projection_floats() + 2 * channels() + inner
    first = 2 * hidden + 5 * inner
    linear = 2 * hidden + 3 * channels()
    return (
        pl.when(_is_second_mamba()).then(second)
        .when(pl.col("mixer") == "mamba").then(first)
        .when(pl.col("mixer") == "linear").then(linear)
        .otherwise(0.0)
    )  # fmt: skip


def recurrent_slot_floats() -> pl.Expr:
    """Per sequence, beside `recurrent_floats`: past inputs of the convolution twice, and the scan's state."""
    past = (
        2
        * (_number("conv_kernel") - 1).clip(0)
        * pl.when(pl.col("mixer") == "linear")
        .then(channels())
        .when(_is_second_mamba())
        .then(channels())
        .otherwise(_number("mamba_inner"))
    )
    state = (
        pl.when((pl.col("mixer") == "mamba") | _is_second_mamba())
        .then(_number("mamba_inner") * _number("mamba_state"))
        .otherwise(0.0)
    )
    recurs = pl.col("mixer").is_in(["mamba", "linear"]) | _is_second_mamba()
    return pl.when(recurs).then(past + state).otherwise(0.0)


def scan_floats() -> pl.Expr:
    """Per token, linear attention while its scan works: three hidden rows, one row of channels, three of
    values.
    """
    values = _number("linear_value_heads") * _number("linear_value_dim")
    floats = 3 * _number("hidden_size") + channels() + 3 * values
    return pl.when(pl.col("mixer") == "linear").then(floats).otherwise(0.0)


def scan_slot_floats() -> pl.Expr:
    """Per sequence, beside `scan_floats`: past inputs of the convolution, and the state before and after."""
    state = _number("linear_value_heads") * _number("linear_value_dim") * _number("linear_key_dim")
    past = (_number("conv_kernel") - 1).clip(0) * channels()
    return pl.when(pl.col("mixer") == "linear").then(past + 2 * state).otherwise(0.0)


def copied_state_floats() -> tuple[pl.Expr, pl.Expr]:
    """What devices hold more where two of a pipeline part behind a Mamba block: four copies of rows that
    cross over, on the device before and on the one behind.

    Mamba-1: inner rows before, two behind. Mamba-2 in blocks of its own without
    experts anywhere: inner rows before, input projections behind.
    """
    inner = _number("mamba_inner")
    first = (pl.col("mixer") == "mamba") & ~_is_second_mamba()
    routes = (pl.col("ffn") == "moe").any().over("model")
    second = (pl.col("mixer") == "mamba") & (pl.col("ffn") == "none") & _is_second_mamba() & ~routes
    before = pl.when(first | second).then(inner).otherwise(0.0)
    behind = pl.when(first).then(2 * inner).when(second).then(projection_floats()).otherwise(0.0)
    return PIPELINE_COPIES * before, PIPELINE_COPIES * behind


def _by_layer(of: pl.Expr) -> pl.Expr:
    """One entry per layer of the model, in order."""
    return of.repeat_by(pl.col("n_layers").cast(pl.Int64)).explode()


def _counted(of: pl.Expr) -> pl.Expr:
    """How many of the layers before each position are such layers: one entry more than layers."""
    return pl.concat([pl.lit(pl.Series([0], dtype=pl.Int64)), _by_layer(of.cast(pl.Int64)).cum_sum()])


def compute_shapes(cached: pl.LazyFrame) -> pl.LazyFrame:
    """One row per model: what the buffer's forms need, from the layers of `with_llama_cpp_layers`.

    Out: model, hidden_size, vocab_size, and the floats of every part.
    """
    attention = _attention_floats()
    kept = pl.col("widest_attention")
    feeds = pl.max_horizontal(dense_floats(), routed_floats(kept) + _projected_rows(), shared_floats())
    first, later = staged_routed_floats(kept)
    staged = [pl.max_horizontal(dense_floats(), of, _staged_shared_floats(kept)) for of in (first, later)]
    crossing_before, crossing_behind = copied_state_floats()
    indexed = _number("index_head_dim") > 0
    attends = pl.col("mixer").is_in(["full", "sliding", "chunked", "mla"])
    windowed = attends & pl.col("used_window_tokens").is_not_null()
    return (
        cached.with_columns(attention=attention)
        .with_columns(widest_attention=_rows_of_attention(pl.col("attention").max().over("model")))
        .group_by("model", maintain_order=True)
        .agg(
            hidden_size=pl.col("hidden_size").first().cast(pl.Float64),
            vocab_size=pl.col("vocab_size").first().cast(pl.Float64),
            attends=attends.any(),
            is_latent=pl.col("is_latent").any(),
            used_window_tokens=pl.col("used_window_tokens").max(),
            n_heads=pl.col("n_heads").fill_null(0).max().cast(pl.Float64),
            full_heads=pl.col("n_heads").filter(attends & pl.col("used_window_tokens").is_null()).max()
            .fill_null(0).cast(pl.Float64),
            window_heads=pl.col("n_heads").filter(pl.col("used_window_tokens").is_not_null()).max()
            .fill_null(0).cast(pl.Float64),
            attention_width=_query_floats().max(),
            key_width=pl.col("key_width").max().cast(pl.Float64),
            value_width=pl.col("value_width").max().cast(pl.Float64),
            feed_floats=feeds.max() + pl.col("widest_attention").first()
            + (2 + pl.col("extra_rows").first()) * pl.col("hidden_size").first(),
            first_feed_floats=staged[0].max() + kept.first()
            + (2 + pl.col("extra_rows").first()) * pl.col("hidden_size").first(),
            later_feed_floats=staged[1].max() + kept.first()
            + (2 + pl.col("extra_rows").first()) * pl.col("hidden_size").first(),
            crossing_before=_by_layer(crossing_before),
            crossing_behind=_by_layer(crossing_behind),
            whole_layers=_counted(attends & ~windowed),
            window_layers=_counted(windowed),
            unit_count=pl.col("all_layers").first() + 1,
            counted_layers=pl.col("n_layers").sum().cast(pl.Int64),
            scan_floats=scan_floats().max(),
            scan_slot_floats=scan_slot_floats().max(),
            absorbed_floats=pl.when("is_latent").then(absorbed_floats()).otherwise(0.0).max(),
            recurrent_floats=recurrent_floats().max(),
            recurrent_slot_floats=recurrent_slot_floats().max(),
            index_layers=pl.col("n_layers").filter(indexed).sum().cast(pl.Float64),
            sparse_layers=pl.col("n_layers").filter(pl.col("selected_tokens") > 0).sum().cast(pl.Float64),
            selected_tokens=pl.col("selected_tokens").max().fill_null(0).cast(pl.Float64),
            index_floats=(_number("index_n_heads") * _number("index_head_dim")).max(),
            query_floats=pl.when("is_latent").then(_number("q_latent_dim") + _number("n_heads")
            * (_number("k_head_dim") + _number("kv_latent_dim"))).otherwise(0.0).max(),
            cached_query_floats=pl.when("is_latent").then(_number("n_heads") * _number("latent_dim"))
            .otherwise(0.0).max(),
            rope_floats=pl.when("is_latent").then(_number("n_heads") * _number("qk_rope_dim"))
            .otherwise(0.0).max(),
            value_latent_floats=pl.when("is_latent").then(_number("n_heads") * _number("kv_latent_dim"))
            .otherwise(0.0).max(),
            query_latent_dim=_number("q_latent_dim").max(),
            per_layer_floats=(_number("per_layer_input_size") * pl.col("n_layers")).sum(),
            output_rows=pl.col("output_rows").first().cast(pl.Float64),
            last_rows=pl.col("last_rows").first().cast(pl.Float64),
            position_rows=pl.col("position_rows").first().cast(pl.Float64),
            score_query_rows=pl.col("score_query_rows").first().cast(pl.Float64),
            score_hidden_rows=pl.col("score_hidden_rows").first().cast(pl.Float64),
            routes=(pl.col("ffn") == "moe").any(),
            shared_rows=((pl.col("ffn") == "moe") & (_number("shared_ffn_size") > 0)).any().cast(pl.Float64),
            kept_attention=pl.col("widest_attention").first(),
            kv_latent_dim=_number("kv_latent_dim").max(),
            plain_query_floats=(_number("n_heads") * _number("k_head_dim")).max(),
            rotated_attention=pl.col("rotated_attention").first(),
            key_rotation=_rotation_elements(attends & pl.col("used_window_tokens").is_null()),
            window_key_rotation=_rotation_elements(pl.col("used_window_tokens").is_not_null()),
        )
    )  # fmt: skip


def _rotation_elements(of: pl.Expr) -> pl.Expr:
    """Elements of the rotation of keys in one cache: the largest power of two from 64 that divides the head
    size, squared; 0 where head sizes differ or do not divide.
    """
    size = pl.when("is_latent").then("latent_dim").otherwise("k_head_dim").cast(pl.Int64).filter(of)
    width = size.max()
    power = (
        pl.when(width % 512 == 0).then(512).when(width % 256 == 0).then(256).when(width % 128 == 0).then(128)
        .when(width % ROTATION_WIDTH == 0).then(ROTATION_WIDTH).otherwise(0)
    )  # fmt: skip
    return pl.when(size.n_unique() == 1).then(power * power).otherwise(0).cast(pl.Float64)


def rotation_floats() -> pl.Expr:
    """Floats of the rotations that a quantised cache needs: of the keys of every cache, and of its values,
    whose width is always 64 (llama-kv-cache.cpp attn_rot_k and attn_rot_v).
    """
    quantised = pl.col("k_bytes_per_element") < MASK_BYTES
    keys = pl.col("key_rotation") + pl.col("window_key_rotation")
    caches = (pl.col("key_rotation") > 0).cast(pl.Float64) + (pl.col("window_key_rotation") > 0)
    values = pl.when("is_latent").then(0.0).otherwise(caches * ROTATION_WIDTH**2)
    return pl.when(quantised).then(keys + values).otherwise(0.0)


def rotation_bytes() -> pl.Expr:
    """Quantised keys and values are rotated before they are stored: the rotations, and what the rotated query
    changes in the layer.

    A rotated query lies in a place of its own: the attention output's place holds the hidden row when both
    are of one size, and a smaller one cannot be used again. Read off the planner.
    """
    attention, hidden = pl.col("attention_width"), pl.col("hidden_size")
    serial = (
        pl.when(attention < hidden).then(attention).when(attention == hidden).then(-hidden).otherwise(0.0)
    )
    moved = (
        pl.when("is_latent").then(0.0)
        .when(pl.col("rotated_attention") == "serial").then(serial)
        .when(pl.col("rotated_attention") == "row").then(hidden)
        .otherwise(0.0)
    )  # fmt: skip
    rotated = rotation_floats() + _number("ubatch_tokens") * pl.coalesce("rotated_floats", moved)
    return pl.when(rotation_floats() > 0).then(F32_BYTES * rotated).otherwise(0.0)


def attention_mask_cells() -> pl.Expr:
    """Cells that the attention masks span, full and windowed; none without attention."""
    window = window_cells(pl.col("used_window_tokens")).fill_null(0)
    return pl.when("attends").then(sequence_cells() + window).otherwise(0).cast(pl.Float64)


def with_coefficients(shapes: pl.LazyFrame, coefficients: pl.LazyFrame) -> pl.LazyFrame:
    """The shapes with the coefficients of their models (table `llama_cpp_compute`), null where a model has
    none.
    """
    return shapes.join(coefficients.select("model", *COEFFICIENTS), on="model", how="left")


def mask_floats(bytes_per_cell: int = MASK_BYTES) -> pl.Expr:
    """One copy of the masks in floats per token: f16 with flash attention, f32 without; an indexer's is
    always f16.
    """
    indexer = pl.when(pl.col("index_layers") > 0).then(sequence_cells()).otherwise(0).cast(pl.Float64)
    return (attention_mask_cells() * bytes_per_cell + indexer * MASK_BYTES) / F32_BYTES


def position_floats() -> pl.Expr:
    """Positions and cache indices per token."""
    window = pl.when(pl.col("used_window_tokens").is_not_null()).then(WINDOW_POSITION_FLOATS).otherwise(0)
    return pl.when("attends").then(POSITION_FLOATS + window).otherwise(0)


def sparse_floats() -> pl.Expr:
    """Latent attention with an indexer (DeepSeek-V3.2, GLM-5): the selections of every sparse layer stay
    alive.

    Beside them two hidden rows (three where layers share an indexer), the query before and after absorption,
    and the cached query; once the sparse mask no longer fits the place of the rotary query the attention
    result lies beside it all, and once the scores no longer fit the query's place they do.
    """
    cells = sequence_cells().cast(pl.Float64)
    shares = (pl.col("index_layers") < pl.col("sparse_layers")).cast(pl.Float64)
    kept = (
        pl.col("sparse_layers") * pl.col("selected_tokens") + (2 + shares) * pl.col("hidden_size")
        + INDEXER_POSITION_FLOATS + pl.col("query_floats") + pl.col("cached_query_floats")
        + position_floats()
    )  # fmt: skip
    beside = pl.col("value_latent_floats") - pl.col("query_latent_dim")
    return kept + (
        pl.when(cells > pl.col("query_floats"))
        .then(pl.col("index_floats") + cells)
        .when(cells / 2 > pl.col("rope_floats"))
        .then(beside)
        .otherwise(pl.col("rope_floats"))
    )


def layer_floats(device: pl.Expr | None = None) -> pl.Expr:
    """Floats per token of the widest layer with flash attention, masks left out, on one device; or on
    that device of several.
    """
    feed, rope = pl.col("feed_floats"), pl.lit(0.0)
    if device is not None:
        place = pl.when(_stands_alone(device))
        staged = pl.when(device == 0).then("first_feed_floats").otherwise("later_feed_floats")
        feed = place.then("feed_floats").otherwise(staged)
        first = (device == 0) & pl.col("routes")
        rope = place.then(0.0).otherwise(pl.when(first).then("rope_floats").otherwise(0.0))
    plain = feed + position_floats()
    per_layer = (
        pl.when(pl.col("per_layer_floats") > 0)
        .then(pl.col("per_layer_floats") + 6 * pl.col("hidden_size"))
        .otherwise(0.0)
    )
    dense = pl.max_horizontal(plain + per_layer, pl.col("absorbed_floats") + rope)
    sparse = pl.when(pl.col("index_layers") > 0).then(sparse_floats()).otherwise(0.0)
    return pl.max_horizontal(dense, sparse)


def fused_bytes(device: pl.Expr | None = None) -> pl.Expr:
    """Buffer of one device with flash attention, logits left out; of several without the pipeline's rows."""
    ubatch, slots = _number("ubatch_tokens"), _number("slots")
    recurrent = ubatch * (pl.col("recurrent_floats") + position_floats()) + slots * pl.col(
        "recurrent_slot_floats"
    )
    scan = ubatch * (pl.col("scan_floats") + position_floats()) + slots * pl.col("scan_slot_floats")
    widest = pl.max_horizontal(ubatch * layer_floats(device), recurrent, scan)
    known = ubatch * pl.col("layer_floats") + slots * pl.col("slot_floats").fill_null(0.0)
    floats = pl.when(pl.col("layer_floats").is_not_null()).then(known).otherwise(widest)
    return F32_BYTES * (floats + ubatch * mask_floats()) + rotation_bytes()


def score_cells() -> pl.Expr:
    """Attention scores per token without flash attention: heads x cells of the widest layer."""
    full = pl.col("full_heads") * sequence_cells()
    window = pl.col("window_heads") * window_cells(pl.col("used_window_tokens")).fill_null(0)
    return pl.max_horizontal(full, window).cast(pl.Float64)


def score_bytes() -> pl.Expr:
    """Scores without flash attention beside queries, hidden rows, transposed indices and two f32 masks; none
    without attention.
    """
    ubatch = _number("ubatch_tokens")
    attention = (
        (pl.col("score_hidden_rows") + pl.col("shared_rows")) * pl.col("hidden_size")
        + pl.col("score_query_rows") * pl.col("attention_width")
        + transposed_floats()
    )
    latent = pl.col("absorbed_floats") + copied_latent_floats()
    kept = pl.coalesce("score_floats", pl.when("is_latent").then(latent).otherwise(attention))
    scores = pl.when("attends").then(score_cells() + kept + POSITION_ROWS).otherwise(0.0)
    return F32_BYTES * ubatch * (scores + mask_floats(F32_BYTES))


def copied_latent_floats() -> pl.Expr:
    """The latents of all cells once more in f16, per token, where no place left by queries or hidden row
    holds them.
    """
    copy = sequence_cells() * pl.col("kv_latent_dim") * MASK_BYTES / F32_BYTES / _number("ubatch_tokens")
    room = pl.max_horizontal(
        pl.col("hidden_size"),
        pl.col("n_heads") * pl.col("kv_latent_dim") + pl.col("rope_floats") + pl.col("plain_query_floats"),
    )
    return pl.when(copy > room).then(copy).otherwise(0.0)


def transposed_floats() -> pl.Expr:
    """Indices of transposed values per token without flash attention: 8 bytes per value and cache."""
    caches = pl.when(pl.col("used_window_tokens").is_not_null()).then(2.0).otherwise(1.0)
    return pl.when("is_latent").then(0.0).otherwise(2 * pl.col("value_width") * caches)


def unfused_bytes() -> pl.Expr:
    """What the feed-forward as the widest place has more without flash attention than with it.

    Masks of 4 bytes and indices of transposed values; the attention output's place lies in what the scores
    have left.
    """
    ubatch = _number("ubatch_tokens")
    freed = pl.when("is_latent").then(0.0).otherwise(pl.col("kept_attention"))
    indices = pl.when("attends").then(transposed_floats() - freed).otherwise(0.0)
    return F32_BYTES * ubatch * (mask_floats(F32_BYTES) - mask_floats() + indices)


def output_bytes() -> pl.Expr:
    """Logits and last hidden rows of every output the micro-batch may have."""
    outputs = pl.min_horizontal("ubatch_tokens", "outputs").cast(pl.Float64)
    beside = pl.coalesce("output_floats", pl.col("output_rows") * pl.col("hidden_size"))
    logits = F32_BYTES * outputs * (pl.col("vocab_size") + pl.col("hidden_size") + beside)
    return logits + pl.col("output_masks").fill_null(0.0) * mask_bytes()


def mask_bytes() -> pl.Expr:
    """All masks of one copy in bytes: f16 with flash attention, f32 without."""
    floats = pl.when("flash_attention").then(mask_floats()).otherwise(mask_floats(F32_BYTES))
    return F32_BYTES * _number("ubatch_tokens") * floats


def fullest_compute_bytes() -> pl.Expr:
    """Compute buffer of the device that needs most: the first, the last or the one before."""
    last = pl.col("n_gpus").cast(pl.Int64) - 1
    devices = (pl.lit(0, pl.Int64), (last - 1).clip(0), last)
    return pl.max_horizontal(*(device_compute_bytes(device) for device in devices))


def device_compute_bytes(device: pl.Expr) -> pl.Expr:
    """Compute buffer of device number `device` (from 0) of n_gpus.

    One device: the widest layer or the logits. Several under layer split compute as a pipeline, whose inputs
    exist four times: three more masks, and input rows (four hidden rows on the first device, eight on the
    others). Without flash attention every device also holds index copies of the transposed values.
    """
    hidden, ubatch = pl.col("hidden_size"), _number("ubatch_tokens")
    fused, n_gpus = pl.col("flash_attention"), pl.col("n_gpus")
    attends = _has_layers("whole_layers", device) | _has_layers("window_layers", device)
    scores = pl.when(~fused & (attends | (n_gpus == 1))).then(score_bytes()).otherwise(0.0)
    plain = pl.max_horizontal(
        fused_bytes(device) + pl.when(fused).then(0.0).otherwise(unfused_bytes()), scores
    )
    indices = pl.when(fused).then(0.0).otherwise((PIPELINE_COPIES - 1) * transposed_floats())
    first = pl.coalesce(
        pl.when(fused).then("first_device_floats").otherwise("first_device_scores_floats"),
        FIRST_DEVICE_ROWS * (1 + pl.col("position_rows")) * hidden + indices,
    )
    later = pl.coalesce(
        pl.when(fused).then("last_device_floats").otherwise("last_device_scores_floats"),
        pl.col("last_rows") * hidden + indices,
    )
    crossing = F32_BYTES * ubatch * crossing_floats(device) - absent_mask_bytes(device)
    copies = (PIPELINE_COPIES - 1) * (mask_bytes() + F32_BYTES * ubatch * position_floats()) + crossing
    staged = plain + copies + F32_BYTES * ubatch * pl.when(device == 0).then(first).otherwise(later)
    whole = pl.when(fused).then(0.0).otherwise(PIPELINE_COPIES * transposed_floats())
    logits = (
        output_bytes() + copies + mask_bytes() + F32_BYTES * ubatch * (pl.col("last_rows") * hidden + whole)
    )
    return (
        pl.when(n_gpus == 1)
        .then(pl.max_horizontal(plain, output_bytes()))
        .when(first_unit(device) >= pl.col("counted_layers"))
        .then(output_bytes())
        .when(device == n_gpus - 1)
        .then(pl.max_horizontal(staged, logits))
        .otherwise(staged)
    )


def _stands_alone(device: pl.Expr) -> pl.Expr:
    """Whether the layers of the device are those of one device: a coefficient says what is added to them."""
    fused = pl.col("flash_attention")
    first = pl.when(fused).then("first_device_floats").otherwise("first_device_scores_floats")
    later = pl.when(fused).then("last_device_floats").otherwise("last_device_scores_floats")
    added = pl.when(device == 0).then(first).otherwise(later)
    return (pl.col("n_gpus") == 1) | added.is_not_null()


def first_unit(device: pl.Expr) -> pl.Expr:
    """First of the layers and the output that device number `device` of n_gpus holds."""
    devices = pl.col("n_gpus").cast(pl.Int64)
    return (device * pl.col("unit_count") + devices - 1) // devices


def _end_layer(device: pl.Expr) -> pl.Expr:
    return pl.min_horizontal(first_unit(device), "counted_layers")


def _has_layers(counted: str, device: pl.Expr) -> pl.Expr:
    """Whether the device holds a layer of those that `counted` counts."""
    before, after = (pl.col(counted).list.get(_end_layer(at)) for at in (device, device + 1))
    return after > before


def crossing_floats(device: pl.Expr) -> pl.Expr:
    """Rows copied four times where the device ends with, or begins behind, a Mamba block and no attention
    follows it.
    """
    last = pl.col("n_gpus").cast(pl.Int64) - 1
    before = _crossing("crossing_before", device + 1)
    behind = _crossing("crossing_behind", device)
    return pl.when(device < last).then(before).otherwise(0.0) + pl.when(device > 0).then(behind).otherwise(
        0.0
    )


def _crossing(rows: str, device: pl.Expr) -> pl.Expr:
    """Rows that cross to device number `device` from the one before."""
    begins = _end_layer(device)
    copied = pl.col(rows).list.get((begins - 1).clip(0), null_on_oob=True).fill_null(0.0)
    kinds = [pl.col(name) for name in ("whole_layers", "window_layers")]
    attends = [
        kind.list.get(begins + 1, null_on_oob=True).fill_null(0) > kind.list.get(begins, null_on_oob=True)
        for kind in kinds
    ]
    return pl.when(pl.any_horizontal(attends).fill_null(False)).then(0.0).otherwise(copied)


def absent_mask_bytes(device: pl.Expr) -> pl.Expr:
    """Masks of kinds of attention that no layer of the device has, all copies."""
    window = window_cells(pl.col("used_window_tokens")).fill_null(0)
    cells = (
        pl.when(pl.col("attends") & ~_has_layers("whole_layers", device)).then(sequence_cells()).otherwise(0)
        + pl.when(pl.col("attends") & ~_has_layers("window_layers", device)).then(window).otherwise(0)
    )  # fmt: skip
    size = pl.when("flash_attention").then(MASK_BYTES).otherwise(F32_BYTES)
    return PIPELINE_COPIES * _number("ubatch_tokens") * size * cells


def host_compute_bytes() -> pl.Expr:
    """Compute buffer on the host: embeddings and masks as they are handed to the devices, four times for a
    pipeline.

    One device: two hidden rows and the masks; several: five hidden rows and four copies of the masks. Learned
    positions and per-layer embeddings are rows of their own; without flash attention the indices of
    transposed values.
    """
    ubatch, hidden = _number("ubatch_tokens"), pl.col("hidden_size")
    copies = pl.when(pl.col("n_gpus") > 1).then(float(PIPELINE_COPIES)).otherwise(1.0)
    indices = pl.when("flash_attention").then(0.0).otherwise(transposed_floats())
    rows = pl.when(pl.col("n_gpus") > 1).then(5.0).otherwise(2.0)
    inputs = copies * (indices + position_floats())
    floats = (rows + pl.col("position_rows")) * hidden + inputs + pl.col("per_layer_floats")
    return F32_BYTES * (ubatch * floats + copies * rotation_floats()) + copies * mask_bytes()
