"""What `import calve` gives, and what it does not do."""

from __future__ import annotations

import subprocess
import sys

import pytest

import calve

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
