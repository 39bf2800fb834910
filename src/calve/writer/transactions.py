"""The open transactions of a writer, and what became of those that it has finished."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import Final

from calve.errors import CalveError, InvalidRequest
from calve.writer.transaction import Transaction

_LOG: Final = logging.getLogger(__name__)
_REMEMBERED_MAX: Final = 10_000


class Transactions:
    """Safe to share between threads. A thread's own are those that it has begun."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Transaction] = {}
        self._fates: OrderedDict[str, str] = OrderedDict()
        self._local = threading.local()

    def add(self, transaction: Transaction, *, for_thread: bool) -> None:
        with self._lock:
            self._open[transaction.id] = transaction
        if for_thread:
            self._begun_here().append(transaction.id)

    def find(self, transaction_id: str) -> Transaction:
        """The open transaction of this id; an error that says why there is none."""
        with self._lock:
            if found := self._open.get(transaction_id):
                return found
            fate = self._fates.get(transaction_id)
        raise InvalidRequest(
            f"{transaction_id} {fate}"
            if fate
            else f"there is no transaction {transaction_id!r} of this writer",
            hint="begin another one"
            if fate
            else "use the id that begin_transaction of the same writer gave",
        )

    def own(self) -> Transaction | None:
        """The one open transaction that this thread has begun, if there is one."""
        begun = self._begun_here()
        with self._lock:
            begun[:] = [each for each in begun if each in self._open]
            if len(begun) > 1:
                raise InvalidRequest(
                    f"{len(begun)} transactions are open here", hint="name the one that is meant"
                )
            return self._open[begun[0]] if begun else None

    def settle(self, transaction: Transaction) -> None:
        """Remember what became of a transaction, if it is finished."""
        if not transaction.fate:
            return
        with self._lock:
            self._open.pop(transaction.id, None)
            self._fates[transaction.id] = transaction.fate
            while len(self._fates) > _REMEMBERED_MAX:
                self._fates.popitem(last=False)

    def roll_back(self, transaction: Transaction, reason: str) -> None:
        try:
            transaction.roll_back(reason)
        finally:
            self.settle(transaction)

    def give_up(self, transaction: Transaction, reason: str) -> None:
        """Roll back while an error is on its way, which must not be hidden by another."""
        try:
            self.roll_back(transaction, reason)
        except CalveError as error:
            _LOG.warning(
                "a transaction was not rolled back",
                extra={"transaction": transaction.id, "reason": error.message},
            )

    def end(self) -> None:
        """Roll back all that are open; what cannot be is left to orphan removal."""
        with self._lock:
            left = list(self._open.values())
        for transaction in left:
            self.give_up(transaction, "closed")

    def _begun_here(self) -> list[str]:
        if not hasattr(self._local, "begun"):
            self._local.begun = []
        begun: list[str] = self._local.begun
        return begun
