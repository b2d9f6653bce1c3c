"""ApiVersions: which requests this broker serves, and in which versions. Serves versions 0 to 4.

3: flexible (but the response header is not), client software. 4: features with minimum level 0.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from culver.errors import ErrorCode
from culver.protocol.apis import API_VERSIONS_KEY
from culver.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

# Feature: lowest and highest level that this broker knows. The highest is what the cluster runs at: all its brokers
# have the same. A Java producer looks for transaction.version 2 before it leaves out AddPartitionsToTxn.
_FEATURES = {"group.version": (0, 1), "transaction.version": (0, 2)}
# A client keeps what it knows of features until it sees a higher epoch: raise this whenever the table changes.
_FEATURES_EPOCH = 1

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(node: Node, exchange: Exchange, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if exchange.version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    return ApiVersionsResponse(
        api_keys=served(node),
        supported_features=_supported_features(exchange.version),
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=highest, max_version_level=highest)
            for name, (_, highest) in _FEATURES.items()
        ],
    )


def unsupported(node: Node) -> ApiVersionsResponse:
    """The answer, in format 0, to a version of ApiVersions that is not known: which of its versions are.

    Only that, as in Kafka; with it the client asks again for the rest.
    """
    own = [api for api in served(node) if api.api_key == API_VERSIONS_KEY]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)


def served(node: Node) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        for api in node.dispatcher.served_apis()
    ]


def _supported_features(version: int) -> list[SupportedFeatureKey]:
    # Java clients that ask with version 3 take a lowest level of 0 for an error and give the connection up.
    return [
        SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
        for name, (lowest, highest) in _FEATURES.items()
        if lowest > 0 or version >= 4
    ]
