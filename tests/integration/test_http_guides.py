"""The guides to HTTP and messages, followed word by word with the real curl."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.serving import Serving
from tests.pages import DOCS, NEVER_RUN, follow

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")


@pytest.mark.parametrize("page", ["producing-http.md", "messages.md"])
def test_a_guide_does_what_it_shows(page: str, reader: Path, service: Serving) -> None:
    replaced = {"http://127.0.0.1:8080": service.url}
    follow(DOCS / "guides" / page, reader, NEVER_RUN, replaced)
