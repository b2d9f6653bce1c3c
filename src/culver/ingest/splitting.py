"""From bytes as they arrive to whole lines."""

from __future__ import annotations


class LineSplitter:
    """Cuts at newlines. What is longer than a record may be is cut into pieces rather than dropped."""

    def __init__(self, line_max_bytes: int) -> None:
        assert line_max_bytes > 0
        self._max_bytes = line_max_bytes
        self._rest = bytearray()

    @property
    def rest_bytes(self) -> int:
        """What has arrived of a line whose end has not."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[tuple[bytes, int]]:
        """The lines that are whole now, each with the bytes that it took, its newline among them."""
        rest = self._rest
        rest += data
        lines: list[tuple[bytes, int]] = []
        start = 0
        while True:
            end = rest.find(b"\n", start)
            stop = len(rest) if end < 0 else end
            while stop - start > self._max_bytes:
                lines.append((bytes(rest[start : start + self._max_bytes]), self._max_bytes))
                start += self._max_bytes
            if end < 0:
                break
            line = bytes(rest[start:end])
            lines.append((line[:-1] if line.endswith(b"\r") else line, end + 1 - start))
            start = end + 1
        del rest[:start]
        return lines

    def finish(self) -> list[tuple[bytes, int]]:
        """What is left when nothing more will come: a line without its end."""
        rest = bytes(self._rest)
        self._rest.clear()
        return [(rest, len(rest))] if rest else []
