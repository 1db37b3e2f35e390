"""The explorer and the small notebooks in a real browser, as people use them."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from servers import ARTIFACTS, ROOT, Server, jupyterlab, voila

NOTEBOOKS = ROOT / "notebooks"
DRAWN = ".sw-chart[data-drawn]"
PANELS = {"rule-of-16": 1, "memory": 2, "step": 4, "decision": 2, "scaling": 2, "layers": 2}


@pytest.fixture(scope="module")
def explorer() -> Iterator[Server]:
    """The explorer as the README's command serves it, with a kernel ready."""
    with voila(NOTEBOOKS / "explorer.ipynb", pool=1, name="explorer") as server:
        yield server


def opened(page: Page, address: str, charts: int = 3) -> Page:
    """The page once the charts of its first screen are drawn."""
    page.goto(address)
    expect(page.locator(DRAWN)).to_have_count(charts, timeout=60_000)
    return page


def field(page: Page, label: str):  # type: ignore[no-untyped-def]
    """The text box of a number field."""
    return page.get_by_role("textbox", name=label, exact=True)


def headline(page: Page) -> str:
    """The decision in words, under the line on the run as it is set."""
    return decided(page).inner_text()


def decided(page: Page) -> Locator:
    """The second heading of the answer."""
    return page.locator(".sw-text h3").nth(1)


@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_fits_its_width(
    page: Page, explorer: Server, width: int, scheme: str
) -> None:
    """At 360 and 1600 pixels, light and dark: charts drawn, nothing to scroll sideways."""
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 1400})
    opened(page, explorer.address)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    too_wide = page.evaluate(
        "[...document.querySelectorAll('.shardwise, .sw-chart, .widget-vbox')]"
        ".filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.className)"
    )
    assert too_wide == []
    shots = ARTIFACTS / "screenshots"
    shots.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=shots / f"explorer-{width}-{scheme}.png")


def test_the_worked_case_is_on_the_screen(page: Page, explorer: Server) -> None:
    """7B on 80 GB cards: 112 GB before activations, optimizer state runs out, sharding fixes it."""
    opened(page, explorer.address + "?v=1&parameters=7e9&gpu=a100-sxm-80gb")
    expect(page.get_by_text("112 GB before activations")).to_be_visible()
    expect(page.get_by_text("weights alone are 14 GB")).to_be_visible()
    expect(page.locator(".sw-text h3").first).to_contain_text("As set (FSDP2, ZeRO-3): ")
    expect(decided(page)).to_contain_text("optimizer state")
    path = page.locator(DRAWN).nth(1)
    expect(path).to_contain_text("no")
    expect(path).to_contain_text("yes")


def test_keys_on_a_slider_move_everything(page: Page, explorer: Server) -> None:
    """By keyboard alone: more nodes by arrow keys change decision, link and bars."""
    opened(page, explorer.address + "?v=1&model=llama-3-70b&gpu=a100-sxm-80gb")
    before = headline(page)
    page.get_by_role("slider", name="Nodes").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    expect(field(page, "Nodes")).to_have_value("16")
    expect(decided(page)).not_to_have_text(before)
    page.wait_for_function("location.search.includes('nodes=16')")


def test_a_committed_suffix_shows_the_number_that_is_used(page: Page, explorer: Server) -> None:
    """1k is a thousand, not 1024: after Enter the field shows its digits, and reads them again."""
    opened(page, explorer.address)
    field(page, "Nodes").fill("1k")
    field(page, "Nodes").press("Enter")
    expect(field(page, "Nodes")).to_have_value("1\u202f000")
    page.wait_for_function("location.search.includes('nodes=1000')")
    error = page.locator(".sw-field", has=field(page, "Nodes")).locator(".sw-error")
    expect(error).to_have_text("")
    field(page, "Nodes").fill("2.5x")
    field(page, "Nodes").press("Enter")
    expect(field(page, "Nodes")).to_have_value("2.5x")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_errors_and_arrows_are_seen_on_either_theme(
    page: Page, explorer: Server, scheme: str
) -> None:
    """Error text has a contrast of 4.5 or more (WCAG 2.2, 1.4.3); arrows take the ink's color."""
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    opened(page, explorer.address)
    field(page, "Nodes").fill("many")
    error = page.locator(".sw-field", has=field(page, "Nodes")).locator(".sw-error")
    expect(error).to_contain_text("allowed")
    paper, text = error.evaluate(_PAINTED)
    assert contrast(paper, text) >= 4.5
    arrow = page.get_by_label("GPU", exact=True).evaluate(
        "e => getComputedStyle(e).backgroundImage.match(/rgba?\\([^)]*\\)/g)[1]"
    )
    shade = [float(part) for part in re.findall(r"[\d.]+", arrow)[:3]]
    assert contrast(paper, shade) >= 4.5


