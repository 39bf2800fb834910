"""One fixture for every pair of catalog and store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from calve.lake import Lake
from tests.contract.backends import PAIRS, Backend, Servers, backend
from tests.contract.matrix import behaviour_of


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
