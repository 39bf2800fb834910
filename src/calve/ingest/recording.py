"""What is done at a door is recorded as done by whoever is there; also what was refused there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from calve.audit import Actor, actions, at_door
from calve.errors import CalveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from calve.access import Caller
    from calve.audit import Door
    from calve.ingest.intake import Intake

# The administrative actions of Flight have their names; here are those of HTTP, by method and path.
HTTP_ACTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("POST", "/v1/topics"): "topic.create",
    ("PATCH", "/v1/topics/{topic}"): "topic.alter",
    ("DELETE", "/v1/topics/{topic}"): "topic.delete",
    ("POST", "/v1/topics/{topic}/dead-letters/replay"): "dead_letter.replay",
    ("POST", "/v1/topics/{topic}/dead-letters/discard"): "dead_letter.discard",
    ("POST", "/v1/topics/{topic}/subscriptions/{name}/seek"): "subscription.seek",
    ("POST", "/v1/topics/{topic}/subscriptions/{name}/reset"): "subscription.reset",
    ("DELETE", "/v1/topics/{topic}/subscriptions/{name}"): "subscription.delete",
    ("POST", "/v1/pipeline/pause"): "pipeline.pause",
    ("POST", "/v1/pipeline/resume"): "pipeline.resume",
    ("POST", "/v1/pipeline/skip"): "pipeline.skip",
    ("POST", "/v1/tokens"): "token.create",
    ("DELETE", "/v1/tokens/{id}"): "token.revoke",
}


def acting(who: Callable[[], Caller | None], door: str) -> AbstractContextManager[Door]:
    """For doors where rows come in, which may make a topic: that is recorded too."""
    return at_door(lambda: _actor(who(), door))


@contextmanager
def recording_door(
    intake: Intake,
    who: Callable[[], Caller | None],
    door: str,
    action: str,
    subject: str,
) -> Iterator[None]:
    """`who` is asked when something is recorded; somebody who is not known is not recorded."""
    with acting(who, door) as request:
        try:
            yield
        except CalveError as error:
            if action in actions.ALL and not request.is_recorded and who() is not None:
                intake.audit.refused(action, subject, error)
            raise


def _actor(caller: Caller | None, door: str) -> Actor:
    assert caller is not None
    return Actor(
        kind="client" if caller.token_id is None else "token",
        name=caller.name,
        address=caller.address,
        door=door,
        token=caller.token_id,
        tenant=caller.only_tenant,
    )
