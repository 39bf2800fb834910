"""A table of which a manifest or the list of them is missing or damaged says which, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calve.cli import main
from calve.errors import Corruption
from calve.lake import Lake

USES: dict[str, Callable[[Lake], object]] = {
    "query": lambda lake: list(lake.tables.query_table("t")),
    "query where": lambda lake: list(lake.tables.query_table("t", "id = 1")),
    "sql": lambda lake: list(lake.sql("select * from t")),
    "update": lambda lake: lake.tables.update_data("t", {"id": 7}, "id = 1"),
    "delete": lambda lake: lake.tables.delete_data("t", "id = 1"),
    "upsert": lambda lake: lake.tables.upsert_data("t", [{"id": 1}], ["id"]),
    "changes": lambda lake: lake.tables.plan_scan("t", *_ends(lake)),
    "expire": lambda lake: lake.tables.expire_snapshots("t", 0),
    "orphans": lambda lake: lake.tables.remove_orphans("t", older_than_days=0),
}


def _ends(lake: Lake) -> tuple[int, int]:
    listed = lake.tables.list_snapshots("t")
    return listed[0].id, listed[-1].id


@pytest.fixture
def files(lake: Lake) -> dict[str, Path]:
    """The newest manifest and the list of a table that nothing has read yet."""
    lake.tables.create_table("t", {"id": "long"})
    for number in (1, 2):
        lake.tables.insert_data("t", [{"id": number}])
    table = lake.catalog.load_table("t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifest = snapshot.manifests(table.io)[0].manifest_path
    named = {"list": snapshot.manifest_list, "manifest": manifest}
    return {kind: Path(place.removeprefix("file://")) for kind, place in named.items()}


@pytest.mark.parametrize("damage", ["missing", "damaged"])
@pytest.mark.parametrize("kind", ["list", "manifest"])
def test_what_is_wrong_with_the_table_is_named(
    lake: Lake, files: dict[str, Path], kind: str, damage: str
) -> None:
    file = files[kind]
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(whole[: len(whole) // 2])
    for name, use in USES.items():
        with pytest.raises(Corruption) as refused:
            use(lake)
        assert damage in refused.value.message, name
        assert file.name in refused.value.message, name
        assert "restore" in (refused.value.hint or ""), name
    file.write_bytes(whole)
    assert len(lake.tables.query_table("t")) == 2


def test_an_insert_needs_the_list_to_continue_it(lake: Lake, files: dict[str, Path]) -> None:
    files["list"].unlink()
    with pytest.raises(Corruption, match=files["list"].name):
        lake.tables.insert_data("t", [{"id": 3}])


def test_commands_end_with_the_code_of_damage(
    lake: Lake,
    files: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    files["manifest"].unlink()
    for command in (
        ["table", "query", "t", "--data"],
        ["table", "delete", "t", "--where", "id = 1", "--data"],
        ["sql", "select * from t", "--data"],
    ):
        monkeypatch.setattr("sys.argv", ["calve", *command, str(lake.settings.data)])
        with pytest.raises(SystemExit) as ended:
            main.calve()
        assert ended.value.code == Corruption.exit_code, command
        assert files["manifest"].name in capfdbinary.readouterr().err.decode()
