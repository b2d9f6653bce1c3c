"""Reads the JSON bodies of the console's requests."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from starlette.requests import Request

from culver.gateway.errors import HttpError, Problem
from culver.gateway.services import services_of

BODY_MAX_BYTES = 1024 * 1024

# Settings of topics. A broker closes the connection, which is everybody's, over a text of more than 32,767 bytes.
SettingName = Annotated[str, msgspec.Meta(max_length=250)]
SettingValue = Annotated[str, msgspec.Meta(max_length=8000)] | int | float | bool

Body = TypeVar("Body")


async def body_of(request: Request, kind: type[Body], *, max_bytes: int = BODY_MAX_BYTES) -> Body:
    """The request's JSON, as this type."""
    async with services_of(request).admission.body(request, max_bytes=max_bytes) as content:
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:  # and ValidationError, which is the former
            raise HttpError(Problem.INVALID_JSON, str(error)) from None
        except RecursionError:
            raise HttpError(Problem.INVALID_JSON, "the body is nested too deeply") from None
        except UnicodeError:
            raise HttpError(Problem.INVALID_JSON, "a text in the body is not UTF-8") from None
