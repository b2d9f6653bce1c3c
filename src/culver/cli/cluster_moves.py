"""`culver cluster reassign`, `drain` and `balance`: which broker holds what."""

from __future__ import annotations

import json
from typing import Any

import click

from culver.cli import health, moves
from culver.cli.failure import ExitCode, Failure
from culver.cli.output import counted, note, print_json, print_table, size
from culver.cli.session import Command, Session, client_options
from culver.cli.wire import Wire, connected
from culver.core import placement, reassignment
from culver.core.image import ClusterImage
from culver.core.placement import PartitionKey
from culver.errors import ErrorCode, KafkaError

# Topics made while a broker is being drained may land on it: look again so many times.
_DRAIN_ROUNDS_MAX = 5


class Bytes(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """A number of bytes, such as 500000, 500K, 20M or 1G (of 1024)."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip().removesuffix("/s").upper().removesuffix("B").removesuffix("I")
        factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        number = text[:-1] if factor > 1 else text
        if not number.isascii() or not number.isdigit() or int(number) < 1:
            self.fail(f"{value!r} is no number of bytes, such as 500000, 500K or 20M", param, ctx)
        return int(number) * factor


class BrokerIds(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """Broker ids with commas between them."""

    name = "brokers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        words = [word.strip() for word in str(value).split(",")]
        if not all(word.isascii() and word.isdigit() for word in words):
            self.fail(f"{value!r} is no list of broker ids, such as 1,2,3", param, ctx)
        ids = tuple(map(int, words))
        if len(set(ids)) < len(ids):
            self.fail(f"{value!r} names a broker twice", param, ctx)
        return ids


def moving_options(command: Command) -> Command:
    """The options of every command that copies partitions."""
    for decorate in (
        click.option("--dry-run", is_flag=True, help="Only show what would be moved."),
        click.option("--no-wait", is_flag=True, help="Begin, and do not wait until everything is copied."),
        click.option(
            "--throttle",
            "throttle_bytes",
            metavar="BYTES",
            type=Bytes(),
            help="Copy at most so much a second to each broker: 500000, 500K, 20M.  [default: no limit]",
        ),
    ):
        command = decorate(command)
    return command


@click.command()
@click.argument("file", required=False, type=click.File("rb"), metavar="[FILE.json]")
@click.option("--topic", help="The topic to move.")
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition; repeatable.  [default: all of the topic]",
)
@click.option(
    "--to", "target", type=BrokerIds(), metavar="ID,ID,...", help="The brokers to hold it; the first leads."
)
@click.option("--cancel", is_flag=True, help="Call off the moves of FILE, of the topic, or all there are.")
@moving_options
@client_options
@click.pass_obj
def reassign(
    session: Session,
    file: Any,
    topic: str | None,
    partitions: tuple[int, ...],
    target: tuple[int, ...] | None,
    cancel: bool,
    throttle_bytes: int | None,
    no_wait: bool,
    dry_run: bool,
) -> None:
    """Move partitions to other brokers, or change how many replicas they have.

    \b
    culver cluster reassign --topic orders --to 1,2,3                  each partition to brokers 1, 2 and 3
    culver cluster reassign --topic orders --partition 0 --to 4,5
    culver cluster reassign plan.json --throttle 20M
    culver cluster reassign --cancel                                   all that is under way

    FILE is a plan as Kafka's own tool takes it: {"version": 1, "partitions": [{"topic": "orders", "partition":
    0, "replicas": [1, 2, 3]}]}. A topic's partitions are moved with their leaders spread over the brokers named.
    """
    _check_throttle(throttle_bytes, no_wait)
    if file is not None and (topic is not None or target is not None):
        raise click.UsageError("give a FILE, or --topic with --to, not both")
    if topic is None and (partitions or target is not None):
        raise click.UsageError("--partition and --to need a --topic")
    if topic is not None and (target is None) != cancel:
        raise click.UsageError("--topic needs either --to or --cancel")
    if not cancel and file is None and topic is None:
        raise click.UsageError("nothing to move: give a FILE, or --topic with --to")
    plan = None if file is None else _plan_from(file.read(), file.name)
    with connected(session) as wire:
        image = wire.image()
        if topic is not None:
            plan = topic_plan(image, topic, partitions, target or ())
        if cancel:
            _cancel(session, wire, image, plan)
            return
        assert plan is not None
        _move(session, wire, image, plan, throttle_bytes, no_wait, dry_run, "reassign")


def _check_throttle(throttle_bytes: int | None, no_wait: bool) -> None:
    if throttle_bytes is not None and no_wait:
        raise click.UsageError("--throttle is taken off at the end, so it cannot go with --no-wait")


def _plan_from(content: bytes, name: str) -> dict[PartitionKey, tuple[int, ...]]:
    """The plan in a file of Kafka's format."""
    try:
        document = json.loads(content)
        plan = {
            (str(each["topic"]), int(each["partition"])): tuple(int(broker) for broker in each["replicas"])
            for each in document["partitions"]
        }
        if len(plan) < len(document["partitions"]):
            raise ValueError("a partition is named twice")
    except (ValueError, KeyError, TypeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise Failure(
            f"{name} is no plan: {what}",
            'expected {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}',
            code=ExitCode.USAGE,
        ) from None
    return plan


def topic_plan(
    image: ClusterImage, topic: str, partitions: tuple[int, ...], target: tuple[int, ...]
) -> dict[PartitionKey, tuple[int, ...]]:
    moves.partition_of(image, (topic, 0))
    chosen = partitions or tuple(range(len(image.topics[topic].partitions)))
    for index in chosen:
        moves.partition_of(image, (topic, index))
    if len(chosen) == 1 or not target:
        return {(topic, index): target for index in chosen}
    # Each partition begins one broker further on, or the first of them would lead everything.
    return {
        (topic, index): target[position % len(target) :] + target[: position % len(target)]
        for position, index in enumerate(chosen)
    }


def _cancel(
    session: Session, wire: Wire, image: ClusterImage, plan: dict[PartitionKey, tuple[int, ...]] | None
) -> None:
    under_way = {key for key, partition in health.partitions(image) if reassignment.is_under_way(partition)}
    chosen = under_way if plan is None else under_way & plan.keys()
    refused = wire.reassign(dict.fromkeys(chosen))
    # One that was done before the word arrived needs no calling off.
    refused = {
        key: error for key, error in refused.items() if error.code != ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    }
    if session.json:
        print_json([{"topic": topic, "partition": index} for topic, index in sorted(chosen - refused.keys())])
    else:
        called_off = counted(len(chosen) - len(refused), "move")
        print(f"{called_off} called off" if chosen else "nothing is moving")
    if refused:
        raise Failure("; ".join(error.message for error in refused.values()))


def _move(
    session: Session,
    wire: Wire,
    image: ClusterImage,
    plan: dict[PartitionKey, tuple[int, ...]],
    throttle_bytes: int | None,
    no_wait: bool,
    dry_run: bool,
    why: str,
) -> None:
    """Show the plan and carry it out."""
    rows = moves.plan_rows(image, plan, wire.stored(image.brokers.values()))
    if session.json:
        print_json(rows)
    elif rows:
        shown = [row | {"copied": size(row["bytes_copied"])} for row in rows]
        print_table(["topic", "partition", "replicas", "new_replicas", "copied"], shown)
    if dry_run:
        note("nothing was moved (--dry-run)")
    else:
        moves.carry_out(wire, image, plan, throttle_bytes=throttle_bytes, wait=not no_wait, why=why)


def _assignment(image: ClusterImage) -> dict[PartitionKey, tuple[int, ...]]:
    """The replicas of every partition as they are to be once what is under way is done."""
    return {key: reassignment.target(partition) for key, partition in health.partitions(image)}


@click.command()
@moving_options
@client_options
@click.pass_obj
def balance(session: Session, throttle_bytes: int | None, no_wait: bool, dry_run: bool) -> None:
    """Spread replicas and leaders evenly over all brokers that are up, new ones included, with few moves."""
    _check_throttle(throttle_bytes, no_wait)
    with connected(session) as wire:
        image = wire.image()
        plan = placement.balance(_assignment(image), list(image.registrations.values()), set(image.brokers))
        if plan:
            _move(session, wire, image, plan, throttle_bytes, no_wait, dry_run, "balance")
        elif session.json:
            print_json([])
        if dry_run or (plan and no_wait):
            return
        # Of partitions that stay where they are, too: their leaders may have moved away when a broker was down.
        elected = wire.elect_leaders(None)
        handed = sum(code == ErrorCode.NONE for code in elected.values())
        if handed:
            note(f"balance: {counted(handed, 'leadership')} handed over")
        elif not plan:
            note("balance: replicas and leaders are even already")


@click.command()
@click.argument("broker", type=click.IntRange(min=0))
@click.option(
    "--remove", is_flag=True, help="Strike it off the cluster's list too; it must have been stopped."
)
@moving_options
@client_options
@click.pass_obj
def drain(
    session: Session,
    broker: int,
    remove: bool,
    throttle_bytes: int | None,
    no_wait: bool,
    dry_run: bool,
) -> None:
    """Move everything off a broker, so that it can be stopped for good.

    It works for a broker that is dead too, as long as other replicas are alive. With --remove a broker that has
    been stopped is struck off the list afterwards.
    """
    _check_throttle(throttle_bytes, no_wait)
    with connected(session) as wire:
        image = wire.image()
        if broker not in image.registrations:
            raise Failure(
                f"there is no broker {broker}, only {', '.join(map(str, sorted(image.registrations)))}",
                code=ExitCode.NOT_FOUND,
            )
        for _ in range(_DRAIN_ROUNDS_MAX):
            plan = _drain_plan(image, broker)
            if not plan:
                break
            _check_sources(image, plan)
            _move(session, wire, image, plan, throttle_bytes, no_wait, dry_run, f"drain broker {broker}")
            if no_wait or dry_run:
                return
            image = wire.image()
        _say_drained(session, wire, image, broker, remove and not dry_run)


def _drain_plan(image: ClusterImage, broker: int) -> dict[PartitionKey, tuple[int, ...]]:
    """Partitions that it holds, and those that are on their way to it."""
    try:
        plan = placement.drain(
            _assignment(image), list(image.registrations.values()), set(image.brokers), {broker}
        )
    except KafkaError as error:
        raise Failure(
            f"broker {broker} cannot be drained: {error.message}",
            "add a broker first, or give the topic fewer replicas with `culver cluster reassign`",
        ) from None
    # Removed by a move that is still under way: asking for the same again is how to wait for it.
    for key, partition in health.partitions(image):
        if broker in partition.removing:
            plan.setdefault(key, reassignment.target(partition))
    return plan


def _check_sources(image: ClusterImage, plan: dict[PartitionKey, tuple[int, ...]]) -> None:
    """A partition that nobody leads cannot be copied, and waiting for it would have no end."""
    stuck = [key for key in sorted(plan) if moves.partition_of(image, key).leader not in image.brokers]
    if stuck:
        raise Failure(
            f"{counted(len(stuck), 'partition')} cannot be copied for want of a leader: {stuck[0][0]}-{stuck[0][1]}"
            + (", ..." if len(stuck) > 1 else ""),
            "`culver cluster why-unhealthy` says which broker has the records; a topic not needed can be deleted",
        )


def _say_drained(session: Session, wire: Wire, image: ClusterImage, broker: int, remove: bool) -> None:
    held = [key for key, partition in health.partitions(image) if broker in partition.replicas]
    if held:
        raise Failure(
            f"broker {broker} still holds {counted(len(held), 'replica')}, such as {held[0][0]}-{held[0][1]}",
            "topics are being created on it faster than they are moved away; run the command again",
        )
    up = broker in image.brokers
    if remove and up:
        raise Failure(
            f"broker {broker} holds nothing any more, but is still running",
            "stop it, then run the command again to strike it off the list",
        )
    if remove:
        wire.unregister(broker)
    if not session.json:
        outcome = (
            "is struck off the list" if remove else "it can be stopped" if up else "it is down and not missed"
        )
        print(f"broker {broker} holds nothing any more; {outcome}")


@click.command()
@client_options
@click.pass_obj
def unthrottle(session: Session) -> None:
    """Take the limit of --throttle off all brokers, where a command was killed before it could do so itself."""
    with connected(session) as wire:
        moves.unthrottle(wire, wire.image().brokers.values())
