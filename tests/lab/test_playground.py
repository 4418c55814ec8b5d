"""The playground: settings, awkward texts, its controls; what it shows is what the pool does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.lab.test_player import only, walk
from tests.text.test_detokenizer import shared
from workbench.errors import UsageError
from workbench.lab import PrefixPlayground, drive
from workbench.lab import playground as playground_module
from workbench.lab.prefix_runs import run_prompts

ROOT = Path(__file__).parents[2]
WEATHER = {
    "one": "Hi, what is the weather like today?",
    "two": "Hi, what is the weather like now?",
    "three": "What is the weather like today?",
}


def opened(prompts: dict[str, str] | None = None) -> PrefixPlayground:
    return PrefixPlayground(shared(), prompts or WEATHER)


def button(widget: Any, name: str) -> Any:
    return next(inner for inner in walk(widget) if getattr(inner, "description", "") == name)


def test_it_shows_what_the_pool_does() -> None:
    playground = opened()
    playground.set("block_size", 1)
    found = [playground.send(text).hit_tokens for text in WEATHER.values()]  # type: ignore[union-attr]
    prompts = {str(at): shared().encode(text) for at, text in enumerate(WEATHER.values(), 1)}
    runs = run_prompts(prompts, num_blocks=64, block_size=1)
    assert found == [run.hit_tokens for run in runs] == [0, 7, 0]
    assert [run.tree.nodes[0].blocks for run in playground.runs] == [run.tree.nodes[0].blocks for run in runs]
    playground.set("block_size", 16)
    assert [run.hit_tokens for run in playground.runs] == [0, 0, 0], "the same prompts again, under the new setting"


def test_a_prompt_that_goes_on_keeps_its_blocks_until_all_end() -> None:
    playground = opened()
    playground.set("pool_tokens", 32)
    playground.send(WEATHER["one"], keep=True)
    refused = playground.send("one two three four five six seven eight nine ten " * 2 + "one two three four five")
    assert refused is not None and "would wait until one has ended" in refused.refused
    assert "would wait" in playground.message
    playground.end_all()
    assert playground.runs[-1].refused == "" and playground.runs[-1].evicted
    playground.clear()
    assert playground.runs == [] and "empty" in playground.message
    with pytest.raises(UsageError, match="pool is empty"):
        _ = playground.player


AWKWARD = {
    "": "prompt is empty",
    "안녕하세요 세계": "",
    "🙂👩‍👩‍👧‍👦": "",
    "<b>&\"'</b>\n\t": "",
    " ": "",
    "word " * 300: "shorten the prompt or take a larger pool",
    "x" * 2001: "2001 characters, more than 2000",
    "\ud800": "surrogate",
    "\x00\x01\u202e": "",
}


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("index", ["radix", "hash"])
def test_awkward_texts_are_run_or_refused_in_words(text: str, index: str) -> None:
    playground = opened()
    widget = playground.widget
    playground.set("prefix_index", index)
    only(widget, "Textarea").value = text
    button(widget, "Run").value = True
    words = AWKWARD[text]
    told = playground._message.value
    assert words in playground.message and "Traceback" not in told
    if words:
        assert 'role="alert"' in told
        assert not playground.runs or playground.runs[-1].refused
    elif shared().encode(text):
        assert playground.runs[-1].num_tokens == len(shared().encode(text)) and 'role="status"' in told
        assert "<b>" not in playground.player.shown and "<b>" not in told
    else:
        assert "no token" in playground.message


def test_a_text_without_tokens_is_told() -> None:
    """The vocabulary lacks some control characters."""
    lost = next(c for c in map(chr, range(32)) if not shared().encode(c))
    playground = opened()
    assert playground.send(lost) is None and "no token in this text" in playground.message


def test_more_prompts_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playground_module, "MAX_PROMPTS", 2)
    playground = opened()
    assert playground.send("a") and playground.send("b") and playground.send("c") is None
    assert "Start over" in playground.message and len(playground.runs) == 2


def test_the_controls_do_what_they_say() -> None:
    playground = opened()
    widget = playground.widget
    assert all(
        inner.tabbable for inner in walk(widget) if getattr(inner, "description", "") and hasattr(inner, "tabbable")
    )
    text, keep = only(widget, "Textarea"), only(widget, "Checkbox")
    button(widget, "given prompts").value = WEATHER["two"]
    assert text.value == WEATHER["two"] and not text.continuous_update
    button(widget, "Run").value = True
    keep.value = True
    text.value = WEATHER["one"]
    button(widget, "Run").value = True
    assert [run.hit_tokens for run in playground.runs] == [0, 4]
    slider = only(widget, "IntSlider")
    assert (slider.value, slider.max) == (1, 1)
    slider.value = 0
    assert playground.player.shown == playground.player.frames[0]
    button(widget, "block size (tokens)").value = 1
    assert [run.hit_tokens for run in playground.runs] == [0, 7]
    assert playground.runs[1].tree.num_held and playground.values["block_size"] == 1
    button(widget, "End all that run").click()
    assert playground.send("x").tree.num_held == 1, "only the one that runs"  # type: ignore[union-attr]
    button(widget, "Start over").click()
    assert playground.runs == [] and not playground._player_box.children


def test_run_goes_back_by_itself_and_threads_do_not_mix() -> None:
    playground = opened()
    run = button(playground.widget, "Run")
    run.value = True
    assert run.value is False and len(playground.runs) == 1
    choices = (1, 4, 16)
    sends = [Thread(target=playground.send, args=(text,)) for text in WEATHER.values()]
    moves = [Thread(target=playground.set, args=("block_size", choices[at % 3])) for at in range(6)]
    for thread in (*sends, *moves):
        thread.start()
    for thread in (*sends, *moves):
        thread.join()
    assert len(playground.runs) == 4
    assert {run.tree.block_size for run in playground.runs} == {playground.values["block_size"]}
    assert playground.player.frames[-1] == playground.player.shown


def test_drive_sends_every_prompt_under_every_setting() -> None:
    playground = opened()
    playground.send("before")
    assert drive(playground, limit=1000) == 3 * 2 * 3 * 4
    assert [run.text for run in playground.runs] == ["before"]
    assert playground.values == {name: given.default for name, given in playground.controls.items()}
    assert drive(playground, limit=10) == 3 + 2 + 3 + 4


def test_drive_sees_a_picture_that_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    playground = opened()
    assert playground.widget
    playground.send("before")
    monkeypatch.setattr(PrefixPlayground, "_draw", lambda self: None)
    with pytest.raises(AssertionError, match="another picture"):
        drive(playground)


def test_the_static_form() -> None:
    playground = opened()
    table = playground.static(["one", "two", "three", "typed"])
    assert [row[2:5] for row in table.rows] == [[9, 0, 0], [9, 4, 1], [7, 0, 0], [1, 0, 0]]
    assert playground.runs == [] and playground.static().rows == []
    assert "radix index, 16 blocks of 4 tokens, lru" in table.caption
    playground.send(WEATHER["one"])
    assert playground.static().rows == table.rows[:1]
    assert playground.static(["word " * 300]).rows[0][-1].text.startswith("refused: ")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PrefixPlayground(shared(), {}), "at least one prompt"),
        (lambda: opened().set("block_size", 5), "block_size=5"),
        (lambda: opened().set("size", 4), "size=4"),
        (lambda: opened().set("block_size", True), "block_size=True"),
    ],
)
def test_wrong_wishes_are_refused(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


BARE = """
import sys
sys.modules["ipywidgets"] = None  # as where it is not installed
from tests.text.test_detokenizer import shared
from workbench.lab import PrefixPlayground, drive, show
playground = PrefixPlayground(shared(), {"one": "Hi there, you"})
playground.send("Hi there, me")
assert playground.send("Hi there, me, and all the others").hit_blocks == 1
assert drive(playground, 5) == 12
show(playground, playground.static())
playground._ipython_display_()
"""


def test_it_works_where_there_is_no_ipywidgets() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("prompt  text") and "“Hi there, me”" in done.stdout
