"""Type names and Iceberg types, both ways; Arrow's types too.

    long   decimal(10,2)   list<string not null>   map<string, double>   struct<"a b": int>

Nested fields are nullable unless they say `not null`. A name carries no field ids and no docs, so
neither survives the way there and back; the catalog gives fresh ids anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, NamedTuple

import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from calve.errors import InvalidRequest
from calve.tables.columns import check_names
from calve.tables.nearest import meant

_SIMPLE: Final[dict[Callable[[], IcebergType], tuple[str, ...]]] = {
    BooleanType: ("boolean", "bool"),
    IntegerType: ("int", "integer", "int32"),
    LongType: ("long", "bigint", "int64"),
    FloatType: ("float", "float32", "real"),
    DoubleType: ("double", "float64"),
    DateType: ("date",),
    TimeType: ("time",),
    TimestampType: ("timestamp", "datetime"),
    TimestamptzType: ("timestamptz",),
    TimestampNanoType: ("timestamp_ns",),
    TimestamptzNanoType: ("timestamptz_ns",),
    StringType: ("string", "text", "varchar", "str"),
    UUIDType: ("uuid",),
    BinaryType: ("binary", "bytes", "blob"),
}
_BY_NAME: Final = {name: kind for kind, names in _SIMPLE.items() for name in names}
_WITH_ARGUMENTS: Final = {
    "decimal": "decimal(10, 2)",
    "numeric": "decimal(10, 2)",
    "fixed": "fixed[16]",
    "list": "list<string>",
    "array": "list<string>",
    "map": "map<string, long>",
    "struct": "struct<name: string, age: int>",
    "row": "struct<name: string, age: int>",
}
_NAMES_HINT: Final = (
    "types are boolean, int, long, float, double, decimal(p,s), date, time, timestamp, "
    "timestamptz, string, uuid, binary, fixed[n], list<…>, map<…, …> and struct<name: …>"
)
_DEPTH_MAX: Final = 32
_PRECISION_MAX: Final = 38
_FIXED_BYTES_MAX: Final = 2**31 - 1

_TOKEN: Final = re.compile(r'\s*(?:(\w+)|"((?:[^"]|"")*)"|`((?:[^`]|``)*)`|([<>()\[\],:]))')
_PLAIN: Final = re.compile(r"[^\W\d]\w*")


class _Token(NamedTuple):
    text: str
    is_name: bool
    is_quoted: bool


def parse_type(source: str | IcebergType | pa.DataType) -> IcebergType:
    """The Iceberg type that a name, an Iceberg type or an Arrow type stands for."""
    if isinstance(source, IcebergType):
        return source
    if isinstance(source, pa.DataType):
        return _from_arrow(source, count(1))
    if isinstance(source, str):
        return _Parser(source).parse()
    raise InvalidRequest(f"{source!r} is not a type", hint=_NAMES_HINT)


def type_name(source: IcebergType) -> str:
    """The name that `parse_type` reads back as this type."""
    if isinstance(source, ListType):
        return f"list<{_part(source.element_type, required=source.element_required)}>"
    if isinstance(source, MapType):
        value = _part(source.value_type, required=source.value_required)
        return f"map<{type_name(source.key_type)}, {value}>"
    if isinstance(source, StructType):
        fields = (
            f"{_quoted(field.name)}: {_part(field.field_type, required=field.required)}"
            for field in source.fields
        )
        return f"struct<{', '.join(fields)}>"
    if isinstance(source, DecimalType):
        return f"decimal({source.precision},{source.scale})"
    return str(source)


def _part(source: IcebergType, *, required: bool) -> str:
    return f"{type_name(source)} not null" if required else type_name(source)


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


class _Parser:
    """One pass over the text, one method for each kind of type that has parts."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._at = 0
        self._ids = count(1)

    def parse(self) -> IcebergType:
        parsed = self._type(0)
        if self._at < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._at].text!r} is too much")
        return parsed

    def _split(self) -> Iterable[_Token]:
        place = 0
        end = len(self._text.rstrip())
        while place < end:
            match = _TOKEN.match(self._text, place)
            if match is None:
                raise self._wrong(f"{self._text[place:].strip()[:10]!r} is not understood")
            word, double, back, symbol = match.groups()
            if symbol:
                yield _Token(symbol, is_name=False, is_quoted=False)
            elif word:
                yield _Token(word, is_name=True, is_quoted=False)
            elif double is not None:
                yield _Token(double.replace('""', '"'), is_name=True, is_quoted=True)
            else:
                yield _Token(back.replace("``", "`"), is_name=True, is_quoted=True)
            place = match.end()

    def _type(self, depth: int) -> IcebergType:
        if depth > _DEPTH_MAX:
            raise self._wrong(f"more than {_DEPTH_MAX} types lie inside each other")
        token = self._next("a type")
        name = token.text.lower()
        if not token.is_name or token.is_quoted:
            raise self._wrong(f"{token.text!r} is not a type")
        if simple := _BY_NAME.get(name):
            return simple()
        if name not in _WITH_ARGUMENTS:
            raise self._wrong(
                f"there is no type {token.text!r}{meant(name, [*_BY_NAME, *_WITH_ARGUMENTS])}"
            )
        if self._at == len(self._tokens):
            raise self._wrong(f"{name} needs its parts", hint=f"write {_WITH_ARGUMENTS[name]}")
        return self._with_arguments(name, depth)

    def _with_arguments(self, name: str, depth: int) -> IcebergType:
        match name:
            case "decimal" | "numeric":
                return self._decimal()
            case "fixed":
                return self._fixed()
            case "list" | "array":
                return self._list(depth)
            case "map":
                return self._map(depth)
            case _:
                return self._struct(depth)

    def _decimal(self) -> DecimalType:
        self._expect("(")
        precision = self._number()
        scale = self._number() if self._take(",") else 0
        self._expect(")")
        return decimal_type(precision, scale)

    def _fixed(self) -> FixedType:
        closing = "]" if self._take("[") else ")"
        if closing == ")":
            self._expect("(")
        length = self._number()
        self._expect(closing)
        if not 1 <= length <= _FIXED_BYTES_MAX:
            raise self._wrong(f"fixed[{length}] has an impossible length")
        return FixedType(length)

    def _list(self, depth: int) -> ListType:
        element_id = next(self._ids)
        self._expect("<")
        element, required = self._nullable(depth)
        self._expect(">")
        return ListType(element_id, element, element_required=required)

    def _map(self, depth: int) -> MapType:
        key_id, value_id = next(self._ids), next(self._ids)
        self._expect("<")
        key, _ = self._nullable(depth)
        self._expect(",")
        value, required = self._nullable(depth)
        self._expect(">")
        return MapType(key_id, key, value_id, value, value_required=required)

    def _struct(self, depth: int) -> StructType:
        self._expect("<")
        fields = [self._field(depth)]
        while self._take(","):
            fields.append(self._field(depth))
        self._expect(">")
        check_names([field.name for field in fields], what="field")
        return StructType(*fields)

    def _field(self, depth: int) -> NestedField:
        token = self._next("a field's name")
        if not token.is_name:
            raise self._wrong(f"{token.text!r} stands where a field's name should")
        self._take(":")
        field_id = next(self._ids)
        field_type, required = self._nullable(depth)
        return NestedField(field_id, token.text, field_type, required=required)

    def _nullable(self, depth: int) -> tuple[IcebergType, bool]:
        parsed = self._type(depth + 1)
        if self._take("not"):
            self._expect("null")
            return parsed, True
        return parsed, False

    def _number(self) -> int:
        token = self._next("a number")
        if not (token.text.isascii() and token.text.isdecimal() and len(token.text) < 12):
            raise self._wrong(f"{token.text!r} is not a number")
        return int(token.text)

    def _next(self, expected: str) -> _Token:
        if self._at == len(self._tokens):
            raise self._wrong(f"{expected} is missing")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, text: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at]
        if not found or found.is_quoted or found.text.lower() != text:
            return False
        self._at += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._take(text):
            found = repr(self._tokens[self._at].text) if self._at < len(self._tokens) else "the end"
            raise self._wrong(f"{text!r} is expected, not {found}")

    def _wrong(self, problem: str, hint: str = _NAMES_HINT) -> InvalidRequest:
        shown = self._text if len(self._text) <= 80 else f"{self._text[:80]}…"
        return InvalidRequest(f"type {shown!r}: {problem}", hint=hint)


