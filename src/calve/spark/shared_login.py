"""The login to AWS that a JVM has, for all lakes that share its Spark.

Lakes have to agree on it. One that does not is refused: it never gets another one's login, nor
gives them its own. The last lake to go leaves the JVM as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from calve.errors import InvalidRequest
from calve.spark.login import JvmNeed


@dataclass(slots=True)
class _Held:
    need: JvmNeed
    before: dict[str, str | None]
    users: int = 0


class SharedLogin:
    """The login of one JVM, and how many lakes use it."""

    def __init__(self, system: Any) -> None:
        self._system = system
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}

    def claim(self, needs: Sequence[JvmNeed]) -> None:
        with self._lock:
            for need in needs:
                self._require(need)
            for need in needs:
                if need.subject not in self._held:
                    self._held[need.subject] = self._set_up(need)
                self._held[need.subject].users += 1

    def release(self, needs: Sequence[JvmNeed]) -> None:
        with self._lock:
            for need in needs:
                held = self._held[need.subject]
                held.users -= 1
                if held.users:
                    continue
                del self._held[need.subject]
                # A JVM that has ended has no login any more.
                with suppress(Py4JError, OSError):
                    self._set(held.before)

    def _require(self, need: JvmNeed) -> None:
        for variable in need.shadows:
            if self._system.getenv(variable):
                raise InvalidRequest(
                    f"Spark would assume the role as {variable} says, not with {need.words}",
                    hint=f"unset {variable} for this program, or leave out storage.profile",
                )
        held = self._held.get(need.subject)
        if held is not None and held.need != need:
            raise InvalidRequest(
                f"this program's Spark {need.subject} {held.need.words}, "
                f"and for this lake it would have to be {need.words}",
                hint="close the other lake first, or open this one in another process",
            )

    def _set_up(self, need: JvmNeed) -> _Held:
        before = {name: self._system.getProperty(name) for name in need.properties}
        self._set(need.properties)
        return _Held(need, before)

    def _set(self, properties: Mapping[str, str | None]) -> None:
        for name, value in properties.items():
            if value is None:
                self._system.clearProperty(name)
            else:
                self._system.setProperty(name, value)


_lock: Final = threading.Lock()
_logins: Final[WeakKeyDictionary[Any, SharedLogin]] = WeakKeyDictionary()


def shared_login(session: SparkSession) -> SharedLogin:
    """The login of the session's JVM: the same one for all its sessions."""
    jvm: Any = session._jvm  # noqa: SLF001
    with _lock:
        if jvm not in _logins:
            _logins[jvm] = SharedLogin(jvm.java.lang.System)
        return _logins[jvm]
