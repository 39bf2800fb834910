"""Logs: rendered for people or machines, levels per component, ids that follow, no secrets."""

from __future__ import annotations

import contextvars
import io
import json
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from py4j.java_gateway import GatewayClient, GatewayParameters

from calve.errors import InvalidSettings
from calve.log import bound, bound_ids, configure_logs, new_correlation_id
from calve.settings import Settings, component_levels, load_settings

log = logging.getLogger("calve.tests")
NAMES = ("calve", "calve.tests", "pyiceberg", "py4j")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in NAMES}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def settings(tmp_path: Path, **flags: object) -> Settings:
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return load_settings(flags=named, environ={}, directory=tmp_path).settings


def records(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_stream_that_is_no_terminal_gets_json(tmp_path: Path) -> None:
    stream = io.StringIO()
    configure_logs(settings(tmp_path), stream)
    log.info("table created", extra={"table": "users", "rows": 3})
    (record,) = records(stream)
    assert record["event"] == "table created"
    assert record["level"] == "info"
    assert record["logger"] == "calve.tests"
    assert (record["table"], record["rows"]) == ("users", 3)
    assert str(record["timestamp"]).endswith("Z")


def test_a_terminal_gets_words(tmp_path: Path) -> None:
    stream = Terminal()
    configure_logs(settings(tmp_path), stream)
    log.warning("slow commit", extra={"table": "users"})
    assert "slow commit" in stream.getvalue()
    assert "users" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_an_exception_is_one_json_line(tmp_path: Path) -> None:
    stream = io.StringIO()
    configure_logs(settings(tmp_path), stream)
    try:
        raise ValueError("inside")
    except ValueError:
        log.exception("it failed")
    (record,) = records(stream)
    assert "ValueError: inside" in str(record["exception"])


def test_levels_are_set_per_component(tmp_path: Path) -> None:
    stream = io.StringIO()
    configure_logs(settings(tmp_path, log__level="error", log__levels="calve.tests=debug"), stream)
    log.debug("heard")
    logging.getLogger("calve.other").warning("not heard")
    logging.getLogger("someone.else").info("not heard")
    assert [record["event"] for record in records(stream)] == ["heard"]


@pytest.mark.parametrize("text", ["calve", "=debug", "calve=loud", "a=debug,b"])
def test_bad_levels_are_refused(text: str) -> None:
    with pytest.raises(InvalidSettings):
        component_levels(text)


def test_configuring_again_replaces_and_does_not_repeat(tmp_path: Path) -> None:
    stream = io.StringIO()
    configure_logs(settings(tmp_path), io.StringIO())
    configure_logs(settings(tmp_path), stream)
    log.info("once")
    assert len(records(stream)) == 1


def test_bound_ids_follow_the_work_and_end_with_it(tmp_path: Path) -> None:
    stream = io.StringIO()
    configure_logs(settings(tmp_path), stream)
    request = new_correlation_id()
    with bound(request=request), ThreadPoolExecutor(1) as pool:
        with bound(table="users"):
            log.info("inner")
        pool.submit(contextvars.copy_context().run, log.info, "in another thread").result()
        handed_on = bound_ids()
    log.info("after")
    with bound(**handed_on):
        log.info("in another process")
    inner, threaded, after, handed = records(stream)
    assert (inner["request"], inner["table"]) == (request, "users")
    assert threaded["request"] == request
    assert "table" not in threaded
    assert "request" not in after
    assert handed["request"] == request


def test_no_secret_is_logged_whatever_carries_it(tmp_path: Path) -> None:
    stream = io.StringIO()
    canary = 'canary-5f1c"ä'
    held = settings(
        tmp_path,
        catalog__uri=f"postgresql://u:{canary}-db@host/d",
        catalog__properties__token=f"{canary}-token",
        storage__access_key_id="me",
        storage__secret_access_key=f"{canary}-key",
    )
    configure_logs(held, stream)
    log.info(
        f"connecting with {canary}-key",
        extra={"password": f"{canary}-new", "dsn": f"x://u:{canary}@h/"},
    )
    log.info("settings", extra={"settings": held})
    try:
        raise ValueError(f"server said {canary}-token")
    except ValueError:
        log.exception("failed")
    assert len(records(stream)) == 3
    assert "5f1c" not in stream.getvalue()


def test_importing_calve_configures_nothing() -> None:
    assert not logging.getLogger("calve").handlers


@pytest.mark.parametrize("levels", ["", "py4j=error"])
def test_what_py4j_says_of_a_lost_jvm_is_heard_on_request(tmp_path: Path, levels: str) -> None:
    stream = io.StringIO()
    configure_logs(settings(tmp_path, log__levels=levels), stream)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        thread = threading.Thread(target=hang_up, args=(server,), daemon=True)
        thread.start()
        client = GatewayClient(gateway_parameters=GatewayParameters(port=port))
        assert client.send_command("hello\n", retry=False) == "x"
        thread.join(10)
    assert ["Exception while sending command." in each for each in events(stream)] == (
        [True] if levels else []
    )


def hang_up(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(100)


def events(stream: io.StringIO) -> list[str]:
    return [str(record["event"]) for record in records(stream)]
