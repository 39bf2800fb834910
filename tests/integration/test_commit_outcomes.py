"""What became of a commit that was interrupted, or that nobody answered: no live file is deleted, no
row comes twice, also when the snapshots that would tell have expired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from calve.changes import delete_rows, insert_rows, update_rows, upsert_rows
from calve.errors import CalveError, Unavailable, UnknownOutcome
from calve.lake import Lake
from calve.tables import commit as commit_module
from calve.tables.catalog import LakeCatalog
from calve.tables.commit import TableCommit
from calve.tables.data_files import write_data_files
from calve.tables.staging import Edit
from calve.writer import IcebergTableWriter, RetryConfig
from calve.writer.transactions import Transactions
from tests.fakes import lying_catalog as lies
from tests.fakes.lying_catalog import Lie, lying
from tests.integration.writing import data_files, ids, rows, writer_for

QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "2"}
TWICE = RetryConfig(max_attempts=2, initial_delay=0.001, max_delay=0.002)


@pytest.fixture
def catalog(lake: Lake) -> LakeCatalog:
    lake.tables.create_table("t", {"id": "long"}, properties=QUICK)
    insert_rows(lake.catalog, "t", [{"id": 0}])
    return lake.catalog


@pytest.fixture
def writer(lake: Lake, catalog: LakeCatalog) -> Iterator[IcebergTableWriter]:
    with writer_for(lake, retry=TWICE) as writer:
        yield writer


def interrupted(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def write_by_transaction(lake: Lake) -> None:
    with writer_for(lake) as writer, writer.transaction():
        writer.write_batch(rows(1, start=1))


CHANGES: dict[str, Callable[[Lake], object]] = {
    "transaction": write_by_transaction,
    "write_batch": lambda lake: writer_for(lake).write_batch(rows(1, start=1)),
    "insert": lambda lake: insert_rows(lake.catalog, "t", [{"id": 1}]),
    "upsert": lambda lake: upsert_rows(lake.catalog, "t", [{"id": 1}], keys=["id"]),
    "update": lambda lake: update_rows(lake.catalog, "t", {"id": 1}),
    "delete": lambda lake: delete_rows(lake.catalog, "t", "id = 0"),
}


def interrupting_once(work: Callable[..., Any]) -> Callable[..., Any]:
    """As a signal does: the first time it comes in between, and never again."""
    left = [KeyboardInterrupt()]

    def done(*arguments: Any) -> Any:
        if left:
            raise left.pop()
        return work(*arguments)

    return done


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["an answer", "Committed", "manifest_paths", "clear_away"])
def test_an_interrupt_at_any_moment_after_a_commit_leaves_its_files(
    lake: Lake, catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch, change: str, moment: str
) -> None:
    """The second of two attempts is applied, so that there are files of the first to delete."""

    def applies_and_is_interrupted(commit: Callable[[], Any]) -> Any:
        done = commit()
        if moment == "an answer":
            raise KeyboardInterrupt
        monkeypatch.setattr(
            commit_module, moment, interrupting_once(getattr(commit_module, moment))
        )
        return done

    with (
        lying(catalog, lies.fails_before, applies_and_is_interrupted),
        pytest.raises(KeyboardInterrupt),
    ):
        CHANGES[change](lake)
    expected = {"update": [1], "delete": []}.get(change, [0, 1])
    assert ids(lake) == expected


def test_an_interrupt_after_the_commit_and_before_the_transaction_knows_it(
    lake: Lake, writer: IcebergTableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = writer.begin_transaction()
    writer.write_batch(rows(1, start=1))
    with monkeypatch.context() as patch:
        patch.setattr(writer._target, "keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.commit_transaction(transaction)
    with pytest.raises(CalveError, match="has been committed"):
        writer.rollback_transaction(transaction)
    assert ids(lake) == [0, 1]


def test_a_commit_that_was_interrupted_is_found_when_it_is_asked_for_again(
    lake: Lake, writer: IcebergTableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = writer.begin_transaction()
    writer.write_batch(rows(1, start=1))
    with monkeypatch.context() as patch:
        patch.setattr(writer._target, "keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.commit_transaction(transaction)
    with pytest.raises(CalveError, match="was tried"):
        writer.write_batch(rows(1, start=2), transaction)
    done = writer.commit_transaction(transaction)
    assert done.snapshot_id == lake.catalog.load_table("t").metadata.current_snapshot_id
    assert ids(lake) == [0, 1]


def test_files_that_cannot_be_read_after_a_commit_do_not_undo_it(
    lake: Lake, catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> Any:
        raise ValueError("not Avro")

    monkeypatch.setattr(commit_module, "manifest_paths", unreadable)
    with lying(catalog, lies.fails_before):
        writer_for(lake).write_batch(rows(1, start=1))
        insert_rows(catalog, "t", [{"id": 2}])
    assert ids(lake) == [0, 1, 2]


@pytest.mark.parametrize("change", ["transaction", "write_batch"])
def test_a_commit_that_comes_true_while_it_is_given_up_is_no_error(
    lake: Lake, catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    late: list[Callable[[], Any]] = []

    def keeps(commit: Callable[[], Any]) -> Any:
        late.append(commit)
        return lies.fails_before(commit)

    really_roll_back = Transactions.roll_back

    def roll_back(*arguments: Any) -> None:
        late.pop()()
        really_roll_back(*arguments)

    monkeypatch.setattr(Transactions, "roll_back", roll_back)
    with writer_for(lake, retry=RetryConfig(max_attempts=1)) as writer, lying(catalog, keeps):
        if change == "write_batch":
            done = writer.write_batch(rows(1, start=1))
            assert done.snapshot_id == catalog.load_table("t").metadata.current_snapshot_id
            assert done.files == 1
        else:
            with writer.transaction():
                writer.write_batch(rows(1, start=1))
        assert writer.stats.transactions_committed == 1
    assert ids(lake) == [0, 1]


# What others do before anybody looks what became of a commit.
def expire_all(lake: Lake) -> None:
    """Others commit, and somebody keeps nothing but the newest snapshot."""
    insert_rows(lake.catalog, "t", [{"id": 50}])
    lake.tables.expire_snapshots("t", older_than_days=0)


def compact_and_expire(lake: Lake) -> None:
    """Nothing is left that tells of a commit, but its rows."""
    table = lake.catalog.load_table("t")
    old = [task.file for task in table.scan().plan_files()]
    new = write_data_files(table, table.scan().to_arrow().to_batches(), operation_id="compact")
    TableCommit(table).attempt(Edit(added=new, removed=old))
    expire_all(lake)


def applies_then(lake: Lake, others: Callable[[Lake], None], answer: Lie) -> Lie:
    def lie(commit: Callable[[], Any]) -> Any:
        commit()
        others(lake)
        return answer(commit)

    return lie


APPENDS = {name: CHANGES[name] for name in ("transaction", "write_batch", "insert", "upsert")}


@pytest.mark.parametrize("change", APPENDS)
@pytest.mark.parametrize("answer", [lies.refuses, lies.fails_before])
def test_a_commit_whose_snapshot_has_expired_is_known_by_its_files(
    lake: Lake, catalog: LakeCatalog, change: str, answer: Lie
) -> None:
    with lying(catalog, applies_then(lake, expire_all, answer)) as left:
        APPENDS[change](lake)
    assert not left
    assert ids(lake) == [0, 1, 50]


@pytest.mark.parametrize("change", APPENDS)
@pytest.mark.parametrize("answer", [lies.refuses, lies.fails_before])
def test_where_nothing_tells_of_a_commit_any_more_nothing_is_repeated(
    lake: Lake, catalog: LakeCatalog, change: str, answer: Lie
) -> None:
    with (
        lying(catalog, applies_then(lake, compact_and_expire, answer)),
        pytest.raises(UnknownOutcome, match="nobody can tell whether a commit happened"),
    ):
        APPENDS[change](lake)
    assert ids(lake) == [0, 1, 50]


def test_a_transaction_that_nobody_can_tell_of_is_neither_repeated_nor_deleted(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    transaction = writer.begin_transaction()
    writer.write_batch(rows(1, start=1))
    lie = applies_then(lake, compact_and_expire, lies.fails_before)
    with lying(lake.catalog, lie), pytest.raises(UnknownOutcome):
        writer.commit_transaction(transaction)
    with pytest.raises(UnknownOutcome, match=transaction):
        writer.commit_transaction(transaction)
    with pytest.raises(UnknownOutcome):
        writer.rollback_transaction(transaction)
    assert writer.stats.transactions_undecided == 1
    assert ids(lake) == [0, 1, 50]


def test_a_refused_commit_on_an_old_reading_is_tried_again_whatever_has_expired(
    lake: Lake, catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent before the others came, so that there is nothing to tell."""
    commit = TableCommit(catalog.load_table("t"))
    files = write_data_files(commit.table, rows(1, start=1).to_batches(), operation_id="x")
    expire_all(lake)
    expire_all(lake)
    monkeypatch.setattr(commit_module, "FRESH_SECONDS", 0.0)
    commit.append(Edit(added=files))
    assert ids(lake) == [0, 1, 50, 50]
    with writer_for(lake) as writer:
        transaction = writer.begin_transaction()
        writer.write_batch(rows(1, start=2))
        expire_all(lake)
        expire_all(lake)
        writer.commit_transaction(transaction)
    assert ids(lake) == [0, 1, 2, *[50] * 4]


