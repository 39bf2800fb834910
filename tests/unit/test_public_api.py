"""What `import calve` gives, and what it does not do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import calve
from calve import IcebergManager

HEAVY = ("pyiceberg", "pyspark", "pyarrow", "duckdb", "sqlalchemy", "structlog", "click", "msgspec", "asyncio")  # fmt: skip


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_every_public_name_exists_and_nothing_else_is_public() -> None:
    assert all(getattr(calve, name) is not None for name in calve.__all__)
    assert set(calve.__all__) <= set(dir(calve))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = calve.nothing


def test_importing_calve_loads_no_heavy_library() -> None:
    assert not loaded_by("import calve") & set(HEAVY)


def test_the_command_line_loads_click_alone_until_a_command_is_chosen() -> None:
    assert loaded_by("import calve.cli.main") & set(HEAVY) == {"click"}


def test_the_configuration_commands_load_no_table_library() -> None:
    light = {"click", "msgspec"}
    assert loaded_by("import calve.cli.config") & set(HEAVY) <= light


def test_listing_tables_loads_nothing_that_reads_rows(tmp_path: Path) -> None:
    with IcebergManager(tmp_path) as manager:
        manager.create_table("users", {"id": "long"})
    loaded = loaded_by(command("table", "list", "--data", str(tmp_path)))
    assert {"users", "pyiceberg", "sqlalchemy"} <= loaded
    assert not loaded & {"pyarrow", "numpy", "pandas", "duckdb", "sqlglot", "requests", "fsspec"}


@pytest.mark.parametrize(
    "arguments",
    [("table", "query", "users", "--where", "id > 1"), ("sql", "select max(id) from users")],
)
def test_a_read_by_duckdb_does_not_load_what_else_reads_files(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with IcebergManager(tmp_path) as manager:
        manager.create_table("users", {"id": "long"})
        manager.insert_data("users", [{"id": 41}])
    loaded = loaded_by(command(*arguments, "--data", str(tmp_path)))
    assert {"41", "duckdb"} <= loaded
    assert not loaded & {"pyarrow.dataset", "pyiceberg.io.pyarrow", "pandas", "requests", "fsspec"}


@pytest.mark.parametrize(
    "arguments",
    [("create", "others", "--schema", "{file}"), ("add-column", "users", "name", "string")],
)
def test_a_change_of_metadata_does_not_load_what_reads_data_files(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"columns": [{"name": "id", "type": "long"}]}')
    with IcebergManager(tmp_path) as manager:
        manager.create_table("users", {"id": "long"})
    named = [text.format(file=file) for text in arguments]
    loaded = loaded_by(command("table", *named, "--data", str(tmp_path)))
    assert "pyiceberg" in loaded
    assert not loaded & {"pyarrow.dataset", "pyiceberg.io.pyarrow", "pandas", "duckdb", "sqlglot"}


def command(*arguments: str) -> str:
    """A statement that runs the command line and stays to be looked at."""
    return (
        f"import sys\nsys.argv = ['calve', *{list(arguments)!r}]\n"
        "from calve.cli.main import calve\n"
        "try:\n    calve()\nexcept SystemExit as ended:\n    assert not ended.code"
    )
