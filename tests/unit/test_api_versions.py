"""ApiVersions tells of features in the versions that can carry them, and counts their epoch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from culver.broker.handlers import api_versions
from culver.errors import ErrorCode
from culver.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from culver.protocol.schema import decoder, encoder

NODE: Any = SimpleNamespace(dispatcher=SimpleNamespace(served_apis=list))


def answer(version: int, name: str = "tests") -> ApiVersionsResponse:
    """What a client reads of the answer."""
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
    exchange: Any = SimpleNamespace(version=version)
    response = api_versions.handle(NODE, exchange, request)
    return decoder(ApiVersionsResponse, version)(
        b"".join(encoder(ApiVersionsResponse, version)(response)), 0
    )[0]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_no_features_before_version_3(version: int) -> None:
    assert answer(version) == ApiVersionsResponse(api_keys=[])


@pytest.mark.parametrize("version", [3, 4])
def test_finalized_features(version: int) -> None:
    response = answer(version)
    levels = {key.name: (key.min_version_level, key.max_version_level) for key in response.finalized_features}
    assert levels == {"group.version": (1, 1), "transaction.version": (2, 2)}
    assert response.finalized_features_epoch > 0


def test_a_lowest_level_of_0_needs_version_4() -> None:
    assert answer(3).supported_features == []
    supported = {key.name: (key.min_version, key.max_version) for key in answer(4).supported_features}
    assert supported == {"group.version": (0, 1), "transaction.version": (0, 2)}


def test_a_refusal_has_no_features() -> None:
    assert answer(4, name="-") == ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
