"""What processes with producers share: notes that outlive them, and threads until told to stop."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable


class Notes:
    """A line for each acknowledgement, in one write: what is written outlives the process."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: object) -> None:
        os.write(self._descriptor, f"{' '.join(map(str, words))}\n".encode())


def run_producers(producers: Iterable[Callable[[threading.Event], None]]) -> None:
    """Each in a thread, until standard input ends. One that fails ends the process."""
    threading.excepthook = lambda failure: (print(failure, file=sys.stderr), os._exit(3))
    ending = threading.Event()
    threads = [threading.Thread(target=produce, args=(ending,)) for produce in producers]
    for thread in threads:
        thread.start()
    print("started", flush=True)
    sys.stdin.read()
    ending.set()
    for thread in threads:
        thread.join()
