"""The hash of a row in Spark; tests prove that it equals domain/row_hash.py."""

from __future__ import annotations

from collections.abc import Mapping

import pyspark.sql.functions as F
from pyspark.sql import Column

from pipeline_assets.domain.row_hash import NEGATIVE_ZERO, NULL, ROW_HASH_VERSION, is_text

_NUMBERS = {
    "string": "octet_length({0})",
    "timestamp": "unix_micros({0})",
    "date": "unix_date({0})",
    "boolean": "CAST({0} AS BIGINT)",
    # Nulls are handled here because xxhash64 skips them and returns its seed.
    "double": (
        f"CASE WHEN {{0}} IS NULL THEN NULL WHEN {{0}} = 0 AND CAST({{0}} AS STRING) = '-0.0' THEN {NEGATIVE_ZERO}L"
        " ELSE xxhash64({0}) END"
    ),
}

_TEXTS = {"string": "{0}", "binary": "hex({0})"}


def row_hashes(types: Mapping[str, str]) -> tuple[Column, Column]:
    """Both halves (long) of a 128-bit hash of these columns (name -> Spark type).

    It is built as SQL text: built from Column objects, 55 columns would cost a thousand calls into the JVM for each plan.
    """
    numbers, texts = [], []
    for name, kind in types.items():
        value = f"`{name}`"
        if is_text(kind):
            texts.append(_TEXTS.get(kind, "CAST({0} AS STRING)").format(value))
            numbers.append(_NUMBERS["string"].format(texts[-1]))
        else:
            numbers.append(_NUMBERS.get(kind, "{0}").format(value))
    as_longs = ", ".join(f"CAST({number} AS BIGINT)" for number in numbers)
    told = f"array_join(CAST(array({as_longs}) AS ARRAY<STRING>), ',', '{NULL}')"
    whole = (
        f"concat('{ROW_HASH_VERSION};', {told}, ';', concat_ws('', {', '.join(texts)}))"
        if texts
        else (f"concat('{ROW_HASH_VERSION};', {told}, ';')")
    )
    hashed = f"sha2({whole}, 256)"
    first, second = (F.expr(f"CAST(conv(substring({hashed}, {start}, 16), 16, -10) AS BIGINT)") for start in (1, 17))
    return first, second
