"""What endpoints work with: made once, started and closed with the gateway."""

from __future__ import annotations

from typing import Protocol, cast

from starlette.requests import HTTPConnection

from culver.gateway.admission import Admission
from culver.gateway.producing import Producing
from culver.gateway.settings import GatewaySettings


class Service(Protocol):
    """A part with a life of its own."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Services:
    """Everything that requests share. Endpoints reach it through `services_of(request)`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.admission = Admission(settings)
        self.producing = Producing(
            settings.bootstrap,
            in_flight_max_bytes=settings.in_flight_max_bytes,
            client_settings=settings.client_settings,
        )
        # Started in this order and closed in the opposite one: what stands later may use what stands earlier.
        self._order: list[Service] = [self.producing]
        self._started: list[Service] = []

    async def start(self) -> None:
        """Start all parts; what has been started is closed again when one of them fails."""
        try:
            for service in self._order:
                self._started.append(service)
                await service.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        while self._started:
            await self._started.pop().close()


def services_of(connection: HTTPConnection) -> Services:
    """The services, from a request or a WebSocket."""
    return cast(Services, connection.app.state.services)
