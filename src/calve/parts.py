"""The optional parts of an installation, loaded where they are first needed."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Final

from calve.errors import MissingPart

# A part is there when these packages of other projects are.
_PROOF: Final = {
    "aws": ("boto3", "botocore"),
    "otlp": ("google", "grpc", "opentelemetry", "ptars", "starlette", "uvicorn"),
    "postgres": ("psycopg", "psycopg_pool"),
    "server": ("cryptography", "starlette", "uvicorn", "httptools", "websockets"),
    "spark": ("pyspark", "py4j"),
}


def has_part(part: str) -> bool:
    """Whether an optional part is installed."""
    return all(importlib.util.find_spec(package) is not None for package in _PROOF[part])


def load_part(part: str, module: str) -> ModuleType:
    """Import a module of an optional part, or say how to install the part."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PROOF[part]:
            raise
        raise MissingPart(
            f"this needs the part {part!r}, which is not installed",
            hint=f"run `pip install 'calve[{part}]'`",
        ) from error
