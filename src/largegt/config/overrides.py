"""Reads and writes settings: trees of plain values to frozen models and back, `a.b=c` overrides, durations.

The error for an unknown key suggests the nearest known name. Only the first error is reported, in one line.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator

from largegt.errors import ConfigError, nearest

from .renamed import RENAMED

_LONGEST_S = 1e10
LARGEST_WIDTH, LARGEST_COUNT = 1 << 16, 1 << 20
"""Largest allowed width and count: a larger one is most likely a typing error and would run out of memory."""


class Settings(BaseModel):
    """Base of all settings classes: frozen, without unknown fields, and with a docstring per field."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    if not TYPE_CHECKING:  # the type checker knows the arguments of each class

        def __init__(self, **settings: Any) -> None:
            try:
                super().__init__(**settings)
            except ValidationError as error:
                raise _config_error(type(self), error, "") from None

        __init__.__pydantic_base_init__ = True  # tables within others do not pass here: errors name them in full

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, tree: Any) -> Any:
        """Read `"none"` as None for optional fields, since TOML has no null."""
        if not isinstance(tree, dict):
            return tree
        can_be_none = [key for key, field in cls.model_fields.items() if type(None) in get_args(field.annotation)]
        return {key: None if value == "none" and key in can_be_none else value for key, value in tree.items()}

    @field_validator("*", mode="before")
    @classmethod
    def _keep_kind(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse values that pydantic or a later stage would misread: true or false for a number, an integer beyond 64
        bits, text that is not valid Unicode."""
        annotation = cls.model_fields[info.field_name].annotation if info.field_name else None
        takes_flags = annotation is bool or bool in get_args(annotation)
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, bool) and not takes_flags:
                raise ValueError(f"{str(one).lower()} is not a value that it takes")
            if isinstance(one, int) and abs(one) >= 2**63:
                raise ValueError("a whole number must fit 64 bits with sign")
            if isinstance(one, str) and any("\ud800" <= letter <= "\udfff" for letter in one):  # no UTF-8
                raise ValueError(f"{one!r} holds characters that are no text")
        return value


SettingsT = TypeVar("SettingsT", bound=Settings)


def several(values: Any) -> Any:
    """A tuple or list from `20,10` or `[20,10]` as on a command line, from a single value, or from a list."""
    if isinstance(values, str):
        listed = values[1:-1] if values.startswith("[") and values.endswith("]") else values
        return tuple(listed.split(",")) if listed else ()
    return values if isinstance(values, list | tuple) else (values,)


def build(cls: type[SettingsT], tree: Mapping[str, Any], prefix: str = "") -> SettingsT:
    """Validate a plain tree; the first error becomes a one-line `ConfigError`. `prefix` is the prefix of the settings'
    names in this error."""
    try:
        return cls.model_validate(tree)
    except ValidationError as error:
        raise _config_error(cls, error, prefix) from None


def _config_error(cls: type[Settings], error: ValidationError, prefix: str) -> ConfigError:
    first = error.errors()[0]
    path = [*prefix.split(".")[:-1], *(str(part) for part in first["loc"])]
    name = ".".join(path)
    if first["type"] == "extra_forbidden":
        known = setting_names(cls, prefix)
        names = [other.split(".") for other in known]
        same_table = [".".join(parts[: len(path)]) for parts in names if parts[: len(path) - 1] == path[:-1]]
        hint = (
            f" (its name is {RENAMED[name]})" if name in RENAMED else nearest(name, same_table) or nearest(name, known)
        )
        return ConfigError(f"unknown setting {name!r}{hint}; largegt config lists all")
    if first["type"] == "value_error":
        return ConfigError(f"setting {name}: {first['msg'].removeprefix('Value error, ')}")
    if first["type"] == "model_type":
        return ConfigError(f"{name} is a table of settings and cannot be {first['input']!r}: set {name}.NAME=VALUE")
    if first["type"] == "literal_error":
        hint = nearest(str(first["input"]), re.findall(r"'([^']+)'", first["ctx"]["expected"]))
        return ConfigError(f"setting {name} cannot be {first['input']!r}{hint}: {first['msg'].lower()}")
    return ConfigError(f"setting {name} cannot be {first.get('input')!r}: {first['msg'].lower()}")


class Setting(NamedTuple):
    """The description of one setting."""

    name: str
    """Its dotted name."""
    default: Any
    help: str
    kind: Any
    """The type of its values."""


def setting_names(cls: type[Settings], prefix: str = "") -> list[str]:
    """Dotted names of every setting below `cls`."""
    return [setting.name for setting in describe_settings(cls, prefix)]


def describe_settings(cls: type[Settings], prefix: str = "") -> list[Setting]:
    """Every setting below `cls`."""
    found: list[Setting] = []
    for name, field in cls.model_fields.items():
        if isinstance(field.default, Settings):
            found += describe_settings(type(field.default), f"{prefix}{name}.")
        else:
            bases = (base.model_fields.get(name) for base in cls.__mro__ if issubclass(base, Settings))
            text = next((base.description for base in bases if base and base.description), "")  # own or inherited
            found.append(Setting(prefix + name, field.get_default(), text, field.annotation))
    return found


def parse_overrides(cls: type[SettingsT], overrides: Iterable[str]) -> SettingsT:
    """A `cls` from its defaults and `a.b=c` overrides."""
    tree: dict[str, Any] = {}
    for override in overrides:
        apply_override(tree, override)
    return build(cls, tree)


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Set `a.b=c` in the tree. The value is parsed as TOML; a bare word is a string."""
    name, equals, text = override.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"override {override!r} is not of the form section.name=value")
    *tables, leaf = [part.strip() for part in name.split(".")]
    for table in tables:
        below = tree.setdefault(table, {})
        if not isinstance(below, dict):
            raise ConfigError(f"override {override!r}: {table!r} is a value, not a table")
        tree = below
    value = _override_value(text.strip())
    below = tree.get(leaf)
    tree[leaf] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value


