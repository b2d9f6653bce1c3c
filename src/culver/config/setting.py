"""How a setting is declared: name, type, default, range and documentation side by side.

A class of settings lists them as typed attributes:

    class BrokerConfig(Settings):
        num_partitions: int = integer(default=1, minimum=1, doc="Partitions of a topic that ...")

The attribute's name with dots for underscores is the setting's name, unless `name` gives another. The class
then has slots, is frozen, takes keywords, and carries its declarations in `Class.settings`. Values travel as
text in Kafka's forms (`true`, `1048576`, `compact,delete`); `Setting.parse` and `Setting.format` convert.

Only light modules are imported here: every start of a broker pays for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, ClassVar, NoReturn, Self, dataclass_transform

from culver.errors import ConfigError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

MIB = 1 << 20
GIB = 1 << 30
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class ConfigType(IntEnum):
    """A setting's type, by its number in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


_BITS = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


class Setting:
    """One setting: what it is called, what it may be, what it is when nobody says, what it does."""

    __slots__ = (
        "also",
        "attribute",
        "check",
        "choices",
        "default",
        "documentation",
        "dynamic",
        "internal",
        "maximum",
        "minimum",
        "name",
        "section",
        "synonyms",
        "type",
        "unordered",
    )

    def __init__(
        self,
        type: ConfigType,
        default: Any,
        doc: str,
        *,
        name: str = "",
        minimum: float | None = None,
        maximum: float | None = None,
        also: int | None = None,
        choices: tuple[str, ...] = (),
        check: Callable[[Any], str | None] | None = None,
        synonyms: tuple[str, ...] = (),
        dynamic: bool = False,
        internal: bool = False,
        unordered: bool = False,
    ) -> None:
        self.type = type
        self.default = default  # None: not set
        self.documentation = doc
        self.name = name
        self.attribute = ""
        self.section = ""
        self.minimum = minimum
        self.maximum = maximum
        self.also = also  # one more number that is allowed, outside the range
        self.choices = choices
        self.check = check  # says what is wrong with a value, or nothing
        self.synonyms = (
            synonyms  # of a topic setting: the broker settings it takes its default from, best first
        )
        self.dynamic = dynamic  # may change while the broker runs
        self.internal = internal  # listed only when set
        self.unordered = unordered  # a list whose attribute is a frozenset

    def parse(self, text: str) -> Any:
        """The value that `text` stands for. ConfigError says what is wrong and what would be right."""
        text = text.strip()
        value: Any
        if self.type is ConfigType.BOOLEAN:
            value = _BOOLEANS.get(text.lower())
            if value is None:
                self._refuse(f"{text!r} is neither true nor false")
        elif self.type is ConfigType.STRING:
            value = text
            if self.choices and text not in self.choices:
                self._refuse(f"{text!r} is not allowed; choose one of {', '.join(self.choices)}")
        elif self.type is ConfigType.LIST:
            value = self._parse_list(text)
        elif self.type is ConfigType.DOUBLE:
            value = self._in_range(self._parse_double(text))
        else:
            value = self._in_range(self._parse_whole(text))
        if self.check is not None and (fault := self.check(value)):
            self._refuse(fault)
        return frozenset(value) if self.unordered else value

    def format(self, value: Any) -> str | None:
        """A value as Kafka writes it. None stays None: the setting has no value."""
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, frozenset):
            return ",".join(sorted(value, key=self._choice_order))
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def normalise(self, text: str) -> str:
        """`text`, checked, in the form it is stored in: without spaces around, a list in the order given."""
        self.parse(text)
        if self.type is ConfigType.LIST:
            return ",".join(self._parse_list(text.strip()))
        if self.type is ConfigType.BOOLEAN:
            return text.strip().lower()
        return text.strip()

    @property
    def type_name(self) -> str:
        return self.type.name.lower()

    @property
    def default_text(self) -> str | None:
        return self.format(self.default)

    @property
    def range_text(self) -> str:
        """What values are allowed, for a person; empty where any value of the type is."""
        if self.choices:
            return ("any of " if self.type is ConfigType.LIST else "one of ") + ", ".join(self.choices)
        if self.minimum is None:
            return ""
        text = f"{self.minimum} or more" if self.maximum is None else f"{self.minimum} to {self.maximum}"
        return text if self.also is None else f"{self.also}, or {text}"

    def _choice_order(self, value: str) -> tuple[int, str]:
        return (self.choices.index(value) if value in self.choices else len(self.choices), value)

    def _parse_whole(self, text: str) -> int:
        try:
            if "_" in text:
                raise ValueError
            value = int(text)
        except ValueError:
            self._refuse(f"{text!r} is not a whole number; write it in digits")
        limit = 1 << (_BITS[self.type] - 1)
        if not -limit <= value < limit:
            self._refuse(f"{text} does not fit into {_BITS[self.type]} bits; the largest is {limit - 1}")
        return value

    def _parse_double(self, text: str) -> float:
        try:
            if "_" in text:
                raise ValueError
            value = float(text)
        except ValueError:
            self._refuse(f"{text!r} is not a number")
        if value != value or value in (float("inf"), float("-inf")):
            self._refuse(f"{text!r} is not a finite number")
        return value

    def _parse_list(self, text: str) -> tuple[str, ...]:
        if not text:
            return ()
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            if not part:
                self._refuse(f"{text!r} has an empty entry; leave out the comma")
            if self.choices and part not in self.choices:
                self._refuse(f"{part!r} is not allowed; choose from {', '.join(self.choices)}")
        return tuple(dict.fromkeys(parts))

    def _in_range(self, value: Any) -> Any:
        if value == self.also and self.also is not None:
            return value
        if self.minimum is not None and value < self.minimum:
            self._refuse(f"{value} is too small; it must be {self.range_text}")
        if self.maximum is not None and value > self.maximum:
            self._refuse(f"{value} is too large; it must be {self.range_text}")
        return value

    def _refuse(self, fault: str) -> NoReturn:
        raise ConfigError(self.name, f"{self.name}: {fault}")


