"""Which targets a webhook may have, what it may ask for, and how its calls are signed and told apart."""

from __future__ import annotations

import ipaddress
import json
import socket
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from webhook_records import record
from wire_produce import run

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.webhooks import target_check
from culver.gateway.webhooks.endpoint import retry_after_ms
from culver.gateway.webhooks.payload import body_of, call_id, dead_letter
from culver.gateway.webhooks.signature import key_of, masked, new_secret, signature_headers
from culver.gateway.webhooks.subscription import STORE_TOPIC, Subscription, Wanted, merged, shown, stored
from culver.gateway.webhooks.target_check import (
    CheckedResolver,
    TargetRefused,
    allowance_of,
    check_target,
    literal_refusal,
    refusal,
    target_of,
)

NOTHING = allowance_of("")
ORDERS = TopicPartition("orders", 0)

NOT_PUBLIC = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert refusal("host", ipaddress.ip_address(address), NOTHING) is not None
    assert literal_refusal(address, NOTHING) is not None
    assert literal_refusal(f"[{address}]", NOTHING) is not None


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1"],
)
def test_a_public_address_is_allowed(address: str) -> None:
    assert refusal("host", ipaddress.ip_address(address), NOTHING) is None


@given(st.ip_addresses())
def test_what_is_refused_depends_on_the_address_alone_and_star_allows_it(address: Any) -> None:
    assert (refusal("a", address, NOTHING) is None) == (refusal("b", address, NOTHING) is None)
    assert refusal("a", address, allowance_of("*")) is None


def test_networks_and_names_can_be_allowed() -> None:
    allowance = allowance_of(" 10.1.0.0/16, Hooks.internal ,127.0.0.1, fd00::/8")

    def refused(host: str, address: str) -> bool:
        return refusal(host, ipaddress.ip_address(address), allowance) is not None

    assert not refused("anything", "10.1.2.3")
    assert refused("anything", "10.2.0.1")
    assert not refused("hooks.internal.", "192.168.0.1")
    assert refused("xhooks.internal", "192.168.0.1")
    assert not refused("anything", "127.0.0.1")
    assert refused("anything", "127.0.0.2")
    assert not refused("anything", "fd00::1")
    # However it is written: it is the same host.
    assert not refused("anything", "::ffff:10.1.2.3")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:25/",
        "//example.org/hook",
        "example.org",
        "http://",
        "http:///path",
        "http://user@example.org/",
        "http://user:password@example.org/",
        "http://example.org:99999/",
        "http://example.org/a b",
        "http://example.org/\r\nx: y",
        "http://[::1",
        "http://" + "a" * 5000,
        "",
    ],
)
def test_what_is_no_url_for_a_webhook_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        target_of(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/",
        "https://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://localhost:8080/",
        "http://LOCALHOST/",
        "http://0x7f000001/",
        "http://2130706433/",
        "http://127.1/",
        "http://127.0.0.1./",
        "http://①②⑦.0.0.1/",
        "http://[::ffff:127.0.0.1%25lo]/",
        "http://[v1.fe80:1]/",
        "http://169.254.169.254/latest/meta-data/",
    ],
)
def test_a_loopback_address_is_found_out_however_it_is_written(url: str) -> None:
    with pytest.raises(TargetRefused):
        run(lambda: check_target(url, NOTHING))


@pytest.mark.parametrize(
    "host", ["127.1", "2130706433", "017700000001", "1.2.3", "v1.a:b", "::1::", "٣.٣.٣.٣"]
)
def test_what_looks_like_an_address_and_is_none_is_not_left_to_the_client(host: str) -> None:
    assert literal_refusal(host, allowance_of("*")) is not None


