"""Topics: what each one is, the registry of them, and how rows that come in fit one."""

from calve.topics.document import change_of, document_of, spec_of
from calve.topics.fit import Fit, Fitter, fit
from calve.topics.messages import (
    MESSAGE_SCHEMA,
    StreamMessage,
    message_batch,
    messages_of,
)
from calve.topics.registry import TopicRegistry
from calve.topics.topic import Binding, Topic, TopicChange, TopicSpec

__all__ = [
    "MESSAGE_SCHEMA",
    "Binding",
    "Fit",
    "Fitter",
    "StreamMessage",
    "Topic",
    "TopicChange",
    "TopicRegistry",
    "TopicSpec",
    "change_of",
    "document_of",
    "fit",
    "message_batch",
    "messages_of",
    "spec_of",
]
