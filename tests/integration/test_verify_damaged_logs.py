"""Whatever is damaged in a log, the auditor tells of it and counts the table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calve.maintenance.verification import Verification
from calve.maintenance.verify import verify_topic
from calve.model import TableName
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, site

ORDERS = TableName.parse("orders")
SMALL = {
    "wal__free_bytes_min": 0,
    "wal__segment_bytes_max": 65536,
    "pipeline__flush_interval_ms": 1,
    **QUICK_RETRIES,
}


@pytest.fixture
def closed(make_settings: MakeSettings) -> Iterator[Site]:
    """A topic of one committed row and eleven in the log alone, in several segments."""
    with site(make_settings(**SMALL)) as made:
        made.create("orders", schema={"id": "long", "text": "string"})
        made.send("orders", [{"id": 0, "text": "x" * 20_000}])
        assert made.pipeline().drain(30)
        for number in range(1, 12):
            made.send("orders", [{"id": number, "text": "x" * 20_000}])
        made.intake.close()
        yield made


def place(made: Site) -> Path:
    assert made.settings.wal.path is not None
    return made.settings.wal.path


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def nonsense(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


def require_told(found: Verification, path: Path) -> None:
    assert not found.is_sound
    assert (found.rows, found.partitions[0].rows, found.partitions[0].committed) == (1, 1, 1)
    state = found.partitions[0].log
    assert state is not None
    (told,) = state.problems
    assert str(path) in told
    assert "`calve wal " in told, "the way out"


DAMAGE = [half, nonsense, Path.unlink]


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda each: each.__name__)
def test_a_damaged_segment_is_told_of_and_the_table_counted(
    closed: Site, damage: Callable[[Path], object], number: int
) -> None:
    segment = sorted(place(closed).glob("*.seg"))[number]
    damage(segment)
    own = verify_topic(closed.catalog, ORDERS, own_log=place(closed), settings=closed.settings)
    require_told(own, segment)
    require_told(verify_topic(closed.catalog, ORDERS, own_log=place(closed)), segment)
    require_told(verify_topic(closed.catalog, ORDERS, log=place(closed)), segment)


def test_a_log_of_unknown_identity_is_told_of_and_the_table_counted(closed: Site) -> None:
    identity = place(closed) / "log.json"
    nonsense(identity)
    own = verify_topic(closed.catalog, ORDERS, own_log=place(closed), settings=closed.settings)
    require_told(own, identity)
    require_told(verify_topic(closed.catalog, ORDERS, log=place(closed)), identity)


def test_a_damaged_log_of_a_topic_without_a_table_is_told_of(make_settings: MakeSettings) -> None:
    with site(make_settings(**SMALL)) as made:
        made.create("orders", schema={"id": "long"})
        made.send("orders", [{"id": 0}])
        made.intake.close()
        (segment,) = place(made).glob("*.seg")
        half(segment)
        for settings in (made.settings, None):
            found = verify_topic(made.catalog, ORDERS, own_log=place(made), settings=settings)
            assert not found.is_sound
            assert not found.has_table
            state = found.partitions[0].log
            assert state is not None
            assert str(segment) in state.problems[0]
