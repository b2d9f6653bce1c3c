"""The blocking client for single requests: versions, brokers that are not there, addresses."""

from __future__ import annotations

import socket

import pytest

from culver.errors import KafkaError
from culver.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from culver.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from culver.protocol.schema import Message
from culver.testing import Broker
from culver.wire_client import Unreachable, WireClient, host_and_port


class NobodysRequest(Message, api_key=999, versions=(0, 0), flexible_since=0):
    pass


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_requests_go_in_the_newest_version_and_one_after_another(culver_broker: Broker) -> None:
    with WireClient(culver_broker.bootstrap_servers) as client:
        for _ in range(2):
            answer = client.ask(
                DescribeClusterRequest(include_cluster_authorized_operations=False), DescribeClusterResponse
            )
            assert [broker.broker_id for broker in answer.brokers] == [1]
        named = ApiVersionsRequest(client_software_name="tests", client_software_version="1")
        assert len(client.ask(named, ApiVersionsResponse).api_keys) > 20


def test_a_request_that_the_broker_does_not_know_is_not_sent(culver_broker: Broker) -> None:
    with WireClient(culver_broker.bootstrap_servers) as client, pytest.raises(KafkaError, match="Nobodys"):
        client.ask_once(NobodysRequest(), ApiVersionsResponse)


def test_brokers_that_are_not_there_or_silent_are_passed_over(culver_broker: Broker) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bootstrap = f"127.0.0.1:{closed_port()},127.0.0.1:{silent.getsockname()[1]}"
        with WireClient(bootstrap, timeout_s=0.2) as client:
            with pytest.raises(Unreachable, match="no answer in time"):
                client.ask(request, DescribeClusterResponse)
            client.learn([host_and_port(culver_broker.bootstrap_servers)])
            assert client.ask(request, DescribeClusterResponse).controller_id == 1


def test_nobody_anywhere_is_told_with_the_addresses() -> None:
    address = f"127.0.0.1:{closed_port()}"
    with WireClient(address) as client, pytest.raises(Unreachable, match=f"{address}: Connection refused"):
        client.ask_once(ApiVersionsRequest(), ApiVersionsResponse)


def test_addresses() -> None:
    assert host_and_port("here:1") == ("here", 1)
    assert host_and_port(" [::1]:2 ") == ("::1", 2)
    assert host_and_port("here") == ("here", 9092)
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        host_and_port("here:x")
    with pytest.raises(ValueError, match="no broker address"):
        WireClient(" , ")
