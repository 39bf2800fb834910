"""Structured logs: human on a terminal, JSON otherwise, with ids that follow the work, no secrets.

Calve's modules log through the standard library, so a program that embeds Calve sees its logs like
any other library's. `configure_logs` is for Calve's own processes: it alone installs a handler.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO
from uuid import uuid4

from calve.settings import (
    MASK,
    LogSettings,
    Settings,
    component_levels,
    hidden_texts,
    hide_secrets,
    looks_secret,
    mask_texts,
)

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

# Below this, other libraries' words are not for Calve's users unless they ask for them.
_OTHERS_LEVEL: Final = logging.WARNING
# uvicorn has a line for each request that is not HTTP, which anybody can send. What Py4J logs as an
# error, with a traceback, is raised as well, and told by whoever catches it.
_QUIET: Final = {
    **dict.fromkeys(("pyiceberg", "urllib3", "uvicorn.error"), logging.ERROR),
    "py4j": logging.CRITICAL,
}

_bound: ContextVar[Mapping[str, str]] = ContextVar("calve_bound_ids", default=MappingProxyType({}))


@contextmanager
def bound(**ids: str) -> Iterator[None]:
    """Put these ids on every log record written inside, also in tasks started from here."""
    token = _bound.set({**_bound.get(), **ids})
    try:
        yield
    finally:
        _bound.reset(token)


def bound_ids() -> Mapping[str, str]:
    """The ids in force here, to be handed to work in another thread or process."""
    return _bound.get()


def new_correlation_id() -> str:
    return uuid4().hex[:16]


def configure_logs(settings: Settings, stream: TextIO | None = None) -> logging.Handler:
    """Send all log records of this process to the stream (standard error); mask what errors say."""
    hide_secrets(settings)
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    handler.addFilter(_is_wanted)
    handler.setFormatter(_Formatter(settings, as_json=_as_json(settings.log, stream)))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old.formatter, _Formatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(_OTHERS_LEVEL)
    levels = (
        _QUIET
        | {"calve": logging.getLevelNamesMapping()[settings.log.level.upper()]}
        | component_levels(settings.log.levels)
    )
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    return handler


def _is_wanted(record: logging.LogRecord) -> bool:
    """Hold what Py4J gives to the root logger, instead of its own, to the level of its own."""
    is_bridge = record.name == "root" and record.module == "java_gateway"
    return not is_bridge or logging.getLogger("py4j").isEnabledFor(record.levelno)


def _as_json(settings: LogSettings, stream: TextIO) -> bool:
    return settings.format == "json" or (settings.format == "auto" and not stream.isatty())


class _Formatter(logging.Formatter):
    """Renders with structlog, which is loaded when the first record comes, if ever."""

    def __init__(self, settings: Settings, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._hidden = hidden_texts(settings)
        self._renderer: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        if self._renderer is None:
            self._renderer = self._make_renderer()
        return mask_texts(self._renderer.format(record), self._hidden)

    def _make_renderer(self) -> logging.Formatter:
        import structlog

        chain: list[Processor] = [
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_bound_ids,
            _mask_secrets,
        ]
        if self._as_json:
            chain.append(structlog.processors.format_exc_info)
            last: Processor = structlog.processors.JSONRenderer(default=str)
        else:
            last = structlog.dev.ConsoleRenderer(colors=True)
        return structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=chain,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )


def _add_bound_ids(_logger: Any, _method: str, event: EventDict) -> EventDict:
    return {**_bound.get(), **event}


def _mask_secrets(_logger: Any, _method: str, event: EventDict) -> EventDict:
    return {key: MASK if looks_secret(key) else value for key, value in event.items()}
