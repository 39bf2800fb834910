"""How long a process that died is waited for, and how a service is found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.errors import Conflict
from calve.service.announcement import Addresses, Announcement, running_service
from calve.service.role import Backoff
from tests.conftest import MakeSettings

AT = Addresses(flight="grpc://127.0.0.1:8815", http="http://[::1]:8080")


@given(failures=st.integers(1, 10_000))
def test_a_delay_doubles_up_to_a_bound_and_is_never_the_same_for_all(failures: int) -> None:
    backoff = Backoff(initial_seconds=0.5, max_seconds=30)
    longest = min(30.0, 0.5 * 2.0 ** min(failures - 1, 100))
    delays = {backoff.delay_seconds(failures) for _ in range(20)}
    assert all(longest / 2 <= delay <= longest for delay in delays)
    assert len(delays) > 1


def test_a_service_is_found_while_it_is_there(make_settings: MakeSettings) -> None:
    settings = make_settings()
    assert running_service(settings) is None
    with Announcement(settings) as announcement:
        assert running_service(settings) is None, "it is not ready"
        announcement.tell(AT, {"ingest": 1})
        announcement.tell(AT, {"ingest": 2})
        found = running_service(settings)
        assert found is not None
        assert (found.addresses, found.processes, found.partition) == (AT, {"ingest": 2}, 0)
        with pytest.raises(
            Conflict, match=f"process {found.pid}, at {AT.http}".replace("[", r"\[")
        ):
            Announcement(settings)
        assert running_service(settings) == found, "asking and refusing change nothing"
    assert running_service(settings) is None
    announcement.release()


def test_each_partition_has_a_service_of_its_own(make_settings: MakeSettings) -> None:
    first, second = make_settings(), make_settings(ingest__partition=1)
    with Announcement(first) as one, Announcement(second) as other:
        one.tell(AT, {})
        other.tell(msgspec.structs.replace(AT, http="http://127.0.0.1:8081"), {})
        found = running_service(second)
        assert found is not None
        assert found.addresses.ports() == {"flight": 8815, "http": 8081}
    assert list(Path(first.data, "_calve").glob("*.json")) == []


@pytest.mark.parametrize("content", ["", "{", '{"pid": "x"}', "[]"])
def test_a_file_that_is_no_announcement_is_no_service(
    make_settings: MakeSettings, content: str
) -> None:
    settings = make_settings()
    with Announcement(settings) as announcement:
        announcement.tell(AT, {})
        Path(settings.data, "_calve", "service.json").write_text(content)
        assert running_service(settings) is None
        with pytest.raises(Conflict, match="just starting or ending"):
            Announcement(settings)
