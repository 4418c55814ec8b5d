"""SVG pictures, read as XML and counted against the traces they were drawn from: random runs of the real scheduler."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from tests.engine.paged_fake import VOCAB_SIZE, open_engine
from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.lab import story
from workbench.lab.snapshot import MAX_STEPS, PoolSnapshot, Watch
from workbench.lab.svg import (
    block_table_frames,
    render_block_table,
    render_lifeline,
    render_step_timeline,
    timeline_frames,
)
from workbench.lab.svg import timeline as timeline_module
from workbench.lab.svg.canvas import clean, labels
from workbench.lab.svg.cells import MAX_FRAMES, MAX_FRAMES_BYTES
from workbench.sampling_params import SamplingParams

SVG = "{http://www.w3.org/2000/svg}"


def random_run(seed: int, requests: int = 9, **options: int) -> Watch:
    """Random arrivals, lengths, forks and aborts on a small pool, with a clock that moves while a step computes."""
    draw = Random(seed)
    sizes = {"num_kv_blocks": 14, "max_num_batched_tokens": 17, "max_num_seqs": 4, **options}
    engine = open_engine(**sizes)
    fake = engine.runner
    fake.during = lambda plan: engine.clock.advance(0.001 * plan.num_tokens)
    left = requests
    with Watch(engine) as run:
        while left or engine.has_unfinished():
            for _ in range(min(left, draw.choice([0, 0, 1, 3]))):
                left -= 1
                prompt = [draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(1, 20))]
                params = SamplingParams(max_tokens=draw.randint(1, 12), n=draw.choice([1, 1, 2]), temperature=1)
                engine.add_request(prompt, params, f"r{left}")
            if engine.requests and draw.random() < 0.05:
                engine.abort(draw.choice(list(engine.requests)))
            engine.step()
            engine.pool.check()
    return run


def marked(svg: str, name: str) -> list[dict[str, str]]:
    """The attributes of all groups that carry ``data-name``."""
    return [group.attrib for group in ET.fromstring(svg).iter(f"{SVG}g") if f"data-{name}" in group.attrib]


def drawn(svg: str) -> Counter[tuple[str, int, str, int]]:
    return Counter(
        (g["data-request"], int(g["data-step"]), g["data-kind"], int(g["data-tokens"])) for g in marked(svg, "request")
    )


def in_traces(traces: list[StepTrace]) -> Counter[tuple[str, int, str, int]]:
    """Every share of every step, and every preemption, as the timeline must show it."""
    shares = Counter((s["request_id"], t.step, s["kind"], s["num_tokens"]) for t in traces for s in t.scheduled)
    return shares + Counter((name, t.step, "preempted", 0) for t in traces for name in t.preempted)


def check_timeline(traces: list[StepTrace], **options: object) -> None:
    for upto in (0, len(traces) // 2, len(traces)):
        svg = render_step_timeline(traces, upto, **options)
        found = drawn(svg)
        computed = Counter({key: n for key, n in found.items() if key[2] not in ("waiting", "ended")})
        assert computed == in_traces(traces[:upto])
        skipped = {(s["request_id"], t.step) for t in traces[:upto] for s in t.skipped}
        assert skipped <= {key[:2] for key in found if key[2] in ("waiting", "preempted")}
        bars = {int(g["data-bar"]): int(g["data-total"]) for g in marked(svg, "bar")}
        assert bars == {t.step: sum(s["num_tokens"] for s in t.scheduled) for t in traces[:upto]}
        assert {g["data-lane"] for g in marked(svg, "lane")} == set(story.lanes(traces))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("by_time", [False, True])
def test_the_timeline_shows_every_share_once(seed: int, by_time: bool):
    run = random_run(seed)
    assert sum(len(trace.preempted) for trace in run.traces) or seed, "a run without a preemption shows too little"
    check_timeline(run.traces, by_time=by_time, budget=17, slots=4)
    idle = [int(g["data-idle"]) for g in marked(render_step_timeline(run.traces, slots=4), "idle")]
    assert idle == [4 - len(trace.scheduled) for trace in run.traces]


def test_a_dropped_lane_is_found(monkeypatch: pytest.MonkeyPatch):
    """The check above can fail: a renderer that forgets one request does not pass it."""
    run = random_run(0)
    check_timeline(run.traces)
    whole = story.lanes
    monkeypatch.setattr(timeline_module, "lanes", lambda traces: dict(list(whole(traces).items())[1:]))
    with pytest.raises(AssertionError):
        check_timeline(run.traces)


def check_blocks(run: Watch) -> int:
    """Every frame shows the pool as it was; returns how many shared blocks were seen."""
    shared = 0
    for upto, snapshot in enumerate(run.snapshots, 1):
        svg = render_block_table(run.traces, run.snapshots, upto)
        blocks = marked(svg, "block")
        assert [g["data-holders"] for g in blocks] == ["+".join(names) for names in snapshot.owners()]
        shared += sum("+" in g["data-holders"] for g in blocks)
        tables = {g["data-table"]: tuple(map(int, g["data-blocks"].split())) for g in marked(svg, "table")}
        assert tables == dict(snapshot.tables)
        # A request's blocks hold exactly the tokens that were computed for it.
        fill = [int(g["data-fill"]) for g in blocks]
        for owner, table in snapshot.tables.items():
            last = [s for t in run.traces[:upto] for s in t.scheduled if s["request_id"] == owner][-1]
            assert sum(fill[block] for block in table) == last["num_computed_tokens"] + last["num_tokens"]
    return shared


def test_the_blocks_are_those_of_the_pool():
    shared = [check_blocks(random_run(seed, num_kv_blocks=30)) for seed in range(4)]
    assert sum(shared) > 10, "forks share the blocks of their prompt"


def step(number: int, *shares: tuple[str, int, int]) -> StepTrace:
    """A step in which each (request, tokens before, tokens now) was computed."""
    scheduled = [
        {"request_id": name, "num_computed_tokens": before, "num_tokens": now, "kind": "prefill"}
        for name, before, now in shares
    ]
    counts = dict.fromkeys(("allocated", "freed", "shared", "evicted", "free", "total"), 0)
    return StepTrace(number, 0.0, 0.0, scheduled, [], [], [], counts, 0, [])


@pytest.mark.parametrize("shares", [(("A", 0, 3), ("B", 0, 2)), (("A", 0, 2), ("B", 0, 3))])
def test_a_shared_block_is_as_full_as_its_fullest_holder_made_it(shares):
    """Today's engine shares full blocks only, so this is drawn by hand."""
    snapshot = PoolSnapshot(2, 4, {"A": (0,), "B": (0,)})
    blocks = marked(render_block_table([step(0, *shares)], [snapshot]), "block")
    assert [(g["data-holders"], g["data-fill"]) for g in blocks] == [("A+B", "3"), ("", "0")]


