"""The documentation: generated pages are fresh, links lead somewhere, examples do what they show."""

from __future__ import annotations

import ast
import functools
import re
import runpy
from pathlib import Path
from typing import Any, Final

import pytest

from calve.settings.keys import KEYS
from tests.pages import DOCS, ROOT, follow, name_of, prose

PAGES: Final = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
FOLLOWED: Final = [
    page
    for page in PAGES
    if page.name == "README.md" or page.parent.name in {"start", "guides", "operating"}
]
REFERENCE: Final[dict[str, Any]] = runpy.run_path(str(ROOT / "scripts" / "reference.py"))

LINK: Final = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING: Final = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
TEST: Final = re.compile(r"`(?P<path>(?:tests|benchmarks)/[\w./]+)(?:::(?P<name>\w+))?`")
URL: Final = re.compile(r"\b(?:https?|ftp)://(?P<host>[^/\s:\"'`)>]*)")
EXAMPLE_HOST: Final = re.compile(r"(?:.+\.)?example\.(?:com|org)|localhost|127\.0\.0\.1")


@pytest.mark.parametrize("name", REFERENCE["pages"]())
def test_a_generated_page_says_what_the_code_says(name: str) -> None:
    written = (DOCS / "reference" / name).read_text("utf-8")
    assert written == REFERENCE["pages"]()[name], "run scripts/reference.py"


def test_the_table_of_who_may_do_what_says_what_the_code_says() -> None:
    assert REFERENCE["SECURITY"].read_text("utf-8") == REFERENCE["security_page"]()


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
        assert (ROOT / named["path"]).exists(), named["path"]
        if named["name"]:
            source = (ROOT / named["path"]).read_text("utf-8")
            assert f"def {named['name']}(" in source, named["name"]


@pytest.mark.parametrize("page", sorted(DOCS.glob("guarantees*.md")), ids=name_of)
def test_every_promise_names_what_shows_it(page: Path) -> None:
    """A test; of a bound on time, a benchmark. "The same" is what the row before names."""
    promises = page.read_text("utf-8").split("## ", 1)[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    assert rows
    for row in rows:
        shown = row.rstrip(" |").rpartition(" | ")[2]
        assert re.search(r"`(tests|benchmarks)/|^the same", shown), row


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_names_no_host_but_examples(page: Path) -> None:
    hosts = {url["host"] for url in URL.finditer(page.read_text("utf-8"))}
    assert not {host for host in hosts if not EXAMPLE_HOST.fullmatch(host)}


@pytest.mark.parametrize("page", FOLLOWED, ids=name_of)
def test_the_examples_of_a_page_do_what_they_show(page: Path, reader: Path) -> None:
    follow(page, reader)
