"""The memory map, read back square by square and held against snapshots and traces of real runs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from tests.engine.paged_fake import greedy, open_engine
from tests.lab.test_svg import marked
from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.lab import Player, Watch, drive, memory_map, memory_map_frames, render_memory_map, show
from workbench.lab.pool_history import CACHED, FREE, MAX_ROWS, SHARED, USED, PoolHistory
from workbench.lab.snapshot import PoolSnapshot
from workbench.lab.svg import memory


def cached_run(seed: int, blocks: int = 24, requests: int = 14, steps: int = 400, **options: object) -> Watch:
    """Prompts under a few heads, more than the pool holds, so blocks are shared, kept and given up."""
    draw = Random(seed)
    sizes = {"num_kv_blocks": blocks, "max_model_len": blocks * 4, "max_num_batched_tokens": 24, "max_num_seqs": 5}
    engine = open_engine(**{**sizes, "enable_prefix_caching": True, **options})
    heads = [[draw.randrange(40) for _ in range(draw.randint(6, 20))] for _ in range(4)]
    left = requests
    with Watch(engine) as run:
        while (left or engine.has_unfinished()) and len(run.traces) < steps:
            if left and draw.random() < 0.5:
                left -= 1
                prompt = draw.choice(heads) + [draw.randrange(40) for _ in range(draw.randint(1, 10))]
                engine.add_request(prompt, greedy(draw.randint(1, 9)), request_id=f"r{left}")
            engine.step()
            engine.pool.check()
    return run


def squares(svg: str, count: int) -> list[list[tuple[str, str]]]:
    """What each row shows at each step: (state, owner)."""
    rows = []
    for group in marked(svg, "row"):
        row: list[tuple[str, str]] = []
        for told in group["data-runs"].split(" "):
            square, _, long = told.rpartition("*")
            state, _, owner = square.partition(":")
            row += [(state.replace("-", " "), owner)] * int(long)
        assert len(row) == count
        rows.append(row)
    return rows


def check(run: Watch) -> Counter[str]:
    """Every block of every snapshot is drawn as what it was; returns how often each state was seen."""
    svg = render_memory_map(run.traces, run.snapshots)
    rows, seen = squares(svg, len(run.traces)), Counter[str]()
    for at, snapshot in enumerate(run.snapshots):
        holders = snapshot.owners()
        for block, names in enumerate(holders):
            state, owner = rows[block][at]
            cached = block in snapshot.cached
            assert state == (SHARED if len(names) > 1 else USED if names else CACHED if cached else FREE)
            assert owner == (names[0] if names else "")
            assert not (cached and names)
            seen[state] += 1
    crosses: dict[int, list[int]] = {}
    for group in marked(svg, "evicted"):
        crosses.setdefault(int(group["data-at"]), []).extend(map(int, group["data-evicted"].split()))
    for at, trace in enumerate(run.traces):
        assert len(crosses.get(at, [])) == trace.blocks["evicted"]
        seen["evicted"] += trace.blocks["evicted"]
    return seen


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_every_block_is_drawn_as_what_it_was(index: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(4):
        run = cached_run(seed, prefix_index=index)
        seen += check(run)
        for trace, counts in zip(run.traces, PoolHistory(run.traces, run.snapshots).counts, strict=True):
            assert counts[FREE] == trace.blocks["free"] and counts[CACHED] == trace.blocks["cached"]
            assert sum(counts.values()) == trace.blocks["total"]
    assert all(seen[what] for what in (FREE, CACHED, USED, SHARED, "evicted")), seen


def test_a_state_that_is_drawn_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = cached_run(0)
    monkeypatch.setattr(PoolSnapshot, "owners", lambda self: [[] for _ in range(self.num_blocks)])
    history = PoolHistory(run.traces, run.snapshots)
    monkeypatch.undo()
    monkeypatch.setattr(memory, "PoolHistory", lambda traces, snapshots: history)
    with pytest.raises(AssertionError):
        check(run)


def test_a_pool_without_a_cache_has_a_map_too() -> None:
    run = cached_run(1, enable_prefix_caching=False)
    svg = render_memory_map(run.traces, run.snapshots)
    states = {state for row in squares(svg, len(run.traces)) for state, _ in row}
    assert states == {FREE, USED} and marked(svg, "evicted") == []
    assert all(snapshot.cached == snapshot.evicted == () for snapshot in run.snapshots)


def test_watching_ends_and_changes_nothing() -> None:
    """The watched run gives up what an unwatched one does; afterwards the index has its own method again."""
    engine = open_engine(num_kv_blocks=6, enable_prefix_caching=True, max_model_len=24)
    assert engine.cache is not None
    whole = engine.cache.index.evict
    with Watch(engine) as outer, Watch(engine) as inner:
        for number in range(6):
            engine.add_request([number] * 10, greedy(1), request_id=str(number))
            engine.step()
    assert engine.cache.index.evict == whole and "evict" not in vars(engine.cache.index)
    found = [block for snapshot in outer.snapshots for block in snapshot.evicted]
    assert len(found) == engine.pool.evicted > 3
    assert [snapshot.evicted for snapshot in inner.snapshots] == [snapshot.evicted for snapshot in outer.snapshots]


def test_rows_of_many_blocks_say_what_most_of_them_are() -> None:
    run = cached_run(3, blocks=600, requests=200, max_num_batched_tokens=90)
    history = PoolHistory(run.traces, run.snapshots)
    assert history.group == 5 and history.num_rows == 120 <= MAX_ROWS
    rows = squares(render_memory_map(run.traces, run.snapshots), len(run.traces))
    assert len(rows) == 120
    for at in range(0, len(run.traces), 7):
        snapshot = run.snapshots[at]
        names, cached = snapshot.owners(), set(snapshot.cached)
        for row in range(120):
            blocks = range(row * 5, row * 5 + 5)
            most = Counter(
                SHARED if len(names[b]) > 1 else USED if names[b] else CACHED if b in cached else FREE for b in blocks
            )
            assert most[rows[row][at][0]] == max(most.values())
    assert (
        "one row for 5 blocks" in history.rule and history.row_name(0) == "0–4" and history.row_name(119) == "595–599"
    )
    assert sum(history.counts[-1].values()) == 600, "counts are of blocks"


def test_a_tie_goes_to_who_holds_more() -> None:
    snapshot = PoolSnapshot(MAX_ROWS * 2, 4, {"A": (0, 2, 4), "B": (2, 6)}, (1, 3), (7,))
    history = PoolHistory([trace_like()], [snapshot])
    assert history.group == 2
    assert [square.state for square in history.columns[0][:4]] == [USED, SHARED, USED, USED]
    assert [square.owner for square in history.columns[0][:4]] == ["A", "A", "A", "B"]
    assert history.evicted == [{3: (7,)}] and history.columns[0][4] == (FREE, "")


def trace_like() -> StepTrace:
    return cached_run(0, requests=1, steps=1).traces[0]


def test_frames_mark_one_step_each_and_are_not_too_many() -> None:
    run = cached_run(2, blocks=60, requests=80)
    frames = memory_map_frames(run.traces, run.snapshots)
    assert 20 < len(frames) <= 150 and sum(map(len, frames)) < 13_000_000
    steps = [int(marked(frame, "step")[0]["data-step"]) for frame in frames]
    assert steps == sorted(set(steps)) and steps[-1] == run.traces[-1].step
    assert all(f"after step {step}:" in label for step, label in zip(steps, frames.labels, strict=True))
    player = Player(frames)
    assert drive(player) == len(frames)


@pytest.mark.parametrize("blocks", [20, 600])
@pytest.mark.parametrize("steps", [1, 20, 400])
def test_sizes_from_small_to_large(blocks: int, steps: int) -> None:
    run = cached_run(5, blocks=blocks, requests=400, steps=steps)
    assert len(run.traces) == steps
    svg = render_memory_map(run.traces, run.snapshots, 1)
    assert len(svg) < 400_000
    memory_map(run.traces, run.snapshots)


def test_the_figure_shows_each_block_in_a_shade_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    run = cached_run(0)
    figure = memory_map(run.traces, run.snapshots, "blocks of a small pool")
    top, low = figure.axes
    image = top.images[0].get_array()
    shades = {}
    for at, snapshot in enumerate(run.snapshots):
        for block, names in enumerate(snapshot.owners()):
            state = SHARED if len(names) > 1 else USED if names else CACHED if block in snapshot.cached else FREE
            red, green, blue = image[block][at]
            shades.setdefault(state, set()).add(round(0.2126 * red + 0.7152 * green + 0.0722 * blue, 3))
    lights = [sorted(shades[state]) for state in (SHARED, USED, CACHED, FREE)]
    for darker, lighter in pairwise(lights):
        assert darker[-1] + 0.1 < lighter[0], "states differ without their colours"
    crosses = top.collections[-1].get_offsets()
    assert len(crosses) == sum(len(snapshot.evicted) for snapshot in run.snapshots)
    words = {text.get_text() for text in figure.legends[0].get_texts()}
    assert words == {SHARED, USED, CACHED, FREE, "given up"} and top.get_title() == "blocks of a small pool"
    assert low.get_ylabel() == "blocks"
    show(Player(memory_map_frames(run.traces, run.snapshots)), figure)
    assert "blocks of a small pool" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda run: render_memory_map([], []), "no traces"),
        (lambda run: render_memory_map(run.traces, run.snapshots, 0), "upto=0"),
        (lambda run: render_memory_map(run.traces, run.snapshots[1:]), "snapshots for"),
        (lambda run: memory_map(run.traces * 20, run.snapshots * 20), "more than the 400"),
        (lambda run: PoolHistory(run.traces[:1], [PoolSnapshot(5000, 4, {})]), "5000 blocks is more than the 4096"),
        (lambda run: PoolHistory(run.traces[:2], [PoolSnapshot(9, 4, {}), run.snapshots[0]]), "different sizes"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(cached_run(0))
