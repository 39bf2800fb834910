"""A topic grows in the middle of its rows, and its table grows at the same time by another hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from calve.maintenance.verify import verify_topic
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, site

FLAGS = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
ITEM = pa.struct([("k", pa.string()), ("n", pa.int32())])
WIDER_ITEM = pa.struct([("k", pa.string()), ("n", pa.int64()), ("v", pa.list_(pa.float64()))])
SMALL = pa.schema(
    {
        "id": pa.int32(),
        "score": pa.float32(),
        "price": pa.decimal128(5, 2),
        "place": pa.struct([("city", pa.string()), ("at", ITEM)]),
        "items": pa.list_(ITEM),
        "by_name": pa.map_(pa.string(), ITEM),
        "matrix": pa.list_(pa.list_(ITEM)),
    }
)
LARGE = pa.schema(
    {
        "id": pa.int64(),
        "score": pa.float64(),
        "price": pa.decimal128(12, 2),
        "place": pa.struct([("city", pa.string()), ("at", WIDER_ITEM), ("zip", pa.string())]),
        "items": pa.list_(WIDER_ITEM),
        "by_name": pa.map_(pa.string(), WIDER_ITEM),
        "matrix": pa.list_(pa.list_(WIDER_ITEM)),
        "new": pa.list_(pa.struct([("x", pa.map_(pa.string(), pa.int64()))])),
    }
)


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**FLAGS)) as made:
        yield made


def item(number: int, **more: Any) -> dict[str, Any]:
    return {"k": f"k{number}", "n": number, **more}


def row(number: int, *, is_large: bool) -> dict[str, Any]:
    more = {"v": [number / 3, None]} if is_large else {}
    number += 2**40 if is_large else 0
    found: dict[str, Any] = {
        "id": number,
        "score": number / 2,
        "price": number % 100,
        "place": {"city": f"c{number}", "at": item(number, **more)},
        "items": [item(number, **more), None, item(number + 1, **more)],
        "by_name": [("a", item(number, **more)), ("b", None)],
        "matrix": [[item(number, **more)], [], None],
    }
    if is_large:
        found["place"]["zip"] = f"z{number}"
        found["new"] = [{"x": [("y", number)]}, None]
    return found


def batch(ids: range, *, is_large: bool = False) -> pa.RecordBatch:
    values = [row(each, is_large=is_large) for each in ids]
    return pa.RecordBatch.from_pylist(values, schema=LARGE if is_large else SMALL)


def as_large(value: Any, kind: pa.DataType) -> Any:
    """A value as it is read under a wider type: with null where there was no field yet."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {each.name: as_large(value.get(each.name), each.type) for each in kind}
    if pa.types.is_map(kind):
        return [(key, as_large(each, kind.item_type)) for key, each in value]
    if pa.types.is_list(kind):
        return [as_large(each, kind.value_type) for each in value]
    return value


def require_values(made: Site, *sent: pa.RecordBatch) -> None:
    """The table's rows are those that were sent, value for value, under the newest columns."""
    rows = [row for each in sent for row in each.to_pylist()]
    expected = [as_large(row, pa.struct(list(LARGE))) for row in rows]
    found = [{name: row[name] for name in LARGE.names} for row in made.rows("t")]
    assert found == expected
    verified = verify_topic(made.catalog, "t", own_log=made.settings.wal.path)
    assert verified.is_sound
    assert (verified.rows, verified.dead_letters) == (len(rows), 0)


@pytest.mark.parametrize("is_one_range", [True, False])
def test_rows_keep_their_values_while_their_topic_grows(
    lake_site: Site, *, is_one_range: bool
) -> None:
    """All at once, so that a task meets both schemas, and with a commit after each."""
    sent = [batch(range(2)), batch(range(2, 4), is_large=True), batch(range(4, 6))]
    pipeline = lake_site.pipeline()
    for each in sent:
        lake_site.send("t", each)
        assert is_one_range or pipeline.drain(30)
    assert pipeline.drain(30)
    require_values(lake_site, *sent)


def add_another(made: Site) -> None:
    with made.table("t").update_schema() as update:
        update.union_by_name(pa.schema({"items": pa.list_(pa.struct([("other", pa.string())]))}))


def add_the_same_inside_a_list(made: Site) -> None:
    """The ids that the rows' own new fields were to have are taken by these."""
    with made.table("t").update_schema() as update:
        update.union_by_name(pa.schema({"items": pa.list_(WIDER_ITEM)}))


def add_all_of_it(made: Site) -> None:
    with made.table("t").update_schema() as update:
        update.union_by_name(LARGE)


def widen_inside_a_map(made: Site) -> None:
    with made.table("t").update_schema() as update:
        kind = pa.map_(pa.string(), pa.struct([("n", pa.int64())]))
        update.union_by_name(pa.schema({"by_name": kind}))


def grow_the_topic(made: Site) -> None:
    """More rows come, with more columns, behind the range that is under way."""
    made.send("t", batch(range(4, 6), is_large=True))


CHANGES = [
    add_another,
    add_the_same_inside_a_list,
    add_all_of_it,
    widen_inside_a_map,
    grow_the_topic,
]


@pytest.mark.parametrize("step", ["planned", "prepared", "written", "before commit"])
@pytest.mark.parametrize("change", CHANGES)
def test_rows_keep_their_values_while_their_table_grows_under_them(
    lake_site: Site, change: Callable[[Site], None], step: str
) -> None:
    lake_site.send("t", batch(range(2)))
    assert lake_site.pipeline().drain(30)
    sent = [batch(range(2)), batch(range(2, 4), is_large=change is not grow_the_topic)]
    lake_site.send("t", sent[1])
    changes = [change]

    def reach(reached: str) -> None:
        if reached == step and changes:
            changes.pop()(lake_site)

    pipeline = lake_site.pipeline(reach=reach)
    assert pipeline.drain(30)
    assert not changes
    assert pipeline.drain(30)  # what came meanwhile
    if change is grow_the_topic:
        sent.append(batch(range(4, 6), is_large=True))
    if change is add_another:
        for found in lake_site.rows("t"):
            assert {each["other"] for each in found["items"] if each} == {None}
        return
    require_values(lake_site, *sent)
