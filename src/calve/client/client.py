"""`Client`: rows into the topics of a running service, in the background and once each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

    import pyarrow as pa

    from calve.client.delivery import Delivery


class Client:
    """Sends rows to a service. A context manager, which flushes at its end; safe between threads.

    Nothing is connected until it is used.
    """

    def __init__(
        self,
        url: str = "grpc://127.0.0.1:8815",
        *,
        token: str | None = None,
        tls_root_certs: bytes | None = None,
        producer: str | None = None,
        linger_ms: int = 5,
        batch_rows_max: int = 10_000,
        batch_bytes_max: int = 1 << 20,
        buffer_bytes_max: int = 64 << 20,
        buffer_timeout_seconds: float = 30.0,
        delivery_timeout_seconds: float = 120.0,
    ) -> None: ...

    def produce(self, topic: str, rows: Any, *, sequence: int | None = None) -> Delivery:
        """Hand rows over: dicts, Arrow data, pandas or Polars. Returns at once, with a handle.

        Blocks while the buffer is full; Overloaded if that lasts `buffer_timeout_seconds`. With a
        `sequence`, which the client's `producer` counts up from 0, a repeat appends nothing, also
        from another process.
        """
        raise NotImplementedError

    def flush(
        self, topic: str | None = None, timeout_seconds: float = 60.0, *, to_table: bool = False
    ) -> None:
        """Return when all rows so far are durable; raises the first error of those that failed.

        With `to_table` and a topic, when they are in its table.
        """
        raise NotImplementedError

    def create_topic(self, topic: str, **spec: Any) -> dict[str, Any]: ...

    def alter_topic(self, topic: str, **change: Any) -> dict[str, Any]: ...

    def delete_topic(self, topic: str) -> None: ...

    def describe_topic(self, topic: str) -> dict[str, Any]: ...

    def topics(self) -> list[dict[str, Any]]: ...

    def stats(self, topic: str) -> dict[str, Any]: ...

    def read(self, topic: str, start: int | None = None, end: int | None = None) -> pa.Table:
        """Rows that the log holds, with `_calve_partition`, `_calve_offset`, `_calve_ingested_at`."""
        raise NotImplementedError

    def close(self, timeout_seconds: float = 30.0) -> None:
        """Flush, then let go of threads and connections. What was not sent by then fails."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
