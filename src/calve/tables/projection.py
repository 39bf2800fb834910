"""PyIceberg's projection of file columns onto a table's, mended: a missing list stays missing.

PyIceberg makes an empty list or map of a null one whose elements or values are structs, and nulls
of fields that have another name in the file, inside of a list in a list. Whoever reads rows
through its Arrow functions imports this first; the mend is for the whole process, because
PyIceberg offers no place to put another projection.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.types import ListType, MapType

_list: Any = ArrowProjectionVisitor.list
_map: Any = ArrowProjectionVisitor.map
_NESTED: Final = (pa.StructArray, pa.ListArray, pa.LargeListArray, pa.MapArray)


def _project_list(
    self: ArrowProjectionVisitor,
    kind: ListType,
    before: pa.Array | None,
    elements: pa.Array | None,
) -> pa.Array | None:
    if not isinstance(before, pa.ListArray | pa.LargeListArray):
        return _list(self, kind, before, elements)
    if not isinstance(elements, _NESTED):
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
    if after is None or before is None or keys is None or not isinstance(values, _NESTED):
        return after
    made = after.type
    offsets = pc.add(before.offsets, 0)
    items = values if values.type == made.item_type else values.cast(made.item_type)
    return pa.MapArray.from_arrays(
        offsets, keys.cast(made.key_type), items, made, mask=before.is_null()
    )


def mend_projection() -> None:
    """Have PyIceberg keep nulls; once is enough."""
    visitor: Any = ArrowProjectionVisitor
    visitor.list = _project_list
    visitor.map = _project_map