def _override_value(text: str) -> Any:
    try:
        tree = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # RecursionError: thousands of brackets
        return text
    return tree["value"] if len(tree) == 1 else text  # a second line is not part of the value


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted name and the value of each setting in nested tables."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def as_overrides(tree: Mapping[str, Any]) -> list[str]:
    """The same as `a.b=c` overrides; names may be dotted."""
    return [f"{name}={_toml_value('none' if value is None else value)}" for name, value in leaves(tree)]


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below` with the values of `above`, table by table."""
    both = {
        key: merged(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict) else value
        for key, value in above.items()
    }
    return {**below, **both}


def text_of(value: Any) -> str:
    """A value in the notation of `--set`."""
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return f"[{','.join(map(text_of, value))}]" if isinstance(value, list | tuple) else str(value)


def seconds(duration: str) -> float:
    """Seconds in `90s`, `30m`, `4h`, `1h30m` or a bare number."""
    text = duration.strip().lower()
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)([hms]?)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"{duration!r} is not a duration: write 90s, 30m, 4h or 1h30m")
    total = sum(float(number) * {"h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0}[unit] for number, unit in parts)
    if not total < _LONGEST_S:
        raise ConfigError(f"{duration!r} is longer than anything runs: write 90s, 30m, 4h or 1h30m")
    return total


def to_toml(tree: Mapping[str, Any]) -> str:
    """Write a tree of scalars, lists and tables; `None` is written as "none"."""
    lines: list[str] = []
    _write_table(tree, "", lines)
    return "\n".join(lines).strip() + "\n"


def _write_table(tree: Mapping[str, Any], prefix: str, lines: list[str]) -> None:
    for key, value in tree.items():
        if not isinstance(value, Mapping):
            lines.append(f"{key} = {_toml_value('none' if value is None else value)}")
    for key, value in tree.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{prefix}{key}]"]
            _write_table(value, f"{prefix}{key}.", lines)


def _toml_value(value: Any) -> str:
    """JSON's notation, which TOML shares but for infinities and NaN. A value that JSON does not know is its text."""
    text = json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
    return {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}.get(text, text)
