"""What was measured, against what, with which target: rows, and their rendering as Markdown and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """One quantity on both brokers; the target is a bound on Culver's value divided by Kafka's."""

    group: str
    label: str
    unit: str
    culver: float | None
    kafka: float | None
    higher_is_better: bool
    target: float | None = None
    skipped: str = ""

    @property
    def ratio(self) -> float | None:
        if self.culver is None or not self.kafka:
            return None
        return self.culver / self.kafka

    @property
    def met(self) -> bool | None:
        return _within(self.ratio, self.target, self.higher_is_better)


@dataclass(frozen=True)
class Distance:
    """Culver's value beside the physical limit measured in the same run; the target is the least fraction."""

    label: str
    unit: str
    culver: float
    limit_name: str
    limit: float
    target: float | None = None
    higher_is_better: bool = True

    @property
    def ratio(self) -> float:
        return self.culver / self.limit

    @property
    def met(self) -> bool | None:
        return _within(self.ratio, self.target, self.higher_is_better)


@dataclass(frozen=True)
class Growth:
    """The same cost at two sizes on one broker; the target is the most that it may grow by, as a factor."""

    broker: str
    label: str
    unit: str
    small: float
    large: float
    target: float | None = None

    @property
    def ratio(self) -> float:
        return self.large / self.small

    @property
    def met(self) -> bool | None:
        return _within(self.ratio, self.target, higher_is_better=False)


def _within(ratio: float | None, target: float | None, higher_is_better: bool) -> bool | None:
    if ratio is None or target is None:
        return None
    return ratio >= target if higher_is_better else ratio <= target


@dataclass
class Report:
    """All rows of one run and the settings they were measured with."""

    settings: dict[str, str] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    distances: list[Distance] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def culver_value(self, group: str, label: str) -> float | None:
        for row in self.comparisons:
            if (row.group, row.label) == (group, label):
                return row.culver
        return None

    def markdown(self) -> str:
        parts = ["\n".join(f"- {name}: {value}" for name, value in self.settings.items())]
        if self.comparisons:
            parts.append("\n".join(_comparison_lines(self.comparisons)))
        if self.distances:
            parts.append("Distance to the limits of this machine, measured in the same run:")
            parts.append("\n".join(_distance_lines(self.distances)))
        if self.growths:
            parts.append("Growth, the same cost small and large:")
            parts.append("\n".join(_growth_lines(self.growths)))
        reasons = dict.fromkeys(f"Left out: {row.skipped}." for row in self.comparisons if row.skipped)
        parts += [*reasons, *self.notes]
        return "\n\n".join(parts) + "\n"

    def as_json(self) -> dict[str, Any]:
        rows: list[Comparison | Distance | Growth] = [*self.comparisons, *self.distances, *self.growths]
        return {
            "settings": self.settings,
            "rows": [
                {"kind": type(row).__name__.lower(), **asdict(row), "ratio": row.ratio, "met": row.met}
                for row in rows
            ],
            "notes": self.notes,
        }

    def missed(self) -> list[str]:
        """The labels of the rows that have a target and do not meet it."""
        missed = [f"{row.group}: {row.label}" for row in self.comparisons if row.met is False]
        missed += [f"{row.label} to {row.limit_name}" for row in self.distances if row.met is False]
        return missed + [f"{row.broker}: {row.label}" for row in self.growths if row.met is False]


def _comparison_lines(rows: list[Comparison]) -> list[str]:
    cells = [["", "unit", "Culver", "Kafka", "ratio", "target", "met"]]
    group = ""
    order = list(dict.fromkeys(row.group for row in rows))
    for row in sorted(rows, key=lambda row: order.index(row.group)):
        if row.group != group:
            group = row.group
            cells.append([f"**{group}**"] + [""] * 6)
        if row.skipped:
            cells.append([row.label, row.unit, "left out", "", "", "", ""])
            continue
        values = [number(row.culver), number(row.kafka), _factor(row.ratio)]
        cells.append(
            [row.label, row.unit, *values, _bound(row.target, row.higher_is_better), _verdict(row.met)]
        )
    return _aligned(cells)


def _distance_lines(rows: list[Distance]) -> list[str]:
    cells = [["", "unit", "Culver", "limit", "", "of the limit", "target", "met"]]
    for row in rows:
        target = _bound(row.target, row.higher_is_better)
        values = [number(row.culver), row.limit_name, number(row.limit), _factor(row.ratio)]
        cells.append([row.label, row.unit, *values, target, _verdict(row.met)])
    return _aligned(cells)


def _growth_lines(rows: list[Growth]) -> list[str]:
    cells = [["", "broker", "unit", "small", "large", "factor", "target", "met"]]
    for row in rows:
        values = [number(row.small), number(row.large), _factor(row.ratio)]
        cells.append([row.label, row.broker, row.unit, *values, _bound(row.target, False), _verdict(row.met)])
    return _aligned(cells)


def number(value: float | None) -> str:
    """Three figures, and no more decimals than they need."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _factor(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _bound(target: float | None, higher_is_better: bool) -> str:
    if target is None:
        return ""
    return f"{'>=' if higher_is_better else '<='} {target:g}x"


def _verdict(met: bool | None) -> str:
    return {True: "yes", False: "NO", None: ""}[met]


def _aligned(cells: list[list[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |"
        for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return lines
