"""The file by which anybody's DuckDB finds a local table by its directory alone.

`<table>/metadata/version-hint.text` names the newest metadata file without its ending. It is
written after each commit, never part of one: without it, or with an old one, nothing is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import uuid4

from pyiceberg.table import Table

from calve.paths import local_directory

NAME: Final = "version-hint.text"

_LOG: Final = logging.getLogger(__name__)
_SUFFIX: Final = ".metadata.json"
_ROUNDS_MAX: Final = 10


def publish_hint(location: str, metadata_location: str, newest: Callable[[], str | None]) -> None:
    """Name the metadata file, and go on until the hint names the newest.

    Of several who commit at once the last to write looks last, so that the newest stays.
    """
    directory = local_directory(location)
    if directory is None:
        return
    named: str | None = metadata_location
    for _ in range(_ROUNDS_MAX):
        if named is None or not _write(directory / "metadata", named):
            return
        written, named = named, newest()
        if named == written:
            return


def refresh_hint(table: Table) -> None:
    """Bring the hint up to date after somebody else's commit, such as Spark's."""
    fresh = table.catalog.load_table(table.name())
    publish_hint(
        fresh.location(),
        fresh.metadata_location,
        lambda: table.catalog.load_table(table.name()).metadata_location,
    )


def _write(directory: Path, metadata_location: str) -> bool:
    file = local_directory(metadata_location)
    # DuckDB looks beside the hint only.
    if file is None or file.parent != directory or not file.name.endswith(_SUFFIX):
        return False
    draft = directory / f".{NAME}-{uuid4().hex}"
    try:
        draft.write_text(file.name.removesuffix(_SUFFIX))
        draft.replace(directory / NAME)
    except OSError as error:
        _LOG.debug("the version hint was not written", extra={"reason": str(error)})
        draft.unlink(missing_ok=True)
        return False
    return True
