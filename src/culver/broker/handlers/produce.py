"""Produce: append record batches. Serves versions 3 to 13.

7: zstd is allowed. 8: error texts per batch. 9: flexible. 10: the leader's address in errors.
11: TRANSACTION_ABORTABLE.
12: partitions become part of the transaction by being written to. 13: topics by id.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from culver.broker import transactional_produce
from culver.broker.exchange import NO_RESPONSE, NoResponse
from culver.broker.partition import WRITE_BACK_BYTES
from culver.broker.refused_batches import RefusedBatches
from culver.broker.transactional_produce import Unverified
from culver.core.names import INTERNAL_TOPICS
from culver.errors import ErrorCode, KafkaError
from culver.log.validation import RecordsRefused
from culver.protocol.compression import Codec
from culver.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from culver.protocol.records import CODEC_MASK, MAGIC, TRANSACTIONAL_BIT

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node
    from culver.broker.partition import Partition

# Transactional batches and zstd, whose codec number has this bit, are not for every request.
_UNUSUAL = TRANSACTIONAL_BIT | Codec.ZSTD
_ZSTD_SINCE_VERSION = 7
MAGIC_POSITION = 16
ATTRIBUTES_POSITION = 22  # the low byte of a batch's attributes
# Errors about which Kafka tells no log start offset.
_SAYS_NOTHING_OF_THE_LOG = frozenset(
    {ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.KAFKA_STORAGE_ERROR}
)
_WHY_NOT_ACKNOWLEDGED = {
    ErrorCode.KAFKA_STORAGE_ERROR: "the records could not be flushed to disk",
    ErrorCode.REQUEST_TIMED_OUT: "the in-sync replicas did not take the records in time",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "another broker leads the partition now",
}
_NOT_VERIFIED = "the partition could not be confirmed as a part of the producer's transaction"
_FOLLOWS_A_REFUSED = "a batch of this producer that comes before was refused; send that one first"
_ADMIN_CLIENT_ID = "__admin_client"  # the one client that may write to internal topics, as in Kafka


def handle(node: Node, exchange: Exchange, request: ProduceRequest) -> ProduceResponse | NoResponse | None:
    """Append each partition's batch, and answer when the acknowledgement asked for has been reached."""
    acks = request.acks
    if acks not in (-1, 0, 1):
        exchange.route.statistics.failed(ErrorCode.INVALID_REQUIRED_ACKS)
        return _all_failed(request, ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1 (all), 0 or 1")
    if request.transactional_id is not None:
        unverified = transactional_produce.unverified(node, request, exchange.version)
        if unverified is not None:
            return _verify_first(node, exchange, request, unverified)
    return _append_all(node, exchange, request, None)


def _verify_first(
    node: Node, exchange: Exchange, request: ProduceRequest, unverified: Unverified
) -> ProduceResponse | NoResponse | None:
    """Go on when the transaction's coordinator has said that the records may begin its transaction here."""
    if unverified.error is not ErrorCode.NONE:
        exchange.route.statistics.failed(unverified.error)
        return _all_failed(request, unverified.error, unverified.why)
    connection = exchange.connection
    inside = True
    outcome: ProduceResponse | NoResponse | None = None

    def verified() -> None:
        nonlocal outcome
        outcome = _append_all(node, exchange, request, unverified)
        if inside:
            return
        connection.go_on()
        if outcome is not None:
            exchange.reply(outcome)
        node.after_requests()

    unverified.verify(node, verified)
    inside = False
    if unverified.verdicts is None:
        # What came behind it on the connection waits its turn; and the receive buffer is needed for others.
        request = transactional_produce.copied(request)
        connection.hold()
    return outcome


def _append_all(
    node: Node, exchange: Exchange, request: ProduceRequest, verified: Unverified | None
) -> ProduceResponse | NoResponse | None:
    acks = request.acks
    if not node.lease_holds:
        # Another may lead by now. Nothing is acknowledged that it might not have.
        for topic in request.topic_data:
            for data in topic.partition_data:
                _note_refusal(node, exchange, topic, data, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return _all_failed(
            request, ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is out of touch with its cluster"
        )
    waiting: list[tuple[Partition, PartitionProduceResponse, int]] = []
    responses = []
    misdirected = False
    refused = exchange.connection.refused_batches
    for topic in request.topic_data:
        name, topic_error = _resolve(node, exchange.version, topic)
        if (
            topic_error is ErrorCode.NONE
            and name in INTERNAL_TOPICS
            and exchange.client_id != _ADMIN_CLIENT_ID
        ):
            topic_error = ErrorCode.INVALID_TOPIC_EXCEPTION
        answers = []
        for data in topic.partition_data:
            if topic_error is not ErrorCode.NONE:
                answers.append(_failed(data.index, topic_error))
                exchange.route.statistics.failed(topic_error)
                continue
            partition = node.partitions.get(name, data.index)
            if partition is None or partition.state is None:
                answers.append(_elsewhere(node, name, data.index))
                _note_refusal(node, exchange, topic, data, answers[-1].error_code)
                misdirected = True
                continue
            if refused is not None and refused.follows_one(
                topic, data.index, data.records, node.clock.monotonic_ms()
            ):
                answers.append(_failed(data.index, ErrorCode.NOT_LEADER_OR_FOLLOWER, _FOLLOWS_A_REFUSED))
                exchange.route.statistics.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                continue
            guard = None
            if verified is not None:
                code, guard = verified.verdict(name, data.index)
                if code is not ErrorCode.NONE:
                    answers.append(_failed(data.index, code, _NOT_VERIFIED))
                    _note_refusal(node, exchange, topic, data, code)
                    continue
            answer, end_offset = _append(node, partition, data, request, exchange.version, guard)
            answers.append(answer)
            if answer.error_code:
                _note_refusal(node, exchange, topic, data, answer.error_code)
            elif acks != 0 and partition.must_wait(acks):
                waiting.append((partition, answer, end_offset))
        responses.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
    response = ProduceResponse(responses=responses)
    if acks == 0:
        return _close_on_error(exchange, responses)
    if misdirected:
        _tell_leaders(node, response)
    if not waiting:
        return response
    return _wait(node, exchange, request, response, waiting)


def _append(
    node: Node,
    partition: Partition,
    data: PartitionProduceData,
    request: ProduceRequest,
    version: int,
    guard: object | None,
) -> tuple[PartitionProduceResponse, int]:
    """Append one partition's batch; what to say of it once it is as safe as was asked for, and where it ends."""
    records = data.records
    if request.acks == -1:
        state = partition.state
        assert state is not None
        if len(state.isr) < partition.log.config.min_insync_replicas:
            # Refused before anything is written.
            return _failed(data.index, ErrorCode.NOT_ENOUGH_REPLICAS), 0
    if records is None:
        return _failed(data.index, ErrorCode.INVALID_RECORD, "no records were sent"), 0
    if len(records) > ATTRIBUTES_POSITION and records[ATTRIBUTES_POSITION] & _UNUSUAL:
        code = _unusual_error(records, request, version)
        if code is not ErrorCode.NONE:
            return _failed(data.index, code), 0
    try:
        result = partition.append(records, guard)
    except KafkaError as error:
        if partition.log.failed is not None:
            node.replication.log_failed(partition)
        return _refused(partition, error), 0
    if partition.replicated:
        node.replication.appended(partition)
    elif partition.waiters:
        node.partitions.changed(partition)
    if partition.appended_bytes > partition.write_back_at_bytes:
        partition.write_back_at_bytes = partition.appended_bytes + WRITE_BACK_BYTES
        node.group_commit.ask(partition)
    answer = PartitionProduceResponse(
        index=data.index,
        error_code=0,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )
    return answer, result.last_offset + 1


def _resolve(node: Node, version: int, topic: TopicProduceData) -> tuple[str, ErrorCode]:
    if version < 13:
        return topic.name, ErrorCode.NONE
    image = node.image.topics_by_id.get(topic.topic_id)
    return ("", ErrorCode.UNKNOWN_TOPIC_ID) if image is None else (image.name, ErrorCode.NONE)


def _wait(
    node: Node,
    exchange: Exchange,
    request: ProduceRequest,
    response: ProduceResponse,
    waiting: list[tuple[Partition, PartitionProduceResponse, int]],
) -> ProduceResponse | None:
    """Answer when every partition's records are where they must be, or when that has failed."""
    left = len(waiting)
    parked = False

    def one_done(answer: PartitionProduceResponse, code: ErrorCode) -> None:
        nonlocal left
        if code is not ErrorCode.NONE:
            answer.error_code = code
            answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1
            answer.error_message = _WHY_NOT_ACKNOWLEDGED.get(code)
            exchange.route.statistics.failed(code)
        left -= 1
        if left == 0 and parked:
            exchange.reply(response)

    for partition, answer, end_offset in waiting:
        if request.acks == -1:
            node.replication.commit(partition, end_offset, request.timeout_ms, partial(one_done, answer))
        else:
            node.group_commit.wait(partition, partial(_flushed, partial(one_done, answer)))
    if left == 0:
        return response
    parked = True
    return None


def _flushed(done: Callable[[ErrorCode], object], error: BaseException | None) -> None:
    done(ErrorCode.NONE if error is None else ErrorCode.KAFKA_STORAGE_ERROR)


def _note_refusal(
    node: Node, exchange: Exchange, topic: TopicProduceData, data: PartitionProduceData, code: int
) -> None:
    """Count it, and see to it that what the producer sent behind it does not take its place."""
    exchange.route.statistics.failed(code)
    connection = exchange.connection
    if connection.refused_batches is None:
        connection.refused_batches = RefusedBatches()
    connection.refused_batches.note(topic, data.index, data.records, code, node.clock.monotonic_ms())


def _elsewhere(node: Node, topic: str, index: int) -> PartitionProduceResponse:
    """A partition that another broker leads, or nobody."""
    answer = _failed(index, node.partition_error(topic, index))
    image = node.image.partition(topic, index)
    if image is not None:
        answer.current_leader = LeaderIdAndEpoch(leader_id=image.leader, leader_epoch=image.leader_epoch)
    return answer


def _tell_leaders(node: Node, response: ProduceResponse) -> None:
    """Where the leaders are that the client should have asked (KIP-951)."""
    leaders = {
        answer.current_leader.leader_id
        for topic in response.responses
        for answer in topic.partition_responses
        if answer.current_leader is not None
    }
    brokers = node.image.brokers
    response.node_endpoints = [
        NodeEndpoint(
            node_id=number, host=brokers[number].host, port=brokers[number].port, rack=brokers[number].rack
        )
        for number in sorted(leaders)
        if number in brokers
    ]


def _close_on_error(exchange: Exchange, responses: list[TopicProduceResponse]) -> NoResponse:
    # With acks=0 there is no response to carry an error: closing the connection is how the client learns.
    if any(answer.error_code for topic in responses for answer in topic.partition_responses):
        exchange.connection.close()
    return NO_RESPONSE


def _unusual_error(records: memoryview, request: ProduceRequest, version: int) -> ErrorCode:
    """What the request's version or the lack of a transactional id forbids."""
    if records[MAGIC_POSITION] != MAGIC:
        return ErrorCode.NONE  # those bits mean something else in older formats, which the log refuses
    attributes = records[ATTRIBUTES_POSITION]
    if attributes & TRANSACTIONAL_BIT and request.transactional_id is None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if version < _ZSTD_SINCE_VERSION and attributes & CODEC_MASK == Codec.ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.NONE


def _refused(partition: Partition, error: KafkaError) -> PartitionProduceResponse:
    """What the log had against a batch, and against which of its records."""
    answer = _failed(partition.index, error.code, error.message)
    if error.code not in _SAYS_NOTHING_OF_THE_LOG:
        answer.log_start_offset = partition.log.start_offset
    if isinstance(error, RecordsRefused):
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
            for index, message in error.record_errors
        ]
    return answer


def _failed(index: int, code: ErrorCode, message: str | None = None) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        error_message=message,
    )


def _all_failed(request: ProduceRequest, code: ErrorCode, message: str) -> ProduceResponse | NoResponse:
    if request.acks == 0:
        return NO_RESPONSE
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[_failed(data.index, code, message) for data in topic.partition_data],
            )
            for topic in request.topic_data
        ]
    )
