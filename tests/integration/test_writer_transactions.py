"""Transactions of a writer: all rows in one snapshot, or none and no file."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from calve.errors import CalveError, Conflict, InvalidRequest, Unavailable, UnknownOutcome
from calve.lake import Lake
from calve.tables.data_files import DataFileWriter
from calve.writer import IcebergTableWriter, RetryConfig
from calve.writer.stats import WriterCounters
from tests.fakes import lying_catalog as lies
from tests.fakes.lying_catalog import lying
from tests.integration.writing import EAGER, data_files, ids, rows, snapshots, writer_for

QUICK = RetryConfig(max_attempts=2, initial_delay=0.001, max_delay=0.002)


@pytest.fixture
def writer(lake: Lake) -> Iterator[IcebergTableWriter]:
    with writer_for(lake, batch=EAGER, retry=QUICK) as writer:
        writer.write_batch(rows(1))
        yield writer


def test_a_batch_outside_a_transaction_is_its_own(lake: Lake, writer: IcebergTableWriter) -> None:
    done = writer.write_batch(rows(2, start=1))
    table = lake.catalog.load_table("t")
    assert done.snapshot_id == table.metadata.current_snapshot_id
    assert (done.rows, done.files) == (2, 1)
    assert ids(lake) == [0, 1, 2]
    assert snapshots(lake) == 2


def test_nothing_is_seen_before_the_commit_and_everything_after(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    transaction = writer.begin_transaction()
    for start in (1, 5_001):
        assert writer.write_batch(rows(5_000, start=start)).snapshot_id is None
    assert len(data_files(lake)) > 1
    assert ids(lake) == [0]
    done = writer.commit_transaction(transaction)
    assert done.rows == 10_000
    assert ids(lake) == list(range(10_001))
    assert snapshots(lake) == 2
    summary = lake.catalog.load_table("t").current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary["calve.operation"] == transaction


def test_a_rollback_leaves_no_file(lake: Lake, writer: IcebergTableWriter) -> None:
    before = data_files(lake)
    transaction = writer.begin_transaction()
    writer.write_batch(rows(5_000))
    writer.write_batch([{"id": n, "more": n} for n in range(5_000)])
    staged = set(data_files(lake)) - set(before)
    assert len(staged) > 1
    assert all(path.name.startswith(transaction) for path in staged)
    writer.rollback_transaction(transaction)
    assert data_files(lake) == before
    assert ids(lake) == [0]


def write_and_fail(writer: IcebergTableWriter) -> None:
    with writer.transaction():
        writer.write_batch(rows(5_000))
        raise ZeroDivisionError


def test_an_error_in_the_block_rolls_back(lake: Lake, writer: IcebergTableWriter) -> None:
    before = data_files(lake)
    with pytest.raises(ZeroDivisionError):
        write_and_fail(writer)
    assert data_files(lake) == before
    assert writer.stats.rolled_back_because == {"ZeroDivisionError": 1}
    with writer.transaction() as transaction:
        writer.write_batch(rows(1, start=1))
    assert ids(lake) == [0, 1]
    with pytest.raises(InvalidRequest, match="was committed in snapshot"):
        writer.commit_transaction(transaction)


def test_many_batches_are_one_transaction(lake: Lake, writer: IcebergTableWriter) -> None:
    done = writer.write_batches(rows(3, start=n) for n in range(1, 31, 3))
    assert (done.rows, done.files) == (30, 1)
    assert ids(lake) == list(range(31))
    assert snapshots(lake) == 2


def test_batches_that_break_off_leave_nothing(lake: Lake, writer: IcebergTableWriter) -> None:
    def broken() -> Iterator[pa.Table]:
        yield rows(5_000)
        raise OSError("the source broke off")

    before = data_files(lake)
    with pytest.raises(OSError, match="broke off"):
        writer.write_batches(broken())
    assert data_files(lake) == before
    assert snapshots(lake) == 1


def test_an_empty_transaction_makes_no_snapshot(lake: Lake, writer: IcebergTableWriter) -> None:
    with writer.transaction():
        pass
    assert writer.write_batch(rows(0)).snapshot_id is None
    assert writer.write_batches([]).snapshot_id is None
    assert snapshots(lake) == 1


def test_a_wrong_finished_or_foreign_id_is_told_apart(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    uses: list[Callable[[str], object]] = [
        writer.commit_transaction,
        writer.rollback_transaction,
        lambda transaction: writer.write_batch(rows(1), transaction),
        lambda transaction: writer.write_batches([rows(1)], transaction),
    ]
    committed = writer.begin_transaction()
    writer.commit_transaction(committed)
    gone = writer.begin_transaction()
    writer.rollback_transaction(gone)
    with writer_for(lake) as other:
        foreign = other.begin_transaction()
        cases = {
            committed: "was committed without rows",
            gone: r"was rolled back \(requested\)",
            foreign: "no transaction .* of this writer",
            "no such": "no transaction 'no such' of this writer",
            "": "no transaction '' of this writer",
        }
        for transaction, said in cases.items():
            for use in uses:
                with pytest.raises(InvalidRequest, match=said):
                    use(transaction)
    assert ids(lake) == [0]


def test_what_is_no_configuration_changes_nothing(writer: IcebergTableWriter) -> None:
    before = writer.batch_config, writer.retry_config
    uses: list[Callable[[Any], None]] = [writer.set_batch_config, writer.set_retry_config]
    for use in uses:
        for wrong in (None, {"max_attempts": 1}):
            with pytest.raises(InvalidRequest, match=r"is no .*Config"):
                use(wrong)
    assert (writer.batch_config, writer.retry_config) == before


def test_several_transactions_are_open_at_once(lake: Lake, writer: IcebergTableWriter) -> None:
    first, second = writer.begin_transaction(), writer.begin_transaction()
    with pytest.raises(InvalidRequest, match="2 transactions are open here"):
        writer.write_batch(rows(1))
    writer.write_batch(rows(10, start=10), first)
    writer.write_batch(rows(10, start=20), second)
    writer.rollback_transaction(first)
    writer.write_batch(rows(1, start=30))
    writer.commit_transaction(second)
    assert ids(lake) == [0, *range(20, 31)]


def test_a_thread_that_has_begun_nothing_commits_at_once(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    transaction = writer.begin_transaction()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(writer.write_batch, rows(1, start=1)).result().snapshot_id
    writer.rollback_transaction(transaction)
    assert ids(lake) == [0, 1]


def test_threads_share_a_transaction_by_its_id(lake: Lake, writer: IcebergTableWriter) -> None:
    transaction = writer.begin_transaction()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: writer.write_batch(rows(100, start=n * 100), transaction), range(1, 41)))  # fmt: skip
    writer.commit_transaction(transaction)
    assert ids(lake) == [0, *range(100, 4_100)]
    assert snapshots(lake) == 2


def test_threads_commit_one_after_the_other_without_conflict(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: writer.write_batch(rows(1, start=n)), range(1, 25)))
    assert ids(lake) == list(range(25))
    assert writer.stats.retries == 0


def test_a_batch_that_cannot_be_read_changes_nothing(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    transaction = writer.begin_transaction()
    writer.write_batch(rows(10, start=1))
    with pytest.raises(InvalidRequest, match="column 'id'"):
        writer.write_batch([{"id": "twelve", "more": 1}])
    with pytest.raises(InvalidRequest, match="rows cannot be read from int"):
        writer.write_batch(12)
    writer.commit_transaction(transaction)
    assert ids(lake) == list(range(11))
    assert lake.catalog.load_table("t").schema().column_names == ["id"]


def test_a_batch_that_fails_half_way_can_only_be_rolled_back(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    before = data_files(lake)
    transaction = writer.begin_transaction()
    good = [{"id": n} for n in range(600)]
    with pytest.raises(InvalidRequest, match="row 601, column 'id'"):
        writer.write_batch([*good, {"id": "x"}])
    for use in (writer.commit_transaction, lambda _: writer.write_batch(rows(1))):
        with pytest.raises(InvalidRequest, match="failed half way"):
            use(transaction)
    writer.rollback_transaction(transaction)
    assert data_files(lake) == before


def test_batches_that_fail_behind_others_leave_a_transaction_to_roll_back(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    before = data_files(lake)
    transaction = writer.begin_transaction()
    writer.write_batch(rows(10, start=1))
    with pytest.raises(InvalidRequest, match="column 'id'"):
        writer.write_batches([[{"id": 21}], [{"id": "bad"}], [{"id": 23}]])
    for use in (writer.commit_transaction, lambda _: writer.write_batch(rows(1))):
        with pytest.raises(InvalidRequest, match="failed half way"):
            use(transaction)
    writer.rollback_transaction(transaction)
    assert (ids(lake), data_files(lake)) == ([0], before)


def test_batches_of_which_the_first_cannot_be_read_change_nothing(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    with writer.transaction():
        writer.write_batch(rows(10, start=1))
        with pytest.raises(InvalidRequest, match="column 'id'"):
            writer.write_batches([[{"id": "bad"}], [{"id": 23}]])
    assert ids(lake) == list(range(11))


def test_a_transaction_is_not_committed_between_two_batches_of_a_call(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    transaction = writer.begin_transaction()

    def batches() -> Iterator[pa.Table]:
        yield rows(10, start=1)
        with ThreadPoolExecutor(1) as other, pytest.raises(InvalidRequest, match="being written"):
            other.submit(writer.commit_transaction, transaction).result()
        yield rows(10, start=11)

    writer.write_batches(batches())
    writer.commit_transaction(transaction)
    assert ids(lake) == list(range(21))


@pytest.mark.parametrize("moment", ["finish", "close", "took_batch"])
def test_an_interrupt_leaves_no_transaction_that_lacks_some_of_its_rows(
    lake: Lake, writer: IcebergTableWriter, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    transaction = writer.begin_transaction()
    work: Callable[[], object] = partial(writer.write_batch, rows(5_000, start=1))
    if moment != "took_batch":
        work()
        work = partial(writer.commit_transaction, transaction)
    with monkeypatch.context() as patch:
        patch.setattr(WriterCounters if moment == "took_batch" else DataFileWriter, moment, interrupted)  # fmt: skip
        with pytest.raises(KeyboardInterrupt):
            work()
    with pytest.raises(InvalidRequest, match="failed half way"):
        writer.commit_transaction(transaction)
    writer.rollback_transaction(transaction)
    assert ids(lake) == [0]


@pytest.mark.parametrize("end", ["commit_transaction", "rollback_transaction"])
def test_rows_cannot_end_the_transaction_that_they_belong_to(
    lake: Lake, writer: IcebergTableWriter, end: str
) -> None:
    transaction = writer.begin_transaction()

    def ending() -> Iterator[dict[str, int]]:
        yield from ({"id": n} for n in range(1, 1_001))
        getattr(writer, end)(transaction)
        yield {"id": 1_001}

    with pytest.raises(InvalidRequest, match="is being written"):
        writer.write_batch(ending())
    writer.rollback_transaction(transaction)
    assert ids(lake) == [0]
    assert len(data_files(lake)) == 1


def test_closing_rolls_back_what_is_open(lake: Lake) -> None:
    lake.tables.create_table("t", {"id": "long"})
    with writer_for(lake, batch=EAGER) as writer:
        writer.begin_transaction()
        writer.write_batch(rows(5_000))
        assert data_files(lake)
    assert not data_files(lake)
    assert writer.stats.rolled_back_because == {"closed": 1}
    writer.close()
    with pytest.raises(InvalidRequest, match="has been closed"):
        writer.write_batch(rows(1))


SCRIPT = """
import sys
import calve
from tests.integration.writing import EAGER, rows
writer = calve.create_iceberg_writer(sys.argv[1], "default", "default", "t", batch=EAGER)
print(writer.begin_transaction(), flush=True)
writer.write_batch(rows(5_000))
print("written", flush=True)
if sys.argv[2] == "wait":
    sys.stdin.read()
