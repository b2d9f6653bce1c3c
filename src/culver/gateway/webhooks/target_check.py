"""Which addresses a webhook may call: public ones, and others only where configuration allows.

Whoever can create a webhook can have the gateway send requests, from inside the network it stands in. So a target's
address must be a public one, unless `culver.http.webhook.allow.private` allows it. A URL is checked when a webhook is
created, to tell its owner at once; what counts is the check when a connection is made, of the very addresses that it
is made to (`CheckedResolver` and `literal_refusal`): a name may point elsewhere by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from dataclasses import dataclass
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_URL_CHARACTERS_MAX = 4000
# Addresses of IPv6 that belong to somebody in particular. Everything else is for special purposes.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
# An IPv4 address in the last 32 bits, reached through a translator.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Special as well, though not every version of Python's ipaddress knows.
_SPECIAL: tuple[Network, ...] = (
    ipaddress.IPv4Network("100.64.0.0/10"),  # shared by customers of a carrier (CGNAT)
    ipaddress.IPv4Network("192.0.0.0/24"),
    ipaddress.IPv4Network("192.88.99.0/24"),  # relays of 6to4
    ipaddress.IPv6Network("2001::/23"),  # Teredo among others
    ipaddress.IPv6Network("3fff::/20"),  # documentation
)


class TargetRefused(Exception):
    """The target is none that this gateway may call; the message says why."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is allowed though it is not public: networks, host names, or everything."""

    everything: bool = False
    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    def allows(self, host: str, address: Address) -> bool:
        if self.everything or _plain(host) in self.hosts:
            return True
        return any(address.version == network.version and address in network for network in self.networks)


def allowance_of(text: str) -> Allowance:
    """The setting's value: networks and host names with commas between, `*` for everything."""
    networks: list[Network] = []
    hosts: set[str] = set()
    for item in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ipaddress.ip_network(item, strict=False))
        except ValueError:
            hosts.add(_plain(item))
    return Allowance("*" in hosts, tuple(networks), frozenset(hosts - {"*"}))


def target_of(url: str) -> URL:
    """The URL, parsed as the HTTP client parses it. ValueError when it is none for a webhook, wherever it points."""
    if len(url) > _URL_CHARACTERS_MAX or not url.isprintable() or " " in url:
        raise ValueError("the URL is too long, or has characters that no URL has")
    try:
        target = URL(url)
        host, port = target.host, target.port
    except ValueError as error:
        raise ValueError(f"the URL cannot be read: {error}") from None
    if target.scheme not in ("http", "https") or not host or not port:
        raise ValueError("the URL must be http:// or https:// with a host")
    if target.user is not None or target.password is not None:
        raise ValueError("the URL has a user or a password in it; use a header for that")
    return target


def refusal(host: str, address: Address, allowance: Allowance) -> str | None:
    """Why a webhook to this host may not connect to this address; None when it may."""
    actual = _carried(address)
    if _is_public(actual) or allowance.allows(host, actual) or allowance.allows(host, address):
        return None
    via = "" if actual == address else f" (through {address})"
    return (
        f"{host} is at {actual}{via}, which is not a public address; "
        "culver.http.webhook.allow.private can allow it"
    )


def literal_refusal(host: str, allowance: Allowance) -> str | None:
    """As `refusal`, for a host that is written as an address; None for names, which the resolver judges.

    What the HTTP client takes for an address is not looked up: with a colon, or nothing but digits and points. Such a
    host must be an address here too, or it would get by unseen: 127.1 is one to the system, and to nobody else.
    """
    address = _literal(host)
    if address is not None:
        return refusal(host, address, allowance)
    if ":" in host or host.replace(".", "").isdigit():
        return f"{host} is no address in its usual form"
    return None


async def check_target(url: str, allowance: Allowance, *, timeout_s: float = 10.0) -> None:
    """Raises TargetRefused, or ValueError for what is no URL of a webhook, or a name that leads nowhere."""
    target = target_of(url)
    host = target.raw_host or ""
    reason = literal_refusal(host, allowance)
    if reason is not None:
        raise TargetRefused(reason)
    if _literal(host) is None:
        try:
            async with asyncio.timeout(timeout_s):
                await CheckedResolver(allowance).resolve(host, target.port or 0)
        except (OSError, UnicodeError) as error:
            text = (
                "it takes too long" if isinstance(error, TimeoutError) else getattr(error, "strerror", error)
            )
            raise ValueError(f"the address of {host} cannot be found: {text}") from None


class CheckedResolver(AbstractResolver):
    """Finds the addresses of a name, and gives only those that may be connected to.

    A lookup may hang for as long as the system's resolver likes. It has a thread to itself, which nobody waits for at
    the end, so a name that cannot be found delays neither other webhooks nor the gateway's exit.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found: list[ResolveResult] = []
        reason = None
        for result in await _looked_up(host, port, family):
            refused = refusal(host, ipaddress.ip_address(result["host"]), self._allowance)
            if refused is None:
                found.append(result)
            reason = reason or refused
        if not found:
            raise TargetRefused(reason or f"{host} has no address")
        return found

    async def close(self) -> None:
        """Nothing is kept open."""


async def _looked_up(host: str, port: int, family: int) -> list[ResolveResult]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[ResolveResult]] = loop.create_future()

    def settle(result: list[ResolveResult] | Exception) -> None:
        if answer.done():
            return  # nobody waits any more
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def look_up() -> None:
        result: list[ResolveResult] | Exception
        try:
            result = _addresses(host, port, family)
        except (OSError, UnicodeError) as error:
            result = error
        # The gateway may have ended meanwhile, and its loop with it.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(partial(settle, result))

    threading.Thread(target=look_up, name=f"resolve {host}", daemon=True).start()
    return await answer


def _addresses(host: str, port: int, family: int) -> list[ResolveResult]:
    found: list[ResolveResult] = []
    for kind, _, protocol, _, place in socket.getaddrinfo(host, port, family, socket.SOCK_STREAM):
        if kind in (socket.AF_INET, socket.AF_INET6):
            found.append(
                ResolveResult(
                    hostname=host,
                    host=str(place[0]),
                    port=port,
                    family=kind,
                    proto=protocol,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
            )
    return found


def _plain(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(_plain(host))
    except ValueError:
        return None


def _carried(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, where it is a form of one; otherwise the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_public(address: Address) -> bool:
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return not any(address.version == special.version and address in special for special in _SPECIAL)
