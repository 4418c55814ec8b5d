"""Players and controls in a real JupyterLab: run, moved by mouse and keyboard, in a light and a dark theme.

``WORKBENCH_SCREENSHOTS=FOLDER`` keeps the pictures for a person to look at.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.notebooks.jupyterlab import FLAGS, open_notebook, run_all, serve, set_theme

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

RUN = """
from tests.engine.paged_fake import open_engine
from workbench import SamplingParams
from workbench.lab import *

engine = open_engine(enable_prefix_caching=True, num_kv_blocks=12, max_num_batched_tokens=16, max_num_seqs=3)
engine.runner.during = lambda plan: engine.clock.advance(0.002 + 0.001 * plan.num_tokens)
with Watch(engine) as run:
    engine.add_request([1] * 10, SamplingParams(max_tokens=8, ignore_eos=True, n=2, temperature=1), request_id="A")
    engine.add_request([1] * 22, SamplingParams(max_tokens=10, ignore_eos=True), request_id="가나다")
    engine.add_request([2] * 6, SamplingParams(max_tokens=12, ignore_eos=True), request_id="request-000017")
    while engine.has_unfinished():
        engine.step()
len(run.traces)
"""
CELLS = {
    "run": RUN,
    "timeline": "show(Player(timeline_frames(run.traces, budget=16, slots=3)), timeline(run.traces))",
    "time": "show(Player(timeline_frames(run.traces, by_time=True)), 'by time')",
    "memory": "show(Player(memory_map_frames(run.traces, run.snapshots)), memory_map(run.traces, run.snapshots))",
    "blocks": "show(Player(block_table_frames(run.traces, run.snapshots)), 'blocks')",
    "lives": "show(explore(lambda who: render_lifeline(run.traces, who), {'who': control('request', "
    "choices=['A', '가나다', 'request-000017'])}, height=280), 'lives')",
    "figure": """
def draw(budget):
    from matplotlib.figure import Figure
    if budget == 4:
        raise ValueError("a budget of 4 is one too few")
    figure = Figure(figsize=(5, 2))
    axes = figure.subplots()
    axes.plot([1, budget], marker="o")
    axes.set_title(f"budget {budget}")
    return figure

show(explore(draw, {"budget": control("budget", low=1, high=8, default=3, unit="tokens")}, height=260), lambda: draw(3))
""",
    "slow": "show(run_button(lambda: timeline(run.traces), seconds=3), 'a slow thing')",
    "tree": """
from tests.text.test_detokenizer import shared
prompts = {"one": "Hi, what is the weather like today?", "two": "Hi, what is the weather like now?"}
playground = PrefixPlayground(shared(), prompts)
show(playground, playground.static(["one", "two"]))
""",
    "linter": """
text = "You are a careful assistant of the harbour office. Answer in two sentences and name the document you used."
clock = {f"p{at}": [("now", f"It is 2026-11-30 09:1{at}"), ("system", text), ("user", f"Question <{at}>?")]
         for at in range(3)}
linter = prompt_linter(shared(), {"clock first": clock, "weather": prompts})
show(linter, lint_prompts(shared(), clock).heads())
""",
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab that serves one notebook of all widgets."""
    home = tmp_path_factory.mktemp("widgets")
    cells = [nbformat.v4.new_markdown_cell("# Widgets", id="head")]
    cells += [nbformat.v4.new_code_cell(source.strip(), id=name) for name, source in CELLS.items()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}}
    (home / "notebooks").mkdir()
    nbformat.write(notebook, home / "notebooks" / "widgets.ipynb")
    with serve(home) as address:
        yield address


