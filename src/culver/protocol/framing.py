"""Frames, sans I/O: the size before a message, request headers in, response headers out.

    size (int32) | header | body

A request header is api key, api version, correlation id, client id and, from header version 2, tagged fields.
A response header is the correlation id and, from version 1, tagged fields. Which version applies
depends on the API and its version; see `apis`.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import TypeAlias

from culver.errors import MalformedRequest
from culver.protocol.apis import APIS
from culver.protocol.primitives import Buffer, skip_tagged_fields

_REQUEST_START = Struct(">hhih")
_SIZE_AND_CORRELATION_ID = Struct(">ii")
_SIZE_AND_CORRELATION_ID_AND_NO_TAGS = Struct(">iix")


# Api key, api version, correlation id, client id, position of the body. A plain tuple, as a named one costs a
# quarter of the whole parse.
RequestHeader: TypeAlias = tuple[int, int, int, str | None, int]


# (api key, version) pairs whose request header has tagged fields. Filled as they are met: asking the table
# imports the API's module, which is not to happen before somebody uses that API.
_request_header_has_tags: dict[tuple[int, int], bool] = {}


def parse_request_header(buffer: Buffer, position: int) -> RequestHeader:
    """Reads the header of the request at `position`, up to the end of `buffer`.

    The header's own version follows from an api version that may be unknown: beyond the highest known one it
    is taken to be as that one's. For an API that is not in the table the body position means nothing.
    """
    try:
        api_key, api_version, correlation_id, length = _REQUEST_START.unpack_from(buffer, position)
        position += _REQUEST_START.size
        client_id = None
        if length >= 0:
            end = position + length
            if end > len(buffer):
                raise MalformedRequest(f"client id of {length} bytes, {len(buffer) - position} remain")
            client_id = str(buffer[position:end], "utf-8")
            position = end
        elif length != -1:
            raise MalformedRequest(f"client id of {length} bytes")
        has_tags = _request_header_has_tags.get((api_key, api_version))
        if has_tags is None:
            has_tags = _find_out_about_tags(api_key, api_version)
        if has_tags:
            count = buffer[position]
            position += 1
            if count:
                position = skip_tagged_fields(buffer, position, count)
    except (StructError, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"request header: {error}") from error
    return api_key, api_version, correlation_id, client_id, position


def _find_out_about_tags(api_key: int, api_version: int) -> bool:
    api = APIS.get(api_key)
    if api is None:
        return False
    has_tags = api.request_header_version(api_version) >= 2
    # What a client can make up must not grow the table without bound.
    if api.min_version <= api_version <= api.max_version:
        _request_header_has_tags[api_key, api_version] = has_tags
    return has_tags


def frame_response(correlation_id: int, header_version: int, body: list[Buffer]) -> list[Buffer]:
    """Puts size and header before an encoded body; the list is changed in place and returned.

    The first buffer, which holds no records, is copied into one with the prefix, so that a small response is
    a single piece.
    """
    size = sum(map(len, body))
    if header_version:
        prefix = _SIZE_AND_CORRELATION_ID_AND_NO_TAGS.pack(size + 5, correlation_id)
    else:
        prefix = _SIZE_AND_CORRELATION_ID.pack(size + 4, correlation_id)
    if body:
        body[0] = prefix + body[0]
    else:
        body.append(prefix)
    return body


def after_response_header(frame: Buffer, position: int, header_version: int) -> int:
    """Where an answer's body begins, given where its correlation id ends. MalformedRequest when there is none."""
    if header_version == 0:
        return position
    if position >= len(frame):
        raise MalformedRequest("an answer without a header")
    count = frame[position]
    return skip_tagged_fields(frame, position + 1, count) if count else position + 1
