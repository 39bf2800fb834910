"""`calve produce`: rows of a file, or of standard input, into a topic."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import click

from calve.cli.options import Call, row_options
from calve.cli.output import print_json, print_table, say
from calve.cli.place import client_of, server_option, token_for
from calve.cli.progress import counted_rows
from calve.errors import CalveError, InvalidRequest, NotFound, UnknownOutcome
from calve.ingest.formats import KnownTypes, decode, file_batches, file_bodies
from calve.model import TableName
from calve.tables.inputs.parts import read_parts

if TYPE_CHECKING:
    from calve.client import Client, Delivery
    from calve.client.posting import Poster
    from calve.ingest.formats import Body
    from calve.lake import Lake
    from calve.settings import Settings

_WAITING_MAX: Final = 256
_REASONS_MAX: Final = 5
# No more than a client sends at once, so that all of a delivery is durable, or nothing of it.
_DELIVERY_ROWS_MAX: Final = 10_000
_DELIVERY_BYTES_MAX: Final = 1 << 20
_FINISH_SECONDS: Final = 30.0
_INTERRUPTED_SECONDS: Final = 2.0


class Lost(NamedTuple):
    """Rows of the file, by their numbers, that are not durable, or of which it is not known."""

    first: int
    last: int
    problem: str | None  # None if it is not known what became of them


@dataclass(slots=True)
class Sent:
    """What is durable so far, and what was sent and is not."""

    rows: int = 0
    rejected: int = 0
    first: int | None = None
    end: int | None = None
    reasons: list[str] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)

    @property
    def taken(self) -> int:
        """How many rows of the file were taken, good or bad."""
        return self.rows + self.rejected

    def add(self, rows: int, first: int | None, end: int | None) -> None:
        self.rows += rows
        self.first = first if self.first is None else self.first
        self.end = self.end if end is None else end

    def set_aside(self, count: int, reasons: Sequence[str]) -> None:
        self.rejected += count
        self.reasons += reasons[: _REASONS_MAX - len(self.reasons)]

    def lose(self, rows: Lost) -> None:
        before = self.lost[-1] if self.lost else None
        if before and (before.last + 1, before.problem) == (rows.first, rows.problem):
            self.lost[-1] = before._replace(last=rows.last)
        else:
            self.lost.append(rows)


class Way(Protocol):
    """A way for the rows of a file into a topic."""

    sent: Sent

    def send(self, source: str, input_format: str | None) -> Iterator[int]:
        """Send it all; at each piece, the rows that are durable so far."""
        ...

    def finish(self, timeout_seconds: float) -> None:
        """Wait for what is under way, when something has failed."""
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
    help="What becomes of bad rows: refuse ends with the first one, dead-letter sets them aside. "
    "A topic that sets them aside itself (--on-bad-row) does so with either.",
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
        except BaseException as error:
            is_interrupt = not isinstance(error, Exception)
            try:
                way.finish(_INTERRUPTED_SECONDS if is_interrupt else _FINISH_SECONDS)
            finally:
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
        with _over_http(settings, topic, url, sets_aside=sets_aside) as way:
            yield way
    else:
        if sets_aside:
            raise InvalidRequest(
                "--on-error dead-letter goes over HTTP",
                hint="name the service's HTTP address, such as --server http://127.0.0.1:8080",
            )
        with _over_flight(settings, topic, url, is_named=server is not None) as way:
            yield way


@contextmanager
def _over_http(settings: Settings, topic: str, url: str, *, sets_aside: bool) -> Iterator[Way]:
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


@contextmanager
def _over_flight(settings: Settings, topic: str, url: str, *, is_named: bool) -> Iterator[Way]:
    with client_of(settings, url) as client:
        way = _OverFlight(client, topic)
        topic_sets_aside = way.topic_sets_aside()
        # Text that cannot be read is set aside by who reads it, and it is the service that must.
        http = _running(settings, is_http=True) if topic_sets_aside and not is_named else None
        if http is not None:
            with _over_http(settings, topic, http, sets_aside=False) as other:
                yield other
            return
        say(f"through the service at {url}")
        if topic_sets_aside:
            say(
                f"{topic} sets bad rows aside, which goes over HTTP: text is read here, "
                "and ends with the first bad row"
            )
        yield way


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
        if self._sets_aside or self._types().sets_aside:
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
        before = self.sent.taken
        decoded = decode(*body, self._types(), sets_aside=True, bytes_max=bytes_max, before=before)
        done = intake.submit(self._name, decoded.parts).wait()
        self.sent.add(decoded.row_count, done.first, done.end)
        reasons = [each.reason for each in decoded.rejected]
        self.sent.set_aside(len(reasons), reasons)

    def finish(self, timeout_seconds: float) -> None:
        """Nothing ever is under way."""

    def _types(self) -> KnownTypes:
        topic = self._lake.intake.topics.find(self._name)
        return KnownTypes.of(topic) if topic else KnownTypes()

    def columns(self) -> list[dict[str, Any]] | None:
        from calve.topics.document import document_of

        topic = document_of(self._lake.intake.topics.topic(self._name))
        columns: list[dict[str, Any]] = topic["columns"]
        return columns


class _Handed(NamedTuple):
    """Rows of the file that were handed to the client: the number of the first, and how many."""

    first: int
    row_count: int
    delivery: Delivery


class _OverFlight:
    """Rows are read here, with the topic's types, and sent in the background."""

    def __init__(self, client: Client, topic: str) -> None:
        self.sent = Sent()
        self._client = client
        self._topic = topic
        self._waiting: deque[_Handed] = deque()

    def send(self, source: str, input_format: str | None) -> Iterator[int]:
        first = 1
        for batch in file_batches(source, input_format, self._types()):
            for rows in read_parts(
                batch, rows_max=_DELIVERY_ROWS_MAX, bytes_max=_DELIVERY_BYTES_MAX
            ):
                delivery = self._client.produce(self._topic, rows)
                self._waiting.append(_Handed(first, rows.num_rows, delivery))
                first += rows.num_rows
                self._settle(_WAITING_MAX)
                yield self.sent.rows
        self._settle(0)

    def finish(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while self._waiting:
            with suppress(CalveError):  # of which note is taken
                self._settle_first(max(deadline - time.monotonic(), 0.0))

    def _settle(self, waiting_max: int) -> None:
        """Take note of what was acknowledged, waiting for it when much is under way."""
        while self._waiting and (
            self._waiting[0].delivery.is_done or len(self._waiting) > waiting_max
        ):
            self._settle_first()

    def _settle_first(self, timeout_seconds: float | None = None) -> None:
        first, count, delivery = self._waiting[0]
        try:
            done = delivery.result(timeout_seconds)
        except CalveError as error:
            is_known = delivery.is_done and not isinstance(error, UnknownOutcome)
            problem = error.message if is_known else None
            self._waiting.popleft()
            self.sent.lose(Lost(first, first + count - 1, problem))
            raise
        self._waiting.popleft()
        self.sent.add(count, done.first, done.end)

    def _types(self) -> KnownTypes:
        from calve.tables.schema_file import parse_schema

        columns = self.columns()
        if columns is None:
            return KnownTypes()
        return KnownTypes.of_columns(parse_schema({"columns": columns}).schema)

    def topic_sets_aside(self) -> bool:
        """Whether the topic wants bad rows kept apart, whatever a request says."""
        described = self._described()
        return described is not None and described["on_bad_row"] == "dead_letter"

    def columns(self) -> list[dict[str, Any]] | None:
        described = self._described()
        return None if described is None else described["columns"]

    def _described(self) -> dict[str, Any] | None:
        try:
            return self._client.describe_topic(self._topic)
        except NotFound:
            return None


class _OverHttp:
    """Rows are read by the service."""

    def __init__(self, poster: Poster) -> None:
        self.sent = Sent()
        self._poster = poster

    def send(self, source: str, input_format: str | None) -> Iterator[int]:
        for body in file_bodies(source, input_format):
            done = self._poster.post(*body, before=self.sent.taken)
            self.sent.set_aside(done.rejected, done.reasons)
            self.sent.add(done.rows, done.first, done.end)
            yield self.sent.rows

    def finish(self, timeout_seconds: float) -> None:
        """Nothing is under way that could be waited for."""

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
    # Rows behind those that were refused may be in.
    handed = sent.rows + sum(last - first + 1 for first, last, _ in sent.lost)
    which = f" of the first {handed:,} of the file" if sent.lost else " before that"
    if sent.rows:
        say(f"{_rows(sent.rows)} durable{which}, up to offset {sent.end}")
    if sent.rejected:
        is_one = sent.rejected == 1
        words = "1 row was bad and is" if is_one else f"{sent.rejected:,} rows were bad and are"
        say(f"{words} kept apart before that, as dead letters")
    for first, last, problem in sent.lost:
        rows = f"row {first:,}" if first == last else f"rows {first:,} to {last:,}"
        if problem is None:
            say(f"it is not known whether {rows} of the file came in")
        else:
            say(f"{rows} of the file did not come in: {problem}")


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"
