"""`culver txn`: list, describe and abort transactions, and find those that no coordinator will ever end."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import Any

import click

from culver.cli.confirm import confirm, yes_option
from culver.cli.failure import ExitCode, Failure
from culver.cli.output import counted, duration, note, print_json, print_table
from culver.cli.record_format import iso_time
from culver.cli.session import Session, client_options
from culver.cli.txn_wire import MAX_TIMEOUT, Described, Filter, Open, TransactionWire
from culver.cli.wire import connected
from culver.core.image import ClusterImage
from culver.errors import ErrorCode, KafkaError

# As said on the command line, and on the wire.
_STATES = {
    "empty": "Empty",
    "ongoing": "Ongoing",
    "prepare-commit": "PrepareCommit",
    "prepare-abort": "PrepareAbort",
    "complete-commit": "CompleteCommit",
    "complete-abort": "CompleteAbort",
    "dead": "Dead",
    "prepare-epoch-fence": "PrepareEpochFence",
}
_SAID = {wire: said for said, wire in _STATES.items()}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.IGNORECASE)
_SHOWN_MAX = 5
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """A length of time such as 500ms, 30s, 10m or 2h, in milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no length of time, such as 500ms, 30s, 10m or 2h", param, ctx)
        return round(float(found[1]) * _UNIT_MS[found[2].lower()])


@click.group()
def txn() -> None:
    """List, describe and abort transactions; find hanging ones."""


# --- list and describe ---


@txn.command("list")
@click.option(
    "--state", "states", type=click.Choice(list(_STATES)), multiple=True, help="Only in this; repeatable."
)
@click.option("--producer-id", "producer_ids", type=int, multiple=True, help="Only of this; repeatable.")
@click.option(
    "--duration", "longer_than_ms", type=Duration(), metavar="TIME", help="Only those open for longer."
)
@click.option("--pattern", metavar="REGEX", help="Only transactional ids that match from end to end.")
@client_options
@click.pass_obj
def list_transactions(
    session: Session,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    pattern: str | None,
) -> None:
    """List the transactional ids of all brokers, and the state of each one's transaction.

    For instance: culver txn list --state ongoing --duration 10m
    """
    chosen = Filter(
        states=tuple(_STATES[state] for state in states),
        producer_ids=producer_ids,
        longer_than_ms=-1 if longer_than_ms is None else longer_than_ms,
        pattern=pattern or None,
    )
    with connected(session) as wire:
        found = TransactionWire(wire).listed(wire.image(), chosen)
    rows = [asdict(each) | {"state": _SAID.get(each.state, each.state)} for each in found]
    if session.json:
        print_json(rows)
    elif rows:
        print_table(["transactional_id", "state", "producer_id", "coordinator"], rows)
    else:
        note("no transactions")


@txn.command("describe")
@click.argument("names", metavar="ID...", nargs=-1, required=True)
@client_options
@click.pass_obj
def describe(session: Session, names: tuple[str, ...]) -> None:
    """Show the transaction of transactional ids: producer, age, timeout, partitions.

    Of a transaction that is being ended, only the partitions are shown that still wait for their marker.
    """
    with connected(session) as wire:
        transactions = TransactionWire(wire)
        shown = [_description(_existing(transactions, name)) for name in dict.fromkeys(names)]
    if session.json:
        print_json(shown)
        return
    for position, each in enumerate(shown):
        if position:
            print()
        age = "" if each["open_seconds"] is None else f", open for {duration(each['open_seconds'])}"
        print(f"{each['transactional_id']}  ({each['state']}{age})")
        print()
        facts = ["producer_id", "producer_epoch", "coordinator", "timeout", "started", "partitions"]
        row = {"timeout": duration(each["timeout_ms"] / 1000), "started": None}
        if each["started_ms"] is not None:
            row["started"] = iso_time(each["started_ms"])
        print_table(facts, [each | row])


def _existing(transactions: TransactionWire, name: str) -> Described:
    try:
        return transactions.described(name)
    except KafkaError as error:
        if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        raise Failure(
            f"nothing is known of transactional id {name}",
            "`culver txn list` shows those that are known",
            code=ExitCode.NOT_FOUND,
        ) from None


def _description(each: Described) -> dict[str, Any]:
    age_s = None if each.started_ms is None else max(0.0, time.time() - each.started_ms / 1000)
    return {
        "transactional_id": each.transactional_id,
        "state": _SAID.get(each.state, each.state),
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "coordinator": each.coordinator.id,
        "timeout_ms": each.timeout_ms,
        "started_ms": each.started_ms,
        "open_seconds": age_s,
        "partitions": [f"{topic}:{index}" for topic, index in each.partitions],
    }


# --- abort ---


@txn.command("abort")
@click.argument("name", metavar="[ID]", required=False)
@click.option("--topic", help="The topic of a hanging transaction.")
@click.option("--partition", type=click.IntRange(min=0), help="Its partition.")
@click.option("--start-offset", type=click.IntRange(min=0), help="Where it begins in the partition.")
@yes_option
@client_options
@click.pass_obj
def abort(
    session: Session,
    name: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    yes: bool,
) -> None:
    """Abort a transaction.

    \b
    culver txn abort ID
    culver txn abort --topic T --partition N --start-offset O

    With an ID its coordinator is asked for a new epoch, as a producer that starts would do: what is open is
    aborted everywhere, and the producer that had the ID before is fenced and has to start again.

    With a topic an abort marker is written to that one partition, past the coordinator. That is for a hanging
    transaction (`culver txn find-hanging`), which no coordinator knows and which keeps consumers of committed
    records from going on. A Culver broker accepts it only when the transaction has been open for longer than
    transaction.max.timeout.ms.
    """
    if name is None:
        if topic is None or partition is None or start_offset is None:
            raise click.UsageError("give either an ID, or --topic, --partition and --start-offset")
    elif (topic, partition, start_offset) != (None, None, None):
        raise click.UsageError("give an ID or the place of a hanging transaction, not both")
    with connected(session) as wire:
        transactions = TransactionWire(wire)
        if name is not None:
            result = _abort_by_id(transactions, name, yes)
        else:
            assert topic is not None
            assert partition is not None
            assert start_offset is not None
            result = _abort_hanging(transactions, wire.image(), topic, partition, start_offset, yes)
    if session.json:
        print_json(result)
    elif name is not None:
        print(f"{name}: aborted; its producer is fenced")
    else:
        print(f"{topic}-{partition}: the transaction from offset {start_offset} is aborted")


