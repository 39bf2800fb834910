"""Who writes: one thread at a time leads, and takes along whatever waits in the backlog.

A caller that waits and finds nobody leading does it itself, with no hand-over between threads;
under load the log's own thread leads, and callers only wait. Every handle is finished by whoever
leads. Callbacks run when the lead is given up, and no lock is held, so they may use the log: in
the thread that led, but never in the log's own, which has a second one for them.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, InvalidRequest, Unavailable
from calve.wal.backlog import Backlog, Batch
from calve.wal.journal import unknown_outcome
from calve.wal.payload import SchemaCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from calve.wal.group import Group
    from calve.wal.journal import Journal
    from calve.wal.options import LogOptions
    from calve.wal.pending import PendingAppend

TICK_SECONDS: Final = 0.25
_HELD_BACK_BYTES: Final = 1 << 18
_PAUSE_SECONDS: Final = 0.00002
_PAUSES_MAX: Final = 10


_leaders: Final[weakref.WeakSet[GroupLeader]] = weakref.WeakSet()


class GroupLeader:
    def __init__(self, journal: Journal, options: LogOptions, *, background: bool) -> None:
        self.schemas = SchemaCache()
        self.is_closed = False
        self.is_copy = False  # in a forked process, where the locks may be held for ever
        self._is_released = False
        self._process = os.getpid()
        self._journal = journal
        self._options = options
        self._backlog = Backlog(
            options.pending_bytes_max, min(options.group_bytes_max, options.segment_bytes_max)
        )
        self._lead = threading.Lock()
        self._turnstile = threading.Lock()
        # Safe under the sync mode, and not told yet. Belongs to whoever leads.
        self._settled: list[tuple[Batch, Group]] = []
        self._due: deque[PendingAppend] = deque()  # finished, with callbacks to run
        self._told_count = 0  # by the last `_tell`
        self._calling: set[int] = set()  # threads that run callbacks
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._call = threading.Event()
        self._caller: threading.Thread | None = None  # of callbacks, once there were some
        _leaders.add(self)
        if background:
            self._thread = threading.Thread(target=self._run, name="calve-wal", daemon=True)
            self._thread.start()

    def put(self, pending: PendingAppend) -> None:
        if self.is_copy:
            raise self._forked()
        self._backlog.put(pending)

    def _forked(self) -> InvalidRequest:
        return InvalidRequest(
            f"the log in {self._journal.directory} was opened by process {self._process}, which "
            "forked this one",
            hint="send the rows to that process; readers may be opened in any",
        )

    def lead_for(self, pending: PendingAppend) -> None:
        """Write and sync for everybody until `pending` is done, unless somebody is at it.

        Then there is nothing to do: whoever leads looks at the backlog after giving it up.
        """
        if self.is_copy:
            raise self._forked()
        while not pending.is_done and self._lead.acquire(blocking=False):
            try:
                self._write_some()
            finally:
                self._stop_leading()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Lead, without writing anything."""
        if self.is_copy:
            raise self._forked()
        with self._turnstile:
            self._lead.acquire()
        try:
            yield
        finally:
            self._stop_leading()

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Lead, after everything that was submitted before."""
        with self.holding():
            if self.is_closed:
                raise _closed()
            self._journal.require_usable()
            self._write_all()
            yield

    def _stop_leading(self) -> None:
        """Leave nobody waiting: for an outcome, for somebody to lead, or for a callback."""
        try:
            self._tell()
        finally:
            self._lead.release()
            if self._backlog:
                self.wake()
            self._call_back()

    def wake(self) -> None:
        """Have the backlog looked at: by the log's thread, or here and now if it has none."""
        if self.is_copy:
            raise self._forked()
        if self._thread is not None:
            if not self._wake.is_set():
                self._wake.set()
        elif self._backlog and self._lead.acquire(blocking=False):
            try:
                self._write_all()
            finally:
                self._stop_leading()

    def _write_all(self) -> None:
        while self._backlog:
            self._write_some()

    def _write_some(self) -> None:
        """Write and sync one batch. What came of it is told later, by `_tell`."""
        batch = self._backlog.take()
        if batch is None:
            return
        try:
            group = self._write(batch)
        except CalveError as error:
            self._tell()
            self._fail(batch, error)
        except BaseException as error:
            self._tell()
            self._fail(batch, unknown_outcome(f"{type(error).__name__} while it was written"))
            raise
        else:
            self._settled.append((batch, group))

    def _write(self, batch: Batch) -> Group:
        group = self._journal.new_group(batch.bytes_bound)
        for pending in batch.appends:
            group.add(pending)
        self._journal.write(group)
        # The batch before, if it was held back, wakes up while this one is synced.
        self._tell()
        self._journal.sync_if_due()
        return group

    def _tell(self) -> None:
        """Finish what is settled. Callbacks are left for when no lock is held."""
        self._told_count = 0
        while self._settled:
            batch, group = self._settled[0]
            for pending, refusal in group.refused:
                pending.fail(refusal)
            for pending, result in group.acknowledged:
                pending.succeed(result)
            self._told_count += len(batch.appends)
            self._finish(batch)
            del self._settled[0]

    def _finish(self, batch: Batch) -> None:
        batch.open()
        self._due += [pending for pending in batch.appends if pending.has_callbacks]
        batch.appends.clear()  # they know their batch: a circle would wait for the collector

    def _fail(self, batch: Batch, error: CalveError) -> None:
        for pending in batch.appends:
            pending.fail(error)
        self._finish(batch)
        if self._journal.failure is not None:
            self._refuse_from_now_on(self._journal.refusal)

    def _refuse_from_now_on(self, refuse: Callable[[], CalveError]) -> None:
        self._backlog.shut(refuse)
        while batch := self._backlog.take():
            for pending in batch.appends:
                pending.fail(refuse())
            self._finish(batch)

    def _call_back(self) -> None:
        """Run the callbacks that are due.

        One that uses the log may make others due. Those wait until it has returned, so that a
        chain of them needs no deep stack.
        """
        thread = threading.get_ident()
        if not self._due or thread in self._calling:
            return
        if self._thread is threading.current_thread():
            self._call_back_elsewhere()
            return
        self._calling.add(thread)
        try:
            while self._due:
                self._call_next_back()
        finally:
            self._calling.discard(thread)
            if self._due:
                self._wake.set()  # an interrupt came: the log's thread goes on

    def _call_back_elsewhere(self) -> None:
        """A slow callback must keep neither writes nor the periodic sync waiting."""
        if self._caller is None:
            self._caller = threading.Thread(
                target=self._keep_calling_back, name="calve-wal-callbacks", daemon=True
            )
            self._caller.start()
        self._call.set()

    def _keep_calling_back(self) -> None:
        while not self._is_released:
            self._call.wait()
            self._call.clear()
            self._call_back()

    def _call_next_back(self) -> None:
        try:
            pending = self._due.popleft()
        except IndexError:
            return  # another thread was faster
        try:
            pending.call_back()
        finally:
            if pending.has_callbacks:
                self._due.append(pending)

    def _run(self) -> None:
        try:
            self._keep_writing()
        except BaseException as error:
            # Nobody sees this thread die; those who wait for it must be told.
            self._journal.fence(f"its thread met {type(error).__name__}: {error}")
            self._refuse_from_now_on(self._journal.refusal)
            self._call_back()
            raise

    def _keep_writing(self) -> None:
        is_periodic = self._options.sync_mode == "periodic"
        tick = self._options.sync_interval_seconds if is_periodic else TICK_SECONDS
        while not self.is_closed:
            self._wake.wait(tick)
            self._wake.clear()
            while self._backlog:
                self._write_under_load()
            with self.holding():
                self._do_what_is_due()

    def _write_under_load(self) -> None:
        """One group by the log's thread, which goes on leading while there is more.

        It holds the outcome back until the next group is written: threads that wake sooner fight
        with the one that encodes for the interpreter's lock. Not for large appends, and not when
        callbacks come first.
        """
        with self._turnstile:  # so that whoever wants to rotate, trim or close gets a turn
            self._lead.acquire()
        goes_on = False
        try:
            self._write_some()
            if not self._due:
                self._let_them_come_back()
                goes_on = self._backlog.begins_with_at_most(_HELD_BACK_BYTES)
        finally:
            if goes_on:
                self._lead.release()
            else:
                self._stop_leading()

    def _let_them_come_back(self) -> None:
        """Pause while those that were just told come with their next appends, to take all along.

        Ends as soon as nobody came during a pause.
        """
        before = -1
        for _ in range(_PAUSES_MAX):
            waiting = self._backlog.first_count
            if not before < waiting < self._told_count:
                return
            before = waiting
            time.sleep(_PAUSE_SECONDS)

    def _do_what_is_due(self) -> None:
        journal = self._journal
        if self.is_closed or journal.failure is not None:
            return
        try:
            if self._options.sync_mode == "periodic":
                journal.sync()
            if journal.is_idle(TICK_SECONDS):
                journal.persist_durable_end()
            if journal.is_idle(self._options.hot_window_seconds):
                journal.rotate()  # so that its rows, once committed, can go
        except CalveError:
            return  # fenced, or refused for now: the next append says so

    def close(self) -> None:
        """Write and sync what is pending, finish every handle, and let another writer in."""
        self.is_closed = True
        self._backlog.shut(_closed)
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self.holding():
            if not self._is_released:
                self._release()
        if self._caller is not None and self._caller is not threading.current_thread():
            self._call.set()
            self._caller.join()

    def _release(self) -> None:
        try:
            self._write_all()
        finally:
            self._refuse_from_now_on(_closed)
            self._is_released = True
            self._journal.close(cleanly=self._journal.failure is None)

    def close_copies(self) -> None:
        """In a forked process: close its descriptors, and leave the log alone."""
        if not self.is_closed:
            self.is_closed = True
            self._journal.close(cleanly=False)


def _closed() -> Unavailable:
    return Unavailable("the log is closed", hint="open it again")


def _forked_child() -> None:
    for leader in list(_leaders):
        leader.is_copy = True


os.register_at_fork(after_in_child=_forked_child)