def decimal_type(precision: int, scale: int) -> DecimalType:
    if not (1 <= precision <= _PRECISION_MAX and 0 <= scale <= precision):
        raise InvalidRequest(
            f"decimal({precision},{scale}) is not possible",
            hint=f"a decimal has 1 to {_PRECISION_MAX} digits, of which the scale are decimals",
        )
    return DecimalType(precision, scale)


def _from_arrow(source: pa.DataType, ids: count[int]) -> IcebergType:
    plain = _unwrapped(source)
    for claim, build in _FROM_ARROW:
        if claim(plain):
            return build(plain)
    if pa.types.is_struct(plain):
        return _struct_from_arrow(plain, ids)
    if pa.types.is_map(plain):
        key_id, value_id = next(ids), next(ids)
        return MapType(
            key_id,
            _from_arrow(plain.key_type, ids),
            value_id,
            _from_arrow(plain.item_type, ids),
            value_required=not plain.item_field.nullable,
        )
    if is_list_like(plain):
        element_id = next(ids)
        element = _from_arrow(plain.value_type, ids)
        return ListType(element_id, element, element_required=not plain.value_field.nullable)
    raise InvalidRequest(
        f"Iceberg has no type for Arrow's {source}",
        hint="cast the column first, for example to string or long",
    )


