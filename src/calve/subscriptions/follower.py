"""TableFollower: the rows that others append to any Iceberg table, snapshot by snapshot.

For tables that no topic feeds. Progress is a snapshot, because such rows have no offsets; who falls
behind the table's expiry cannot know what was missed, and is told so.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

import pyarrow as pa

from calve.clock import SystemClock
from calve.condition import parse_condition
from calve.errors import Conflict, InvalidRequest, NotFound
from calve.query.row_filter import RowFilter
from calve.subscriptions.polled import Polled
from calve.tables.appended import added_batches
from calve.tables.condition_columns import condition_columns
from calve.tables.snapshots import as_utc, snapshot_by_id
from calve.tables.steps import line_since
from calve.tables.views import find_columns, view_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.table import Table

    from calve.clock import Clock
    from calve.model import TableName
    from calve.subscriptions.holds import FollowerHold
    from calve.tables.catalog import LakeCatalog
    from calve.tables.steps import Line, Step

Since: TypeAlias = Literal["earliest", "latest"] | int | datetime
OnOverwrite: TypeAlias = Literal["fail", "skip", "read"]
OnExpired: TypeAlias = Literal["fail", "skip"]
_UNCHANGED: Final = "replace"
_ADDING: Final = "append"


@dataclass(frozen=True, slots=True, repr=False)
class Appended:
    """Rows that a snapshot brought; several batches may be of one.

    `is_last` if it is all of the snapshot: then `snapshot_id` is where a follower would go on.
    """

    table: str
    snapshot_id: int
    committed_at: datetime
    rows: pa.Table
    is_last: bool

    def to_arrow(self) -> pa.Table:
        return self.rows

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __repr__(self) -> str:
        return f"Appended({self.table!r}, snapshot {self.snapshot_id}, {len(self)} rows)"


class TableFollower(Polled[Appended]):
    """An iterator of batches. A context manager, for one thread; another one may close it."""

    def __init__(  # noqa: PLR0913
        self,
        name: TableName,
        start: Since = "latest",
        *,
        catalog: LakeCatalog,
        poll_interval_ms: int,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = True,
        on_overwrite: OnOverwrite = "fail",
        on_expired: OnExpired = "fail",
        hold: FollowerHold | None = None,
        clock: Clock | None = None,
    ) -> None:
        """With a `hold`, which is closed with the follower, expiry leaves what is yet to come.

        One with a name that is known begins where that one was, wherever `start` is.
        """
        self._name = name
        self._catalog = catalog
        self._poll_seconds = poll_interval_ms / 1000
        self._where = where
        self._columns = None if columns is None else list(columns)
        self._follows = follow
        self._on_overwrite = _among(on_overwrite, OnOverwrite, "on_overwrite")
        self._on_expired = _among(on_expired, OnExpired, "on_expired")
        self._clock = clock or SystemClock()
        self._is_closing = threading.Event()
        self._waiting: Iterator[Appended] = iter(())
        self._hold = hold
        self.snapshot_id: int | None = None
        with ExitStack() as opened:
            opened.callback(self.close)
            table = self._go_to(start)
            opened.pop_all()
        self._done: int | None = self.snapshot_id  # of which all was handed out and worked at
        self._uuid = table.metadata.table_uuid
        self._end = None if follow else table.metadata.current_snapshot_id

    @property
    def is_done(self) -> bool:
        """Whether one that does not follow has handed out everything, or it was closed."""
        return self._is_closing.is_set() or (not self._follows and self._done == self._end)

    def poll(self, timeout_seconds: float | None = None) -> Appended | None:
        """The next rows, waiting for them if need be; None when the time is over, or at the end.

        Whoever asks for more has done with what came before.
        """
        begun = self._clock.monotonic()
        while not self._is_closing.is_set():
            self._keep()
            found = next(self._waiting, None)
            if found is not None:
                return found
            self._done = self.snapshot_id
            self._keep()
            if self.is_done:
                return None
            if self._look():
                continue
            left = self._poll_seconds
            if timeout_seconds is not None:
                left = min(left, begun + timeout_seconds - self._clock.monotonic())
                if left <= 0:
                    return None
            self._is_closing.wait(left)
        return None

    def close(self) -> None:
        if not self._is_closing.is_set():
            self._is_closing.set()
            if self._hold is not None:
                self._hold.close()

    def __repr__(self) -> str:
        return f"TableFollower({str(self._name)!r}, snapshot_id={self.snapshot_id})"

    def _go_to(self, start: Since) -> Table:
        """Begin there, and have what comes next stay; the table as it is then."""
        table = self._catalog.load_table(self._name)
        known = self._hold.known() if self._hold is not None else None
        while True:
            self.snapshot_id = self._begin(table, start) if known is None else known.snapshot_id
            if self._hold is None:
                return table
            self._hold.keep(self.snapshot_id)
            table = self._catalog.load_table(self._name)
            # It may have expired before that was known. One that was remembered is told so later.
            kept = {None, *(each.snapshot_id for each in table.metadata.snapshots)}
            if known is not None or self.snapshot_id in kept:
                return table

    def _keep(self) -> None:
        if self._hold is not None:
            self._hold.keep(self._done)

    def _begin(self, table: Table, start: Since) -> int | None:
        """The snapshot whose rows somebody has who begins there; None for no rows at all."""
        match start:
            case "latest":
                return table.metadata.current_snapshot_id
            case "earliest":
                return None
            case datetime():
                earlier = [
                    each.id
                    for each in line_since(table, None).steps
                    if each.committed_at < as_utc(start)
                ]
                return earlier[-1] if earlier else None
            case int() if not isinstance(start, bool):
                return snapshot_by_id(table, start).id
        raise InvalidRequest(
            f"{start!r} is no place to start from",
            hint='give "earliest", "latest", the id of a snapshot or a datetime',
        )

    def _look(self) -> bool:
        """Whether there is a snapshot that was not seen; its rows wait then."""
        table = self._catalog.load_table(self._name)
        if table.metadata.table_uuid != self._uuid:
            raise NotFound(
                f"the table {self._name} was dropped and another one made under its name",
                hint="follow the new one from its beginning",
            )
        line = line_since(table, self.snapshot_id)
        if line.begin != self.snapshot_id:
            self._cut_off(line, is_kept=table.snapshot_by_id(self.snapshot_id or 0) is not None)
        if line.steps:
            step = line.steps[0]
            self._waiting = self._rows(table, step, is_base=self.snapshot_id is None)
        elif line.begin != self.snapshot_id:
            self.snapshot_id = line.begin
        return bool(line.steps)

    def _cut_off(self, line: Line, *, is_kept: bool) -> None:
        """The snapshot that was read last does not lead to the newest one any more."""
        if is_kept and self._on_overwrite == "fail":
            raise Conflict(
                f"{self._name} was rolled back behind snapshot {self.snapshot_id}, which was read "
                f"last, to {line.begin}",
                hint=f"follow(start={line.begin}) goes on from there{self._after_unfollow()}; "
                'on_overwrite="skip" or "read" does so by itself',
                context={"snapshot": str(self.snapshot_id), "begin": str(line.begin)},
            )
        if not is_kept and self._on_expired == "fail":
            oldest = line.steps[0].id if line.steps else None
            raise Conflict(
                f"snapshot {self.snapshot_id} of {self._name}, which was read last, has expired; "
                f"the oldest that is left is {oldest}",
                hint=f"follow(start={oldest}) goes on behind it, without the rows in between"
                f'{self._after_unfollow()}; on_expired="skip" does so by itself. Expire later than '
                "followers stand still",
                context={"snapshot": str(self.snapshot_id), "oldest": str(oldest)},
            )

    def _after_unfollow(self) -> str:
        name = self._hold.name if self._hold is not None else None
        return "" if name is None else f', after `lake.unfollow("{self._name}", "{name}")`'

    def _rows(self, table: Table, step: Step, *, is_base: bool) -> Iterator[Appended]:
        parent = step.parent_id if step.has_parent else None
        if self._is_to_read(step, is_base=is_base):
            yield from self._batches(table, step, parent)
        self.snapshot_id = step.id

    def _is_to_read(self, step: Step, *, is_base: bool) -> bool:
        if not step.has_parent:
            # The oldest snapshot that is kept: all of it is new to whoever begins, nothing of it is
            # known to be to whoever was left behind.
            return is_base
        if step.operation in {_ADDING, _UNCHANGED}:
            return step.operation == _ADDING
        if self._on_overwrite == "fail":
            raise Conflict(
                f"snapshot {step.id} of {self._name} changed or removed rows ({step.operation})",
                hint='on_overwrite="skip" leaves such snapshots out, "read" takes the rows of the '
                "files that they brought, also those that were there before",
                context={"snapshot": str(step.id), "operation": step.operation},
            )
        return self._on_overwrite == "read"

    def _batches(self, table: Table, step: Step, parent: int | None) -> Iterator[Appended]:
        view = view_table(table)
        wanted = view.shown_columns if self._columns is None else find_columns(view, self._columns)
        condition = None
        if self._where is not None:
            condition = parse_condition(self._where, condition_columns(view.schema))
        needed = {*wanted, *(condition.columns if condition else ())}
        held: Appended | None = None
        rows = RowFilter(condition) if condition is not None else None
        try:
            for batch in added_batches(table, parent, step.id, sorted(needed)):
                chosen = (rows.chosen(batch) if rows is not None else batch).select(wanted)
                if not chosen.num_rows:
                    continue
                if held is not None:
                    yield held
                made = pa.Table.from_batches([chosen])
                held = Appended(str(self._name), step.id, step.committed_at, made, is_last=False)
        finally:
            if rows is not None:
                rows.close()
        self.snapshot_id = step.id
        if held is not None:
            yield Appended(held.table, held.snapshot_id, held.committed_at, held.rows, is_last=True)


def _among(given: str, policies: object, name: str) -> str:
    known = get_args(policies)
    if given not in known:
        raise InvalidRequest(f"{name} is {given!r}", hint=f"use {' or '.join(known)}")
    return given
