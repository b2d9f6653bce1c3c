"""The endpoints of push, as the API describes them."""

from __future__ import annotations

from starlette.routing import WebSocketRoute

from culver.gateway.push import sse, websocket
from culver.gateway.push.wish import AUTO, CREDITS_DEFAULT, CREDITS_MAX, EXPLICIT
from culver.gateway.routing import JSON, Answer, Endpoint, Parameter

_TAG = "push"

ROUTES = [
    Endpoint(
        "GET",
        "/push/sse",
        sse.events,
        "Records as server-sent events.",
        _TAG,
        parameters=(
            Parameter(
                "topic",
                "The topics, one parameter each.",
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                required=True,
            ),
            Parameter("group", "A group to share the topics with, whose offsets are committed."),
            Parameter(
                "from",
                "Where to begin: latest (if not given), earliest, @MILLISECONDS, or positions as in the ids of "
                "events. With a group: for partitions without a committed offset.",
            ),
            Parameter("ack", "How records are acknowledged.", {"enum": [EXPLICIT, AUTO]}),
            Parameter(
                "credits",
                f"Records that may be sent and not acknowledged; {CREDITS_DEFAULT} with ack=explicit.",
                {"type": "integer", "minimum": 0, "maximum": CREDITS_MAX},
            ),
            Parameter("last_event_id", "As the header Last-Event-ID, for clients that cannot set it."),
            Parameter("Last-Event-ID", "The id of the last event of an earlier stream.", where="header"),
        ),
        answers={200: Answer("A stream that does not end.", {"type": "string"}, (sse.MEDIA_TYPE,))},
        errors=(404, 422, 429, 503),
        description="Each record is an event `record`; its id holds the positions of all partitions after it.",
    ),
    Endpoint(
        "POST",
        "/push/ack",
        sse.acknowledge,
        "Acknowledge the events of a stream up to one of them.",
        _TAG,
        bodies={JSON: sse.Acknowledgement},
        answers={200: Answer("Stored.", sse.Acknowledged)},
        errors=(404, 413, 422, 429, 503),
    ),
]
WEBSOCKETS = [WebSocketRoute("/push/ws", websocket.push)]
