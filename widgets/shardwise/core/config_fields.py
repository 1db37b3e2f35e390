"""Reading one config.json field by field: spellings, kinds, ranges, and what was defaulted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shardwise.core.config_spellings import MAY_DISAGREE, SPELLINGS
from shardwise.core.errors import ScenarioError

LARGEST_SIZE = 2**31 - 1
MOST_LAYERS = 2_000
_MISSING = object()


class ConfigFields:
    """One config.json (or its `text_config`), read by field, with the family's own defaults.

    A missing or null field takes the default that transformers' config class gives it. Those that
    change the number of parameters are kept in `defaulted`, everything else that is assumed in
    `assumptions`. A field without default, or one that cannot be, raises ScenarioError.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        defaults: Mapping[str, Any],
        label: str,
        *,
        where: str = "",
        shared: ConfigFields | None = None,
    ) -> None:
        """`label` names the class of the defaults; `where` is the path to a nested section."""
        self.config = config
        self.defaults = defaults
        self.label = label
        self.where = where
        self.assumptions: list[str] = shared.assumptions if shared else []
        self.defaulted: dict[str, list[str]] = shared.defaulted if shared else {}
        self.guessed: list[str] = shared.guessed if shared else []

    def assume(self, sentence: str) -> None:
        """Keep one sentence about something that the config leaves open."""
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)

    def guess(self, sentence: str) -> None:
        """The same where it makes the estimate a guess: no verdict is sure then."""
        self.guessed.append(sentence)
        self.assume(sentence)

    def note_default(self, name: str, value: object) -> None:
        """Keep that a field which changes the count was not in the config."""
        entry = f"{self.where}{name} = {str(value).lower()}"
        entries = self.defaulted.setdefault(self.label, [])
        if entry not in entries:
            entries.append(entry)

    def sentences(self) -> tuple[str, ...]:
        """Everything assumed so far, one sentence each; the defaults of a class share one."""
        return (
            *self.assumptions,
            *(
                f"Not in the config, so the defaults of {label} are taken: {', '.join(entries)}."
                for label, entries in self.defaulted.items()
            ),
        )

    def has(self, name: str) -> bool:
        """Whether the config gives the field, under any spelling, as something but null."""
        return self._given(name)[1] is not _MISSING

    def spelled(self, name: str) -> str:
        """The field under the spelling that this config uses, for error sentences."""
        return self.where + self._given(name)[0]

    def whole(
        self, name: str, *, minimum: int = 1, maximum: int = LARGEST_SIZE, counts: bool = True
    ) -> int:
        """A whole number; 32.0 counts as 32, since JSON does not tell them apart."""
        spelling, value = self._value(name, counts=counts)
        return self._as_whole(spelling, value, minimum, maximum)

    def optional(
        self, name: str, *, minimum: int = 1, maximum: int = LARGEST_SIZE, counts: bool = True
    ) -> int | None:
        """As `whole`, or None where neither the config nor the family has one."""
        if not self.has(name) and self.defaults.get(name) is None:
            return None
        return self.whole(name, minimum=minimum, maximum=maximum, counts=counts)

    def window(self, name: str = "sliding_window") -> int:
        """A sliding window in tokens; null means none and is kept apart from missing."""
        if name in self.config and self.config[name] is None:
            return 0
        if name not in self.config and self.defaults.get(name) is None:
            return 0
        return self.whole(name, minimum=0, counts=False)

    def cap(self, name: str) -> bool:
        """Whether a soft cap is set; null means none and is kept apart from missing."""
        if name in self.config and self.config[name] is None:
            return False
        return self.has(name) or self.defaults.get(name) is not None

    def layer_count(self, name: str = "num_hidden_layers") -> int:
        """How many blocks, at most 2,000."""
        return self.whole(name, maximum=MOST_LAYERS)

    def flag(self, name: str, *, counts: bool = True) -> bool:
        """True or false; 0 and 1 are not taken for it."""
        spelling, value = self._value(name, counts=counts)
        if not isinstance(value, bool):
            raise ScenarioError(self.where + spelling, value, "true or false")
        return value

    def number(self, name: str, *, maximum: float = 1.0) -> float:
        """A number from 0 that does not change the count, such as a dropout probability."""
        spelling, value = self._value(name, counts=False, fallback=0.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ScenarioError(self.where + spelling, value, f"a number from 0 to {maximum:g}")
        if not 0 <= value <= maximum:
            raise ScenarioError(self.where + spelling, value, f"a number from 0 to {maximum:g}")
        return float(value)

    def text(self, name: str, *, counts: bool = False) -> str:
        """A short plain text; it is never interpreted."""
        spelling, value = self._value(name, counts=counts, fallback="")
        if not isinstance(value, str) or len(value) > 200:
            raise ScenarioError(self.where + spelling, value, "a text of at most 200 characters")
        return value

    def numbers(self, name: str, length: int | None = None) -> tuple[int, ...] | None:
        """A list of whole numbers, None where it is missing or null."""
        spelling, value = self._given(name)
        if value is _MISSING:
            return None
        allowed = "a list of whole numbers" + (f", {length} long" if length is not None else "")
        if not isinstance(value, list) or len(value) > MOST_LAYERS:
            raise ScenarioError(self.where + spelling, value, allowed)
        if length is not None and len(value) != length:
            hint = "one entry a layer"
            raise ScenarioError(self.where + spelling, value, allowed, hint)
        return tuple(self._as_whole(f"{spelling}[]", v, 0, LARGEST_SIZE) for v in value)

    def texts(self, name: str, length: int) -> tuple[str, ...] | None:
        """A list of texts, one a layer; None where it is missing or null."""
        spelling, value = self._given(name)
        if value is _MISSING:
            return None
        if (
            not isinstance(value, list)
            or len(value) != length
            or not all(isinstance(v, str) for v in value)
        ):
            allowed = f"a list of {length} texts, one a layer"
            raise ScenarioError(self.where + spelling, value, allowed)
        return tuple(value)

    def side(self, name: str) -> int:
        """A picture's or a patch's side in pixels: one number, or a list of two equal ones."""
        spelling, value = self._value(name, counts=True)
        if isinstance(value, list):
            if len(value) != 2 or value[0] != value[1]:
                allowed = "a whole number, or a list of two equal ones"
                raise ScenarioError(self.where + spelling, value, allowed)
            value = value[0]
        return self._as_whole(spelling, value, 1, 100_000)

    def labels(self) -> int:
        """How many classes a classification head has: `num_labels`, `id2label`, or 2."""
        names = self.config.get("id2label")
        if isinstance(names, dict) and names:
            return len(names)
        if self.config.get("num_labels") is not None:
            return self._as_whole("num_labels", self.config["num_labels"], 1, 10_000_000)
        self.note_default("num_labels", 2)
        return 2

    def section(
        self, name: str, defaults: Mapping[str, Any], label: str, *, required: bool = True
    ) -> ConfigFields:
        """A nested config such as `text_config`, sharing this one's assumptions."""
        value = self.config.get(name)
        if value is None and not required:
            value = {}
        if not isinstance(value, dict):
            raise ScenarioError(self.where + name, value, "an object { ... } with its own fields")
        where = f"{self.where}{name}."
        return ConfigFields(value, defaults, label, where=where, shared=self)

    def _given(self, name: str) -> tuple[str, Any]:
        found = [
            spelling
            for spelling in SPELLINGS.get(name, (name,))
            if self.config.get(spelling) is not None
        ]
        if not found:
            return name, _MISSING
        for other in () if name in MAY_DISAGREE else found[1:]:
            if self.config[other] != self.config[found[0]]:
                allowed = f"one value: {found[0]} is the same field"
                hint = "remove the one that is wrong"
                raise ScenarioError(self.where + other, self.config[other], allowed, hint)
        return found[0], self.config[found[0]]

    def _value(self, name: str, *, counts: bool, fallback: object = None) -> tuple[str, Any]:
        spelling, value = self._given(name)
        if value is not _MISSING:
            return spelling, value
        default = self.defaults.get(name, fallback)
        if default is None:
            spellings = " or ".join(SPELLINGS.get(name, (name,))[:3])
            raise ScenarioError(
                self.where + name, None, "a value", f"the config gives no {spellings}"
            )
        if counts:
            self.note_default(name, default)
        return name, default

    def _as_whole(self, spelling: str, value: object, minimum: int, maximum: int) -> int:
        allowed = f"a whole number from {minimum:,} to {maximum:,}"
        field = self.where + spelling
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            text = isinstance(value, str)
            raise ScenarioError(field, value, allowed, "write it without quotes" if text else "")
        if isinstance(value, float) and (not math.isfinite(value) or value != int(value)):
            raise ScenarioError(field, value, allowed)
        if not minimum <= value <= maximum:
            raise ScenarioError(field, value, allowed)
        return int(value)
