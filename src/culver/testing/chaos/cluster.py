"""The cluster of a chaos run: brokers behind gates, started again when they end, and asked how things stand."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages import alter_partition_reassignments as alter
from culver.protocol.messages import elect_leaders
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from culver.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from culver.protocol.messages.metadata import MetadataRequest, MetadataResponse
from culver.testing.announced_process import BrokerFailed
from culver.testing.broker import Broker, SettingValue
from culver.testing.chaos.gates import Network
from culver.testing.cluster import Cluster, PartitionState, free_port
from culver.testing.history import Partition
from culver.wire_client import Unreachable, WireClient, host_and_port

_ANSWER_SECONDS = 3.0
_READY_SECONDS = 90.0
_PREFERRED = 0


class ChaosCluster(Cluster):
    """Brokers 1 to N. `store` is the address of ZooKeeper; without it they share a file."""

    def __init__(
        self,
        network: Network,
        directory: Path,
        *,
        brokers: int,
        config: Mapping[str, SettingValue],
        store: str | None,
    ) -> None:
        super().__init__(
            brokers,
            config=config,
            racks=[f"rack-{number}" for number in range(1, brokers + 1)],
            ready_timeout_s=_READY_SECONDS,
        )
        self._network = network
        self._directory = directory
        self._store = store

    def _new_broker(self, broker_id: int, rack: str | None) -> Broker:
        port = free_port()
        gate = self._network.broker_gate(broker_id, ("127.0.0.1", port))
        coordination = f"local:{self._directory / 'metadata.sqlite'}"
        if self._store is not None:
            way_in = self._network.store_gate(broker_id, host_and_port(self._store))
            coordination = f"zookeeper://{way_in.address}/culver"
        return Broker(
            config=self._config,
            data_dir=self._directory / f"broker-{broker_id}",
            listen=f"127.0.0.1:{port}",
            broker_id=broker_id,
            coordination=coordination,
            rack=rack,
            arguments=["--advertise", gate.address],
            ready_timeout_s=self._ready_timeout_s,
        )

    @property
    def directory(self) -> Path:
        return self._directory

    # -- how things stand -------------------------------------------------------------------------------------

    def views(self) -> list[MetadataResponse]:
        """What each broker that runs says of the cluster; those that do not answer are left out."""
        found = []
        for broker in self.running:
            with (
                contextlib.suppress(Unreachable, BrokerFailed),
                WireClient(broker.bootstrap_servers, _ANSWER_SECONDS) as client,
            ):
                found.append(client.ask_once(MetadataRequest(topics=None), MetadataResponse))
        return found

    def states(self, view: MetadataResponse) -> dict[Partition, PartitionState]:
        """The partitions as in one broker's view."""
        return {
            (topic.name or "", each.partition_index): PartitionState(
                topic.name or "",
                each.partition_index,
                each.leader_id,
                each.leader_epoch,
                tuple(each.replica_nodes),
                tuple(each.isr_nodes),
            )
            for topic in view.topics
            for each in topic.partitions
        }

    def latest(self) -> dict[Partition, PartitionState]:
        """Of each partition the state with the highest leader epoch that any broker knows of."""
        found: dict[Partition, PartitionState] = {}
        for view in self.views():
            for key, state in self.states(view).items():
                if key not in found or state.leader_epoch > found[key].leader_epoch:
                    found[key] = state
        return found

    def whole(self) -> str | None:
        """None when all brokers run, agree, and every replica is in sync; otherwise what is wrong."""
        missing = [broker.broker_id for broker in self.brokers if not broker.running or broker.suspended]
        if missing:
            return f"brokers {missing} are not running"
        views = self.views()
        if len(views) < len(self.brokers):
            return f"only {len(views)} of {len(self.brokers)} brokers answer"
        expected = {broker.broker_id for broker in self.brokers}
        for view in views:
            alive = {each.node_id for each in view.brokers}
            if alive != expected:
                return f"a broker knows of {sorted(alive)} only"
            if view.controller_id not in alive:
                return f"the controller is {view.controller_id}"
        first = self.states(views[0])
        if any(self.states(view) != first for view in views):
            return "the brokers do not agree"
        ill = [state for state in first.values() if not state.healthy]
        return "; ".join(map(str, ill)) or None

    def coordinator(self, key: str, *, transactions: bool = False) -> int:
        """The id of the broker that coordinates a group, or a transactional id, -1 when nobody knows."""
        for broker in self.running:
            with (
                contextlib.suppress(Unreachable, KafkaError),
                WireClient(broker.bootstrap_servers, _ANSWER_SECONDS) as client,
            ):
                request = FindCoordinatorRequest(key_type=int(transactions), coordinator_keys=[key], key=key)
                answer = client.ask_once(request, FindCoordinatorResponse)
                found = answer.coordinators[0] if answer.coordinators else answer
                if found.error_code == ErrorCode.NONE:
                    return int(found.node_id)
        return -1

    # -- orders -----------------------------------------------------------------------------------------------

    def reassign(self, targets: Mapping[Partition, list[int]]) -> str | None:
        """Begin to move partitions; None when it was begun, else why it was refused."""
        topics: dict[str, list[alter.ReassignablePartition]] = {}
        for (topic, index), replicas in targets.items():
            topics.setdefault(topic, []).append(
                alter.ReassignablePartition(partition_index=index, replicas=replicas)
            )
        request = alter.AlterPartitionReassignmentsRequest(
            timeout_ms=10_000,
            topics=[alter.ReassignableTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        try:
            with WireClient(self._reachable(), 15.0) as client:
                answer = client.ask(request, alter.AlterPartitionReassignmentsResponse)
        except (Unreachable, KafkaError) as error:
            return str(error)
        refused = [
            f"{topic.name}-{each.partition_index}: {ErrorCode(each.error_code).name} {each.error_message}"
            for topic in answer.responses
            for each in topic.partitions
            if each.error_code
        ]
        if answer.error_code:
            refused.append(ErrorCode(answer.error_code).name)
        return "; ".join(refused) or None

    def moving(self) -> bool:
        """Whether any partition is on its way from some brokers to others."""
        request = ListPartitionReassignmentsRequest(timeout_ms=10_000)
        with WireClient(self._reachable(), _ANSWER_SECONDS) as client:
            return bool(client.ask(request, ListPartitionReassignmentsResponse).topics)

    def prefer_leaders(self) -> str | None:
        """Let the preferred replicas lead; None, or why that could not be asked."""
        request = elect_leaders.ElectLeadersRequest(
            election_type=_PREFERRED, topic_partitions=None, timeout_ms=10_000
        )
        try:
            with WireClient(self._reachable(), 15.0) as client:
                client.ask(request, elect_leaders.ElectLeadersResponse)
        except (Unreachable, KafkaError) as error:
            return str(error)
        return None

    def _reachable(self) -> str:
        """The addresses of the brokers that run."""
        return ",".join(broker.bootstrap_servers for broker in self.running) or "127.0.0.1:1"
