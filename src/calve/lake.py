"""The lake, which `calve.open` gives: catalog, store and Spark of one set of settings."""

from __future__ import annotations

import threading
from os import PathLike
from typing import TYPE_CHECKING, Self

from calve.parts import load_part
from calve.settings import Settings, load_settings
from calve.tables.catalog import LakeCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from calve.spark.session import LakeSpark


class Lake:
    """A place of Iceberg tables. A context manager; safe to share between threads."""

    def __init__(
        self, settings: Settings, *, spark: SparkSession | None = None, create: bool = True
    ) -> None:
        """Open the lake; without `create`, one that is not there yet is an error."""
        self.settings = settings
        self.catalog = LakeCatalog(settings, create=create)
        self._given_session = spark
        self._spark: LakeSpark | None = None
        self._lock = threading.Lock()

    def spark(self) -> SparkSession:
        """A session whose default catalog is this lake's; Spark is started at the first call."""
        with self._lock:
            if self._spark is None:
                module = load_part("spark", "calve.spark.session")
                self.catalog.create_default_namespace()
                self._spark = module.LakeSpark(self.settings, self._given_session)
            return self._spark.session

    def close(self, error: BaseException | None = None) -> None:
        """Let go of everything; `error` is on its way to the caller, who will want to read it."""
        with self._lock:
            if self._spark is not None:
                if error is not None:
                    load_part("spark", "calve.spark.session").keep_words(error)
                self._spark.close()
                self._spark = None
        self.catalog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close(error)

    def __repr__(self) -> str:
        return f"Lake({str(self.settings.data)!r}, catalog={self.settings.catalog.type!r})"


def open(  # noqa: A001
    lake: str | PathLike[str] | Settings | None = None, *, spark: SparkSession | None = None
) -> Lake:
    """Open the lake in a directory, or the one that the settings describe; make it if it is new.

    A directory is the flag `--data`: `calve.toml` and the environment still count, as they do for
    the command line. With a session passed in, Calve works in it and never stops it.
    """
    if isinstance(lake, Settings):
        return Lake(lake, spark=spark)
    flags = {} if lake is None else {"data": str(lake)}
    return Lake(load_settings(flags=flags).settings, spark=spark)
