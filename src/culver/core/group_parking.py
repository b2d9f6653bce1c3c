"""JoinGroup and SyncGroup requests that are answered later, when the rebalance has come that far."""

from __future__ import annotations

from culver.core.coordinator_effects import Effects, Reply, Token


class ParkedRequest:
    """A request that waits. `token` is None once its client is gone."""

    __slots__ = ("api_version", "token")

    def __init__(self, token: Token, api_version: int) -> None:
        self.token: Token | None = token
        self.api_version = api_version


class ParkedRequests:
    """All that are waiting: each is answered once, or cancelled."""

    __slots__ = ("_by_token",)

    def __init__(self) -> None:
        self._by_token: dict[Token, ParkedRequest] = {}

    def __len__(self) -> int:
        return len(self._by_token)

    def park(self, token: Token, api_version: int) -> ParkedRequest:
        assert token is not None
        parked = ParkedRequest(token, api_version)
        self._by_token[token] = parked
        return parked

    def answer(self, parked: ParkedRequest, response: object, out: Effects) -> None:
        token = parked.token
        if token is not None:
            parked.token = None
            del self._by_token[token]
            out.append(Reply(token, response))

    def cancel(self, token: Token) -> None:
        """The client is gone, so nobody is answered. Its member still counts as having joined or synced.

        A disconnect says nothing about the consumer: it may be on its way back through another connection.
        Whether it lives is for the session timeout to say.
        """
        parked = self._by_token.pop(token, None)
        if parked is not None:
            parked.token = None
