"""Requests of telemetry that are decoded together: the same rows, and each is told its own."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from calve.ingest.otlp import origins
from calve.ingest.otlp.decoding import Decoded, decode, decode_together, read_message
from calve.ingest.otlp.gathering import Call, Gathering
from calve.ingest.otlp.messages import LEVELS, REQUESTS
from tests.telemetry import CHOICES, Filler, a_request

SIGNALS = tuple(REQUESTS)


def by_table(parts: list[Decoded]) -> dict[str, list[Any]]:
    return {part.table.name: [] if part.rows is None else part.rows.to_pylist() for part in parts}


def sender(signal: str, name: str, records: int) -> Any:
    request, _ = a_request(signal, records)
    (of_resource,) = getattr(request, LEVELS[signal][0])
    of_resource.resource.attributes.add(key="service.name").value.string_value = name
    getattr(of_resource, LEVELS[signal][1])[0].scope.name = f"scope of {name}"
    return request


def filled(signal: str, choice: int) -> Any:
    request = REQUESTS[signal]()
    Filler(choice).fill(request)
    return request


def assert_same_rows(signal: str, requests: list[Any]) -> None:
    messages = [read_message(signal, each.SerializeToString()) for each in requests]
    expected: dict[str, list[Any]] = {}
    for message in messages:
        for table, rows in by_table(decode(signal, message)).items():
            expected.setdefault(table, []).extend(rows)
    together = decode_together(signal, messages)
    assert together is not None
    assert by_table(together) == expected


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("signal", SIGNALS)
def test_requests_of_several_senders_become_the_rows_of_each(signal: str, is_known: bool) -> None:
    origins._kept.clear()
    requests = [sender(signal, f"s{number}", records=number) for number in (3, 0, 1, 600, 2, 0)]
    if is_known:
        for each in requests:
            decode(signal, read_message(signal, each.SerializeToString()))
    assert_same_rows(signal, requests)
    assert_same_rows(signal, requests)


@pytest.mark.parametrize("signal", SIGNALS)
def test_requests_of_every_shape_become_the_rows_of_each(signal: str) -> None:
    shapes = [*(filled(signal, choice) for choice in range(CHOICES)), REQUESTS[signal]()]
    shapes += [sender(signal, f"s{number}", records=number) for number in range(3)]
    chance = random.Random(5)
    for _ in range(30):
        assert_same_rows(signal, chance.choices(shapes, k=chance.randint(2, 6)))


def test_origins_of_requests_that_came_together_are_kept_for_the_next() -> None:
    origins._kept.clear()
    requests = [sender("logs", name, records=2) for name in ("a", "b", "a")]
    assert_same_rows("logs", requests)
    assert len(origins._kept) == 2
    assert_same_rows("logs", requests[::-1])


def test_one_that_has_to_be_told_something_is_not_decoded_with_others() -> None:
    good = sender("traces", "good", records=2)
    bad, records = a_request("traces", records=2)
    records[1].span_id = b""
    remark, _ = a_request("logs")
    (record,) = remark.resource_logs[0].scope_logs[0].log_records
    record.attributes.add(key="k").value.string_value_strindex = 7
    for signal, requests in (("traces", [good, bad]), ("logs", [sender("logs", "g", 1), remark])):
        messages = [read_message(signal, each.SerializeToString()) for each in requests]
        assert decode_together(signal, messages) is None
        assert decode_together(signal, messages[:1] * 2) is not None


class Site:
    """Threads that want their calls stored, by somebody who stores when told to."""

    def __init__(self, bytes_max: int = 100) -> None:
        self.gathering: Gathering[str] = Gathering(bytes_max)
        self.groups: list[list[str]] = []
        self.may_store = threading.Event()
        self.pool = ThreadPoolExecutor(16)

    def store(self, kind: str, name: str, size: int = 1, fails: int = 0) -> str:
        call: Call[str] = Call(kind, name, size)
        while call.outcome is None:
            group = self.gathering.group(call)
            if not group:
                continue
            with self.gathering.leading(group):
                names = [each.message for each in group]
                self.groups.append(names)
                assert self.may_store.wait(20)
                if len(group) > 1 and fails:
                    continue
                for each in group:
                    each.outcome = f"stored {each.message} of {len(group)}"
        return call.outcome

    def waiting(self, kind: str) -> int:
        return len(self.gathering._waiting.get(kind, []))

    def queue(self, kind: str, *names: str, **options: int) -> list[Any]:
        """Calls that come one after the other, the first of them to lead."""
        found = []
        for name in names:
            before, led = self.waiting(kind), len(self.groups)
            found.append(self.pool.submit(self.store, kind, name, **options))
            while self.waiting(kind) == before and len(self.groups) == led:
                pass
        return found


def test_whoever_comes_while_one_is_stored_is_stored_with_the_others() -> None:
    site = Site()
    calls = site.queue("logs", "a", "b", "c", "d")
    site.may_store.set()
    assert [each.result(20) for each in calls] == [
        "stored a of 1", "stored b of 3", "stored c of 3", "stored d of 3",
    ]  # fmt: skip
    assert site.groups == [["a"], ["b", "c", "d"]]
    assert not site.gathering._waiting


def test_kinds_do_not_wait_for_each_other() -> None:
    site = Site()
    calls = [*site.queue("logs", "a", "b"), *site.queue("traces", "c", "d")]
    assert site.groups == [["a"], ["c"]]
    site.may_store.set()
    assert [each.result(20) for each in calls] == [f"stored {each} of 1" for each in "abcd"]


def test_a_group_is_bounded_and_nobody_is_overtaken() -> None:
    site = Site(bytes_max=100)
    calls = site.queue("logs", "a")
    calls += site.queue("logs", "b", "c", size=40)
    calls += site.queue("logs", "large", size=90)
    calls += site.queue("logs", "huge", size=500)
    calls += site.queue("logs", "d")
    site.may_store.set()
    for each in calls:
        each.result(20)
    assert site.groups == [["a"], ["b", "c"], ["large"], ["huge"], ["d"]]


def test_a_group_that_is_not_stored_goes_on_one_by_one() -> None:
    site = Site()
    calls = site.queue("logs", "a", "b", "c", fails=1)
    site.may_store.set()
    assert {each.result(20) for each in calls} == {f"stored {each} of 1" for each in "abc"}
    assert site.groups[:2] == [["a"], ["b", "c"]]
    assert sorted(site.groups[2:]) == [["b"], ["c"]]


def test_an_error_of_whoever_leads_is_its_own() -> None:
    gathering: Gathering[str] = Gathering(100)
    first: Call[str] = Call("logs", "first", 1)
    group = gathering.group(first)
    with pytest.raises(MemoryError), gathering.leading(group):
        raise MemoryError
    assert not gathering._waiting
    assert gathering.group(Call("logs", "next", 1))
