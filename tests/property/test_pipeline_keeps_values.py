"""Whatever producers send of any schema is in the table's files, value for value."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calve.errors import InvalidRequest
from calve.ingest import Intake
from calve.lake import Lake
from calve.pipeline.task import work_on
from calve.settings import load_settings
from calve.sources.entries import Sources
from calve.topics import TopicSpec
from calve.topics.fit import schema_of_first
from tests.fakes.pieces import Feed, succeeded
from tests.fakes.pipelines import site
from tests.property.test_topic_fit import SCHEMAS, TOPIC, known_values, rows_of, sent


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batches=st.lists(
        st.tuples(SCHEMAS, st.lists(st.integers(0, 1000), min_size=1, max_size=5)),
        min_size=1,
        max_size=4,
    ),
    cut=st.integers(0, 20),
)
def test_rows_of_random_schemas_reach_the_table(
    batches: list[tuple[pa.Schema, list[int]]], cut: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        flags = {"data": str(Path(directory) / "lake"), "wal.sync_mode": "none"}
        with Lake(load_settings(flags=flags, environ={}).settings) as lake:
            accepted = produced(lake.intake, [rows_of(schema, seeds) for schema, seeds in batches])
            if not accepted:
                return
            feed = Feed(lake, lake.intake.topics.topic(TOPIC))
            cut = min(cut, feed.end)
            bounds = [each for each in ((0, cut), (cut, feed.end)) if each[0] < each[1]]
            pieces = [feed.piece(*each, number=n) for n, each in enumerate(bounds)]
            with Sources() as sources:
                done = succeeded(work_on(piece, sources) for piece in pieces)
            assert [each.dead_letter_rows for each in done] == [0] * len(done)
            feed.commit(pieces, done)
            target = feed.topic.arrow_schema
            expected = [row for batch in accepted for row in known_values(batch, target)]
            found = [{name: row[name] for name in target.names} for row in feed.rows()]
            assert found == expected


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batches=st.lists(
        st.tuples(SCHEMAS, st.lists(st.integers(0, 1000), min_size=1, max_size=4), st.booleans()),
        min_size=2,
        max_size=5,
    )
)
def test_rows_whose_schema_changes_between_commits_reach_the_table(
    batches: list[tuple[pa.Schema, list[int], bool]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        flags = {
            "data": str(Path(directory) / "lake"),
            "wal.sync_mode": "none",
            "pipeline.flush_interval_ms": 1,
        }
        with site(load_settings(flags=flags, environ={}).settings) as made:
            accepted = []
            with closing(made.pipeline()) as pipeline:
                for schema, seeds, is_committed in batches:
                    accepted += produced(made.intake, [rows_of(schema, seeds)])
                    if is_committed:
                        assert pipeline.drain(10)
                assert pipeline.drain(10)
            if not accepted:
                return
            target = made.intake.topics.topic(TOPIC).arrow_schema
            expected = [row for batch in accepted for row in known_values(batch, target)]
            found = [{name: row[name] for name in target.names} for row in made.rows(str(TOPIC))]
            assert found == expected


def produced(intake: Intake, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Those that the topic takes; it is made from the first."""
    accepted = []
    for batch in batches:
        if intake.topics.find(TOPIC) is None:
            try:
                spec = TopicSpec(schema=schema_of_first(batch.schema))
                intake.create_topic(TOPIC, spec)
            except InvalidRequest:
                continue
        if sent(intake, batch):
            accepted.append(batch)
    intake.log.flush()
    return accepted
