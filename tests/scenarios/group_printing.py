"""How the group scenarios print responses and records: one short line each, easy to read in a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from culver.core.group_records import MetadataChange, StateRecord, decode_group_value, subscribed_topics
from culver.errors import ErrorCode


def show_error(code: int) -> str:
    return "ok" if code == 0 else ErrorCode(code).name


def show_record(record: StateRecord) -> str:
    change = record.change
    if isinstance(change, MetadataChange):
        if change.value is None:
            return f"group {change.group_id} is gone"
        value = decode_group_value(change.value)
        members = ", ".join(f"{m.member_id}={m.assignment.decode() or 'nothing'}" for m in value.members)
        return f"group {change.group_id} generation {value.generation} {value.protocol or ''}[{members}]"
    where = f"{change.group_id} {change.topic}-{change.partition}"
    return f"offset {where} " + ("is gone" if change.committed is None else f"= {change.committed.offset}")


def show_join(response: Any) -> list[str]:
    if response.error_code:
        return [show_error(response.error_code) + (f" {response.member_id}" if response.member_id else "")]
    members = ", ".join(
        member.member_id
        + (f"/{member.group_instance_id}" if member.group_instance_id else "")
        + f" reads {','.join(sorted(subscribed_topics(member.metadata) or ()))}"
        for member in response.members
    )
    skip = " skip" if response.skip_assignment else ""
    line = (
        f"{response.member_id} generation {response.generation_id} {response.protocol_name} "
        f"leader {response.leader}{skip}"
    )
    return [line + (f" [{members}]" if members else "")]


def show_sync(response: Any) -> list[str]:
    if response.error_code:
        return [show_error(response.error_code)]
    return [response.assignment.decode() or "nothing"]


def show_leave(response: Any) -> list[str]:
    members = ", ".join(
        f"{member.member_id or member.group_instance_id} {show_error(member.error_code)}"
        for member in response.members
    )
    return [members if members else show_error(response.error_code)]


def show_commit(response: Any) -> list[str]:
    return [
        " ".join(
            f"{topic.name or topic.topic_id.decode().rstrip('.')}-{partition.partition_index} "
            f"{show_error(partition.error_code)}"
            for topic in response.topics
            for partition in topic.partitions
        )
    ]


def show_fetch(response: Any) -> list[str]:
    lines = []
    for group in response.groups:
        offsets = " ".join(
            f"{topic.name or topic.topic_id.decode().rstrip('.')}-{partition.partition_index}="
            + (
                show_error(partition.error_code)
                if partition.error_code
                else f"{partition.committed_offset}"
                + (f":{partition.metadata}" if partition.metadata else "")
            )
            for topic in group.topics
            for partition in topic.partitions
        )
        lines.append(f"{group.group_id} {show_error(group.error_code)} {offsets}".rstrip())
    return lines


def show_offset_delete(response: Any) -> list[str]:
    partitions = " ".join(
        f"{topic.name}-{partition.partition_index} {show_error(partition.error_code)}"
        for topic in response.topics
        for partition in topic.partitions
    )
    return [f"{show_error(response.error_code)} {partitions}".rstrip()]


def show_describe(response: Any) -> list[str]:
    lines = []
    for group in response.groups:
        kind = f" {group.protocol_type or '-'}" + (f"/{group.protocol_data}" if group.protocol_data else "")
        lines.append(f"{group.group_id} {show_error(group.error_code)} {group.group_state}{kind}")
        for member in group.members:
            instance = f"/{member.group_instance_id}" if member.group_instance_id else ""
            lines.append(
                f"  {member.member_id}{instance} at {member.client_host} "
                f"has {member.member_assignment.decode() or 'nothing'}"
            )
    return lines


def show_list(response: Any) -> list[str]:
    if response.error_code:
        return [show_error(response.error_code)]
    groups = [
        f"{group.group_id} {group.group_state} {group.group_type} {group.protocol_type or '-'}"
        for group in response.groups
    ]
    return groups or ["no groups"]


def show_delete(response: Any) -> list[str]:
    return [", ".join(f"{result.group_id} {show_error(result.error_code)}" for result in response.results)]


SHOW: dict[str, Callable[[Any], list[str]]] = {
    "join": show_join,
    "sync": show_sync,
    "heartbeat": lambda response: [show_error(response.error_code)],
    "leave": show_leave,
    "commit": show_commit,
    "fetch": show_fetch,
    "offset-delete": show_offset_delete,
    "describe": show_describe,
    "list": show_list,
    "delete": show_delete,
}
