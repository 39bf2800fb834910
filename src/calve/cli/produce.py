"""`calve produce`: rows of a file, or of standard input, into a topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from calve.cli.options import Call, row_options
from calve.cli.output import print_json, print_table, say
from calve.cli.place import client_of, server_option, token_for
from calve.cli.progress import counted_rows
from calve.errors import InvalidRequest, NotFound
from calve.ingest.formats import KnownTypes, decode, file_batches, file_bodies
from calve.model import TableName

if TYPE_CHECKING:
    from calve.client import Client, Delivery
    from calve.client.posting import Poster
    from calve.ingest.formats import Body
    from calve.lake import Lake
    from calve.settings import Settings

_WAITING_MAX: Final = 256
_REASONS_MAX: Final = 5


@dataclass(slots=True)
class Sent:
    """What is durable so far."""

    rows: int = 0
    rejected: int = 0
    first: int | None = None
    end: int | None = None
    reasons: list[str] = field(default_factory=list)

    def add(self, rows: int, first: int | None, end: int | None) -> None:
        self.rows += rows
        self.first = first if self.first is None else self.first
        self.end = self.end if end is None else end

    def set_aside(self, count: int, reasons: Sequence[str]) -> None:
        self.rejected += count
        self.reasons += reasons[: _REASONS_MAX - len(self.reasons)]


class Way(Protocol):
    """A way for the rows of a file into a topic."""

    sent: Sent

    def send(self, source: str, input_format: str | None) -> Iterator[int]:
        """Send it all; at each piece, the rows that are durable so far."""
        ...

    def columns(self) -> list[dict[str, Any]] | None:
        """The topic's, now."""
        ...


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.option(
    "--format",
    "input_format",
    metavar="FORMAT",
    help="csv, tsv, json, ndjson, parquet or arrow; told by the file itself if left out.",
)
@click.option(
    "--on-error",
    type=click.Choice(["refuse", "dead-letter"]),
    default="refuse",
    help="What becomes of bad rows: refuse ends with the first one, dead-letter sets them aside.",
)
@server_option("produce")
@row_options
def produce(
    call: Call,
    topic: str,
    rows: str,
    *,
    input_format: str | None,
    on_error: str,
    server: str | None,
) -> None:
    """Send rows to a topic from a file, or from standard input.

    The topic is made from the first rows if it is not there. What is reported is durable. A long
    file is sent in pieces: if it ends with an error, the rows before it stay, and it says how many.

    \b
    Example: calve produce events --data events.ndjson
    Example: tail -F app.log | calve produce logs --data - --format ndjson
    """
    if Path(rows).is_dir():
        raise click.UsageError(
            f"--data names the rows here, and {rows} is a directory; the lake's directory is --lake"
        )
    TableName.parse(topic)  # or say at once what is wrong with it
    with (
        _way(call.settings(), topic, server, on_error) as way,
        counted_rows() as show,
    ):
        try:
            for count in way.send(rows, input_format):
                if show is not None:
                    show(count)
            columns = way.columns()
        except BaseException:
            _say_what_stays(way.sent)
            raise
        _print(call, topic, way.sent, columns)
        if not call.as_json:
            say(f"try: {_next_command(call, topic, server)}")


@contextmanager
def _way(settings: Settings, topic: str, server: str | None, on_error: str) -> Iterator[Way]:
    sets_aside = on_error == "dead-letter"
    url = server or _running(settings, is_http=sets_aside)
    if url is None:
        from calve.lake import Lake

        say(f"in the lake at {settings.data}; no service is running")
        with Lake(settings) as lake:
            yield _IntoLake(lake, topic, sets_aside=sets_aside)
    elif url.startswith("http"):
        from calve.client.posting import Poster
        from calve.client.tls import client_identity
        from calve.protocol.trust import trusted_with

        say(f"through the service at {url}")
        with Poster(
            url,
            topic,
            sets_aside=sets_aside,
            token=token_for(settings, url),
            tls_root_certs=trusted_with(settings.ingest.trusted),
            identity=client_identity(settings),
        ) as poster:
            yield _OverHttp(poster)
    else:
        if sets_aside:
            raise InvalidRequest(
                "--on-error dead-letter goes over HTTP",
                hint="name the service's HTTP address, such as --server http://127.0.0.1:8080",
            )
        say(f"through the service at {url}")
        with client_of(settings, url) as client:
            yield _OverFlight(client, topic)


def _running(settings: Settings, *, is_http: bool) -> str | None:
    from calve.service.announcement import running_service

    running = running_service(settings)
    if running is None:
        return None
    addresses = running.addresses.from_here()
    return addresses.http if is_http else addresses.flight


