"""docs/compatibility.md: what is compared with Kafka, and the table of the differences that are left.

`python -m differential.document`, run in tests/interop with the repository and tests/ on the path, writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from anchors.kafka import VERSION

from culver.protocol.apis import APIS
from differential.compare import Difference
from differential.differences import DIFFERENCES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "compatibility.md"

INTRODUCTION = f"""\
# Compatibility with Apache Kafka

Culver speaks Kafka's wire protocol. What it answers is compared with Apache Kafka {VERSION}: `make interop` plays
the same scripts of requests, good and bad, to both over raw sockets and compares the answers field by field:
error codes, offsets, defaults, topic configurations, group states, whether a message is given, whether the
connection is closed. Ids, addresses and times, which two brokers cannot have in common, are set aside.

The scripts are in `tests/interop/differential`. Every difference that is left is in the second table below; a new one
fails the suite, and so does one that is listed and no longer there. This page is made from the same tables
and checked by `make test`.

## APIs

| key | API | versions |
|---|---|---|
"""

DIFFERENCES_HEADING = """
Produce 0 to 2 are advertised, as Kafka does for the sake of old librdkafka clients, and refused if used.

## Differences

In each column `*` stands for anything.

| script | step | field | Kafka | Culver | why |
|---|---|---|---|---|---|
"""


def page() -> str:
    apis = "".join(
        f"| {api.key} | {api.name} | {api.min_version} to {api.max_version} |\n" for api in APIS.values()
    )
    rows = "".join(
        "| " + " | ".join(_cell(text) for text in row[:-1]) + f" | {row[-1]} |\n"
        for row in _rows(DIFFERENCES)
    )
    return INTRODUCTION + apis + DIFFERENCES_HEADING + rows


def _rows(differences: Iterable[Difference]) -> list[tuple[str, ...]]:
    """One row for all fields that differ in the same way for the same reason."""
    fields: dict[tuple[str, ...], list[str]] = {}
    for one in differences:
        key = (one.script, one.step, one.kafka, one.culver, one.reason)
        fields.setdefault(key, []).append(one.field)
    return [
        (script, step, ", ".join(names), kafka, culver, reason)
        for (script, step, kafka, culver, reason), names in fields.items()
    ]


def _cell(text: str) -> str:
    return f"`{text}`" if text.strip() else "(empty)"


if __name__ == "__main__":
    PAGE.write_text(page())
