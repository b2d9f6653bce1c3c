"""How the transaction scenarios print responses, records and markers: one short line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from culver.core.coordinator_effects import WriteMarkers
from culver.core.transaction_records import TransactionRecord
from culver.errors import ErrorCode


def show_error(code: int) -> str:
    return "ok" if code == 0 else ErrorCode(code).name


def show_partitions(partitions: Any) -> str:
    return " ".join(f"{topic}-{index}" for topic, index in sorted(partitions))


def show_record(record: TransactionRecord) -> str:
    name, metadata = record.change
    if metadata is None:
        return f"{name} is gone"
    line = f"{name} {metadata.state.label} {metadata.producer_id}/{metadata.producer_epoch}"
    if metadata.partitions:
        line += f" [{show_partitions(metadata.partitions)}]"
    if metadata.next_producer_id >= 0:
        line += f" next {metadata.next_producer_id}"
    return line


def show_markers(effect: WriteMarkers) -> str:
    marker = effect.marker
    outcome = "commit" if marker.committed else "abort"
    return (
        f"{effect.transactional_id} {outcome} {marker.producer_id}/{marker.producer_epoch} "
        f"to {show_partitions(effect.targets)} (coordinator {marker.coordinator_epoch}, "
        f"version {marker.transaction_version})"
    )


def show_init(response: Any) -> list[str]:
    if response.error_code:
        assert (response.producer_id, response.producer_epoch) == (-1, -1)
        return [show_error(response.error_code)]
    return [f"{response.producer_id}/{response.producer_epoch}"]


def show_end(response: Any) -> list[str]:
    if response.error_code or response.producer_id < 0:
        return [show_error(response.error_code)]
    return [f"ok, go on as {response.producer_id}/{response.producer_epoch}"]


def _topic_results(results: Any) -> str:
    return " ".join(
        f"{topic.name}-{result.partition_index} {show_error(result.partition_error_code)}"
        for topic in results
        for result in topic.results_by_partition
    )


def show_add(response: Any) -> list[str]:
    if response.results_by_transaction:
        return [
            f"{result.transactional_id}: {_topic_results(result.topic_results)}"
            for result in response.results_by_transaction
        ]
    return [_topic_results(response.results_by_topic_v3_and_below)]


def show_describe(response: Any) -> list[str]:
    lines = []
    for state in response.transaction_states:
        if state.error_code:
            lines.append(f"{state.transactional_id} {show_error(state.error_code)}")
            continue
        partitions = show_partitions(
            (topic.topic, index) for topic in state.topics for index in topic.partitions
        )
        lines.append(
            f"{state.transactional_id} {state.transaction_state} {state.producer_id}/{state.producer_epoch} "
            f"timeout {state.transaction_timeout_ms} started {state.transaction_start_time_ms} [{partitions}]"
        )
    return lines


def show_list(response: Any) -> list[str]:
    if response.error_code:
        return [show_error(response.error_code)]
    lines = [f"unknown state {label}" for label in response.unknown_state_filters]
    lines += [
        f"{state.transactional_id} {state.transaction_state} {state.producer_id}"
        for state in response.transaction_states
    ]
    return lines or ["nothing"]


SHOW: dict[str, Callable[[Any], list[str]]] = {
    "init": show_init,
    "add": show_add,
    "verify": show_add,
    "offsets": lambda response: [show_error(response.error_code)],
    "commit": show_end,
    "abort": show_end,
    "describe": show_describe,
    "list": show_list,
}
