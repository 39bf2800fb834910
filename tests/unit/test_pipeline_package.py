"""`calve pipeline package`: where the archive may be written, and where not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from calve.errors import InvalidRequest
from calve.pipeline import package
from calve.pipeline.package import build_package
from tests.commands import run_command


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of one file, so that it is made at once."""
    found = [(Path(package.__file__), "package.py")]
    monkeypatch.setattr(package, "_own_files", lambda: iter(found))
    monkeypatch.setattr(package, "_needed", dict)


@pytest.mark.parametrize("name", ["", "/"])
def test_an_output_that_names_no_file_is_a_usage_error(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_command(["calve", "pipeline", "package", "--output", name], monkeypatch, capsys)
    assert (done.code, "--output" in done.err) == (2, True), done.err
    assert not list(tmp_path.iterdir())


def test_what_is_no_file_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidRequest, match="not a file"):
        build_package(pipe)
    assert pipe.is_fifo()
    words = ["calve", "pipeline", "package", "--output", str(pipe)]
    assert run_command(words, monkeypatch, capsys).code == InvalidRequest.exit_code
    assert pipe.is_fifo()
    with pytest.raises(InvalidRequest, match="not a file"):
        build_package(tmp_path)
    for nothing in ("", ".", ".."):
        with pytest.raises(InvalidRequest, match="not a file"):
            build_package(Path(nothing))
    assert list(tmp_path.iterdir()) == [pipe]


def test_an_earlier_archive_is_replaced_also_through_a_link(tmp_path: Path) -> None:
    place = tmp_path / "executors.zip"
    place.write_text("old")
    assert build_package(place).bytes == place.stat().st_size > len("old")
    link = tmp_path / "link.zip"
    link.symlink_to(place)
    build_package(link)
    assert sorted(tmp_path.iterdir()) == [place, link]