def _abort_by_id(transactions: TransactionWire, name: str, yes: bool) -> dict[str, Any]:
    found = _existing(transactions, name)
    if found.state != "Ongoing":
        raise Failure(
            f"{name} has no open transaction: it is in state {_SAID.get(found.state, found.state)}",
            "it is about to end by itself" if found.state.startswith("Prepare") else "",
        )
    confirm(f"Abort the transaction of {name} and fence its producer {found.producer_id}?", yes)
    producer_id, epoch = transactions.fence(name, found.timeout_ms)
    return {"transactional_id": name, "aborted": True, "producer_id": producer_id, "producer_epoch": epoch}


def _abort_hanging(
    transactions: TransactionWire,
    image: ClusterImage,
    topic: str,
    partition: int,
    start_offset: int,
    yes: bool,
) -> dict[str, Any]:
    _require_topic(image, topic, partition)
    found, unknown = transactions.open_transactions(image, [(topic, partition)])
    if unknown:
        raise Failure(f"{topic}-{partition} has no leader to ask", "`culver cluster why-unhealthy` says why")
    hanging = next((each for each in found if each.start_offset == start_offset), None)
    if hanging is None:
        begins = ", ".join(str(each.start_offset) for each in found)
        raise Failure(
            f"no transaction that is open in {topic}-{partition} begins at offset {start_offset}",
            f"they begin at {begins}" if found else "none is open there",
            code=ExitCode.NOT_FOUND,
        )
    confirm(f"Abort producer {hanging.producer_id}'s transaction in {topic}-{partition}?", yes)
    try:
        transactions.write_abort_marker(image, hanging)
    except KafkaError as error:
        if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        raise Failure(
            f"{topic}-{partition}: the broker does not take the marker from a client",
            f"it does once the transaction has been open for longer than {MAX_TIMEOUT}; a transaction that its"
            " coordinator knows is aborted with `culver txn abort ID`",
        ) from None
    return {"topic": topic, "partition": partition, "aborted": True} | {
        "start_offset": start_offset,
        "producer_id": hanging.producer_id,
        "producer_epoch": hanging.producer_epoch,
    }


def _require_topic(image: ClusterImage, topic: str, partition: int = 0) -> None:
    if topic not in image.topics:
        raise Failure(
            f"there is no topic {topic}",
            "`culver topic list` shows the topics there are",
            code=ExitCode.NOT_FOUND,
        )
    count = len(image.topics[topic].partitions)
    if partition >= count:
        raise Failure(
            f"topic {topic} has no partition {partition}, only 0 to {count - 1}", code=ExitCode.NOT_FOUND
        )


# --- find-hanging ---


@txn.command("find-hanging")
@click.option("--topic", help="Only in this topic.  [default: in all of them]")
@click.option(
    "--older-than",
    "older_ms",
    type=Duration(),
    metavar="TIME",
    help=f"[default: {MAX_TIMEOUT} of the broker]",
)
@client_options
@click.pass_obj
def find_hanging(session: Session, topic: str | None, older_ms: int | None) -> None:
    """Find transactions that are open in a partition, but that no coordinator will ever end.

    They are those in which nothing was written for longer than a transaction may take, and of which the
    transaction coordinators know nothing. They keep consumers of committed records from going on.
    """
    with connected(session) as wire:
        image = wire.image()
        transactions = TransactionWire(wire)
        if topic is not None:
            _require_topic(image, topic)
        if older_ms is None:
            older_ms = transactions.max_timeout_ms(image)
        keys = [
            (name, each.index)
            for name in ([topic] if topic is not None else sorted(image.topics))
            for each in image.topics[name].partitions
        ]
        found, unknown = transactions.open_transactions(image, keys)
        now_ms = time.time() * 1000
        old = [each for each in found if now_ms - each.last_timestamp_ms > older_ms]
        hanging = transactions.abandoned(image, old)
    _print_hanging(session, hanging, now_ms)
    if unknown:
        some = ", ".join(f"{name}-{index}" for name, index in unknown[:_SHOWN_MAX])
        more = ", ..." if len(unknown) > _SHOWN_MAX else ""
        note(f"{counted(len(unknown), 'partition')} could not be looked at: {some}{more}")


def _print_hanging(session: Session, hanging: list[Open], now_ms: float) -> None:
    rows = [asdict(each) | {"idle_seconds": (now_ms - each.last_timestamp_ms) / 1000} for each in hanging]
    if session.json:
        print_json(rows)
    elif rows:
        print_table(
            [
                "topic",
                "partition",
                "start_offset",
                "producer_id",
                "producer_epoch",
                "coordinator_epoch",
                "idle",
            ],
            [row | {"idle": duration(row["idle_seconds"])} for row in rows],
        )
        note("`culver txn abort --topic T --partition N --start-offset O` ends one")
    else:
        note("no hanging transactions")
