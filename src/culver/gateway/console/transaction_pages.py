"""/api/transactions: what transactions there are, how long they have been open, and aborting one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.transactions import (
    TransactionDescription,
    TransactionListing,
    describe_transactions,
    list_transactions,
)
from culver.gateway.cluster.view import refusal
from culver.gateway.console.group_pages import Place
from culver.gateway.console.parameters import (
    PAGING,
    matching,
    number,
    number_parameter,
    paging,
    path_name,
    words,
)
from culver.gateway.errors import HttpError, Problem
from culver.gateway.routing import Answer, Endpoint, Parameter, json_response
from culver.gateway.services import services_of
from culver.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_OPEN = "Ongoing"
_ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
# A coordinator that moves, loads, or is still ending a transaction has an answer in a moment.
_PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
_ABORT_SECONDS_MAX = 10.0
_PAUSE_S = 0.1
# So many are described when a list is asked for by age.
_DESCRIBED_MAX = 1000


class TransactionItem(msgspec.Struct, frozen=True):
    """One transactional id. Start and age are None when no transaction is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int | None
    coordinator: int
    started_at_ms: int | None
    age_ms: int | None
    timeout_ms: int | None
    overdue: bool
    partitions: list[Place]
    error: str | None


class TransactionsAnswer(msgspec.Struct, frozen=True):
    """A page of transactional ids, those with an open transaction first; how many are in each state."""

    total: int
    offset: int
    limit: int
    items: list[TransactionItem]
    states: dict[str, int]
    supported: bool


class Aborted(msgspec.Struct, frozen=True):
    """A transaction that is no more."""

    transactional_id: str
    aborted: bool
    partitions: int


async def transactions(request: Request) -> Response:
    services = services_of(request)
    cluster = services.cluster
    states = {state for state in words(request, "state").casefold().split(",") if state}
    age_ms_min = number(request, "min_age_ms", 0)
    wanted = words(request, "q")
    offset, limit = paging(request)
    try:
        listed = await services.console.transactions.get("", lambda: list_transactions(cluster))
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return json_response(TransactionsAnswer(0, offset, limit, [], {}, False))
    names = set(matching([each.transactional_id for each in listed], wanted))
    found = [
        each
        for each in listed
        if each.transactional_id in names and (not states or each.state.casefold() in states)
    ]
    found.sort(key=_order)
    if age_ms_min:
        # How old one is, is known of those alone that are open, which come first.
        found = [each for each in found if each.state == _OPEN or each.state in _ENDING][:_DESCRIBED_MAX]
        items = [item for item in await _described(cluster, found) if (item.age_ms or 0) >= age_ms_min]
        items.sort(key=lambda item: -(item.age_ms or 0))
        total, items = len(items), items[offset : offset + limit]
    else:
        total, items = len(found), await _described(cluster, found[offset : offset + limit])
    counts = dict(Counter(each.state for each in listed))
    return json_response(TransactionsAnswer(total, offset, limit, items, counts, True))


def _order(listing: TransactionListing) -> tuple[int, str]:
    rank = 0 if listing.state == _OPEN else 1 if listing.state in _ENDING else 2
    return rank, listing.transactional_id


async def _described(cluster: Cluster, listed: list[TransactionListing]) -> list[TransactionItem]:
    if not listed:
        return []
    found = await describe_transactions(cluster, [each.transactional_id for each in listed])
    now_ms = time.time_ns() // 1_000_000
    return [_item(each, found.get(each.transactional_id), now_ms) for each in listed]


def _item(
    listing: TransactionListing, described: TransactionDescription | KafkaError | None, now_ms: int
) -> TransactionItem:
    known = described if isinstance(described, TransactionDescription) else None
    started_ms = known.started_ms if known else None
    age_ms = None if started_ms is None else max(0, now_ms - started_ms)
    return TransactionItem(
        transactional_id=listing.transactional_id,
        state=known.state if known else listing.state,
        producer_id=known.producer_id if known else listing.producer_id,
        producer_epoch=known.producer_epoch if known else None,
        coordinator=listing.coordinator,
        started_at_ms=started_ms,
        age_ms=age_ms,
        timeout_ms=known.timeout_ms if known else None,
        overdue=known is not None and age_ms is not None and age_ms > known.timeout_ms,
        partitions=[Place(*place) for place in sorted(known.partitions)] if known else [],
        error=str(described) if isinstance(described, KafkaError) else None,
    )


async def abort(request: Request) -> Response:
    """As a producer does that starts anew with the same id: its coordinator aborts what is open."""
    services = services_of(request)
    name = path_name(request, "transactional_id")
    found = (await describe_transactions(services.cluster, [name])).get(name)
    if found is None:
        raise HttpError(Problem.NOT_FOUND, f"nothing is known of transactional id {name}")
    if isinstance(found, KafkaError):
        raise found
    if found.state != _OPEN:
        ending = ": it is about to end by itself" if found.state in _ENDING else ""
        raise HttpError(
            Problem.TRANSACTION_NOT_OPEN,
            f"{name} has no open transaction, its state is {found.state}{ending}",
        )
    await _fence(services.cluster, name, found.timeout_ms)
    services.console.transactions.forget()
    return json_response(Aborted(name, True, len(found.partitions)))


async def _fence(cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    deadline_s = time.monotonic() + _ABORT_SECONDS_MAX
    while True:
        error = refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, transactional_id)
        coordinators = await cluster.find_coordinators([transactional_id], transactions=True)
        if transactional_id in coordinators:
            answer = await cluster.ask(
                request, InitProducerIdResponse, broker_id=coordinators[transactional_id]
            )
            if not answer.error_code:
                return
            error = refusal(answer.error_code, transactional_id)
        if error.code not in _PASSING or time.monotonic() > deadline_s:
            raise error
        await asyncio.sleep(_PAUSE_S)


ROUTES = [
    Endpoint(
        "GET",
        "/api/transactions",
        transactions,
        "A page of the transactional ids, those with an open transaction first.",
        "console",
        parameters=(
            Parameter("q", "Only ids with this text in them."),
            Parameter("state", "Only in these states, with commas between: Ongoing, CompleteCommit, ..."),
            number_parameter("min_age_ms", "Only transactions open for so long, oldest first."),
            *PAGING,
        ),
        answers={200: Answer("The transactions.", TransactionsAnswer)},
        errors=(422, 503),
    ),
    Endpoint(
        "POST",
        "/api/transactions/{transactional_id}/abort",
        abort,
        "Abort the open transaction of a transactional id, and fence its producer.",
        "console",
        parameters=(Parameter("transactional_id", "The transactional id.", where="path", required=True),),
        answers={200: Answer("Aborted.", Aborted)},
        errors=(403, 404, 409, 422, 503),
    ),
]
