"""Serves the console: one page for all of its addresses, and its files under an address that names their content.

There is no build step: the browser gets the modules as they stand in `static/`. All of them have the digest of the
whole directory in their address, so they may be cached for ever and never be mixed with those of another version; the
page itself is asked for again each time, which costs a 304.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

FILES = "/console/files"
PAGE = "index.html"

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Nothing is loaded from elsewhere, nothing is inline, and no other site may frame the console.
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Console:
    """The files by their paths below `static/`, the digest of them all, and the page that loads them."""

    files: dict[str, bytes]
    digest: str
    page: bytes


@cache
def console() -> Console:
    """Everything the console consists of, read once."""
    files = dict(sorted(_files_below(resources.files(__package__) / "static", "")))
    digest = hashlib.sha256(repr(list(files.items())).encode()).hexdigest()[:16]
    page = files.pop(PAGE).decode()
    base = f"{FILES}/{digest}"
    styles = [f'<link rel="stylesheet" href="{base}/{path}">' for path in files if path.endswith(".css")]
    # Told of all modules at once, the browser need not find them one import after the other.
    modules = [f'<link rel="modulepreload" href="{base}/{path}">' for path in files if path.endswith(".js")]
    for place, content in {
        "{files}": base,
        "{styles}": "\n  ".join(styles),
        "{modules}": "\n  ".join(modules),
    }.items():
        page = page.replace(place, content)
    return Console(files, digest, page.encode())


def _files_below(directory: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for entry in directory.iterdir():
        if entry.is_dir():
            found += _files_below(entry, f"{prefix}{entry.name}/")
        elif _suffix(entry.name) in MEDIA_TYPES:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def _suffix(path: str) -> str:
    return path[path.rfind(".") :]


async def page(request: Request) -> Response:
    """The page, whatever its address: what it shows is decided in the browser, from path and query."""
    etag = f'"{console().digest}"'
    headers = {**SECURITY_HEADERS, "cache-control": "no-cache", "etag": etag}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(console().page, headers=headers, media_type=MEDIA_TYPES[".html"])


async def file(request: Request) -> Response:
    """One of the files. The address of an older version is unknown: its page has to be loaded again."""
    path = request.path_params["path"]
    content = console().files.get(path)
    if content is None or request.path_params["digest"] != console().digest:
        raise HTTPException(404, "the console has no such file; reload the page")
    headers = {**SECURITY_HEADERS, "cache-control": "public, max-age=31536000, immutable"}
    return Response(content, headers=headers, media_type=MEDIA_TYPES[_suffix(path)])


PAGES: list[BaseRoute] = [
    Route("/", page),
    Route(FILES + "/{digest}/{path:path}", file),
    Route("/console", page),
    Route("/console/{address:path}", page),
]