_BOOLEANS = {"true": True, "false": False}


def boolean(*, default: bool, doc: str, **more: Any) -> Any:
    return Setting(ConfigType.BOOLEAN, default, doc, **more)


def string(*, default: str | None, doc: str, **more: Any) -> Any:
    return Setting(ConfigType.STRING, default, doc, **more)


def short(*, default: int, doc: str, **more: Any) -> Any:
    return Setting(ConfigType.SHORT, default, doc, **more)


def integer(*, default: int | None, doc: str, **more: Any) -> Any:
    return Setting(ConfigType.INT, default, doc, **more)


def long(*, default: int | None, doc: str, **more: Any) -> Any:
    return Setting(ConfigType.LONG, default, doc, **more)


def double(*, default: float, doc: str, **more: Any) -> Any:
    return Setting(ConfigType.DOUBLE, default, doc, **more)


def strings(*, default: tuple[str, ...] | frozenset[str], doc: str, **more: Any) -> Any:
    """A list of words; with a frozenset as its default, one whose order does not count."""
    return Setting(ConfigType.LIST, default, doc, unordered=isinstance(default, frozenset), **more)


class Section:
    """A heading between declarations, for the reference page."""

    def __init__(self, title: str) -> None:
        self.title = title


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(boolean, string, short, integer, long, double, strings),
)
class SettingsMeta(type):
    """Turns declared settings into slots, and keeps the declarations in `settings`."""

    def __new__(mcs, class_name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> SettingsMeta:
        settings: dict[str, Setting] = {}
        defaults: dict[str, Any] = {}
        section = ""
        for attribute, value in list(namespace.items()):
            if isinstance(value, Section):
                section = value.title
                del namespace[attribute]
            elif isinstance(value, Setting):
                value.attribute = attribute
                value.name = value.name or attribute.replace("_", ".")
                value.section = section
                settings[value.name] = value
                defaults[attribute] = value.default
                del namespace[attribute]
        # Annotated attributes that are no settings, such as where the values came from.
        extras = {
            attribute: namespace.pop(attribute)
            for attribute in namespace.get("__annotations__", ())
            if attribute not in defaults and attribute in namespace and not attribute.startswith("_")
        }
        if bases:
            namespace["__slots__"] = (*defaults, *extras)
            # What is inherited comes last, in a class that adds to others.
            for base in bases:
                settings |= getattr(base, "settings", {})
                extras |= getattr(base, "_defaults", {})
            namespace["settings"] = settings
            namespace["_defaults"] = defaults | extras
        return super().__new__(mcs, class_name, bases, namespace)


class Settings(metaclass=SettingsMeta):
    """Values of a class of settings. Typed values are trusted; text is checked on its way in."""

    __slots__ = ()

    settings: ClassVar[Mapping[str, Setting]] = {}
    _defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, **values: Any) -> None:
        for attribute, default in self._defaults.items():
            object.__setattr__(self, attribute, values.pop(attribute, default))
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(map(repr, values))}")

    def __setattr__(self, attribute: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen; use replace({attribute}=...)")

    def __delattr__(self, attribute: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, a) == getattr(other, a) for a in self._setting_attributes())

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, attribute) for attribute in self._setting_attributes()))

    def __repr__(self) -> str:
        changed = [
            f"{setting.attribute}={getattr(self, setting.attribute)!r}"
            for setting in self.settings.values()
            if getattr(self, setting.attribute) != setting.default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def replace(self, **changes: Any) -> Self:
        """The same with some attributes changed, given as typed values."""
        return type(self)(**{a: getattr(self, a) for a in self._defaults} | changes)

    def text(self, name: str) -> str | None:
        """The value of the setting called `name`, as text."""
        setting = self.settings[name]
        return setting.format(getattr(self, setting.attribute))

    @classmethod
    def _setting_attributes(cls) -> Iterable[str]:
        return [setting.attribute for setting in cls.settings.values()]


def unknown_setting(name: str, known: Iterable[str], what: str, where: str = "") -> ConfigError:
    """The error for a name that is no setting, with the one that was probably meant."""
    import difflib  # only on the way to an error: it costs more to import than all the rest

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]}?" if close else "; `culver config` lists them all"
    return ConfigError(name, f"{where}there is no {what} setting {name!r}{hint}")