def test_tables_of_the_pool_have_rows_of_their_own():
    """At one moment no two tables share a row, and a request keeps its row while it lives."""
    run = random_run(1, num_kv_blocks=30)
    rows: dict[str, str | None] = {}
    reused = 0
    for upto in range(1, len(run.traces) + 1):
        root = ET.fromstring(render_block_table(run.traces, run.snapshots, upto))
        now = {g.get("data-table"): g.find(f"{SVG}text").get("y") for g in root.iter(f"{SVG}g") if g.get("data-table")}
        assert len(set(now.values())) == len(now)
        assert all(rows.get(name, row) == row for name, row in now.items())
        reused += sum(name not in rows and row in rows.values() for name, row in now.items())
        rows |= now
    assert reused, "rows of requests that ended are used again"


def test_what_comes_while_a_step_is_computed_waits_for_the_next():
    engine = open_engine()
    late = iter(["late"])
    engine.runner.during = lambda plan: [
        engine.add_request([1, 2], SamplingParams(max_tokens=1), name) for name in late
    ]
    with Watch(engine) as run:
        engine.add_request([1], SamplingParams(max_tokens=2, ignore_eos=True), "early")
        while engine.has_unfinished():
            engine.step()
    row = story.lanes(run.traces)["late"]
    assert row[0] is None and row[1].kind == "prefill"
    assert story.arrivals(run.traces)["late"][0] == 1
    assert marked(render_lifeline(run.traces, "late"), "ttft")[0]["data-ttft"] == "1.0"


