"""How far an estimate may be off: what it rests on (`basis`) and the published spread for that.

The spreads are rows of the coefficients (`interval`): a number per basis, refined by backend and dense or
mixture-of-experts where the study published it. Fitting does not belong here.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from estimator.calibration import BACKENDS

BASES: Final = ("measured", "device", "family", "engine", "spec_only")
BASIS: Final = pl.Enum(BASES)


def basis() -> pl.Expr:
    """What an estimate rests on, best first, as an Enum.

    Reads booleans has_anchor_at_key (a measurement of this very setting), device_has_anchor_for_engine (this
    GPU measured under this engine), family_known and engine_known (the fit has seen them; null counts as no).
    `family` needs the engine as well: a family seen only under other engines says too little, such rows are
    `spec_only`.
    """

    def known(name: str) -> pl.Expr:
        return pl.col(name).fill_null(False)

    return (
        pl.when(known("has_anchor_at_key"))
        .then(pl.lit("measured"))
        .when(known("device_has_anchor_for_engine"))
        .then(pl.lit("device"))
        .when(known("family_known") & known("engine_known"))
        .then(pl.lit("family"))
        .when(known("engine_known"))
        .then(pl.lit("engine"))
        .otherwise(pl.lit("spec_only"))
        .cast(BASIS)
    )


def interval_table(coefficients: pl.DataFrame, quantity: str = "decode") -> pl.DataFrame:
    """Multipliers for every basis, backend and kind of model: join it on (basis, backend, is_moe).

    `quantity` is decode, prefill or serving. Returns basis (Enum), backend, is_moe, interval_low (at most 1)
    and interval_high (at least 1). Raises KeyError when a basis has no row in `coefficients`.
    """
    own = pl.concat_str(
        pl.col("basis"),
        pl.col("backend"),
        pl.when("is_moe").then(pl.lit("moe")).otherwise(pl.lit("dense")),
        separator="|",
    )
    table = (
        pl.DataFrame({"basis": list(BASES)})
        .join(pl.DataFrame({"backend": list(BACKENDS)}), how="cross")
        .join(pl.DataFrame({"is_moe": [False, True]}), how="cross")
        .with_columns(own.alias("_own"))
    )
    for side in ("low", "high"):
        rows = (pl.col("model").cast(pl.String) == "interval") & (pl.col("block") == f"{quantity}_{side}")
        values = coefficients.filter(rows).select("level", "value")
        missing = sorted(set(BASES) - set(values.get_column("level")))
        if missing:
            raise KeyError(f"coefficients hold no interval/{quantity}_{side} for {', '.join(missing)}")
        table = (
            table.join(values.rename({"level": "_own", "value": "_finer"}), on="_own", how="left")
            .join(values.rename({"level": "basis", "value": "_plain"}), on="basis", how="left")
            .with_columns(pl.coalesce("_finer", "_plain").alias(f"interval_{side}"))
            .drop("_finer", "_plain")
        )
    return table.drop("_own").with_columns(pl.col("basis").cast(BASIS)).sort("basis", "backend", "is_moe")


def low(middle: str = "decode_tok_s_mid") -> pl.Expr:
    """Lower end of the interval around column `middle`. Reads interval_low."""
    return pl.col(middle) * pl.col("interval_low")


def high(middle: str = "decode_tok_s_mid", bound: str | None = "decode_tok_s_bound") -> pl.Expr:
    """Upper end of the interval around column `middle`, not above column `bound`. Reads interval_high."""
    above = pl.col(middle) * pl.col("interval_high")
    if bound is None:
        return above
    return pl.when(above > pl.col(bound)).then(pl.col(bound)).otherwise(above)
