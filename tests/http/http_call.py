"""One HTTP request from a test, with a client that knows nothing of the gateway, and what came back."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Called:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error_code(self) -> int:
        return self.json["error_code"]


def call(
    method: str,
    url: str,
    body: bytes | str | Mapping[str, Any] | None = None,
    content_type: str | None = None,
    **headers: str,
) -> Called:
    """A mapping is sent as JSON. Underscores in the names of headers stand for hyphens."""
    if isinstance(body, Mapping):
        body, content_type = json.dumps(body).encode(), content_type or "application/json"
    elif isinstance(body, str):
        body = body.encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if content_type is not None:
        sent["content-type"] = content_type
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    try:
        target = where.path + (f"?{where.query}" if where.query else "")
        connection.request(method, target, body, sent)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Called(answer.status, found, answer.read())
    finally:
        connection.close()
