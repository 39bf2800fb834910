"""Where a command about topics works: in the lake, in this process, or through its service."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import click
import msgspec

from calve.cli.options import Call
from calve.cli.output import say
from calve.errors import InvalidRequest
from calve.model import TableName
from calve.settings import environment_token
from calve.settings.bearer import require_token

if TYPE_CHECKING:
    from calve.access import Need
    from calve.client import Client
    from calve.ingest import Intake
    from calve.lake import Lake
    from calve.settings import Settings

_F = TypeVar("_F", bound=Callable[..., Any])
_FILE_KEY: Final = "calve.token_file"


class TokenOption(click.Option):
    """`--token-file`, which knows the scope that its command needs."""

    def __init__(self, *given: Any, scope: Need, **named: Any) -> None:
        super().__init__(*given, **named)
        self.scope = scope


class Topics(Protocol):
    """What can be done with topics, wherever they are; bodies and answers as the service has
    them."""

    def create(self, topic: str, spec: Mapping[str, Any]) -> dict[str, Any]: ...
    def list(self) -> list[dict[str, Any]]: ...
    def describe(self, topic: str) -> dict[str, Any]: ...
    def alter(self, topic: str, change: Mapping[str, Any]) -> dict[str, Any]: ...
    def new_log(self, topic: str) -> int: ...
    def delete(self, topic: str) -> None: ...
    def flush(self, topic: str, timeout_seconds: float) -> dict[str, Any]: ...


def server_option(scope: Need) -> Callable[[_F], _F]:
    """Give a command `--server` and `--token-file`; `scope` is that of the token it then needs."""

    def decorate(command: _F) -> _F:
        option = click.option(
            "--server",
            metavar="URL",
            envvar="CALVE_SERVER",
            help="The service to ask, such as grpc://127.0.0.1:8815; also as CALVE_SERVER. Without "
            "it, the one that runs in the lake, or the lake itself.",
        )
        return option(token_option(scope)(command))

    return decorate


def token_option(scope: Need) -> Callable[[_F], _F]:
    """Give a command `--token-file`, which `client_of` finds by itself."""

    def keep(context: click.Context, _: click.Parameter, value: Path | None) -> None:
        context.meta[_FILE_KEY] = value

    needed = "any token will do" if scope == "any" else f"it needs the scope {scope}"
    return click.option(
        "--token-file",
        cls=TokenOption,
        scope=scope,
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        expose_value=False,
        callback=keep,
        help=f"Holds the token to show to the service: {needed}. Without it, CALVE_TOKEN; on the "
        "service's own host, none is needed.",
    )


def token_for(settings: Settings, url: str) -> str | None:
    """The token to show to a service."""
    file: Path | None = click.get_current_context().meta.get(_FILE_KEY)
    if file is not None:
        return _read_token(file)
    given = environment_token()
    if given is not None:
        return require_token(given.reveal(), "CALVE_TOKEN")
    from calve.service.host_token import host_token

    return host_token(settings, url)


def _read_token(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"--token-file: {file} cannot be read", hint="see that it is there, and is yours"
        ) from error
    if not token:
        raise InvalidRequest(f"--token-file: {file} is empty", hint="put the token into it")
    return require_token(token, f"--token-file: the file {file}")


def service_url(settings: Settings, server: str | None) -> str | None:
    """The service to work through: the one that was named, or the one that has the lake."""
    if server is not None:
        return server
    from calve.service.announcement import running_service

    running = running_service(settings)
    return running.addresses.from_here().flight if running else None


def client_of(settings: Settings, url: str) -> Client:
    """A client with the token of the command, which trusts the certificate of the settings too."""
    from calve.client import Client
    from calve.client.tls import client_tls

    return Client(url, token=token_for(settings, url), **client_tls(settings))


@contextmanager
def subscribing_at(call: Call, server: str | None) -> Iterator[Lake | Client]:
    """What has topics to read and subscriptions, and words that say where they are."""
    settings = call.settings()
    url = service_url(settings, server)
    if url is None:
        from calve.lake import Lake

        with Lake(settings, create=False) as lake:
            say(f"in the lake at {settings.data}; no service is running")
            yield lake
    else:
        say(f"through the service at {url}")
        with client_of(settings, url) as client:
            yield client


@contextmanager
def topics_at(call: Call, server: str | None) -> Iterator[Topics]:
    """The topics, and words to standard error that say where they are."""
    settings = call.settings()
    url = service_url(settings, server)
    if url is None:
        say(f"in the lake at {settings.data}; no service is running")
        with ExitStack() as open_things:
            yield _TopicsOfLake(settings, open_things)
    else:
        say(f"through the service at {url}")
        with client_of(settings, url) as client:
            yield _TopicsOfService(client)


class _TopicsOfLake:
    """Looks at the lake's files, and takes the part of the service only for a change.

    Only `create` makes a lake that is not there yet.
    """

    def __init__(self, settings: Settings, open_things: ExitStack) -> None:
        self._settings = settings
        self._open_things = open_things

    @cached_property
    def _intake(self) -> Intake:
        from calve.lake import Lake

        return self._open_things.enter_context(Lake(self._settings)).intake

    def create(self, topic: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        return self._made("topic.create", topic, spec)

    def list(self) -> list[dict[str, Any]]:
        from calve.service.survey import topics_on_disk

        return topics_on_disk(self._settings)

    def describe(self, topic: str) -> dict[str, Any]:
        wanted = str(TableName.parse(topic))
        found = next((each for each in self.list() if each["name"] == wanted), None)
        return found or self._done("topic.describe", topic)

    def alter(self, topic: str, change: Mapping[str, Any]) -> dict[str, Any]:
        return self._done("topic.alter", topic, change)

    def new_log(self, topic: str) -> int:
        self.describe(topic)
        return self._intake.adopt_new_log(TableName.parse(topic))

    def delete(self, topic: str) -> None:
        self._done("topic.delete", topic)

    def flush(self, topic: str, timeout_seconds: float) -> dict[str, Any]:
        return self._done("flush", topic, {"timeout_seconds": timeout_seconds})

    def _done(
        self, action: str, topic: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        from calve.service.directing import require_lake

        require_lake(self._settings)
        return self._made(action, topic, body or {})

    def _made(self, action: str, topic: str, body: Mapping[str, Any]) -> dict[str, Any]:
        from calve.access import Caller
        from calve.ingest.flight.actions import perform

        request = msgspec.json.encode({"topic": topic, **body})
        done = perform(self._intake, Caller.of_host(), action, request)
        answer: dict[str, Any] = msgspec.json.decode(done)
        return answer


class _TopicsOfService:
    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, topic: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        return self._client.create_topic(topic, **spec)

    def list(self) -> list[dict[str, Any]]:
        return self._client.describe_topics()

    def describe(self, topic: str) -> dict[str, Any]:
        return self._client.describe_topic(topic)

    def alter(self, topic: str, change: Mapping[str, Any]) -> dict[str, Any]:
        return self._client.alter_topic(topic, **change)

    def new_log(self, topic: str) -> int:
        raise click.UsageError(
            f"--new-log is for the lake itself: stop the service, then run this for {topic} again"
        )

    def delete(self, topic: str) -> None:
        self._client.delete_topic(topic)

    def flush(self, topic: str, timeout_seconds: float) -> dict[str, Any]:
        self._client.flush(topic, timeout_seconds, to_table=True)
        offsets: dict[str, Any] = self._client.describe_topic(topic)["offsets"]
        return offsets
