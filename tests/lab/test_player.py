"""What can be moved, moved: players, controls and buttons, with ipywidgets and without; what show emits and when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workbench.errors import UsageError
from workbench.lab import Player, Table, control, drive, explore, front, run_button, show
from workbench.lab.svg.cells import Frames

ROOT = Path(__file__).parents[2]
FRAMES = [f'<svg xmlns="http://www.w3.org/2000/svg" width="90" height="{height}"></svg>' for height in (40, 60, 50)]


def walk(widget: Any) -> list[Any]:
    return [widget, *(inner for child in getattr(widget, "children", ()) for inner in walk(child))]


def only(widget: Any, kind: str) -> Any:
    found = [inner for inner in walk(widget) if type(inner).__name__ == kind]
    assert len(found) == 1, (kind, found)
    return found[0]


def area(widget: Any) -> str:
    """What the last HTML widget shows: the area of the result."""
    return [inner for inner in walk(widget) if type(inner).__name__ == "HTML"][-1].value


class TestPlayer:
    def test_the_slider_shows_each_frame_and_its_label(self):
        player = Player(FRAMES, ["one", "two <2>", "three"])
        slider = only(player.widget, "IntSlider")
        label = next(inner for inner in walk(player.widget) if type(inner).__name__ == "HTML")
        assert area(player.widget) == FRAMES[0] and "one" in label.value
        slider.value = 1
        assert (player.value, area(player.widget), player.shown) == (1, FRAMES[1], FRAMES[1])
        assert "two &lt;2&gt;" in label.value
        player.value = 2
        assert (slider.value, area(player.widget)) == (2, FRAMES[2])

    def test_it_can_be_reached_by_keyboard_and_does_not_jump(self):
        widget = Player(FRAMES, description="step").widget
        slider, play = only(widget, "IntSlider"), only(widget, "Play")
        assert slider.tabbable and play.tabbable and not slider.continuous_update
        assert slider.description == "step (of 2)"
        assert (slider.max, play.max) == (2, 2)
        assert [inner for inner in walk(widget) if type(inner).__name__ == "HTML"][-1].layout.height == "68px"

    def test_labels_come_with_frames(self):
        assert Player(Frames(FRAMES, ["a", "b", "c"])).labels == ("a", "b", "c")
        assert Player(FRAMES).labels == ("step 0", "step 1", "step 2")
        assert Player(["<b>x</b>"]).height == 320

    def test_drive_sees_every_frame_and_a_frame_that_is_missing(self):
        player = Player(FRAMES)
        assert drive(player) == 3
        assert player.value == 0
        assert player.widget
        player._slider.unobserve_all()
        with pytest.raises(AssertionError, match="another is shown"):
            drive(player)

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: Player([]), "0 frames"),
            (lambda: Player(FRAMES, ["one"]), "3 frames and 1 labels"),
            (lambda: Player(FRAMES, []), "3 frames and 0 labels"),
            (lambda: Player([1]), "not a int"),
            (lambda: setattr(Player(FRAMES), "value", 3), "value=3"),
            (lambda: setattr(Player(FRAMES), "value", True), "value=True"),
        ],
    )
    def test_wrong_wishes_are_refused(self, make, words):
        with pytest.raises(UsageError, match=words):
            make()

    def test_frames_need_a_label_each(self):
        with pytest.raises(ValueError, match="one label for each frame"):
            Frames(FRAMES, [])


def double(size: int = 1, kind: str = "a", on: bool = False) -> str:
    if size == 3 and kind == "b":
        raise ValueError("<3b> is too much")
    return f"{size * 2}{kind}{on}"


CONTROLS = {
    "size": control("block size", low=1, high=4, unit="tokens", default=2),
    "kind": control("kind", choices=["a", "b"]),
    "on": control("prefix caching", default=True),
}


class TestExplore:
    def test_each_control_calls_the_function(self):
        explorer = explore(double, CONTROLS)
        widget = explorer.widget
        assert area(widget) == "<pre>4aTrue</pre>"
        only(widget, "IntSlider").value = 4
        only(widget, "Checkbox").value = False
        only(widget, "Dropdown").value = "b"
        assert (explorer.result, area(widget)) == ("8bFalse", "<pre>8bFalse</pre>")
        assert explorer.values == {"size": 4, "kind": "b", "on": False}
        assert only(widget, "IntSlider").description == "block size (tokens)"
        assert all(inner.tabbable for inner in walk(widget) if hasattr(inner, "description") and inner.description)

    def test_an_error_is_shown_and_in_a_test_raised(self):
        explorer = explore(double, CONTROLS)
        assert explorer.widget
        explorer.set("size", 3)
        explorer.set("kind", "b")
        assert "ValueError: &lt;3b&gt; is too much" in area(explorer.widget) and 'role="alert"' in area(explorer.widget)
        explorer.set("size", 2)
        assert "failed" not in area(explorer.widget), "it goes on after an error"
        explorer.set("kind", "a")
        with pytest.raises(ValueError, match="3b"):
            drive(explorer)

    @pytest.mark.parametrize("seconds", [0.0, 3.0])
    def test_drive_tries_all_combinations(self, seconds: float):
        seen = []
        explorer = explore(lambda **values: seen.append(tuple(values.values())), CONTROLS, seconds=seconds)
        assert drive(explorer) == 16
        assert len(set(seen)) == 16
        assert explorer.values == {"size": 2, "kind": "a", "on": True}

    def test_drive_tries_each_value_where_there_are_too_many_combinations(self):
        seen = []
        wide = {name: control(name, low=1, high=50) for name in ("a", "b")}
        assert drive(explore(lambda a, b: seen.append((a, b)), wide)) == 100
        assert {a for a, _ in seen} == {b for _, b in seen} == set(range(1, 51))

    def test_what_is_slow_waits_for_its_button(self):
        calls = []
        explorer = explore(lambda size: calls.append(size), {"size": CONTROLS["size"]}, seconds=2.5)
        only(explorer.widget, "IntSlider").value = 3
        assert calls == [] and "press the button" in area(explorer.widget)
        button = only(explorer.widget, "Button")
        assert button.description == "Run (about 2.5 s)" and button.tabbable
        button.click()
        assert calls == [3] and not button.disabled

    def test_a_run_button(self):
        calls = []
        button = run_button(lambda: calls.append(1) or "done", seconds=0.1)
        assert button.widget and calls == []
        assert drive(button) == 1
        assert area(button.widget) == "<pre>done</pre>"
        failing = run_button(lambda: 1 / 0, seconds=9)
        with pytest.raises(ZeroDivisionError):
            drive(failing)
        assert "division by zero" in area(failing.widget) and not only(failing.widget, "Button").disabled

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: control("x"), "'x': give choices"),
            (lambda: control("", default=True), "label"),
            (lambda: control("x", low=1), "give choices"),
            (lambda: control("x", low=2, high=1), "low=2, high=1"),
            (lambda: control("x", low=1, high=2, step=0), "step=0"),
            (lambda: control("x", low=1, high=1000), "1000 values"),
            (lambda: control("x", low=0, high=10**15), "1000000000000001 values"),  # never written out
            (lambda: control("x", low=0.5, high=2), "low=0.5, high=2, step=1: a slider takes whole numbers"),
            (lambda: control("x", choices=5), "choices=5 is no list of values"),
            (lambda: control("x", choices=[]), "0 values"),
            (lambda: control("x", choices=[1, 1]), "stands twice"),
            (lambda: control("x", choices=[1], low=1), "not both"),
            (lambda: control("x", low=1, high=9, step=2, default=2), "default 2"),
            (lambda: explore(double, {}), "at least one control"),
            (lambda: explore(double, {"size": 3}), "size=3 is no control"),
            (lambda: explore(double, CONTROLS).set("size", 9), "size=9"),
            (lambda: drive(3), "not a int"),
        ],
    )
    def test_wrong_wishes_are_refused(self, make, words):
        with pytest.raises(UsageError, match=words):
            make()

    def test_a_control_without_the_function_name_is_an_error_in_the_area(self):
        explorer = explore(lambda: "x", {"size": CONTROLS["size"]})
        assert "TypeError" in area(explorer.widget)


def figure() -> Any:
    from matplotlib.figure import Figure

    made = Figure()
    made.subplots().set_title("tokens & steps")
    return made


class TestShow:
    @pytest.fixture
    def shown(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """What reaches the notebook, in a kernel that has widgets."""
        things: list[Any] = []
        shell = type("Shell", (), {"kernel": object()})()
        monkeypatch.delenv("WORKBENCH_STATIC", raising=False)
        monkeypatch.setattr(front, "_shell", lambda: shell)
        for module in (front, sys.modules["workbench.lab.shown"]):
            monkeypatch.setattr(module, "show_as_is", things.append)
        return things

    def test_the_static_form_comes_first(self, shown: list[Any]):
        table, player = Table(["a"], [["1"]]), Player(FRAMES)
        show(player, table)
        assert shown == [table, player]
        del shown[:]
        show(player, lambda: table)
        assert shown == [table, player]

    def test_only_the_static_form_where_it_is_asked_for(self, shown: list[Any], monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("WORKBENCH_STATIC", "1")
        table = Table(["a"], [["1"]])
        show(Player(FRAMES), table)
        assert shown == [table]

    def test_a_figure_is_shown_as_png_with_its_title(self, shown: list[Any]):
        show(Player(FRAMES), figure())
        image = shown[0]
        assert image.data.startswith(b"\x89PNG") and image.alt == "tokens & steps"
        page = front.as_html(figure())
        assert 'alt="tokens &amp; steps"' in page and "data:image/png;base64," in page

    def test_without_a_notebook_it_prints(self, capsys: pytest.CaptureFixture[str]):
        show(Player(FRAMES), Table(["a"], [["1"]]))
        show(Player(FRAMES), "a text")
        show(Player(FRAMES), figure())
        assert capsys.readouterr().out == "a\n-\n1\na text\n<figure: tokens & steps>\n"

    @pytest.mark.parametrize(("static", "words"), [(None, "static=None"), (FRAMES[0], "SVG"), (lambda: None, "None")])
    def test_a_widget_without_a_static_form_is_refused(self, static: Any, words: str):
        with pytest.raises(UsageError, match=words):
            show(Player(FRAMES), static)

    def test_html_of_other_things(self):
        assert front.as_html(None) == ""
        assert front.as_html("a < b") == "<pre>a &lt; b</pre>"
        assert front.as_html(FRAMES[0]) == FRAMES[0]
        assert front.as_html(3) == "<pre>3</pre>"


BARE = """
import sys
sys.modules["ipywidgets"] = None  # as where it is not installed
from workbench.lab import Player, Table, control, drive, explore, run_button, show
player = Player(["<b>1</b>", "<b>2</b>"])
explorer = explore(lambda n: n * 2, {"n": control("n", low=1, high=3)})
assert (drive(player), drive(explorer), explorer.result) == (2, 3, 2)
assert drive(run_button(lambda: 1, seconds=3)) == 1
show(player, Table(["a"], [["1"]]))
player._ipython_display_()
explorer._ipython_display_()
assert not {"torch", "IPython", "matplotlib"} & set(sys.modules)
"""


def test_everything_works_where_there_is_no_ipywidgets():
    done = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("a\n-\n1\nstep  what it shows\n")
    assert done.stdout.endswith("controls(n: 1)\n")


@pytest.mark.parametrize("order", [1, -1])
def test_a_name_never_gives_a_module(order: int):
    """Names are imported on first use; a module named like what it exports would hide it, depending on the order."""
    code = (
        "import types, workbench.lab as lab\n"
        f"got = {{name: getattr(lab, name) for _ in range(2) for name in lab.__all__[::{order}]}}\n"
        "assert not [name for name, value in got.items() if isinstance(value, types.ModuleType)], got"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
