"""The behaviour of a lake, whatever its catalog and its store."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from calve.errors import CalveError, Conflict, Denied, NotFound, Unavailable
from calve.lake import Lake
from calve.pipeline.shapes import shape_of, table_of
from calve.pipeline.work import TableShape
from calve.tables.commit import TableCommit
from calve.tables.data_files import new_operation_id, write_data_files
from calve.tables.probe import probe_store
from calve.tables.staging import Edit
from calve.tables.translate import translating
from tests.contract.backends import Backend

USERS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
)
ANSWER_SECONDS_MAX = 60


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"user {id_}" for id_ in ids]})


def ids(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


def test_create(contract_lake: Lake) -> None:
    catalog = contract_lake.catalog
    warehouse = str(catalog.warehouse).rstrip("/")
    table = catalog.create_table("users", USERS, properties={"owner": "me"})
    assert table.location() == f"{warehouse}/users"
    assert table.properties["owner"] == "me"
    other = catalog.create_table("acme.sales.users", USERS)
    assert other.location() == f"{warehouse}/acme__/sales/users"
    with pytest.raises(Conflict):
        catalog.create_table("users", USERS)
    assert {"users", "acme.sales.users"} <= set(map(str, catalog.list_tables()))
    for name in ("users", "acme.sales.users"):
        catalog.drop_table(name)


def test_append(contract_lake: Lake, table_name: str) -> None:
    table = contract_lake.catalog.create_table(table_name, USERS)
    table.append(rows(1, 2))
    contract_lake.catalog.load_table(table_name).append(rows(3))
    assert ids(contract_lake.catalog.load_table(table_name)) == [1, 2, 3]


def test_concurrent_append(contract_lake: Lake, table_name: str) -> None:
    catalog = contract_lake.catalog
    catalog.create_table(table_name, USERS)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda id_: catalog.load_table(table_name).append(rows(id_)), range(12)))
    assert ids(catalog.load_table(table_name)) == list(range(12))


def test_read(contract_lake: Lake, table_name: str) -> None:
    table = contract_lake.catalog.create_table(table_name, USERS)
    assert ids(table) == []
    table.append(rows(*range(100)))
    first = table.current_snapshot()
    assert first is not None
    table.delete("id >= 50")
    scan = contract_lake.catalog.load_table(table_name).scan(
        row_filter="id > 47", selected_fields=("id",)
    )
    assert scan.to_arrow().to_pylist() == [{"id": 48}, {"id": 49}]
    assert table.scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == 100


def test_schema_change(contract_lake: Lake, table_name: str) -> None:
    table = contract_lake.catalog.create_table(table_name, USERS)
    table.append(rows(1))
    with table.update_schema() as update:
        update.add_column("email", StringType())
        update.rename_column("name", "full_name")
    table = contract_lake.catalog.load_table(table_name)
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "full_name": "user 1", "email": None}]


def test_partition_change(contract_lake: Lake, table_name: str) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    table = contract_lake.catalog.create_table(table_name, USERS, partition_spec=spec)
    table.append(rows(1, 2))
    with table.update_spec() as update:
        update.remove_field("name")
    contract_lake.catalog.load_table(table_name).append(rows(3))
    table = contract_lake.catalog.load_table(table_name)
    assert table.spec().is_unpartitioned()
    assert ids(table) == [1, 2, 3]


def test_a_place_of_its_own_for_every_table(contract_lake: Lake, table_name: str) -> None:
    catalog = contract_lake.catalog
    first = catalog.create_table(table_name, USERS)
    first.append(rows(1))
    catalog.cached_table(table_name)
    catalog.rename_table(table_name, f"{table_name}_old")
    second = catalog.create_table(table_name, USERS)
    second.append(rows(2))
    catalog.drop_table(table_name)
    other_schema = Schema(NestedField(1, "other", LongType(), required=False))
    third = catalog.create_table(table_name, other_schema)
    assert len({first.location(), second.location(), third.location()}) == 3
    assert not second.location().startswith(f"{first.location()}/")
    assert catalog.cached_table(table_name).schema().column_names == ["other"]
    assert ids(catalog.load_table(f"{table_name}_old")) == [1]


def test_rename(contract_lake: Lake, table_name: str) -> None:
    catalog = contract_lake.catalog
    catalog.create_table(table_name, USERS).append(rows(1))
    catalog.cached_table(table_name)
    catalog.rename_table(table_name, f"moved.elsewhere.{table_name}")
    assert ids(catalog.load_table(f"moved.elsewhere.{table_name}")) == [1]
    with pytest.raises(NotFound):
        catalog.cached_table(table_name)


def test_drop(contract_lake: Lake, table_name: str) -> None:
    catalog = contract_lake.catalog
    catalog.create_table(table_name, USERS)
    catalog.drop_table(table_name)
    assert table_name not in set(map(str, catalog.list_tables()))
    for missing in (catalog.load_table, catalog.drop_table):
        with pytest.raises(NotFound):
            missing(table_name)


def test_properties_together_with_a_commit(contract_lake: Lake, table_name: str) -> None:
    table = contract_lake.catalog.create_table(table_name, USERS)
    with table.transaction() as transaction:
        transaction.append(rows(1))
        transaction.set_properties({"calve.committed.0": "1"})
    table = contract_lake.catalog.load_table(table_name)
    assert table.properties["calve.committed.0"] == "1"
    assert ids(table) == [1]
    assert len(table.history()) == 1


def test_conflict_on_a_stale_snapshot(contract_lake: Lake, table_name: str) -> None:
    table = contract_lake.catalog.create_table(table_name, USERS)
    table.append(rows(1))
    stale = table.current_snapshot()
    assert stale is not None
    contract_lake.catalog.load_table(table_name).append(rows(2))
    requirement = AssertRefSnapshotId.model_validate(
        {"ref": "main", "snapshot-id": stale.snapshot_id}
    )
    update = SetPropertiesUpdate(updates={"lost": "yes"})
    with pytest.raises(CommitFailedException):
        contract_lake.catalog.iceberg.commit_table(table, (requirement,), (update,))
    table = contract_lake.catalog.load_table(table_name)
    assert "lost" not in table.properties
    assert ids(table) == [1, 2]


def test_files_are_written_by_whoever_was_sent_what_it_takes(
    contract_lake: Lake, table_name: str
) -> None:
    table = contract_lake.catalog.create_table(table_name, USERS)
    sent = msgspec.msgpack.encode(shape_of(table))
    far = table_of(msgspec.msgpack.decode(sent, type=TableShape))
    batches = rows(1, 2).to_batches()
    files = write_data_files(far, batches, operation_id=new_operation_id("far"))
    TableCommit(table).attempt(Edit(added=files))
    assert ids(contract_lake.catalog.load_table(table_name)) == [1, 2]


def test_wrong_credentials(kind: Backend, table_name: str) -> None:
    if not kind.wrong_credentials:
        pytest.skip("there is no server that could refuse a login")
    for change in kind.wrong_credentials:
        with pytest.raises(Denied) as denied:
            use(kind, change, table_name)
        assert denied.value.hint
        assert "wrong" not in str(denied.value)


def test_unreachable_server(kind: Backend, table_name: str) -> None:
    if not kind.unreachable:
        pytest.skip("there is no server that could be out of reach")
    for change in kind.unreachable:
        started = time.monotonic()
        with pytest.raises(Unavailable) as unavailable:
            use(kind, change, table_name)
        assert unavailable.value.hint
        assert time.monotonic() - started < ANSWER_SECONDS_MAX


def use(kind: Backend, change: dict[str, object], table_name: str) -> None:
    with Lake(kind.settings(**change)) as lake, translating():
        lake.catalog.list_tables()
        probe_store(lake.catalog)


@pytest.fixture
def table_name(request: pytest.FixtureRequest) -> str:
    """A name of this test's own: some servers, and so their catalogs, are shared by all tests."""
    return f"t_{abs(hash(request.node.nodeid)) % 10**12}"


def test_errors_are_calves_own(contract_lake: Lake, table_name: str) -> None:
    for work in (contract_lake.catalog.load_table, contract_lake.catalog.drop_table):
        with pytest.raises(CalveError):
            work(table_name)
