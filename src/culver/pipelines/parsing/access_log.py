"""Parse access logs of web servers: the common and the combined format."""

from __future__ import annotations

import re
from typing import Any

from culver.pipelines.parsing.row import Row, Unparsable, fields_json
from culver.pipelines.parsing.timestamps import clf_time_us

_QUOTED = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_LINE = re.compile(
    rf"(\S+) (\S+) (\S+(?: \S+)?) \[([^\]]{{1,64}})\] {_QUOTED} (\d{{3}}) (\d+|-)(?: {_QUOTED} {_QUOTED})?(.*)",
    re.DOTALL | re.ASCII,
)


def parse_access(line: str) -> Row:
    """203.0.113.7 - frank [15/Nov/2026:16:00:00 +0000] "GET /x HTTP/1.1" 200 2326 ... Raises Unparsable."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise Unparsable("no access log")
    client, identity, user, time, request, status_text, size, referrer, agent, rest = match.groups()
    status = int(status_text)
    fields: dict[str, Any] = {"client": client, "status": status}
    method, _, remainder = request.partition(" ")
    path, _, protocol = remainder.rpartition(" ")
    if path and protocol.startswith("HTTP/"):
        fields |= {"method": method, "path": path, "protocol": protocol}
    else:
        fields["request"] = request
    if size != "-":
        fields["bytes"] = int(size) if len(size) < 19 else size
    extra = (
        ("identity", identity),
        ("user", user),
        ("referrer", referrer),
        ("user_agent", agent),
        ("rest", (rest or "").strip()),
    )
    fields |= {name: value for name, value in extra if value and value != "-"}
    level = "ERROR" if status >= 500 else "WARN" if status >= 400 else "INFO"
    return Row(clf_time_us(time), level, None, None, f"{request} {status}", fields_json(fields), "access")
