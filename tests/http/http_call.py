"""One HTTP request to a whole address, as tests of shippers and consumers make them, and what came back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import http_client
from http_client import Reply


def call(
    method: str,
    url: str,
    body: bytes | str | Mapping[str, Any] | None = None,
    content_type: str | None = None,
    **headers: str,
) -> Reply:
    """A mapping is sent as JSON. Underscores in the names of headers stand for hyphens."""
    if isinstance(body, Mapping):
        body, content_type = json.dumps(body).encode(), content_type or "application/json"
    elif isinstance(body, str):
        body = body.encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if content_type is not None:
        sent["content-type"] = content_type
    where = urlsplit(url)
    target = where.path + (f"?{where.query}" if where.query else "")
    return http_client.call(url, method, target, body, sent)


def error_code(reply: Reply) -> int:
    """The number of an error."""
    return reply.json["error_code"]
