"""Consumer groups under random joins, departures, silence, lost answers, failing logs, moves and topics that change.

Whatever happens: no partition is read by two members of the group at once, epochs never go back, and once all is
quiet every partition is read by someone.
"""

from __future__ import annotations

from consumer_group_clients import GROUP, ClassicClient, Client, NewClient, World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from culver.core.consumer_group import ConsumerGroupState
from culver.core.group import GroupState
from culver.errors import ErrorCode

NAMES = ("a", "b", "c", "d")
TOPICS = ("t", "u", "tx")


class ConsumerGroupMachine(RuleBasedStateMachine):
    """New members only."""

    kinds: tuple[type[Client], ...] = (NewClient,)

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.topics.set("t", 3)
        self.clients: dict[str, Client] = {}
        self.group_epoch = 0
        self.lives = 0

    def client(self, name: str, kind: int = 0) -> Client:
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = self.kinds[kind % len(self.kinds)](name, self.world)
            if isinstance(client, NewClient):
                client.member_id = f"{name}-{self.lives}"
        return client

    # --- members ---

    @rule(
        name=st.sampled_from(NAMES),
        kind=st.integers(0, 1),
        topics=st.sampled_from([("t",), ("t", "u"), ("u",)]),
    )
    def comes(self, name: str, kind: int, topics: tuple[str, ...]) -> None:
        client = self.client(name, kind)
        if not client.has and client.epoch == 0 and not client.waiting:
            client.topics = topics if len(self.kinds) == 1 else ("t",)
        client.beat()

    @rule(name=st.sampled_from(NAMES), follow=st.booleans())
    def beats(self, name: str, follow: bool) -> None:
        self.client(name).beat(follow=follow)

    @rule()
    def all_beat(self) -> None:
        for client in self.clients.values():
            client.beat()

    @rule(name=st.sampled_from(NAMES))
    def answer_is_lost(self, name: str) -> None:
        self.client(name).beat(lose_answer=True)

    @rule(name=st.sampled_from(NAMES))
    def leaves(self, name: str) -> None:
        self.client(name).leave()

    @rule(name=st.sampled_from(NAMES))
    def crashes(self, name: str) -> None:
        """The process is gone, and reads nothing; another comes under another id."""
        client = self.clients.pop(name, None)
        if client is not None:
            client.abandon()
            self.lives += 1

    @rule(name=st.sampled_from(NAMES))
    def becomes_static_or_restarts(self, name: str) -> None:
        client = self.client(name)
        if isinstance(client, NewClient):
            if client.instance is not None:
                client.restart()
            elif client.epoch == 0 and not client.waiting:
                client.instance = f"i-{name}"

    @rule(name=st.sampled_from(NAMES), pattern=st.sampled_from(["t.*", "u", "x"]))
    def wants_a_pattern(self, name: str, pattern: str) -> None:
        client = self.client(name)
        if isinstance(client, NewClient):
            client.pattern = pattern
            client.full = True
            client.beat()

    # --- the world ---

    @rule(seconds=st.sampled_from([1, 5, 20, 50]))
    def time_passes(self, seconds: int) -> None:
        self.world.advance(seconds * 1_000)

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 5))
    def topic_grows(self, topic: str, count: int) -> None:
        self.world.topics.set(topic, max(count, self.world.topics.counts.get(topic, 0)))
        self.world.coordinator.on_topics_changed([topic])

    @rule(topic=st.sampled_from(TOPICS))
    def topic_goes(self, topic: str) -> None:
        if topic in self.world.topics.counts:
            self.world.topics.delete(topic)
            self.world.carry_out(self.world.coordinator.on_topics_deleted([topic], self.world.now_ms))
            self.world.coordinator.on_topics_changed([topic])

    @rule()
    def log_holds(self) -> None:
        self.world.holding = True

    @rule()
    def log_goes_on(self) -> None:
        self.world.release()

    @rule(error=st.sampled_from([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT]))
    def log_fails(self, error: ErrorCode) -> None:
        self.world.failing = error

    @rule()
    def log_heals(self) -> None:
        self.world.failing = ErrorCode.NONE

    @rule(compacted=st.booleans())
    def coordinator_moves(self, compacted: bool) -> None:
        if compacted:
            self.world.compact()
        self.world.restart()
        for client in self.clients.values():
            # Connections break: nobody waits for an answer any more.
            client.waiting = False
            client.life += 1
            if isinstance(client, NewClient):
                client.full = True
            elif isinstance(client, ClassicClient):
                client.synced = False if not client.has else client.synced

    # --- what always holds ---

    @invariant()
    def nobody_reads_what_another_reads(self) -> None:
        members = self.world.member_ids()
        reading: dict[tuple[bytes, int], str] = {}
        for client in self.clients.values():
            # One that was removed and does not know is fenced when it commits.
            if client.member_id in members:
                for partition in client.has:
                    other = reading.setdefault(partition, client.name)
                    assert other == client.name, f"{partition} is read by {other} and {client.name}"

    @invariant()
    def epochs_go_up(self) -> None:
        group = self.world.group
        if group is None:
            self.group_epoch = 0
            return
        if self.group_epoch > group.epoch:
            # Only a group made anew begins again.
            assert all(member.current.epoch <= group.epoch for member in group.members.values())
        self.group_epoch = group.epoch
        assert group.assignment_epoch <= group.epoch
        for member in group.members.values():
            assert member.current.epoch <= group.epoch

    @rule()
    def settles(self) -> None:
        """All is quiet, everyone does what it is told: then all partitions are read."""
        world = self.world
        world.failing = ErrorCode.NONE
        world.release()
        for _ in range(20):
            world.advance(5_000)
            for client in self.clients.values():
                client.beat()
        alive = [client for client in self.clients.values() if client.member_id in world.member_ids()]
        assert len(alive) == len(self.clients)
        assert world.member_ids() == {client.member_id for client in alive}
        wanted = {
            (world.topics.ids[topic], index)
            for client in alive
            for topic in self._topics_of(client)
            for index in range(world.topics.counts.get(topic, 0))
        }
        assert {partition for client in alive for partition in client.has} == wanted
        if world.group is not None and alive:
            assert world.group.state is ConsumerGroupState.STABLE
        elif alive:
            classic = world.coordinator.group(GROUP)
            assert classic is not None
            assert classic.state is GroupState.STABLE

    def _topics_of(self, client: Client) -> set[str]:
        topics = set(client.topics)
        if isinstance(client, NewClient) and client.pattern is not None:
            known = self.world.topics.counts
            topics |= {"t.*": {n for n in known if n.startswith("t")}, "u": {"u"} & set(known)}.get(
                client.pattern, set()
            )
        return topics

    def teardown(self) -> None:
        self.settles()


class MixedGroupMachine(ConsumerGroupMachine):
    """Members of both kinds: the group changes its kind with who is in it."""

    kinds = (NewClient, ClassicClient)

    @initialize()
    def both_come(self) -> None:
        self.client("a", 0)
        self.client("b", 1)


TestConsumerGroups = ConsumerGroupMachine.TestCase
TestConsumerGroups.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestMixedGroups = MixedGroupMachine.TestCase
TestMixedGroups.settings = TestConsumerGroups.settings
