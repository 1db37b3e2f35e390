"""A button that starts real ranks from a page: under Voila nobody can run a cell.

Nothing starts when the page loads; a press runs the program in a thread, so the page's other
widgets go on answering, and the result takes the place of the one before.
"""

from __future__ import annotations

import contextvars
import html
import threading
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
import traitlets

from shardwise.core.errors import ScenarioError
from shardwise.lab.ranks import run
from shardwise.lab.result import RunResult


class RunButton(widgets.VBox):
    """Runs `program` on as many ranks as chosen and shows what came of it.

    `result` is the last `RunResult`, also of a run that failed, and can be observed. `show` makes
    of a good result what is displayed (anything with a repr, or an HTML one); the ranks' outputs
    are shown without it. Further keywords go to `run`.

    Example:
        RunButton("print(rank)", worlds=(1, 2, 4), timeout=20)
    """

    result = traitlets.Instance(RunResult, allow_none=True, read_only=True)

    def __init__(
        self,
        program: str | Callable[..., Any],
        worlds: tuple[int, ...] = (1, 2, 4),
        show: Callable[[RunResult], Any] | None = None,
        **options: Any,
    ) -> None:
        """Nothing runs before the button is pressed."""
        self._program, self._show, self._options = program, show, options
        self._choice = widgets.ToggleButtons(
            options=[(f"{world} rank{'s' if world > 1 else ''}", world) for world in worlds],
            value=worlds[-1],
            tooltips=["Processes to start"] * len(worlds),
            style={"button_width": "auto"},
        )
        self._button = widgets.Button(description="Run", button_style="primary")
        self._shown = widgets.HTML("<p>Nothing has run yet.</p>")
        self._button.on_click(lambda _: self.start())
        self._thread: threading.Thread | None = None
        super().__init__([widgets.HBox([self._choice, self._button]), self._shown])

    def start(self) -> threading.Thread:
        """What a press does; the thread that runs the ranks, for those who want to wait for it."""
        if self._thread is not None and self._thread.is_alive():
            return self._thread
        world = self._choice.value
        self._button.disabled = True
        self._shown.value = f"<p>{world} rank{'s' if world > 1 else ''} at work …</p>"
        # With this context the answers belong to the message of the press, as a cell's do.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._work, world), name="ranks of a button", daemon=True
        )
        self._thread.start()
        return self._thread

    def _work(self, world: int) -> None:
        try:
            result = run(self._program, world, progress=False, allow_failure=True, **self._options)
            self._shown.value = self._html(result)
            self.set_trait("result", result)
        except (ScenarioError, SyntaxError) as problem:  # the request itself cannot be met
            self._shown.value = f'<p role="alert">{html.escape(str(problem))}</p>'
        finally:
            self._button.disabled = False

    def _html(self, result: RunResult) -> str:
        if not result.ok or self._show is None:
            return result._repr_html_()
        shown = self._show(result)
        if hasattr(shown, "_repr_html_"):
            return str(shown._repr_html_())
        return f"<pre>{html.escape(str(shown))}</pre>"