class _IntoLake:
    def __init__(self, lake: Lake, topic: str, *, sets_aside: bool) -> None:
        self.sent = Sent()
        self._lake = lake
        self._topic = topic
        self._name = TableName.parse(topic)
        self._sets_aside = sets_aside

    def send(self, source: str, input_format: str | None) -> Iterator[int]:
        if self._sets_aside:
            for body in file_bodies(source, input_format):
                self._take(body)
                yield self.sent.rows
        else:
            for batch in file_batches(source, input_format, self._types()):
                done = self._lake.produce(self._topic, batch)
                self.sent.add(batch.num_rows, done.first, done.end)
                yield self.sent.rows

    def _take(self, body: Body) -> None:
        intake = self._lake.intake
        bytes_max = intake.settings.ingest.request_bytes_max
        decoded = decode(*body, self._types(), sets_aside=True, bytes_max=bytes_max)
        done = intake.submit(self._name, decoded.parts).wait()
        self.sent.add(decoded.row_count, done.first, done.end)
        reasons = [each.reason for each in decoded.rejected]
        self.sent.set_aside(len(reasons), reasons)

    def _types(self) -> KnownTypes:
        topic = self._lake.intake.topics.find(self._name)
        return KnownTypes.of(topic) if topic else KnownTypes()

    def columns(self) -> list[dict[str, Any]] | None:
        from calve.topics.document import document_of

        topic = document_of(self._lake.intake.topics.topic(self._name))
        columns: list[dict[str, Any]] = topic["columns"]
        return columns


class _OverFlight:
    """Rows are read here, with the topic's types, and sent in the background."""

    def __init__(self, client: Client, topic: str) -> None:
        self.sent = Sent()
        self._client = client
        self._topic = topic
        self._waiting: deque[tuple[int, Delivery]] = deque()

    def send(self, source: str, input_format: str | None) -> Iterator[int]:
        for batch in file_batches(source, input_format, self._types()):
            self._waiting.append((batch.num_rows, self._client.produce(self._topic, batch)))
            self._settle(_WAITING_MAX)
            yield self.sent.rows
        self._settle(0)

    def _settle(self, waiting_max: int) -> None:
        """Take note of what was acknowledged, waiting for it when much is under way."""
        while self._waiting and (self._waiting[0][1].is_done or len(self._waiting) > waiting_max):
            rows, delivery = self._waiting.popleft()
            done = delivery.result()
            self.sent.add(rows, done.first, done.end)

    def _types(self) -> KnownTypes:
        from calve.tables.schema_file import parse_schema

        columns = self.columns()
        if columns is None:
            return KnownTypes()
        return KnownTypes.of_columns(parse_schema({"columns": columns}).schema)

    def columns(self) -> list[dict[str, Any]] | None:
        try:
            columns: list[dict[str, Any]] = self._client.describe_topic(self._topic)["columns"]
        except NotFound:
            return None
        return columns


class _OverHttp:
    """Rows are read by the service."""

    def __init__(self, poster: Poster) -> None:
        self.sent = Sent()
        self._poster = poster

    def send(self, source: str, input_format: str | None) -> Iterator[int]:
        for body in file_bodies(source, input_format):
            done = self._poster.post(*body)
            self.sent.set_aside(done.rejected, done.reasons)
            self.sent.add(done.rows, done.first, done.end)
            yield self.sent.rows

    def columns(self) -> list[dict[str, Any]] | None:
        return self._poster.columns()


def _print(call: Call, topic: str, sent: Sent, columns: list[dict[str, Any]] | None) -> None:
    if call.as_json:
        offsets = {"first": sent.first, "end": sent.end}
        counts = {"rows": sent.rows, "rejected": sent.rejected, "reasons": sent.reasons}
        print_json({"topic": topic, **counts, **offsets, "columns": columns})
        return
    if columns is not None:
        print_table(("COLUMN", "TYPE"), [(each["name"], each["type"]) for each in columns])
    say(f"{topic}: {_rows(sent.rows)} durable, offsets {sent.first} up to {sent.end}")
    if sent.rejected:
        say(f"{_rows(sent.rejected)} bad and kept apart:")
        for reason in sent.reasons:
            say(f"  {reason}")


def _next_command(call: Call, topic: str, server: str | None) -> str:
    where = f" --server {server}" if server is not None else ""
    if server is None and "data" in call.flags:
        where = f" --data {call.flags['data']}"
    # Quoted, for a topic may be called like a word of SQL.
    name = topic.replace(".", '"."')
    return f"""calve sql 'select * from "{name}" limit 10'{where}"""  # noqa: S608


def _say_what_stays(sent: Sent) -> None:
    if sent.rows:
        say(f"{_rows(sent.rows)} durable before that, up to offset {sent.end}")


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"
