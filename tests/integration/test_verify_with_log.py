"""The auditor holds the log against the table: identity, what follows, and what is known as lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from calve.errors import Corruption, InvalidRequest, NotFound
from calve.lake import Lake
from calve.maintenance.verification import Verification
from calve.manager import IcebergManager
from calve.model import TableName
from calve.tables.catalog import LakeCatalog
from calve.tables.ranges import Range, Ranges
from calve.wal import Log, LogOptions, Stream
from tests.fakes.oracle import rows
from tests.fakes.topic_table import feed, make_topic_table

TOPIC = TableName.parse("t")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    options = LogOptions(free_bytes_min=0, hot_window_seconds=0)
    with Log(tmp_path / "log", options) as log:
        yield log


@pytest.fixture
def stream(lake: Lake, log: Log) -> Stream:
    """A log of a hundred rows, ten in each frame, of which none is in the table."""
    make_topic_table(lake.catalog)
    stream = log.create_stream(TOPIC)
    append(log, stream, 0, 100)
    return stream


def append(log: Log, stream: Stream, first: int, end: int) -> None:
    for start in range(first, end, 10):
        log.append(stream, rows(start, 10))


def committed(catalog: LakeCatalog, log: Log, stream: Stream, end: int, offsets: range) -> None:
    with log.reader() as reader:
        checksum = f"{reader.content_sum(stream, end) or 0:016x}"
    feed(catalog, offsets, end=end, log=stream.id, checksum=checksum)


def verified(manager: IcebergManager, log: Log) -> Verification:
    return manager.verify_topic("t", log=log.directory)


def problem(found: Verification) -> str:
    assert not found.is_sound
    state = found.partitions[0].log
    assert state is not None
    (told,) = state.problems
    return told


def test_a_log_that_follows_its_table_is_sound(lake: Lake, log: Log, stream: Stream) -> None:
    assert verified(lake.tables, log).is_sound
    committed(lake.catalog, log, stream, 40, range(40))
    found = verified(lake.tables, log)
    assert found.is_sound
    state = found.partitions[0].log
    assert state is not None
    assert (state.first, state.durable) == (0, 100)


def test_holes_of_the_log_are_known_loss(lake: Lake, log: Log, stream: Stream) -> None:
    log.record_hole(stream, 100, 130)
    append(log, stream, 130, 150)
    committed(lake.catalog, log, stream, 150, range(100))
    alone = lake.tables.verify_topic("t")
    assert [str(each) for each in alone.partitions[0].missing] == ["100-150"]
    found = verified(lake.tables, log).partitions[0]
    assert [str(each) for each in found.known_loss] == ["100-130"]
    assert [str(each) for each in found.missing] == ["130-150"]


@pytest.mark.parametrize("reached", [0, 60, 120, 150])
def test_holes_are_known_loss_before_they_are_committed_too(
    lake: Lake, log: Log, stream: Stream, reached: int
) -> None:
    log.record_hole(stream, 100, 150)
    append(log, stream, 150, 170)
    if reached:
        committed(lake.catalog, log, stream, reached, range(min(reached, 100)))
    found = verified(lake.tables, log)
    assert found.is_sound
    assert [str(each) for each in found.partitions[0].known_loss] == ["100-150"]


def test_holes_of_a_topic_without_a_table_are_known_loss(lake: Lake, log: Log) -> None:
    stream = log.create_stream(TOPIC)
    append(log, stream, 0, 30)
    log.record_hole(stream, 30, 50)
    (report,) = verified(lake.tables, log).partitions
    assert [str(each) for each in report.known_loss] == ["30-50"]


def test_holes_that_a_commit_told_of_outlive_the_log(lake: Lake) -> None:
    make_topic_table(lake.catalog)
    feed(lake.catalog, range(100))
    feed(lake.catalog, [*range(100, 110), *range(130, 145)], end=150, lost=Ranges.exact((110, 130)))
    feed(lake.catalog, [], end=160, lost=Ranges.exact((150, 160)))
    found = lake.tables.verify_topic("t").partitions[0]
    assert [str(each) for each in found.known_loss] == ["110-130", "150-160"]
    assert [str(each) for each in found.missing] == ["145-150"]
    lake.tables.delete_data("t", "id < 10", flush=False)
    again = lake.tables.verify_topic("t").partitions[0]
    assert again.known_loss == found.known_loss
    assert [str(each) for each in again.removed] == ["0-10"]


def test_what_is_told_as_lost_lies_in_the_range_and_beside_its_rows(lake: Lake) -> None:
    make_topic_table(lake.catalog)
    with pytest.raises(InvalidRequest, match="10-20 is not all of it in 0-15"):
        feed(lake.catalog, [], end=15, lost=Ranges.exact((10, 20)))
    with pytest.raises(InvalidRequest, match="more than the range has offsets"):
        feed(lake.catalog, range(10), lost=Ranges.exact((5, 6)))


def test_a_loss_known_in_number_alone_explains_no_more_than_that(lake: Lake) -> None:
    make_topic_table(lake.catalog)
    feed(lake.catalog, range(0, 100, 2), lost=Ranges((Range(0, 99, 49),)), end=99)
    assert lake.tables.verify_topic("t").is_sound
    make_topic_table(lake.catalog, "u")
    feed(lake.catalog, range(0, 100, 2), name="u", lost=Ranges((Range(0, 99, 48),)), end=99)
    assert len(lake.tables.verify_topic("u").partitions[0].missing) == 49


def test_an_unreadable_loss_is_an_error_with_the_way_out(lake: Lake) -> None:
    make_topic_table(lake.catalog, **{"calve.lost.0": "many"})
    feed(lake.catalog, range(100))
    with pytest.raises(Corruption, match=r"calve\.lost\.0") as caught:
        lake.tables.verify_topic("t")
    assert "older metadata file" in (caught.value.hint or "")


def test_the_log_of_another_life_is_told_of(lake: Lake, log: Log, stream: Stream) -> None:
    feed(lake.catalog, range(40), log=UUID(int=1))
    assert str(UUID(int=1)) in problem(verified(lake.tables, log))


def test_a_log_that_is_older_than_its_table_is_told_of(
    lake: Lake, log: Log, stream: Stream
) -> None:
    feed(lake.catalog, range(120), log=stream.id)
    assert "older than the table" in problem(verified(lake.tables, log))


def test_a_log_that_begins_after_its_table_is_told_of(lake: Lake, log: Log, stream: Stream) -> None:
    committed(lake.catalog, log, stream, 40, range(40))
    log.rotate()
    log.trim({stream.id: 100})
    assert "begins at" in problem(verified(lake.tables, log))


def test_other_rows_in_the_log_than_were_committed_are_told_of(
    lake: Lake, log: Log, stream: Stream
) -> None:
    feed(lake.catalog, range(40), log=stream.id, checksum="abc")
    assert "other rows" in problem(verified(lake.tables, log))


def test_a_log_without_the_topic_is_told_of(lake: Lake, log: Log) -> None:
    make_topic_table(lake.catalog)
    feed(lake.catalog, range(40))
    assert "no topic t" in problem(verified(lake.tables, log))
    with pytest.raises(NotFound):
        lake.tables.verify_topic("t", log=log.directory.parent / "nowhere")


def test_the_lakes_own_log_is_looked_at_if_it_has_the_topic(lake: Lake, log: Log) -> None:
    make_topic_table(lake.catalog)
    feed(lake.catalog, range(40))
    own = lake.settings.wal.path
    assert own is not None
    with Log(own, LogOptions(free_bytes_min=0)) as theirs:
        assert lake.tables.verify_topic("t").partitions[0].log is None
        theirs.create_stream(TOPIC)
        assert not lake.tables.verify_topic("t").is_sound


def test_a_log_that_goes_on_meanwhile_is_no_contradiction(
    lake: Lake, log: Log, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are appended, committed and let go of between the looks at table and log."""
    committed(lake.catalog, log, stream, 40, range(40))
    load = LakeCatalog.load_table
    looks = newest = 0

    def loading(catalog: LakeCatalog, name: TableName | str) -> object:
        nonlocal looks, newest
        looks += 1
        if looks == newest:
            append(log, stream, 110, 120)
            committed(lake.catalog, log, stream, 120, range(100, 120))
        table = load(catalog, name)
        if looks == 1:
            committed(lake.catalog, log, stream, 100, range(40, 100))
            log.rotate()
            append(log, stream, 100, 110)
            assert log.trim({stream.id: 100})
            newest = looks + 1
        return table

    monkeypatch.setattr(LakeCatalog, "load_table", loading)
    found = verified(lake.tables, log)
    assert looks > newest
    assert (found.is_sound, found.partitions[0].committed) == (True, 40)
    state = found.partitions[0].log
    assert state is not None
    assert state.first == 100


def test_a_topic_without_a_table_is_held_against_its_log_alone(lake: Lake, log: Log) -> None:
    append(log, log.create_stream(TOPIC), 0, 30)
    found = verified(lake.tables, log)
    assert found.is_sound
    assert not found.has_table
    (report,) = found.partitions
    assert (report.committed, report.rows) == (0, 0)
    assert report.log is not None
    assert (report.log.first, report.log.durable) == (0, 30)
    with pytest.raises(NotFound, match="there is no topic other"):
        lake.tables.verify_topic("other", log=log.directory)


def test_a_table_that_is_gone_is_told_from_one_that_never_was(lake: Lake, log: Log) -> None:
    stream = log.create_stream(TOPIC)
    append(log, stream, 0, 30)
    log.rotate()
    append(log, stream, 30, 40)
    assert log.trim({stream.id: 30}) == 1
    found = verified(lake.tables, log)
    assert not found.has_table
    assert "30" in problem(found)
