"""The views behind tabs: a step, its stages, changes, calculators, and a measured peak."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from servers import ARTIFACTS, ROOT, Server, voila

from shardwise.core.peers.table import disagreement
from shardwise.core.permalink import from_query
from shardwise.core.units import format_gib

DRAWN = ".sw-chart[data-drawn]"
FIRST_SCREEN = 3
PIPELINE = "?v=1&model=llama-3-70b&nodes=4&pipeline_parallel=4&tensor_parallel=8&zero_stage=2"
DDP = "?v=1&model=llama-3-8b&engine=ddp&zero_stage=0"


@pytest.fixture(scope="module")
def explorer() -> Iterator[Server]:
    """The explorer as the README's command serves it, with a kernel ready."""
    with voila(ROOT / "notebooks" / "explorer.ipynb", pool=1, name="views") as server:
        yield server


def opened(page: Page, explorer: Server, query: str, tab: str, charts: int) -> None:
    """The page of that scenario with that tab open and its charts drawn."""
    page.goto(explorer.address + query)
    expect(page.locator(DRAWN)).to_have_count(FIRST_SCREEN, timeout=60_000)
    page.get_by_role("tab", name=tab, exact=True).click()
    expect(page.locator(DRAWN)).to_have_count(FIRST_SCREEN + charts)


def chart(page: Page, title: str) -> Locator:
    """The figure of that title."""
    return page.get_by_role("figure", name=title, exact=True)


@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("tab", "charts"), [("Memory", 2), ("Change first", 1), ("Calculators", 1), ("GPUs", 1)]
)
def test_each_view_fits_its_width(
    page: Page, explorer: Server, width: int, scheme: str, tab: str, charts: int
) -> None:
    """At 360 and 1600 pixels, light and dark: nothing to scroll sideways, no label cut off."""
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 1200})
    opened(page, explorer, PIPELINE, tab, charts)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = page.evaluate(
        "[...document.querySelectorAll('.sw-tabs .sw-chart')].filter((e) => e.offsetWidth)"
        ".flatMap((e) => { const box = e.getBoundingClientRect();"
        " return [...e.querySelectorAll('svg text')].filter((t) => t.textContent"
        " && t.getBoundingClientRect().right > box.right + 1).map((t) => t.textContent); })"
    )
    assert outside == []
    assert page.locator(".sw-tabs .sw-plot").first.evaluate("e => e.scrollWidth <= e.clientWidth")
    shots = ARTIFACTS / "screenshots"
    shots.mkdir(parents=True, exist_ok=True)
    name = tab.lower().replace(" ", "-")
    page.locator(".sw-tabs").screenshot(path=shots / f"view-{name}-{width}-{scheme}.png")


@pytest.mark.parametrize("width", [360, 800, 1600])
@pytest.mark.parametrize("model", ["llama-3-70b", "llama-4-scout", "gpt2"])
def test_a_layer_s_size_stays_inside_its_chart(
    page: Page, explorer: Server, width: int, model: str
) -> None:
    """How large a layer is and how often it is there: whole, beside its bar or at the edge."""
    page.set_viewport_size({"width": width, "height": 1200})
    opened(page, explorer, f"?v=1&model={model}", "Layers", 1)
    outside = chart(page, "The largest layers").evaluate(
        "figure => { const box = figure.getBoundingClientRect();"
        " return [...figure.querySelectorAll('svg text')].filter((t) => t.textContent"
        " && t.getAttribute('opacity') !== '0'"  # Vega hides an axis' label so
        " && t.getBoundingClientRect().right > box.right + 1).map((t) => t.textContent); }"
    )
    assert outside == []
    expect(chart(page, "The largest layers")).to_contain_text(" x ")
    page.locator(".sw-tabs").screenshot(
        path=ARTIFACTS / "screenshots" / f"view-layers-{model}-{width}.png"
    )