def test_one_request_of_the_pool():
    run = random_run(1)
    owner = max(run.snapshots[3].tables, key=lambda name: len(run.snapshots[3].tables[name]))
    svg = render_block_table(run.traces, run.snapshots, 4, request_id=owner)
    assert [g["data-table"] for g in marked(svg, "table")] == [owner]
    assert f"{run.snapshots[3].tables[owner][0]}: 0–3" in svg


@pytest.mark.parametrize("by_time", [False, True])
def test_a_life_agrees_with_its_traces(by_time: bool):
    run = random_run(0)
    seen: Counter[str] = Counter()
    for name, row in story.lanes(run.traces).items():
        svg = render_lifeline(run.traces, name, by_time=by_time)
        cells = [(int(g["data-step"]), g["data-kind"], int(g["data-tokens"])) for g in marked(svg, "kind")]
        expected = [(t.step, e.kind, e.num_tokens) for t, e in zip(run.traces, row, strict=True) if e is not None]
        assert cells == expected
        ends = [
            t.time + t.duration if by_time else index + 1.0
            for index, t in enumerate(run.traces)
            if any(new["request_id"] == name for new in t.new_tokens)
        ]
        step, seconds = story.arrivals(run.traces)[name]
        assert [float(g["data-ttft"]) for g in marked(svg, "ttft")] == (
            [ends[0] - (seconds if by_time else step)] if ends else []
        )
        assert [float(g["data-itl"]) for g in marked(svg, "itl")] == [b - a for a, b in pairwise(ends)]
        seen.update(g["data-moment"] for g in marked(svg, "moment"))
        seen.update("waits" for _ in marked(svg, "waits"))
    assert all(seen[word] for word in ("arrival", "first token", "preempted", "length", "waits")), seen


def test_ttft_and_itl_are_those_of_the_metrics():
    from workbench.measure.metrics import serving_metrics

    engine = open_engine()
    engine.runner.during = lambda plan: engine.clock.advance(0.25 * plan.num_tokens)
    with Watch(engine) as run:
        engine.add_request([1] * 6, SamplingParams(max_tokens=3, ignore_eos=True), "A")
        while engine.has_unfinished():
            engine.step()
    svg = render_lifeline(run.traces, "A")
    metrics = serving_metrics(run.traces)
    assert float(marked(svg, "ttft")[0]["data-ttft"]) * 1e3 == pytest.approx(metrics["mean_ttft_ms"]) == 1500
    assert [float(g["data-itl"]) for g in marked(svg, "itl")] == [0.25, 0.25]
    assert "1.5 s" in svg and "longest 250 ms, mean 250 ms" in svg


def sizes(frames: tuple[str, ...]) -> set[tuple[str | None, ...]]:
    roots = [ET.fromstring(frame) for frame in frames]
    return {tuple(root.get(name) for name in ("width", "height", "viewBox")) for root in roots}


@pytest.mark.parametrize("seed", range(3))
def test_frames_of_one_run_have_one_size_and_one_legend(seed: int):
    run = random_run(seed)
    held = next(owner for snapshot in run.snapshots for owner in snapshot.tables)
    for frames in (
        timeline_frames(run.traces),
        timeline_frames(run.traces, by_time=True, budget=17, slots=4),
        block_table_frames(run.traces, run.snapshots),
        block_table_frames(run.traces, run.snapshots, request_id=held),
    ):
        assert len(frames) == len(frames.labels) == len(run.traces)
        assert len(sizes(frames)) == 1
        assert list(frames.labels) == [story.sentence(trace) for trace in run.traces]
    legends = {frame[frame.index('data-part="legend"') :].split("</g>")[0] for frame in timeline_frames(run.traces)}
    assert len(legends) == 1


