"""Webhooks over HTTP and on the command line: made, shown without their secrets, changed, tried, deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from confluent_kafka.admin import AdminClient
from http_call import call
from webhook_api import create, created, status, wait_for_lag, write
from webhook_receiver import SECRET, Received, Receiver, until

from culver.cli.failure import ExitCode
from culver.cli.main import run
from culver.gateway.webhooks.signature import new_secret
from culver.testing import Broker

Culver = Callable[..., str]


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    return {"config": {"culver.http.webhook.allow.private": "127.0.0.0/8"}}


@pytest.fixture
def culver(url: str, capsys: pytest.CaptureFixture[str]) -> Culver:
    """Runs `culver webhook` against the gateway; what it printed."""

    def command(*words: str, code: int = ExitCode.OK) -> str:
        assert run(["webhook", *words, "--http-url", url]) == code
        printed = capsys.readouterr()
        return printed.out if code == ExitCode.OK else printed.err

    return command


def test_a_webhook_is_created_once_and_shown_without_its_secrets(url: str, topic: str) -> None:
    with Receiver() as receiver:
        made = created(url, "once", [topic], receiver.url, headers={"authorization": "Bearer 1234567"})
        assert made["secret"] is None
        assert create(url, "once", [topic], receiver.url).status == 409
        found = call("GET", f"{url}/api/webhooks/once")
        assert found.json["webhook"] == made["webhook"]
        assert found.json["webhook"]["group"] == "webhook-once"
        for body in (found.body, call("GET", f"{url}/api/webhooks").body, json.dumps(made).encode()):
            assert SECRET.encode() not in body
            assert SECRET.removeprefix("whsec_").encode() not in body
            assert b"1234567" not in body
        assert found.json["webhook"]["headers"] == {"authorization": "…"}
        listed = call("GET", f"{url}/api/webhooks").json["webhooks"]
        assert "once" in [each["webhook"]["name"] for each in listed]


def test_a_secret_that_is_made_up_is_told_once(url: str, topic: str, http_broker: Broker) -> None:
    with Receiver() as receiver:
        made = created(url, "made-up", [topic], receiver.url, paused=True)
        call("DELETE", f"{url}/api/webhooks/made-up")
        body = {"name": "made-up", "topics": [topic], "url": receiver.url, "from": "earliest"}
        made = call("POST", f"{url}/api/webhooks", body).json
        receiver.secret = made["secret"]
        write(http_broker.bootstrap_servers, topic, [("k", "1")])
        # The receiver checks the signature.
        until(lambda: receiver.taken, "the record")
        assert made["secret"].encode() not in call("GET", f"{url}/api/webhooks/made-up").body


def test_secrets_are_changed_with_both_signing_for_a_while(url: str, topic: str, http_broker: Broker) -> None:
    new = new_secret()
    with Receiver() as receiver:
        created(url, "rotated", [topic], receiver.url)
        replaced = {"topics": [topic], "url": receiver.url, "secret": [new, SECRET], "from": "earliest"}
        answer = call("PUT", f"{url}/api/webhooks/rotated", replaced)
        assert answer.status == 200, answer.body
        assert len(answer.json["secrets"]) == 2
        write(http_broker.bootstrap_servers, topic, [("k", "1")])
        until(lambda: receiver.taken, "a record, signed so that the old secret fits")
        receiver.secret = new
        write(http_broker.bootstrap_servers, topic, [("k", "2")])
        until(lambda: len(receiver.taken) == 2, "a record, signed so that the new secret fits")
        assert len(receiver.taken[1].headers["webhook-signature"].split(" ")) == 2


def test_a_replacement_takes_effect_and_goes_on_where_the_old_one_was(
    url: str, new_topic: Callable[..., str], http_broker: Broker
) -> None:
    topic, other = new_topic(), new_topic()
    with Receiver() as old, Receiver() as new:
        created(url, "moved", [topic], old.url)
        write(http_broker.bootstrap_servers, topic, [("k", "1"), ("k", "2")])
        wait_for_lag(url, "moved")
        write(http_broker.bootstrap_servers, other, [("k", "0")])
        # Of a topic that is added, "latest" is now.
        body = {"topics": [topic, other], "url": new.url, "from": "latest"}
        assert call("PUT", f"{url}/api/webhooks/moved", body).status == 200
        write(http_broker.bootstrap_servers, topic, [("k", "3")])
        write(http_broker.bootstrap_servers, other, [("k", "4")])
        until(lambda: sorted(new.values) == [3, 4], "the new receiver has the new records")
        assert old.values == [1, 2]
        assert call("PUT", f"{url}/api/webhooks/moved", body | {"name": "another"}).status == 422


def test_a_webhook_that_is_made_again_knows_nothing_of_the_former_one(
    url: str, topic: str, http_broker: Broker
) -> None:
    async def behave(received: Received, request: web.Request) -> int:
        if received.values == [3]:
            await asyncio.Event().wait()
        return 200

    with Receiver(behave=behave) as former, Receiver() as receiver:
        created(url, "twice", [topic], former.url, timeout_ms=1000)
        write(http_broker.bootstrap_servers, topic, [("k", "1"), ("k", "2"), ("k", "3")])
        wait_for_lag(url, "twice", 1)
        # It waits for the answer to the third, and then leaves its group.
        assert call("DELETE", f"{url}/api/webhooks/twice").status == 204
        created(url, "twice", [topic], receiver.url)
        until(lambda: receiver.values == [1, 2, 3], "all records once more")


def test_a_deleted_webhook_leaves_no_group_behind(url: str, topic: str, http_broker: Broker) -> None:
    with Receiver() as receiver:
        created(url, "deleted", [topic], receiver.url)
        write(http_broker.bootstrap_servers, topic, [("k", "1")])
        wait_for_lag(url, "deleted")
        assert call("DELETE", f"{url}/api/webhooks/deleted").status == 204
        assert call("DELETE", f"{url}/api/webhooks/deleted").status == 404
        admin = AdminClient({"bootstrap.servers": http_broker.bootstrap_servers})

        def groups() -> set[str]:
            return {each.group_id for each in admin.list_consumer_groups().result(10).valid}

        until(lambda: "webhook-deleted" not in groups(), "the group is deleted")
        # Made again, it is a new one: it begins anew.
        created(url, "deleted", [topic], receiver.url)
        until(lambda: receiver.values == [1, 1], "the record comes again")


@pytest.mark.parametrize(
    ("fields", "status_code"),
    [
        ({"name": "a b"}, 422),
        ({"topics": ["no-such-topic"]}, 404),
        ({"url": "ftp://example.org"}, 422),
        ({"url": "http://10.0.0.1/"}, 422),
        ({"batch": "many"}, 422),
        ({"surprise": 1}, 422),
        ({"secret": "weak"}, 422),
    ],
)
def test_what_makes_no_sense_is_refused(
    url: str, topic: str, fields: dict[str, Any], status_code: int
) -> None:
    target = fields.pop("url", "http://127.0.0.1:1/")
    answer = create(url, fields.pop("name", "refused"), fields.pop("topics", [topic]), target, **fields)
    assert answer.status == status_code, answer.body
    assert answer.json["message"]
    assert call("GET", f"{url}/api/webhooks/refused").status == 404


def test_what_is_no_json_is_refused(url: str) -> None:
    for body in (b"", b"{", b"[]", b"\xff", b'{"name": 1}'):
        assert call("POST", f"{url}/api/webhooks", body, "application/json").status == 422
    assert call("POST", f"{url}/api/webhooks", b" " * (2 << 20), "application/json").status == 413


@pytest.mark.parametrize("action", ["pause", "resume", "test"])
def test_nothing_is_done_to_a_webhook_that_is_not_there(url: str, action: str) -> None:
    assert call("POST", f"{url}/api/webhooks/nowhere/{action}").status == 404


def test_a_receiver_is_tried_with_a_sample(url: str, topic: str) -> None:
    answers = [200]

    async def behave(received: Received, request: web.Request) -> int:
        return answers[0]

    with Receiver(behave=behave) as receiver:
        created(url, "tried", [topic], receiver.url, paused=True)
        told = call("POST", f"{url}/api/webhooks/tried/test").json
        assert (told["acknowledged"], told["status"]) == (True, 200)
        (record,) = receiver.calls[0].records
        assert (record["offset"], record["value"]) == (-1, {"test": True, "webhook": "tried"})
        answers[0] = 500
        told = call("POST", f"{url}/api/webhooks/tried/test").json
        assert (told["acknowledged"], told["error"]) == (False, "status 500: as told")
        assert status(url, "tried")["calls_failed"] == 0


def test_the_command_line_does_it_all(culver: Culver, topic: str, http_broker: Broker, url: str) -> None:
    with Receiver() as receiver:
        printed = culver(
            *("create", "by-hand", "--topic", topic, "--url", receiver.url, "--from", "earliest"),
            *("--tries", "3", "--batch", "5", "-H", "X-Tenant=a"),
        )
        assert printed.startswith("created by-hand\nsecret  whsec_")
        receiver.secret = printed.split()[-1]
        write(http_broker.bootstrap_servers, topic, [("k", "1")])
        (received,) = until(lambda: receiver.taken, "the record")
        assert received.headers["x-tenant"] == "a"
        assert "by-hand: status 200 after" in culver("test", "by-hand")
        assert culver("pause", "by-hand") == "by-hand: paused\n"
        assert "paused" in next(line for line in culver("list").splitlines() if line.startswith("by-hand "))
        assert culver("resume", "by-hand") == "by-hand: running\n"
        wait_for_lag(url, "by-hand")
        described = culver("describe", "by-hand")
        assert "tries=3 first_ms=1000 max_ms=300000" in described
        assert receiver.secret not in described
        assert json.loads(culver("describe", "by-hand", "-o", "json"))["webhook"]["batch"] == 5
        assert "there is a webhook by-hand already" in culver(
            "create", "by-hand", "--topic", topic, "--url", receiver.url, code=ExitCode.FAILED
        )
        assert "--yes" in culver("delete", "by-hand", code=ExitCode.USAGE)
        assert culver("delete", "by-hand", "--yes") == "by-hand: deleted\n"
        assert "there is no webhook by-hand" in culver("describe", "by-hand", code=ExitCode.NOT_FOUND)


def test_a_gateway_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["webhook", "list", "--http-url", "http://127.0.0.1:1"]) == ExitCode.UNREACHABLE
    assert "cannot be reached" in capsys.readouterr().err
    assert run(["webhook", "list", "--http-url", "127.0.0.1"]) == ExitCode.USAGE
