"""Rows inserted, updated, deleted and upserted: each change is one snapshot, or none.

A row is changed where the condition is true for it. Only files in which a row changes are written
anew; a change that meets another one is worked out again for what is new, and committed on top of
it, so that the result is as if one had come after the other.
"""

from calve.changes.change import Change
from calve.changes.delete import delete_offsets, delete_rows
from calve.changes.insert import insert_rows
from calve.changes.update import Expression, update_rows
from calve.changes.upsert import upsert_rows
from calve.changes.with_spark import delete_with_spark, update_with_spark, upsert_with_spark

__all__ = [
    "Change",
    "Expression",
    "delete_offsets",
    "delete_rows",
    "delete_with_spark",
    "insert_rows",
    "update_rows",
    "update_with_spark",
    "upsert_rows",
    "upsert_with_spark",
]
