"""The functions a condition may call: DuckDB's, and only those that always answer the same.

What is not here is refused. Left out on purpose: all that read the clock, chance, settings, files
or other tables; aggregates; and those whose answer can be far larger than what they are given.
"""

from __future__ import annotations

from typing import Final

FUNCTIONS: Final[dict[str, tuple[str, ...]]] = {
    "nulls and choice": ("coalesce", "ifnull", "nullif", "greatest", "least"),
    "text": (
        *("length", "strlen", "bit_length", "char_length", "character_length", "len"),
        *("lower", "upper", "lcase", "ucase", "strip_accents", "nfc_normalize"),
        *("trim", "ltrim", "rtrim", "substring", "substr", "left", "right", "reverse"),
        *("concat", "concat_ws", "replace", "translate", "split_part", "string_split"),
        *("starts_with", "ends_with", "prefix", "suffix", "contains", "instr", "strpos"),
        *("regexp_matches", "regexp_full_match", "regexp_extract"),
        *("ascii", "unicode", "ord", "chr", "md5", "sha1", "sha256"),
        *("base64", "from_base64", "hex", "unhex", "encode", "decode", "octet_length"),
    ),
    "numbers": (
        *("abs", "sign", "ceil", "ceiling", "floor", "round", "trunc", "even"),
        *("sqrt", "cbrt", "exp", "ln", "log", "log10", "log2", "pow", "power", "pi"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "cot", "degrees", "radians"),
        *("mod", "gcd", "lcm", "xor", "bit_count", "isnan", "isinf", "isfinite", "signbit"),
    ),
    "dates and times": (
        *("date_part", "datepart", "date_trunc", "datetrunc", "date_diff", "datediff"),
        *("date_sub", "datesub", "date_add", "time_bucket", "last_day", "make_date", "make_time"),
        *("make_timestamp", "to_timestamp", "strftime", "strptime", "try_strptime"),
        *("year", "quarter", "month", "week", "day", "hour", "minute", "second"),
        *("millisecond", "microsecond", "dayofmonth", "dayofweek", "dayofyear", "isodow"),
        *("isoyear", "weekday", "weekofyear", "yearweek", "era", "century", "decade"),
        *("dayname", "monthname", "epoch", "epoch_ms", "epoch_us", "epoch_ns", "timezone"),
        *("to_years", "to_months", "to_weeks", "to_days", "to_hours", "to_minutes", "to_seconds"),
        *("to_milliseconds", "to_microseconds"),
    ),
    "lists, structs and maps": (
        *("list_contains", "list_has", "array_contains", "array_has", "list_has_any"),
        *("list_has_all", "list_extract", "list_element", "array_extract", "list_position"),
        *("list_slice", "array_slice", "array_length", "list_distinct"),
        *("list_unique", "list_value", "struct_extract", "map_extract", "element_at"),
        *("map_keys", "map_values", "map_contains", "cardinality"),
    ),
}

ALLOWED: Final = frozenset(name for names in FUNCTIONS.values() for name in names)

# Why the likely ones are not there; every other is "not one that a condition may call".
CHANGES_EACH_TIME: Final = frozenset(
    {
        *("now", "current_date", "current_time", "current_timestamp", "localtime"),
        *("localtimestamp", "today", "get_current_time", "get_current_timestamp"),
        *("transaction_timestamp", "random", "setseed", "uuid", "gen_random_uuid", "uuidv4"),
        *("uuidv7", "nextval", "currval", "txid_current", "age"),
    }
)
AGGREGATES: Final = frozenset(
    {
        *("count", "sum", "avg", "mean", "min", "max", "first", "last", "any_value", "list"),
        *("array_agg", "string_agg", "group_concat", "median", "mode", "quantile", "stddev"),
        *("variance", "bool_and", "bool_or", "arg_min", "arg_max", "histogram", "row_number"),
        *("rank", "dense_rank", "lag", "lead", "ntile", "first_value", "last_value"),
    }
)

# Each at most doubles its argument, which is harmless once and not sixteen times.
DOUBLING: Final = frozenset({"hex", "base64"})