def test_widgets_move_in_jupyterlab(lab: str, chromium: str, tmp_path: Path):
    from playwright.sync_api import sync_playwright

    pictures = Path(os.environ.get("WORKBENCH_SCREENSHOTS") or tmp_path)
    pictures.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        open_notebook(page, lab.format(name="widgets.ipynb"))
        cells = run_all(page, pictures / "widgets-stuck.png")
        assert [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"] == []

        timeline = _cell(page, "timeline")
        timeline.locator("svg[role=img]").wait_for(timeout=60_000)
        _slide(page, timeline)
        _play(page, timeline)
        _slide(page, _cell(page, "blocks"))
        _slide(page, _cell(page, "time"))
        _slide(page, _cell(page, "memory"))
        _choose(_cell(page, "lives"))
        _fail_and_recover(page, _cell(page, "figure"))
        _press(_cell(page, "slow"))
        _type_prompts(page, _cell(page, "tree"))
        _lint(_cell(page, "linter"))
        for theme in ("Light", "Dark"):
            set_theme(page, theme)
            for name in list(CELLS)[1:]:
                cell = _cell(page, name)
                cell.scroll_into_view_if_needed()
                cell.screenshot(path=pictures / f"widgets-{name}-{theme.lower()}.png")
            for name in ("timeline", "blocks", "memory", "lives", "tree", "linter"):
                _assert_readable(_cell(page, name))
        assert complaints == []
        browser.close()


def _cell(page: Any, name: str) -> Any:
    """The cell of that id."""
    return page.locator(".jp-NotebookPanel:visible .jp-CodeCell").nth(list(CELLS).index(name))


def _slide(page: Any, cell: Any) -> None:
    """One step on and to the end with the keyboard: the picture changes, its place and size do not."""
    picture, readout = cell.locator("svg[role=img]"), cell.locator(".widget-readout")
    cell.scroll_into_view_if_needed()
    first, size = picture.inner_html(), _size(page, picture)
    cell.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowRight")
    _until(page, lambda: readout.inner_text().strip() == "1" and picture.inner_html() != first)
    page.keyboard.press("End")
    last = cell.locator(".widget-label", has_text="of").first.inner_text()
    _until(page, lambda: f"of {readout.inner_text().strip()})" in last)
    assert _size(page, picture) == size
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(300)


def _size(page: Any, picture: Any) -> tuple[float, float]:
    """Width and height. While one picture takes the place of another there is none for a moment."""
    found: list[Any] = []
    _until(page, lambda: found.append(picture.bounding_box()) or found[-1] is not None)
    return found[-1]["width"], found[-1]["height"]


def _play(page: Any, cell: Any) -> None:
    """The play button moves the slider, and with it the picture that the kernel draws."""
    readout, picture = cell.locator(".widget-readout"), cell.locator("svg[role=img]")
    before, drawn = readout.inner_text(), picture.inner_html()
    buttons = cell.locator(".widget-play button")
    buttons.first.click()
    _until(page, lambda: readout.inner_text() != before and picture.inner_html() != drawn)
    buttons.first.click()
    page.wait_for_timeout(1000)


def _choose(cell: Any) -> None:
    cell.locator("select").select_option("request-000017")
    cell.locator("svg[role=img] > title", has_text="request-000017").wait_for(state="attached", timeout=60_000)


def _fail_and_recover(page: Any, cell: Any) -> None:
    cell.scroll_into_view_if_needed()
    image = cell.locator(".widget-html-content img")
    image.wait_for(timeout=30_000)
    cell.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowRight")
    cell.get_by_role("alert").filter(has_text="one too few").wait_for(timeout=30_000)
    page.keyboard.press("ArrowRight")
    cell.locator(".widget-html-content img[alt='budget 5']").wait_for(timeout=30_000)


def _press(cell: Any) -> None:
    cell.get_by_role("button", name=re.compile(r"Run \(about 3 s\)")).click()
    cell.locator(".widget-html-content table").wait_for(timeout=30_000)


def _type_prompts(page: Any, cell: Any) -> None:
    """Chosen, typed and sent; what is found shows in the tree; a setting changes it; what cannot run says why."""
    cell.scroll_into_view_if_needed()
    run, picture = cell.get_by_role("button", name="Run", exact=True), cell.locator("svg[role=img]")
    run.click()
    picture.wait_for(timeout=30_000)
    cell.locator("select").nth(4).select_option("two")
    _until(page, lambda: "now" in cell.locator("textarea").input_value())
    run.click()
    found = picture.locator("text").first
    found.filter(has_text="2: 4 of 9 tokens found in 1 block").wait_for(timeout=60_000)
    cell.locator("select").nth(0).select_option("1")
    found.filter(has_text="2: 7 of 9 tokens found in 7 blocks").wait_for(timeout=60_000)
    cell.locator("textarea").fill("한글 <b>🙂</b>")
    cell.locator("input[type=checkbox]").check()
    run.click()
    found.filter(has_text="3: 0 of").wait_for(timeout=60_000)
    picture.locator("g[data-state=held]").first.wait_for(state="attached", timeout=60_000)
    cell.locator("textarea").fill("word " * 70)
    _click_until(run, cell.get_by_role("alert").filter(has_text="shorten the prompt"))
    cell.locator("textarea").fill("")
    _click_until(run, cell.get_by_role("alert").filter(has_text="prompt is empty"))
    cell.locator("select").nth(3).select_option("32")
    cell.locator("textarea").fill("Hi, what is the weather like in Seoul, and in Busan in May?")
    run.click()
    picture.locator("g[data-gone]").first.wait_for(state="attached", timeout=60_000)


def _click_until(button: Any, shown: Any) -> None:
    """On a busy machine a click may overtake the text that was typed before it: then it is clicked again, which in
    vain changes nothing."""
    from playwright.sync_api import TimeoutError as TooLong

    for _ in range(5):
        button.click()
        with contextlib.suppress(TooLong):
            shown.wait_for(timeout=12_000)
            return
    shown.wait_for(timeout=1)


def _lint(cell: Any) -> None:
    """The finding and its remedy show; in the suggested layout more is found; another set, another picture."""
    cell.scroll_into_view_if_needed()
    picture, result = cell.locator("svg[role=img]"), cell.locator(".widget-html-content")
    picture.wait_for(timeout=30_000)
    result.get_by_text("a date and time stands in").first.wait_for(timeout=60_000)
    cell.locator("select").nth(1).select_option("16")
    picture.locator("g[data-prompt=p2][data-found='16']").wait_for(state="attached", timeout=60_000)
    cell.locator("select").nth(2).select_option("as suggested")
    picture.locator("g[data-prompt=p2][data-found='32']").wait_for(state="attached", timeout=60_000)
    cell.locator("input[type=checkbox]").check()
    picture.locator("text", has_text="template").first.wait_for(state="attached", timeout=60_000)
    cell.locator("select").nth(0).select_option("weather")
    picture.locator("g[data-prompt=two]").wait_for(state="attached", timeout=60_000)
    cell.locator("select").nth(0).select_option("clock first")
    picture.locator("g[data-prompt=p2]").wait_for(state="attached", timeout=60_000)


def _assert_readable(cell: Any) -> None:
    """The text of a picture has the colour of the page's text and not that of its ground."""
    text, ground = cell.locator("svg[role=img]").evaluate("""e => {
        const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number); return 0.3*r + 0.6*g + 0.1*b }
        let back = e
        while (back && /rgba\\(0, 0, 0, 0\\)|transparent/.test(getComputedStyle(back).backgroundColor))
            back = back.parentElement
        return [light(getComputedStyle(e.querySelector('text')).fill), light(getComputedStyle(back).backgroundColor)]
    }""")
    assert abs(text - ground) > 120, (text, ground)


def _until(page: Any, truth: Any) -> None:
    for _ in range(150):
        if truth():
            return
        page.wait_for_timeout(100)
    raise AssertionError("it did not come to pass in 15 s")