"""


def staged_by_another(lake: Lake, how: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(lake.settings.data), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    transaction = process.stdout.readline().strip()
    assert process.stdout.readline() == "written\n"
    return process, transaction


def test_the_end_of_the_program_rolls_back(lake: Lake) -> None:
    lake.tables.create_table("t", {"id": "long"})
    process, _ = staged_by_another(lake, "end")
    with process:
        assert process.wait(60) == 0
    assert not data_files(lake)


FORKING_SCRIPT = """
import os, sys, warnings
warnings.simplefilter("ignore")
import calve
from calve.errors import InvalidRequest
from tests.integration.writing import EAGER, rows
with calve.create_iceberg_writer(sys.argv[1], "default", "default", "t", batch=EAGER) as writer:
    with writer.transaction() as transaction:
        writer.write_batch(rows(5_000))
        if child := os.fork():
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        else:
            for use in (writer.commit_transaction, writer.rollback_transaction):
                try:
                    use(transaction)
                except InvalidRequest as error:
                    assert "another process" in error.message
                else:
                    sys.exit(1)
            sys.exit(0)
"""


def test_a_process_that_was_forked_ends_nothing_of_the_one_it_came_from(lake: Lake) -> None:
    lake.tables.create_table("t", {"id": "long"})
    command = [sys.executable, "-c", FORKING_SCRIPT, str(lake.settings.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert ids(lake) == list(range(5_000))


def test_a_kill_leaves_files_that_carry_the_transaction_in_their_names(lake: Lake) -> None:
    lake.tables.create_table("t", {"id": "long"})
    process, transaction = staged_by_another(lake, "wait")
    with process:
        process.send_signal(signal.SIGKILL)
    left = data_files(lake)
    assert left
    assert all(path.name.startswith(transaction) for path in left)
    assert ids(lake) == []
    lake.tables.remove_orphans("t", older_than_days=0)
    assert not data_files(lake)


def test_a_commit_that_got_no_answer_is_found_when_it_is_tried_again(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    late: list[Any] = []

    def keeps(commit: Any) -> Any:
        late.append(commit)
        return lies.fails_before(commit)

    transaction = writer.begin_transaction()
    writer.write_batch(rows(1, start=1))
    with lying(lake.catalog, keeps, lies.fails_before), pytest.raises(UnknownOutcome):
        writer.commit_transaction(transaction)
    with pytest.raises(InvalidRequest, match="its outcome is unknown"):
        writer.write_batch(rows(1, start=2), transaction)
    late.pop()()
    assert writer.commit_transaction(transaction).snapshot_id is not None
    assert ids(lake) == [0, 1]
    assert snapshots(lake) == 2


def test_a_rollback_of_what_may_be_committed_says_so_and_keeps_the_files(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    before = len(data_files(lake))
    transaction = writer.begin_transaction()
    writer.write_batch(rows(1, start=1))
    with lying(lake.catalog, *[lies.fails_before] * 2), pytest.raises(UnknownOutcome):
        writer.commit_transaction(transaction)
    with pytest.raises(UnknownOutcome, match="or may still be"):
        writer.rollback_transaction(transaction)
    assert len(data_files(lake)) == before + 1
    assert writer.stats.transactions_undecided == 1
    with pytest.raises(InvalidRequest, match="has an unknown outcome"):
        writer.commit_transaction(transaction)


def test_a_rollback_of_what_was_committed_says_so(lake: Lake, writer: IcebergTableWriter) -> None:
    transaction = writer.begin_transaction()
    writer.write_batch(rows(1, start=1))
    held: list[Any] = []

    def keeps(commit: Any) -> Any:
        held.append(commit)
        return lies.fails_before(commit)

    with lying(lake.catalog, keeps, lies.fails_before), pytest.raises(UnknownOutcome):
        writer.commit_transaction(transaction)
    held.pop()()
    with pytest.raises(Conflict, match="has been committed"):
        writer.rollback_transaction(transaction)
    assert ids(lake) == [0, 1]


def test_an_interrupt_during_a_commit_reaches_the_caller(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    with (
        lying(lake.catalog, lies.applies_then_is_interrupted),
        pytest.raises(KeyboardInterrupt),
    ):
        writer.write_batch(rows(1, start=1))
    assert ids(lake) == [0, 1]
    assert len(data_files(lake)) == 2


def test_a_table_that_was_made_anew_is_not_written_with_files_for_the_old(
    lake: Lake, writer: IcebergTableWriter
) -> None:
    transaction = writer.begin_transaction()
    writer.write_batch(rows(1, start=1))
    lake.tables.drop_table("t")
    lake.tables.create_table("t", {"id": "string"})
    with pytest.raises(CalveError, match="another one made under its name"):
        writer.commit_transaction(transaction)
    with pytest.raises(UnknownOutcome):
        writer.rollback_transaction(transaction)
    assert writer.write_batch([{"id": "now text"}]).rows == 1


def test_a_failure_to_read_the_catalog_is_an_error_and_not_a_new_table(
    lake: Lake, writer: IcebergTableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise ConnectionError("nobody answers")

    writer.clear_catalog_cache()
    with monkeypatch.context() as patch:
        patch.setattr(lake.catalog.iceberg, "load_table", unreachable)
        with pytest.raises(Unavailable, match="nobody answers"):
            writer.write_batch(rows(1, start=1))
    assert writer.write_batch(rows(1, start=1)).rows == 1
    assert ids(lake) == [0, 1]


def test_a_writer_that_nobody_has_any_more_leaves_nothing(lake: Lake) -> None:
    lake.tables.create_table("t", {"id": "long"})
    writer = writer_for(lake, batch=EAGER)
    writer.begin_transaction()
    writer.write_batch(rows(5_000))
    assert data_files(lake)
    del writer
    assert not data_files(lake)


def test_a_writer_is_closed_while_others_write(lake: Lake) -> None:
    lake.tables.create_table("t", {"id": "long"})
    writer = writer_for(lake, batch=EAGER)
    refused: list[str] = []
    began = threading.Barrier(5)

    def write(thread: int) -> None:
        began.wait()
        try:
            for n in range(1_000):
                writer.write_batch(rows(1, start=thread * 1_000 + n))
        except InvalidRequest as error:
            refused.append(error.message)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    began.wait()
    while not snapshots(lake):
        pass
    writer.close()
    for thread in threads:
        thread.join(60)
    assert len(refused) == 4
    assert len(data_files(lake)) == len(ids(lake))
