"""Who somebody is: tokens, what they reach, and the doorkeeper's memory of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from calve.access import SCOPES, Caller, Doorkeeper, NewToken
from calve.access.token import digest_of, new_secret
from calve.audit import Trail
from calve.client import Client
from calve.errors import (
    Denied,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
)
from calve.model import TableName
from calve.settings.tree import AuthSettings
from calve.state.sqlite import SqliteState
from tests.commands import run_command
from tests.fakes.clocks import HandClock

HERE = "192.0.2.1"
NO_TRAIL = Trail(None, bytes_max=1)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def state(tmp_path: Path, clock: HandClock) -> Iterator[SqliteState]:
    state = SqliteState(tmp_path / "state.db", clock=clock)
    yield state
    state.close()


@pytest.fixture
def doorkeeper(state: SqliteState, clock: HandClock) -> Doorkeeper:
    return Doorkeeper(state, AuthSettings(required=True), clock, trail=NO_TRAIL)


def _made(doorkeeper: Doorkeeper, **wish: object) -> tuple[str, str]:
    """The id and the secret of a token of acme that may produce, unless otherwise wished for."""
    wanted = NewToken(**{"name": "it", "tenant": "acme", "scopes": ("produce",), **wish})  # type: ignore[arg-type]
    token, secret = doorkeeper.tokens(Caller.of_host()).create(wanted)
    return token.id, secret


def _bearer(secret: str) -> str:
    return f"Bearer {secret}"


def test_a_secret_has_256_bits_and_only_its_digest_is_kept(
    doorkeeper: Doorkeeper, state: SqliteState
) -> None:
    token_id, secret = _made(doorkeeper)
    assert secret.startswith("calve_")
    assert len(secret.removeprefix("calve_")) == 43  # 32 bytes in base64
    kept = state.token(token_id)
    assert kept is not None
    assert digest_of(secret).encode() in kept
    assert secret.removeprefix("calve_").encode() not in kept
    assert len({new_secret() for _ in range(100)}) == 100


def test_a_caller_is_what_its_token_says(doorkeeper: Doorkeeper) -> None:
    token_id, secret = _made(doorkeeper, scopes=("query", "produce"), dataset="sales")
    caller = doorkeeper.caller(_bearer(secret), HERE)
    assert (caller.tenant, caller.dataset, caller.token_id) == ("acme", "sales", token_id)
    assert caller.scopes == {"produce", "query"}
    assert doorkeeper.remembered(f"bearer  {secret} ", HERE) == caller


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Basic YTpi", "Bearer ", "Bearer calve_", "Bearer \ud800", "calve_x"],
)
def test_whoever_shows_no_token_that_counts_is_refused(
    doorkeeper: Doorkeeper, authorization: str | None
) -> None:
    with pytest.raises(Unauthenticated):
        doorkeeper.caller(authorization, HERE)


def test_without_the_setting_nobody_needs_a_token(state: SqliteState, clock: HandClock) -> None:
    caller = Doorkeeper(state, AuthSettings(), clock, trail=NO_TRAIL).caller(None, HERE)
    assert caller.scopes == set(SCOPES)
    assert caller.table_name("orders") == TableName.parse("default.default.orders")


def test_a_token_that_is_revoked_elsewhere_ends_within_five_seconds(
    doorkeeper: Doorkeeper, state: SqliteState, clock: HandClock
) -> None:
    token_id, secret = _made(doorkeeper)
    caller = doorkeeper.caller(_bearer(secret), HERE)
    elsewhere = Doorkeeper(state, AuthSettings(required=True), clock, trail=NO_TRAIL)
    elsewhere.tokens(Caller.of_host()).revoke(token_id)
    clock.pass_seconds(5)
    with pytest.raises(Unauthenticated):
        doorkeeper.recheck(caller)
    with pytest.raises(Unauthenticated):
        doorkeeper.caller(_bearer(secret), HERE)


def test_a_token_ends_when_its_time_is_over_also_in_open_streams(
    doorkeeper: Doorkeeper, clock: HandClock
) -> None:
    _, secret = _made(doorkeeper, expires_at=clock.now() + timedelta(seconds=1))
    caller = doorkeeper.caller(_bearer(secret), HERE)
    clock.pass_seconds(1)
    with pytest.raises(Unauthenticated):
        doorkeeper.recheck(caller)
    with pytest.raises(Unauthenticated):
        doorkeeper.caller(_bearer(secret), HERE)


def test_what_was_known_counts_no_longer_when_the_state_cannot_be_asked(
    doorkeeper: Doorkeeper, state: SqliteState, clock: HandClock
) -> None:
    _, secret = _made(doorkeeper)
    doorkeeper.caller(_bearer(secret), HERE)
    state.close()
    assert doorkeeper.caller(_bearer(secret), HERE).tenant == "acme"
    clock.pass_seconds(5)
    with pytest.raises(Unavailable):
        doorkeeper.caller(_bearer(secret), HERE)


def test_strangers_are_not_told_where_a_state_is_that_cannot_be_read(
    doorkeeper: Doorkeeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(tmp_path / "state.db")) as other:
        other.execute("DROP TABLE tokens")
    for _ in range(3):
        with pytest.raises(Unavailable) as refused:
            doorkeeper.caller(_bearer(new_secret()), HERE)
        assert str(tmp_path) not in f"{refused.value} {refused.value.context}"
    (said,) = caplog.records  # once, however often they ask
    assert str(tmp_path / "state.db") in said.getMessage()


def test_a_guesser_is_made_to_wait_and_others_go_on(
    doorkeeper: Doorkeeper, clock: HandClock
) -> None:
    _, secret = _made(doorkeeper)
    doorkeeper.caller(_bearer(secret), HERE)
    for _ in range(10):
        with pytest.raises(Unauthenticated):
            doorkeeper.caller(_bearer(new_secret()), HERE)
    with pytest.raises(Overloaded) as refused:
        doorkeeper.caller(_bearer(new_secret()), HERE)
    assert int(refused.value.context["retry_after_ms"]) > 0
    assert doorkeeper.caller(_bearer(secret), HERE).tenant == "acme"
    clock.pass_seconds(3)  # also when it is read again
    assert doorkeeper.caller(_bearer(secret), HERE).tenant == "acme"
    assert doorkeeper.caller(_bearer(secret), "192.0.2.2").tenant == "acme"
    clock.pass_seconds(20)
    with pytest.raises(Unauthenticated):
        doorkeeper.caller(_bearer(new_secret()), HERE)


def test_the_memory_of_guesses_is_bounded(doorkeeper: Doorkeeper) -> None:
    for number in range(10_100):
        doorkeeper._attempts.failed(f"198.51.100.{number}")
    assert len(doorkeeper._attempts._forgotten_at) == 10_000


def test_a_token_of_the_host_is_everybody_and_never_kept(
    doorkeeper: Doorkeeper, state: SqliteState
) -> None:
    caller = doorkeeper.caller(_bearer(doorkeeper.host_secret), HERE)
    assert caller.is_host
    assert caller.scopes == set(SCOPES)
    doorkeeper.recheck(caller)
    assert state.tokens() == {}


def test_a_short_name_is_in_the_tenant_and_dataset_of_the_token(doorkeeper: Doorkeeper) -> None:
    _, secret = _made(doorkeeper, dataset="sales")
    caller = doorkeeper.caller(_bearer(secret), HERE)
    assert caller.table_name("orders") == TableName("acme", "sales", "orders")
    assert caller.table_name("acme.other.orders") == TableName("acme", "other", "orders")
    assert caller.topic("orders").tenant == "acme"


def test_a_name_out_of_reach_is_answered_like_one_that_is_not_there() -> None:
    caller = Caller(tenant="acme", scopes=frozenset({"produce"}), topics=("orders_*",))
    said = set()
    for name in ("other.default.orders_1", "acme.default.users", "acme.sales.orders_1"):
        with pytest.raises(NotFound) as refused:
            caller.topic(name)
        said.add(str(refused.value).replace(name, "X"))
    assert len(said) == 1
    assert caller.topic("orders_1") == TableName("acme", "default", "orders_1")
    assert caller.sees(TableName.parse("acme.default.orders_1__dead_letters"))
    with pytest.raises(Denied):
        caller.require("query")


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("orders", "acme.default.orders", "acme.default.orders2"),
        ("acme.*.orders_*", "acme.x.orders_a", "acme.x.orders"),
        ("*.sales.*", "acme.sales.x", "other.sales.x"),  # never beyond the tenant
        ("a*c", "acme.default.abc", "acme.default.abcd"),
    ],
)
def test_patterns_choose_topics_of_the_tenant(pattern: str, inside: str, outside: str) -> None:
    caller = Caller(tenant="acme", scopes=frozenset({"produce"}), topics=(pattern,))
    assert caller.sees(TableName.parse(inside))
    assert not caller.sees(TableName.parse(outside))


@pytest.mark.parametrize(
    "wish",
    [
        {"name": ""},
        {"name": "x\n"},
        {"scopes": ()},
        {"scopes": ("open",)},
        {"tenant": "A"},
        {"tenant": ""},
        {"dataset": "a.b"},
        {"topics": ("a.b",)},
        {"topics": ("Orders",)},
        {"topics": ("a",) * 101},
        {"topics": ("acme.x.*", "evil.x.*")},
        {"topics": ("a*m.x.*",)},
        {"expires_at": datetime(2000, 1, 1, tzinfo=UTC)},
        {"expires_at": datetime(2999, 1, 1)},  # noqa: DTZ001
    ],
)
def test_a_wish_for_a_token_that_cannot_be_is_refused(
    doorkeeper: Doorkeeper, wish: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest):
        _made(doorkeeper, **wish)


def test_an_admin_of_a_tenant_has_that_tenants_tokens_alone(doorkeeper: Doorkeeper) -> None:
    other, _ = _made(doorkeeper, tenant="other")
    _, secret = _made(doorkeeper, scopes=("admin",))
    tokens = doorkeeper.tokens(doorkeeper.caller(_bearer(secret), HERE))
    assert [each.tenant for each in tokens.list()] == ["acme"]
    made = tokens.create(NewToken(name="more", tenant="acme", scopes=("query",)))
    assert tokens.revoke(made.token.id) == made.token
    with pytest.raises(NotFound):
        tokens.revoke(other)
    for tenant in ("other", "*"):
        with pytest.raises(Denied):
            tokens.create(NewToken(name="more", tenant=tenant, scopes=("query",)))
    some = Caller(tenant="acme", scopes=frozenset({"admin"}), topics=("a",), token_id="x")
    with pytest.raises(Denied):
        doorkeeper.tokens(some).create(NewToken(name="x", tenant="acme", scopes=("query",)))
    with pytest.raises(Denied):
        doorkeeper.tokens(some).list()
    with pytest.raises(Denied):
        doorkeeper.tokens(some).revoke(other)


def test_a_token_for_every_tenant_may_name_any(doorkeeper: Doorkeeper) -> None:
    assert _made(doorkeeper, tenant="*", topics=("acme.x.*", "*.sales.*"))
    assert _made(doorkeeper, topics=("a*e.x.*", "*.sales.*", "orders_*"))


def test_commands_tell_of_what_no_token_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str]:
        words = ("calve", "token", *words, "--data", str(tmp_path / "lake"))
        done = run_command(words, monkeypatch, capsys)
        return done.code, done.err

    code, said = run("create", "a", "--scope", "produce", "--expires-in", "999999999d")
    assert (code, "at most 115740d" in said) == (3, True)
    assert run("create", "a", "--scope", "produce", "--expires-in", "115740d")[0] == 0
    for words in (["--dry-run"], ["--yes"]):
        code, said = run("revoke", "zzz", *words)
        assert (code, "there is no token 'zzz'" in said) == (4, True)


@pytest.mark.parametrize("text", ["calve_a\ntoken 77fa of acme", "calve_ä", "calve_a b", "\0"])
def test_what_is_no_token_is_told_before_anything_is_sent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
) -> None:
    command = ["calve", "topic", "list", "--server", "grpc://127.0.0.1:9"]
    (tmp_path / "token").write_text(text)
    done = run_command([*command, "--token-file", str(tmp_path / "token")], monkeypatch, capsys)
    assert (done.code, "token holds no token" in done.err) == (3, True)
    assert "is one word" in done.err
    if "\0" not in text:
        monkeypatch.setenv("CALVE_TOKEN", text)
        done = run_command(command, monkeypatch, capsys)
        assert (done.code, "CALVE_TOKEN holds no token" in done.err) == (3, True)
    with pytest.raises(InvalidRequest, match="holds no token"):
        Client("grpc://127.0.0.1:9", token=text)
