"""`culver topic`: list, create, describe, alter, delete, trim."""

from __future__ import annotations

import fnmatch
from typing import Any

import click
from confluent_kafka import TopicPartition

from culver.cli.admin_types import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicDescription,
)
from culver.cli.clients import Cluster, Partition
from culver.cli.confirm import confirm, yes_option
from culver.cli.output import note, print_json, print_table
from culver.cli.position import SYNTAX, Position, PositionType
from culver.cli.session import Session, client_options, name_value


@click.group()
def topic() -> None:
    """List, create, describe, alter, delete and trim topics."""


def settings_from(pairs: tuple[str, ...]) -> dict[str, str]:
    return dict(name_value(pair, "'--set'") for pair in pairs)


set_option = click.option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True, help="A topic setting; repeatable."
)


@topic.command("list")
@click.argument("pattern", default="*")
@click.option(
    "-a", "--all", "internal", is_flag=True, help="Internal topics too (their names start with __)."
)
@client_options
@click.pass_obj
def list_topics(session: Session, pattern: str, internal: bool) -> None:
    """List topics, all or those that match PATTERN ('orders*')."""
    cluster = Cluster(session)
    names = [
        name
        for name in cluster.topic_names()
        if fnmatch.fnmatchcase(name, pattern) and (internal or not name.startswith("__"))
    ]
    descriptions = cluster.describe_topics(names)
    starts, ends = _offsets(cluster, descriptions)
    rows = [
        {
            "topic": each.name,
            "partitions": len(each.partitions),
            "replicas": max((len(partition.replicas) for partition in each.partitions), default=0),
            "records": sum(
                ends[key] - starts[key]
                for key in ((each.name, partition.id) for partition in each.partitions)
                if key in ends
            ),
        }
        for each in descriptions
    ]
    if session.json:
        print_json(rows)
    elif rows:
        print_table(["topic", "partitions", "replicas", "records"], rows)
    else:
        note("no topics" if pattern == "*" else f"no topic matches {pattern}")


@topic.command("create")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "-p", "--partitions", type=click.IntRange(min=1), help="How many.  [default: the broker's num.partitions]"
)
@click.option("-r", "--replicas", type=click.IntRange(min=1), help="Copies of each.  [default: the broker's]")
@set_option
@click.option("--if-not-exists", is_flag=True, help="No complaint about topics that are there already.")
@click.option("--dry-run", is_flag=True, help="Only check whether it could be created.")
@client_options
@click.pass_obj
def create(
    session: Session,
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    settings: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
) -> None:
    """Create topics."""
    cluster = Cluster(session)
    config = settings_from(settings)
    new = [
        NewTopic(name, num_partitions=partitions or -1, replication_factor=replicas or -1, config=config)
        for name in dict.fromkeys(names)
    ]
    existing = set(cluster.topic_names()) if if_not_exists else set()
    created = []
    futures = (
        cluster.admin.create_topics(
            [each for each in new if each.topic not in existing], validate_only=dry_run
        )
        if any(each.topic not in existing for each in new)
        else {}
    )
    for name, future in futures.items():
        cluster.result(future, f"creating topic {name}")
        created.append(name)
    if session.json:
        print_json(
            [{"topic": name, "created": name in created and not dry_run} for name in dict.fromkeys(names)]
        )
    else:
        for name in dict.fromkeys(names):
            outcome = "exists already" if name not in created else "can be created" if dry_run else "created"
            print(f"topic {name}: {outcome}")


@topic.command("describe")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--all-settings", is_flag=True, help="Settings at their default too.")
@client_options
@click.pass_obj
def describe(session: Session, names: tuple[str, ...], all_settings: bool) -> None:
    """Show the partitions and settings of topics."""
    cluster = Cluster(session)
    descriptions = cluster.describe_topics(names)
    starts, ends = _offsets(cluster, descriptions)
    result: list[dict[str, Any]] = []
    for each in descriptions:
        entries = topic_settings(cluster, each.name)
        result.append(
            {
                "topic": each.name,
                "id": str(each.topic_id),
                "internal": each.is_internal,
                "settings": [
                    {"setting": entry.name, "value": entry.value, "source": source_name(entry)}
                    for entry in sorted(entries.values(), key=lambda entry: entry.name)
                    if all_settings or source_name(entry) != "default"
                ],
                "partitions": _partition_rows(each, starts, ends),
            }
        )
    if session.json:
        print_json(result)
        return
    for position, shown in enumerate(result):
        if position:
            print()
        records = sum(row["records"] or 0 for row in shown["partitions"])
        print(f"topic {shown['topic']}  (id {shown['id']}, {records} records)")
        print()
        columns = ["partition", "leader", "replicas", "in_sync", "start", "end", "records"]
        print_table(columns, shown["partitions"])
        if shown["settings"]:
            print()
            print_table(["setting", "value", "source"], shown["settings"])


