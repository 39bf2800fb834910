"""The store `file://`: a local disk.

Metadata is read and written with Python's own files. Data files are Arrow's, whose part for them is
loaded with the first: it brings pandas along where that is installed, and whoever lists tables,
makes one or has DuckDB read it needs neither.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlparse

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.typedef import Properties

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

FILE_IO: Final = f"{__name__}.LocalFileIO"

_METADATA: Final = (".json", ".avro")


class LocalFileIO(FileIO):
    """A local disk's files for PyIceberg; what lies elsewhere is Arrow's too."""

    @cached_property
    def arrow(self) -> PyArrowFileIO:
        """Arrow's way to the same files."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        return PyArrowFileIO(self.properties)

    def new_input(self, location: str) -> InputFile:
        file = _metadata_file(location)
        return self.arrow.new_input(location) if file is None else file

    def new_output(self, location: str) -> OutputFile:
        file = _metadata_file(location)
        return self.arrow.new_output(location) if file is None else file

    def delete(self, location: str | InputFile | OutputFile) -> None:
        place = location if isinstance(location, str) else location.location
        if path := local_path(place):
            path.unlink()
        else:
            self.arrow.delete(place)

    def __reduce__(self) -> tuple[type[LocalFileIO], tuple[Properties]]:
        return LocalFileIO, (self.properties,)


class MetadataFile(InputFile, OutputFile):
    def __init__(self, location: str, path: Path) -> None:
        super().__init__(location)
        self._path = path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def exists(self) -> bool:
        return self._path.exists()

    def open(self, seekable: bool = True) -> InputStream:  # noqa: FBT001, FBT002
        return cast("InputStream", self._path.open("rb"))

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return cast("OutputStream", self._path.open("wb" if overwrite else "xb"))

    def to_input_file(self) -> InputFile:
        return self


def _metadata_file(location: str) -> MetadataFile | None:
    path = local_path(location) if location.endswith(_METADATA) else None
    return None if path is None else MetadataFile(location, path)


def local_path(location: str) -> Path | None:
    """The same path as Arrow's, which leaves out what an URL has behind it."""
    place = urlparse(location)
    return Path(place.netloc + place.path) if place.scheme == "file" else None
