"""Charts, fields, links and files in a real browser under Voila and in JupyterLab."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import chromium as chromium_module
import pytest
from playwright.sync_api import BrowserContext, Download, Locator, Page, expect
from probe import SCRIPT, press_arrows, timed_moves
from servers import Server, wait_until

CHARTS = ".sw-chart[data-drawn]"


def opened(page: Page, address: str, charts: int = 5) -> Page:
    """The page once that many charts have been drawn."""
    page.goto(address)
    expect(page.locator(CHARTS)).to_have_count(charts)
    return page


def summaries(page: Page) -> list[str]:
    """The sentences under the charts."""
    return page.locator(".sw-summary").all_inner_texts()


def shows(page: Page, gpus: int, charts: int = 5) -> None:
    """Wait until each chart says this number of GPUs."""
    sentence = page.locator(".sw-summary", has_text=f"On {gpus} GPUs ")
    expect(sentence).to_have_count(charts)


def bar_widths(chart: Locator) -> list[float]:
    """The widths of a chart's bars, in pixels."""
    return chart.locator(".mark-rect path").evaluate_all(
        "bars => bars.map((bar) => bar.getBoundingClientRect().width)"
    )


def saved(page: Page, press: Locator) -> Download:
    """What the browser saves when this is pressed."""
    with page.expect_download() as waiting:
        press.click()
    return waiting.value


def content(download: Download) -> bytes:
    """The bytes of a saved file."""
    return Path(str(download.path())).read_bytes()


def test_no_move_is_lost_and_the_last_is_shown(page: Page, preheated: Server) -> None:
    """200 presses at 30 a second are 200 answers of one message, and all charts end on the last.

    Whatever else the machine does may stall a run, so one of three must lose nothing.
    """
    page.add_init_script(SCRIPT)
    for _ in range(3):
        opened(page, preheated.address)
        moves = timed_moves(page, 200)
        assert moves.presses == 200
        assert moves.messages_per_move == 1
        shows(page, 208)
        zero3 = bar_widths(page.locator(CHARTS).last)[-1]
        assert 0 < zero3 < 2  # 7e9 * 4 / 208 bytes are 0.13 GiB of an axis of 120 GiB
        if moves.lost == 0:
            return
    assert moves.lost == 0


def test_bars_follow_the_rows(page: Page, preheated: Server) -> None:
    """Twice the GPUs halve the sharded bars and leave the others alone."""
    opened(page, preheated.address)
    box = page.get_by_label("Number of GPUs").first
    box.fill("4")
    box.press("Enter")
    shows(page, 4)
    before = bar_widths(page.locator(CHARTS).first)
    box.fill("8")
    box.press("Enter")
    shows(page, 8)
    after = bar_widths(page.locator(CHARTS).first)
    assert len(after) == 20
    assert after[:5] == pytest.approx(before[:5], abs=0.6)
    assert sum(after[15:]) == pytest.approx(sum(before[15:]) / 2, rel=0.1)


@pytest.mark.parametrize(
    "text", ["many", "1,000", "-4", "", "1e99", "<img src=x onerror=alert(1)>"]
)
def test_bad_text_is_explained_at_the_field(page: Page, preheated: Server, text: str) -> None:
    """The sentence is tied to the box, the text stays, the charts keep the last good number."""
    opened(page, preheated.address)
    box = page.get_by_role("textbox", name="Number of GPUs")
    box.fill(text)
    box.press("Enter")
    expect(box).to_have_attribute("aria-invalid", "true")
    described = (box.get_attribute("aria-describedby") or "").split()
    sentences = [page.locator(f"[id='{name}']").inner_text() for name in described]
    assert any(sentence.startswith("gpus is ") for sentence in sentences)
    assert box.input_value() == text
    shows(page, 8)
    assert page.locator("img").count() == 0
    box.fill("16")
    box.press("Enter")
    expect(box).to_have_attribute("aria-invalid", "false")
    shows(page, 16)


def test_the_slider_has_a_name_and_speaks_its_unit(page: Page, preheated: Server) -> None:
    """Arrows, Home and End move it; a screen reader hears number and unit."""
    opened(page, preheated.address)
    slider = page.get_by_role("slider", name="Number of GPUs")
    slider.focus()
    for key, gpus in (("ArrowRight", 9), ("ArrowLeft", 8), ("End", 1024), ("Home", 1)):
        page.keyboard.press(key)
        expect(slider).to_have_attribute("aria-valuetext", f"{gpus} GPUs")
        shows(page, gpus)
    box = page.get_by_role("textbox", name="Number of GPUs")
    box.focus()
    page.keyboard.press("ArrowUp")
    shows(page, 2)
    assert box.input_value() == "2"


