"""One receiver over HTTP: posts a body and says what came of it, whatever the receiver does.

Nothing the receiver does takes longer than the webhook's timeout or more than a few kilobytes: the status decides, and
of the body only the beginning is read, for a person to see. Redirects are not followed, cookies not kept, compressed
answers not unpacked, proxies of the environment not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

import aiohttp

import culver
from culver.gateway.webhooks.target_check import (
    Allowance,
    CheckedResolver,
    TargetRefused,
    literal_refusal,
    target_of,
)

GONE = 410
# A connection that has not come about by then will not, or is not worth waiting for.
CONNECT_TIMEOUT_SECONDS = 10.0
_ANSWER_BYTES_MAX = 4096
# Of an answer whose status is known, the rest is not worth more.
_DRAIN_SECONDS = 0.5
_SHOWN_CHARACTERS_MAX = 200
_IDLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one call. `status` is None when there was no answer."""

    status: int | None
    error: str = ""
    retry_after_ms: float | None = None
    # This gateway may not call the target: nothing was sent.
    refused: bool = False

    @property
    def acknowledged(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class Endpoint:
    """The URL of one webhook, with connections of its own: at most as many as calls may be made at once."""

    def __init__(self, url: str, allowance: Allowance, *, concurrency: int, timeout_ms: int) -> None:
        """Only in a running event loop."""
        self._url = target_of(url)
        self._allowance = allowance
        self._timeout_s = timeout_ms / 1000
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=concurrency, resolver=CheckedResolver(allowance), keepalive_timeout=_IDLE_SECONDS
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": f"culver-webhooks/{culver.__version__}"},
            skip_auto_headers=("accept-encoding",),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_SECONDS),
            auto_decompress=False,
            trust_env=False,
        )

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Outcome:
        """Make one call. Never raises for what the receiver or the network does."""
        # Written as an address, the host is not looked up, so the resolver does not see it.
        refused = literal_refusal(self._url.raw_host or "", self._allowance)
        if refused is not None:
            return Outcome(None, refused, refused=True)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(body, headers)
        except TimeoutError:
            return Outcome(None, f"no answer within {self._timeout_s:g} seconds")
        except TargetRefused as error:
            return Outcome(None, str(error), refused=True)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Outcome(None, _printable(f"{type(error).__name__}: {error}"))

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> Outcome:
        response = await self._session.post(
            self._url, data=body, headers=dict(headers), allow_redirects=False
        )
        try:
            beginning = await _beginning(response)
        finally:
            # Closes the connection unless the answer has been read to its end.
            response.close()
        status = response.status
        if 200 <= status < 300:
            return Outcome(status)
        told = _printable(beginning.decode(errors="replace"))
        if 300 <= status < 400:
            told = "redirects are not followed"
        return Outcome(
            status,
            f"status {status}: {told}" if told else f"status {status}",
            retry_after_ms(response.headers.get("retry-after"), time.time()),
        )

    async def close(self) -> None:
        await self._session.close()


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """The first bytes of an answer, or what has come of them in good time. Reading its end frees the connection."""
    read = b""
    with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while len(read) < _ANSWER_BYTES_MAX:
                chunk = await response.content.read(_ANSWER_BYTES_MAX - len(read))
                if not chunk:
                    break
                read += chunk
    return read


def retry_after_ms(header: str | None, now_s: float) -> float | None:
    """What a Retry-After header asks for: seconds, or a date. None when there is none that makes sense."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:10]) * 1000
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment.timestamp() - now_s) * 1000)


def _printable(text: str) -> str:
    """What a receiver says, fit for a log line and a page."""
    kept = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(kept.split())[:_SHOWN_CHARACTERS_MAX]
