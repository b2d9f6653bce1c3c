"""A replica cluster driven by one-line commands, for scripts.

Whoever is up hears of a changed entry at once, unless it is `deaf`. Logs are printed as values with the epoch they
were written in; the bar stands at the high watermark that the broker knows of: `a@0 b@0 | c@1`.
"""

from __future__ import annotations

from collections.abc import Callable

from replica_cluster import Answer, ReplicaCluster, Request, Stored, epoch_end

from culver.core import elections, reassignment
from culver.core.image import NO_LEADER, PartitionImage
from culver.errors import KafkaError

LAG_TIME_MAX_MS = 30_000
RECORDS_MAX = 100


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def show_entry(partition: PartitionImage) -> str:
    leader = "none" if partition.leader == NO_LEADER else partition.leader
    parts = [f"leader {leader} epoch {partition.leader_epoch}"]
    for name in ("replicas", "isr", "elr", "adding", "removing"):
        brokers: tuple[int, ...] = getattr(partition, name)
        if brokers:
            parts.append(f"{name} {','.join(map(str, brokers))}")
    return " ".join(parts)


def show_log(log: list[Stored], high_watermark: int) -> str:
    words = [f"{record.value}@{record.epoch}" for record in log]
    return " ".join([*words[:high_watermark], "|", *words[high_watermark:]])