def test_words_are_words(page: Page, preheated: Server) -> None:
    """Markup in a text is shown, not run."""
    opened(page, preheated.address)
    expect(page.locator(".sw-text p").first).to_have_text("8 GPUs <img src=x onerror=alert(1)>")
    expect(page.locator(".sw-step[data-state=failed]")).to_contain_text("does not fit: DDP")


def test_the_table_holds_the_rows_of_the_chart(page: Page, preheated: Server) -> None:
    """A real table, drawn when it is opened, that follows the moves."""
    opened(page, preheated.address)
    chart = page.locator(CHARTS).first
    assert chart.locator("table").count() == 0
    chart.locator("summary").focus()
    page.keyboard.press("Enter")
    assert chart.locator("thead th").all_inner_texts() == ["Strategy", "Part", "Memory (GiB)"]
    expect(chart.locator("tbody tr")).to_have_count(20)
    expect(chart.locator("tbody tr").last.locator("td").last).to_have_text("3.26")
    page.get_by_role("slider").first.focus()
    page.keyboard.press("End")
    expect(chart.locator("tbody tr").last.locator("td").last).to_have_text("0.02547")


def test_a_screen_reader_hears_where_a_drag_ends(page: Page, preheated: Server) -> None:
    """The live region says one sentence, not thirty."""
    opened(page, preheated.address)
    page.evaluate("""() => {
      window.said = [];
      const region = document.querySelector(".sw-chart .sw-said");
      new MutationObserver(() => region.textContent && said.push(region.textContent))
        .observe(region, { childList: true });
    }""")
    press_arrows(page, 30)
    page.wait_for_function("said.length > 0")
    assert page.evaluate("said") == ["On 38 GPUs the states take 2.7 GiB."]


def test_a_chart_saves_its_picture_and_its_numbers(page: Page, preheated: Server) -> None:
    """SVG and PNG hold real colors; CSV and JSON hold the rows at full precision."""
    opened(page, preheated.address)
    chart = page.locator(CHARTS).first
    chart.locator("summary").click()
    files = {
        kind: saved(page, chart.get_by_role("button", name=f"Download {kind}"))
        for kind in ("SVG", "PNG", "CSV", "JSON")
    }
    assert files["SVG"].suggested_filename == "memory-by-strategy-1.svg"
    svg = content(files["SVG"]).decode()
    assert svg.startswith("<svg") and "var(" not in svg and "#0072B2" in svg
    assert content(files["PNG"]).startswith(b"\x89PNG\r\n")
    assert len(content(files["PNG"])) > 5000
    table = list(csv.reader(io.StringIO(content(files["CSV"]).decode(), newline="")))
    assert table[0] == ["Strategy", "Part", "Memory (GiB)"]
    assert float(table[20][2]) == 7e9 * 4 / 2**30 / 8
    rows = json.loads(content(files["JSON"]))
    assert rows[19]["gib"] == 7e9 * 4 / 2**30 / 8


def test_python_makes_files_when_asked(page: Page, preheated: Server) -> None:
    """Text and bytes arrive whole; a refusal is a sentence."""
    opened(page, preheated.address)
    page.get_by_role("slider").first.focus()
    page.keyboard.press("End")
    shows(page, 1024)
    text = saved(page, page.get_by_role("button", name="Numbers"))
    assert text.suggested_filename == "numbers.csv"
    assert content(text) == b"gpus\r\n1024\r\n"
    data = saved(page, page.get_by_role("button", name="Bytes"))
    assert content(data) == bytes([0, 255, 1])
    page.get_by_role("button", name="Refused").click()
    sentence = page.locator(".sw-download [role=alert]", has_text="choose more GPUs")
    expect(sentence).to_have_text(
        "scenario is '<b>x</b>'; allowed: a scenario that fits; choose more GPUs."
    )


@pytest.mark.parametrize("kind", ["preheated", "cold"])
def test_a_link_opens_the_same_scenario(
    page: Page, kind: str, request: pytest.FixtureRequest
) -> None:
    """What the address holds is shown, whether the kernel ran before or not."""
    server = request.getfixturevalue(kind)
    opened(page, f"{server.address}?v=1&gpus=64")
    shows(page, 64)
    assert page.get_by_role("textbox", name="Number of GPUs").input_value() == "64"
    press_arrows(page, 3)
    page.wait_for_url("**/?v=1&gpus=67")
    page.reload()
    shows(page, 67)
    expect(page.get_by_label("Link to this scenario")).to_have_value(page.url)


def test_a_bad_link_is_explained_at_the_field(page: Page, preheated: Server) -> None:
    """A link that asks for the impossible shows the default and says why."""
    opened(page, f"{preheated.address}?gpus=minus")
    box = page.get_by_role("textbox", name="Number of GPUs")
    expect(box).to_have_attribute("aria-invalid", "true")
    shows(page, 8)


