"""A topic from its first row to its newest, and again from where one stopped.

    python examples/reading_topics.py

Everything happens in a temporary directory, which is removed at the end.
"""

from __future__ import annotations

import tempfile
import threading

import calve


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="calve-example-") as directory,
        calve.open(directory) as lake,
    ):
        tell(lake)


def tell(lake: calve.Lake) -> None:
    lake.produce("orders", [{"id": n, "price": 2.5 * n} for n in range(5)])

    # Whatever stores the total stores the offset with it: then no row counts twice.
    total, offset = 0.0, 0
    with lake.read("orders", follow=False) as reader:
        for batch in reader:
            total += sum(batch.to_arrow()["price"].to_pylist())
            offset = batch.next_offset
    print(f"total {total} at offset {offset}")

    producer = threading.Thread(target=send, args=(lake,))
    producer.start()
    with lake.read("orders", {0: offset}) as reader:
        while offset < 8:
            batch = next(reader)
            total += sum(batch.to_arrow()["price"].to_pylist())
            offset = batch.next_offset
    producer.join()
    print(f"total {total} at offset {offset}")

    with lake.read("orders", where="price > 15", columns=["id"], follow=False) as reader:
        for batch in reader:
            print(batch.to_arrow().select(["id", "_calve_offset"]).to_pylist())


def send(lake: calve.Lake) -> None:
    for n in range(5, 8):
        lake.produce("orders", [{"id": n, "price": 2.5 * n}])


if __name__ == "__main__":
    main()
