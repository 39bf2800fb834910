"""Calve turns streams into Apache Iceberg tables.

Importing it starts nothing, configures nothing and loads no heavy library: each public name is
loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calve.errors import CalveError
    from calve.lake import Lake, open  # noqa: A004
    from calve.settings import Settings, load_settings
    from calve.testdata import generate_test_data, write_parquet_batch

__version__ = "0.1.0"

__all__ = [
    "CalveError",
    "Lake",
    "Settings",
    "__version__",
    "generate_test_data",
    "load_settings",
    "open",
    "write_parquet_batch",
]

_HOMES = {
    "CalveError": "calve.errors",
    "Lake": "calve.lake",
    "Settings": "calve.settings",
    "generate_test_data": "calve.testdata",
    "load_settings": "calve.settings",
    "open": "calve.lake",
    "write_parquet_batch": "calve.testdata",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'calve' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
