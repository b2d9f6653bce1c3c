"""What a pipeline says of itself while it runs, and that saying it is never in its way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from culver.pipelines import progress_report
from culver.pipelines.progress_report import LAST_WORD_S, PIPELINES_TOPIC, ProgressReport, Report
from culver.testing import Broker
from culver.testing.cluster import free_port

DEADLINE_S = 20.0


class Published:
    """Stands where the broker would, and keeps what comes."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.times_s: list[float] = []
        self.hold = threading.Event()
        self.hold.set()

    def publish(self, key: bytes, value: bytes) -> None:
        assert self.hold.wait(DEADLINE_S)
        report = msgspec.json.decode(value, type=Report)
        assert key == report.name.encode()
        self.times_s.append(time.monotonic())
        self.reports.append(report)

    def close(self, within_s: float) -> None:
        assert within_s == LAST_WORD_S

    def __call__(self, bootstrap: str) -> Published:
        return self


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    tick = threading.Event()
    while not holds():
        assert time.monotonic() < deadline_s
        tick.wait(0.005)


def report_to(published: Published, **options: Any) -> ProgressReport:
    return ProgressReport("nowhere:1", "copy", publisher=published, **options)


def spark_report(batch: int, rows: int, **more: Any) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "inputRowsPerSecond": 100.0,
        "processedRowsPerSecond": 250.0,
        "durationMs": {"triggerExecution": 40},
        "sources": [
            {"endOffset": {"t": {"0": 10, "1": 5}}, "latestOffset": {"t": {"0": 12, "1": 9}}},
        ],
        **more,
    }


def test_start_and_end_are_reported_at_once() -> None:
    published = Published()
    with report_to(published, kind="transform", topics="in", target="out", between_reports_s=60.0):
        wait_until(lambda: bool(published.reports))
    first, last = published.reports
    assert (first.state, first.kind, first.topics, first.target) == ("running", "transform", "in", "out")
    assert last.state == "ended"
    assert last.error is None
    assert last.run_id == first.run_id
    assert last.at_ms >= first.at_ms >= first.started_at_ms > 0


def test_a_failure_is_reported_with_its_reason() -> None:
    published = Published()
    with pytest.raises(ValueError, match="disk full"), report_to(published):
        raise ValueError("disk full" + "!" * 10_000)
    last = published.reports[-1]
    assert last.state == "failed"
    assert last.error is not None
    assert last.error.startswith("disk full")
    assert len(last.error) <= 2000


def test_figures_that_change_all_the_time_are_sent_now_and_then_and_the_last_ones_always() -> None:
    published = Published()
    with report_to(published, between_reports_s=0.2) as report:
        for rows in range(5000):
            report.tell(rows=rows)
        wait_until(lambda: published.reports[-1:] != [] and published.reports[-1].rows == 4999)
        report.tell(rows=5000)
    assert published.reports[-1].rows == 5000
    # The first, perhaps one on the way, the newest, and the end.
    assert len(published.reports) <= 4
    gaps = [later - sooner for sooner, later in zip(published.times_s, published.times_s[1:-1], strict=False)]
    assert all(gap >= 0.2 for gap in gaps)


def test_a_pipeline_without_news_says_that_it_is_alive() -> None:
    published = Published()
    with report_to(published, between_reports_s=0.01, alive_report_s=0.02):
        wait_until(lambda: len(published.reports) >= 4)
    assert {each.state for each in published.reports[:4]} == {"running"}
    assert published.reports[3].at_ms > published.reports[0].at_ms


def test_a_broker_that_hangs_does_not_hold_up_the_pipeline() -> None:
    published = Published()
    published.hold.clear()
    with report_to(published, between_reports_s=0.0) as report:
        for rows in range(10_000):  # each would wait for the one before, if it waited
            report.tell(rows=rows)
        assert published.reports == []
        published.hold.set()
    assert published.reports[-1].rows == 9999
    assert len(published.reports) < 100


def test_the_figures_of_a_streaming_query() -> None:
    published = Published()
    query: Any = SimpleNamespace(recentProgress=[spark_report(0, 3), spark_report(1, 0)])
    with report_to(published) as report:
        assert report.look(query) == (1, 3)
        query.recentProgress += [spark_report(2, 4), spark_report(3, 5)]
        assert report.look(query) == (3, 12)
        assert report.look(query) == (3, 12)
    last = published.reports[-1]
    assert (last.batches, last.rows, last.batch) == (3, 12, 3)
    assert (last.input_rows_per_s, last.processed_rows_per_s, last.batch_duration_ms) == (100.0, 250.0, 40)
    assert last.lag == 2 + 4


@pytest.mark.parametrize(
    "sources",
    [
        [],
        [{"endOffset": 7, "latestOffset": 9}],
        [{"endOffset": {"t": {"0": 1}}, "latestOffset": None}],
        [{"endOffset": "not json", "latestOffset": "{}"}],
        [{"endOffset": {"logOffset": 3}, "latestOffset": {"logOffset": 4}}],
    ],
)
def test_the_lag_is_unknown_when_a_source_does_not_count_by_offsets(sources: list[Any]) -> None:
    published = Published()
    nothing = {"inputRowsPerSecond": float("nan"), "processedRowsPerSecond": float("inf")}
    query: Any = SimpleNamespace(recentProgress=[spark_report(0, 1, sources=sources, **nothing)])
    with report_to(published) as report:
        report.look(query)
    last = published.reports[-1]
    assert last.lag is None
    assert last.input_rows_per_s is last.processed_rows_per_s is None


def test_offsets_may_come_as_text() -> None:
    published = Published()
    source = {"endOffset": '{"t": {"0": 10}}', "latestOffset": '{"t": {"0": 30, "1": 2}}'}
    query: Any = SimpleNamespace(recentProgress=[spark_report(0, 1, sources=[source])])
    with report_to(published) as report:
        report.look(query)
    assert published.reports[-1].lag == 22


def test_the_figures_of_a_pipeline_that_goes_in_rounds() -> None:
    published = Published()
    with report_to(published, kind="archive") as report:
        for done, total in ((0, 10), (4, 10), (10, 10), (0, 5), (5, 5)):
            report.look_at_round(done, total)
    last = published.reports[-1]
    assert (last.batches, last.rows, last.lag) == (3, 15, 0)


def test_reports_are_in_a_compacted_topic_under_the_name_of_the_pipeline(culver_broker: Broker) -> None:
    bootstrap = culver_broker.bootstrap_servers
    for rows in (1, 2):  # the second run finds the topic there
        with ProgressReport(bootstrap, "copy, reported to a broker", kind="transform") as report:
            report.tell(rows=rows)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, PIPELINES_TOPIC)
    settings = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert settings["cleanup.policy"].value == "compact"
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(PIPELINES_TOPIC, 0, 0)])
    found: list[Report] = []
    while [each.state for each in found].count("ended") < 2:
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        assert message.error() is None
        if message.key() == b"copy, reported to a broker":  # others report to the same broker
            found.append(msgspec.json.decode(message.value(), type=Report))
    consumer.close()
    assert [each.rows for each in found if each.state == "ended"] == [1, 2]
    assert len({each.run_id for each in found}) == 2


def test_a_broker_that_is_not_there_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_report, "LAST_WORD_S", 0.5)
    begun_s = time.monotonic()
    with ProgressReport(f"127.0.0.1:{free_port()}", "copy") as report:
        report.tell(rows=1)
    assert time.monotonic() - begun_s < 5
