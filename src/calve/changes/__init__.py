"""Rows inserted, updated, deleted and upserted: each change is one snapshot, or none.

A row is changed where the condition is true for it. Only files in which a row changes are written
anew; a change that meets another one is worked out again for what is new, and committed on top of
it, so that the result is as if one had come after the other.
"""

from calve.changes.change import Change
from calve.changes.delete import delete_rows
from calve.changes.insert import insert_rows
from calve.changes.update import Expression, update_rows
from calve.changes.upsert import upsert_rows

__all__ = ["Change", "Expression", "delete_rows", "insert_rows", "update_rows", "upsert_rows"]