_PAINTED = """element => {
  const context = document.createElement('canvas').getContext('2d');
  let below = element;
  while (/^(transparent|rgba\\(.*, 0\\))$/.test(getComputedStyle(below).backgroundColor)) {
    below = below.parentElement;
  }
  const painted = [below, element].map((e, text) => {
    context.fillStyle = getComputedStyle(e)[text ? 'color' : 'backgroundColor'];
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  });
  return painted;
}"""
"""What lies under an element and its letters over that, as the page paints them."""


def contrast(one: list[float], other: list[float]) -> float:
    """Contrast ratio of two sRGB colors (WCAG 2.2: (L1 + 0.05) / (L2 + 0.05))."""
    lights = []
    for color in (one, other):
        parts = [part / 255 for part in color]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_every_control_is_reached_by_the_tab_key(page: Page, explorer: Server) -> None:
    """Tabbing through the page meets model, card, fields, sliders, tabs and details."""
    opened(page, explorer.address)
    page.locator("body").press("Tab")
    met = []
    for _ in range(60):
        met.append(
            page.evaluate(
                "(() => { const e = document.activeElement; return e.getAttribute('aria-label') ||"
                " e.labels?.[0]?.innerText || e.innerText || e.tagName })()"
            )
        )
        page.keyboard.press("Tab")
    for wanted in ("GPU", "GPUs per node", "Nodes", "Link in a node", "Table and downloads", "Why"):
        assert any(wanted in text for text in met), (wanted, met)


@pytest.mark.parametrize("text", ["abc", "-3", "1,000", "٣", "<img src=x onerror=alert(1)>", ""])
def test_bad_input_is_a_sentence_and_the_picture_stays(
    page: Page, explorer: Server, text: str
) -> None:
    """The field says what is allowed; decision and charts stay; a good number mends it."""
    opened(page, explorer.address)
    before = headline(page)
    field(page, "Nodes").fill(text)
    error = page.locator(".sw-field", has=field(page, "Nodes")).locator(".sw-error")
    expect(error).to_contain_text("allowed: a whole number from 1 to 100000")
    assert headline(page) == before
    assert page.locator(DRAWN).count() == 3
    field(page, "Nodes").fill("2")
    expect(error).to_have_text("")


def test_a_pasted_config_with_markup_stays_text(page: Page, explorer: Server) -> None:
    """Script in a config's name is neither run nor lost; a broken config is explained."""
    opened(page, explorer.address)
    page.get_by_label("Model", exact=True).select_option("a config.json")
    box = page.locator("textarea")
    box.fill('{"model_type": ')
    box.blur()
    expect(page.get_by_role("alert").first).to_contain_text("allowed")
    expect(page.get_by_text("still the last model that worked").first).to_be_visible()
    config = json.loads((ROOT / "data/models/llama-3-8b.json").read_text(encoding="utf-8"))
    config["_name_or_path"] = "<script>window.hacked = 1</script>"
    box.fill(json.dumps(config))
    box.blur()
    expect(page.get_by_role("alert")).to_have_count(0)
    assert page.evaluate("window.hacked") is None
    expect(page.get_by_text("8.03 B parameters need 128.5 GB")).to_be_visible()


def test_a_hub_id_is_answered_with_the_catalogue_s_nearest(page: Page, explorer: Server) -> None:
    """Pasted where a config belongs: the nearest model, and that nothing is downloaded."""
    opened(page, explorer.address)
    page.get_by_label("Model", exact=True).select_option("a config.json")
    page.locator("textarea").fill("meta-llama/Meta-Llama-3-8B")
    page.locator("textarea").blur()
    expect(page.get_by_role("alert").first).to_contain_text(
        "nothing is downloaded: the catalogue's nearest is 'llama-3-8b'"
    )


@pytest.mark.parametrize("width", [360, 800])
def test_a_dropdown_shows_the_whole_name_of_what_is_chosen(
    page: Page, explorer: Server, width: int
) -> None:
    """Its label stands above, so that a card's name is not cut on a narrow screen."""
    page.set_viewport_size({"width": width, "height": 1200})
    opened(page, explorer.address)
    for label in ("GPU", "Name", "Model"):
        chosen = page.get_by_label(label, exact=True)
        assert chosen.evaluate(_CHOSEN_WIDTH) <= chosen.evaluate("e => e.clientWidth - 24"), label