def test_of_two_attempts_the_files_of_the_one_that_came_true_are_left(
    lake: Lake, catalog: LakeCatalog
) -> None:
    """An update is worked out again for new columns; the first attempt had won before they came."""
    commit = TableCommit(catalog.load_table("t"))
    first, second = (
        write_data_files(commit.table, rows(1, start=n).to_batches(), operation_id=f"x{n}")
        for n in (1, 2)
    )
    late: list[Callable[[], Any]] = []

    def keeps(send: Callable[[], Any]) -> Any:
        late.append(send)
        return lies.fails_before(send)

    def late_one_wins(send: Callable[[], Any]) -> Any:
        late.pop()()
        return send()

    with lying(catalog, keeps, late_one_wins):
        with pytest.raises(Unavailable):
            commit.attempt(Edit(added=first))
        done = commit.attempt(Edit(added=second))
    assert done.edit is not None
    assert done.edit.added == first
    commit.discard(file.file_path for file in (*first, *second))
    assert ids(lake) == [0, 1]
    assert second[0].file_path.rsplit("/", 1)[1] not in {path.name for path in data_files(lake)}


def test_a_table_of_format_1_is_told_of_by_its_line(lake: Lake, writer: IcebergTableWriter) -> None:
    lake.tables.create_table("old", {"id": "long"}, properties={**QUICK, "format-version": "1"})
    catalog = lake.catalog
    for n, lie in enumerate([lies.refuses, lies.fails_before, lies.applies_then_refuses]):
        with lying(catalog, lie):
            insert_rows(catalog, "old", [{"id": n}])

    def others(commit: Callable[[], Any]) -> Any:
        insert_rows(catalog, "old", [{"id": 10}])
        return commit()

    with lying(catalog, others):
        insert_rows(catalog, "old", [{"id": 3}])
    assert ids(lake, "old") == [0, 1, 2, 3, 10]