def _struct_from_arrow(source: pa.DataType, ids: count[int]) -> StructType:
    fields = list(source.fields)
    if not fields:
        raise InvalidRequest(
            "a struct without fields cannot be stored",
            hint="leave the column out, or store it as string",
        )
    check_names([field.name for field in fields], what="field")
    return StructType(
        *(
            NestedField(
                next(ids), field.name, _from_arrow(field.type, ids), required=not field.nullable
            )
            for field in fields
        )
    )


def _unwrapped(source: pa.DataType) -> pa.DataType:
    """The type of the values, without dictionaries, runs and foreign extensions around them."""
    if pa.types.is_dictionary(source) or pa.types.is_run_end_encoded(source):
        return _unwrapped(source.value_type)
    if isinstance(source, pa.BaseExtensionType) and not isinstance(source, pa.UuidType):
        return _unwrapped(source.storage_type)
    return source


def is_list_like(source: pa.DataType) -> bool:
    return any(
        claim(source)
        for claim in (
            pa.types.is_list,
            pa.types.is_large_list,
            pa.types.is_fixed_size_list,
            pa.types.is_list_view,
            pa.types.is_large_list_view,
        )
    )


def is_text(source: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(source)
        or pa.types.is_large_string(source)
        or pa.types.is_string_view(source)
    )


def is_bytes(source: pa.DataType) -> bool:
    """Whether values are bytes of any length; not those of one length."""
    return bool(
        pa.types.is_binary(source)
        or pa.types.is_large_binary(source)
        or pa.types.is_binary_view(source)
    )


def _any_of(*types: pa.DataType) -> Callable[[pa.DataType], bool]:
    return lambda source: source in types


def _constant(kind: Callable[[], IcebergType]) -> Callable[[pa.DataType], IcebergType]:
    return lambda _: kind()


def _decimal_from_arrow(source: pa.DataType) -> IcebergType:
    return decimal_type(source.precision, source.scale)


# A nanosecond timestamp becomes a microsecond one, because tables of format 2 have no other; the
# values are checked when rows are inserted. A column without any value is text.
_FROM_ARROW: Final[
    list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], IcebergType]]]
] = [
    (pa.types.is_boolean, _constant(BooleanType)),
    (
        _any_of(pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()),
        _constant(IntegerType),
    ),
    (_any_of(pa.int64(), pa.uint32()), _constant(LongType)),
    (pa.types.is_uint64, lambda _: DecimalType(20, 0)),
    (_any_of(pa.float16(), pa.float32()), _constant(FloatType)),
    (pa.types.is_float64, _constant(DoubleType)),
    (pa.types.is_decimal, _decimal_from_arrow),
    (pa.types.is_date, _constant(DateType)),
    (pa.types.is_time, _constant(TimeType)),
    (
        lambda source: pa.types.is_timestamp(source) and source.tz is not None,
        _constant(TimestamptzType),
    ),
    (pa.types.is_timestamp, _constant(TimestampType)),
    (is_text, _constant(StringType)),
    (pa.types.is_null, _constant(StringType)),
    (is_bytes, _constant(BinaryType)),
    (lambda source: isinstance(source, pa.UuidType), _constant(UUIDType)),
    (pa.types.is_fixed_size_binary, lambda source: FixedType(source.byte_width)),
]