_CHOSEN_WIDTH = """select => {
  const context = document.createElement('canvas').getContext('2d');
  context.font = getComputedStyle(select).font;
  return context.measureText(select.selectedOptions[0].text).width;
}"""
"""Pixels that the chosen name takes; 24 more are left for the arrow and the padding."""


def test_tabs_show_the_other_charts_and_the_formulas(page: Page, explorer: Server) -> None:
    """More GPUs, layers and numbers appear when asked for."""
    opened(page, explorer.address)
    page.get_by_role("tab", name="GPUs", exact=True).click()
    expect(page.locator(DRAWN)).to_have_count(4)
    expect(page.get_by_text("ZeRO-3 / FSDP is under the line from")).to_be_visible()
    expect(page.get_by_text("With the training as it is set")).to_be_visible()
    page.get_by_role("tab", name="Layers").click()
    expect(page.locator(DRAWN)).to_have_count(5)
    expect(page.get_by_text("The largest layer is")).to_be_visible()
    page.get_by_role("tab", name="Numbers").click()
    page.get_by_text("activations:").first.click()
    expect(page.get_by_text("Korthikanti et al. 2022").first).to_be_visible()


def test_a_program_that_cannot_be_written_cannot_be_pressed(page: Page, explorer: Server) -> None:
    """With adapters both programs' buttons are off, and the reason stands under them."""
    opened(page, explorer.address)
    page.get_by_role("tab", name="Files").click()
    button = page.get_by_role("button", name="FSDP program")
    expect(button).to_be_enabled()
    page.get_by_role("tab", name="Training", exact=True).click()
    page.get_by_label("Trained", exact=True).select_option("LoRA: adapters, base in 16 bits")
    expect(button).to_be_disabled()
    expect(page.get_by_role("button", name="DeepSpeed")).to_be_disabled()
    expect(page.get_by_text("Cannot be written: training.trainable").first).to_be_visible()


def test_files_are_saved_for_the_scenario(page: Page, explorer: Server) -> None:
    """Numbers as CSV, the FSDP program and the DeepSpeed configuration."""
    opened(page, explorer.address + "?v=1&parameters=30e9")
    page.get_by_role("tab", name="Files").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Numbers (CSV)").click()
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text("utf-8"))))
    assert {"DDP", "ZeRO-3 / FSDP"} <= {row["strategy"] for row in rows}
    with page.expect_download() as waiting:
        page.get_by_role("button", name="DeepSpeed").click()
    assert "zero_optimization" in json.loads(Path(waiting.value.path()).read_text("utf-8"))
    with page.expect_download() as waiting:
        page.get_by_role("button", name="FSDP program").click()
    compile(Path(waiting.value.path()).read_text("utf-8"), "program", "exec")


@pytest.mark.parametrize("name", list(PANELS))
def test_each_small_notebook_opens_under_voila(
    page: Page, serve: Callable[..., Server], name: str
) -> None:
    """One panel a notebook: its charts are drawn without an error."""
    server = serve(NOTEBOOKS / f"{name}.ipynb", pool=0, name=name)
    opened(page, server.address, PANELS[name])


@pytest.fixture
def notebooks_in_lab(tmp_path: Path) -> Iterator[Server]:
    """JupyterLab, as Shardwise configures it, on a copy of the explorer's notebook."""
    shutil.copy(NOTEBOOKS / "explorer.ipynb", tmp_path)
    with jupyterlab(tmp_path) as server:
        yield server


def test_the_explorer_works_in_jupyterlab(notebooks_in_lab: Server, page: Page) -> None:
    """Run the cell: the same page in a notebook, and the address of JupyterLab is left alone."""
    page.goto(f"{notebooks_in_lab.address}lab/tree/explorer.ipynb?reset")
    page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for(timeout=60_000)
    expect(page.get_by_text("official Jupyter news")).to_have_count(0)
    page.locator(".jp-Notebook .jp-CodeCell .jp-Editor").first.click()
    page.keyboard.press("Shift+Enter")
    expect(page.locator(DRAWN).first).to_be_visible(timeout=60_000)
    page.get_by_role("slider", name="Nodes").focus()
    page.keyboard.press("ArrowRight")
    expect(field(page, "Nodes")).to_have_value("2")
    assert "nodes=" not in page.url