def test_the_legend_lists_only_what_occurs():
    engine = open_engine()
    with Watch(engine) as run:
        engine.add_request([1] * 6, SamplingParams(max_tokens=3, ignore_eos=True), "A")
        while engine.has_unfinished():
            engine.step()
    svg = render_step_timeline(run.traces)
    assert "prefill: prompt" in svg and "decode: one" in svg and "! finished" in svg
    assert "preempted:" not in svg and "recompute:" not in svg and "waiting" not in svg
    assert "double frame" not in render_block_table(run.traces, run.snapshots)


def test_it_says_what_it_shows_to_one_who_cannot_see_it():
    run = random_run(2)
    for svg in (render_step_timeline(run.traces), render_lifeline(run.traces, "r0"),
                render_block_table(run.traces, run.snapshots, 3)):  # fmt: skip
        root = ET.fromstring(svg)
        assert root.get("role") == "img"
        assert root.find(f"{SVG}title") is root[0] and root[0].text
        assert root.find(f"{SVG}desc") is root[1] and len(root[1].text.split()) > 5
        # Text takes the page's colour, and every fill is translucent or that colour: both themes can be read.
        fills = {element.get("fill") for element in root.iter() if element.get("fill")}
        assert all(fill in ("none", "currentColor") or fill.startswith("rgba(") for fill in fills), fills
        assert not any(element.get("fill") for element in root.iter(f"{SVG}text"))


def test_names_are_escaped_and_shortened():
    engine = open_engine()
    names = [
        "<script>\"&'",
        "가나다",
        "request-with-a-very-long-name-1",
        "request-with-a-very-long-name-2",
        "bad\x00id",
    ]
    with Watch(engine) as run:
        for name in names:
            engine.add_request([1] * 6, SamplingParams(max_tokens=3, ignore_eos=True), name)
        while engine.has_unfinished():
            engine.step()
    for svg in (render_step_timeline(run.traces), render_block_table(run.traces, run.snapshots, 1),
                *(render_lifeline(run.traces, name) for name in names)):  # fmt: skip
        assert "<script" not in svg
        ET.fromstring(svg)
    lanes = [g["data-lane"] for g in marked(render_step_timeline(run.traces), "lane")]
    assert lanes == [*names[:4], "bad�id"]
    short = labels(names, 14)
    assert short["가나다"] == "가나다"
    assert all(len(label) <= 14 for label in short.values()) and len(set(short.values())) == len(names)
    assert clean("a\x1bb") == "a�b"


@pytest.mark.parametrize("limit", [2, 3, 6, 14])
def test_labels_never_collide(limit: int):
    names = [f"request-{number:06}" for number in range(99)] + ["#3", "A"]
    short = labels(names, limit)
    assert len(set(short.values())) == len(names)


def test_many_steps_scale_and_too_many_are_refused():
    engine = open_engine(num_kv_blocks=200, max_model_len=700)
    engine.add_request([1] * 6, SamplingParams(max_tokens=MAX_STEPS + 1, ignore_eos=True), "A")
    with Watch(engine) as run:
        while engine.has_unfinished():
            engine.step()
    part = run.traces[:MAX_STEPS]
    check_timeline(part)
    assert float(ET.fromstring(render_step_timeline(part)).get("width")) < 1100
    frames = timeline_frames(part)
    assert len(frames) <= MAX_FRAMES and sum(map(len, frames)) <= MAX_FRAMES_BYTES
    assert frames[-1] == render_step_timeline(part)
    assert frames.labels[-1].startswith(f"step {MAX_STEPS - 1}:")
    for draw in (render_step_timeline, lambda traces: render_lifeline(traces, "A")):
        with pytest.raises(UsageError, match=f"{MAX_STEPS + 1} steps are more than the {MAX_STEPS}"):
            draw(run.traces)


