"""The requests of groups: all go to the group coordinator, which answers or keeps them.

| request | versions | what changed |
|---|---|---|
| JoinGroup | 0-9 | 4: a new member first takes an id. 5: static members. 8: a reason. 9: may skip assigning |
| SyncGroup | 0-5 | 3: static members. 5: protocol type and name |
| Heartbeat | 0-4 | 3: static members |
| LeaveGroup | 0-5 | 3: several at once. 5: a reason |
| OffsetCommit | 2-10 | 6: leader epochs. 7: static members. 10: topics by id |
| OffsetFetch | 1-10 | 2: null asks for all. 7: only stable offsets. 8: many groups. 10: topics by id |
| OffsetDelete | 0 | |
| DescribeGroups | 0-6 | 4: static members. 6: an unknown group is an error |
| ListGroups | 0-5 | 4: by state. 5: by type |
| DeleteGroups | 0-2 | |
| ConsumerGroupHeartbeat | 0-1 | 1: the member makes its own id; patterns |
| ConsumerGroupDescribe | 0-1 | 1: of which kind each member is |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

APIS = frozenset(
    {
        "join_group",
        "sync_group",
        "heartbeat",
        "leave_group",
        "offset_commit",
        "offset_fetch",
        "offset_delete",
        "describe_groups",
        "list_groups",
        "delete_groups",
        "consumer_group_heartbeat",
        "consumer_group_describe",
    }
)


def handler(api: str) -> Callable[[Node, Exchange, Any], Any]:
    """The handler of one of APIS."""
    method = f"handle_{api}"

    def handle(node: Node, exchange: Exchange, request: Any) -> Any:
        return node.groups.handle(exchange, method, request)

    return handle
