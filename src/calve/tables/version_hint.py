"""A file beside a local table's metadata that tells engines without the catalog which is newest.

With it somebody's own DuckDB opens the table by its directory. It follows every commit that goes
through this catalog object; a commit by Spark is followed at the next one or the next load. It is a
convenience for readers: nothing in Calve reads it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from calve.paths import local_directory

_HINT: Final = "version-hint.text"
_SUFFIX: Final = ".metadata.json"


def write_hint(metadata_location: str) -> None:
    """Name this metadata file as the newest, if it is a local one."""
    file = local_directory(metadata_location)
    if file is None or not file.name.endswith(_SUFFIX):
        return
    version = file.name.removesuffix(_SUFFIX)
    hint = file.parent / _HINT
    if _read(hint) == version:
        return
    # Renamed into place: a reader sees the old hint or the new one, never half of it.
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=file.parent, prefix=".hint-", delete=False
        ) as new:
            new.write(version)
        Path(new.name).replace(hint)
    except OSError:
        # A table that may only be read has no hint, and needs none to be read through the catalog.
        return


def _read(hint: Path) -> str | None:
    try:
        return hint.read_text()
    except OSError:
        return None
