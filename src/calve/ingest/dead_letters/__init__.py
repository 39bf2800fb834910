"""Rows that a topic could not take: found, read, sent again and discarded."""

from calve.ingest.dead_letters.box import DeadLetters, Discarded
from calve.ingest.dead_letters.letters import Letter, LetterList, ReasonCount
from calve.ingest.dead_letters.original import LetterView
from calve.ingest.dead_letters.replay import Replayed
from calve.ingest.dead_letters.selection import Filters, Selection, require_meant

__all__ = [
    "DeadLetters",
    "Discarded",
    "Filters",
    "Letter",
    "LetterList",
    "LetterView",
    "ReasonCount",
    "Replayed",
    "Selection",
    "require_meant",
]
