"""The one fork server of a test process: its processes begin with all that they use loaded.

There is one for everybody, and it loads what was named last before its first process: so all that
anybody needs is named here.
"""

from __future__ import annotations

import multiprocessing
from typing import Final

FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("tests.faults.killed_change", "tests.faults.killed_replay"),
        *("tests.integration.appender", "tests.integration.writing"),
        *(
            "calve.changes",
            "calve.lake",
            "pyiceberg.catalog.sql",
            "pyiceberg.catalog.rest",
            "duckdb",
        ),
    ]
)
