"""A topic's table restored from an older copy, and not that of its dead letters: the ways out that the refusal names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from calve.errors import Conflict
from calve.manager import IcebergManager
from calve.model import TableName
from calve.wal import Rejected
from tests.commands import run_command
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, site

ORDERS = TableName.parse("orders")
LETTERS = str(ORDERS.dead_letters)
AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
COPIED, COMMITTED = 4, 8


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**AT_ONCE)) as made:
        yield made


def send(made: Site, *numbers: int) -> None:
    """Rows, of which the odd ones are set aside."""
    for number in numbers:
        if number % 2:
            made.intake.submit(ORDERS, [Rejected(b"{", "application/x-ndjson", "no row")]).wait()
        else:
            made.send("orders", [{"id": number}])
    assert made.pipeline().drain(30)


def restore(made: Site, table: str, metadata: str) -> None:
    name = made.table(table).name()
    made.catalog.iceberg.drop_table(name)
    made.catalog.iceberg.register_table(name, metadata)


def restored(made: Site) -> str:
    """A topic that stops; where the metadata of its dead letters was when the copy was made."""
    send(made, *range(COPIED))
    copied = made.table("orders").metadata_location
    letters = made.table(LETTERS).metadata_location
    send(made, *range(COPIED, COMMITTED))
    restore(made, "orders", copied)
    assert not made.pipeline().drain(0.5)
    (told,) = made.state.progress().partitions.values()
    assert "unless some of them are dead letters" in str(told.hint)
    return letters


def roll_back(made: Site, *, replay: bool) -> None:
    with IcebergManager(made.settings) as manager:
        current = manager.get_current_snapshot("orders")
        assert current is not None
        log = made.intake.log.directory if replay else None
        manager.rollback("orders", current.id, replay=replay, log=log)


def refused(made: Site) -> str:
    with pytest.raises(Conflict, match="among the dead letters") as refusal:
        roll_back(made, replay=True)
    return str(refusal.value.hint)


def require_sound(made: Site) -> None:
    with IcebergManager(made.settings) as manager:
        found = manager.verify_topic("orders", log=made.intake.log.directory)
    assert found.is_sound, found


def test_rows_come_again_when_the_dead_letters_are_of_the_same_copy(lake_site: Site) -> None:
    letters = restored(lake_site)
    assert f"restore {LETTERS} from the same one" in refused(lake_site)
    restore(lake_site, LETTERS, letters)
    roll_back(lake_site, replay=True)
    assert lake_site.pipeline().drain(30)
    lake_site.require_each_once("orders", COMMITTED)
    assert lake_site.offsets(LETTERS) == [1, 3, 5, 7]
    require_sound(lake_site)


def test_rows_that_are_given_up_are_asked_for_before_and_sent_again(
    lake_site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    restored(lake_site)
    lake_site.send("orders", [{"id": 8}])  # which comes by itself when the topic goes on
    question = re.search(r'`calve sql "(.*)" --output rows.parquet`', refused(lake_site))
    assert question is not None
    lake, kept = str(lake_site.settings.data), str(tmp_path / "rows.parquet")
    words = ["calve", "sql", question[1], "--output", kept, "--data", lake]
    assert run_command(words, monkeypatch, capsys).code == 0
    assert pq.read_table(kept).to_pylist() == [{"id": 4}, {"id": 6}]
    roll_back(lake_site, replay=False)
    lake_site.intake.close()  # for the command, which has no service to ask
    words = ["calve", "produce", "orders", "--data", kept, "--lake", lake]
    assert run_command(words, monkeypatch, capsys).code == 0
    assert lake_site.pipeline().drain(30)
    assert [row["id"] for row in lake_site.rows("orders")] == [0, 2, 8, 4, 6]
    assert lake_site.offsets(LETTERS) == [1, 3, 5, 7]
    require_sound(lake_site)


def test_rows_come_again_when_the_dead_letters_are_dropped(lake_site: Site) -> None:
    """Older ones are gone then, and recorded as removed."""
    restored(lake_site)
    refused(lake_site)
    with IcebergManager(lake_site.settings) as manager:
        manager.drop_table(LETTERS, force=True)
    roll_back(lake_site, replay=True)
    assert lake_site.pipeline().drain(30)
    assert lake_site.offsets("orders") == [0, 2, 4, 6]
    assert lake_site.offsets(LETTERS) == [5, 7]
    require_sound(lake_site)
