"""/metrics, /healthz and /readyz: what Prometheus reads, parsed by its own client, and the boards made for it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from http_call import call
from http_client import post_json
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from culver.gateway.metrics.families import COUNTER, FAMILIES
from culver.gateway.services import Services
from culver.gateway.settings import GatewaySettings
from culver.testing import Broker

DEADLINE_SECONDS = 30.0


class Scrape:
    """What one reading of /metrics gave."""

    def __init__(self, url: str) -> None:
        reply = call("GET", f"{url}/metrics")
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        self.families: dict[str, Metric] = {}
        for family in text_string_to_metric_families(reply.body.decode()):
            assert family.name not in self.families, f"{family.name} is declared twice"
            self.families[family.name] = family
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in self.families.values():
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self.samples, f"{key} is there twice"
                self.samples[key] = sample.value

    def get(self, name: str, **labels: object) -> float | None:
        return self.samples.get((name, frozenset((key, str(value)) for key, value in labels.items())))

    def value(self, name: str, **labels: object) -> float:
        found = self.get(name, **labels)
        assert found is not None, f"no {name} with {labels}"
        return found


def scrape_until(url: str, satisfied: Callable[[Scrape], object]) -> Scrape:
    """The metrics are a moment old at most: read them until they say what they should."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        found = Scrape(url)
        if satisfied(found):
            return found
        assert time.monotonic() < deadline, "the metrics never say so"


def produce(url: str, topic: str, *values: str) -> None:
    reply = post_json(
        url,
        f"/topics/{topic}",
        {"records": [{"value": value} for value in values]},
        "application/vnd.kafka.json.v2+json",
    )
    assert reply.status == 200, reply.body


