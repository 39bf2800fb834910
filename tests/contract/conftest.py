"""One fixture for every pair of catalog and store, and one for every store of the state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from calve.lake import Lake
from calve.state import State
from tests.contract.backends import PAIRS, Backend, Servers, backend
from tests.contract.matrix import behaviour_of
from tests.contract.states import STORES, StateStore, state_store


@pytest.fixture(params=PAIRS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with backend(request.param, Servers(request.getfixturevalue), tmp_path) as made:
        behaviour = behaviour_of(request.node.name)
        if reason := made.not_testable.get(behaviour):
            pytest.skip(reason)
        yield made


@pytest.fixture
def contract_lake(kind: Backend) -> Iterator[Lake]:
    with Lake(kind.settings()) as lake:
        yield lake


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    with state_store(request.param, request.getfixturevalue, tmp_path) as made:
        yield made


@pytest.fixture
def state(store: StateStore) -> Iterator[State]:
    opened = store.open()
    yield opened
    opened.close()
