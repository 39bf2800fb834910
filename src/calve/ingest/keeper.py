"""The thread behind an intake: trims the log and opens it again, sees others' changes, counts."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import UUID

from calve.errors import CalveError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from calve.ingest.attached import Attachments
    from calve.ingest.kept_log import KeptLog
    from calve.ingest.log_shares import LogShares
    from calve.state import CommittedOffset, State

_log: Final = logging.getLogger(__name__)
REFRESH_SECONDS: Final = 1.0
TRIM_SECONDS: Final = 5.0


class Keeper:
    def __init__(
        self, log: KeptLog, state: State, attachments: Attachments, partition: int
    ) -> None:
        self._wal = log
        self._state = state
        self._attachments = attachments
        self._partition = partition
        self._keeping = threading.RLock()
        self._kept: dict[UUID, int] | None = None  # while nobody can set them back
        log.ask_committed(self._asked)
        self._shares: LogShares | None = None
        self._is_ending = threading.Event()
        self._has_new_log = False  # opened again, and its topics are not looked at yet
        self._failed: str | None = None  # what went wrong last, to say it once
        self._thread = threading.Thread(target=self._run, name="calve-intake", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        rounds = 0
        while not self._is_ending.wait(REFRESH_SECONDS):
            rounds += 1
            try:
                self._has_new_log |= self._wal.reopen_if_due()
                if self._wal.current.is_fenced:
                    continue
                if self._has_new_log:
                    self.save_counts()
                    self._attachments.attach_anew()
                    self._has_new_log = False
                self._attachments.refresh()
                if rounds % int(TRIM_SECONDS / REFRESH_SECONDS) == 0:
                    self.trim()
                    self.save_counts()
                    if self._shares is not None:
                        self._shares.measure()
                self._failed = None
            except CalveError as error:
                self._say_once(error)

    def measure_for(self, shares: LogShares) -> None:
        """Have it known how much of the log each tenant has, from now on."""
        shares.measure()
        self._shares = shares

    def _say_once(self, error: CalveError) -> None:
        if error.message != self._failed:
            self._failed = error.message
            _log.warning("the log cannot be looked after for now: %s", error.message)

    def trim(self) -> int:
        """Let go of what is in the tables; how many segments went.

        The state is asked while rows are taken in, and only if something is old enough to go: once
        to see whether it may, and once more, so that nothing is set back, if it may.
        """
        log = self._wal.current
        if not log.is_trim_due():
            return 0
        if not log.is_trim_due(self._by_stream(self._state.all_committed(self._partition))):
            return 0
        with self._keeping, self._kept_offsets() as committed:
            return log.trim(committed)

    @contextmanager
    def _asked(self) -> Iterator[dict[UUID, int]]:
        """For a log that is full, and takes nothing in until it knows what may go."""
        # Not waited for: whoever keeps them waits for the log.
        if not self._keeping.acquire(blocking=False):
            raise Unavailable("the log is being trimmed", hint="there is room in a moment")
        try:
            if self._kept is not None:
                yield self._kept
            else:
                with self._kept_offsets() as committed:
                    yield committed
        finally:
            self._keeping.release()

    @contextmanager
    def _kept_offsets(self) -> Iterator[dict[UUID, int]]:
        """The offsets that tables have, by stream; none is set back before the block ends."""
        with self._state.keeping_committed(self._partition) as known:
            self._kept = self._by_stream(known)
            try:
                yield self._kept
            finally:
                self._kept = None

    def _by_stream(self, known: Mapping[UUID, CommittedOffset]) -> dict[UUID, int]:
        offsets = ((each, known.get(each.topic.id)) for each in self._attachments.all())
        return {
            attached.stream.id: found.offset
            for attached, found in offsets
            if found is not None and found.log_id == self._wal.current.log_id
        }

    def save_counts(self) -> None:
        taken = {each.topic.id: each.meter.take() for each in self._attachments.all()}
        more_bytes = {topic_id: count for topic_id, count in taken.items() if count}
        if more_bytes:
            self._state.add_bytes(self._partition, more_bytes)

    def close(self) -> None:
        self._is_ending.set()
        self._thread.join()
