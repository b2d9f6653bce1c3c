"""`culver group`: list, describe, seek, delete."""

from __future__ import annotations

from typing import Any

import click
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError

from culver.cli.admin_types import ConsumerGroupDescription
from culver.cli.clients import Cluster, Partition, as_topic_partitions
from culver.cli.confirm import confirm, yes_option
from culver.cli.failure import ExitCode, Failure
from culver.cli.group_lag import committed_offsets, group_lag
from culver.cli.output import duration, note, print_json, print_table
from culver.cli.position import SYNTAX, Position, PositionType
from culver.cli.session import Session, client_options


@click.group()
def group() -> None:
    """List, describe, seek and delete consumer groups."""


def group_names(cluster: Cluster) -> list[str]:
    listing = cluster.result(
        cluster.admin.list_consumer_groups(request_timeout=cluster.timeout_s), "listing groups"
    )
    for error in listing.errors:
        cluster.fail(error if isinstance(error, KafkaError) else error.args[0], "listing groups")
    return sorted(each.group_id for each in listing.valid)


def describe_groups(cluster: Cluster, names: list[str]) -> list[ConsumerGroupDescription]:
    if not names:
        return []
    futures = cluster.admin.describe_consumer_groups(names, request_timeout=cluster.timeout_s)
    return [cluster.result(futures[name], f"group {name}") for name in names]


def existing_groups(cluster: Cluster, names: tuple[str, ...]) -> list[ConsumerGroupDescription]:
    """The groups in the order asked for; the broker describes an unknown group as a dead one, we complain."""
    known = set(group_names(cluster))
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in known:
            raise Failure(
                f"there is no group {name}",
                "`culver group list` shows the groups there are",
                code=ExitCode.NOT_FOUND,
            )
    return describe_groups(cluster, wanted)


def state_name(description: ConsumerGroupDescription) -> str:
    return str(description.state.name).lower().replace("_", " ")


@group.command("list")
@client_options
@click.pass_obj
def list_groups(session: Session) -> None:
    """List consumer groups, their state and number of members."""
    cluster = Cluster(session)
    rows = [
        {"group": each.group_id, "state": state_name(each), "members": len(each.members)}
        for each in describe_groups(cluster, group_names(cluster))
    ]
    if session.json:
        print_json(rows)
    elif rows:
        print_table(["group", "state", "members"], rows)
    else:
        note("no groups")


@group.command("describe")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@click.option(
    "--members", "show_members", is_flag=True, help="The members, instead of the partitions and their lag."
)
@client_options
@click.pass_obj
def describe(session: Session, names: tuple[str, ...], show_members: bool) -> None:
    """Show how far groups have read, and how far behind they are.

    LAG is the number of records not yet read; BEHIND is the age of the oldest of them.
    """
    cluster = Cluster(session)
    result: list[dict[str, Any]] = []
    for description in existing_groups(cluster, names):
        partitions = [lag.as_json() for lag in group_lag(cluster, description)]
        result.append(
            {
                "group": description.group_id,
                "state": state_name(description),
                "coordinator": description.coordinator.id if description.coordinator else None,
                "assignor": description.partition_assignor or None,
                "lag": sum(row["lag"] or 0 for row in partitions),
                "lag_seconds": max((row["lag_seconds"] or 0.0 for row in partitions), default=0.0),
                "members": [
                    {
                        "member": member.member_id,
                        "instance": member.group_instance_id or None,
                        "client": member.client_id,
                        "host": member.host,
                        "partitions": [
                            f"{each.topic}:{each.partition}" for each in member.assignment.topic_partitions
                        ],
                    }
                    for member in description.members
                ],
                "partitions": partitions,
            }
        )
    if session.json:
        print_json(result)
        return
    for position, shown in enumerate(result):
        if position:
            print()
        behind = f", {duration(shown['lag_seconds'])} behind" if shown["lag"] else ""
        facts = f"{shown['state']}, {len(shown['members'])} members, lag {shown['lag']}{behind}"
        print(f"group {shown['group']}  ({facts})")
        print()
        if show_members:
            print_table(["member", "instance", "client", "host", "partitions"], shown["members"])
        else:
            rows = [row | {"behind": duration(row["lag_seconds"])} for row in shown["partitions"]]
            print_table(
                ["topic", "partition", "committed", "start", "end", "lag", "behind", "client", "host"], rows
            )


