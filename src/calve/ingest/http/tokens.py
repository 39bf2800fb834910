"""Tokens: `/v1/tokens` and `/v1/tokens/{id}`."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from calve.ingest import tokens
from calve.ingest.http.callers import caller_of
from calve.ingest.http.operation import Answer, Operation, Parameter
from calve.ingest.http.parameters import CHANGING, asked, json_of
from calve.ingest.http.service import Service, answer
from calve.ingest.tokens import NewTokenView, TokenList, TokenOrder, TokenView

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from calve.access import Tokens


async def create_token(service: Service, request: Request) -> Response:
    order = await service.document(request, TokenOrder)
    made = await service.in_thread(tokens.create_token, _tokens(service, request), order)
    return answer(made, HTTPStatus.CREATED)


async def list_tokens(service: Service, request: Request) -> Response:
    return answer(await service.in_thread(tokens.list_tokens, _tokens(service, request)))


async def revoke_token(service: Service, request: Request) -> Response:
    mine, wanted = _tokens(service, request), request.path_params["id"]
    return answer(await service.in_thread(tokens.revoke_token, mine, wanted))


def _tokens(service: Service, request: Request) -> Tokens:
    return service.intake.doorkeeper.tokens(caller_of(request))


TOKENS: Final = (
    asked(
        "GET /v1/tokens",
        list_tokens,
        "List tokens",
        scope="admin",
        gives=("those of the caller's tenant; for an operator all", TokenList),
    ),
    Operation(
        method="POST",
        path="/v1/tokens",
        scope="admin",
        handler=create_token,
        summary="Make a token",
        tells="Its secret is in this answer alone. One for every tenant is made on the host.",
        body=json_of(TokenOrder),
        answers=(Answer(201, "the token with its secret", json_of(NewTokenView)),),
        problems=CHANGING,
    ),
    asked(
        "DELETE /v1/tokens/{id}",
        revoke_token,
        "Revoke a token",
        scope="admin",
        gives=("the token as it was; it ends within five seconds everywhere", TokenView),
        parameters=(
            Parameter(
                name="id",
                place="path",
                meaning="the token's id",
                schema={"type": "string", "minLength": 1, "maxLength": 64},
                is_required=True,
            ),
        ),
        problems=(404,),
    ),
)
