"""The schema that data suggests, for a table that does not exist yet."""

from __future__ import annotations

import pyarrow as pa

from calve.tables.inputs.sources import open_input


def infer_schema(
    data: object,
    format: str | None = None,  # noqa: A002
    *,
    delimiter: str | None = None,
) -> pa.Schema:
    """The Arrow schema of the table that could hold `data`.

    Text files are looked at from the beginning: the first 4 MiB, or 10,000 rows. A file object,
    standard input or another source that can be read only once is consumed by this.
    """
    with open_input(data, format=format, delimiter=delimiter) as reader:
        return reader.schema
