"""Makes or deletes a topic, and is killed between the registry and the log."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

import pyarrow as pa

from calve.ingest import Intake
from calve.ingest.attached import Attachments
from calve.model import TableName
from calve.settings import load_settings
from calve.state.sqlite import SqliteState
from calve.wal import Log

ORDERS = TableName.parse("orders")
BATCH = pa.record_batch({"id": [1]})


def die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def main(data: str, moment: str) -> None:
    intake = Intake(load_settings(flags={"data": data}, environ={}).settings)
    match moment:
        case "topic kept, stream not made":
            Log.create_stream = die  # type: ignore[method-assign]
            intake.submit(ORDERS, BATCH)
        case "stream made, not bound":
            Attachments.bind = die  # type: ignore[method-assign]
            intake.submit(ORDERS, BATCH)
        case "bound, no rows":
            Log.submit = die  # type: ignore[method-assign]
            intake.submit(ORDERS, BATCH)
        case "grown, no rows":
            intake.submit(ORDERS, BATCH).wait()
            Log.submit = die  # type: ignore[method-assign]
            intake.submit(ORDERS, pa.record_batch({"id": [1], "new": [1]}))
        case "topic forgotten, stream there":
            intake.submit(ORDERS, BATCH).wait()
            Log.delete_stream = die  # type: ignore[method-assign]
            intake.delete_topic(ORDERS)
        case "stream gone, still remembered":
            intake.submit(ORDERS, BATCH).wait()
            SqliteState.forget_ended = die  # type: ignore[method-assign]
            intake.delete_topic(ORDERS)


if __name__ == "__main__":
    main(*sys.argv[1:])
