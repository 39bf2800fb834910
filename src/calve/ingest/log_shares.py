"""How much of the log each tenant's rows have, for those tenants that are bounded in it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from calve.wal.extent import extent_of

if TYPE_CHECKING:
    from calve.access.limits import TenantLimits
    from calve.ingest.attached import Attachments
    from calve.ingest.readers import ReaderPool


class LogShares:
    """Measured now and then; what comes in between is counted as it comes."""

    def __init__(self, limits: TenantLimits, attachments: Attachments, readers: ReaderPool) -> None:
        self._limits = limits
        self._attachments = attachments
        self._readers = readers

    def measure(self) -> None:
        held: Counter[str] = Counter()
        with self._readers.reader() as reader:
            for attached in self._attachments.all():
                tenant = attached.topic.name.tenant
                if not self._limits.limit(tenant).log_bytes_max:
                    continue
                offsets = reader.offsets(attached.stream)
                if offsets.first < offsets.durable:
                    extent = extent_of(reader, attached.stream, offsets.first, offsets.durable)
                    held[tenant] += extent.bytes
        self._limits.tell_log_bytes(held)
