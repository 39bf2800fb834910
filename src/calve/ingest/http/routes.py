"""The route table: every path and method, from which both the router and OpenAPI are made."""

from __future__ import annotations

from typing import Final

from calve.ingest.dead_letters.views import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    OFFSET_MAX,
    PARTITION_MAX,
    Discarded,
    LetterList,
    LetterView,
    Replayed,
    Wish,
)
from calve.ingest.formats import ENCODINGS
from calve.ingest.formats.arrow_rows import ARROW
from calve.ingest.formats.csv_rows import CSV
from calve.ingest.formats.json_rows import JSON, NDJSON
from calve.ingest.http import (
    dead_letters,
    health,
    messages,
    pipeline,
    producing,
    reading,
    topics,
)
from calve.ingest.http.document import show_docs, show_openapi
from calve.ingest.http.headers import PRODUCER, ROWS_BEFORE, SEQUENCE
from calve.ingest.http.operation import Answer, Content, Operation, Parameter
from calve.ingest.http.parameters import CHANGING, TOPIC, asked, header, json_of, ordered, query
from calve.ingest.http.query_routes import QUERIES
from calve.ingest.http.subscription_routes import SUBSCRIPTIONS
from calve.ingest.http.tokens import TOKENS
from calve.ingest.http.verify import VERIFY
from calve.ingest.http.views import (
    Appended,
    Health,
    NewMessage,
    NewTopic,
    Offsets,
    PauseOrder,
    RowsPage,
    RowView,
    SkipOrder,
    Status,
    TopicDetails,
    TopicList,
    TopicPatch,
    TopicView,
)
from calve.topics.control import Skip
from calve.topics.lag import PipelineStatus

_PRODUCER: Final = Parameter(
    name=PRODUCER,
    place="header",
    meaning="who sends; with the sequence, the same request again appends nothing",
    schema={"type": "string", "minLength": 1, "maxLength": 255},
)
_SEQUENCE: Final = Parameter(
    name=SEQUENCE,
    place="header",
    meaning="the number of this request among the producer's, from 0 and counting up",
    schema={"type": "integer", "format": "int64", "minimum": 0},
)
_ROWS_BEFORE: Final = Parameter(
    name=ROWS_BEFORE,
    place="header",
    meaning="how many rows earlier requests had: messages and reasons count on from there",
    schema={"type": "integer", "format": "int64", "minimum": 0, "default": 0},
)
_ENCODING: Final = Parameter(
    name="Content-Encoding",
    place="header",
    meaning="how the body is compressed",
    schema={"type": "string", "enum": [*ENCODINGS, "identity"]},
)
_SENDING: Final = (400, 408, 409, 413, 415, 422, 429)


_ROWS: Final = (
    Operation(
        method="POST",
        path="/v1/topics/{topic}/rows",
        scope="produce",
        handler=producing.produce_rows,
        summary="Append rows to a topic",
        tells="All rows or none, at offsets without a gap. The answer comes when they are durable. "
        "A topic that is not there is made from its first rows, if `ingest.auto_create` allows it.",
        parameters=(
            TOPIC,
            query(
                "on_error",
                "`dead_letter` sets bad rows aside, as they came, and appends the others",
                type="string",
                enum=list(producing.ON_ERROR),
            ),
            _PRODUCER,
            _SEQUENCE,
            _ROWS_BEFORE,
            _ENCODING,
        ),
        body=(
            Content(NDJSON, {"type": "string"}, '{"id": 1, "name": "Ada"}\n'),
            Content(JSON, {"type": "array", "items": {"type": "object"}}),
            Content(CSV, {"type": "string"}, "id,name\n1,Ada\n"),
            Content(ARROW, {"type": "string", "format": "binary"}),
        ),
        answers=(Answer(200, "the rows are durable", json_of(Appended)),),
        problems=(*_SENDING, 404, 504),
    ),
    Operation(
        method="GET",
        path="/v1/topics/{topic}/rows",
        scope="subscribe",
        handler=reading.read_rows,
        summary="Read rows from the log",
        tells="Only what is durable and still in the log; older rows are in the table. Offsets of "
        "rejected rows are passed over.",
        parameters=(
            TOPIC,
            query(
                "from",
                "the first offset; without it, the first that the log holds",
                type="integer",
                format="int64",
                minimum=0,
            ),
            query(
                "limit",
                "rows at most; a page of large rows has fewer",
                type="integer",
                minimum=1,
                maximum=reading.LIMIT_MAX,
                default=reading.LIMIT_DEFAULT,
            ),
        ),
        answers=(
            Answer(
                200,
                "a page of rows; the headers Calve-Next and Calve-End say where to go on, and "
                "where the log ends",
                (
                    Content(JSON, RowsPage),
                    Content(NDJSON, RowView),
                    Content(ARROW, {"type": "string", "format": "binary"}),
                ),
            ),
        ),
        problems=(400, 404, 406, 409),
    ),
    Operation(
        method="POST",
        path="/v1/topics/{topic}/messages",
        scope="produce",
        handler=messages.produce_messages,
        summary="Append messages to a topic of messages",
        tells="A body of any content type is the payload of one message, and its type is kept. "
        f"As `{messages.SEVERAL}`, it is an array of messages, all of which go in or none.",
        parameters=(
            TOPIC,
            header(messages.KEY, "the message's key, in UTF-8"),
            header(messages.ATTRIBUTES, "its attributes, as a JSON object of texts"),
            header(messages.SCHEMA, "the name of what the payload is written in, in UTF-8"),
            header(messages.PUBLISH_TIME, "when it was published", format="date-time"),
            _PRODUCER,
            _SEQUENCE,
            _ENCODING,
        ),
        body=(
            Content("*/*", {"type": "string", "format": "binary"}),
            Content(messages.SEVERAL, list[NewMessage]),
        ),
        answers=(Answer(200, "the messages are durable", json_of(Appended)),),
        problems=(*_SENDING, 404, 504),
    ),
)

