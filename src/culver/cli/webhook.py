"""`culver webhook`: create, look at, pause, resume, test and delete webhooks, through the HTTP API of a gateway."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import click

from culver.cli.confirm import confirm, yes_option
from culver.cli.failure import ExitCode, Failure
from culver.cli.output import duration, note, print_json, print_table
from culver.cli.session import Session, client_options, name_value

DEFAULT_HTTP_URL = "http://127.0.0.1:8080"


class GatewayApi:
    """Asks a gateway, one request at a time. What it refuses ends the command with its own words."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = urlsplit(url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise click.BadParameter(f"{url!r} is not http://HOST:PORT", param_hint="'--http-url'")
        self._timeout_s = timeout_s

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer's JSON; None when it has no body."""
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        try:
            connection = kind(self._url.hostname or "", self._url.port, timeout=self._timeout_s)
            try:
                content = None if body is None else json.dumps(body).encode()
                headers = {} if content is None else {"content-type": "application/json"}
                connection.request(method, self._url.path.rstrip("/") + path, content, headers)
                answer = connection.getresponse()
                text = answer.read()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Failure(
                f"the gateway at {self._url.geturl()} cannot be reached: {error}",
                "`culver serve` runs one at http://127.0.0.1:8080; --http-url says where another is",
                code=ExitCode.UNREACHABLE,
            ) from None
        if answer.status >= 400:
            raise _refused(answer.status, text)
        return json.loads(text) if text else None


def _refused(status: int, text: bytes) -> Failure:
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the gateway answered with status {status}"
    codes = {404: ExitCode.NOT_FOUND, 503: ExitCode.UNREACHABLE, 504: ExitCode.UNREACHABLE}
    return Failure(str(message), code=codes.get(status, ExitCode.FAILED))


def http_options(command: Any) -> Any:
    """The options of commands that talk to a gateway."""
    where = click.option(
        "--http-url",
        metavar="URL",
        default=lambda: os.environ.get("CULVER_HTTP_URL") or DEFAULT_HTTP_URL,
        help=f"The gateway.  [default: $CULVER_HTTP_URL or {DEFAULT_HTTP_URL}]",
    )
    return where(client_options(command))


def _path(name: str, action: str = "") -> str:
    return f"/api/webhooks/{quote(name, safe='')}{action}"


@click.group()
def webhook() -> None:
    """List, create, describe, pause, resume, test and delete webhooks."""


@webhook.command("list")
@http_options
@click.pass_obj
def list_webhooks(session: Session, http_url: str) -> None:
    """List the webhooks of the cluster, and how they are doing."""
    found = GatewayApi(http_url, session.timeout_s).ask("GET", "/api/webhooks")["webhooks"]
    if session.json:
        print_json(found)
        return
    if not found:
        note("no webhooks")
        return
    columns = ["name", "topics", "url", "state", "lag", "in_flight", "waiting", "last_error"]
    print_table(columns, [each["webhook"] | each["status"] | {"state": _state(each)} for each in found])


def _state(found: Mapping[str, Any]) -> str:
    if found["webhook"]["paused"]:
        return "paused"
    return "receiver down" if found["status"]["receiver_down"] else "running"


@webhook.command("create")
@click.argument("name")
@click.option("--topic", "topics", multiple=True, required=True, help="A topic to send; repeatable.")
@click.option("--url", required=True, help="Where to send it: http:// or https://.")
@click.option(
    "--secret", "secrets", multiple=True, help="whsec_..., to sign with; repeatable.  [default: a new one]"
)
@click.option("--group", help="The group that keeps the offsets.  [default: webhook-NAME]")
@click.option("--from", "start", type=click.Choice(["earliest", "latest"]), help="[default: latest]")
@click.option("--batch", type=int, help="Records in one call at most.  [default: 1]")
@click.option("--concurrency", type=int, help="Calls at once.  [default: 8]")
@click.option("--timeout-ms", type=int, help="How long a call may take.  [default: 15000]")
@click.option("--tries", type=int, help="Before a record is a dead letter; 0: for ever.  [default: 15]")
@click.option("--first-pause-ms", type=int, help="Longest pause after a first failure.  [default: 1000]")
@click.option("--max-pause-ms", type=int, help="Longest pause of all.  [default: 300000]")
@click.option("--dead-letter-topic", help="[default: webhook-NAME-dlq]")
@click.option(
    "--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="Sent along; repeatable."
)
@click.option("--format", "form", type=click.Choice(["json", "raw"]), help="[default: json]")
@click.option("--paused", is_flag=True, help="Do not send yet.")
@http_options
@click.pass_obj
def create(session: Session, /, http_url: str, **given: Any) -> None:
    """Create a webhook: records of topics are posted to a URL.

    For instance: culver webhook create billing --topic orders --url https://example.org/hooks/orders
    """
    secrets, headers = given["secrets"], dict(name_value(each, "'--header'") for each in given["headers"])
    wanted = {
        "name": given["name"],
        "topics": list(given["topics"]),
        "url": given["url"],
        "secret": list(secrets) or None,
        "group": given["group"],
        "from": given["start"],
        "batch": given["batch"],
        "concurrency": given["concurrency"],
        "timeout_ms": given["timeout_ms"],
        "retry": _some(
            {"tries": given["tries"], "first_ms": given["first_pause_ms"], "max_ms": given["max_pause_ms"]}
        )
        or None,
        "dead_letter_topic": given["dead_letter_topic"],
        "headers": headers or None,
        "format": given["form"],
        "paused": given["paused"] or None,
    }
    made = GatewayApi(http_url, session.timeout_s).ask("POST", "/api/webhooks", _some(wanted))
    if session.json:
        print_json(made)
        return
    print(f"created {made['webhook']['name']}")
    if made["secret"]:
        print(f"secret  {made['secret']}")
        note("the receiver checks signatures with this secret; it is not shown again")


