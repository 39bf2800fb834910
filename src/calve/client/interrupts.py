"""Waiting for a service so that an interrupt is heard: Arrow, while it waits, hears of none."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from calve.errors import CalveError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def interruptibly(read: Callable[[], T], leave: Callable[[Future[T]], object]) -> T:
    """What `read` returns. If an interrupt comes first, it is raised, and `leave` has the rest."""
    if threading.current_thread() is not threading.main_thread():
        return read()  # interrupts come to the main thread alone
    found: Future[T] = Future()
    threading.Thread(target=_run, args=(read, found), name="calve-client-wait", daemon=True).start()
    try:
        return found.result()
    except KeyboardInterrupt:
        leave(found)
        raise


def _run(read: Callable[[], T], found: Future[T]) -> None:
    try:
        found.set_result(read())
    except (pa.ArrowException, OSError) as error:
        found.set_exception(error)
    finally:
        if not found.done():  # nobody waits for ever
            found.set_exception(CalveError("the client failed; its thread has told of it"))