def commit(broker: Broker, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


# -- the cluster ----------------------------------------------------------------------------------------


def test_topics_and_partitions_have_kafka_exporters_names(url: str, http_broker: Broker, topic: str) -> None:
    produce(url, topic, "a", "b", "c")
    place = {"topic": topic, "partition": 0}
    found = scrape_until(url, lambda found: found.get("kafka_topic_partition_current_offset", **place) == 3)
    assert found.value("kafka_brokers") == 1
    assert found.value("kafka_broker_info", id=1, address=http_broker.bootstrap_servers) == 1
    assert found.value("kafka_topic_partitions", topic=topic) == 1
    assert found.value("kafka_topic_partition_oldest_offset", **place) == 0
    assert found.value("kafka_topic_partition_in_sync_replica", **place) == 1
    assert found.value("kafka_topic_partition_replicas", **place) == 1
    assert found.value("kafka_topic_partition_leader", **place) == 1
    assert found.value("kafka_topic_partition_leader_is_preferred", **place) == 1
    assert found.value("kafka_topic_partition_under_replicated_partition", **place) == 0
    assert found.value("culver_offline_partitions") == 0


def test_groups_lag_in_records_and_in_seconds(url: str, http_broker: Broker, topic: str) -> None:
    group = 'a "group" with \\ in it'
    produce(url, topic, *"abcde")
    commit(http_broker, group, topic, 2)
    place = {"consumergroup": group, "topic": topic, "partition": 0}
    found = scrape_until(url, lambda found: found.get("kafka_consumergroup_lag", **place) == 3)
    assert found.value("kafka_consumergroup_current_offset", **place) == 2
    assert found.value("kafka_consumergroup_current_offset_sum", consumergroup=group, topic=topic) == 2
    assert found.value("kafka_consumergroup_lag_sum", consumergroup=group, topic=topic) == 3
    assert found.value("kafka_consumergroup_members", consumergroup=group) == 0
    seconds = found.value("culver_consumergroup_lag_seconds", **place)
    assert 0 < seconds < DEADLINE_SECONDS, "the record was read: its time is known though it came before"
    later = scrape_until(
        url, lambda found: found.value("culver_consumergroup_lag_seconds", **place) > seconds
    )
    assert later.value("kafka_consumergroup_lag", **place) == 3
    commit(http_broker, group, topic, 5)
    caught_up = scrape_until(url, lambda found: found.get("kafka_consumergroup_lag", **place) == 0)
    assert caught_up.value("culver_consumergroup_lag_seconds", **place) == 0


def test_members_of_a_group_are_counted(url: str, http_broker: Broker, topic: str) -> None:
    settings = {"bootstrap.servers": http_broker.bootstrap_servers, "group.id": "counted"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        scrape_until(
            url,
            lambda found: (
                consumer.poll(0.1) is None
                and found.get("kafka_consumergroup_members", consumergroup="counted") == 1
            ),
        )
    finally:
        consumer.close()


def test_what_brokers_count_is_exported_with_the_broker(url: str, topic: str) -> None:
    produce(url, topic, "a", "b")
    found = scrape_until(
        url, lambda found: found.get("culver_topic_messages_in_total", broker=1, topic=topic) == 2
    )
    assert found.value("culver_up", broker=1) == 1
    assert found.value("culver_active_controller", broker=1) == 1
    assert found.value("culver_messages_in_total", broker=1) >= 2
    assert found.value("culver_topic_bytes_in_total", broker=1, topic=topic) > 0
    assert found.value("culver_log_size_bytes", broker=1, topic=topic, partition=0) > 0
    assert found.value("culver_request_duration_seconds_count", broker=1, api="Produce") >= 1
    assert found.value("culver_request_duration_seconds_bucket", broker=1, api="Produce", le="+Inf") >= 1
    assert found.value("culver_fsync_duration_seconds_count", broker=1) >= 1
    assert found.value("culver_event_loop_lag_seconds_count", broker=1) >= 1
    assert found.value("culver_under_replicated_partitions", broker=1) == 0
    assert found.value("culver_open_transactions", broker=1) == 0
    buckets = [
        value
        for (name, labels), value in sorted(
            found.samples.items(), key=lambda item: float(dict(item[0][1]).get("le", "nan"))
        )
        if name == "culver_fsync_duration_seconds_bucket"
    ]
    assert buckets == sorted(buckets), "each bucket holds those below it"


def test_every_family_is_declared_as_what_it_is_and_has_the_labels_it_names(url: str, topic: str) -> None:
    produce(url, topic, "a")
    found = scrape_until(url, lambda found: "culver_log_size_bytes" in found.families)
    for family in found.families.values():
        exported = family.name + "_total" if family.type == COUNTER else family.name
        if exported not in FAMILIES:
            assert exported.startswith(("culver_http_", "culver_push_", "culver_webhook_", "process_")), (
                exported
            )
            continue
        declared = FAMILIES[exported]
        assert family.type == declared.kind
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(declared.labels)


# -- the gateway itself ---------------------------------------------------------------------------------


def test_requests_are_counted_by_declared_path_and_status(url: str, topic: str) -> None:
    produce(url, topic, "a")
    assert call("GET", f"{url}/topics/no-such-topic").status == 404
    assert call("GET", f"{url}/no/such/path").status == 404
    found = Scrape(url)
    assert found.value("culver_http_requests_total", route="/topics/{topic}", method="POST", status=200) >= 1
    assert found.value("culver_http_requests_total", route="/topics/{topic}", method="GET", status=404) >= 1
    assert found.value("culver_http_requests_total", route="none", method="GET", status=404) >= 1
    assert (
        found.value("culver_http_request_duration_seconds_count", route="/topics/{topic}", method="POST") >= 1
    )
    assert found.value("culver_push_subscribers") == 0
    assert found.value("process_resident_memory_bytes") > 0


def test_the_gateway_is_alive_and_ready(url: str) -> None:
    assert call("GET", f"{url}/healthz").json == {"status": "ok"}
    ready = call("GET", f"{url}/readyz")
    assert (ready.status, ready.json) == (200, {"ready": True, "brokers": 1, "reasons": []})


def test_readers_at_the_same_time_share_one_look(url: str) -> None:
    def look(_: int) -> str:
        text = call("GET", f"{url}/metrics").body.decode()
        return next(line for line in text.splitlines() if line.startswith("culver_scrape_seconds"))

    with ThreadPoolExecutor(8) as threads:
        looks = set(threads.map(look, range(8)))
    assert len(looks) <= 2, "a look is good for a second"


# -- without a cluster, and with half a one -------------------------------------------------------------


def run_services(bootstrap: str, use: Callable[[Services], Any]) -> Any:
    async def run() -> Any:
        services = Services(GatewaySettings(bootstrap=bootstrap))
        await services.start()
        try:
            return await use(services)
        finally:
            await services.close()

    return asyncio.run(run())


def test_without_a_cluster_the_gateway_still_tells_of_itself() -> None:
    async def use(services: Services) -> str:
        return (await services.metrics.text()).decode()

    text = run_services("127.0.0.1:1", use)
    names = {family.name for family in text_string_to_metric_families(text)}
    assert "process_resident_memory_bytes" in names
    assert "kafka_brokers" not in names


def test_a_broker_that_hangs_is_down_and_holds_nobody_up() -> None:
    with Broker() as broker:

        async def use(services: Services) -> tuple[str, float]:
            await services.cluster.view()
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                text = await services.metrics.text()
                return text.decode(), time.monotonic() - began
            finally:
                os.kill(broker.pid, signal.SIGCONT)

        text, took_s = run_services(broker.bootstrap_servers, use)
    assert 'culver_up{broker="1"} 0' in text
    assert "kafka_brokers 1" in text, "the last view is a moment old"
    assert took_s < 9, "Prometheus gives up after ten seconds"


# -- brokers of another make ----------------------------------------------------------------------------


class ClosesOnReports:
    """Between the gateway and a broker: hangs up when asked for a report, as a broker that does not know of it does."""

    REPORT_KEY = (30_001).to_bytes(2, "big")

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = host, int(port)
        self.closed = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return f"127.0.0.1:{port}"

    async def close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        back = asyncio.create_task(self._pass_back(upstream_reader, writer))
        try:
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(size, "big"))
                if frame[:2] == self.REPORT_KEY:
                    self.closed += 1
                    break
                upstream_writer.write(size + frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            back.cancel()
            upstream_writer.close()
            writer.close()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)


def test_a_broker_of_another_make_gives_what_the_protocol_tells() -> None:
    async def run() -> tuple[str, int]:
        listen = f"127.0.0.1:{free_port()}"
        proxy = ClosesOnReports(listen)
        bootstrap = await proxy.start()
        with Broker(listen=listen, config={"advertise": bootstrap}):
            services = Services(GatewaySettings(bootstrap=bootstrap))
            await services.start()
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    while not proxy.closed:
                        await services.metrics.text()
                    while "kafka_broker_info" not in (text := (await services.metrics.text()).decode()):
                        continue
                return text, proxy.closed
            finally:
                await services.close()
                await proxy.close()

    text, closed = asyncio.run(run())
    names = {family.name for family in text_string_to_metric_families(text)}
    assert "kafka_brokers" in names
    assert "culver_messages_in" not in names
    assert 'culver_up{broker="1"} 1' in text
    assert closed <= 2, "it is not asked again and again"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
