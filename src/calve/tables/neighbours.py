"""Whether a table's files may be deleted at all: not if other tables may need them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import Identifier

from calve.errors import CalveError, Conflict, Denied, InvalidRequest, NotFound
from calve.tables.catalog import LakeCatalog
from calve.tables.own_files import directory
from calve.tables.translate import translating

_GC_ENABLED: Final = "gc.enabled"
_PLACES: Final = (TableProperties.WRITE_DATA_PATH, TableProperties.WRITE_METADATA_PATH)


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """Another table, and where it lies as far as can be told."""

    name: str
    location: str
    places: tuple[str, ...]


class _Lying(msgspec.Struct):
    """What a metadata file says of where its table lies; the rest of it is not looked at."""

    location: str
    properties: dict[str, str] | None = None


def require_deletable(catalog: LakeCatalog, table: Table) -> None:
    """Refuse to delete files where another table may need them.

    InvalidRequest if the table says so itself, Conflict if another one lies in the same place.
    """
    if table.properties.get(_GC_ENABLED, "true").strip().lower() == "false":
        raise InvalidRequest(
            f"{_GC_ENABLED}=false forbids to delete files of the table: others may need them",
            hint=f"if nobody does, set the table's property {_GC_ENABLED} to true, with Spark's "
            "ALTER TABLE or with PyIceberg; `drop` without --purge deletes no file",
        )
    own = directory(table.location())
    for other in _neighbours(catalog, table):
        place = next(_shared(own, other), None)
        if place is not None:
            raise Conflict(
                f"the table {other.name} lies in the same place, {place}: it may need files that "
                "this one does not",
                hint="see which of the two is wanted, and drop the other without --purge",
                context={"table": other.name, "place": place},
            )


def _shared(own: str, other: _Neighbour) -> Iterator[str]:
    if own.startswith(other.location):
        yield other.location
    yield from (place for place in (other.location, *other.places) if place.startswith(own))


def _neighbours(catalog: LakeCatalog, table: Table) -> Iterator[_Neighbour]:
    for identifier, pointer in catalog.pointers():
        if identifier == table.name():
            continue
        name = catalog.shown_name(identifier)
        if pointer is not None:
            yield _read(name, table.io, pointer)
        elif other := _loaded(catalog, name, identifier):
            yield _neighbour(name, other.metadata_location, other.location(), other.properties)


def _read(name: str, io: FileIO, pointer: str) -> _Neighbour:
    """From a table's metadata file, without making all that is in it."""
    try:
        with io.new_input(pointer).open() as file:
            unpacked = Compressor.get_compressor(pointer).stream_decompressor(file)
            lies = msgspec.json.decode(unpacked.read(), type=_Lying)
    except (OSError, EOFError, ValueError, zlib.error):
        # The catalog still tells where the file was.
        lies = _Lying(pointer.rpartition("/metadata/")[0] or pointer)
    return _neighbour(name, pointer, lies.location, lies.properties or {})


def _loaded(catalog: LakeCatalog, name: str, identifier: Identifier) -> Table | None:
    """The table; None if it went meanwhile, or is kept from us: then also its place is another."""
    try:
        with translating():
            return catalog.iceberg.load_table(identifier)
    except (NotFound, Denied):
        return None
    except CalveError as error:
        raise Conflict(
            f"whether the table {name} lies in the same place cannot be told: {error.message}",
            hint=f"mend {name} first, or drop it from the catalog",
            context={"table": name},
        ) from error


def _neighbour(name: str, pointer: str, location: str, properties: Mapping[str, str]) -> _Neighbour:
    named = [properties[key] for key in _PLACES if properties.get(key)]
    inside = tuple(map(directory, (*named, pointer.rpartition("/")[0])))
    return _Neighbour(name, directory(location), inside)
