"""From log entries to acknowledged records: which topic, what was refused, what may be sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from culver.core.names import is_valid_topic_name
from culver.errors import KafkaError
from culver.gateway.errors import HttpError, Problem
from culver.gateway.gathering import gathered
from culver.gateway.ingest.events import Entry, Refused
from culver.gateway.private_topics import refuse_private
from culver.gateway.problems import RETRY_AFTER_SECONDS, http_error, unreachable
from culver.gateway.producing import Outgoing
from culver.gateway.routing import JSON, Answer, Handler, Parameter, Schema
from culver.gateway.services import services_of
from culver.wire_client import Unreachable

TOPIC_HEADER = "x-culver-topic"
TOPIC_PARAMETERS = (
    Parameter("topic", "The topic, instead of the one that is configured for log lines."),
    Parameter(
        TOPIC_HEADER, "The same as `topic`, for shippers that cannot change the address.", where="header"
    ),
)
_REASONS_MAX = 5

T = TypeVar("T")


@dataclass(slots=True)
class Outcome:
    """What became of the entries of one request. All that count as accepted are acknowledged by the cluster."""

    accepted: int = 0
    # Places among the entries, and why: these will be refused again however often they are sent.
    refused: list[tuple[int, str]] = field(default_factory=list)
    # What stood in the way of others, which may well be taken later.
    retriable: KafkaError | None = None

    @property
    def reason(self) -> str:
        """Why entries were refused, for a person: how many, and each reason once."""
        reasons = list(dict.fromkeys(reason for _, reason in self.refused))
        shown = "; ".join(reasons[:_REASONS_MAX])
        more = f"; and {len(reasons) - _REASONS_MAX} other reasons" if len(reasons) > _REASONS_MAX else ""
        return (
            f"{len(self.refused)} of {len(self.refused) + self.accepted} entries were refused: {shown}{more}"
        )


def topic_of(request: Request) -> str:
    """The topic that a request asks for, or the one that is configured. HttpError 422 when it is no topic's name."""
    return checked_topic(named_topic(request) or services_of(request).settings.ingest_topic)


def named_topic(request: Request) -> str | None:
    """The topic that a request asks for: in its query, or in a header."""
    return request.query_params.get("topic") or request.headers.get(TOPIC_HEADER)


def checked_topic(name: str) -> str:
    if not is_valid_topic_name(name):
        raise HttpError(Problem.INVALID_VALUE, f"{name[:300]!r} cannot be the name of a topic")
    refuse_private(name)
    return name


async def deliver(request: Request, topic: str, entries: Iterable[Entry | Refused]) -> Outcome:
    """Write the entries to the topic and wait until they are acknowledged by all in-sync replicas. Busy: 429."""
    outcome = Outcome()
    places: list[int] = []

    def outgoing() -> Iterator[Outgoing | None]:
        for place, entry in enumerate(entries):
            if isinstance(entry, Refused):
                outcome.refused.append((place, entry.reason))
                yield None
            else:
                places.append(place)
                yield Outgoing(topic, entry.value, entry.key)

    records = [record for record in await gathered(outgoing()) if record is not None]
    results = await services_of(request).producing.send(records, acks="all")
    for place, sent in zip(places, results, strict=True):
        if sent.error is None:
            outcome.accepted += 1
        elif sent.error.retriable:
            outcome.retriable = sent.error
        else:
            outcome.refused.append((place, str(sent.error)))
    outcome.refused.sort()
    return outcome


def try_later(error: KafkaError) -> HttpError:
    """503: shippers keep what they have and send it again. A part of it may be written already, and comes twice."""
    return HttpError(
        Problem.UNAVAILABLE,
        f"the cluster does not take it now: {error}",
        headers={"retry-after": str(RETRY_AFTER_SECONDS)},
    )


def errors_as(render: Callable[[Request, HttpError], Response]) -> Callable[[Handler], Handler]:
    """Errors of the handler in the form that its protocol asks for."""

    def wrapped(handler: Handler) -> Handler:
        @wraps(handler)
        async def call(request: Request) -> Response:
            try:
                return await handler(request)
            except HttpError as error:
                return render(request, error)
            except KafkaError as error:
                return render(request, try_later(error) if error.retriable else http_error(error))
            except Unreachable as error:
                return render(request, unreachable(error))

        return call

    return wrapped


_REFUSALS = {
    400: "The body cannot be understood, or entries of it cannot.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    415: "The media type or the Content-Encoding is not served here.",
    422: "The topic's name cannot be used, or the body is damaged.",
    429: "Too much is under way; Retry-After says when to send it again.",
    503: "The cluster does not take it now; Retry-After says when to send it again.",
}


def refusals(schema: Schema, media_types: tuple[str, ...] = (JSON,)) -> dict[int, Answer]:
    """The errors of a protocol that has a body of its own for them."""
    return {status: Answer(doc, schema, media_types) for status, doc in _REFUSALS.items()}


def media_type(request: Request) -> str:
    """The body's media type without its parameters, in small letters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
