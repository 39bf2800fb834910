"""As many open files as the connections of a service may need: systems begin with few."""

from __future__ import annotations

import logging
import resource
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from calve.settings.tree import IngestSettings

_log: Final = logging.getLogger(__name__)
# Segments, readers and the state: the log's topics share files, so it takes no more for many.
_OWN_FILES: Final = 512
_DOORS: Final = 4  # each may have so many connections that have said nothing yet


def allow_open_files(settings: IngestSettings) -> int:
    """Raise the process's limit to what the settings allow connections; what it is now.

    Where the system grants less, say what to do: connections beyond it will be refused.
    """
    strangers = _DOORS * settings.streams_max
    wanted = settings.http_connections_max + settings.streams_max + strangers + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != resource.RLIM_INFINITY and soft < wanted:
        _log.warning(
            "only %d files may be open, and %d connections and streams are allowed: raise the "
            "limit (`ulimit -Hn`, or LimitNOFILE of systemd) to %d, or lower "
            "ingest.http_connections_max and ingest.streams_max",
            soft,
            wanted - _OWN_FILES,
            wanted,
        )
    return soft
