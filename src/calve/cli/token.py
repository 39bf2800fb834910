"""`calve token`: who may use the service, and for what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import click
import msgspec

from calve.cli.opened import confirm, destroying
from calve.cli.options import Call, common_options
from calve.cli.output import print_json, print_table, say
from calve.cli.place import client_of, server_option
from calve.errors import InvalidRequest, NotFound

_SCOPES: Final = ("produce", "subscribe", "query", "admin", "pipeline")
_EVERY_TENANT: Final = "*"
_DURATION: Final = re.compile(r"(\d{1,9})([smhd])")
_SECONDS_MAX: Final = 10**10  # as the service has it
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class _Tokens(Protocol):
    """Wherever they are; as the service shows them."""

    def create(self, name: str, scopes: list[str], **wish: Any) -> dict[str, Any]: ...
    def list(self) -> list[dict[str, Any]]: ...
    def revoke(self, token_id: str) -> dict[str, Any]: ...


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(_SCOPES),
    multiple=True,
    required=True,
    help="What it is for; can be given again.",
)
@click.option("--tenant", metavar="NAME", help="Whose it is; without it, default.")
@click.option("--every-tenant", is_flag=True, help="For operators; only on the host.")
@click.option(
    "--topics",
    metavar="PATTERN",
    multiple=True,
    help="Only these topics, such as orders_*; can be given again.",
)
@click.option("--dataset", metavar="NAME", help="Where short names are; without it, default.")
@click.option("--expires-in", metavar="TIME", help="Such as 12h or 30d; without it, never.")
@server_option("admin")
@common_options
def create(call: Call, name: str, *, server: str | None, **options: Any) -> None:
    """Make a token. Its secret is printed once, and kept nowhere.

    Without --server in the lake itself, which is how the first one is made; the running service
    knows it at once.

    \b
    Example: calve token create shop --scope produce --tenant acme
    Example: calve token create ops --scope admin --every-tenant > ops.token
    Example: calve token create bi --scope query --topics "sales_*" --expires-in 30d
    """
    with _tokens(call, server) as tokens:
        made = tokens.create(name, list(options["scopes"]), **_wish(options))
    if call.as_json:
        print_json(made)
        return
    click.echo(made["secret"])
    say(
        f"token {made['id']} of {_tenant(made)}, for {', '.join(made['scopes'])}: it is shown "
        "this once"
    )


@click.command("list")
@server_option("admin")
@common_options
def list_all(call: Call, *, server: str | None) -> None:
    """List the tokens, without their secrets.

    \b
    Example: calve token list
    """
    with _tokens(call, server) as tokens:
        found = tokens.list()
    if call.as_json:
        print_json(found)
        return
    print_table(
        ("ID", "TENANT", "NAME", "SCOPES", "EXPIRES", "TOPICS"), [_row(each) for each in found]
    )


@click.command()
@click.argument("token_id", metavar="ID")
@destroying
@server_option("admin")
@common_options
def revoke(call: Call, token_id: str, *, dry_run: bool, yes: bool, server: str | None) -> None:
    """Have a token count no more; it ends within five seconds, also where it is in use.

    \b
    Example: calve token revoke 3f9a51c07b2d4e68 --yes
    """
    with _tokens(call, server) as tokens:
        if dry_run:
            gone = _found(tokens, token_id)
        else:
            confirm(f"Revoke the token {token_id}?", yes=yes)
            gone = tokens.revoke(token_id)
    if call.as_json:
        print_json(gone)
    else:
        done = "would be revoked" if dry_run else "is revoked"
        say(f"token {gone['id']}, {gone['name']!r} of {_tenant(gone)}, {done}")


def _found(tokens: _Tokens, token_id: str) -> dict[str, Any]:
    for each in tokens.list():
        if each["id"] == token_id:
            return each
    raise NotFound(f"there is no token {token_id!r}", hint="`calve token list` shows their ids")


@contextmanager
def _tokens(call: Call, server: str | None) -> Iterator[_Tokens]:
    settings = call.settings()
    if server is not None:
        say(f"through the service at {server}")
        with client_of(settings, server) as client:
            yield client.tokens
        return
    from calve.access import Caller, Tokens
    from calve.audit import Trail
    from calve.clock import SystemClock
    from calve.state import open_state

    say(f"in the lake at {settings.data}")
    clock = SystemClock()
    with closing(open_state(settings, clock=clock)) as state:
        yield _OfLake(
            Tokens(state, Caller.of_host(), clock=clock, trail=Trail.of(settings, clock=clock))
        )


class _OfLake:
    def __init__(self, tokens: Any) -> None:
        self._tokens = tokens

    def create(self, name: str, scopes: list[str], **wish: Any) -> dict[str, Any]:
        from calve.ingest.tokens import TokenOrder, create_token

        order = msgspec.convert({"name": name, "scopes": scopes, **wish}, TokenOrder)
        return _plain(create_token(self._tokens, order))

    def list(self) -> list[dict[str, Any]]:
        from calve.ingest.tokens import list_tokens

        found: list[dict[str, Any]] = _plain(list_tokens(self._tokens))["tokens"]
        return found

    def revoke(self, token_id: str) -> dict[str, Any]:
        from calve.ingest.tokens import revoke_token

        return _plain(revoke_token(self._tokens, token_id))


def _wish(options: dict[str, Any]) -> dict[str, Any]:
    """What a token is asked to be, without what was not said."""
    if options["every_tenant"] and options["tenant"]:
        raise click.UsageError("--tenant and --every-tenant exclude each other")
    wish = {
        "tenant": _EVERY_TENANT if options["every_tenant"] else options["tenant"],
        "topics": list(options["topics"]) or None,
        "dataset": options["dataset"],
        "expires_in_seconds": _seconds(options["expires_in"]),
    }
    return {key: value for key, value in wish.items() if value is not None}


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    found = _DURATION.fullmatch(text)
    if found is None or found[1].strip("0") == "":
        raise InvalidRequest(
            f"--expires-in: {text!r} is no time", hint="write a number and s, m, h or d: 30d"
        )
    seconds = int(found[1]) * _SECONDS[found[2]]
    if seconds > _SECONDS_MAX:
        raise InvalidRequest(
            f"--expires-in: {text} is longer than a token can last",
            hint=f"write at most {_SECONDS_MAX // _SECONDS['d']}d, or leave it out for no end",
        )
    return seconds


def _plain(value: object) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(value)
    return values


def _row(token: dict[str, Any]) -> tuple[str, ...]:
    return (
        token["id"],
        _tenant(token),
        token["name"],
        ",".join(token["scopes"]),
        _expiry(token["expires_at"]),
        ",".join(token["topics"]),
    )


def _tenant(token: dict[str, Any]) -> str:
    tenant: str = token["tenant"]
    return "every tenant" if tenant == _EVERY_TENANT else tenant


def _expiry(text: str | None) -> str:
    if text is None:
        return "never"
    at = datetime.fromisoformat(text)
    return f"{at:%Y-%m-%d %H:%M}{' (over)' if at <= datetime.now(UTC) else ''}"
