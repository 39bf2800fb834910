"""A consumer in a process of its own that reads a topic from the start, again and again.

It ends with its standard input, and says how often it has come to the end.
"""

from __future__ import annotations

import sys
import threading

from calve import Client

PAUSE_SECONDS = 1.0  # between two times: the others are measured, and not the machine


def main(url: str, rows: int) -> None:
    is_over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    times = 0
    with Client(url) as client:
        while not (is_over.wait(PAUSE_SECONDS) and times):
            end = 0
            with client.subscribe("orders", start="earliest") as subscription:
                while end < rows:
                    batch = subscription.poll(60)
                    assert batch is not None
                    assert batch.first_offset == end
                    end = batch.next_offset
            times += 1
    print(times)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
