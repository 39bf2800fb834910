"""What clients and servers say to each other: errors as problems, and Flight's JSON messages."""

from calve.protocol.flight import Answer, Frames, LogEnds, LogRange, PutMetadata
from calve.protocol.problem import Problem, error_of, problem_of

__all__ = [
    "Answer",
    "Frames",
    "LogEnds",
    "LogRange",
    "Problem",
    "PutMetadata",
    "error_of",
    "problem_of",
]
