"""Chooses the store of the registry by the setting `state.dsn`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote

from calve.clock import Clock, SystemClock
from calve.errors import InvalidSettings, NotFound
from calve.parts import load_part
from calve.paths import DataLayout
from calve.state.sqlite import SqliteState

if TYPE_CHECKING:
    from calve.settings import Settings
    from calve.state.store import State

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql", "postgres", "postgresql+psycopg")
_WAYS: Final = (
    "leave the setting out, or write sqlite:////directory/state.db, "
    "postgresql://user:password@host:5432/database or etcd://host:2379"
)


def open_state(settings: Settings, *, clock: Clock | None = None, create: bool = True) -> State:
    """The store that the settings name; without `create`, NotFound if it is not there yet.

    The clock is for the stores that have none of their own.
    """
    dsn = settings.state.dsn
    if dsn is None:
        path = DataLayout(settings.data).state
        return SqliteState(path, clock=clock or SystemClock(), create=create)
    text = dsn.reveal()
    scheme = text.partition(":")[0]
    if text.startswith(_SQLITE) and not text.endswith((":memory:", _SQLITE)):
        path = Path(unquote(text.removeprefix(_SQLITE).partition("?")[0]))
        return SqliteState(path, clock=clock or SystemClock(), create=create)
    if scheme in _POSTGRES:
        postgres = load_part("postgres", "calve.state.postgres")
        return cast("State", postgres.PostgresState(text, retry=settings.retry, create=create))
    if scheme == "etcd":
        # Only a state in etcd needs what speaks HTTP.
        from calve.state.etcd import EtcdState

        clock = clock or SystemClock()
        return EtcdState(text, retry=settings.retry, clock=clock, create=create)
    raise InvalidSettings(f"state.dsn: {dsn} names no store for the state", hint=_WAYS)


@contextmanager
def found_state(settings: Settings) -> Iterator[State | None]:
    """The store, for as long as the block; None if nobody ever made a topic here."""
    try:
        state = open_state(settings, create=False)
    except NotFound:
        yield None
        return
    with closing(state):
        yield state


def state_kind(settings: Settings) -> str:
    """What the state is kept in, in one word."""
    dsn = settings.state.dsn
    return dsn.reveal().partition(":")[0] if dsn else "sqlite"