_TOPICS: Final = (
    asked(
        "GET /v1/topics",
        topics.list_topics,
        "List all topics",
        scope="any",
        gives=("the topics", TopicList),
        parameters=(query("tenant", "those of one tenant only", type="string"),),
        problems=(400,),
    ),
    Operation(
        method="POST",
        path="/v1/topics",
        scope="admin",
        handler=topics.create_topic,
        summary="Create a topic",
        tells="The same request again finds the topic that it made.",
        body=json_of(NewTopic),
        answers=(
            Answer(201, "the topic was made", json_of(TopicView)),
            Answer(200, "it was there already, and is the same", json_of(TopicView)),
        ),
        problems=CHANGING,
    ),
    asked(
        "GET /v1/topics/{topic}",
        topics.describe_topic,
        "Describe a topic",
        scope="any",
        gives=("the topic, its offsets and counts", TopicDetails),
        problems=(400, 404, 409),
    ),
    ordered(
        "PATCH /v1/topics/{topic}",
        topics.alter_topic,
        "Alter a topic",
        scope="admin",
        takes=TopicPatch,
        gives=("the topic as it is now", TopicView),
    ),
    asked(
        "DELETE /v1/topics/{topic}",
        topics.delete_topic,
        "Delete a topic",
        scope="admin",
        gives=("the topic as it was", TopicView),
        tells="Its rows in the log go with it; its table, if there is one, stays.",
        problems=(400, 404, 409),
    ),
    asked(
        "POST /v1/topics/{topic}/flush",
        topics.flush_topic,
        "Wait until all acknowledged rows are in the table",
        scope="produce",
        gives=("they are", Offsets),
        parameters=(
            query(
                "timeout_ms",
                "how long to wait",
                type="integer",
                minimum=0,
                maximum=topics.FLUSH_MS_MAX,
                default=topics.FLUSH_MS_DEFAULT,
            ),
        ),
        problems=(400, 404, 409),
    ),
)