@pytest.mark.parametrize("width", [400, 1200])
def test_no_label_of_a_bar_lies_on_the_card_s_line(
    page: Page, explorer: Server, width: int
) -> None:
    """A label beside a bar keeps clear of the dashed line; only one inside a bar may be under it.

    Labels are bold 11 pixel letters with a halo; those inside begin left of their bar's end.
    """
    page.set_viewport_size({"width": width, "height": 1200})
    query = "?v=1&model=llama-3-8b&gpu=rtx-3090&gpus_per_node=8&sequence_length=1024"
    opened(page, explorer, query, "Change first", 1)
    for title in ("Memory of one GPU, by strategy", CHANGES):
        crossing = chart(page, title).evaluate(_CROSSING)
        assert crossing == []


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_no_letter_of_a_part_is_half_under_a_label(
    page: Page, explorer: Server, width: int
) -> None:
    """Bars cut at the axis' end have their label inside: parts under it go without a letter."""
    page.set_viewport_size({"width": width, "height": 1200})
    opened(page, explorer, "?v=1&model=mixtral-8x7b&gpu=a100-sxm-40gb", "Change first", 1)
    for title in ("Memory of one GPU, by strategy", CHANGES):
        assert chart(page, title).locator("text", has_text="»").count() > 0
        assert chart(page, title).evaluate(_HALF_HIDDEN) == []


@pytest.mark.parametrize("width", [360, 800, 900, 1600])
@pytest.mark.parametrize(("tab", "charts"), [("Change first", 1), ("Calculators", 1)])
def test_a_view_s_table_is_whole_on_the_screen(
    page: Page, explorer: Server, width: int, tab: str, charts: int
) -> None:
    """Its last column, with the buttons, is not behind a scroll bar."""
    page.set_viewport_size({"width": width, "height": 1200})
    opened(page, explorer, "?v=1&model=mixtral-8x7b&gpu=a100-sxm-40gb", tab, charts)
    table = page.locator(".sw-wide", has=page.locator("table")).locator("visible=true")
    assert table.evaluate_all("all => all.map((e) => e.scrollWidth - e.clientWidth)") == [0]


_HALF_HIDDEN = """figure => {
  const texts = [...figure.querySelectorAll('.mark-text text')].filter((e) => e.textContent);
  const boxes = (wanted) => texts.filter((e) => wanted(e.textContent))
    .map((e) => [e.textContent, e.getBoundingClientRect()]);
  const labels = boxes((text) => text.endsWith('»'));
  return boxes((text) => text.length === 1).filter(([, letter]) => labels.some(([, label]) =>
    letter.right > label.left && letter.left < label.right
    && letter.top < label.bottom - 3 && letter.bottom > label.top + 3)).map(([text]) => text);
}"""
"""Letters of segments that a label inside the same bar covers in part."""


CHANGES = "What one GPU must have after each change alone, reserve included"
_CROSSING = """figure => {
  const dashed = [...figure.querySelectorAll('.mark-rule line')]
    .find((e) => (e.getAttribute('stroke-dasharray') ?? '').startsWith('6'));
  const at = dashed.getBoundingClientRect().left;
  const texts = [...figure.querySelectorAll('.mark-text text')];
  return texts.filter((e) => e.getAttribute('text-anchor') === 'start' && e.textContent)
    .filter((e) => { const b = e.getBoundingClientRect(); return b.left < at && b.right > at; })
    .map((e) => e.textContent);
}"""
"""Labels beside a bar (they start at an anchor) that the card's line runs through."""


def test_phases_and_stages_name_the_peak_and_the_card(page: Page, explorer: Server) -> None:
    """Six phases with the peak, four stages with what they keep in flight, the card's number."""
    opened(page, explorer, PIPELINE, "Memory", 2)
    phases = chart(page, "Memory of the fullest GPU over the phases of a step")
    for said in ("between steps", "optimizer step", "card: 79.1 GiB", "GiB, peak"):
        expect(phases).to_contain_text(said)
    stages = chart(page, "Memory of one GPU at its peak, by pipeline stage")
    for number in range(4):
        expect(stages).to_contain_text(f"{4 - number} in flight")
    stages.get_by_text("Table and downloads").click()
    row = stages.get_by_role("row").filter(has_text="stage 0")
    expect(row).to_contain_text("backward")
    expect(stages.get_by_role("columnheader", name="Band from (GiB)")).to_be_visible()
    page.get_by_label("Phases of", exact=True).select_option("the decided layout")
    expect(phases).to_contain_text("As decided")


