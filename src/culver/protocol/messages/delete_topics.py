"""DeleteTopics, versions 1 to 6: deletes topics."""

from __future__ import annotations

from culver.protocol.schema import ZERO_UUID, Message, array, int16, int32, string, uuid


class DeleteTopicState(Message):
    name: str | None = string(nullable_since=0, default=None)
    topic_id: bytes = uuid()


class DeleteTopicsRequest(Message, api_key=20, versions=(1, 6), flexible_since=4):
    # 6: topics by name or id.
    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6, default=())
    topic_names: list[str] = array(string(), until=5, default=())
    timeout_ms: int = int32()


class DeletableTopicResult(Message):
    name: str | None = string(nullable_since=6)
    topic_id: bytes = uuid(since=6, default=ZERO_UUID)
    error_code: int = int16()
    error_message: str | None = string(since=5, nullable_since=5, default=None)


class DeleteTopicsResponse(Message, api_key=20, versions=(1, 6), flexible_since=4):
    # 5: error text. 6: topic ids.
    throttle_time_ms: int = int32(default=0)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
