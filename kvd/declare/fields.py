"""Typed reading of a model configuration; every complaint names the key and the value found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from kvd.errors import DeclareError, shown

_COUNT_MAX = 1 << 40
"""No real field comes near; beyond it the file is broken, and products would be absurd."""


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """One mapping of a configuration; ``path`` says where in the file it stands.

    Null counts as absent, as in the files that Hugging Face writes.
    """

    values: Mapping[str, Any]
    path: str = ""

    def has(self, key: str) -> bool:
        """Return whether the key is there with a value other than null."""
        return self.values.get(key) is not None

    def named(self, key: str) -> str:
        """Return the key as messages show it."""
        return f"{self.path}.{key}" if self.path else key

    def with_defaults(self, defaults: Mapping[str, Any]) -> "ConfigFields":
        """Return the fields with ``defaults`` where a key is absent."""
        present = {key: value for key, value in self.values.items() if value is not None}
        return ConfigFields({**defaults, **present}, self.path)

    def count(self, key: str, *, default: int | None = None, count_min: int = 1) -> int:
        """Return a whole number of at least ``count_min``; DeclareError if it is not one."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise DeclareError(f"{self.named(key)} is missing: expected a whole number")
            return default
        return self._whole(self.named(key), value, count_min)

    def optional_count(self, key: str) -> int | None:
        """Return a whole number of at least 1, or None where the key is absent."""
        return self.count(key) if self.has(key) else None

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a truth value; DeclareError if it is not one."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise DeclareError(f"{self.named(key)} is {shown(value)}: expected true or false")
        return value

    def text(self, key: str, *, default: str | None = None) -> str:
        """Return a string; DeclareError if it is not one."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise DeclareError(f"{self.named(key)} is missing: expected a text")
            return default
        if not isinstance(value, str):
            raise DeclareError(f"{self.named(key)} is {shown(value)}: expected a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; DeclareError if it is not one."""
        items = self.items(key)
        for place, item in enumerate(items):
            if not isinstance(item, str):
                raise DeclareError(f"{self.named(key)}[{place}] is {shown(item)}: expected a text")
        return tuple(cast("str", item) for item in items)

    def counts(self, key: str, *, count_min: int = 0) -> tuple[int, ...]:
        """Return a list of whole numbers; DeclareError if it is not one."""
        return tuple(
            self._whole(f"{self.named(key)}[{place}]", item, count_min)
            for place, item in enumerate(self.items(key))
        )

    def count_lists(self, key: str) -> tuple[tuple[int, ...], ...]:
        """Return a list of lists of whole numbers, none empty; DeclareError if it is not one."""
        lists: list[tuple[int, ...]] = []
        for place, item in enumerate(self.items(key)):
            inner = ConfigFields({str(place): item}, self.named(key)).counts(str(place))
            if not inner:
                raise DeclareError(f"{self.named(key)}[{place}] is empty")
            lists.append(inner)
        return tuple(lists)

    def items(self, key: str) -> list[object]:
        """Return a list, its items unchecked; DeclareError if it is not one."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise DeclareError(f"{self.named(key)} is {shown(value)}: expected a list")
        return cast("list[object]", value)

    def section(self, key: str) -> "ConfigFields":
        """Return a nested mapping; DeclareError if it is not one."""
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise DeclareError(f"{self.named(key)} is {shown(value)}: expected an object")
        return ConfigFields(cast("dict[str, Any]", value), self.named(key))

    @staticmethod
    def _whole(name: str, value: object, count_min: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise DeclareError(f"{name} is {shown(value)}: expected a whole number")
        if not count_min <= value <= _COUNT_MAX:
            raise DeclareError(f"{name} is {shown(value)}: expected {count_min} to {_COUNT_MAX}")
        return value