def test_a_long_drag_leaves_the_address_in_peace(page: Page, preheated: Server) -> None:
    """Chromium refuses more than 200 changes of the address in 30 s; a drag makes one."""
    page.add_init_script("""
      window.writes = 0;
      const replace = history.replaceState.bind(history);
      history.replaceState = (...all) => { writes += 1; return replace(...all); };
    """)
    opened(page, preheated.address)
    before = page.evaluate("writes")
    press_arrows(page, 60)
    page.wait_for_url("**/?v=1&gpus=68")
    assert page.evaluate("writes") - before <= 3


def test_the_link_can_be_copied(context: BrowserContext, page: Page, preheated: Server) -> None:
    """The button copies what the box shows and says so."""
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened(page, f"{preheated.address}?gpus=5")
    shows(page, 5)
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator(".sw-link [role=status]")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == f"{preheated.address}?v=1&gpus=5"


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_charts_follow_their_box(page: Page, preheated: Server, width: int) -> None:
    """No sideways scrolling at any width, and a chart fills its box after a resize."""
    opened(page, preheated.address)
    page.set_viewport_size({"width": width, "height": 900})
    fits = """() => [...document.querySelectorAll(".sw-plot")].every((box) => {
      const svg = box.querySelector("svg").getBoundingClientRect().width;
      return Math.abs(svg - box.clientWidth) <= 1.5;
    })"""
    page.wait_for_function(fits)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


INK = "getComputedStyle(document.querySelector('.sw-plot .role-axis-label text')).fill"


def brightness(color: str) -> int:
    """The sum of red, green and blue of `rgb(...)`, at most 765."""
    return sum(int(float(part)) for part in color[color.index("(") + 1 : -1].split(",")[:3])


@pytest.mark.parametrize(
    ("context", "dark"),
    [({"color_scheme": "light"}, False), ({"color_scheme": "dark"}, True)],
    indirect=["context"],
)
def test_voila_follows_the_system_s_scheme(page: Page, preheated: Server, dark: bool) -> None:
    """Whoever set the system to dark gets light letters on dark paper, in charts too."""
    opened(page, preheated.address)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (brightness(page.evaluate(INK)) > 450) is dark
    assert (brightness(paper) < 300) is dark


def test_a_new_theme_needs_no_new_chart(page: Page, preheated: Server) -> None:
    """Letters change with the theme while the picture stays the same element."""
    opened(page, preheated.address)
    assert brightness(page.evaluate(INK)) < 300
    page.evaluate("window.before = document.querySelector('.sw-plot svg')")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"!{INK}.startsWith('rgba(0, 0, 0')")
    assert brightness(page.evaluate(INK)) > 450
    assert page.evaluate("before === document.querySelector('.sw-plot svg')")


def test_hidden_and_far_charts_catch_up(page: Page, serve: Callable[..., Server]) -> None:
    """A chart in a closed tab is drawn when the tab opens, one far below while nothing moves."""
    opened(page, serve("hidden_tab.ipynb", pool=0).address, charts=1)
    press_arrows(page, 10)
    expect(page.locator(CHARTS)).to_have_attribute("data-drawn", "11")
    assert page.locator(CHARTS).count() == 1
    assert "18 GPUs" in summaries(page)[-1]
    page.get_by_role("tab", name="Charts").click()
    expect(page.locator(CHARTS)).to_have_count(3)
    shows(page, 18, charts=3)
    boxes = [box.bounding_box() for box in page.locator(".sw-plot svg").all()]
    assert boxes[0] is not None and boxes[1] is not None
    assert 400 < boxes[0]["width"] < 620
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"] + 1


def test_a_bad_spec_is_a_sentence_and_keeps_the_picture(
    page: Page, serve: Callable[..., Server]
) -> None:
    """The last good picture stays until a good spec replaces it."""
    opened(page, serve("bad_spec.ipynb", pool=0).address, charts=1)
    page.get_by_role("button", name="Break").click()
    sentence = page.locator(".sw-chart .sw-error")
    expect(sentence).to_contain_text("This chart could not be drawn: ")
    assert len(bar_widths(page.locator(CHARTS))) == 20
    page.get_by_role("button", name="Repair").click()
    expect(sentence).to_be_hidden()
    press_arrows(page, 2)
    shows(page, 10, charts=1)
    assert len(bar_widths(page.locator(CHARTS))) == 20


