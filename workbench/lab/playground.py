"""PrefixPlayground: type prompts and watch the engine's prefix index take them in, share them and give them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from threading import RLock
from typing import Any

from workbench.errors import UsageError
from workbench.lab.controls import Control, all_states, check_value, control
from workbench.lab.front import Shown
from workbench.lab.player import Player
from workbench.lab.prefix_runs import PromptRun, run_prompts
from workbench.lab.svg.tree import prefix_tree_frames
from workbench.lab.table import Cell, Table
from workbench.lab.token_text import shorten, spaced, texts_of
from workbench.text.tokenizer import Tokenizer

POOL_TOKENS = (32, 64, 128, 256)
MAX_PROMPTS = 40
MAX_CHARACTERS = 2000
"""Of a prompt that is typed: more would not fit into the largest pool."""
_HEIGHT = 330


class PrefixPlayground(Shown):
    """``tokenizer``: of the lesson's model. ``prompts``: name → text, given to choose from; they are not sent yet.

    What stands in the pool is a function of the settings and of the prompts sent so far: when a setting changes, all of
    them are sent again to a new, empty pool. Works without ipywidgets as far as `send`, `set`, `runs` and `static` go.
    """

    def __init__(self, tokenizer: Tokenizer, prompts: Mapping[str, str]) -> None:
        if not prompts:
            raise UsageError("a playground needs at least one prompt to choose from")
        self.tokenizer = tokenizer
        self.prompts = dict(prompts)
        self.controls: dict[str, Control] = {
            "block_size": control("block size", choices=(1, 4, 16), default=4, unit="tokens"),
            "prefix_index": control("index", choices=("radix", "hash")),
            "eviction_policy": control("eviction policy", choices=("lru", "lfu", "fifo")),
            "pool_tokens": control("pool", choices=POOL_TOKENS, default=64, unit="tokens"),
        }
        self.values: dict[str, Any] = {name: given.default for name, given in self.controls.items()}
        self.runs: list[PromptRun] = []
        self.message = "Nothing has been sent yet: choose or type a prompt and press Run."
        self._sent: dict[str, tuple[str, bool]] = {}
        self._player: Player | None = None
        self._lock = RLock()
        """JupyterLab hands changes of controls and clicks of buttons to different threads."""

    # What a reader does, without the controls.

    def send(self, text: str, keep: bool = False) -> PromptRun | None:
        """Sends a prompt. ``keep``: it goes on running, so it holds its blocks until `end_all` or `clear`.

        None, and ``message`` says why, where it cannot be sent at all; a prompt that finds no room is a run that says
        so.
        """
        with self._lock:
            if (why := self._cannot(text)) is not None:
                self._say(why)
                return None
            self._sent[str(len(self._sent) + 1)] = (text, keep)
            self._again()
            return self.runs[-1]

    def end_all(self) -> None:
        """Lets every running request end, as if none had been kept."""
        with self._lock:
            self._sent = {name: (text, False) for name, (text, _) in self._sent.items()}
            self._again()

    def clear(self) -> None:
        """Begins again with an empty pool."""
        with self._lock:
            self._sent = {}
            self._again()

    def set(self, name: str, value: Any) -> None:
        """Changes a setting. Raises UsageError for one that is not there or a value that it cannot have."""
        check_value(self.controls, name, value)
        if self._widget is not None:
            self._inputs[name].value = value  # the observer does the rest
        elif self.values[name] != value:
            self._take(name, value)

    def static(self, prompts: Sequence[str] = ()) -> Table:
        """What each prompt found, entered and drove out. ``prompts``: texts to show instead of those sent, each ended.

        Names of given prompts stand for their texts.
        """
        sent = {str(at): (self.prompts.get(text, text), False) for at, text in enumerate(prompts, 1)}
        rows: list[list[Cell | str | int]] = []
        for run in self._run(sent or self._sent):
            what = Cell(f"refused: {run.refused}", "alert") if run.refused else ", ".join(run.shared_with) or "–"
            rows.append(
                [
                    run.name,
                    shorten(f"“{spaced(run.text)}”", 60),
                    run.num_tokens,
                    run.hit_tokens,
                    run.hit_blocks,
                    run.new_blocks,
                    len(run.evicted),
                    what,
                ]
            )
        told = f"{self._settings()}; no model computes here"
        head = ["prompt", "text", "tokens", "found", "in blocks", "new blocks", "evicted", "shared with"]
        return Table(head, rows, told)

    def drive(self, limit: int) -> int:
        """Sends all given prompts under every combination of settings (`workbench.lab.drive`)."""
        before, sent = dict(self.values), dict(self._sent)
        states = all_states(self.controls, before, limit)
        self._sent = {str(at): (text, at % 2 == 0) for at, text in enumerate(self.prompts.values(), 1)}
        for state in [*states, before]:
            for name, value in state.items():
                self.set(name, value)
            self._again()
            if self.values != state or len(self.runs) != len(self._sent):
                raise AssertionError(f"{state} was set and the settings stand at {self.values}")
            if self._widget is not None and self._player_box.children[0].children[-1].value != self.player.frames[-1]:
                raise AssertionError("another picture is shown than that of the last prompt")
        self._sent = sent
        self._again()
        return len(states)

    # The widget.

    @property
    def player(self) -> Player:
        """The pictures so far, to scrub back through; it stands at the last. Raises UsageError before the first."""
        if self._player is None:
            raise UsageError(self.message)
        return self._player

    def _cannot(self, text: str) -> str | None:
        if not isinstance(text, str) or not text:
            return "The prompt is empty: there is no token to compute. Type something."
        if len(text) > MAX_CHARACTERS:
            return f"The prompt has {len(text)} characters, more than {MAX_CHARACTERS}: shorten it."
        if len(self._sent) >= MAX_PROMPTS:
            return f"{MAX_PROMPTS} prompts have been sent, and no more are kept: press Start over."
        try:
            if not self.tokenizer.encode(text):
                return "The tokenizer finds no token in this text: type something else."
        except UsageError as error:
            return f"The prompt cannot be read: {error}."
        return None

    def _run(self, sent: Mapping[str, tuple[str, bool]]) -> list[PromptRun]:
        size = self.values["block_size"]
        return run_prompts(
            {name: self.tokenizer.encode(text) for name, (text, _) in sent.items()},
            num_blocks=self.values["pool_tokens"] // size,
            block_size=size,
            prefix_index=self.values["prefix_index"],
            eviction_policy=self.values["eviction_policy"],
            keep=[name for name, (_, keep) in sent.items() if keep],
            texts=texts_of(self.tokenizer),
        )

    def _again(self) -> None:
        self.runs = self._run(self._sent)
        self._player = None
        if self.runs:
            self._player = Player(prefix_tree_frames(self.runs), description="picture")
            self._player.value = len(self.runs) - 1
            last, stats = self.runs[-1], self.runs[-1].stats
            total = f"So far {stats.hit_tokens} of {stats.query_tokens} prompt tokens were found."
            self._say(f"{last.sentence}." if last.refused else total, bad=bool(last.refused))
        else:
            self._say("The pool is empty: choose or type a prompt and press Run.", bad=False)
        if self._widget is not None:
            self._draw()

    def _say(self, message: str, bad: bool = True) -> None:
        self.message = message
        if self._widget is not None:
            self._message.value = f'<div role="{"alert" if bad else "status"}">{escape(message)}</div>'

    def _take(self, name: str, value: Any) -> None:
        with self._lock:
            self.values[name] = value
            self._again()

    def _settings(self) -> str:
        size, tokens = self.values["block_size"], self.values["pool_tokens"]
        return (
            f"{self.values['prefix_index']} index, {tokens // size} blocks of {size} "
            f"token{'' if size == 1 else 's'}, {self.values['eviction_policy']}"
        )

    def _make(self) -> Any:
        import ipywidgets as widgets

        style = {"description_width": "initial"}
        self._inputs = {
            name: widgets.Dropdown(
                options=[(str(value), value) for value in given.values],
                value=self.values[name],
                description=given.description,
                tabbable=True,
                style=style,
                layout={"width": "210px"},
            )
            for name, given in self.controls.items()
        }
        for name, box in self._inputs.items():
            box.observe(lambda change, name=name: self._take(name, change["new"]), "value")
        self._choice = widgets.Dropdown(
            options=[("choose one …", ""), *self.prompts.items()],
            value="",
            description="given prompts",
            tabbable=True,
            style=style,
            layout={"width": "700px"},
        )
        self._choice.observe(self._on_choice, "value")
        self._text = widgets.Textarea(
            value=next(iter(self.prompts.values())),
            description="prompt",
            continuous_update=False,
            tabbable=True,
            rows=2,
            style=style,
            layout={"width": "700px"},
        )
        self._keep = widgets.Checkbox(
            value=False,
            description="goes on running (holds its blocks)",
            indent=False,
            tabbable=True,
            style=style,
            layout={"width": "280px"},
        )
        # Run is a switch that goes back by itself: its state comes after the text's, in order. The click of a button is
        # a message of another kind, which JupyterLab handles in another thread and may overtake what was just typed.
        self._run_switch = widgets.ToggleButton(value=False, description="Run", tabbable=True, layout={"width": "auto"})
        self._run_switch.observe(self._on_run, "value")
        ends = widgets.Button(description="End all that run", tabbable=True, layout={"width": "auto"})
        ends.on_click(lambda _: self.end_all())
        over = widgets.Button(description="Start over", tabbable=True, layout={"width": "auto"})
        over.on_click(lambda _: self.clear())
        self._message = widgets.HTML(value=f'<div role="status">{escape(self.message)}</div>')
        self._player_box = widgets.VBox([], layout={"min_height": f"{_HEIGHT}px"})
        self._draw()
        return widgets.VBox(
            [
                widgets.HBox(list(self._inputs.values()), layout={"flex_flow": "row wrap"}),
                self._choice,
                self._text,
                widgets.HBox([self._keep, self._run_switch, ends, over], layout={"flex_flow": "row wrap"}),
                self._message,
                self._player_box,
            ]
        )

    def _on_run(self, change: dict[str, Any]) -> None:
        if change["new"]:
            try:
                self.send(self._text.value, self._keep.value)
            finally:
                self._run_switch.value = False

    def _on_choice(self, change: dict[str, Any]) -> None:
        if change["new"]:
            self._text.value = change["new"]

    def _draw(self) -> None:
        self._player_box.children = () if self._player is None else (self._player.widget,)

    def without_widgets(self) -> Any:
        return self.static()

    def __repr__(self) -> str:
        return f"PrefixPlayground({self._settings()}; {len(self.runs)} prompts sent)"
