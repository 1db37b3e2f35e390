"""How long from the key press to the redrawn charts, beside the usual way, in one run.

    python tests/browser/bench_redraw.py                    # the page of building blocks
    python tests/browser/bench_redraw.py notebooks/explorer.ipynb "?v=1&parameters=2e8"

The second slides through 200 models of other sizes: each move makes a model, its estimate for every
strategy and the decision anew.

Headless Chromium, Voila as `python -m shardwise` starts it, 200 presses of an arrow key on the
first slider at 30 a second, all charts of the first screen. Other work on the machine shows in the
figures, so its load is printed with them.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

from chromium import Watch, browser
from playwright.sync_api import Browser, BrowserContext, Page
from probe import SCRIPT, Moves, quantile, timed_moves
from servers import PAGES, Server, voila

LIVE = ".sw-chart[data-drawn] svg"
PLAIN = ".vega-embed svg .mark-rect path"
TARGETS = {
    "press to frame, median": 25,
    "press to frame, 95 %": 40,
    "Python, median": 5,
    "first chart, preheated": 3,
    "first chart, cold": 6,
    "idle kernel": 130,
}


def opened(chromium: Browser, watch: Watch) -> tuple[BrowserContext, Page]:
    """A page with the probe in it."""
    context = chromium.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(60_000)
    watch.follow(context)
    page = context.new_page()
    page.add_init_script(SCRIPT)
    return context, page


def load_seconds(page: Page, server: Server, chart: str, query: str = "") -> float:
    """From the request to the first chart with marks in it."""
    start = time.perf_counter()
    page.goto(server.address + query)
    page.wait_for_selector(chart)
    return time.perf_counter() - start


def row(name: str, value: float, unit: str, beside: float | None = None) -> None:
    """One line of the report; the target stands beside what has one."""
    other = "" if beside is None else f"{beside:10.1f}"
    target = f"   (target: at most {TARGETS[name]} {unit})" if name in TARGETS else ""
    print(f"{name:28}{value:10.1f}{other:>12} {unit}{target}", flush=True)


def heap_growth(page: Page, moves: int = 2000) -> tuple[float, int]:
    """MB of JavaScript heap, and elements, that so many moves leave behind, after a collection."""
    drag = """async ([from, moves]) => {
      const slider = document.querySelector("input[type=range]");
      for (let i = 0; i < moves; i += 1) {
        slider.value = (from + i) % (Number(slider.max) + 1);
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise((resolve) => setTimeout(resolve, 25));
      }
      await new Promise((resolve) => setTimeout(resolve, 1500));
    }"""
    count = "document.querySelectorAll('*').length"
    page.evaluate(drag, [1, 200])
    heap, elements = page.evaluate("__probe.heap()"), page.evaluate(count)
    page.evaluate(drag, [201, moves])
    return (page.evaluate("__probe.heap()") - heap) / 1e6, page.evaluate(count) - elements


def report_moves(live: Moves, plain: Moves) -> None:
    """The two runs side by side."""
    print(f"{'':28}{'Shardwise':>10}{'plain':>12}")
    row("press to frame, median", quantile(live.frames, 0.5), "ms", quantile(plain.frames, 0.5))
    row("press to frame, 95 %", quantile(live.frames, 0.95), "ms", quantile(plain.frames, 0.95))
    row("press to paint, median", quantile(live.painted, 0.5), "ms", quantile(plain.painted, 0.5))
    row("press to paint, 95 %", quantile(live.painted, 0.95), "ms", quantile(plain.painted, 0.95))
    row("moves lost", live.lost, f"of {live.presses}", plain.lost)
    row("moves drawn with the next", live.merged, f"of {live.presses}", plain.merged)
    row("Python, median", statistics.median(live.python), "ms", statistics.median(plain.python))
    row("messages to the page a move", live.messages_per_move, "", plain.messages_per_move)
    row("kB to the page a move", live.bytes_per_move / 1e3, "kB", plain.bytes_per_move / 1e3)


def measure(chromium: Browser, watch: Watch, notebook: Path, query: str) -> None:
    """Print everything for this notebook."""
    with voila(PAGES / "plain_chart.ipynb", pool=1, name="bench-plain") as server:
        context, page = opened(chromium, watch)
        load_seconds(page, server, PLAIN)
        page.wait_for_timeout(8000)
        plain = timed_moves(page, 200)
        context.close()
    with voila(notebook, pool=1, name="bench") as server:
        idle = server.kernels()[0].memory_info().rss / 2**20
        context, page = opened(chromium, watch)
        preheated = load_seconds(page, server, LIVE, query)
        page.wait_for_timeout(8000)
        report_moves(timed_moves(page, 200), plain)
        growth, elements = heap_growth(page)
        context.close()
    with voila(notebook, pool=0, name="bench-cold") as server:
        cold = []
        for _ in range(3):
            context, page = opened(chromium, watch)
            cold.append(load_seconds(page, server, LIVE, query))
            context.close()
    row("first chart, preheated", preheated, "s")
    row("first chart, cold", statistics.median(cold), "s")
    row("idle kernel", idle, "MiB")
    row("heap after 2,000 moves", growth, "MB more")
    row("elements after 2,000 moves", elements, "more")


def main(arguments: list[str]) -> int:
    """Measure the notebook given, or the page of building blocks."""
    notebook = Path(arguments[0]).resolve() if arguments else PAGES / "building_blocks.ipynb"
    print(f"{notebook.name}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    watch = Watch()
    with browser() as chromium:
        measure(chromium, watch, notebook, arguments[1] if len(arguments) > 1 else "")
    print(f"load {os.getloadavg()[0]:.1f} after; requests that left the machine: {watch.left}")
    return 1 if watch.left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
