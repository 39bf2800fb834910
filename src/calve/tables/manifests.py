"""Reads a snapshot's manifests and the list of them; one that is missing or damaged is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table.snapshots import Snapshot

from calve.errors import CalveError, Corruption
from calve.tables.translate import reading_file, translating


def manifests_of(snapshot: Snapshot, io: FileIO) -> list[ManifestFile]:
    with _naming(snapshot.manifest_list):
        return snapshot.manifests(io)


def entries_of(
    manifest: ManifestFile, io: FileIO, *, discard_deleted: bool = True
) -> list[ManifestEntry]:
    with _naming(manifest.manifest_path):
        return manifest.fetch_manifest_entry(io, discard_deleted=discard_deleted)


@contextmanager
def reading_all(manifests: Iterable[ManifestFile], io: FileIO) -> Iterator[None]:
    """Where somebody else reads them, name the one on which that failed."""
    try:
        yield
    except CalveError:
        raise
    except Exception:
        for each in manifests:
            entries_of(each, io)
        raise


def is_missing(error: CalveError) -> bool:
    """Whether it tells of a file that is not there, rather than of one that makes no sense."""
    return isinstance(error.__cause__, FileNotFoundError)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    try:
        with translating(), reading_file(file):
            yield
    except Corruption as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise Corruption(
                f"a file of the table is missing: {file}",
                hint="if its snapshot has just expired, try again; else restore it from a copy of "
                "the store",
                context={"file": file},
            ) from error.__cause__
        raise