def _some(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given: the gateway knows the defaults."""
    return {name: value for name, value in fields.items() if value is not None}


@webhook.command("describe")
@click.argument("name")
@http_options
@click.pass_obj
def describe(session: Session, http_url: str, name: str) -> None:
    """Show a webhook: what it sends where, and how that is going."""
    found = GatewayApi(http_url, session.timeout_s).ask("GET", _path(name))
    if session.json:
        print_json(found)
        return
    rows = found["webhook"] | {"state": _state(found)} | found["status"]
    rows["retry"] = " ".join(f"{key}={value}" for key, value in rows["retry"].items())
    rows["headers"] = ",".join(rows["headers"]) or None
    now_ms = time.time() * 1000
    for field in ("created_ms", "changed_ms", "last_error_at_ms", "last_success_at_ms"):
        at_ms = rows.pop(field)
        ago = None if at_ms is None else f"{duration(max(0.0, now_ms - at_ms) / 1000)} ago"
        rows[field.removesuffix("_ms").removesuffix("_at")] = ago
    at_ms = rows.pop("next_retry_at_ms")
    rows["next_retry"] = None if at_ms is None else f"in {duration(max(0.0, at_ms - now_ms) / 1000)}"
    print_table(["field", "value"], [{"field": field, "value": value} for field, value in rows.items()])


@webhook.command("pause")
@click.argument("name")
@http_options
@click.pass_obj
def pause(session: Session, http_url: str, name: str) -> None:
    """Send nothing more until it is resumed; its lag grows meanwhile."""
    _act(session, http_url, name, "pause")


@webhook.command("resume")
@click.argument("name")
@http_options
@click.pass_obj
def resume(session: Session, http_url: str, name: str) -> None:
    """Send again, from where it was paused."""
    _act(session, http_url, name, "resume")


def _act(session: Session, http_url: str, name: str, action: str) -> None:
    changed = GatewayApi(http_url, session.timeout_s).ask("POST", _path(name, f"/{action}"))
    if session.json:
        print_json(changed)
    else:
        print(f"{name}: {'paused' if changed['paused'] else 'running'}")


@webhook.command("test")
@click.argument("name")
@http_options
@click.pass_obj
def test(session: Session, http_url: str, name: str) -> None:
    """Send a sample record to the receiver, once, and say what came of it."""
    tested = GatewayApi(http_url, session.timeout_s).ask("POST", _path(name, "/test"))
    if session.json:
        print_json(tested)
    if not tested["acknowledged"]:
        raise Failure(f"{name}: the receiver did not take it: {tested['error']}")
    if not session.json:
        print(f"{name}: status {tested['status']} after {tested['duration_ms']} ms")


@webhook.command("delete")
@click.argument("name")
@yes_option
@http_options
@click.pass_obj
def delete(session: Session, http_url: str, name: str, yes: bool) -> None:
    """Delete a webhook, and its offsets unless its group was named by hand."""
    api = GatewayApi(http_url, session.timeout_s)
    api.ask("GET", _path(name))
    confirm(f"Delete the webhook {name}?", yes)
    api.ask("DELETE", _path(name))
    if session.json:
        print_json({"name": name, "deleted": True})
    else:
        print(f"{name}: deleted")
