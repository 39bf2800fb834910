"""Names are strict, and no two tables' places can ever meet."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from calve.errors import InvalidRequest
from calve.model import TableName
from calve.paths import OWN_DIRECTORY, table_location
from calve.spark.conf import SPARK_DIRECTORY

parts = st.one_of(
    st.sampled_from(["default", "data", "metadata", "a", "a1", "dead_letters"]),
    st.from_regex(r"[a-z](_?[a-z0-9]){0,5}", fullmatch=True),
)
topics = st.builds(TableName, parts, parts, parts)
names = topics | topics.map(lambda topic: topic.dead_letters)


@pytest.mark.parametrize(
    "text", ["users", "a.b.c", "default.default.users", "x" * 63, "a_b_c1", "a__dead_letters"]
)
def test_a_valid_name_is_read_and_written_back(text: str) -> None:
    assert str(TableName.parse(text)) == text.removeprefix("default.default.")


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "a.b", "a.b.c.d", "a..b", "users ", " users", "Users", "1a", "_a", "a_", "a__b"),
        *("a/b", "a\\b", "../x", "%2e%2e", "a%2fb", "x" * 64, "a-b", "a'b", 'a"b', "a;b", "a\nb", "a\x00"),
        *("usеrs", "users\u200b", "ｕｓｅｒｓ", "naïve", "a.b.c\n", "²"),
        *("__dead_letters", "a___dead_letters", "a__dead_letters__dead_letters", "a__dead_letters.b.c"),
    ],
)  # fmt: skip
def test_any_other_name_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        TableName.parse(text)
    assert refused.value.hint


@given(names, names)
def test_no_table_lies_inside_another_or_inside_calves_own(
    one: TableName, other: TableName
) -> None:
    assume(one != other)
    place, second = (f"{table_location('file:///w', name)}/" for name in (one, other))
    assert not place.startswith(second)
    assert not second.startswith(place)
    for own in (OWN_DIRECTORY, SPARK_DIRECTORY):
        assert not place.startswith(f"file:///w/{own}/")


def test_only_calve_makes_tables_of_dead_letters() -> None:
    assert TableName.parse("users").dead_letters == TableName.parse("users__dead_letters")
    with pytest.raises(InvalidRequest, match="Calve makes itself"):
        TableName.parse_new("users__dead_letters")


def test_a_default_table_lies_directly_in_the_lake() -> None:
    assert table_location("file:///w/", TableName.parse("users")) == "file:///w/users"
    assert (
        table_location("s3://b/p", TableName.parse("acme.sales.orders"))
        == "s3://b/p/acme__/sales/orders"
    )
