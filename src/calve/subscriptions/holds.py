"""Snapshots that followers of a table still need, and how expiry leaves them.

A follower records in the state which snapshot it is done with, and for how long that counts.
Expiry says there first that it is at work, and looks at the followers then; a follower records
first, and looks for an expiry then, which it waits for. So one of both sees the other, and what a
follower sees in the table after that stays.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from calve.clock import SystemClock
from calve.errors import Conflict, InvalidRequest, NotFound, Unavailable
from calve.model import TableName
from calve.state import SubscriptionName, open_state
from calve.tables.expiry import Hold

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from calve.clock import Clock
    from calve.settings import Settings
    from calve.state import Follower, State
    from calve.tables.expiry import Holding

_log: Final = logging.getLogger(__name__)
_LEASE_SECONDS_MIN: Final = 0.1
_RENEWALS: Final = 5  # in the time of one lease
_EXPIRY_SECONDS: Final = 120.0  # longer than one commit takes
_LOOK_SECONDS: Final = 0.02
_UNNAMED: Final = ":"  # which no name has


class FollowerHold:
    """A follower's side. For the thread that reads; another one may close it."""

    def __init__(
        self, state: State, table: TableName, name: str | None, *, seconds: float, clock: Clock
    ) -> None:
        """`state` is closed with it."""
        self.name: Final = name
        self._follower = self.name or _UNNAMED.join(
            (socket.gethostname(), str(os.getpid()), uuid.uuid4().hex[:8])
        )
        self._state = state
        self._table = table
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._recorded: int | None = None
        self._renew_at = self._until = self._clock.monotonic()

    @classmethod
    def open(
        cls, settings: Settings, table: TableName, name: str | None, seconds: float | None
    ) -> FollowerHold | None:
        """One with a name is remembered after its end; without a time there is none."""
        if seconds is None and name is None:
            return None
        if seconds is None or not seconds >= _LEASE_SECONDS_MIN:
            raise InvalidRequest(
                f"lease_seconds is {seconds}", hint=f"give {_LEASE_SECONDS_MIN} or more"
            )
        checked = None if name is None else SubscriptionName.parse(table, name).name
        return cls(open_state(settings), table, checked, seconds=seconds, clock=SystemClock())

    def known(self) -> Follower | None:
        """What is remembered of one with this name."""
        return None if self.name is None else self._state.follower(self._table, self.name)

    def keep(self, snapshot_id: int | None) -> None:
        """Have all that comes after a snapshot stay; None is before them all.

        Look at the table after this. Unavailable if that cannot be said and the time is over.
        """
        now = self._clock.monotonic()
        # Holding more than is needed does no harm; where one with a name was is to be known.
        is_told = self.name is None or snapshot_id == self._recorded
        if now < self._renew_at and is_told:
            return
        is_certain = now < self._until
        try:
            self._record(snapshot_id)
        except Unavailable as error:
            if not is_certain:
                raise
            _log.warning("%s did not hear of %s: %s", self._table, self._follower, error.message)
            return
        if not is_certain:
            self._wait_for_expiry()

    def close(self) -> None:
        """Let go of the snapshots; one with a name may be back before its time is over."""
        self._is_closed.set()
        with self._lock:
            try:
                if self.name is None:
                    self._state.unfollow(self._table, self._follower)
            except Unavailable as error:
                _log.info("a follower is left to run out: %s", error.message)
            finally:
                self._state.close()

    def _record(self, snapshot_id: int | None) -> None:
        with self._lock:
            if self._is_closed.is_set():
                return
            now = self._clock.monotonic()
            self._state.follow(self._table, self._follower, snapshot_id, self._seconds)
            self._recorded = snapshot_id
            self._until = now + self._seconds
            self._renew_at = now + self._seconds / _RENEWALS

    def _wait_for_expiry(self) -> None:
        """Whoever has not heard of this one; those who begin later have."""
        first = working = self._expiring()
        while working is not None and working == first:
            self._is_closed.wait(_LOOK_SECONDS)
            working = self._expiring()

    def _expiring(self) -> str | None:
        with self._lock:
            if self._is_closed.is_set():
                return None
            lease = self._state.lease(_expiry(self._table))
            return None if lease is None else lease.owner


def held_by_followers(settings: Settings, table: str) -> Holding:
    """For one expiry, however often its commit is tried."""
    return _ExpiryHolds(settings, TableName.parse(table)).held


class _ExpiryHolds:
    """The side of expiry."""

    def __init__(self, settings: Settings, table: TableName) -> None:
        self._settings = settings
        self._table = table
        self._clock = SystemClock()
        self._owner = uuid.uuid4().hex

    @contextmanager
    def held(self, *, is_dry_run: bool) -> Iterator[Sequence[Hold]]:
        """What live followers hold. Unless it is a dry run, nobody begins before the block ends.

        After an error nobody knows whether a commit is still under way: they wait for some time.
        """
        with ExitStack() as opened:
            try:
                # Made if need be: somebody may make it to follow, while snapshots go.
                state = open_state(self._settings, create=not is_dry_run)
            except NotFound:
                yield ()
                return
            opened.callback(state.close)
            if is_dry_run:
                yield self._live(state)
                return
            self._announce(state)
            found = self._live(state)
            self._forget_dead(state)
            yield found
            state.release_lease(_expiry(self._table), self._owner)

    def _announce(self, state: State) -> None:
        give_up_at = self._clock.monotonic() + _EXPIRY_SECONDS + 1
        waiting = threading.Event()
        while not state.take_lease(_expiry(self._table), self._owner, _EXPIRY_SECONDS):
            if self._clock.monotonic() > give_up_at:
                raise Conflict(
                    f"snapshots of {self._table} are being expired by somebody else",
                    hint="try again when that is done",
                )
            waiting.wait(_LOOK_SECONDS)

    def _live(self, state: State) -> list[Hold]:
        found = state.followers(self._table)
        return [Hold(each.name, each.snapshot_id, each.until) for each in found if each.until]

    def _forget_dead(self, state: State) -> None:
        """Those who can never come back, because they had no name."""
        for each in state.followers(self._table):
            if each.until is None and _UNNAMED in each.name:
                state.unfollow(self._table, each.name)


def forget_follower(settings: Settings, table: TableName, name: str) -> None:
    """NotFound if there is none of that name."""
    state = open_state(settings)
    try:
        if state.follower(table, name) is None:
            raise NotFound(
                f"{table} has no follower {name!r}", hint="it was never there, or is forgotten"
            )
        state.unfollow(table, name)
    finally:
        state.close()


def _expiry(table: TableName) -> str:
    return f"expiry of {table.tenant}.{table.dataset}.{table.name}"
