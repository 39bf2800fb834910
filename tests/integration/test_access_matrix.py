"""Who may do what: every way to ask a service, with every kind of token, as the table says.

The table is the one of docs/operating/security.md. What has no row there, or a row that nothing
here calls, fails: so nothing is offered that nobody thought about.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from click.testing import CliRunner
from pyarrow import flight

from calve.access import SCOPES
from calve.cli.main import CALVE, LazyGroup
from calve.cli.place import TokenOption
from calve.errors import CalveError
from calve.ingest.flight.actions import ACTIONS
from calve.ingest.flight.service import CALLS, Service
from calve.ingest.http.otlp import OPERATIONS as OTLP
from calve.ingest.http.routes import OPERATIONS
from calve.ingest.otlp.grpc_server import SERVICES
from calve.model import TableName
from calve.protocol.problem import decoded
from calve.topics import TopicSpec
from tests.integration.access_site import (
    ROWS,
    Site,
    access_site,
    bearer,
    tokens_of_every_kind,
)

PAGE = Path(__file__).parents[2] / "docs" / "operating" / "security.md"
ROW = re.compile(
    r"^\| (HTTP|Flight|OTLP[\w ]*|command[^|]*) \| `([^`]+)` \| ([^|]+) \|$", re.MULTILINE
)
TABLE = {(door, what): token.strip(" `") for door, what, token in ROW.findall(PAGE.read_text())}
NOBODY = {"no token", "wrong", "expired", "revoked"}
# A topic that is not there: who may ask is told so, and nothing is changed by it.
TOPIC = "acme.default.nothing"
BODY = f'{{"topic": "{TOPIC}", "to": 1}}'.encode()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        # Wrong tokens are sent by the hundred here; that guessers wait has tests of its own.
        patch.setattr("calve.access.attempts._AT_ONCE", 10_000)
        with access_site(tmp_path_factory.mktemp("matrix") / "lake") as site:
            site.tokens = tokens_of_every_kind(site)
            yield site


def wanted(door: str, what: str, kind: str) -> str:
    """What the table says of a kind of token: whether it is let in, and what it is told if not."""
    token = TABLE[door, what]
    if token == "none needed":
        return "allowed"
    if kind in NOBODY:
        return "unauthenticated"
    return "allowed" if token == "any" or kind in {token, "other tenant"} else "denied"


def by_status(status: int) -> str:
    """Whoever is let in may be told that there is no such thing, but not that the service failed."""
    other = f"failed with {status}" if status >= 500 else "allowed"
    return {401: "unauthenticated", 403: "denied"}.get(status, other)


def by_flight(call: Callable[[], object]) -> str:
    try:
        call()
    except flight.FlightUnauthenticatedError:
        return "unauthenticated"
    except flight.FlightUnauthorizedError:
        return "denied"
    except flight.FlightError as error:  # Arrow has no class for most, and sends the problem
        problem = decoded(error.extra_info)
        return f"failed with {error!r}" if problem is None else by_status(problem.status)
    except (KeyError, ValueError):  # there is no such thing
        return "allowed"
    return "allowed"


def require(door: str, what: str, found: dict[str, str]) -> None:
    assert found == {kind: wanted(door, what, kind) for kind in found}


def filled(path: str) -> str:
    return path.format(topic=TOPIC, name="billing", id="x", offset="0")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_http_lets_in_whom_the_table_says(site: Site, operation: Any) -> None:
    found = {}
    for kind, token in site.tokens.items():
        response = site.http.request(
            operation.method, filled(operation.path), headers=bearer(token), content=BODY
        )
        found[kind] = by_status(response.status_code)
        assert ("WWW-Authenticate" in response.headers) == (response.status_code == 401)
    require("HTTP", f"{operation.method} {operation.path}", found)


@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if each.socket], ids=lambda each: each.path
)
def test_a_websocket_lets_in_whom_the_table_says(site: Site, operation: Any) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    found = {}
    for kind, token in site.tokens.items():
        connection = http.client.HTTPConnection(urlsplit(site.addresses.http).netloc, timeout=20)
        connection.request("GET", filled(operation.path), headers={**upgrade, **bearer(token)})
        found[kind] = by_status(connection.getresponse().status)
        connection.close()
    require("HTTP", f"GET {operation.path}", found)


def put(site: Site, token: str | None) -> None:
    place = flight.FlightDescriptor.for_path("acme", "default", "orders")
    if token == site.tokens["other tenant"]:
        place = flight.FlightDescriptor.for_path("rival", "default", "orders")
    writer, reader = site.flight.do_put(place, ROWS.schema, site.options(token))
    writer.write_batch(ROWS)
    writer.done_writing()
    answer = reader.read()
    writer.close()
    assert answer is not None


def got(site: Site, token: str | None, ticket: str) -> None:
    site.flight.do_get(flight.Ticket(ticket.encode()), site.options(token)).read_all()


def schema_of(site: Site, token: str | None) -> None:
    """Without Arrow's client, which drops the class of this call's errors."""
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(urlsplit(site.addresses.flight).netloc) as channel:
        ask = channel.unary_unary("/arrow.flight.protocol.FlightService/GetSchema")
        try:
            ask(flight.FlightDescriptor.for_path(TOPIC).serialize(), metadata=metadata, timeout=20)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise flight.FlightUnauthenticatedError(error.details()) from error


FLIGHT: dict[str, Callable[[Site, str | None], object]] = {
    "do_put": put,
    "do_get stream": lambda site, token: got(
        site, token, f'{{"kind": "stream", "topic": "{TOPIC}", "follow": false}}'
    ),
    "do_get query": lambda site, token: got(site, token, '{"kind": "query", "sql": "select 1"}'),
    "do_get rows": lambda site, token: got(site, token, f'{{"topic": "{TOPIC}"}}'),
    "do_get frames": lambda site, token: got(
        site, token, f'{{"topic": "{TOPIC}", "form": "frames"}}'
    ),
    "list_flights": lambda site, token: list(site.flight.list_flights(options=site.options(token))),
    "get_flight_info": lambda site, token: site.flight.get_flight_info(
        flight.FlightDescriptor.for_path(TOPIC), site.options(token)
    ),
    "get_schema": schema_of,
    "list_actions": lambda site, token: list(site.flight.list_actions(site.options(token))),
    "do_action": lambda site, token: list(
        site.flight.do_action(flight.Action("no such action", b""), site.options(token))
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_flight_lets_in_whom_the_table_says(site: Site, call: str) -> None:
    found = {
        kind: by_flight(lambda token=token: FLIGHT[call](site, token))  # type: ignore[misc]
        for kind, token in site.tokens.items()
    }
    require("Flight", call, found)


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_lets_in_whom_the_table_says(site: Site, action: str) -> None:
    found = {
        kind: by_flight(
            lambda token=token: list(  # type: ignore[misc]
                site.flight.do_action(flight.Action(action, BODY), site.options(token))
            )
        )
        for kind, token in site.tokens.items()
    }
    require("Flight", f"do_action {action}", found)


@pytest.mark.parametrize("operation", OTLP, ids=lambda each: each.path)
def test_telemetry_over_http_lets_in_whom_the_table_says(site: Site, operation: Any) -> None:
    found = {}
    for kind, token in site.tokens.items():
        headers = {"Content-Type": "application/x-protobuf", **bearer(token)}
        response = site.otlp_http.post(operation.path, headers=headers, content=b"")
        found[kind] = by_status(response.status_code)
        assert response.headers["content-type"] == "application/x-protobuf"
        assert ("WWW-Authenticate" in response.headers) == (response.status_code == 401)
    require("OTLP over HTTP", f"{operation.method} {operation.path}", found)


@pytest.mark.parametrize("service", SERVICES)
def test_telemetry_over_grpc_lets_in_whom_the_table_says(site: Site, service: str) -> None:
    codes = {
        grpc.StatusCode.UNAUTHENTICATED: "unauthenticated",
        grpc.StatusCode.PERMISSION_DENIED: "denied",
    }
    export = site.otlp_grpc.unary_unary(f"/{service}/Export")
    found = {}
    for kind, token in site.tokens.items():
        metadata = [("authorization", f"Bearer {token}")] if token else []
        try:
            export(b"", metadata=metadata, timeout=20)
            found[kind] = "allowed"
        except grpc.RpcError as error:
            found[kind] = codes.get(error.code(), f"failed with {error.code()}")
    require("OTLP over gRPC", service, found)


def commands() -> dict[str, Any]:
    """Those that ask a service, by their words."""
    found: dict[str, Any] = {}

    def walk(group: LazyGroup, words: str) -> None:
        for name in group.list_commands(None):  # type: ignore[arg-type]
            command = group.get_command(None, name)  # type: ignore[arg-type]
            if isinstance(command, LazyGroup):
                walk(command, f"{words} {name}")
            elif command is not None and any(
                each.name == "server" or isinstance(each, TokenOption) for each in command.params
            ):
                found[f"{words} {name}"] = command

    walk(LazyGroup(CALVE, "calve"), "calve")
    return found


COMMANDS = commands()
DOOMED = TableName.parse("acme.default.doomed")
ARGUMENTS = {
    "calve dead-letter discard": [TOPIC, "--all", "--yes"],
    "calve dead-letter list": [TOPIC],
    "calve dead-letter replay": [TOPIC, "--all"],
    "calve dead-letter show": [TOPIC, "0"],
    "calve pipeline pause": [TOPIC],
    "calve pipeline resume": [TOPIC],
    "calve pipeline skip": [TOPIC, "--to", "1"],
    "calve pipeline status": [TOPIC],
    "calve produce": ["acme.default.sent", "--data", "rows.ndjson"],
    "calve sql": ["select 1"],
    "calve status": [],
    "calve subscribe": [TOPIC, "--no-follow"],
    "calve subscription delete": [TOPIC, "billing", "--yes"],
    "calve subscription describe": [TOPIC, "billing"],
    "calve subscription list": [TOPIC],
    "calve subscription reset": [TOPIC, "billing", "--yes"],
    "calve subscription seek": [TOPIC, "billing", "--to", "latest"],
    "calve token create": ["a token", "--scope", "query"],
    "calve token list": [],
    "calve token revoke": ["x", "--yes"],
    "calve topic alter": [TOPIC, "--on-unknown-column", "refuse"],
    "calve topic create": ["acme.default.made", "--messages"],
    "calve topic delete": [str(DOOMED), "--yes"],  # one that is not there is asked for, not deleted
    "calve topic describe": [TOPIC],
    "calve topic flush": [TOPIC, "--timeout", "1"],
    "calve topic list": [],
    "calve topic verify": [TOPIC],
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_lets_in_whom_the_table_says(
    site: Site, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.ndjson").write_text('{"id": "no number"}\n')
    found = {}
    for kind, token in site.tokens.items():
        site.intake.create_topic(DOOMED, TopicSpec(kind="messages"))
        Path("token").write_text(f"{token}\n")
        named = ["--token-file", "token"] if token else []
        lake = ["--lake", "lake"] if words == "calve produce" else ["--data", "lake"]
        arguments = [*ARGUMENTS[words], "--server", site.addresses.flight, *lake, *named]
        result = CliRunner().invoke(COMMANDS[words], arguments)
        assert isinstance(result.exception, CalveError | SystemExit | None), result.exception
        error = getattr(result.exception, "http_status", 0)
        found[kind] = by_status(error)
        if error in {401, 403}:
            assert result.exception.exit_code == 8  # type: ignore[union-attr]
        assert result.exit_code != 2, result.output
    require("command with `--server`", words, found)


def test_the_table_has_a_row_for_all_there_is_and_no_other() -> None:
    offered = {("HTTP", f"{each.method} {each.path}") for each in OPERATIONS}
    offered |= {("Flight", name) for name in CALLS}
    offered |= {("Flight", f"do_action {name}") for name in ACTIONS}
    offered |= {("OTLP over HTTP", f"{each.method} {each.path}") for each in OTLP}
    offered |= {("OTLP over gRPC", name) for name in SERVICES}
    offered |= {("command with `--server`", words) for words in COMMANDS}
    assert set(TABLE) == offered
    assert set(FLIGHT) == set(CALLS)
    assert set(TABLE.values()) == {*SCOPES, "any", "none needed"}


def test_flight_offers_no_call_that_is_not_listed(site: Site) -> None:
    rpcs = {name for name in vars(Service) if name.startswith(("do_", "get_", "list_"))}
    assert rpcs == {name.split()[0] for name in CALLS}
    descriptor = flight.FlightDescriptor.for_path("orders")
    _, reader = site.flight.do_exchange(descriptor, site.options(site.tokens["admin"]))
    with pytest.raises(NotImplementedError):
        reader.read_all()


def test_what_is_not_there_needs_no_token(site: Site) -> None:
    assert site.http.get("/nothing").status_code == 404
    assert site.http.put("/v1/topics").status_code == 405
    assert site.http.options("/v1/topics").status_code == 204
    with httpx.Client(base_url=site.addresses.http) as client:
        assert client.get("/health/ready").status_code == 200
