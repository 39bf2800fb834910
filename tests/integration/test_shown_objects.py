"""What a notebook and a terminal show of tables: small tables, no object addresses or dumps."""

from __future__ import annotations

import os
import pickle
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calve.grid import Grid
from calve.lake import Lake
from calve.manager import IcebergManager
from tests.commands import exit_code

HOSTILE = "<script>alert('x')</script>"


@pytest.fixture
def manager(lake: Lake) -> IcebergManager:
    lake.tables.create_table("users", {"id": "long", HOSTILE: "string"})
    for n in range(3):
        lake.tables.insert_data("users", [{"id": n}])
    lake.tables.create_tag("users", "v1")
    return lake.tables


def shown(value: Any) -> tuple[str, str]:
    """As a terminal and as a notebook shows it."""
    page: str = value._repr_html_()
    assert page.startswith("<table>")
    assert " object at 0x" not in page
    assert "<script>" not in page
    return repr(value), page


def test_what_is_told_of_tables_is_shown_as_tables(manager: IcebergManager, lake: Lake) -> None:
    first, _, last = manager.list_snapshots("users")
    text, page = shown(manager.list_snapshots("users"))
    assert [line.split()[0] for line in text.splitlines()] == [
        "SNAPSHOT", *(str(each.id) for each in manager.list_snapshots("users")),
    ]  # fmt: skip
    assert f"<td>{first.id}</td>" in page
    assert "main (current), v1" in page
    text, page = shown(manager.describe_table("users"))
    assert text.splitlines()[1].split() == ["id", "long", "no", "-"]
    assert HOSTILE in text
    assert "<td>&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;</td>" in page
    assert page.count("<table>") == 2
    text, page = shown(manager.plan_scan("users", first.id, last.id))
    assert [line.split()[0] for line in text.splitlines()] == ["CHANGE", "added", "added"]
    text, page = shown(manager.expire_snapshots("users", 0, dry_run=True))
    assert [str(first.id), "would", "be", "forgotten"] in [
        line.split() for line in text.splitlines()
    ]
    assert "would be deleted" in page
    text, page = shown(lake.catalog)
    assert text.startswith("LakeCatalog('calve', warehouse='file://")
    assert "<td>users</td>" in page
    shown(manager.list_tags("users"))
    shown(last)
    shown(manager.delete_data("users", "id = 1"))
    shown(manager.remove_orphans("users", dry_run=True))


def test_a_list_that_shows_itself_is_a_list(manager: IcebergManager) -> None:
    found = manager.list_snapshots("users")
    assert isinstance(found, list)
    assert pickle.loads(pickle.dumps(found)) == found == list(found)


def test_of_many_rows_the_first_are_shown() -> None:
    grid = Grid(("N",), [(n,) for n in range(60)], "in all").bounded()
    assert grid.lines()[-1] == "10 more rows; in all"
    assert len(grid.lines()) == 52


class Terminal:
    """Standard error as a terminal, and what comes out of it."""

    def __init__(self) -> None:
        self._other, own = os.openpty()
        self.file = os.fdopen(own, "w")
        self._said = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # which is how it ends
            while piece := os.read(self._other, 65536):
                self._said += piece

    def ended(self) -> str:
        """All that was said."""
        self.file.close()
        self._reader.join()
        return self._said.decode()


@pytest.mark.parametrize("name", ["users.parquet", "users.csv"])
def test_an_insert_shows_how_much_of_its_file_is_read(
    lake: Lake, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.tables.create_table("users", {"id": "long"})
    pq.write_table(pa.table({"id": range(200_000)}), tmp_path / "users.parquet")
    (tmp_path / "users.csv").write_text("id\n" + "\n".join(map(str, range(200_000))))
    terminal = Terminal()
    line = ["calve", "table", "insert", "users", "--lake", str(lake.settings.data)]
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal.file)
        code = exit_code([*line, "--data", str(tmp_path / name)], patch)
    said = terminal.ended()
    assert code == 0, said
    assert "100%" in said
    assert said.count("%") > 2, "it moves while the file is read, and not only at the end"
    assert "#" in said
    assert "200,000 rows" in said
