"""Log lines as a small web shop would write them, several formats and services, for the demo."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime

NEEDLE = "certificate expired"

_PAGES = ("/", "/search", "/basket", "/checkout", "/orders/%d", "/static/app.js")
_LEVELS = ("debug", "info", "info", "info", "info", "warn", "error")
_API = (
    "order %d accepted",
    "payment for order %d refused: card declined",
    "stock of article %d is low",
    "customer %d signed in",
    "timeout while waiting for the warehouse, order %d",
)
_DATABASE = ("checkpoint complete, %d buffers", "slow query: %d ms", "connection %d closed")


class ShopLines:
    """An endless supply of lines, the same ones for the same seed but for their times."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._makers: tuple[Callable[[datetime], str], ...] = (
            self._access,
            self._access,
            self._json,
            self._json,
            self._logfmt,
            self._syslog,
            self._plain,
        )

    def lines(self, count: int) -> list[str]:
        now = datetime.now(UTC)
        return [self._random.choice(self._makers)(now) for _ in range(count)]

    @staticmethod
    def needle() -> str:
        """The one line that somebody will look for."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        return json.dumps(
            {"time": moment, "level": "error", "service": "mail", "msg": f"cannot send invoice: {NEEDLE}"}
        )

    def _access(self, now: datetime) -> str:
        pick = self._random
        page = pick.choice(_PAGES).replace("%d", str(pick.randrange(10_000)))
        status = pick.choices((200, 304, 404, 500), (90, 5, 4, 1))[0]
        return (
            f"10.{pick.randrange(4)}.{pick.randrange(256)}.{pick.randrange(256)} - - [{now:%d/%b/%Y:%H:%M:%S} +0000] "
            f'"GET {page} HTTP/1.1" {status} {pick.randrange(50_000)} "-" "Mozilla/5.0"'
        )

    def _json(self, now: datetime) -> str:
        pick = self._random
        return json.dumps(
            {
                "time": now.isoformat(timespec="milliseconds"),
                "level": pick.choice(_LEVELS),
                "service": "api",
                "msg": pick.choice(_API).replace("%d", str(pick.randrange(100_000))),
                "ms": pick.randrange(900),
            }
        )

    def _logfmt(self, now: datetime) -> str:
        pick = self._random
        message = pick.choice(_API).replace("%d", str(pick.randrange(100_000)))
        moment = now.isoformat(timespec="milliseconds")
        return f'time={moment} level={pick.choice(_LEVELS)} service=stock msg="{message}" attempt={pick.randrange(3)}'

    def _syslog(self, now: datetime) -> str:
        pick = self._random
        message = pick.choice(_DATABASE).replace("%d", str(pick.randrange(5_000)))
        moment = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return f"<{pick.choice((131, 134, 134, 134))}>1 {moment} db{pick.randrange(3)} postgres 712 - - {message}"

    def _plain(self, now: datetime) -> str:
        return f"{now:%Y-%m-%d %H:%M:%S} WARN cache is cold, warming up segment {self._random.randrange(64)}"
