"""The documentation: generated pages are fresh, links lead somewhere, examples do what they show.

A page is followed from top to bottom in an empty directory. Blocks by their first word: `python`
is run, `console` has its `$ ` lines run by a shell and the lines below each compared, `output` is
what the python block before it printed, and any block with `file=NAME` is written to that file.
A block with `no-run`, `spark` (which needs a JVM) or `server` (which needs one) is only shown.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import logging
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from calve.settings.keys import KEYS

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
FOLLOWED: Final = [
    page
    for page in PAGES
    if page.name == "README.md" or page.parent.name in {"start", "guides", "operating"}
]
NOT_RUN: Final = frozenset({"no-run", "server", "spark"})
# What the pages show in place of the directory in which they are followed.
SHOWN_DIRECTORY: Final = "/srv/shop"
REFERENCE: Final[dict[str, Any]] = runpy.run_path(str(ROOT / "scripts" / "reference.py"))

FENCE: Final = re.compile(r"^```(?P<info>.*)\n(?P<body>(?:.*\n)*?)```$", re.MULTILINE)
LINK: Final = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING: Final = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
TEST: Final = re.compile(r"`(?P<file>tests/[\w/]+\.py)::(?P<name>\w+)`")
URL: Final = re.compile(r"\b(?:https?|ftp)://(?P<host>[^/\s:\"'`)>]*)")
EXAMPLE_HOST: Final = re.compile(r"(?:.+\.)?example\.(?:com|org)|localhost|127\.0\.0\.1")
VOLATILE: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(?:Z|\+00:00)?"), "<time>"),
    (re.compile(r"\b\d{15,}\b"), "<number>"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "<id>"),
    (re.compile(r"[ \t]+"), " "),
)


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


def blocks(page: Path) -> Iterator[Block]:
    for fence in FENCE.finditer(page.read_text("utf-8")):
        language, *words = fence["info"].split() or [""]
        yield Block(language, frozenset(words), fence["body"])


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


@pytest.mark.parametrize("name", REFERENCE["pages"]())
def test_a_generated_page_says_what_the_code_says(name: str) -> None:
    written = (DOCS / "reference" / name).read_text("utf-8")
    assert written == REFERENCE["pages"]()[name], "run scripts/reference.py"


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_is_documented(key: str) -> None:
    assert f"| `{key}` |" in (DOCS / "reference" / "settings.md").read_text("utf-8")


@pytest.mark.parametrize("command", REFERENCE["commands"]())
def test_every_command_is_documented(command: str) -> None:
    assert f"\n## {command}\n" in (DOCS / "reference" / "commands.md").read_text("utf-8")


@functools.cache
def attributes_read() -> dict[str, set[str]]:
    """What each module of the program reads of an object, as `settings.wal.path`."""
    sources = (ROOT / "src" / "calve").rglob("*.py")
    return {
        str(path): {
            ast.unparse(node)
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Attribute)
        }
        for path in sources
        if path.parent.name != "settings"
    }


@pytest.mark.parametrize("name", REFERENCE["RESERVED"])
def test_a_setting_called_reserved_is_read_by_nothing(name: str) -> None:
    read_as = name if "." in name else f"settings.{name}"
    for path, used in attributes_read().items():
        readers = [each for each in used if f".{read_as}." in f".{each}."]
        assert not readers, f"{path} reads it: take it out of RESERVED in scripts/reference.py"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_link_leads_somewhere(page: Path) -> None:
    for link in LINK.finditer(prose(page)):
        path, _, anchor = link["target"].partition("#")
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), link["target"]
        assert not anchor or anchor in anchors(target), link["target"]


def anchors(page: Path) -> set[str]:
    titles = (heading["title"].lower() for heading in HEADING.finditer(prose(page)))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_test_that_a_page_names_exists(page: Path) -> None:
    for named in TEST.finditer(page.read_text("utf-8")):
        source = (ROOT / named["file"]).read_text("utf-8")
        assert f"def {named['name']}(" in source, named["name"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_names_no_host_but_examples(page: Path) -> None:
    hosts = {url["host"] for url in URL.finditer(page.read_text("utf-8"))}
    assert not {host for host in hosts if not EXAMPLE_HOST.fullmatch(host)}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to be in, with nothing set for Calve."""
    for variable in [name for name in os.environ if name.startswith("CALVE_")]:
        monkeypatch.delenv(variable)
    programs = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextlib.contextmanager
def untouched_logging() -> Iterator[None]:
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


@pytest.mark.parametrize("page", FOLLOWED, ids=name_of)
def test_the_examples_of_a_page_do_what_they_show(page: Path, reader: Path) -> None:
    with untouched_logging():
        follow(page, reader)


def follow(page: Path, directory: Path, not_run: frozenset[str] = NOT_RUN) -> None:
    printed: str | None = None
    for block in blocks(page):
        if block.words & not_run:
            printed = None
        elif block.file:
            path = directory / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            printed = run_python(block.body, name_of(page))
        elif block.language == "console":
            run_console(block.body, directory)
        elif block.language == "output" and printed is not None:
            assert normal(printed, directory) == normal(block.body, directory)


def run_python(code: str, name: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
    return out.getvalue()


def run_console(text: str, directory: Path) -> None:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.replace("\\\n", "").partition("\n")
        run = subprocess.run(
            ["bash", "-c", f"exec 2>&1; {command}"],
            cwd=directory, stdout=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert run.returncode == 0, f"{command}\n{run.stdout}"
        if shown.strip():
            assert normal(run.stdout, directory) == normal(shown, directory), command


def normal(text: str, directory: Path) -> list[str]:
    """The text as lines, without what differs from one run to the next."""
    text = text.replace(str(directory), SHOWN_DIRECTORY)
    for pattern, stand_in in VOLATILE:
        text = pattern.sub(stand_in, text)
    return [line.strip() for line in text.strip().splitlines()]
