"""What a topic knows about its columns, made ready once for each version of it."""

from __future__ import annotations

import threading
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from calve.errors import InvalidRequest
from calve.tables.inputs.convert import Text
from calve.tables.inputs.fitting import RowFitter
from calve.tables.schemas import arrow_schema
from calve.topics.fit import Fitter

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.schema import Schema

    from calve.topics.topic import Topic
    from calve.wal import Rejected

_CACHED_MAX: Final = 1024


@dataclass(frozen=True)
class KnownTypes:
    """The types that rows without any are read with; none for a topic that is to be made."""

    topic: Topic | None = None
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    _fitter: RowFitter = field(default_factory=lambda: RowFitter(text=Text.JSON))

    @classmethod
    def of(cls, topic: Topic) -> KnownTypes:
        fitter = RowFitter(topic.schema, last_column_id=topic.last_column_id, text=Text.JSON)
        return cls(topic, topic.arrow_schema, fitter)

    @classmethod
    def of_columns(cls, schema: Schema) -> KnownTypes:
        """Of a topic that somebody else has."""
        fitter = RowFitter(schema, last_column_id=schema.highest_field_id, text=Text.JSON)
        return cls(None, arrow_schema(schema), fitter)

    @property
    def has_decimals(self) -> bool:
        return any("decimal" in str(each.type) for each in self.schema)

    def row_fitter(self) -> RowFitter:
        """One that may grow for the rows of one request."""
        return copy(self._fitter)

    def name_now(self, name: str) -> str:
        """What the topic calls a column that may have been renamed."""
        if self.topic is None or not self.topic.renamed_columns:
            return name
        place = self.topic.memory.place((name,))
        return name if place is None else place[0]

    @cached_property
    def _fitter_of_topic(self) -> Fitter | None:
        return None if self.topic is None else Fitter(self.topic)

    @cached_property
    def _fitter_that_sets_aside(self) -> Fitter | None:
        if self.topic is None:
            return None
        return Fitter(msgspec.structs.replace(self.topic, on_bad_row="dead_letter"))

    @property
    def sets_aside(self) -> bool:
        """Whether the topic wants bad rows kept apart, whatever a request says."""
        return self.topic is not None and self.topic.on_bad_row == "dead_letter"

    def check(self, batch: pa.RecordBatch, before: int) -> None:
        """Refuse rows of which the topic would refuse one, or set it aside."""
        _, bad = self.split(batch, sets_aside=True, before=before)
        if bad:
            raise InvalidRequest(bad[0].reason)

    def split(
        self, batch: pa.RecordBatch, *, sets_aside: bool, before: int
    ) -> tuple[pa.RecordBatch | None, list[Rejected]]:
        """What the topic takes, and the rows that are set aside, each with its reason.

        `before` counts the rows that came before them.
        """
        fitter = self._fitter_that_sets_aside if sets_aside else self._fitter_of_topic
        if fitter is None:
            return batch, []
        fit = fitter.fit(batch.schema)
        return fit.split(batch, before) if fit.sets_aside else (batch, [])


class TypesCache:
    """Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[UUID, int], KnownTypes] = {}

    def of(self, topic: Topic | None) -> KnownTypes:
        if topic is None:
            return KnownTypes()
        key = topic.id, topic.version
        found = self._known.get(key)
        if found is None:
            found = KnownTypes.of(topic)
            with self._lock:
                if len(self._known) >= _CACHED_MAX:
                    self._known.clear()
                self._known[key] = found
        return found
