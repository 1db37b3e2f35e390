"""One measured peak held against the estimate: what was off, and the reserve that explains it."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from shardwise.core.errors import ScenarioError
from shardwise.core.memory import MemoryReport, estimate
from shardwise.core.memory.calibrate import METERS, calibrate
from shardwise.core.memory.calibrate import Calibration as Found
from shardwise.core.memory.snapshot import Snapshot, read_snapshot
from shardwise.core.scenario import Scenario
from shardwise.core.units import GIB, format_gib
from shardwise.panels.controls import Choice, Number
from shardwise.panels.feed import Feed
from shardwise.panels.file_field import FileField
from shardwise.panels.live_text import LiveText, bullets, error, facts, heading, paragraph
from shardwise.panels.number_field import number_text

Block = dict[str, object]
_LEAST_GIB = 0.001


class Calibration(widgets.VBox):
    """A measured peak or a memory snapshot, and what it says of the scenario.

    The last one given counts; a peak of 0 means that nothing was measured.
    """

    def __init__(self, feed: Feed, changed: Callable[[], None]) -> None:
        """`changed` is called after each new measurement."""
        self._changed = changed
        self._snapshot: Snapshot | None = None
        self.measured = Number(
            "Measured peak of one GPU", 0, 0, 10**5, whole=False, unit="GiB",
            help="0: nothing measured; else the fullest rank's, for the layout as it is set",
        )  # fmt: skip
        options = [(f"{key}: {name}", key) for key, name in METERS.items()]
        self.meter = Choice("Read from", options, next(iter(METERS)))
        self.file = FileField(
            "Or a CUDA memory snapshot", self._read, accept=".pickle,.pkl",
            help="Written by torch.cuda.memory._dump_snapshot; read without running what it holds.",
        )  # fmt: skip
        title = widgets.HTML('<div class="shardwise sw-text"><h3>Measured it?</h3></div>')
        super().__init__(
            [title, self.measured, self.meter, self.file, LiveText(feed, "calibration")],
            layout=widgets.Layout(width="100%", min_width="0"),
        )
        for control in (self.measured, self.meter):
            control.on_change(self._typed)
        self.measured.observe(lambda _: self._typed(), "error")

    def _read(self, content: bytes) -> str:
        self._snapshot = read_snapshot(content)
        self._changed()
        return str(self._snapshot)

    def _typed(self) -> None:
        self._snapshot = None
        self.file.clear()
        self._changed()

    def data(self, scenario: Scenario) -> dict[str, object]:
        """What the feed carries for this measurement; a bad one is answered in its place."""
        if self._snapshot is None and (reason := self._refused(scenario)):
            return {"calibration": [error(reason)]}
        try:
            found = self._found(scenario)
        except ScenarioError as problem:
            return {"calibration": [error(str(problem))]}
        if found is not None:
            return {"calibration": _blocks(found)}
        said = "Run a few steps, read the peak of the fullest GPU, and see here what is off."
        return {"calibration": [paragraph(said)]}

    def _refused(self, scenario: Scenario) -> str:
        """Why there is nothing to compare: text that is no number, or more than any card holds."""
        if self.measured.error:
            return "Nothing is compared until the measured peak above is a number."
        size = float(self.measured.value)
        most = scenario.cluster.gpu.memory_bytes / GIB
        if size <= most:
            return ""
        mib = f"if these are MiB, type {size / 1024:.3g}" if size / 1024 <= most else ""
        given, allowed = f"{number_text(size)} GiB", f"at most the card's {most:.1f} GiB"
        return str(ScenarioError(self.measured.label, given, allowed, mib))

    def _found(self, scenario: Scenario) -> Found | None:
        if self._snapshot is not None:
            return calibrate(scenario, self._snapshot)
        size = float(self.measured.value)
        if 0 < size < _LEAST_GIB:
            raise ScenarioError(self.measured.label, size, f"0, or {_LEAST_GIB} GiB and more")
        return calibrate(scenario, size * GIB, str(self.meter.value)) if size else None


def _device(found: Found, report: MemoryReport) -> str:
    """What the card shows; what ran has fitted, whatever is held back in an estimate."""
    device, usable = format_gib(found.device_bytes(report)), format_gib(report.usable_bytes)
    verdict = found.verdict(report)
    if found.device_bytes(report) > report.usable_bytes:
        return f"{device}: it ran, so there was more than the {usable} that are counted on"
    if verdict == "does not fit":
        return f"{device} of {usable}, with nothing to spare"
    return f"{device} of {usable} ({verdict})"


def _blocks(found: Found) -> list[Block]:
    """The residual first, then the reserve that explains it and what it may be."""
    report = estimate(found.scenario)
    offset = f"{'-' if found.offset_bytes < 0 else ''}{format_gib(abs(found.offset_bytes))}"
    sign = "more" if found.residual_bytes >= 0 else "less"
    blocks = [
        heading(
            f"{format_gib(abs(found.residual_bytes))} {sign} than estimated "
            f"({found.residual_bytes / found.estimated_bytes:+.1%})"
        ),
        facts(
            [
                (f"Measured, {found.meter}", format_gib(found.measured_bytes)),
                (f"Estimated, {found.meter}", format_gib(found.estimated_bytes)),
                ("Tensors beyond the estimate", offset),
                ("Fragmentation", f"{found.fragmentation:.1%} of what is allocated"),
                ("CUDA context, NCCL", format_gib(found.outside_bytes)),
                ("With that, the card shows", _device(found, report)),
            ]
        ),
        paragraph(found.how),
    ]
    if found.may_be:
        blocks += [paragraph("What the difference may be:"), bullets(list(found.may_be))]
    return blocks
