"""Dashboards and alert rules in the repository: they ask only for metrics that are exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from culver.gateway.metrics.families import FAMILIES, HISTOGRAM
from culver.gateway.services import Services
from culver.gateway.settings import GatewaySettings

OPERATIONS = Path(__file__).parents[2] / "ops"
# What the board that most people load for kafka_exporter (7589 of Grafana's) and its usual alerts ask for.
COMMON_BOARD = (
    "kafka_brokers",
    "kafka_topic_partitions",
    "kafka_topic_partition_current_offset",
    "kafka_topic_partition_oldest_offset",
    "kafka_topic_partition_in_sync_replica",
    "kafka_topic_partition_leader",
    "kafka_topic_partition_leader_is_preferred",
    "kafka_topic_partition_replicas",
    "kafka_topic_partition_under_replicated_partition",
    "kafka_consumergroup_current_offset",
    "kafka_consumergroup_lag",
    "kafka_consumergroup_lag_sum",
    "kafka_consumergroup_members",
)
GATEWAY_NAMES = {
    "culver_http_requests_total",
    "culver_http_request_duration_seconds_bucket",
    "culver_http_request_duration_seconds_sum",
    "culver_http_request_duration_seconds_count",
    "culver_http_in_flight_bytes",
    "culver_http_unacknowledged_bytes",
    "culver_push_subscribers",
    "culver_webhook_records_delivered_total",
    "culver_webhook_calls_failed_total",
    "culver_webhook_dead_letters_total",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
    "process_open_fds",
}
_SUFFIXES = ("_bucket", "_sum", "_count")


def exported_names() -> set[str]:
    names = set(GATEWAY_NAMES)
    for family in FAMILIES.values():
        names |= {family.name + suffix for suffix in _SUFFIXES} if family.kind == HISTOGRAM else {family.name}
    return names


def metric_names(expression: str) -> set[str]:
    """The metrics that a PromQL expression asks for: words that are no function, label or keyword."""
    without_labels = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", expression)
    grouping = r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)"
    without_grouping = re.sub(grouping, " ", without_labels)
    words = re.findall(r"\b(?:kafka|culver|process|up)[a-z0-9_]*\b", without_grouping)
    return set(words)


def expressions_of(value: Any) -> Iterator[str]:
    """Every query in a dashboard or a file of rules."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in ("expr", "query") and isinstance(inner, str):
                yield inner
            else:
                yield from expressions_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions_of(inner)


DASHBOARDS = sorted((OPERATIONS / "grafana").glob("*.json"))
RULES = sorted((OPERATIONS / "prometheus").glob("*.yml"))


@pytest.mark.parametrize("path", [*DASHBOARDS, *RULES], ids=lambda path: path.name)
def test_boards_and_alerts_ask_only_for_what_is_exported(path: Path) -> None:
    text = path.read_text()
    content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    asked = set().union(*map(metric_names, expressions_of(content)))
    if path.name != "scrape.yml":
        assert asked
    assert asked <= exported_names()


def test_the_common_board_of_kafka_exporter_finds_its_metrics() -> None:
    assert set(COMMON_BOARD) <= exported_names()


def test_what_the_boards_ask_of_the_gateway_is_exported_by_it() -> None:
    metrics = Services(GatewaySettings(bootstrap="127.0.0.1:1")).metrics.gateway
    metrics.count("/topics", "GET", 200, 0.001)
    families = list(text_string_to_metric_families(metrics.text()))
    names = {sample.name for family in families for sample in family.samples}
    declared = {family.name for family in families}
    for name in GATEWAY_NAMES:
        assert name in names or name.removesuffix("_total") in declared


def test_a_dashboard_has_no_two_panels_with_one_id_and_a_chosen_data_source() -> None:
    assert DASHBOARDS
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        ids = [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids))
        variables = {variable["name"] for variable in board["templating"]["list"]}
        assert "datasource" in variables
        for panel in board["panels"]:
            if panel["type"] != "row":
                assert panel["datasource"]["uid"] == "${datasource}"


def test_every_metric_is_documented() -> None:
    text = (OPERATIONS.parent / "docs" / "metrics.md").read_text()
    names = {
        name.removesuffix(suffix) for name in GATEWAY_NAMES for suffix in _SUFFIXES if name.endswith(suffix)
    }
    names |= {
        name for name in GATEWAY_NAMES if not name.endswith(_SUFFIXES) and not name.startswith("process_")
    }
    for name in {*FAMILIES, *names}:
        assert f"`{name}`" in text, name
