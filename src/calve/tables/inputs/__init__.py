"""Rows from anywhere, as a stream of Arrow batches that fit a table. Memory is bounded."""

from calve.tables.inputs.conform import conform
from calve.tables.inputs.infer import infer_schema
from calve.tables.inputs.partial import PartialRows, read_partial
from calve.tables.inputs.sources import open_input

__all__ = ["PartialRows", "conform", "infer_schema", "open_input", "read_partial"]
