"""/api/search: log lines of the log store."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from culver.gateway.console.log_search import SearchAnswer, Wanted
from culver.gateway.console.parameters import moment_ms, number, number_parameter, words
from culver.gateway.routing import Answer, Endpoint, Parameter, json_response
from culver.gateway.services import services_of

_LIMIT_DEFAULT, _LIMIT_MAX = 100, 1000
_BUCKETS_DEFAULT, _BUCKETS_MAX = 60, 500
_QUERY_LENGTH_MAX = 4000


async def search(request: Request) -> Response:
    services = services_of(request)
    wanted = Wanted(
        text=words(request, "q", _QUERY_LENGTH_MAX),
        since_us=_moment_us(request, "since"),
        until_us=_moment_us(request, "until"),
        where=words(request, "where", _QUERY_LENGTH_MAX),
        limit=number(request, "limit", _LIMIT_DEFAULT, least=1, most=_LIMIT_MAX),
        buckets=number(request, "histogram", _BUCKETS_DEFAULT, most=_BUCKETS_MAX),
    )
    return json_response(await services.console.log_search.find(wanted))


def _moment_us(request: Request, name: str) -> int | None:
    text = words(request, name)
    return moment_ms(text, name) * 1000 if text else None


ROUTES = [
    Endpoint(
        "GET",
        "/api/search",
        search,
        "Log lines of the log store, newest first, and how many there are over time.",
        "console",
        parameters=(
            Parameter("q", 'Words that all occur, "phrases", prefix*, OR, NOT and parentheses.'),
            Parameter("since", "Not older: ISO 8601, milliseconds since 1970, or an age such as 2h."),
            Parameter("until", "Older than this time."),
            Parameter("where", "A condition on columns: level = 'ERROR' AND fields.status >= 500."),
            number_parameter("limit", "How many lines at most.", _LIMIT_DEFAULT, least=1, most=_LIMIT_MAX),
            number_parameter(
                "histogram",
                "How many stretches of time to count in at most; 0 for no counting.",
                _BUCKETS_DEFAULT,
                most=_BUCKETS_MAX,
            ),
        ),
        answers={200: Answer("What was found.", SearchAnswer)},
        errors=(409, 422, 429, 501, 504),
    ),
]
