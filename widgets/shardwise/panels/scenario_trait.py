"""The one current scenario, checked at the border: bad values raise, the last good one stays."""

from __future__ import annotations

from collections.abc import Mapping

import traitlets

from shardwise.core.scenario import Scenario


class ScenarioTrait(traitlets.TraitType[Scenario, Scenario]):
    """A `Scenario`, or a dict that makes one; anything else is refused with its sentence."""

    info_text = "a Scenario or a dict that Scenario.from_dict reads"

    def validate(self, obj: object, value: object) -> Scenario:
        """The scenario itself, or the one that the dict describes.

        Raises:
            ScenarioError: the dict holds something that is not allowed.
        """
        if isinstance(value, Scenario):
            return value
        if isinstance(value, Mapping):
            return Scenario.from_dict(value)
        self.error(obj, value)
        raise AssertionError("error() raises")
