"""Follows a page of the documentation from top to bottom in an empty directory.

Blocks by their first word: `python` is run, `console` has its `$ ` lines run by a shell and the
lines below each compared, `output` is what the python block before it printed, and any block with
`file=NAME` is written to that file. A block with `no-run` is only shown; one with `spark` (which
needs a JVM) or `server` (which needs one) too, unless the caller has them. A python block with
`alone` gets a process of its own.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.commands import exit_code

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
NEVER_RUN: Final = frozenset({"no-run"})
NOT_RUN: Final = NEVER_RUN | {"server", "spark"}
# What the pages show in place of the directory in which they are followed.
SHOWN_DIRECTORY: Final = "/srv/shop"

_FENCE: Final = re.compile(r"^```(?P<info>.*)\n(?P<body>(?:.*\n)*?)```$", re.MULTILINE)
_VOLATILE: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(?:Z|\+00:00)?"), "<time>"),
    (re.compile(r"\b\d{15,}\b"), "<number>"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "<id>"),
    (re.compile(r"[ \t]+"), " "),
)


# One that a shell has nothing to do for but to split its words.
_PLAIN_COMMAND: Final = re.compile(r"""calve (?:[^'"|<>&;$*`~\\]|'[^']*'|"[^"$`\\]*")*""")


class Block(NamedTuple):
    language: str
    words: frozenset[str]
    body: str

    @property
    def file(self) -> str | None:
        named = [word.removeprefix("file=") for word in self.words if word.startswith("file=")]
        return named[0] if named else None


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text("utf-8"))


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to be in, with nothing set for Calve."""
    for variable in [name for name in os.environ if name.startswith("CALVE_")]:
        monkeypatch.delenv(variable)
    programs = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def follow(
    page: Path,
    directory: Path,
    not_run: frozenset[str] = NOT_RUN,
    replaced: Mapping[str, str] | None = None,
) -> None:
    """Follow the page, in which words that stand for the reader's own things are `replaced`."""
    text = page.read_text("utf-8")
    for shown, own in (replaced or {}).items():
        assert shown in text, shown
        text = text.replace(shown, own)
    printed: str | None = None
    for block in _blocks(text):
        if block.words & not_run:
            printed = None
        elif block.file:
            path = directory / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            printed = _run_python(block, name_of(page))
        elif block.language == "console":
            _run_console(block.body, directory, in_shell=page == ROOT / "README.md")
        elif block.language == "output" and printed is not None:
            assert _normal(printed, directory) == _normal(block.body, directory)


def _blocks(text: str) -> Iterator[Block]:
    for fence in _FENCE.finditer(text):
        language, *words = fence["info"].split() or [""]
        yield Block(language, frozenset(words), fence["body"])


def _run_python(block: Block, name: str) -> str:
    if "alone" in block.words:
        command = [sys.executable, "-c", block.body]
        run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert run.returncode == 0, run.stderr
        return run.stdout
    out = io.StringIO()
    with _untouched_logging(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        exec(compile(block.body, name, "exec"), {"__name__": "__main__"})
    return out.getvalue()


@contextlib.contextmanager
def _untouched_logging() -> Iterator[None]:
    """Logging as a new program finds it, put back afterwards; pytest's own handlers would speak."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name in ("calve", "pyiceberg", "py4j"):
            logging.getLogger(name).setLevel(logging.NOTSET)


def _run_console(text: str, directory: Path, *, in_shell: bool) -> None:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.replace("\\\n", "").partition("\n")
        is_plain = not in_shell and _PLAIN_COMMAND.fullmatch(command)
        run = _run_here if is_plain else _run_in_shell
        code, printed = run(command, directory)
        assert code == 0, f"{command}\n{printed}"
        if shown.strip():
            assert _normal(printed, directory) == _normal(shown, directory), command


def _run_in_shell(command: str, directory: Path) -> tuple[int, str]:
    run = subprocess.run(
        ["bash", "-c", f"exec 2>&1; {command}"],
        cwd=directory, stdout=subprocess.PIPE, text=True, timeout=120, check=False,
    )  # fmt: skip
    return run.returncode, run.stdout


def _run_here(command: str, _: Path) -> tuple[int, str]:
    """The same in this process, which is in the directory and costs no start of Python."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with (
        _untouched_logging(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        pytest.MonkeyPatch.context() as patch,
    ):
        code = exit_code(shlex.split(command), patch)
    out.seek(0)
    return code, out.read()


def _normal(text: str, directory: Path) -> list[str]:
    """The text as lines, without what differs from one run to the next."""
    text = text.replace(str(directory), SHOWN_DIRECTORY)
    for pattern, stand_in in _VOLATILE:
        text = pattern.sub(stand_in, text)
    return [line.strip() for line in text.strip().splitlines()]
