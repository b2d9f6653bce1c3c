"""`culver log`: look at log files offline, and say in words what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from culver.cli.failure import ExitCode, Failure
from culver.cli.output import print_json, print_json_line, progress
from culver.cli.record_format import iso_time
from culver.cli.session import Session, output_option
from culver.cli.state_records import Marker, marker_of, state_record
from culver.errors import KafkaError
from culver.filesystem import OsFileSystem
from culver.log import names
from culver.log.inspect import BatchVerdict, Finding, inspect_partition, inspect_segment
from culver.protocol.compression import Codec
from culver.protocol.records import LOG_APPEND_TIME, BatchHeader, Record, decode_records

_LONGEST_SHOWN_CHARACTERS = 120
_MARKER_BYTES_MAX = 1 << 20
_PATH = click.Path(path_type=Path)


@click.group()
def log() -> None:
    """Look at the log files of a broker, without the broker.

    A PATH is a segment file (.log), a partition's directory, or a whole data directory. Nothing is changed.
    While a broker runs on the files, what it is just writing may look cut off.
    """


# --- dump ---


@log.command("dump")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=_PATH)
@click.option(
    "-r", "--records", "show_records", is_flag=True, help="The records too, not only their batches."
)
@click.option(
    "--from", "first_offset", type=int, default=0, metavar="OFFSET", help="Leave out what is before."
)
@click.option("-n", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N batches.")
@output_option
@click.pass_obj
def dump(
    session: Session, paths: tuple[Path, ...], show_records: bool, first_offset: int, count: int | None
) -> None:
    """Print the batches of log files, sound or not; with -o json one object per line.

    Of transaction markers it says how the transaction ended. With --records, the records of __consumer_offsets and
    __transaction_state are decoded.
    """
    shown = damaged = 0
    for segment in (segment for path in paths for segment in _segments(path)):
        topic, _ = names.parse_partition_directory(segment.absolute().parent.name) or ("", 0)
        if not session.json:
            print(f"{segment}  ({segment.stat().st_size} bytes)")
        for verdict in _opened(segment, show_records):
            if verdict.header is not None and verdict.is_sound and verdict.header.last_offset < first_offset:
                continue
            if count is not None and shown == count:
                break
            shown += 1
            damaged += not verdict.is_sound
            marker = _marker(segment, verdict)
            if session.json:
                print_json_line({"file": str(segment), **_as_json(verdict, marker, topic, show_records)})
            else:
                print("\n".join(_lines(verdict, marker, topic, show_records)))
    if damaged:
        raise Failure(
            f"{damaged} of {shown} batches are damaged",
            "`culver log verify` sums it up",
            code=ExitCode.CORRUPT,
        )


def _opened(segment: Path, decode: bool) -> Iterator[BatchVerdict]:
    try:
        yield from inspect_segment(OsFileSystem(), str(segment), decode=decode)
    except OSError as error:
        raise Failure(f"cannot read {segment}: {error.strerror}") from None


def _marker(segment: Path, verdict: BatchVerdict) -> Marker | None:
    """What a control batch says, whether or not the records were asked for."""
    if verdict.header is None or not verdict.header.is_control or not verdict.crc_ok:
        return None
    records = verdict.records
    if records is None:
        with segment.open("rb") as file:
            file.seek(verdict.position)
            try:
                records = decode_records(file.read(verdict.size_bytes), _MARKER_BYTES_MAX)
            except KafkaError:
                return None
    return marker_of(records[0]) if records else None


def _lines(verdict: BatchVerdict, marker: Marker | None, topic: str, show_records: bool) -> Iterator[str]:
    header = verdict.header
    if header is None or header.magic != 2:
        yield f"  at {verdict.position}: {verdict.size_bytes} bytes that are no batch"
    else:
        yield (
            f"  at {verdict.position}: offsets {header.base_offset} to {header.last_offset}, "
            f"{header.record_count} records, {verdict.size_bytes} bytes, "
            f"{', '.join(_properties(header, marker))}"
        )
    yield from (f"      DAMAGED: {text}" for text in verdict.faults)
    yield from (f"      note: {text}" for text in verdict.notes)
    for record in (verdict.records or []) if show_records else []:
        yield f"      {record.offset}  {iso_time(record.timestamp)}  {_content(record, marker, topic)}"


def _content(record: Record, marker: Marker | None, topic: str) -> str:
    if marker is not None:
        return _told(marker)
    state = state_record(topic, record)
    if state is not None:
        return f"{state.kind} {json.dumps(state.key)} = {json.dumps(state.value)}"
    headers = "".join(f"  {name}={_shown(value)}" for name, value in record.headers)
    return f"{_shown(record.key)} = {_shown(record.value)}{headers}"


def _told(marker: Marker) -> str:
    if marker.coordinator_epoch is None:
        return marker.outcome
    return f"{marker.outcome} (coordinator epoch {marker.coordinator_epoch})"


def _properties(header: BatchHeader, marker: Marker | None) -> Iterator[str]:
    yield _codec(header)
    yield iso_time(header.max_timestamp) + (
        " (append time)" if header.timestamp_type == LOG_APPEND_TIME else ""
    )
    yield f"leader epoch {header.partition_leader_epoch}"
    if header.producer_id >= 0:
        yield f"producer {header.producer_id} epoch {header.producer_epoch} sequence {header.base_sequence}"
    if header.is_transactional:
        yield "transactional"
    if header.is_control:
        yield "control" if marker is None else _told(marker)


def _codec(header: BatchHeader) -> str:
    known = header.compression in set(Codec)
    return Codec(header.compression).name.lower() if known else f"codec {header.compression}"


def _shown(data: Any) -> str:
    if data is None:
        return "null"
    text = repr(bytes(data).decode(errors="backslashreplace"))
    return (
        text
        if len(text) <= _LONGEST_SHOWN_CHARACTERS
        else f"{text[:_LONGEST_SHOWN_CHARACTERS]}... ({len(data)} bytes)"
    )


def _as_json(verdict: BatchVerdict, marker: Marker | None, topic: str, show_records: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"position": verdict.position, "size_bytes": verdict.size_bytes}
    header = verdict.header
    if header is not None:
        fields |= {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "record_count": header.record_count,
            "compression": _codec(header),
            "max_timestamp": header.max_timestamp,
            "timestamp_type": "LogAppendTime" if header.timestamp_type == LOG_APPEND_TIME else "CreateTime",
            "leader_epoch": header.partition_leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "transactional": header.is_transactional,
            "control": header.is_control,
        }
    if marker is not None:
        fields |= {"marker": marker.outcome, "coordinator_epoch": marker.coordinator_epoch}
    fields |= {"crc_ok": verdict.crc_ok, "faults": verdict.faults, "notes": verdict.notes}
    if show_records:
        fields["records"] = [
            _record_json(record, None if marker is not None else topic) for record in verdict.records or []
        ]
    return fields


def _record_json(record: Record, topic: str | None) -> dict[str, Any]:
    def text(data: Any) -> str | None:
        return None if data is None else bytes(data).decode(errors="backslashreplace")

    fields = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": text(record.key),
        "value": text(record.value),
        "headers": [[name, text(value)] for name, value in record.headers],
    }
    state = None if topic is None else state_record(topic, record)
    return fields if state is None else fields | {"decoded": state._asdict()}


# --- verify ---


@dataclass(slots=True)
class Report:
    """What the verification of one partition or file found."""

    path: Path
    segments: int
    size_bytes: int
    faults: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)


@log.command("verify")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=_PATH)
@click.option("--quick", is_flag=True, help="Headers and checksums only: do not unpack the records.")
@output_option
@click.pass_obj
def verify(session: Session, paths: tuple[Path, ...], quick: bool) -> None:
    """Check every batch, index and snapshot; explain what is damaged and what that means.

    Exit code 5 when anything is.
    """
    targets = [target for path in paths for target in _partitions(path)]
    sizes = {target: sum(segment.stat().st_size for segment in _segments(target)) for target in targets}
    reports = []
    with progress("checking", sum(sizes.values()), unit_bytes=True) as advance:
        for target in targets:
            reports.append(_report(target, sizes[target], decode=not quick))
            advance(sizes[target])
    damaged = [report for report in reports if report.faults]
    if session.json:
        print_json([_report_json(report) for report in reports])
    else:
        for report in reports:
            for finding in report.faults + report.notes:
                kind = "DAMAGED" if finding.is_fault else "note"
                print(f"{finding.path} at {finding.position}: {kind}: {finding.text}")
        segments = sum(report.segments for report in reports)
        total = sum(report.size_bytes for report in reports)
        print(f"{len(reports)} partitions, {segments} segments, {total} bytes: {len(damaged)} with damage")
    if damaged:
        raise Failure(
            f"damage in {', '.join(str(report.path) for report in damaged)}",
            "A write that was cut off, at the end of the last segment, is what a crash leaves: the broker removes\n"
            "  it at its next start. Indexes and snapshots are rebuilt. Any other damage is to records: the broker\n"
            "  does not serve that partition; restore its directory from a copy.",
            code=ExitCode.CORRUPT,
        )


def _report(target: Path, size_bytes: int, *, decode: bool) -> Report:
    report = Report(target, len(_segments(target)), size_bytes)
    try:
        for finding in _findings(target, decode):
            (report.faults if finding.is_fault else report.notes).append(finding)
    except OSError as error:
        raise Failure(f"cannot read {error.filename or target}: {error.strerror}") from None
    return report


def _findings(target: Path, decode: bool) -> Iterator[Finding]:
    if target.is_dir():
        yield from inspect_partition(OsFileSystem(), str(target), decode=decode)
        return
    for verdict in inspect_segment(OsFileSystem(), str(target), decode=decode):
        yield from (Finding(str(target), verdict.position, text, True) for text in verdict.faults)
        yield from (Finding(str(target), verdict.position, text, False) for text in verdict.notes)


def _report_json(report: Report) -> dict[str, Any]:
    def as_json(finding: Finding) -> dict[str, Any]:
        return {"file": finding.path, "position": finding.position, "text": finding.text}

    return {
        "path": str(report.path),
        "sound": not report.faults,
        "segments": report.segments,
        "size_bytes": report.size_bytes,
        "faults": [as_json(finding) for finding in report.faults],
        "notes": [as_json(finding) for finding in report.notes],
    }


# --- paths ---


def _segments(path: Path) -> list[Path]:
    """The segment files that a path stands for, in order."""
    _require(path)
    if path.is_file():
        return [path]
    own = sorted(each for each in path.iterdir() if names.offset_of(each.name, names.LOG) is not None)
    return own or [segment for partition in _partitions(path) for segment in _segments(partition)]


def _partitions(path: Path) -> list[Path]:
    """The partition directories that a path stands for; a single file stands for itself."""
    _require(path)
    if path.is_file() or any(names.offset_of(each.name, names.LOG) is not None for each in path.iterdir()):
        return [path]
    found = sorted(
        each
        for each in path.iterdir()
        if each.is_dir() and names.parse_partition_directory(each.name) and any(each.glob(f"*{names.LOG}"))
    )
    if not found:
        raise Failure(f"{path} holds no segment files (.log)", code=ExitCode.NOT_FOUND)
    return found


def _require(path: Path) -> None:
    if not path.exists():
        raise Failure(f"{path} does not exist", code=ExitCode.NOT_FOUND)