def test_a_queue_longer_than_the_trace_lists_still_waits():
    """A plan lists 64 of those who wait; the others are known to wait because they came and did not end."""
    engine = open_engine(max_num_seqs=1)
    with Watch(engine) as run:
        for number in range(70):
            engine.add_request([1], SamplingParams(max_tokens=1), f"r{number}")
        engine.step()
    assert len(run.traces[0].skipped) == 64
    assert [event.kind for row in story.lanes(run.traces).values() for event in row if event] == ["prefill"] + [
        "waiting"
    ] * 69
    with pytest.raises(UsageError, match="70 requests are more than the 64 lanes"):
        render_step_timeline(run.traces)


def test_wrong_wishes_are_refused_by_name():
    run = random_run(3)
    still = open_engine()
    with Watch(still) as quiet:
        still.add_request([1], SamplingParams(max_tokens=1), "A")
        still.step()
    for wish, words in [
        (lambda: render_step_timeline([]), "no traces"),
        (lambda: render_step_timeline(run.traces, len(run.traces) + 1), "upto="),
        (lambda: render_step_timeline(run.traces, -1), "upto=-1"),
        (lambda: render_step_timeline(run.traces, True), "upto=True"),
        (lambda: render_step_timeline(quiet.traces, by_time=True), "clock"),
        (lambda: render_lifeline(quiet.traces, "A", by_time=True), "clock"),
        (lambda: render_lifeline(run.traces, "nobody"), "'nobody' does not occur"),
        (lambda: render_block_table(run.traces, run.snapshots, 0), "upto=0"),
        (lambda: render_block_table(run.traces, run.snapshots[:-1]), "snapshots for"),
        (lambda: render_block_table(run.traces, run.snapshots, request_id="nobody"), "'nobody' held no block"),
        (lambda: render_block_table(run.traces[:1], [PoolSnapshot(2000, 4, {})]), "2000 blocks is more than the 1024"),
        (
            lambda: render_block_table(run.traces[:2], [PoolSnapshot(9, 4, {}), PoolSnapshot(8, 4, {})]),
            "different sizes",
        ),
    ]:
        with pytest.raises(UsageError, match=words):
            wish()


def test_an_id_that_is_used_twice_has_no_one_life():
    engine = open_engine()
    with Watch(engine) as run:
        for _ in range(2):
            engine.add_request([1], SamplingParams(max_tokens=1), "A")
            engine.step()
    render_step_timeline(run.traces)
    with pytest.raises(UsageError, match="'A' was used 2 times"):
        render_lifeline(run.traces, "A")


@pytest.mark.parametrize("blocks", [1, 64, 65, 256, 257, 1024])
def test_pools_of_all_sizes_fit(blocks: int):
    engine = open_engine(num_kv_blocks=blocks, max_model_len=4)
    with Watch(engine) as run:
        engine.add_request([1], SamplingParams(max_tokens=1), "a-long-name")
        engine.step()
    root = ET.fromstring(render_block_table(run.traces, run.snapshots))
    rects = list(root.iter(f"{SVG}rect"))
    assert len(rects) >= blocks
    assert all(float(r.get("x")) + float(r.get("width")) <= float(root.get("width")) for r in rects)
    assert all(float(r.get("y")) + float(r.get("height")) <= float(root.get("height")) for r in rects)


def test_an_empty_step_and_an_abort_are_drawn():
    engine = open_engine()
    with Watch(engine) as run:
        engine.add_request([1] * 4, SamplingParams(max_tokens=4), "A")
        engine.abort("A")
        engine.step()
        engine.step()
    svg = render_step_timeline(run.traces)
    assert list(drawn(svg)) == [("A", 0, "ended", 0)]
    assert "ended: abort" in svg
    assert story.sentence(run.traces[1]) == "step 1: nothing to do"
    assert "ended: abort" in render_lifeline(run.traces, "A")
