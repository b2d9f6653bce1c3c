"""What a partition's leader knows of its followers: who is in sync, and how far all of them have come.

The high watermark is the end of what every member of the *maximal* ISR has: of the ISR in the store and of the one
that has been proposed and may be there already. It moves only while the ISR holds `min_insync` members, and only
while the entry names no eligible leader replicas (ELR, KIP-966): those are electable because nothing has been
acknowledged without them, so nothing may be until the store has dropped them. Since ISR and ELR are in one entry
and change together, this holds whatever the brokers think of `min.insync.replicas` while it is being changed.

How a proposal ends:

| the store says | call |
|---|---|
| the partition's entry changed, to whatever | `update`: the proposal was that change, or is refused for it |
| Conflict over the entry | nothing: the change that was faster is on its way to `update`, or has been there |
| Conflict over something else (the follower's registration) | `withdraw` |
| nothing certain (StoreError) | keep it; put the entry as it was, expecting its version, until the store answers |
"""

from __future__ import annotations

from collections.abc import Iterable

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
LONG_AGO_MS = float("-inf")


class _Follower:
    """The last fetches of one follower."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "end_offset",
        "fetched_at_ms",
        "leader_end_offset",
    )

    def __init__(self, caught_up_ms: float) -> None:
        self.end_offset = UNKNOWN_OFFSET
        self.broker_epoch = UNKNOWN_EPOCH
        # The leader's end, and the time, at the last fetch.
        self.leader_end_offset = UNKNOWN_OFFSET
        self.fetched_at_ms = LONG_AGO_MS
        # When it last had everything that the leader had at that time.
        self.caught_up_ms = caught_up_ms


class LeaderState:
    """One leader's view of one partition in one leader epoch. Every offset it is given comes from that epoch."""

    __slots__ = (
        "_acknowledged",
        "_followers",
        "_frozen",
        "_gate",
        "_high_watermark",
        "broker_id",
        "elr",
        "epoch_start_offset",
        "isr",
        "min_insync",
        "proposed",
        "replicas",
    )

    def __init__(
        self,
        broker_id: int,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        min_insync: int,
        end_offset: int,
        high_watermark: int,
        now_ms: float,
        *,
        elr: tuple[int, ...] = (),
    ) -> None:
        self.broker_id = broker_id
        # Everything acknowledged by earlier leaders is below this, for this broker was elected having it.
        self.epoch_start_offset = end_offset
        self._high_watermark = max(0, min(high_watermark, end_offset))
        self._followers: dict[int, _Follower] = {}
        self.isr: tuple[int, ...] = ()
        self.proposed: tuple[int, ...] | None = None
        # Where the slowest of those ends that the high watermark waits for; None: only the leader counts.
        self._acknowledged: int | None = None
        self._take(replicas, isr, min_insync, elr, now_ms)

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Everyone who is in sync for the store, or may be by now."""
        if self.proposed is None:
            return self.isr
        return self.isr + tuple(broker for broker in self.proposed if broker not in self.isr)

    @property
    def below_min(self) -> bool:
        """Too few are in sync for an acknowledgement that all of them have a record."""
        return len(self.isr) < min(self.min_insync, len(self.replicas))

    def follower_end_offsets(self) -> dict[int, int]:
        """How far each follower is; -1 for one that has not fetched in this epoch."""
        return {broker: follower.end_offset for broker, follower in self._followers.items()}

    def high_watermark(self, end_offset: int) -> int:
        """Where what may be acknowledged and shown to consumers ends, given the leader's own end. Never goes back.

        Hot: called on every follower's fetch and every append.
        """
        if not self._frozen:
            acknowledged = self._acknowledged
            if acknowledged is None or acknowledged > end_offset:
                acknowledged = end_offset
            if acknowledged > self._high_watermark:
                self._high_watermark = acknowledged
        return self._high_watermark

    def fetched(self, follower: int, broker_epoch: int, offset: int, end_offset: int, now_ms: float) -> None:
        """A follower has asked for `offset`: it has everything below, as the leader does up to `end_offset`.

        A fetch of an earlier life of the follower says nothing of what it has now, and is ignored.
        """
        state = self._followers.get(follower)
        if state is None or broker_epoch < state.broker_epoch:
            return
        if broker_epoch > state.broker_epoch:
            state.broker_epoch = broker_epoch
            state.leader_end_offset = UNKNOWN_OFFSET
        if offset >= end_offset:
            state.caught_up_ms = now_ms
        elif offset >= state.leader_end_offset != UNKNOWN_OFFSET and state.fetched_at_ms > state.caught_up_ms:
            # Under steady appends a follower is always a little behind; it keeps up if each fetch asks for at
            # least what had been there at the fetch before.
            state.caught_up_ms = state.fetched_at_ms
        state.leader_end_offset = end_offset
        state.fetched_at_ms = now_ms
        if offset != state.end_offset:
            state.end_offset = offset
            if state in self._gate:
                self._acknowledged = min([member.end_offset for member in self._gate])

    def update(
        self,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        min_insync: int,
        now_ms: float,
        *,
        elr: tuple[int, ...] = (),
    ) -> None:
        """The entry has changed in the store; this ends a proposal. For a changed setting: `set_min_insync`."""
        self.proposed = None
        self._take(replicas, isr, min_insync, elr, now_ms)

    def set_min_insync(self, min_insync: int) -> None:
        """The setting has changed, the entry has not: a proposal goes on."""
        self.min_insync = min_insync
        self._regate()

    def to_expand(self, follower: int, alive_epoch: int) -> tuple[int, ...] | None:
        """The ISR to propose now that this follower has caught up, or None if it has not.

        It must have what this leader has acknowledged, and what earlier ones may have; and it must have said so
        in the life that the store knows of (KIP-903). Propose at once: the high watermark may move on.
        """
        state = self._followers.get(follower)
        if (
            state is None
            or self.proposed is not None
            or follower in self.isr
            or state.broker_epoch != alive_epoch
            or state.end_offset < self._high_watermark
            or state.end_offset < self.epoch_start_offset
        ):
            return None
        return (*self.isr, follower)

    def to_shrink(self, end_offset: int, now_ms: float, lag_time_max_ms: float) -> tuple[int, ...] | None:
        """The ISR to propose without those that have not kept up, or None if all have.

        None while a proposal is under way. A follower that has everything is in sync however long it is silent:
        whether it lives is for the controller to see.
        """
        if self.proposed is not None:
            return None
        remaining = tuple(
            broker
            for broker in self.isr
            if broker == self.broker_id or self._keeps_up(broker, end_offset, now_ms - lag_time_max_ms)
        )
        return remaining if len(remaining) < len(self.isr) else None

    def propose(self, isr: tuple[int, ...]) -> None:
        """This ISR is on its way to the store: from now on it may be there."""
        assert self.proposed is None, "one change of the ISR at a time"
        assert self.broker_id in isr
        for broker in isr:
            if broker not in self.isr:
                assert self._followers[broker].end_offset >= self._high_watermark, (
                    "it has fallen behind since"
                )
        self.proposed = isr
        self._regate()

    def withdraw(self) -> None:
        """The proposal was refused for certain, and nothing like it can still reach the store."""
        self.proposed = None
        self._regate()

    def _keeps_up(self, broker: int, end_offset: int, since_ms: float) -> bool:
        state = self._followers[broker]
        return state.end_offset == end_offset or state.caught_up_ms >= since_ms

    def _take(
        self,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        min_insync: int,
        elr: Iterable[int],
        now_ms: float,
    ) -> None:
        known, self._followers = self._followers, {}
        before = self.isr
        for broker in replicas:
            if broker == self.broker_id:
                continue
            state = known.get(broker)
            if state is None:
                state = _Follower(LONG_AGO_MS)
            if broker in isr and broker not in before:
                # Whoever is new in the ISR, all of it under a new leader, has the whole time to show itself.
                state.caught_up_ms = now_ms
            self._followers[broker] = state
        self.replicas = replicas
        self.isr = isr
        self.elr = tuple(elr)
        self.min_insync = min_insync
        self._regate()

    def _regate(self) -> None:
        """Find out anew whom the high watermark waits for, and whether it may move at all."""
        self._gate = [
            self._followers[broker]
            for broker in self.maximal_isr
            if broker != self.broker_id and broker in self._followers
        ]
        self._acknowledged = min((member.end_offset for member in self._gate), default=None)
        self._frozen = self.below_min or bool(self.elr)
