"""Chooses the store of the registry by the setting `state.dsn`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from calve.clock import Clock, SystemClock
from calve.errors import InvalidSettings
from calve.paths import DataLayout
from calve.state.sqlite import SqliteState

if TYPE_CHECKING:
    from calve.settings import Settings
    from calve.state.store import State

_SQLITE: Final = "sqlite:///"
_LATER: Final = ("postgresql", "etcd")


def open_state(settings: Settings, *, clock: Clock | None = None) -> State:
    """The store that the settings name; it is made if it is not there yet."""
    dsn = settings.state.dsn
    if dsn is None:
        return SqliteState(DataLayout(settings.data).state, clock=clock or SystemClock())
    text = dsn.reveal()
    if text.startswith(_SQLITE) and not text.endswith((":memory:", _SQLITE)):
        path = Path(unquote(text.removeprefix(_SQLITE).partition("?")[0]))
        return SqliteState(path, clock=clock or SystemClock())
    scheme = text.partition(":")[0]
    if scheme in _LATER:
        raise InvalidSettings(
            f"state.dsn: this version cannot keep its state in {scheme} yet",
            hint="leave the setting out, or write sqlite:////directory/state.db",
        )
    raise InvalidSettings(
        f"state.dsn: {dsn} names no store for the state",
        hint="leave the setting out, or write sqlite:////directory/state.db",
    )
