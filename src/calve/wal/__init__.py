"""The write-ahead log: bytes, files and fsync. Knows nothing of Flight, Spark or Iceberg."""

from calve.wal.files import Files, OsFiles
from calve.wal.frame import Kind
from calve.wal.identity import Claim
from calve.wal.log import Log, NewStream
from calve.wal.options import LogOptions
from calve.wal.payload import Rejected
from calve.wal.pending import Acknowledgement, PendingAppend
from calve.wal.reader import Entry, LogReader, Offsets
from calve.wal.state import Stream

__all__ = [
    "Acknowledgement",
    "Claim",
    "Entry",
    "Files",
    "Kind",
    "Log",
    "LogOptions",
    "LogReader",
    "NewStream",
    "Offsets",
    "OsFiles",
    "PendingAppend",
    "Rejected",
    "Stream",
]
