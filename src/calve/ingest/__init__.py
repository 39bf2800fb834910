"""Rows in: admitted, made to fit their topic, appended to the log, acknowledged when durable."""

from calve.ingest.admission import Admission, Admitted
from calve.ingest.intake import Intake, TopicOffsets, TopicStats
from calve.ingest.produce import Produced, produce
from calve.ingest.refusals import as_refusal

__all__ = [
    "Admission",
    "Admitted",
    "Intake",
    "Produced",
    "TopicOffsets",
    "TopicStats",
    "as_refusal",
    "produce",
]
