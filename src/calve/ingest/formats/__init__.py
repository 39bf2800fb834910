"""Rows in bytes, as producers send them: NDJSON, JSON, CSV and Arrow, compressed or not."""

from calve.ingest.formats.compression import ENCODINGS, decompressed
from calve.ingest.formats.files import Body, file_batches, file_bodies
from calve.ingest.formats.reading import MEDIA_TYPES, Decoded, decode
from calve.ingest.formats.types import KnownTypes

__all__ = [
    "ENCODINGS",
    "MEDIA_TYPES",
    "Body",
    "Decoded",
    "KnownTypes",
    "decode",
    "decompressed",
    "file_batches",
    "file_bodies",
]