@group.command("seek")
@click.argument("name", metavar="GROUP")
@click.option("--to", "position", type=PositionType(), metavar=SYNTAX, help="Where to go.")
@click.option("--shift", type=int, metavar="+N|-N", help="Skip N records, or go back over N.")
@click.option(
    "-t",
    "--topic",
    "topics",
    metavar="TOPIC[:PARTITION,...]",
    multiple=True,
    help="Only these; repeatable.  [default: all that the group has committed]",
)
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@client_options
@click.pass_obj
def seek(
    session: Session,
    name: str,
    position: Position | None,
    shift: int | None,
    topics: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Set the offsets from which a group goes on reading. Its consumers must be stopped.

    For instance: culver group seek billing --to '@2h ago' --dry-run
    """
    if (position is None) == (shift is None):
        raise click.UsageError("give either --to or --shift")
    cluster = Cluster(session)
    _require_no_members(cluster, name)
    committed = committed_offsets(cluster, name)
    chosen = _chosen_partitions(cluster, topics) or sorted(committed.keys() & cluster.existing_partitions())
    if not chosen:
        raise Failure(
            f"group {name} has committed no offsets",
            "name the topics to start it on with --topic",
            code=ExitCode.NOT_FOUND,
        )
    starts, ends = cluster.start_offsets(chosen), cluster.end_offsets(chosen)
    if position is not None:
        wanted = cluster.locate(position, chosen)
    else:
        assert shift is not None
        wanted = {each: committed.get(each, starts[each]) + shift for each in chosen}
    targets = {each: max(starts[each], min(wanted[each], ends[each])) for each in chosen}
    rows = [
        {
            "topic": each[0],
            "partition": each[1],
            "committed": committed.get(each),
            "new": targets[each],
            "change": targets[each] - committed[each] if each in committed else None,
            "lag": ends[each] - targets[each],
        }
        for each in chosen
    ]
    if not dry_run:
        request = ConsumerGroupTopicPartitions(name, as_topic_partitions(targets))
        (future,) = cluster.admin.alter_consumer_group_offsets([request]).values()
        for answer in cluster.result(future, f"seeking group {name}").topic_partitions:
            if answer.error is not None:
                cluster.fail(
                    answer.error, f"seeking group {name} on topic {answer.topic} partition {answer.partition}"
                )
    if session.json:
        print_json(rows)
    else:
        print_table(["topic", "partition", "committed", "new", "change", "lag"], rows)
        if dry_run:
            note("nothing was changed (--dry-run)")


def _require_no_members(cluster: Cluster, name: str) -> None:
    (description,) = describe_groups(cluster, [name])
    if description.members or description.state not in (
        ConsumerGroupState.EMPTY,
        ConsumerGroupState.DEAD,
        ConsumerGroupState.UNKNOWN,
    ):
        raise Failure(
            f"group {name} is in use: {len(description.members)} members, state {state_name(description)}",
            f"stop its consumers first (`culver group describe {name} --members` shows them)",
        )


def _chosen_partitions(cluster: Cluster, topics: tuple[str, ...]) -> list[Partition]:
    chosen: list[Partition] = []
    for text in topics:
        topic, colon, numbers = text.partition(":")
        if colon and not all(number.strip().isdigit() for number in numbers.split(",")):
            raise click.BadParameter(f"{text!r} is not TOPIC or TOPIC:PARTITION,...", param_hint="'--topic'")
        chosen += cluster.partitions([topic], [int(number) for number in numbers.split(",")] if colon else [])
    return list(dict.fromkeys(chosen))


@group.command("delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@yes_option
@client_options
@click.pass_obj
def delete(session: Session, names: tuple[str, ...], yes: bool) -> None:
    """Delete groups with their committed offsets. They must have no members."""
    cluster = Cluster(session)
    wanted = [each.group_id for each in existing_groups(cluster, names)]
    confirm(f"Delete {', '.join(wanted)} with all committed offsets?", yes)
    for name, future in cluster.admin.delete_consumer_groups(wanted).items():
        cluster.result(future, f"deleting group {name}")
    if session.json:
        print_json([{"group": name, "deleted": True} for name in wanted])
    else:
        for name in wanted:
            print(f"group {name}: deleted")
