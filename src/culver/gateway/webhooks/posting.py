"""Records of a webhook on their way to its receiver: body, identity and signatures put together and posted."""

from __future__ import annotations

import time
from collections.abc import Sequence

from culver.gateway.reading.record import Record
from culver.gateway.webhooks.endpoint import Endpoint, Outcome
from culver.gateway.webhooks.payload import body_of, call_id
from culver.gateway.webhooks.signature import key_of, signature_headers
from culver.gateway.webhooks.subscription import Subscription
from culver.gateway.webhooks.target_check import Allowance


class Poster:
    """Posts for one webhook, until it is closed."""

    def __init__(self, subscription: Subscription, allowance: Allowance) -> None:
        self._subscription = subscription
        self._keys = [key_of(secret) for secret in subscription.secrets]
        self._endpoint = Endpoint(
            subscription.url,
            allowance,
            concurrency=subscription.concurrency,
            timeout_ms=subscription.timeout_ms,
        )

    async def post(self, records: Sequence[Record]) -> Outcome:
        """One call. However often it is made, the records have the same identity; the time and the signature differ."""
        body, headers = body_of(self._subscription, records)
        identity = call_id(self._subscription.name, records)
        signed = signature_headers(self._keys, identity, int(time.time()), body)
        return await self._endpoint.post(body, {**self._subscription.headers, **headers, **signed})

    async def close(self) -> None:
        await self._endpoint.close()
