"""Tries the store as the tables would use it."""

from __future__ import annotations

from uuid import uuid4

from pyiceberg.io import load_file_io

from calve.errors import Corruption, InvalidRequest
from calve.paths import OWN_DIRECTORY
from calve.tables.catalog import LakeCatalog
from calve.tables.translate import translating


def probe_store(catalog: LakeCatalog) -> None:
    """Write a file, read it back and delete it."""
    if catalog.warehouse is None:
        raise InvalidRequest("the catalog's server chooses the store; there is none to try")
    content = uuid4().bytes
    location = f"{catalog.warehouse.rstrip('/')}/{OWN_DIRECTORY}/probe-{uuid4().hex}"
    with translating():
        files = load_file_io(catalog.iceberg.properties, location)
        with files.new_output(location).create() as output:
            output.write(content)
        try:
            with files.new_input(location).open() as written:
                read = written.read()
        finally:
            files.delete(location)
    if read != content:
        raise Corruption(
            f"the store gave back something else than was written to {location}",
            hint="do not use this store",
        )
