"""Scripts about moving and electing replicas, as far as one broker can tell: mostly what is refused."""

from __future__ import annotations

from culver.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from culver.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from culver.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from culver.protocol.messages.unregister_broker import UnregisterBrokerRequest
from differential.play import Play, script

PREFERRED, UNCLEAN = 0, 1
NOBODY = 77


def move(
    name: str, *partitions: tuple[int, list[int] | None], factor_may_change: bool = True
) -> AlterPartitionReassignmentsRequest:
    moves = [
        ReassignablePartition(partition_index=index, replicas=replicas) for index, replicas in partitions
    ]
    return AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=moves)],
        allow_replication_factor_change=factor_may_change,
        timeout_ms=10_000,
    )


@script
def reassign_partitions(play: Play) -> None:
    play.topic("moved", 2)
    me = play.node_id
    for version in (0, 1):
        for label, request in (
            ("to where it is", move("moved", (0, [me]))),
            ("to a broker that does not exist", move("moved", (0, [NOBODY]))),
            ("to one more broker that does not exist", move("moved", (0, [me, NOBODY]))),
            ("to the same broker twice", move("moved", (0, [me, me]))),
            ("to no broker", move("moved", (0, []))),
            ("to a negative broker", move("moved", (0, [-1]))),
            ("cancelled while nothing is under way", move("moved", (0, None))),
            ("a partition that does not exist", move("moved", (9, [me]))),
            ("a negative partition", move("moved", (-1, [me]))),
            ("a topic that does not exist", move("moved.nowhere", (0, [me]))),
            ("a topic that cannot exist", move("/", (0, [me]))),
            ("an empty topic name", move("", (0, [me]))),
            ("one good, one bad", move("moved", (0, [me]), (1, [NOBODY]))),
            ("a topic without partitions", move("moved")),
        ):
            play.step(f"{label}, v{version}", request, version)
        nothing = AlterPartitionReassignmentsRequest(topics=[], timeout_ms=10_000)
        play.step(f"nothing, v{version}", nothing, version)
    play.step("the factor stays", move("moved", (0, [me]), factor_may_change=False), 1)
    play.step("the factor stays, but grows", move("moved", (0, [me, NOBODY]), factor_may_change=False), 1)


@script
def list_reassignments(play: Play) -> None:
    play.topic("listed", 2)

    def ask(topics: list[tuple[str, list[int]]] | None) -> ListPartitionReassignmentsRequest:
        return ListPartitionReassignmentsRequest(
            topics=None
            if topics is None
            else [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
                for name, indexes in topics
            ],
            timeout_ms=10_000,
        )

    play.step("all", ask(None), 0)
    play.step("none", ask([]), 0)
    play.step("one that is not moved", ask([("listed", [0, 1])]), 0)
    play.step("a partition that does not exist", ask([("listed", [9])]), 0)
    play.step("a topic that does not exist", ask([("listed.nowhere", [0])]), 0)
    play.step("a topic without partitions", ask([("listed", [])]), 0)


@script
def elect_leaders(play: Play) -> None:
    play.topic("elected", 2)

    def ask(kind: int, topics: list[tuple[str, list[int]]] | None) -> ElectLeadersRequest:
        wanted = (
            None
            if topics is None
            else [TopicPartitions(topic=name, partitions=indexes) for name, indexes in topics]
        )
        return ElectLeadersRequest(election_type=kind, topic_partitions=wanted, timeout_ms=10_000)

    for version in (0, 1, 2):
        for kind, name in ((PREFERRED, "preferred"), (UNCLEAN, "unclean")):
            if kind and not version:
                continue
            play.step(f"{name}, it leads already, v{version}", ask(kind, [("elected", [0, 1])]), version)
            play.step(f"{name}, no such partition, v{version}", ask(kind, [("elected", [9, -1])]), version)
            play.step(f"{name}, no such topic, v{version}", ask(kind, [("elected.nowhere", [0])]), version)
            play.step(f"{name}, no partitions, v{version}", ask(kind, [("elected", [])]), version)
            play.step(f"{name}, no topics, v{version}", ask(kind, []), version)
            play.step(f"{name}, all, v{version}", ask(kind, None), version)
    play.step("an election that does not exist", ask(9, [("elected", [0])]), 2)
    play.step("a negative election", ask(-1, [("elected", [0])]), 2)


@script
def unregister_brokers(play: Play) -> None:
    for broker in (NOBODY, -1):
        play.step(f"broker {broker}", UnregisterBrokerRequest(broker_id=broker), 0)
