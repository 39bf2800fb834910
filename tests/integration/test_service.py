"""`calve up` and what it starts: ready, restarted, stopped, killed; and the same embedded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

import calve
import calve.model
from calve import Client, doctor
from calve.client.posting import Poster
from calve.errors import Conflict, Unavailable
from calve.lake import Lake
from calve.service.announcement import Announced, running_service
from calve.service.orders import Order
from calve.service.role import Backoff
from calve.service.supervisor import Supervisor
from calve.settings import Settings
from tests.conftest import MakeSettings
from tests.servers.tls import Authority
from tests.services import (
    PORTS,
    Up,
    environment,
    is_alive,
    post_rows,
    settings_of,
    up,
    wait_until,
)

FREE = {"ingest__http_port": 0, "ingest__flight_port": 0}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def rows_in_log(settings: Settings, topic: str) -> list[int]:
    with Lake(settings) as lake:
        name = calve.model.TableName.parse(topic)
        batches = [entry.batch for entry in lake.intake.read(name, 0)]
        return [row["id"] for batch in batches if batch is not None for row in batch.to_pylist()]


def restarted(service: Up, before: int) -> int:
    wait_until(lambda: service.ingest_pid != before)
    return service.ingest_pid


def guarded(directory: Path) -> list[str]:
    """A service that other machines reach."""
    directory.mkdir()
    authority = Authority(directory)
    certificate, key = authority.server_files()
    settings = {
        "ingest.host": "0.0.0.0",
        "ingest.tls_cert": certificate,
        "ingest.tls_key": key,
        "ingest.tls_ca": authority.pem,
        "auth.required": "true",
    }
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("is_guarded", [False, True])
def test_the_lines_that_up_prints_to_copy_send_a_row_each(data: Path, *, is_guarded: bool) -> None:
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    arguments = guarded(data.with_name("its tls")) if is_guarded else []
    with up(data, *arguments, as_json=False) as service:
        assert service.process.stderr is not None
        lines: list[str] = []
        while len(lines) < 3 + is_guarded:
            line = service.process.stderr.readline()
            assert line, lines
            lines += [line.strip()] if line.startswith("  ") else []
        first = lines.pop(0) if is_guarded else ":"
        sent = [
            subprocess.Popen(
                ["sh", "-ec", f"{first}\n{line}"],
                env={**environment(), "PATH": tools},
                cwd=data.parent,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for line in lines
        ]
        for each in sent:
            said, _ = each.communicate(timeout=60)
            assert each.returncode == 0, said.decode()
        listed = subprocess.run(
            ["calve", "topic", "list", "--data", data, *arguments],
            env={**environment(), "PATH": tools},
            capture_output=True,
            check=False,
        )
        assert b"events" in listed.stdout, listed.stderr
    assert sorted(rows_in_log(settings_of(data), "events")) == [1, 2, 3]


def test_up_takes_rows_over_both_doors_and_a_stop_is_clean(data: Path) -> None:
    with up(data) as service:
        at = service.addresses()
        assert post_rows(at["http"], "events", [{"id": 1}])["end"] == 1
        with Client(at["flight"]) as client:
            assert client.produce("events", [{"id": 2}]).result() == (1, 2, False)
        told = service.announced()
        assert told["addresses"] == at
        assert told["pid"] == service.process.pid
        assert is_alive(service.ingest_pid)
        ingest = service.ingest_pid
        service.signal(signal.SIGTERM)
        code, words = service.ended()
    assert (code, "stopped" in words) == (0, True)
    assert not is_alive(ingest)
    assert not (data / "_calve" / "service.json").exists()
    assert {(each.stat().st_mode & 0o777) for each in (data, data / "_calve")} == {0o700}
    assert rows_in_log(settings_of(data), "events") == [1, 2]


def test_a_second_service_of_a_lake_is_told_where_the_first_is(data: Path) -> None:
    with up(data) as first:
        at = first.addresses()
        with up(data) as second:
            code, words = second.ended()
        assert code == 5
        assert f"process {first.process.pid}" in words
        assert at["http"] in words
        assert post_rows(at["http"], "events", [{"id": 1}])["rows"] == 1


@pytest.mark.parametrize("port", PORTS)
def test_a_port_that_is_taken_is_one_clear_error(data: Path, port: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with up(data, "--set", f"ingest.{port}={number}") as service:
            code, words = service.ended()
    assert code == 6
    assert words.startswith("error: ")
    assert str(number) in words
    assert len(words.splitlines()) == 2


def test_telemetry_is_taken_in_without_a_setting(data: Path) -> None:
    with up(data) as service:
        at = service.addresses()
        request = Request(f"{at['otlp_http']}/v1/logs", b"{}", {"Content-Type": "application/json"})
        with urlopen(request, timeout=20) as answer:
            assert answer.read() == b"{}"
        with socket.create_connection(("127.0.0.1", urlsplit(at["otlp_grpc"]).port), 5):
            pass


def test_a_log_that_another_process_has_is_one_clear_error(data: Path) -> None:
    with Lake(settings_of(data)) as lake:
        lake.produce("events", [{"id": 1}])
        with up(data) as service:
            code, words = service.ended()
    assert code == 5
    assert "error: " in words
    assert "Traceback" not in words


def test_a_data_directory_that_cannot_be_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with up(tmp_path / "file") as service:
        code, words = service.ended()
    assert code == 3
    assert words.startswith("error: ")
    assert "is not a directory" in words


def test_settings_that_are_wrong_are_told_once(data: Path) -> None:
    with up(data, "--set", "ingest.partition=-1") as service:
        code, words = service.ended()
    assert code == 3
    assert words.count("must be a whole number") == 1


def test_a_process_that_dies_is_started_again_where_its_clients_know_it(data: Path) -> None:
    with up(data) as service:
        at = service.addresses()
        with Client(at["flight"]) as client:
            client.produce("events", [{"id": 1}]).result()
            for number in (2, 3):
                before = service.ingest_pid
                os.kill(before, signal.SIGKILL)
                client.produce("events", [{"id": number}]).result(30)
                assert restarted(service, before)
        assert service.announced()["addresses"] == at
        assert post_rows(at["http"], "events", [{"id": 4}])["end"] == 4
        service.signal(signal.SIGINT)
        code, words = service.ended()
    assert code == 0
    assert words.count("ingest is back") == 2
    assert rows_in_log(settings_of(data), "events") == [1, 2, 3, 4]


def test_questions_wait_for_a_service_that_comes_back(data: Path) -> None:
    with up(data) as service:
        at = service.addresses()
        post_rows(at["http"], "events", [{"id": 1}])
        with (
            Client(at["flight"]) as client,
            Poster(at["http"], "events", sets_aside=False) as poster,
        ):
            for ask in (lambda: client.describe_topic("events"), poster.columns):
                answer = ask()
                before = service.ingest_pid
                os.kill(before, signal.SIGKILL)
                assert ask() == answer
                assert restarted(service, before)


def test_a_process_that_says_what_the_user_must_change_is_not_started_again(data: Path) -> None:
    config = data.parent / "calve.toml"
    config.write_text("[ingest]\nauto_create = true\n")
    with up(data) as service:
        service.addresses()
        config.write_text("[ingest]\nauto_create = 'perhaps'\n")
        os.kill(service.ingest_pid, signal.SIGKILL)
        code, words = service.ended()
    assert code == 3
    assert "auto_create" in words
    assert not (data / "_calve" / "service.json").exists()


def test_no_process_outlives_a_supervisor_that_was_killed(data: Path) -> None:
    with up(data) as service:
        at = service.addresses()
        ingest = service.ingest_pid
        post_rows(at["http"], "events", [{"id": 1}])
        service.signal(signal.SIGKILL)
        service.process.wait()
        assert running_service(settings_of(data)) is None, "the file is there, and stale"
        wait_until(lambda: not is_alive(ingest))
    with up(data) as again:
        again.addresses()
        found = running_service(settings_of(data))
        assert isinstance(found, Announced)
        assert found.pid == again.process.pid
    assert rows_in_log(settings_of(data), "events") == [1]


def test_a_second_signal_ends_at_once(data: Path) -> None:
    with up(data) as service:
        at = service.addresses()
        host, port = at["http"].removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(
                b"POST /v1/topics/events/rows HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Content-Type: application/x-ndjson\r\nContent-Length: 1000\r\n\r\n{"
            )
            wait_until(lambda: json.load(urlopen(f"{at['http']}/v1/status"))["requests"] >= 2)
            ingest = service.ingest_pid
            service.signal(signal.SIGINT)
            with pytest.raises(AssertionError):
                wait_until(lambda: service.process.poll() is not None, 0.5)
            service.signal(signal.SIGINT)
            code, words = service.ended()
    assert (code, "ended at once" in words) == (130, True)
    assert not is_alive(ingest)


def test_the_part_that_does_not_exist_yet_says_so(data: Path) -> None:
    with up(data, only="console") as service:
        code, words = service.ended()
    assert code == 3
    assert "no console yet" in words
    with up(data) as service:
        assert set(service.addresses()) == {"flight", "http", "otlp_grpc", "otlp_http"}


def test_the_demo_sends_rows(data: Path) -> None:
    with up(data, "--demo") as service:
        at = service.addresses()
        with Client(at["flight"]) as client:
            wait_until(lambda: "demo" in client.topics())
            wait_until(lambda: client.stats("demo")["row_count"] >= 20)
        service.signal(signal.SIGTERM)
        assert service.ended()[0] == 0


def test_an_embedded_service_shares_the_lakes_intake(make_settings: MakeSettings) -> None:
    settings = make_settings(**FREE)
    with calve.open(settings) as lake, lake.serve() as serving:
        lake.produce("events", [{"id": 1}])
        post_rows(serving.addresses.http, "events", [{"id": 2}])
        with Client(serving.addresses.flight) as client:
            client.produce("events", [{"id": 3}])
        assert lake.intake.offsets(calve.model.TableName.parse("events")).durable == 3
        found = running_service(settings)
        assert found is not None
        assert found.addresses == serving.addresses
        with pytest.raises(Conflict, match="running already"):
            lake.serve()
    assert running_service(settings) is None
    assert rows_in_log(settings, "events") == [1, 2, 3]


def test_the_doctor_knows_the_ports_of_the_lakes_own_service(make_settings: MakeSettings) -> None:
    with calve.open(make_settings(**FREE)) as lake, lake.serve() as serving:
        ports = serving.addresses.ports()
        flight, http = ports["flight"], ports["http"]
        settings = make_settings(ingest__flight_port=flight, ingest__http_port=http)
        for port in (flight, http):
            assert doctor._port(settings, port).endswith("is the running service's")
    with pytest.raises(Unavailable), socket.create_server(("127.0.0.1", http or 0)):
        doctor._port(settings, http or 0)


def test_a_lake_that_closes_ends_its_service_first(make_settings: MakeSettings) -> None:
    settings = make_settings(**FREE)
    with calve.open(settings) as lake:
        serving = lake.serve()
        post_rows(serving.addresses.http, "events", [{"id": 1}])
    with pytest.raises(URLError):
        urlopen(f"{serving.addresses.http}/health/live")
    serving.close()
    with calve.open(settings) as lake, lake.serve() as again:
        assert post_rows(again.addresses.http, "events", [{"id": 2}])["end"] == 2


def test_signals_to_the_whole_group_drain_all_the_same(data: Path) -> None:
    with up(data) as service:
        at = service.addresses()
        host, port = at["http"].removeprefix("http://").split(":")
        body = b'{"id": 1}\n'
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(
                b"POST /v1/topics/events/rows HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Content-Type: application/x-ndjson\r\nContent-Length: 10\r\n\r\n" + body[:5]
            )
            wait_until(lambda: json.load(urlopen(f"{at['http']}/v1/status"))["requests"] >= 2)
            for pid in (service.ingest_pid, service.process.pid, service.ingest_pid):
                os.kill(pid, signal.SIGTERM)
            slow.sendall(body[5:])
            assert slow.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert service.ended()[0] == 0
    assert rows_in_log(settings_of(data), "events") == [1]


def test_a_supervisor_that_is_closed_while_it_waits_starts_nothing_more(data: Path) -> None:
    flags: dict[str, object] = {"data": str(data), **{f"ingest.{port}": 0 for port in PORTS}}
    words: list[str] = []
    supervisor = Supervisor(
        settings_of(data),
        Order(flags=flags),
        say=words.append,
        backoff=Backoff(initial_seconds=600, max_seconds=600),
    )
    supervisor.start()
    before = supervisor.pid
    assert before is not None
    looking_after = threading.Thread(target=supervisor.run)
    looking_after.start()
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: any("started again" in each for each in words))
    supervisor.stop()
    looking_after.join(10)
    assert not looking_after.is_alive()
    supervisor.close()
    assert supervisor.pid == before
    assert running_service(settings_of(data)) is None


def test_a_processs_words_come_out_behind_its_name(data: Path) -> None:
    with Lake(settings_of(data)) as lake:
        lake.produce("orders", [{"id": 1}])
    (data / "_calve" / "wal").rename(data.parent / "lost")
    with up(data) as service:
        service.addresses()
        service.signal(signal.SIGTERM)
        _, words = service.ended()
    told = [line for line in words.splitlines() if "topic orders stops" in line]
    assert len(told) == 1
    assert told[0].startswith("ingest: ")
