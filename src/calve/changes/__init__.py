"""Rows inserted, updated, deleted and upserted: each change is one snapshot, or none.

A row is changed where the condition is true for it. Only files in which a row really changes are
written anew; a change that meets another one is worked out again for what is new, and committed on
top of it, so that the result is as if one had come after the other.
"""

from calve.changes.change import Change
from calve.changes.insert import insert_rows

__all__ = ["Change", "insert_rows"]
