"""Seats: by hand, against blocks taken one by one, and against an engine that really runs so many requests."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.lessons import begin
from workbench.errors import UsageError
from workbench.lab import family, kv_bytes_on_each, most_at_once, render_seats, seats_of, seats_on, small_llm

SVG = "{http://www.w3.org/2000/svg}"
GIB = 1 << 30
LLAMA = family("llama-2-7b")


def test_a_gpu_by_hand() -> None:
    """Llama-2-7B in 16 bits: 6,738,415,616 weights; 2 × 32 layers × 32 heads × 128 numbers a token."""
    found = seats_on(LLAMA, 80 * GIB, 4096)
    room = int(0.9 * 80 * GIB) - 2 * 6_738_415_616
    assert found.weight_bytes == 2 * 6_738_415_616 and found.room_bytes == room
    assert found.block_bytes == 16 * 2 * 32 * 32 * 128 * 2
    assert found.blocks_per_seat == 256 and found.seat_bytes == 2 * GIB
    assert found.seats == room // (2 * GIB) == 29


@settings(deadline=None)
@given(
    st.sampled_from(("gemma-2b", "smollm2-135m", "deepseek-v2")),
    st.integers(0, 2000),
    st.integers(1, 700),
    st.sampled_from((4, 8, 16)),
    st.sampled_from((1, 16, 48)),
)
def test_seats_are_whole_blocks_taken_one_by_one(name: str, mib: int, context: int, bits: int, block: int) -> None:
    model, room, seats = family(name), mib << 20, 0
    bytes_of_block = model.kv_bytes_per_token(bits) * block
    left = room // bytes_of_block
    while left >= (needed := len(range(0, context, block))):
        left, seats = left - needed, seats + 1
    found = seats_of(model, room, context, bits, block)
    assert (found.seats, found.block_bytes) == (seats, bytes_of_block)
    assert found.blocks - seats * found.blocks_per_seat == left


def test_weights_that_do_not_fit_leave_no_seat() -> None:
    found = seats_on(family("deepseek-v2"), 80 * GIB, 2048)
    assert found.room_bytes < 0 and found.blocks == found.seats == 0


def test_an_engine_runs_as_many_requests_as_were_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lesson = begin(monkeypatch, tmp_path, "05", "tiny")
    most = {}
    for heads in (8, 2):
        llm = small_llm(lesson, "llama-2-7b", 2 << 20, num_key_value_heads=heads)
        most[heads] = most_at_once(lesson, llm, requests=20, tokens=60)
        assert most[heads] == seats_of(llm.model_config, 2 << 20, 60, "float32").seats
        assert most_at_once(lesson, llm, requests=3, tokens=60) == 3
    assert most == {8: 4, 2: 16}
    with pytest.raises(UsageError, match="tokens=6: an answer of 6 needs a prompt"):
        most_at_once(lesson, llm, requests=1, tokens=6)


@pytest.mark.parametrize("wrong", [{"context": 0}, {"context": 10, "block_size": 0}])
def test_counts_below_one_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="give whole numbers of at least 1"):
        seats_of(LLAMA, GIB, **wrong)


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-8b", "gemma-2b", "deepseek-v2"])
def test_heads_are_dealt_out_to_gpus_and_copied_where_they_do_not_suffice(name: str) -> None:
    model = family(name)
    heads = [] if model.latent else range(model.num_kv_heads)
    whole = model.kv_bytes_per_token("bfloat16")
    for gpus in (1, 2, 4, 8):
        # Each GPU's query heads, and the KV heads that those read.
        share = model.num_heads // gpus
        read = {query * len(heads) // model.num_heads for query in range(share)}
        expected = whole * len(read) // len(heads) if heads else whole
        assert kv_bytes_on_each(model, gpus) == expected, gpus


@pytest.mark.parametrize(
    ("name", "gpus", "words"),
    [
        ("qwen2.5-7b", 8, "28 query heads cannot be dealt out to 8 GPUs"),
        ("llama-2-7b", 0, "to 0 GPUs"),
        ("qwen2.5-7b", 14, "4 KV heads and 14 GPUs: one number must divide"),
    ],
)
def test_heads_that_cannot_be_dealt_out_are_refused(name: str, gpus: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        kv_bytes_on_each(family(name), gpus)


def drawn(model: str, context: int) -> tuple[ET.Element, int, float]:
    """The picture, the seats there are, and the pixels of a byte."""
    one = seats_on(family(model), 80 * GIB, context)
    svg = ET.fromstring(
        render_seats(80 * GIB, one.weight_bytes, one.room_bytes, one.seat_bytes, one.seats, f"seats of {model}")
    )
    outline = svg.findall(f"{SVG}rect")[-1]
    return svg, one.seats, float(outline.attrib["width"]) / (80 * GIB)


def part(svg: ET.Element, name: str) -> list[ET.Element]:
    [group] = [group for group in svg.iter(f"{SVG}g") if group.attrib.get("data-part") == name]
    return list(group.iter(f"{SVG}rect"))


def test_the_picture_shows_weights_and_each_seat_to_scale() -> None:
    svg, seats, scale = drawn("llama-2-7b", 4096)
    [weights], boxes = part(svg, "weights"), part(svg, "seats")
    assert len(boxes) == seats == 29
    assert float(weights.attrib["width"]) == pytest.approx(2 * 6_738_415_616 * scale, abs=0.1)
    starts = [float(box.attrib["x"]) for box in boxes]
    assert starts[0] == pytest.approx(float(weights.attrib["x"]) + float(weights.attrib["width"]), abs=0.1)
    for number, box in enumerate(boxes):
        assert float(box.attrib["width"]) == pytest.approx(2 * GIB * scale, abs=0.1)
        assert starts[number] == pytest.approx(starts[0] + number * 2 * GIB * scale, abs=0.1)
    told = " ".join(text.text or "" for text in svg.iter(f"{SVG}text"))
    assert "weights 12.6 GiB of 80 GiB" in told and "29 seats of 2 GiB in 59.4 GiB" in told


def test_many_seats_are_one_box_and_none_is_said() -> None:
    svg, seats, _ = drawn("gemma-2b", 2048)
    assert seats > 1000 and len(part(svg, "seats")) == 1
    told = " ".join(text.text or "" for text in svg.iter(f"{SVG}text"))
    assert f"{seats:,} seats" in told and "too narrow" in told
    svg, seats, _ = drawn("deepseek-v2", 2048)
    assert seats == 0 and part(svg, "seats") == []
    assert any("the weights do not fit" in (text.text or "") for text in svg.iter(f"{SVG}text"))
