"""Test tools for people who use Culver: a broker in a subprocess, and pytest fixtures around it.

    from culver.testing import Broker

    with Broker(topics={"orders": 3}) as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

The pytest plugin (loaded by itself once Culver is installed) gives the fixtures `culver_broker` and
`culver_topic`; see `culver.testing.pytest_plugin`.
"""

from culver.testing.broker import Broker, BrokerFailed

__all__ = ["Broker", "BrokerFailed"]
