"""What an open lake holds: its catalog, and a Spark session once somebody asks for one."""

from __future__ import annotations

import threading
from os import PathLike
from typing import TYPE_CHECKING, Self, TypeAlias

from calve.audit import Trail
from calve.errors import InvalidRequest
from calve.parts import load_part
from calve.settings import Settings, complete, load_settings
from calve.tables.catalog import LakeCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from calve.spark.session import LakeSpark

LakeSource: TypeAlias = str | PathLike[str] | Settings | None


def settings_of(source: LakeSource) -> Settings:
    """The settings themselves, or those of the lake in a directory, which is the flag `--data`."""
    if isinstance(source, Settings):
        return source
    flags = {} if source is None else {"data": str(source)}
    return load_settings(flags=flags).settings


class Connections:
    """Everything is opened when it is first needed, and let go of by `close`. Thread-safe."""

    def __init__(
        self, settings: Settings, *, spark: SparkSession | None = None, create: bool = True
    ) -> None:
        """Connect to the catalog; without `create`, a lake that is not there yet is an error."""
        self.settings = settings = complete(settings)
        self.trail = Trail.of(settings)
        self._create = create
        self._catalog = LakeCatalog(settings, create=create)
        self._given_session = spark
        self._spark: LakeSpark | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def catalog(self) -> LakeCatalog:
        if self._is_closed:
            raise InvalidRequest("the lake has been closed", hint="open it again")
        return self._catalog

    def spark(self) -> SparkSession:
        """The same session each time, unless it was stopped or Spark has died: then a new one."""
        return self.lake_spark().session

    def lake_spark(self) -> LakeSpark:
        """What holds that session."""
        with self._lock:
            catalog = self.catalog
            if self._spark is not None and not self._spark.is_alive():
                self._close_spark()
            if self._spark is None:
                module = load_part("spark", "calve.spark.session")
                if self._create:
                    catalog.create_default_namespace()
                self._spark = module.LakeSpark(self.settings, self._given_session)
            return self._spark

    def close(self, error: BaseException | None = None) -> None:
        """Let go of everything; `error` is on its way to the caller, who will want to read it."""
        try:
            with self._lock:
                self._is_closed = True
                if self._spark is not None and error is not None:
                    load_part("spark", "calve.spark.translate").keep_words(error)
                self._close_spark()
        finally:
            self._catalog.close()

    def _close_spark(self) -> None:
        spark, self._spark = self._spark, None
        if spark is not None:
            spark.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close(error)
