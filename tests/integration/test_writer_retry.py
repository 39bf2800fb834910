"""A commit is tried again: as often as configured, on what others have left, without new files."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow.compute as pc
import pytest

from calve.errors import Conflict, InvalidRequest, UnknownOutcome
from calve.lake import Lake
from calve.tables.data_files import DataFileWriter
from calve.writer import IcebergTableWriter, RetryConfig, create_iceberg_writer
from tests.conftest import MakeSettings
from tests.fakes import lying_catalog as lies
from tests.fakes.lying_catalog import lying
from tests.forks import FORKS
from tests.integration.writing import EAGER, data_files, ids, read, rows, snapshots, writer_for


def quick(attempts: int) -> RetryConfig:
    return RetryConfig(max_attempts=attempts, initial_delay=0.001, max_delay=0.002)


@pytest.fixture
def writer(lake: Lake) -> Iterator[IcebergTableWriter]:
    lake.tables.create_table("t", {"id": "long"})
    with writer_for(lake, retry=quick(3)) as writer:
        yield writer


@pytest.mark.parametrize("lie", [lies.refuses, lies.fails_before])
def test_a_commit_is_tried_as_often_as_configured(
    lake: Lake, writer: IcebergTableWriter, lie: lies.Lie
) -> None:
    with lying(lake.catalog, lie, lie) as left:
        writer.write_batch(rows(2))
    assert not left
    assert ids(lake) == [0, 1]
    assert len(data_files(lake)) == 1
    stats = writer.stats
    assert stats.retries == 2
    assert 0 < stats.backoff_seconds < 1


def test_after_the_last_attempt_nothing_is_left(lake: Lake, writer: IcebergTableWriter) -> None:
    with lying(lake.catalog, *[lies.refuses] * 3) as left, pytest.raises(Conflict):
        writer.write_batch(rows(2))
    assert not left
    assert not data_files(lake)
    assert snapshots(lake) == 0
    assert writer.stats.rolled_back_because == {"Conflict": 1}


def test_an_outcome_that_stays_unknown_leaves_the_files(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    with lying(lake.catalog, *[lies.fails_before] * 3), pytest.raises(UnknownOutcome):
        writer.write_batch(rows(2))
    assert len(data_files(lake)) == 1
    assert ids(lake) == []
    stats = writer.stats
    assert stats.transactions_undecided == 1
    assert stats.transactions_rolled_back == 0


def test_a_refused_transaction_can_be_committed_again_and_keeps_its_files(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    transaction = writer.begin_transaction()
    writer.write_batch(rows(2))
    with lying(lake.catalog, *[lies.refuses] * 3), pytest.raises(Conflict):
        writer.commit_transaction(transaction)
    files = data_files(lake)
    writer.write_batch(rows(1, start=2))
    writer.commit_transaction(transaction)
    assert set(files) <= set(data_files(lake))
    assert ids(lake) == [0, 1, 2]
    assert snapshots(lake) == 1


def test_retries_change_on_a_live_writer(lake: Lake, writer: IcebergTableWriter) -> None:
    assert writer.retry_config == quick(3)
    writer.set_retry_config(quick(1))
    assert writer.retry_config.max_attempts == 1
    with lying(lake.catalog, lies.refuses), pytest.raises(Conflict):
        writer.write_batch(rows(1))
    assert writer.stats.retries == 0
    writer.set_retry_config(quick(5))
    with lying(lake.catalog, *[lies.refuses] * 4):
        writer.write_batch(rows(1))
    assert writer.stats.retries == 4


def test_without_a_configuration_the_table_says_how_often_others_may_win(
    lake: Lake, make_settings: MakeSettings
) -> None:
    waits = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "2"}
    lake.tables.create_table(
        "t", {"id": "long"}, properties={**waits, "commit.retry.num-retries": "12"}
    )
    settings = make_settings(retry__max_attempts=2, retry__initial_delay_ms=1)
    with Lake(settings) as own, writer_for(own) as writer:
        assert writer.retry_config == RetryConfig(2, 0.001)
        with lying(own.catalog, *[lies.refuses] * 12):
            writer.write_batch(rows(1))
        with lying(own.catalog, *[lies.refuses] * 13), pytest.raises(Conflict):
            writer.write_batch(rows(1))
        with lying(own.catalog, *[lies.fails_before] * 2), pytest.raises(UnknownOutcome):
            writer.write_batch(rows(1))
    assert ids(lake) == [0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_attempts": 0}, "max_attempts: 0"),
        ({"max_attempts": 2.5}, "max_attempts: 2.5"),
        ({"initial_delay": -1}, "initial_delay: -1"),
        ({"max_delay": "10"}, "max_delay: '10'"),
        ({"backoff_multiplier": 0.5}, "backoff_multiplier: 0.5"),
        ({"max_delay": float("inf")}, "max_delay: inf"),
    ],
)
def test_retries_that_make_no_sense_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        RetryConfig(**options)  # type: ignore[arg-type]


def write_many(data: str, number: int, began: object) -> None:
    """One of several processes that write to one table, which the first of them makes."""
    with create_iceberg_writer(data, "acme", "sales", "shared") as writer:
        began.wait()  # type: ignore[attr-defined]
        for n in range(8):
            writer.write_batch(rows(3, start=number * 1_000 + n * 3))


def test_processes_that_write_to_a_missing_table_lose_and_double_nothing(lake: Lake) -> None:
    began = FORKS.Barrier(5)
    processes = [
        FORKS.Process(target=write_many, args=(str(lake.settings.data), number, began))
        for number in range(5)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 5
    expected = [number * 1_000 + n for number in range(5) for n in range(24)]
    assert ids(lake, "acme.sales.shared") == expected
    assert snapshots(lake, "acme.sales.shared") == 40
    assert len(data_files(lake, "acme.sales.shared")) == 40


def test_a_column_that_two_add_alike_is_one_column(lake: Lake, writer: IcebergTableWriter) -> None:
    with writer_for(lake) as other:
        first, second = writer.begin_transaction(), other.begin_transaction()
        writer.write_batch([{"id": 1, "note": "a"}])
        other.write_batch([{"id": 2, "note": "b"}])
        files = data_files(lake)
        writer.commit_transaction(first)
        other.commit_transaction(second)
        assert other.stats.rewritten_transactions == 0
    assert set(files) <= set(data_files(lake))
    assert sorted(read(lake), key=str) == [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]
    assert lake.catalog.load_table("t").metadata.last_column_id == 2


def test_rows_are_written_again_where_their_columns_ids_were_taken(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    writer.set_batch_config(EAGER)
    transaction = writer.begin_transaction()
    writer.write_batch(rows(2_000))
    writer.write_batch([{"id": 2_000, "note": "a", "deep": {"er": [1, None]}}])
    lake.tables.add_column("t", "other", "double")
    writer.commit_transaction(transaction)
    assert writer.stats.rewritten_transactions == 1
    found = lake.catalog.load_table("t").scan().to_arrow()
    assert sorted(found["id"].to_pylist()) == list(range(2_001))
    last = found.filter(pc.equal(found["id"], 2_000)).to_pylist()
    assert last == [{"id": 2_000, "other": None, "note": "a", "deep": {"er": [1, None]}}]
    assert len(data_files(lake)) == len(lake.catalog.load_table("t").inspect.files())
    assert snapshots(lake) == 1


def test_rows_that_could_not_be_written_again_are_still_there_to_commit(
    lake: Lake, writer: IcebergTableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError("no space left")

    transaction = writer.begin_transaction()
    writer.write_batch([{"id": 1, "note": "a"}])
    writer._transactions.find(transaction)._stager.finish()
    lake.tables.add_column("t", "other", "double")
    with monkeypatch.context() as patch:
        patch.setattr(DataFileWriter, "finish", full)
        with pytest.raises(OSError, match="no space"):
            writer.commit_transaction(transaction)
    writer.commit_transaction(transaction)
    assert read(lake) == [{"id": 1, "other": None, "note": "a"}]
    assert len(data_files(lake)) == 1


def test_columns_that_cannot_both_be_are_refused_and_can_be_rolled_back(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    transaction = writer.begin_transaction()
    writer.write_batch([{"id": 1, "note": "a"}])
    lake.tables.add_column("t", "note", "double")
    with pytest.raises(InvalidRequest, match="'note'"):
        writer.commit_transaction(transaction)
    assert len(data_files(lake)) == 1
    writer.rollback_transaction(transaction)
    assert not data_files(lake)
    assert writer.write_batch([{"id": 1, "note": 1.5}]).rows == 1


def test_a_column_that_was_renamed_keeps_the_rows(lake: Lake, writer: IcebergTableWriter) -> None:
    transaction = writer.begin_transaction()
    writer.write_batch(rows(2))
    lake.tables.rename_column("t", "id", "number")
    lake.tables.add_column("t", "id", "string")
    writer.commit_transaction(transaction)
    found = sorted(read(lake), key=lambda row: row["number"])
    assert found == [{"number": 0, "id": None}, {"number": 1, "id": None}]


def test_writers_that_add_columns_in_a_race_lose_nothing(lake: Lake) -> None:
    """Each thread has a writer of its own and adds a column of its own."""
    lake.tables.create_table("t", {"id": "long"})
    began = threading.Barrier(4)
    failed: list[BaseException] = []

    def add(number: int) -> None:
        try:
            with writer_for(lake) as writer:
                began.wait()
                for n in range(4):
                    writer.write_batch([{"id": number * 10 + n, f"c{number}_{n}": n}])
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    found = read(lake)
    assert len(found) == 16
    for row in found:
        number, n = divmod(row["id"], 10)
        assert {name for name, value in row.items() if value is not None} == {"id", f"c{number}_{n}"}  # fmt: skip
    assert len(data_files(lake)) == 16
