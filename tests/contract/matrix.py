"""The matrix of what each pair of catalog and store showed, printed at the end of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.contract.backends import PAIRS

_PASSED, _FAILED, _NOT_TESTABLE, _NO_SERVER = "yes", "NO", "not testable here", "no server"
_CELL = "cell of the matrix"
_results: dict[str, dict[str, str]] = defaultdict(dict)


def behaviour_of(test: str) -> str:
    return test.partition("[")[0].removeprefix("test_").replace("_", " ")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    callspec = getattr(item, "callspec", None)
    is_here = item.path.parent == Path(__file__).parent
    if callspec is None or not is_here or "kind" not in callspec.params:
        return
    if report.failed:
        shown = _FAILED
    elif report.skipped:
        shown = _NOT_TESTABLE if _NOT_TESTABLE in str(report.longrepr) else _NO_SERVER
    elif report.when == "call":
        shown = _PASSED
    else:
        return
    report.user_properties.append(
        (_CELL, [behaviour_of(item.name), callspec.params["kind"], shown])
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called in the process that prints the summary, wherever the test ran."""
    for name, value in report.user_properties:
        if name == _CELL:
            behaviour, pair, shown = cast("list[str]", value)
            _results[behaviour][pair] = shown


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--matrix", type=Path, help="write the matrix of catalogs and stores here")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _results:
        return
    terminalreporter.section("catalogs and stores")
    pairs = [pair for pair in PAIRS if any(pair in row for row in _results.values())]
    width = max(map(len, _results))
    for pair in pairs:
        terminalreporter.write_line(pair)
        for behaviour, row in _results.items():
            terminalreporter.write_line(f"    {behaviour:<{width}}  {row.get(pair, '-')}")
    if path := terminalreporter.config.getoption("--matrix"):
        path.write_text(_markdown(pairs))


def _markdown(pairs: list[str]) -> str:
    lines = [
        "# What each catalog and store does",
        "",
        "Written by `.venv/bin/pytest tests/contract --matrix docs/reference/catalogs.md` from a run of the",
        "contract tests, which are the same for every pair.",
        '"No server": there is nothing to refuse a login or to be out of reach.',
        "",
        "| | " + " | ".join(pairs) + " |",
        "|---" * (len(pairs) + 1) + "|",
    ]
    for behaviour, row in _results.items():
        lines.append(f"| {behaviour} | " + " | ".join(row.get(pair, "-") for pair in pairs) + " |")
    return "\n".join(lines) + "\n"
