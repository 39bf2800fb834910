"""The audit log as a topic: a running service appends every record, also those of commands.

The files stay what counts. To the log each of them is a producer and each record has its number
there, so that a record which is sent again after a crash is not appended twice.
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from calve.audit.tail import Tail
from calve.errors import CalveError, Conflict
from calve.model import TableName
from calve.paths import DataLayout
from calve.topics.topic import TopicSpec

if TYPE_CHECKING:
    from calve.audit.tail import Written
    from calve.audit.trail import Record
    from calve.ingest.intake import Intake
    from calve.wal import PendingAppend

_log: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 5.0
_AT_ONCE: Final = 200  # fewer than the log knows of a producer by number
_TEXT: Final = pa.string()
_WHO: Final = pa.struct(
    [
        ("kind", _TEXT),
        ("name", _TEXT),
        ("address", _TEXT),
        ("door", _TEXT),
        ("token", _TEXT),
        ("tenant", _TEXT),
        ("program", _TEXT),
        ("pid", pa.int64()),
    ]
)
COLUMNS: Final = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")),
        ("id", _TEXT),
        ("step", _TEXT),
        ("action", _TEXT),
        ("subject", _TEXT),
        ("who", _WHO),
        ("details", _TEXT),  # as JSON: every action has its own
        ("result", _TEXT),
        ("error", _TEXT),
    ]
)


class AuditTopic:
    """A thread that follows the files, from its making to its end."""

    def __init__(self, intake: Intake, name: TableName) -> None:
        self._intake = intake
        self._name = name
        self._directory = DataLayout(intake.settings.data).audit
        self._tail = Tail(self._directory)
        self._failed: str | None = None  # what went wrong last, to say it once
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="calve-audit-topic", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, intake: Intake) -> AuditTopic | None:
        """None where nobody wants one."""
        name = intake.settings.audit.topic
        return cls(intake, TableName.parse_new(name)) if name else None

    def close(self) -> None:
        """Append what was recorded until now, and end."""
        self._is_ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            self._look()
            self._is_ending.wait(_LOOK_SECONDS if self._failed is None else _RETRY_SECONDS)
        self._look()

    def _look(self) -> None:
        mark = self._tail.mark()
        try:
            self._append_new()
            self._failed = None
        except Conflict as error:  # the topic is another one: it gets all that the files hold
            self._tail = Tail(self._directory)
            self._say_once(error)
        except (CalveError, OSError) as error:
            self._tail.rewind(mark)  # the log knows what it has of it
            self._say_once(error)

    def _append_new(self) -> None:
        pending: list[PendingAppend] = []
        for written in self._tail.more():
            if self._intake.repeated(self._name, _producer(written), written.number) is None:
                pending.append(self._submitted(written))
            if len(pending) == _AT_ONCE:
                _wait(pending)
        _wait(pending)

    def _submitted(self, written: Written) -> PendingAppend:
        if self._intake.topic(self._name) is None:
            self._intake.create_topic(self._name, TopicSpec(schema=COLUMNS))
        return self._intake.submit(
            self._name,
            _row(written.record),
            producer=_producer(written),
            sequence=written.number,
            is_counted=True,  # no tenant's limit holds up what has happened
        )

    def _say_once(self, error: Exception) -> None:
        before, self._failed = self._failed, str(error)
        if self._failed != before:
            _log.warning("records wait in the audit log for topic %s: %s", self._name, error)


def _producer(written: Written) -> str:
    return f"audit-{written.file}"


def _wait(pending: list[PendingAppend]) -> None:
    for each in pending:
        each.wait()
    pending.clear()


def _row(record: Record) -> pa.RecordBatch:
    row = {
        **msgspec.structs.asdict(record),
        "time": datetime.fromisoformat(record.time),
        "who": msgspec.structs.asdict(record.who),
        "details": msgspec.json.encode(record.details).decode() if record.details else None,
    }
    return pa.RecordBatch.from_pylist([row], COLUMNS)
