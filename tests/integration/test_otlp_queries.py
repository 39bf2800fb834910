"""The questions of the documentation, asked of what the demo's shop sends."""

from __future__ import annotations

import re
import runpy

from calve.lake import Lake
from tests.conftest import MakeSettings
from tests.pages import DOCS, ROOT
from tests.services import PORTS

PAGE = DOCS / "guides" / "telemetry-queries.md"
QUESTION = re.compile(r"```sql\n(?P<query>.*?);\n```\n\n```text\n(?P<answer>.*?)```", re.DOTALL)


def test_the_questions_of_the_page_are_answered_as_it_shows(make_settings: MakeSettings) -> None:
    text = PAGE.read_text("utf-8")
    questions = [(each["query"], each["answer"]) for each in QUESTION.finditer(text)]
    assert len(questions) == text.count("```sql") == 7
    settings = make_settings(**{f"ingest__{port}": 0 for port in PORTS})
    with Lake(settings) as lake, lake.serve(otlp=True) as serving:
        example = runpy.run_path(str(ROOT / "examples" / "telemetry.py"))
        assert example["send"](serving.addresses.otlp_grpc) == 240
        for query, answer in questions:
            assert str(lake.sql(query)).splitlines() == answer.splitlines(), query
