"""Who writes: one thread at a time leads, and takes along whatever waits in the backlog.

A caller that waits and finds nobody leading does it itself, with no hand-over between threads;
under load the log's own thread leads, and callers only wait. Every handle is finished by whoever
leads. Callbacks run when the lead is given up, and no lock is held, so they may use the log: in
the thread that led, but never in the log's own, which has a second one for them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, InvalidRequest, Unavailable
from calve.wal.backlog import Backlog, Batch
from calve.wal.journal import unknown_outcome
from calve.wal.payload import SchemaCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from calve.wal.journal import Journal
    from calve.wal.options import LogOptions
    from calve.wal.pending import Outcome, PendingAppend

TICK_SECONDS: Final = 0.25
_HELD_BACK_BYTES: Final = 1 << 18
_CROWD: Final = 8  # threads that wait at once
_leaders: Final[weakref.WeakSet[GroupLeader]] = weakref.WeakSet()


class GroupLeader:
    def __init__(self, journal: Journal, options: LogOptions, *, background: bool) -> None:
        self.schemas = SchemaCache()
        self.is_closed = False
        self.is_copy = False  # in a forked process, where the locks may be held for ever
        self._is_releasing = False  # or it was, and an interrupt came
        self._is_released = False
        self._process = os.getpid()
        self._journal = journal
        self._options = options
        self._backlog = Backlog(
            options.pending_bytes_max, min(options.group_bytes_max, options.segment_bytes_max)
        )
        self._lead = threading.Lock()
        self._turnstile = threading.Lock()
        self._due: deque[PendingAppend] = deque()  # finished, with callbacks to run
        self._is_crowded = False  # whether many threads waited for what was told last
        self._expected_count = 0  # of all appends, when each of them came with its next one
        self._calling: set[int] = set()  # threads that run callbacks
        self._wake = threading.Event()
        self._is_thread_awake = False  # then it leads, or is about to
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
        while pending.outcome is None and not (self._is_thread_awake or self._lead.locked()):
            try:
                # `with`, because nothing can interrupt between its taking and giving back.
                with self._lead:
                    try:
                        if pending.outcome is None:
                            self._write_some()
                    finally:
                        self._tell_all()
            finally:
                self._leave_nobody_waiting()

    @contextmanager
    def _leading(self, turn: AbstractContextManager[object]) -> Iterator[None]:
        try:
            with turn, self._lead:
                try:
                    yield
                finally:
                    self._tell_all()
        finally:
            self._leave_nobody_waiting()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Lead, without writing anything."""
        if self.is_copy:
            raise self._forked()
        with self._leading(self._turnstile):
            yield

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Lead, after everything that was submitted before."""
        with self.holding():
            self._journal.require_usable()
            if self.is_closed:
                raise _closed()
            self._write_all()
            yield

    def _leave_nobody_waiting(self) -> None:
        """For somebody to lead, or for a callback. Not for holders of the lead."""
        if self._backlog:
            self.wake()
        if self._due:
            self._call_back()

    def wake(self) -> None:
        """Have the backlog looked at: by the log's thread, or here and now if it has none."""
        if self.is_copy:
            raise self._forked()
        if self._thread is not None:
            if not self._is_thread_awake:
                self._is_thread_awake = True
                self._wake.set()
        elif self._backlog and not self._lead.locked():
            with self.holding():
                self._write_all()

    def _write_all(self) -> None:
        while self._backlog.is_waiting:
            self._write_some()

    def _write_some(self) -> None:
        """Write and sync one batch. What came of it is told later, by `_tell`."""
        batch = self._backlog.take()
        if batch is None:
            return
        try:
            batch.outcomes = self._write(batch)
        except CalveError as error:
            batch.outcomes = [error] * len(batch.appends)
            self._tell_all()

    def _write(self, batch: Batch) -> Sequence[Outcome]:
        group = self._journal.new_group(batch.bytes_bound)
        add = group.add
        for pending in batch.appends:
            add(pending)
        self._journal.write(group)
        # The batch before, if it was held back, wakes up while this one is synced.
        self._tell()
        self._journal.sync_if_due()
        return group.outcomes

    def _tell(self) -> None:
        """Finish what is settled. Callbacks are left for when no lock is held.

        Can be repeated when it was interrupted.
        """
        put_count, told_count, self._is_crowded = self._backlog.put_count, 0, False
        while (batch := self._backlog.first_taken) and batch.outcomes is not None:
            for pending, outcome in zip(batch.appends, batch.outcomes, strict=True):
                pending.finish(outcome)
            batch.open()
            self._is_crowded |= batch.waiting_count >= _CROWD
            told_count += len(batch.appends)
            self._due += [pending for pending in batch.appends if pending.callbacks]
            self._backlog.drop()
            batch.appends.clear()  # they know their batch: a circle would wait for the collector
        self._expected_count = put_count + told_count

    def _tell_all(self) -> None:
        """Finish everything that was taken, also what an interrupt left without an outcome."""
        self._tell()
        while batch := self._backlog.first_taken:
            unknown = unknown_outcome("whoever wrote them was interrupted")
            batch.outcomes = [unknown] * len(batch.appends)
            self._tell()
        if self._journal.failure is not None:
            self._refuse_from_now_on(self._journal.refusal)

    def _refuse_from_now_on(self, refuse: Callable[[], CalveError]) -> None:
        self._backlog.shut(refuse)
        while batch := self._backlog.take():
            batch.outcomes = [refuse() for _ in batch.appends]
        self._tell()

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
            if pending.callbacks:
                self._due.append(pending)

    def _run(self) -> None:
        try:
            self._keep_writing()
        except BaseException as error:
            # Nobody sees this thread die; those who wait for it must be told.
            with self.holding():
                self._journal.fence(f"its thread met {type(error).__name__}: {error}")
            raise

    def _keep_writing(self) -> None:
        is_periodic = self._options.sync_mode == "periodic"
        tick = self._options.sync_interval_seconds if is_periodic else TICK_SECONDS
        while True:
            self._wake.wait(tick)
            self._wake.clear()
            while self._backlog:
                self._lead_under_load()
            if self.is_closed:
                return
            with self.holding():
                self._do_what_is_due()
            self._is_thread_awake = False
            if self._backlog:
                self.wake()  # it came before that was seen

    def _lead_under_load(self) -> None:
        with self._turnstile:
            pass  # whoever wants to rotate, trim or close gets a turn
        with self._leading(nullcontext()):
            self._write_under_load()

    def _write_under_load(self) -> None:
        """Group after group by the log's thread, until somebody else wants a turn.

        It holds each outcome back until the next group is written: threads that wake sooner fight
        with the one that encodes for the interpreter's lock. Not for large appends, and not when
        callbacks come first.
        """
        goes_on = True
        while goes_on:
            self._write_some()
            if self._due or self._turnstile.locked():
                return
            if not self._backlog.is_waiting:
                self._tell()
                if not self._is_crowded:
                    return  # they go on by themselves, without a hand-over
            if self._is_crowded:
                self._backlog.gather(self._expected_count)
            goes_on = self._backlog.begins_with_at_most(_HELD_BACK_BYTES)

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
        self._backlog.shut(_closed)
        self.is_closed = True  # the log's thread ends when it has written what is left
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
            is_sound = self._journal.failure is None
            self._refuse_from_now_on(_closed if is_sound else self._journal.refusal)
            cleanly = is_sound and not self._is_releasing
            self._is_releasing = True
            self._journal.close(cleanly=cleanly)
            self._is_released = True

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
