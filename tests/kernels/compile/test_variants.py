"""`Variant` refuses what would compile to something else than is launched; variants and forgotten kernels are found."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernels.compile import find
from kernels.triton.variants import Variant


def _copy(x_ptr, out_ptr, n, BLOCK): ...


KERNEL = SimpleNamespace(fn=_copy)
SIGNATURE = {"x_ptr": "*bf16", "out_ptr": "*bf16", "n": "i32"}


def variant(**changed):
    return Variant(**({"name": "v", "kernel": KERNEL, "signature": SIGNATURE, "constexprs": {"BLOCK": 64}} | changed))


def test_types_stand_in_the_kernels_order_and_every_pointer_is_aligned_unless_said_otherwise():
    assert list(variant().types().items()) == [*SIGNATURE.items(), ("BLOCK", "constexpr")]
    assert variant(signature=dict(reversed(SIGNATURE.items()))).types() == variant().types()
    assert variant().divisible() == [0, 1]
    assert variant(divisible_by_16=("out_ptr", "n")).divisible() == [1, 2]
    assert variant(divisible_by_16=()).divisible() == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kernel": object()}, "not a @triton.jit function"),
        ({"signature": {"x_ptr": "*bf16", "n": "i32"}}, r"no type and no value for \['out_ptr'\]"),
        ({"signature": {**SIGNATURE, "m": "i32"}}, "no argument 'm'"),
        ({"signature": {**SIGNATURE, "n": "int"}}, "type 'int'"),
        ({"signature": {**SIGNATURE, "BLOCK": "i32"}}, "BLOCK is i32 in one place"),
        ({"constexprs": {"BLOCK": 64, "LANES": 2}}, "LANES"),
        ({"divisible_by_16": ("BLOCK",)}, "no run-time arguments"),
        ({"num_warps": 6}, "num_warps=6"),
        ({"most_registers": 256}, "most_registers=256"),
        ({"archs": ("sm_75",)}, "sm_75"),
        ({"wants": ("speed",)}, "speed"),
        ({"archs": ("sm_80",), "wants": ("tma",)}, "wants tma, which no chip"),
        ({"name": "a b"}, "'a b'"),
    ],
)
def test_a_contradiction_is_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        variant(**changed)


def test_a_want_is_asked_only_of_chips_that_can():
    asked = variant(wants=("mma", "wgmma", "tma", "tcgen05"))
    assert asked.wanted_on("sm_80") == ("mma",)
    assert asked.wanted_on("sm_90") == ("mma", "wgmma", "tma")
    assert asked.wanted_on("sm_100") == ("mma", "tma", "tcgen05")


def test_modules_are_found_by_their_source_and_names_are_unique(tmp_path, monkeypatch):
    assert "kernels.triton.canary" in find.sources()
    assert "kernels.triton.variants" not in find.sources()
    source = "from types import SimpleNamespace\nfrom tests.kernels.compile.test_variants import variant\n"
    path = tmp_path / "one.py"
    path.write_text(source + "def variants():\n    return [variant(name='a'), variant(name='b')]\n", encoding="utf-8")
    assert [one.name for one in find.find([str(path)])] == ["one.a", "one.b"]
    with pytest.raises(ValueError, match=r"one\.a is listed by"):
        find.find([str(path), str(path)])
    path.write_text(source, encoding="utf-8")
    with pytest.raises(ValueError, match="no function variants"):
        find.of(str(path))
    with pytest.raises(ValueError, match="no Python file"):
        find.of(str(tmp_path / "none.py"))


def test_a_kernel_that_nobody_lists_is_named(tmp_path, monkeypatch):
    (tmp_path / "one.py").write_text(
        "import triton\n"
        "@triton.jit\ndef helper(x):\n    return x\n"
        "@triton.jit(noinline=True)\ndef combine(a, b):\n    return a + b\n"
        "@triton.jit\ndef listed(x):\n    tl.reduce(helper(x), 0, combine)\n"
        "@triton.jit\ndef forgotten(x):\n    pass\n"
        "def launcher(x):\n    pass\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(find, "FOLDER", tmp_path)

    def listed(x): ...

    listed.__module__ = "kernels.triton.one"
    known = [find.Found("kernels.triton.one", "one.v", SimpleNamespace(kernel=SimpleNamespace(fn=listed)))]
    assert find.unlisted(known) == ["kernels.triton.one.forgotten"]
    assert find.unlisted([]) == ["kernels.triton.one.listed", "kernels.triton.one.forgotten"]