class ReplicationWorld:
    """See the module's text. `run` is the door: a command in, printed lines out."""

    def __init__(self) -> None:
        self.cluster = ReplicaCluster(PartitionImage(0, 1, 0, (1, 2, 3), (1, 2, 3)), (1, 2, 3), 1)
        self.deaf: set[int] = set()
        self.under_way: dict[int, Request] = {}
        self.printed: list[str] = []
        self.commands: dict[str, Callable[[list[str], dict[str, str]], None]] = {
            name.removeprefix("do_").replace("_", "-"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    def run(self, line: str) -> list[str]:
        self.printed = []
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        self.commands[name]([word for word in words if "=" not in word], options)
        assert not (trouble := self.cluster.broken_promise()), trouble
        return self.printed

    # --- the world ---

    def do_cluster(self, words: list[str], options: dict[str, str]) -> None:
        """Begin anew: `cluster 1,2,3 min=2`, with brokers=1,2,3,4 when there are more of them than replicas."""
        replicas = numbers(words[0])
        entry = PartitionImage(0, replicas[0], 0, replicas, replicas)
        brokers = numbers(options.get("brokers", words[0]))
        self.cluster = ReplicaCluster(entry, brokers, int(options.get("min", "1")))
        self.deaf, self.under_way = set(), {}

    def do_show(self, _words: list[str], _options: dict[str, str]) -> None:
        self.printed.append(show_entry(self.cluster.entry))
        for id, replica in self.cluster.replicas.items():
            role = "leads" if replica.state is not None else "follows" if replica.up else "down"
            self.printed.append(f"{id} {role}: {show_log(replica.log, replica.high_watermark)}")

    def do_advance(self, words: list[str], _options: dict[str, str]) -> None:
        self.cluster.now_ms += float(words[0].removesuffix("s")) * 1_000

    def do_min(self, words: list[str], _options: dict[str, str]) -> None:
        """The topic's min.insync.replicas changes for everyone."""
        self.cluster.min_insync = int(words[0])
        for replica in self.cluster.replicas.values():
            if replica.state is not None:
                minimum = elections.effective_min_insync(replica.view, self.cluster.min_insync)
                replica.state.set_min_insync(minimum)

    def do_deaf(self, words: list[str], _options: dict[str, str]) -> None:
        """These do not hear of changes."""
        self.deaf |= set(map(int, words))

    def do_hears(self, words: list[str], _options: dict[str, str]) -> None:
        self.deaf -= set(map(int, words))
        self._tell()

    def do_crash(self, words: list[str], options: dict[str, str]) -> None:
        """A process dies, with `lose=N` and its last N records; `expires=no`: the store has not noticed yet."""
        for id in map(int, words):
            self.cluster.crash(id, int(options.get("lose", "0")))
            if options.get("expires") != "no":
                self.cluster.expire(id)

    def do_expire(self, words: list[str], _options: dict[str, str]) -> None:
        """The store gives up a broker that runs on."""
        for id in map(int, words):
            self.cluster.expire(id)

    def do_start(self, words: list[str], _options: dict[str, str]) -> None:
        for id in map(int, words):
            before = self.cluster.entry
            self.cluster.start(id)
            if self.cluster.entry != before:
                self.printed.append(show_entry(self.cluster.entry))
        self._tell()

    # --- leader and followers ---

    def do_append(self, words: list[str], _options: dict[str, str]) -> None:
        error = self.cluster.append(int(words[0]), *words[1:])
        if error:
            self.printed.append(f"{words[0]}: {error}")

    def do_fetch(self, words: list[str], options: dict[str, str]) -> None:
        """A fetch by each of these; `from` and `epoch` in place of the leader that they know; `answer=lost`."""
        for id in map(int, words):
            request = self.cluster.request(id)
            request = request._replace(
                leader=int(options.get("from", request.leader)),
                leader_epoch=int(options.get("epoch", request.leader_epoch)),
            )
            answer = self.cluster.serve(request, RECORDS_MAX)
            if options.get("answer") == "lost":
                continue
            self._take(request, answer)

    def do_send(self, words: list[str], _options: dict[str, str]) -> None:
        """A fetch that takes its time; it is there at `arrive`."""
        for id in map(int, words):
            self.under_way[id] = self.cluster.request(id)

    def do_arrive(self, words: list[str], _options: dict[str, str]) -> None:
        for id in map(int, words):
            request = self.under_way.pop(id)
            self._take(request, self.cluster.serve(request, RECORDS_MAX))

    def do_shrink(self, words: list[str], options: dict[str, str]) -> None:
        """A leader throws these out of the ISR; without any: those that have not kept up."""
        leader, *members = map(int, words)
        replica = self.cluster.replicas[leader]
        assert replica.state is not None
        isr: tuple[int, ...] | None = tuple(broker for broker in replica.state.isr if broker not in members)
        if not members:
            isr = replica.state.to_shrink(len(replica.log), self.cluster.now_ms, LAG_TIME_MAX_MS)
        trouble = "all keep up" if isr is None else self.cluster.propose(leader, isr)
        self._finish(leader, trouble, options)

    def do_expand(self, words: list[str], options: dict[str, str]) -> None:
        """A leader takes a follower into the ISR; `alive-epoch`: the epoch in which it believes it to live."""
        leader, follower = map(int, words)
        alive_epoch = int(options["alive-epoch"]) if "alive-epoch" in options else None
        self._finish(leader, self.cluster.expand(leader, follower, alive_epoch), options)

    def do_decide(self, words: list[str], _options: dict[str, str]) -> None:
        """What a leader has proposed reaches the store."""
        self._finish(int(words[0]), "", {})

    def do_position(self, _words: list[str], options: dict[str, str]) -> None:
        """A consumer asks the leader whether its position, behind a record of this epoch, still exists."""
        offset, epoch = int(options["offset"]), int(options["epoch"])
        leader = self.cluster.replicas[self.cluster.entry.leader]
        known, end = epoch_end(leader.log, epoch)
        if known == epoch and end >= offset:
            self.printed.append(f"position {offset} is good")
        else:
            self.printed.append(f"truncated: epoch {known} ends at {end}")

    # --- elections ---

    def do_settle(self, _words: list[str], options: dict[str, str]) -> None:
        """The controller acts; with `unclean=yes` it may elect anyone, and what that loses is printed."""
        cluster = self.cluster
        unclean = options.get("unclean") == "yes"
        after = elections.settle(
            cluster.entry, cluster.alive, min_insync=cluster.min_insync, unclean_allowed=unclean
        )
        if unclean and after is not None and after.leader != NO_LEADER:
            log = cluster.replicas[after.leader].log
            kept = next(
                (
                    offset
                    for offset, record in enumerate(cluster.acknowledged)
                    if record not in log[offset:][:1]
                ),
                len(cluster.acknowledged),
            )
            self.printed.append(f"lost: {' '.join(record.value for record in cluster.acknowledged[kept:])}")
            del cluster.acknowledged[kept:]
        self._put(after)

    def do_hand_over(self, words: list[str], _options: dict[str, str]) -> None:
        cluster = self.cluster
        self._put(
            elections.hand_over(cluster.entry, int(words[0]), cluster.alive, min_insync=cluster.min_insync)
        )

    def do_prefer(self, _words: list[str], _options: dict[str, str]) -> None:
        self._put(elections.prefer(self.cluster.entry, self.cluster.alive))

    def do_reassign(self, words: list[str], _options: dict[str, str]) -> None:
        self._put(reassignment.begin(self.cluster.entry, tuple(map(int, words))))

    def do_cancel(self, _words: list[str], _options: dict[str, str]) -> None:
        try:
            self._put(reassignment.cancel(self.cluster.entry))
        except KafkaError as error:
            self.printed.append(str(error))

    # --- inside ---

    def _put(self, after: PartitionImage | None) -> None:
        trouble = self.cluster.put(after)
        self.printed.append(trouble or show_entry(self.cluster.entry))
        self._tell()

    def _tell(self) -> None:
        for id in self.cluster.replicas:
            if id not in self.deaf:
                self.cluster.learn(id)

    def _take(self, request: Request, answer: Answer) -> None:
        outcome = self.cluster.take(request, answer)
        if not outcome:
            values = " ".join(record.value for record in answer.records) or "nothing"
            outcome = f"{values}, high watermark {answer.high_watermark}"
        elif answer.diverging is not None:
            epoch, end = answer.diverging
            outcome += f": epoch {epoch} ends at {end}"
        self.printed.append(f"{request.follower} fetch: {outcome}")

    def _finish(self, leader: int, trouble: str, options: dict[str, str]) -> None:
        if trouble:
            self.printed.append(f"{leader}: {trouble}")
        elif options.get("store") == "slow":
            self.printed.append(f"{leader}: proposed")
        else:
            answer = self.cluster.decide(leader)
            self.cluster.hear(leader)
            self.printed.append(
                show_entry(self.cluster.entry) if answer == "made" else f"{leader}: refused, {answer} changed"
            )
            self._tell()