def test_a_name_that_leads_nowhere_is_told_when_the_webhook_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def getaddrinfo(*_: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(target_check.socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(ValueError, match="cannot be found"):
        run(lambda: check_target("http://nothing.invalid/", NOTHING))


def test_of_a_names_addresses_only_those_that_may_be_called_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = ["10.0.0.1", "1.1.1.1", "127.0.0.1"]

    def getaddrinfo(host: str, port: int, *_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(target_check.socket, "getaddrinfo", getaddrinfo)
    found = run(lambda: CheckedResolver(NOTHING).resolve("example.org", 80))
    assert [each["host"] for each in found] == ["1.1.1.1"]
    addresses.remove("1.1.1.1")
    with pytest.raises(TargetRefused):
        run(lambda: CheckedResolver(NOTHING).resolve("example.org", 80))


# --- signatures ---


def test_a_signature_is_the_one_of_the_standard_webhooks_specification() -> None:
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signature_headers([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_every_secret_signs() -> None:
    old, new = new_secret(), new_secret()
    both = signature_headers([key_of(new), key_of(old)], "msg_1", 1, b"x")["webhook-signature"].split(" ")
    alone = [signature_headers([key_of(each)], "msg_1", 1, b"x")["webhook-signature"] for each in (new, old)]
    assert both == alone


@pytest.mark.parametrize(
    "secret",
    ["", "whsec_", "secret", "whsec_short", "whsec_!!!!", "whsec_" + "A" * 200, masked(new_secret())],
)
def test_a_secret_that_is_none_is_refused_without_being_repeated(secret: str) -> None:
    with pytest.raises(ValueError) as caught:
        key_of(secret)
    assert secret not in str(caught.value) or secret in ("", "whsec_", "secret")


def test_an_identity_is_that_of_the_records_and_the_webhook() -> None:
    first, second = record(ORDERS, 1, timestamp_ms=5), record(ORDERS, 2, timestamp_ms=5)
    identity = call_id("w", [first, second])
    assert identity == call_id("w", [first, second])
    others = [
        call_id("v", [first, second]),
        call_id("w", [first]),
        call_id("w", [second]),
        call_id("w", [record(ORDERS, 1, timestamp_ms=6), second]),
        call_id("w", [record(TopicPartition("orders", 1), 1, timestamp_ms=5), second]),
    ]
    assert len({identity, *others}) == 6
    assert "." not in identity


# --- bodies ---


def subscription(**fields: Any) -> Subscription:
    wanted = msgspec.convert({"topics": ["orders"], "url": "https://example.org/hook", **fields}, Wanted)
    return merged("w", wanted, None, now_ms=1, starts={})


def test_a_body_has_the_records_with_keys_and_values_as_they_can_be_written() -> None:
    records = [
        record(ORDERS, 7, b"a", b'{"paid": 1.50}', 9),
        record(ORDERS, 8, b"\xff", b"text"),
        record(ORDERS, 9, None, None),
    ]
    body, headers = body_of(subscription(batch=10), records)
    assert headers == {"content-type": "application/json"}
    parsed = json.loads(body)
    assert parsed["webhook"] == "w"
    assert [(each["value"], each["value_format"]) for each in parsed["records"]] == [
        ({"paid": 1.5}, "json"),
        ("text", "text"),
        (None, "text"),
    ]
    assert [(each["key"], each["key_format"]) for each in parsed["records"]] == [
        ("a", "text"),
        ("/w==", "base64"),
        (None, "text"),
    ]
    assert parsed["records"][0] | {"value": None} == {
        "topic": "orders",
        "partition": 0,
        "offset": 7,
        "timestamp": 9,
        "key": "a",
        "key_format": "text",
        "value": None,
        "value_format": "json",
        "headers": [],
    }


def test_a_raw_body_is_the_value_and_the_rest_is_in_headers() -> None:
    body, headers = body_of(subscription(format="raw"), [record(ORDERS, 7, b"\xffkey", b"\x00\xff", 9)])
    assert body == b"\x00\xff"
    assert headers == {
        "content-type": "application/octet-stream",
        "culver-topic": "orders",
        "culver-partition": "0",
        "culver-offset": "7",
        "culver-timestamp": "9",
        "culver-key-base64": "/2tleQ==",
    }


def test_a_dead_letter_says_where_it_came_from_and_why() -> None:
    dead = dead_letter(
        subscription(), record(ORDERS, 7, b"k", b"v", 9), tries=3, status=500, error="no", now_ms=11
    )
    assert (dead.topic, dead.key, dead.value) == ("webhook-w-dlq", b"k", b"v")
    assert dict(dead.headers) == {
        "culver.webhook.name": b"w",
        "culver.webhook.topic": b"orders",
        "culver.webhook.partition": b"0",
        "culver.webhook.offset": b"7",
        "culver.webhook.timestamp": b"9",
        "culver.webhook.tries": b"3",
        "culver.webhook.status": b"500",
        "culver.webhook.error": b"no",
        "culver.webhook.failed-at": b"11",
    }


# --- subscriptions ---


@pytest.mark.parametrize(
    "fields",
    [
        {"topics": []},
        {"topics": ["bad topic"]},
        {"topics": [".."]},
        {"topics": [STORE_TOPIC]},
        {"url": "http://user@example.org/"},
        {"batch": 0},
        {"batch": 2, "format": "raw"},
        {"concurrency": 0},
        {"timeout_ms": 0},
        {"retry": {"tries": -1}},
        {"retry": {"first_ms": 1000, "max_ms": 10}},
        {"retry": {"often": 1}},
        {"dead_letter_topic": "orders"},
        {"dead_letter_topic": STORE_TOPIC},
        {"secret": "abc"},
        {"secret": []},
        {"headers": {"Host": "x"}},
        {"headers": {"webhook-id": "x"}},
        {"headers": {"Content-Length": "1"}},
        {"headers": {"X-A": "a\r\nx-b: c"}},
        {"headers": {"X A": "a"}},
        {"headers": {"X-A": "a", "x-a": "b"}},
        {"from": "yesterday"},
        {"format": "xml"},
        {"urk": "http://example.org"},
    ],
)
def test_a_webhook_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError)):
        subscription(**fields)


def test_secrets_and_headers_are_not_shown_and_need_not_be_repeated() -> None:
    made = subscription(headers={"Authorization": "Bearer abc"})
    text = msgspec.json.encode(shown(made)).decode()
    assert made.secrets[0] not in text
    assert "abc" not in text
    again = merged(
        "w", Wanted(topics=["orders"], url="https://example.org/", batch=2), made, now_ms=5, starts={}
    )
    assert (again.secrets, again.headers, again.created_ms) == (made.secrets, made.headers, 1)


@pytest.mark.parametrize(
    ("header", "expected_ms"),
    [
        (None, None),
        ("", None),
        ("3", 3000),
        (" 120 ", 120_000),
        ("-3", None),
        ("soon", None),
        ("9" * 500, 9_999_999_999_000),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90_000),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Thu, 99 Foo 1970", None),
    ],
)
def test_a_retry_after_header_is_seconds_or_a_date(header: str | None, expected_ms: float | None) -> None:
    assert retry_after_ms(header, 10.0) == expected_ms


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe",
        b'{"more":' + b"[" * 100_000,
        b'{"name":"\xff"}',
        {"name": "another"},
        {"concurrency": 0},
        {"batch": -1},
        {"secrets": []},
        {"secrets": ["whsec_short"]},
        {"topics": [STORE_TOPIC]},
        {"dead_letter_topic": STORE_TOPIC},
        {"headers": {"X-A": "a\r\nx-b: c"}},
        {"url": "file:///etc/passwd"},
        {"changed_ms": 10**30},
        {"starts": {"orders": {"topic_id": "", "offsets": [-5]}}},
    ],
)
def test_a_stored_webhook_is_checked_like_one_that_is_asked_for(damage: bytes | dict[str, Any]) -> None:
    good = msgspec.json.decode(msgspec.json.encode(subscription()))
    name = good["name"]
    assert stored(name, msgspec.json.encode(good)) == subscription(secret=good["secrets"][0])
    value = damage if isinstance(damage, bytes) else msgspec.json.encode({**good, **damage})
    with pytest.raises(ValueError):
        stored(name, value)
