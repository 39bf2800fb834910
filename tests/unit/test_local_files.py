"""A local disk's files: metadata by Python, data files by Arrow, and both mean the same file."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from calve.tables.stores.local import LocalFileIO, MetadataFile

NAMES = ["plain", "with space", "hash#mark", "question?mark", "semi;colon", "per%20cent", "ünïcode"]


@pytest.mark.parametrize("name", NAMES)
def test_a_location_is_the_file_that_arrow_takes_it_for(tmp_path: Path, name: str) -> None:
    location = f"file://{tmp_path}/{name}/new/v1.metadata.json"
    files, arrow = LocalFileIO(), PyArrowFileIO()
    with files.new_output(location).create() as stream:
        stream.write(b"ours")
    with arrow.new_input(location).open() as read:
        assert read.read() == b"ours"
    with arrow.new_output(location).create(overwrite=True) as stream:
        stream.write(b"and theirs")
    found = files.new_input(location)
    assert isinstance(found, MetadataFile)
    assert (found.exists(), len(found)) == (True, 10)
    with found.open() as read:
        assert read.read() == b"and theirs"
    files.delete(location)
    assert not found.exists()


def test_a_file_is_not_written_over_unless_that_is_asked_for(tmp_path: Path) -> None:
    file = LocalFileIO().new_output(f"file://{tmp_path}/v1.metadata.json")
    file.create().close()
    with pytest.raises(FileExistsError):
        file.create()
    file.create(overwrite=True).close()


def test_what_is_missing_is_said_to_be(tmp_path: Path) -> None:
    location = f"file://{tmp_path}/none.avro"
    assert not LocalFileIO().new_input(location).exists()
    with pytest.raises(FileNotFoundError):
        LocalFileIO().new_input(location).open()
    with pytest.raises(FileNotFoundError):
        LocalFileIO().delete(location)


def test_data_files_are_opened_by_arrow() -> None:
    files = pickle.loads(pickle.dumps(LocalFileIO({"s3.region": "eu"})))
    assert isinstance(files.new_input("file:///lake/t/data/a.parquet"), PyArrowFile)
    assert isinstance(files.new_output("file:///lake/t/data/a.orc"), PyArrowFile)
    assert files.arrow.properties == {"s3.region": "eu"}
