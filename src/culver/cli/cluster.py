"""`culver cluster`: how the brokers and partitions of a cluster are, and who leads; moving them is next door."""

from __future__ import annotations

from typing import Any

import click

from culver.cli import health
from culver.cli.cluster_moves import balance, drain, reassign, topic_plan, unthrottle
from culver.cli.confirm import confirm, yes_option
from culver.cli.failure import ExitCode, Failure
from culver.cli.health import Trouble
from culver.cli.output import counted, note, print_json, print_table, size
from culver.cli.session import Session, client_options
from culver.cli.wire import connected
from culver.core import reassignment
from culver.core.image import ClusterImage
from culver.core.placement import PartitionKey
from culver.errors import ErrorCode

_SICK_SHOWN_MAX = 20


@click.group()
def cluster() -> None:
    """Look at a cluster, move partitions between brokers, add and remove brokers."""


cluster.add_command(reassign)
cluster.add_command(drain)
cluster.add_command(balance)
cluster.add_command(unthrottle)


@cluster.command()
@client_options
@click.pass_obj
def status(session: Session) -> None:
    """Show the brokers, what each leads and holds, and the partitions that lack something."""
    with connected(session) as wire:
        image = wire.image()
        sick = health.sick_partitions(image, wire.min_insync_replicas(image.topics))
        stored = wire.stored(image.brokers.values())
    sizes = {
        broker: sum(replica.size_bytes for replica in replicas.values())
        for broker, replicas in stored.items()
    }
    brokers = health.broker_rows(image, sizes, image.registrations.values())
    troubled = [
        {
            "topic": each.key[0],
            "partition": each.key[1],
            "trouble": each.trouble.value,
            "leader": each.image.leader if each.image.leader >= 0 else None,
            "replicas": list(each.image.replicas),
            "in_sync": list(each.image.isr),
            "missing": list(each.missing),
            "min_in_sync": each.min_insync,
        }
        for each in sick
    ]
    moving = [
        {
            "topic": key[0],
            "partition": key[1],
            "replicas": list(reassignment.original(each)),
            "new_replicas": list(reassignment.target(each)),
        }
        for key, each in health.partitions(image)
        if reassignment.is_under_way(each)
    ]
    if session.json:
        counts = {trouble.value: sum(each.trouble is trouble for each in sick) for trouble in Trouble}
        print_json(
            {
                "cluster": image.cluster_id,
                "controller": image.controller_id if image.controller_id >= 0 else None,
                "brokers": brokers,
                "topics": len(image.topics),
                "partitions": sum(len(topic.partitions) for topic in image.topics.values()),
                "offline": counts[Trouble.OFFLINE],
                "below_min_isr": counts[Trouble.BELOW_MIN_ISR],
                "under_replicated": counts[Trouble.UNDER_REPLICATED],
                "troubled": troubled,
                "moving": moving,
            }
        )
        return
    _print_status(image, brokers, troubled, moving)


def _print_status(
    image: ClusterImage,
    brokers: list[dict[str, Any]],
    troubled: list[dict[str, Any]],
    moving: list[dict[str, Any]],
) -> None:
    count = sum(len(topic.partitions) for topic in image.topics.values())
    print(
        f"cluster {image.cluster_id}: {len(image.brokers)} of {len(image.registrations)} brokers up, "
        f"{counted(count, 'partition')} in {counted(len(image.topics), 'topic')}"
    )
    print()
    shown = [
        row | {"role": "controller" if row["controller"] else None, "size": size(row["bytes"])}
        for row in brokers
    ]
    print_table(
        ["broker", "address", "rack", "state", "role", "leaders", "replicas", "out_of_sync", "size"], shown
    )
    print()
    if troubled:
        columns = ["topic", "partition", "trouble", "leader", "replicas", "in_sync", "min_in_sync"]
        print_table(columns, troubled[:_SICK_SHOWN_MAX])
        if len(troubled) > _SICK_SHOWN_MAX:
            print(f"... and {len(troubled) - _SICK_SHOWN_MAX} more; -o json shows all")
        note("`culver cluster why-unhealthy` says why, and what to do")
    else:
        print("every partition has its leader and all its replicas in sync")
    astray = sum(
        partition.leader in image.brokers and partition.leader != reassignment.target(partition)[0]
        for _, partition in health.partitions(image)
    )
    if astray:
        note(
            f"not led by its first replica: {counted(astray, 'partition')}; `culver cluster elect-leaders` helps"
        )
    if moving:
        print()
        print_table(
            ["topic", "partition", "replicas", "new_replicas"], moving[:_SICK_SHOWN_MAX], title="moving"
        )


@cluster.command("why-unhealthy")
@client_options
@click.pass_obj
def why_unhealthy(session: Session) -> int:
    """Say what is wrong with the cluster, one sentence each, and what to do. Exit code 1 if anything is."""
    with connected(session) as wire:
        image = wire.image()
        min_insync = wire.min_insync_replicas(image.topics)
        stored = wire.stored(image.brokers.values())
    behind = {
        (broker, key): replica.lag for broker, replicas in stored.items() for key, replica in replicas.items()
    }
    found = health.findings(image, min_insync, behind)
    if session.json:
        print_json([finding.as_json() for finding in found])
    elif not found:
        print(f"healthy: {counted(len(image.brokers), 'broker')}, every partition led and fully in sync")
    for number, finding in enumerate([] if session.json else found, start=1):
        print(f"{number}. {finding.what}.")
        print(f"   {finding.advice}.")
    return ExitCode.FAILED if found else ExitCode.OK


@cluster.command("elect-leaders")
@click.option("--topic", help="Only of this topic.")
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this; repeatable."
)
@click.option(
    "--unclean", is_flag=True, help="Let a replica lead that may lack records, where no other is left."
)
@yes_option
@client_options
@click.pass_obj
def elect_leaders(
    session: Session, topic: str | None, partitions: tuple[int, ...], unclean: bool, yes: bool
) -> None:
    """Hand leadership back to the first replica of each partition, where that is in sync."""
    if partitions and topic is None:
        raise click.UsageError("--partition needs a --topic")
    with connected(session) as wire:
        image = wire.image()
        chosen: list[PartitionKey] | None = None
        if topic is not None:
            chosen = sorted(topic_plan(image, topic, partitions, ()))
        if unclean:
            if chosen is None:
                raise click.UsageError("--unclean needs a --topic: name what may lose records")
            confirm(f"Let a replica lead {topic} that may lack acknowledged records?", yes)
        outcomes = wire.elect_leaders(chosen, unclean=unclean)
    refused = {
        key: code
        for key, code in outcomes.items()
        if code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    }
    elected = sorted(key for key, code in outcomes.items() if code == ErrorCode.NONE)
    if session.json:
        print_json([{"topic": name, "partition": index} for name, index in elected])
    else:
        print(f"{counted(len(elected), 'leadership')} handed over")
    if refused:
        (name, index), code = sorted(refused.items())[0]
        raise Failure(f"{len(refused)} could not be: {name}-{index}: {code.text}")
