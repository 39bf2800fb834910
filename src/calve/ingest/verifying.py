"""The audit of a topic through a service: one at a time, for whoever looks after the topic.

Where things lie is the operators' business: whoever does not see everything is not told
directories of the host, or of the store.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, Overloaded, Unavailable
from calve.ingest.refusals import RETRY_AFTER_MS
from calve.model import TableName
from calve.paths import local_directory
from calve.topics.registry import no_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from calve.access import Caller
    from calve.ingest.intake import Intake
    from calve.maintenance.verification import PartitionReport, Verification
    from calve.settings import Settings

_BUSY_MS: Final = 5_000
_UNTOLD: Final = "…"
# What begins like an address or an absolute path, up to the last name in it.
_DIRECTORIES: Final = re.compile(r"(?<![\w./…])(?:[a-z][a-z0-9+.-]*://|/)(?=\S)(?:[^\s/]*/)*")


def verified(
    intake: Intake,
    caller: Caller,
    name: TableName,
    *,
    with_orphans: bool = False,
    is_over: Callable[[], bool],
) -> Verification:
    """Audit a topic that the caller may name, against the service's own log.

    Overloaded while another audit is under way. Given up when it `is_over`, because whoever asked
    has gone or the service stops, and when the caller's token counts no more.
    """
    if not intake.verifying.acquire(blocking=False):
        raise _busy()
    try:
        found = _audited(intake, caller, name, is_over, with_orphans=with_orphans)
    except CalveError as error:
        if caller.sees_everything:
            raise
        raise _discreet_error(error, _Discretion(intake.settings)) from error
    finally:
        intake.verifying.release()
    if not caller.sees(TableName.parse(found.topic)):  # the table was another topic's
        raise no_topic(name)
    return found if caller.sees_everything else _discreet(found, _Discretion(intake.settings))


def _audited(
    intake: Intake,
    caller: Caller,
    name: TableName,
    is_over: Callable[[], bool],
    *,
    with_orphans: bool,
) -> Verification:
    # Whoever only takes rows in need not load what reads tables.
    from calve.maintenance.verify import verify_topic

    def go_on() -> None:
        if is_over():
            raise _given_up()
        intake.doorkeeper.recheck(caller)

    return verify_topic(
        intake.catalog,
        name,
        own_log=intake.settings.wal.path,
        with_orphans=with_orphans,
        settings=intake.settings,
        go_on=go_on,
    )


class _Discretion:
    """Leaves out of a text where the lake lies; the rest of a path says what is meant."""

    def __init__(self, settings: Settings) -> None:
        self._roots = sorted(set(_roots(settings)), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for root in self._roots:
            text = text.replace(root, _UNTOLD)
        return _DIRECTORIES.sub(f"{_UNTOLD}/", text)


def _roots(settings: Settings) -> Iterator[str]:
    """The places that are known, as they are spelt in texts: there may be spaces in them."""
    assert settings.wal.path is not None
    places = [str(settings.wal.path), str(settings.data)]
    if settings.storage.dsn:
        places.append(settings.storage.dsn)
    for place in places:
        plain = str(local_directory(place) or place).rstrip("/")
        if "/" in plain:  # not a lake in memory
            yield from (f"file://{plain}", plain)


def _discreet(found: Verification, hide: _Discretion) -> Verification:
    orphans = found.orphans
    return replace(
        found,
        problems=tuple(map(hide, found.problems)),
        partitions=tuple(_discreet_partition(each, hide) for each in found.partitions),
        orphans=orphans and tuple(replace(each, path=hide(each.path)) for each in orphans),
    )


def _discreet_partition(report: PartitionReport, hide: _Discretion) -> PartitionReport:
    log = report.log and replace(report.log, problems=tuple(map(hide, report.log.problems)))
    return replace(report, problems=tuple(map(hide, report.problems)), log=log)


def _discreet_error(error: CalveError, hide: _Discretion) -> CalveError:
    context = {key: hide(value) for key, value in error.context.items()}
    hint = None if error.hint is None else hide(error.hint)
    return type(error)(hide(error.message), hint=hint, context=context)


def _busy() -> Overloaded:
    return Overloaded(
        "another topic is being verified, and the service does that one at a time",
        hint=f"retry in {_BUSY_MS} ms",
        context={"retry_after_ms": str(_BUSY_MS)},
    )


def _given_up() -> Unavailable:
    return Unavailable(
        "the audit was given up: the service stops, or whoever asked has gone",
        hint=f"retry in {RETRY_AFTER_MS} ms",
        context={"retry_after_ms": str(RETRY_AFTER_MS)},
    )
