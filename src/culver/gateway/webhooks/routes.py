"""The endpoints of webhooks, under /api/webhooks."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.gateway.errors import HttpError, Problem
from culver.gateway.routing import JSON, Answer, Endpoint, Handler, json_response
from culver.gateway.services import services_of
from culver.gateway.webhooks.service import Tested, Webhooks
from culver.gateway.webhooks.status import Status
from culver.gateway.webhooks.subscription import Shown, Subscription, Wanted, shown

_TAG = "webhooks"
_BODY_MAX_BYTES = 1 << 20

_decode = msgspec.json.Decoder(Wanted).decode


class Webhook(msgspec.Struct):
    """A webhook and how it is doing."""

    webhook: Shown
    status: Status


class Created(msgspec.Struct):
    """A new webhook. `secret` is there when it was made up, this once."""

    webhook: Shown
    secret: str | None


class WebhookList(msgspec.Struct):
    """All webhooks, by name."""

    webhooks: list[Webhook]


def _webhooks(request: Request) -> Webhooks:
    return services_of(request).webhooks


async def _wanted(request: Request) -> Wanted:
    async with services_of(request).admission.body(request, max_bytes=_BODY_MAX_BYTES) as body:
        try:
            return _decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise HttpError(Problem.INVALID_JSON, str(error)) from None


async def _described(request: Request, subscriptions: list[Subscription]) -> list[Webhook]:
    statuses = await _webhooks(request).statuses(subscriptions)
    return [Webhook(shown(each), status) for each, status in zip(subscriptions, statuses, strict=True)]


async def list_webhooks(request: Request) -> Response:
    """All of them."""
    return json_response(WebhookList(await _described(request, await _webhooks(request).all())))


async def create(request: Request) -> Response:
    """Make one."""
    wanted = await _wanted(request)
    subscription = await _webhooks(request).create(wanted)
    secret = subscription.secrets[0] if wanted.secret is msgspec.UNSET else None
    location = {"location": f"/api/webhooks/{subscription.name}"}
    return json_response(Created(shown(subscription), secret), status=201, headers=location)


async def get(request: Request) -> Response:
    """One of them."""
    subscription = await _webhooks(request).get(request.path_params["name"])
    return json_response((await _described(request, [subscription]))[0])


async def replace(request: Request) -> Response:
    """Change one."""
    wanted = await _wanted(request)
    return json_response(shown(await _webhooks(request).replace(request.path_params["name"], wanted)))


async def delete(request: Request) -> Response:
    """Delete one."""
    await _webhooks(request).remove(request.path_params["name"])
    return Response(status_code=204)


async def pause(request: Request) -> Response:
    """Stop sending."""
    return json_response(shown(await _webhooks(request).pause(request.path_params["name"])))


async def resume(request: Request) -> Response:
    """Send again."""
    return json_response(shown(await _webhooks(request).resume(request.path_params["name"])))


async def test(request: Request) -> Response:
    """Try the receiver."""
    return json_response(await _webhooks(request).test(request.path_params["name"]))


_ONE = "/api/webhooks/{name}"
_LOOK = (404, 503, 504)
_CHANGE = (403, 404, 500, 503, 504)
_WRITE = (403, 404, 408, 413, 415, 422, 429, 500, 503, 504)


def _action(name: str, handler: Handler, summary: str, answer: Answer) -> Endpoint:
    """A POST that does something to one webhook, and needs no body."""
    return Endpoint("POST", f"{_ONE}/{name}", handler, summary, _TAG, answers={200: answer}, errors=_CHANGE)


ROUTES = [
    Endpoint(
        "GET",
        "/api/webhooks",
        list_webhooks,
        "All webhooks, and how they are doing.",
        _TAG,
        answers={200: Answer("By name.", WebhookList)},
        errors=_LOOK,
    ),
    Endpoint(
        "POST",
        "/api/webhooks",
        create,
        "Create a webhook.",
        _TAG,
        bodies={JSON: Wanted},
        answers={201: Answer("It runs, unless it is paused.", Created)},
        errors=(409, *_WRITE),
        description="Without a secret one is made up, and told in the answer, this once.",
    ),
    Endpoint(
        "GET",
        _ONE,
        get,
        "A webhook, and how it is doing.",
        _TAG,
        answers={
            200: Answer("The status is what this gateway sees; the lag is that of the cluster.", Webhook)
        },
        errors=_LOOK,
    ),
    Endpoint(
        "PUT",
        _ONE,
        replace,
        "Replace a webhook.",
        _TAG,
        bodies={JSON: Wanted},
        answers={200: Answer("As it is now.", Shown)},
        errors=_WRITE,
        description="What is left out takes its default; but secret and headers stay as they are.",
    ),
    Endpoint(
        "DELETE",
        _ONE,
        delete,
        "Delete a webhook.",
        _TAG,
        answers={204: Answer("Nothing more is sent.")},
        errors=_CHANGE,
    ),
    _action("pause", pause, "Pause a webhook: its lag grows until it is resumed.", Answer("Paused.", Shown)),
    _action("resume", resume, "Resume a webhook where it was paused.", Answer("Not paused.", Shown)),
    _action(
        "test",
        test,
        "Send a sample record to the receiver, once.",
        Answer("What came of it; also when the receiver failed.", Tested),
    ),
]