def _offsets(
    cluster: Cluster, descriptions: list[TopicDescription]
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """First and next offset of each partition that has a leader; nobody can be asked about the others."""
    led = [
        (topic.name, partition.id)
        for topic in descriptions
        for partition in topic.partitions
        if _leader(partition) is not None
    ]
    return cluster.start_offsets(led), cluster.end_offsets(led)


def _leader(partition: Any) -> int | None:
    return None if partition.leader is None or partition.leader.id < 0 else partition.leader.id


def _partition_rows(
    description: TopicDescription, starts: dict[Partition, int], ends: dict[Partition, int]
) -> list[dict[str, Any]]:
    rows = []
    for partition in sorted(description.partitions, key=lambda partition: partition.id):
        start, end = starts.get((description.name, partition.id)), ends.get((description.name, partition.id))
        rows.append(
            {
                "partition": partition.id,
                "leader": _leader(partition),
                "replicas": [node.id for node in partition.replicas],
                "in_sync": [node.id for node in partition.isr],
                "start": start,
                "end": end,
                "records": None if start is None or end is None else end - start,
            }
        )
    return rows


def topic_settings(cluster: Cluster, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    (future,) = cluster.admin.describe_configs([resource]).values()
    return dict(cluster.result(future, f"settings of topic {name}"))


def source_name(entry: ConfigEntry) -> str:
    """Where a setting's value comes from, in one word."""
    source = ConfigSource(entry.source)
    if source is ConfigSource.DYNAMIC_TOPIC_CONFIG:
        return "topic"
    return "default" if source is ConfigSource.DEFAULT_CONFIG else "broker"


@topic.command("alter")
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Grow to this many partitions.")
@set_option
@click.option("--unset", "unset", metavar="NAME", multiple=True, help="Back to the default; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only check whether it could be done.")
@client_options
@click.pass_obj
def alter(
    session: Session,
    name: str,
    partitions: int | None,
    settings: tuple[str, ...],
    unset: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Change the settings of a topic, or add partitions to it."""
    changes = settings_from(settings)
    if partitions is None and not changes and not unset:
        raise click.UsageError("nothing to change: give --partitions, --set or --unset")
    cluster = Cluster(session)
    cluster.describe_topics([name])
    if changes or unset:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in changes.items()
        ] + [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        (future,) = cluster.admin.incremental_alter_configs([resource], validate_only=dry_run).values()
        cluster.result(future, f"changing settings of topic {name}")
    if partitions is not None:
        futures = cluster.admin.create_partitions([NewPartitions(name, partitions)], validate_only=dry_run)
        cluster.result(futures[name], f"adding partitions to topic {name}")
    done = {
        "topic": name,
        "set": changes,
        "unset": list(unset),
        "partitions": partitions,
        "applied": not dry_run,
    }
    if session.json:
        print_json(done)
        return
    verb = "would change" if dry_run else "changed"
    words = [f"{key}={value}" for key, value in changes.items()] + [
        f"{key} back to its default" for key in unset
    ]
    words += [f"{partitions} partitions"] if partitions is not None else []
    print(f"topic {name}: {verb}: {', '.join(words)}")


@topic.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="No complaint about topics that are not there.")
@yes_option
@client_options
@click.pass_obj
def delete(session: Session, names: tuple[str, ...], if_exists: bool, yes: bool) -> None:
    """Delete topics and all their records."""
    cluster = Cluster(session)
    wanted = list(dict.fromkeys(names))
    if if_exists:
        existing = set(cluster.topic_names())
        wanted = [name for name in wanted if name in existing]
    else:
        cluster.describe_topics(wanted)
    if wanted:
        confirm(f"Delete {', '.join(wanted)} with all records?", yes)
        for name, future in cluster.admin.delete_topics(wanted).items():
            cluster.result(future, f"deleting topic {name}")
    if session.json:
        print_json([{"topic": name, "deleted": name in wanted} for name in dict.fromkeys(names)])
    else:
        for name in dict.fromkeys(names):
            print(f"topic {name}: {'deleted' if name in wanted else 'does not exist'}")


@topic.command("trim")
@click.argument("name")
@click.option(
    "--before",
    type=PositionType(),
    required=True,
    metavar=SYNTAX,
    help="Delete the records before this position.",
)
@click.option(
    "-p", "--partition", "partitions", type=int, multiple=True, help="Only this partition; repeatable."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@yes_option
@client_options
@click.pass_obj
def trim(
    session: Session, name: str, before: Position, partitions: tuple[int, ...], dry_run: bool, yes: bool
) -> None:
    """Delete the oldest records of a topic, those before a position.

    For instance: culver topic trim orders --before '@7d ago'
    """
    cluster = Cluster(session)
    chosen = cluster.partitions([name], partitions)
    starts, ends = cluster.start_offsets(chosen), cluster.end_offsets(chosen)
    targets = {
        each: max(starts[each], min(offset, ends[each]))
        for each, offset in cluster.locate(before, chosen).items()
    }
    rows = [
        {
            "topic": each[0],
            "partition": each[1],
            "start": starts[each],
            "new_start": targets[each],
            "end": ends[each],
            "deleted": targets[each] - starts[each],
        }
        for each in chosen
    ]
    total = targets and sum(row["deleted"] for row in rows if isinstance(row["deleted"], int))
    if not dry_run and total:
        confirm(f"Delete {total} records of {name}?", yes)
        question = [TopicPartition(*each, targets[each]) for each in chosen if targets[each] > starts[each]]
        for asked, future in cluster.admin.delete_records(question).items():
            cluster.result(future, f"trimming topic {asked.topic} partition {asked.partition}")
    if session.json:
        print_json(rows)
    else:
        print_table(["topic", "partition", "start", "new_start", "end", "deleted"], rows)
        if dry_run:
            note("nothing was deleted (--dry-run)")