def test_the_first_change_is_applied_by_the_keyboard(page: Page, explorer: Server) -> None:
    """Enter on its button sets the controls; the table is made anew and keeps the focus."""
    opened(page, explorer, DDP, "Change first", 1)
    button = page.get_by_role("button", name="Apply: 1 ")
    before = page.locator(".sw-tabs table th[role=rowheader]").first.inner_text()
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".sw-tabs table th[role=rowheader]").first).not_to_have_text(before)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Apply: 1")
    page.get_by_role("tab", name="Layout", exact=True).click()
    assert page.get_by_label("Engine").evaluate("e => e.selectedOptions[0].text") == "fsdp2"
    page.wait_for_function("!location.search.includes('engine=ddp')")


def test_calculators_stand_beside_ours_with_reasons(page: Page, explorer: Server) -> None:
    """Totals with units, what each leaves out, and the one that cannot be asked says why."""
    opened(page, explorer, DDP, "Calculators", 1)
    table = page.get_by_role("table", name="Why they disagree")
    for peer in disagreement(from_query(DDP).scenario):
        row = table.get_by_role("row").filter(has_text=peer.peer)
        total = peer.not_applicable if peer.total_bytes is None else format_gib(peer.total_bytes)
        expect(row).to_contain_text(total)
    expect(chart(page, "The same question put to other calculators")).to_contain_text("59.8 GiB")
    page.get_by_text("Whose formulas these are").click()
    expect(page.get_by_text("d841e40").first).to_be_visible()


def test_a_measured_peak_and_a_snapshot_show_the_residual(
    page: Page, explorer: Server, tmp_path: Path
) -> None:
    """Typed, then from a snapshot of 12 MB, which one message of a server would not take."""
    opened(page, explorer, "?v=1&model=llama-3-8b", "Memory", 2)
    box = page.get_by_role("textbox", name="Measured peak of one GPU", exact=True)
    box.fill("60")
    expect(page.get_by_text("more than estimated (+")).to_be_visible()
    box.fill("24100")
    expect(
        page.get_by_text("allowed: at most the card's 80.0 GiB; if these are MiB, type 23.5.")
    ).to_be_visible()
    expect(page.get_by_text("more than estimated (+")).to_have_count(0)
    box.fill("much")
    error = page.locator(".sw-field", has=box).locator(".sw-error")
    expect(error).to_contain_text("allowed: a number from 0 to 100000")
    gib = 2**30
    block = {"address": 0, "size": 20 * gib, "requested_size": 20 * gib}
    segment = {
        "device": 0, "address": 0, "total_size": 30 * gib, "stream": 0, "segment_type": "large",
        "blocks": [block | {"state": "active_allocated"}],
    }  # fmt: skip
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "pad": "x" * 12_000_000}))
    page.get_by_label("Or a CUDA memory snapshot").set_input_files(path)
    expect(page.get_by_text("run.pickle: device 0: 30.0 GiB reserved")).to_be_visible()
    expect(page.get_by_text("less than estimated")).to_be_visible()
    broken = tmp_path / "broken.pickle"
    broken.write_bytes(b"not a pickle")
    page.get_by_label("Or a CUDA memory snapshot").set_input_files(broken)
    file = page.locator(".sw-field", has=page.locator("input[type=file]"))
    expect(file.get_by_role("alert")).to_contain_text("_dump_snapshot")


def test_a_closed_view_sends_nothing_and_an_open_one_follows(page: Page, explorer: Server) -> None:
    """A view that was left and opened again shows the scenario of now."""
    opened(page, explorer, "?v=1&model=llama-3-8b", "Memory", 2)
    phases = chart(page, "Memory of the fullest GPU over the phases of a step")
    summary = phases.locator(".sw-summary")
    before = summary.inner_text()
    page.get_by_role("tab", name="Why", exact=True).click()
    page.get_by_role("slider", name="GPUs per node").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("location.search.includes('gpus_per_node=4')")
    page.get_by_role("tab", name="Memory", exact=True).click()
    expect(summary).not_to_have_text(before)
    expect(summary).to_contain_text("The peak is at")