_PARTITION: Final = query(
    "partition", "of one partition only", type="integer", minimum=0, maximum=PARTITION_MAX
)
_DEAD_LETTERS: Final = (
    asked(
        "GET /v1/topics/{topic}/dead-letters",
        dead_letters.list_dead_letters,
        "List the rows that a topic could not take",
        scope="admin",
        gives=("the dead letters", LetterList),
        tells="How many there are, by reason, then the first of them by offset. Everything that "
        "is given must hold.",
        parameters=(
            query("reason", "those with this text in their reason", type="string", minLength=1),
            query("offsets", "such as 5,10-20,300-; the end is not in a range", type="string"),
            _PARTITION,
            query("since", "taken in at this time or later", type="string", format="date-time"),
            query("until", "taken in before this time", type="string", format="date-time"),
            query(
                "limit",
                "how many to list",
                type="integer",
                minimum=1,
                maximum=LIMIT_MAX,
                default=LIMIT_DEFAULT,
            ),
        ),
        problems=(400, 404, 409),
    ),
    ordered(
        "POST /v1/topics/{topic}/dead-letters/replay",
        dead_letters.replay_dead_letters,
        "Send dead letters to their topic again",
        scope="admin",
        takes=Wish,
        gives=("what became of them", Replayed),
        tells="Each lands once, also if the request is sent again. As many as one commit removes: "
        "unless `is_done`, send the same wish again with the `ends` of the answer. What still does "
        "not fit becomes a dead letter again, at a new offset.",
        problems=(*CHANGING, 504),
    ),
    ordered(
        "POST /v1/topics/{topic}/dead-letters/discard",
        dead_letters.discard_dead_letters,
        "Discard dead letters",
        scope="admin",
        takes=Wish,
        gives=("how many are gone", Discarded),
        tells="It is recorded that they were removed on purpose. Unless `is_done`, send the same "
        "wish again with the `ends` of the answer.",
        problems=(*CHANGING, 504),
    ),
    Operation(
        method="GET",
        path="/v1/topics/{topic}/dead-letters/{offset}",
        scope="admin",
        handler=dead_letters.show_dead_letter,
        summary="Show one dead letter",
        tells="As `application/octet-stream`, what was sent, byte for byte.",
        parameters=(
            TOPIC,
            Parameter(
                name="offset",
                place="path",
                meaning="its offset",
                schema={
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "maximum": OFFSET_MAX - 1,
                },
                is_required=True,
            ),
            _PARTITION,
        ),
        answers=(
            Answer(
                200,
                "the row, and why it is here",
                (
                    Content(JSON, LetterView),
                    Content(dead_letters.BYTES, {"type": "string", "format": "binary"}),
                ),
            ),
        ),
        problems=(400, 404, 406, 409),
    ),
)

_ORDERS: Final = (400, 404, 408, 413, 422, 429)
_PIPELINE: Final = (
    asked(
        "GET /v1/pipeline",
        pipeline.show_pipeline,
        "How far tables are behind the log",
        scope="admin",
        gives=("the pipeline", PipelineStatus),
        tells="Of each topic's partitions, the worst first: what waits, the last commit, the last "
        "error and when the next try is.",
        parameters=(query("topic", "this one only", type="string"),),
        problems=(400, 404),
    ),
    ordered(
        "POST /v1/pipeline/pause",
        pipeline.pause_pipeline,
        "Leave a topic alone, or all of them",
        scope="admin",
        takes=PauseOrder,
        gives=("it is left alone from the next cycle on", PipelineStatus),
        tells="Rows go on being taken in, and wait in the log.",
        problems=_ORDERS,
    ),
    ordered(
        "POST /v1/pipeline/resume",
        pipeline.resume_pipeline,
        "Go on with a topic, or with all of them",
        scope="admin",
        takes=PauseOrder,
        gives=("it goes on with the next cycle", PipelineStatus),
        tells="Without a topic, also with those that were paused alone.",
        problems=_ORDERS,
    ),
    ordered(
        "POST /v1/pipeline/skip",
        pipeline.skip_rows,
        "Send rows that do not get into their table to the dead letters",
        scope="admin",
        takes=SkipOrder,
        gives=("the order is kept, and followed in the next cycle", Skip),
        tells="Those before the offset `to` that are in no table yet.",
        problems=_ORDERS,
    ),
)

_SERVICE: Final = (
    asked(
        "GET /v1/status",
        health.show_status,
        "How the service is",
        scope="admin",
        gives=("what it works on", Status),
    ),
    asked(
        "GET /health/live",
        health.show_live,
        "Whether the process answers",
        scope="open",
        gives=("it does", Health),
    ),
    asked(
        "GET /health/ready",
        health.show_ready,
        "Whether rows are taken in",
        scope="open",
        gives=("they are", Health),
    ),
    asked(
        "GET /openapi.json",
        show_openapi,
        "This document",
        scope="open",
        gives=("OpenAPI 3.1", {"type": "object"}),
    ),
    Operation(
        method="GET",
        path="/docs",
        scope="open",
        handler=show_docs,
        summary="This document for people",
        answers=(Answer(200, "a page", (Content("text/html", {"type": "string"}),)),),
    ),
)

OPERATIONS: Final = (
    *_ROWS,
    *_TOPICS,
    *VERIFY,
    *SUBSCRIPTIONS,
    *_DEAD_LETTERS,
    *QUERIES,
    *_PIPELINE,
    *TOKENS,
    *_SERVICE,
)
