"""Plain HTTP requests, where what matters is the answer and not what a browser makes of it."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message


@dataclass(frozen=True)
class HttpAnswer:
    """Status, headers and text of an answer, also when it is an error."""

    status: int
    headers: Message
    body: str


def answer(url: str, headers: dict[str, str] | None = None) -> HttpAnswer:
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return HttpAnswer(response.status, response.headers, response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return HttpAnswer(error.code, error.headers, error.read().decode())
