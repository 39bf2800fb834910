"""PyIceberg's projection of file columns onto a table's, mended: a missing list stays missing.

PyIceberg makes an empty list or map of a null one whose elements or values are structs. Whoever
reads or writes rows through its Arrow functions imports this first; the mend is for the whole
process, because PyIceberg offers no place to put another projection.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.types import ListType, MapType

_list: Any = ArrowProjectionVisitor.list
_map: Any = ArrowProjectionVisitor.map


def _project_list(
    self: ArrowProjectionVisitor,
    kind: ListType,
    before: pa.Array | None,
    elements: pa.Array | None,
) -> pa.Array | None:
    if not isinstance(before, pa.ListArray | pa.LargeListArray):
        return _list(self, kind, before, elements)
    if not isinstance(elements, pa.StructArray):
        return _list(self, kind, before, elements)
    field = self._construct_field(kind.element_field, elements.type)
    made = pa.large_list(field) if isinstance(before, pa.LargeListArray) else pa.list_(field)
    offsets = pc.add(before.offsets, 0)
    return type(before).from_arrays(offsets, elements, made, mask=before.is_null())


def _project_map(
    self: ArrowProjectionVisitor,
    kind: MapType,
    before: pa.Array | None,
    keys: pa.Array | None,
    values: pa.Array | None,
) -> pa.Array | None:
    after = _map(self, kind, before, keys, values)
    if after is None or before is None or after.null_count == before.null_count:
        return after
    offsets = pc.add(after.offsets, 0)
    return pa.MapArray.from_arrays(
        offsets, after.keys, after.items, after.type, mask=before.is_null()
    )


def mend_projection() -> None:
    """Have PyIceberg keep nulls; once is enough."""
    visitor: Any = ArrowProjectionVisitor
    visitor.list = _project_list
    visitor.map = _project_map
