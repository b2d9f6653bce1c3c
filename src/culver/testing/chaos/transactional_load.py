"""The transactional part of a chaos run: tellers, some of whom share an id, copiers, and what becomes of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.testing.chaos.clients import ClientProcess, Mishaps
from culver.testing.chaos.consumers import AssignedConsumer, read_all, settings
from culver.testing.chaos.copier import CLASSIC, CopierDuty
from culver.testing.chaos.plan import COPIES, COPY_GROUP, OFFSETS_PARTITIONS, SOURCE, TransactionPlan
from culver.testing.chaos.teller import TellerDuty
from culver.testing.chaos.worker import Workplace
from culver.testing.history import Copying, Partition

_ASKING_SECONDS = 3.0
_POLL_SECONDS = 0.2
SHARED_ID = "shared"


@dataclass(frozen=True)
class ClientFigures:
    """What became of the client processes."""

    processes: int
    killed: int
    frozen: int
    stuck: int
    aborted: int


class TransactionalLoad:
    """Everyone who works in transactions. A party is who has to get on: a client, or those who share something."""

    def __init__(
        self,
        plan: TransactionPlan,
        place: Workplace,
        directory: Path,
        *,
        begun_s: float,
        seed: int,
        note: Callable[[str], object],
    ) -> None:
        self._plan = plan
        self._place = place
        self._note = note
        self.sources = [(SOURCE, index) for index in range(plan.source_partitions)]
        self.targets = [(COPIES, index) for index in range(plan.copy_partitions)]
        self.partitions = self.sources + self.targets
        # Where the sources end, if they were written before the copying began.
        self.seeded: dict[Partition, int] = {}
        everywhere = place.partitions + self.sources

        def client(name: str, duty: TellerDuty | CopierDuty) -> ClientProcess:
            return ClientProcess(name, duty, place, directory, begun_s)

        self._tellers = [
            client(f"t{number}", TellerDuty(f"teller-{number}", everywhere, plan.timeout_ms, plan.pause_s))
            for number in range(plan.tellers)
        ]
        self._hijackers = [
            client(f"h{number}", TellerDuty(SHARED_ID, everywhere, plan.timeout_ms, plan.pause_s))
            for number in range(plan.hijackers)
        ]
        self._copiers = [client(f"x{number}", self._copier_duty(number)) for number in range(plan.copiers)]
        self._parties = {each.name: [each] for each in self._tellers}
        if self._hijackers:
            self._parties[f"owners of {SHARED_ID!r}"] = self._hijackers
        if self._copiers:
            self._parties["copiers"] = self._copiers
            place.history.copyings.append(Copying(COPY_GROUP, tuple(self.sources), tuple(self.targets)))
        readable = place.partitions + self.partitions
        self.readers = [
            AssignedConsumer("r1", place, readable, committed_only=True),
            AssignedConsumer("r2", place, readable, rack="rack-2", committed_only=True),
        ]
        self._healed = False
        self._mishaps = Mishaps(
            self.clients, plan.mishap_gap_s, plan.frozen_share, seed, note, place.history.complaints.append
        )

    def _copier_duty(self, number: int) -> CopierDuty:
        plan = self._plan
        return CopierDuty(
            f"copier-{number}",
            COPY_GROUP,
            plan.group_protocol,
            # Half of them come back to what they had, the others are new members each time. Where the broker assigns
            # nobody comes back before the session of his former self is over.
            f"copier-{number}" if number % 2 == 0 and plan.group_protocol == CLASSIC else None,
            SOURCE,
            COPIES,
            plan.copy_partitions,
            plan.copy_size,
            plan.copy_linger_s,
            plan.copy_pause_s,
            plan.timeout_ms,
            plan.session_timeout_ms,
        )

    @property
    def clients(self) -> list[ClientProcess]:
        return [*self._tellers, *self._hijackers, *self._copiers]

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        return tuple(sorted({client.duty.transactional_id for client in self.clients}))

    def figures(self) -> ClientFigures:
        counts = self._mishaps.counts
        return ClientFigures(
            len(self.clients),
            counts["killed"],
            counts["frozen"],
            sum(client.stuck for client in self.clients),
            sum(client.aborted for client in self.clients),
        )

    # -- acts -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        for client in self.clients:
            client.launch()
        for reader in self.readers:
            reader.start()

    def begin_mishaps(self) -> None:
        self._mishaps.start()

    def heal(self) -> None:
        """No more mishaps; everybody works."""
        self._mishaps.end()
        self._healed = True

    def committed(self) -> dict[str, int]:
        """How many transactions each party has committed for certain."""
        self.catch_up()
        return {name: sum(client.committed for client in party) for name, party in self._parties.items()}

    def waits(self, before: dict[str, int]) -> list[str]:
        """Who has committed nothing since."""
        now = self.committed()
        waiting = [f"a commit of {name}" for name, count in before.items() if now[name] <= count]
        if "copiers" in before and now["copiers"] <= before["copiers"] and self.all_copied():
            waiting.remove("a commit of copiers")
        return waiting

    def catch_up(self) -> None:
        if self._healed:
            self._mishaps.look()  # it does so itself as long as it is at work
        for client in self.clients:
            client.catch_up()

    def desert(self) -> None:
        """Some are killed, and nobody takes their transactional ids again."""
        for client in self._tellers[: self._plan.deserters]:
            self._note(f"client {client.name} was killed, for ever")
            client.kill()

    def stop_tellers(self, timeout_s: float) -> list[str]:
        """What was wrong with their ends."""
        return self._stop([*self._tellers, *self._hijackers], timeout_s)

    def stop_copiers(self, timeout_s: float) -> list[str]:
        return self._stop(self._copiers, timeout_s)

    def _stop(self, clients: Sequence[ClientProcess], timeout_s: float) -> list[str]:
        for client in clients:
            client.begin_to_stop()
        deadline_s = time.monotonic() + timeout_s
        ends = {client.name: client.stop(max(0.1, deadline_s - time.monotonic())) for client in clients}
        self.catch_up()
        return [f"{name} {how}" for name, how in ends.items() if how is not None]

    def close(self) -> None:
        """Nobody is left."""
        self._mishaps.end()
        for client in self.clients:
            client.kill()
        self.catch_up()
        told: Counter[str] = Counter()
        for client in self.clients:
            told += client.told()
        self._note(f"transactional clients were told {dict(told)}")

    # -- how things stand -----------------------------------------------------------------------------------

    def all_copied(self) -> bool:
        """Whether the group has committed everything that is committed in the sources, as far as can be told now."""
        self.catch_up()
        try:
            ends = self._last_committed()
            return all(offset >= ends[key] for key, offset in self._group_offsets().items())
        except (KafkaException, TimeoutError):
            return False

    def _last_committed(self) -> dict[Partition, int]:
        """For each source, the offset behind the last record that a reader with isolation gets."""
        if self.seeded:
            return self.seeded
        deadline_s = time.monotonic() + self._plan.timeout_ms / 1000
        found = read_all(self._place, self.sources, deadline_s, committed_only=True)
        return {key: records[-1][0] + 1 if records else 0 for key, records in found.items()}

    def _group_offsets(self) -> dict[Partition, int]:
        consumer = Consumer(settings(self._place, "auditor", COPY_GROUP, committed_only=True))
        try:
            answer = consumer.committed([TopicPartition(*key) for key in self.sources], _ASKING_SECONDS)
        finally:
            consumer.close()
        for each in answer:
            if each.error is not None:
                raise KafkaException(each.error)
        return {(each.topic, each.partition): max(0, each.offset) for each in answer}

    def hanging(self) -> str | None:
        """Wait for the end of every transaction that is open now, which must come by itself. None, or what hangs."""
        partitions = [*self._place.partitions, *self.partitions]
        partitions += [(GROUP_OFFSETS_TOPIC, index) for index in range(OFFSETS_PARTITIONS)]
        deadline_s = time.monotonic() + self._plan.timeout_ms / 1000 + self._plan.end_slack_s
        admin = AdminClient(self._place.settings("auditor"))
        ends: dict[Partition, int] = {}
        while True:
            try:
                ends = ends or self._offsets(admin, partitions, IsolationLevel.READ_UNCOMMITTED)
                stable = self._offsets(admin, partitions, IsolationLevel.READ_COMMITTED)
                behind = {key: stable[key] for key, end in ends.items() if stable[key] < end}
                if not behind:
                    return None
                what = f"stable up to {behind} of {ends}"
            except KafkaException as error:
                what = str(error)
            if time.monotonic() > deadline_s:
                return what
            time.sleep(_POLL_SECONDS)

    @staticmethod
    def _offsets(
        admin: AdminClient, partitions: Sequence[Partition], isolation: IsolationLevel
    ) -> dict[Partition, int]:
        asked = {TopicPartition(*key): OffsetSpec.latest() for key in partitions}  # type: ignore[no-untyped-call]
        answers: dict[TopicPartition, Future[object]] = admin.list_offsets(
            asked, isolation_level=isolation, request_timeout=_ASKING_SECONDS
        )
        return {(key.topic, key.partition): answer.result().offset for key, answer in answers.items()}  # type: ignore[attr-defined]
