"""What `culver cluster` asks of the brokers, and how to ask more: functions over one connection, errors in words."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from culver.cli.failure import ExitCode, Failure
from culver.cli.session import Session
from culver.core.image import BrokerInfo, ClusterImage, PartitionImage, TopicImage
from culver.core.placement import PartitionKey
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages import alter_partition_reassignments as alter
from culver.protocol.messages import (
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    elect_leaders,
    unregister_broker,
)
from culver.protocol.messages import describe_topic_partitions as describe_topics
from culver.protocol.messages import incremental_alter_configs as alter_configs
from culver.protocol.messages import list_partition_reassignments as list_moves
from culver.protocol.schema import Message
from culver.wire_client import Unreachable, WireClient

THROTTLE = "follower.replication.throttled.rate"
_TOPIC, _BROKER = 2, 4
_SET, _DELETE = 0, 1
_PREFERRED, _UNCLEAN = 0, 1
_HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`culver topic list` shows the topics there are",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "`culver cluster status` shows the brokers there are",
}


Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class StoredReplica:
    """What one broker has of a partition: bytes on disk, and records that it knows it is behind."""

    size_bytes: int
    lag: int


Stored = dict[int, dict[PartitionKey, StoredReplica]]


@contextlib.contextmanager
def connected(session: Session) -> Iterator[Wire]:
    """A connection for one command. What goes wrong ends the command with a message."""
    try:
        client = WireClient(session.bootstrap, session.timeout_s)
    except ValueError as error:
        raise Failure(str(error), code=ExitCode.USAGE) from None
    try:
        with client:
            yield Wire(client, session.timeout_s)
    except Unreachable as error:
        raise Failure(
            str(error),
            "start one with `culver serve`, or name another with --bootstrap or CULVER_BOOTSTRAP",
            code=ExitCode.UNREACHABLE,
        ) from None
    except KafkaError as error:
        fail(error)


def fail(error: KafkaError) -> NoReturn:
    """End the command because a broker refused."""
    missing = error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    raise Failure(
        error.message or error.code.text,
        _HINTS.get(error.code, ""),
        code=ExitCode.NOT_FOUND if missing else ExitCode.FAILED,
    ) from None


class Wire:
    """The questions and orders. Each may go to any broker and may be sent twice."""

    def __init__(self, client: WireClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    # -- questions ------------------------------------------------------------------------------------------

    def image(self) -> ClusterImage:
        """Brokers, topics and partitions, as the broker asked sees them, with reassignments under way."""
        request = describe_cluster.DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=True
        )
        answer = self._client.ask(request, describe_cluster.DescribeClusterResponse)
        check(answer.error_code, answer.error_message)
        registrations = {
            each.broker_id: BrokerInfo(each.broker_id, each.host, each.port, each.rack)
            for each in answer.brokers
        }
        alive = {
            each.broker_id: registrations[each.broker_id] for each in answer.brokers if not each.is_fenced
        }
        self._client.learn((broker.host, broker.port) for broker in alive.values())
        image = ClusterImage(
            cluster_id=answer.cluster_id,
            controller_id=answer.controller_id,
            brokers=alive,
            registrations=registrations,
        )
        return image.with_topics(self._topics())

    def _topics(self) -> list[TopicImage]:
        moves = self.moves()
        ids: dict[str, bytes] = {}
        partitions: dict[str, list[PartitionImage]] = defaultdict(list)
        cursor: describe_topics.Cursor | None = None
        while True:
            answer = self._client.ask(
                describe_topics.DescribeTopicPartitionsRequest(topics=[], cursor=cursor),
                describe_topics.DescribeTopicPartitionsResponse,
            )
            for topic in answer.topics:
                if topic.name is None or topic.error_code != ErrorCode.NONE:
                    continue  # deleted since
                ids[topic.name] = topic.topic_id
                for each in topic.partitions:
                    adding, removing = moves.get((topic.name, each.partition_index), ((), ()))
                    partitions[topic.name].append(
                        PartitionImage(
                            index=each.partition_index,
                            leader=each.leader_id,
                            leader_epoch=each.leader_epoch,
                            replicas=tuple(each.replica_nodes),
                            isr=tuple(each.isr_nodes),
                            elr=tuple(each.eligible_leader_replicas or ()),
                            adding=adding,
                            removing=removing,
                        )
                    )
            cursor = answer.next_cursor
            if cursor is None:
                break
        return [TopicImage(name, ids[name], tuple(found)) for name, found in sorted(partitions.items())]

    def moves(self) -> dict[PartitionKey, tuple[tuple[int, ...], tuple[int, ...]]]:
        """The replicas that are being added to and removed from the partitions under reassignment."""
        answer = self._client.ask(
            list_moves.ListPartitionReassignmentsRequest(timeout_ms=self._timeout_ms),
            list_moves.ListPartitionReassignmentsResponse,
        )
        check(answer.error_code, answer.error_message)
        return {
            (topic.name, each.partition_index): (tuple(each.adding_replicas), tuple(each.removing_replicas))
            for topic in answer.topics
            for each in topic.partitions
        }

    def min_insync_replicas(self, topics: Iterable[str]) -> dict[str, int]:
        asked = [
            describe_configs.DescribeConfigsResource(
                resource_type=_TOPIC, resource_name=name, configuration_keys=["min.insync.replicas"]
            )
            for name in topics
        ]
        if not asked:
            return {}
        request = describe_configs.DescribeConfigsRequest(resources=asked)
        answer = self._client.ask(request, describe_configs.DescribeConfigsResponse)
        return {
            each.resource_name: int(each.configs[0].value or 1) for each in answer.results if each.configs
        }

    def stored(self, brokers: Iterable[BrokerInfo]) -> Stored:
        """What lies on the brokers' disks. Each answers for itself alone; one that does not is left out."""
        found: Stored = {}
        request = describe_log_dirs.DescribeLogDirsRequest(topics=None)
        for broker in brokers:
            with contextlib.suppress(Unreachable):
                answer = self.ask_broker(broker, request, describe_log_dirs.DescribeLogDirsResponse)
                found[broker.id] = {
                    (topic.name, each.partition_index): StoredReplica(each.partition_size, each.offset_lag)
                    for directory in answer.results
                    for topic in directory.topics
                    for each in topic.partitions
                }
        return found

    # -- orders ---------------------------------------------------------------------------------------------

    def reassign(
        self, targets: Mapping[PartitionKey, tuple[int, ...] | None]
    ) -> dict[PartitionKey, KafkaError]:
        """Give partitions new replicas, or with None call off what is under way; what was refused is returned."""
        topics: dict[str, list[alter.ReassignablePartition]] = defaultdict(list)
        for (topic, index), target in sorted(targets.items()):
            replicas = None if target is None else list(target)
            topics[topic].append(alter.ReassignablePartition(partition_index=index, replicas=replicas))
        if not topics:
            return {}
        request = alter.AlterPartitionReassignmentsRequest(
            timeout_ms=self._timeout_ms,
            topics=[
                alter.ReassignableTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )
        answer = self._client.ask(request, alter.AlterPartitionReassignmentsResponse)
        check(answer.error_code, answer.error_message)
        return {
            (topic.name, each.partition_index): _error(
                each.error_code, f"{topic.name}-{each.partition_index}", each.error_message
            )
            for topic in answer.responses
            for each in topic.partitions
            if each.error_code != ErrorCode.NONE
        }

    def elect_leaders(
        self, partitions: Collection[PartitionKey] | None, *, unclean: bool = False
    ) -> dict[PartitionKey, ErrorCode]:
        """Let the preferred replicas lead, of all partitions or these; gives what came of each that was asked for."""
        chosen: dict[str, list[int]] | None = None
        if partitions is not None:
            chosen = defaultdict(list)
            for topic, index in sorted(partitions):
                chosen[topic].append(index)
        request = elect_leaders.ElectLeadersRequest(
            election_type=_UNCLEAN if unclean else _PREFERRED,
            topic_partitions=None
            if chosen is None
            else [
                elect_leaders.TopicPartitions(topic=name, partitions=each) for name, each in chosen.items()
            ],
            timeout_ms=self._timeout_ms,
        )
        answer = self._client.ask(request, elect_leaders.ElectLeadersResponse)
        check(answer.error_code, None)
        return {
            (topic.topic, each.partition_id): error_code(each.error_code)
            for topic in answer.replica_election_results
            for each in topic.partition_result
        }

    def unregister(self, broker_id: int) -> None:
        """Strike a broker that is gone for good off the list."""
        request = unregister_broker.UnregisterBrokerRequest(broker_id=broker_id)
        answer = self._client.ask(request, unregister_broker.UnregisterBrokerResponse)
        check(answer.error_code, answer.error_message)

    def set_throttle(self, brokers: Iterable[BrokerInfo], rate_bytes: int | None) -> list[int]:
        """Limit how fast brokers copy what they are not in sync with; None takes the limit off.

        A broker's settings are its own business, so each is asked; those that do not answer are returned.
        """
        silent = []
        for broker in brokers:
            setting = alter_configs.AlterableConfig(
                name=THROTTLE,
                config_operation=_DELETE if rate_bytes is None else _SET,
                value=None if rate_bytes is None else str(rate_bytes),
            )
            resource = alter_configs.AlterConfigsResource(
                resource_type=_BROKER, resource_name=str(broker.id), configs=[setting]
            )
            request = alter_configs.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
            try:
                answer = self.ask_broker(broker, request, alter_configs.IncrementalAlterConfigsResponse)
            except Unreachable:
                silent.append(broker.id)
            else:
                for each in answer.responses:
                    check(each.error_code, each.error_message)
        return silent

    # -- what others ask ------------------------------------------------------------------------------------

    def ask(self, request: Message, response: type[Response]) -> Response:
        """Ask any broker, or several in turn."""
        return self._client.ask(request, response)

    def ask_broker(
        self, broker: BrokerInfo, request: Message, response: type[Response], *, least_version: int = 0
    ) -> Response:
        """Ask one broker in particular, in a version that has all that the request says."""
        with WireClient(f"{broker.host}:{broker.port}", self._timeout_s) as client:
            return client.ask_once(request, response, least_version=least_version)

    @property
    def timeout_s(self) -> float:
        return self._timeout_s

    @property
    def _timeout_ms(self) -> int:
        return int(self._timeout_s * 1000)


def error_code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _error(number: int, what: str, message: str | None) -> KafkaError:
    code = error_code(number)
    return KafkaError(code, f"{what}: {message or code.text}")


def check(number: int, message: str | None) -> None:
    if number != ErrorCode.NONE:
        code = error_code(number)
        raise KafkaError(code, message or code.text)