def test_nothing_grows(page: Page, context: BrowserContext, preheated: Server) -> None:
    """2,000 moves leave no element, no listener and no memory behind."""
    page.add_init_script(SCRIPT)
    opened(page, preheated.address)
    session = context.new_cdp_session(page)
    session.send("Performance.enable")
    drag = """async ([from, moves]) => {
      const slider = document.querySelector("input[type=range]");
      for (let i = 0; i < moves; i += 1) {
        slider.value = (from + i) % 1000;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        await new Promise((resolve) => setTimeout(resolve, 12));
      }
      await new Promise((resolve) => setTimeout(resolve, 1500));
      return __probe.heap();
    }"""

    def state(start: int, moves: int) -> tuple[float, float, float]:
        heap = page.evaluate(drag, [start, moves])
        metrics = session.send("Performance.getMetrics")["metrics"]
        named = {metric["name"]: metric["value"] for metric in metrics}
        return heap / 1e6, named["Nodes"], named["JSEventListeners"]

    heap, nodes, listeners = state(0, 300)
    more_heap, more_nodes, more_listeners = state(301, 2000)
    assert more_nodes - nodes < 300
    assert more_listeners - listeners <= 2
    assert more_heap - heap < 5


def test_a_kernel_goes_when_its_tab_is_closed(
    context: BrowserContext, serve: Callable[..., Server]
) -> None:
    """An open page keeps its kernel however idle; a closed one does not; the pool stays.

    The second visitor gets a kernel that was idle in the pool for longer than idle kernels live.
    """
    short = ("--MappingKernelManager.cull_interval=1", "--MappingKernelManager.cull_idle_timeout=4")
    server = serve("building_blocks.ipynb", *short, pool=1, name="cull")
    page = opened(context.new_page(), server.address)
    wait_until(lambda: len(server.kernels()) == 2, 30, "the refilled pool")
    page.wait_for_timeout(10_000)
    assert len(server.kernels()) == 2
    press_arrows(page, 2)
    shows(page, 10)
    page.close()
    wait_until(lambda: len(server.kernels()) == 1, 30, "the end of the kernel")
    page = opened(context.new_page(), server.address)
    press_arrows(page, 2)
    shows(page, 10)


def test_voila_serves_pages_and_no_files(page: Page, preheated: Server) -> None:
    """Sources and settings are not to be had."""
    for name in ("building_blocks.py", "building_blocks.ipynb", "../conftest.py"):
        path = f"voila/files/{name}"
        answer = page.request.get(f"{preheated.address}{path}")
        assert answer.status in {403, 404}, path


def run_in_lab(page: Page, server: Server) -> None:
    """Open the notebook in JupyterLab and run it."""
    page.goto(f"{server.address}lab/tree/building_blocks.ipynb?reset")
    page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()
    page.locator(".jp-Notebook .jp-CodeCell .jp-Editor").first.click()
    page.keyboard.press("Shift+Enter")
    page.locator(CHARTS).first.wait_for()


def choose_theme(page: Page, name: str) -> None:
    """Through the menu, as people do."""
    for label in ("Settings", "Theme", name):
        bar = ".lm-MenuBar-itemLabel" if label == "Settings" else ".lm-Menu-itemLabel"
        item = page.locator(bar).get_by_text(label, exact=True)
        item.hover() if label == "Theme" else item.click()


def test_the_same_widgets_work_in_jupyterlab(page: Page, lab: Server) -> None:
    """Charts follow the slider; JupyterLab's own address is left alone; the link leads to Voila."""
    run_in_lab(page, lab)
    address = page.url
    press_arrows(page, 20)
    shows(page, 28)
    chart = page.locator(CHARTS).first
    chart.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(chart.locator("tbody tr")).to_have_count(20)
    link = page.get_by_label("Link to this scenario")
    expect(link).to_have_value(f"{lab.address}voila/render/building_blocks.ipynb?v=1&gpus=28")
    assert page.url == address


def test_jupyterlab_s_themes_reach_the_charts(page: Page, lab: Server) -> None:
    """The menu's dark theme gives light letters to the chart that is there."""
    run_in_lab(page, lab)
    assert brightness(page.evaluate(INK)) < 300
    page.evaluate("window.before = document.querySelector('.sw-plot svg')")
    choose_theme(page, "JupyterLab Dark")
    page.wait_for_function(f"{INK}.startsWith('rgb(255') || {INK}.startsWith('rgba(255')")
    assert page.evaluate("before === document.querySelector('.sw-plot svg')")
    choose_theme(page, "JupyterLab Light")
    page.wait_for_function(f"{INK}.startsWith('rgb(0') || {INK}.startsWith('rgba(0')")


def test_a_machine_without_chromium_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence, and no skipped test."""
    monkeypatch.setattr(chromium_module.shutil, "which", lambda _: None)
    with pytest.raises(RuntimeError, match="apt-get install chromium"):
        chromium_module.chromium_path()
