"""ApiVersions, versions 0 to 4: tells which APIs and versions the broker serves."""

from __future__ import annotations

from culver.protocol.schema import Message, array, boolean, int16, int32, int64, string


class ApiVersionsRequest(Message, api_key=18, versions=(0, 4), flexible_since=3):
    # 3: the client's name and version.
    client_software_name: str = string(since=3, default="")
    client_software_version: str = string(since=3, default="")


class ApiVersion(Message):
    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


class SupportedFeatureKey(Message):
    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


class FinalizedFeatureKey(Message):
    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


class ApiVersionsResponse(Message, api_key=18, versions=(0, 4), flexible_since=3):
    # Its header stays at version 0 always: a client reads it before it knows what the broker speaks.
    # 3: features. 4: a feature's lowest version may be 0.
    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1, default=0)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, since=3, tag=0, default=())
    finalized_features_epoch: int = int64(since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, since=3, tag=2, default=())
    zk_migration_ready: bool = boolean(since=3, tag=3, default=False)
