"""Network addresses in settings: HOST:PORT, with brackets around IPv6."""

from __future__ import annotations


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT as (host, port). An IPv6 address stands in brackets. ValueError says what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, such as [::1]:{port}")
    return host, int(port)


def address_fault(text: str) -> str | None:
    """What is wrong with an address to listen on, or nothing."""
    try:
        parse_address(text)
    except ValueError as fault:
        return str(fault)
    return None


def advertised_fault(text: str) -> str | None:
    """What is wrong with an address to tell clients, or nothing."""
    fault = address_fault(text)
    if fault is None and not parse_address(text)[0]:
        fault = f"{text!r} has no host; clients need one to connect to"
    return fault
