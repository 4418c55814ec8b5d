"""EngineConfig: every option is known, checked and either takes effect or is refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from workbench.config import EngineConfig, _option, from_options
from workbench.errors import UsageError

FIELDS = {spec.name: spec for spec in dataclasses.fields(EngineConfig)}


def unbuilt_values(name: str) -> tuple[Any, ...]:
    return FIELDS[name].metadata.get("unbuilt", ())


UNBUILT = [(name, value) for name in FIELDS for value in unbuilt_values(name)]
BUILT = [
    (name, value)
    for name, spec in FIELDS.items()
    for value in spec.metadata.get("choices", ())
    if value not in unbuilt_values(name)
]


def test_defaults_are_valid_and_frozen() -> None:
    config = EngineConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(("name", "value"), BUILT)
def test_built_choices_are_taken(name: str, value: str) -> None:
    needed = FIELDS[name].metadata.get("only_if") or ("enable_prefix_caching", name == "prefix_index" or value == "lpm")
    assert getattr(EngineConfig(**{name: value, needed[0]: needed[1]}), name) == value


@pytest.mark.parametrize(("name", "value"), UNBUILT)
def test_unbuilt_choices_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}={value!r} is not supported yet; this version supports "):
        EngineConfig(**{name: value})


@pytest.mark.parametrize("name", [name for name, spec in FIELDS.items() if "choices" in spec.metadata])
def test_a_choice_that_nobody_knows_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}='nonsense' is not known; choose from ") as caught:
        EngineConfig(**{name: "nonsense"})
    assert all(choice in str(caught.value) for choice in FIELDS[name].metadata["choices"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size=0 is too small: the least is 1"),
        ({"num_kv_blocks": 0}, "num_kv_blocks=0 is too small"),
        ({"max_num_seqs": -1}, "max_num_seqs=-1 is too small"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0 is too small"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold=-1 is too small"),
        ({"seed": -1}, "seed=-1 is too small"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization=1.5 is too large: the most is 1.0"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization=0 is too small"),
        ({"block_size": 1.5}, "block_size=1.5 must be of type int, not float"),
        ({"block_size": True}, "block_size=True must be of type int, not bool"),
        ({"block_size": "16"}, "block_size='16' must be of type int, not str"),
        ({"block_size": None}, "block_size=None must be of type int, not NoneType"),
        ({"enforce_eager": 1}, "enforce_eager=1 must be of type bool, not int"),
        ({"model": 7}, "model=7 must be of type str, not int"),
        ({"kv_offload_host_gib": 1.0}, "kv_offload_host_gib=1.0 has no effect without preemption_mode='swap'"),
        ({"num_host_kv_blocks": 4}, "num_host_kv_blocks=4 has no effect without preemption_mode='swap'"),
        (
            {"preemption_mode": "swap", "num_host_kv_blocks": 4, "kv_offload_host_gib": 1},
            "num_host_kv_blocks=4 and kv_offload_host_gib=1.0 both size the host's blocks: give one of them",
        ),
        (
            {"long_prefill_token_threshold": 4, "enable_chunked_prefill": False},
            "long_prefill_token_threshold=4 has no effect without enable_chunked_prefill=True",
        ),
        ({"max_num_queued_reqs": 0}, "max_num_queued_reqs=0 is too small: the least is 1"),
        ({"kv_offload_disk_gib": 2}, "kv_offload_disk_gib=2 is not supported yet"),
        ({"kv_offload_dir": "somewhere"}, "kv_offload_dir='somewhere' is not supported yet"),
        (
            {"disable_cascade_attn": False},
            "disable_cascade_attn=False has no effect without attention_backend='triton'",
        ),
        ({"max_wait_ms": 5.0}, "max_wait_ms=5.0 has no effect without batching='dynamic'"),
        (
            {"prefix_index": "radix", "enable_prefix_caching": False},
            "prefix_index='radix' has no effect without enable_prefix_caching=True",
        ),
        (
            {"scheduling_policy": "lpm", "enable_prefix_caching": False},
            r"scheduling_policy='lpm' .* has no effect without enable_prefix_caching=True",
        ),
        (
            {"eviction_policy": "lfu", "enable_prefix_caching": False},
            "eviction_policy='lfu' has no effect without enable_prefix_caching=True",
        ),
        (
            {"prefix_partial_reuse": True, "enable_prefix_caching": False},
            "prefix_partial_reuse=True has no effect without enable_prefix_caching=True",
        ),
        (
            {"prefix_index": "none", "eviction_policy": "lfu"},
            "eviction_policy='lfu' has no effect with prefix_index='none'",
        ),
        (
            {"prefix_index": "none", "prefix_partial_reuse": True},
            "prefix_partial_reuse=True has no effect with prefix_index='none'",
        ),
        (
            {"block_size": 1, "prefix_partial_reuse": True},
            "prefix_partial_reuse=True has no effect with block_size=1",
        ),
    ],
)
def test_wrong_values_are_refused_with_value_limit_and_remedy(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EngineConfig(**options)


def test_whole_numbers_do_where_fractions_may() -> None:
    assert EngineConfig(gpu_memory_utilization=1).gpu_memory_utilization == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blok_size", "unknown engine option 'blok_size'; did you mean 'block_size'"),
        ("max_num_batch_tokens", "did you mean 'max_num_batched_tokens'"),
        ("zzz", "unknown engine option 'zzz'; the options are attention_backend, "),
    ],
)
def test_unknown_options_are_refused_with_a_close_match(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_options({name: 1})


def test_replace_checks_again_and_to_dict_gives_everything_back() -> None:
    config = EngineConfig(block_size=8)
    assert config.replace(max_num_seqs=3).to_dict() == {**config.to_dict(), "max_num_seqs": 3}
    assert EngineConfig(**config.to_dict()) == config
    with pytest.raises(UsageError, match="block_size=0"):
        config.replace(block_size=0)


def test_the_environment_gives_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_MODEL", "qwen3-0.6b")
    monkeypatch.setenv("WORKBENCH_DEVICE", "cpu")
    assert (EngineConfig().model, EngineConfig().device) == ("qwen3-0.6b", "cpu")
    assert EngineConfig(model="smollm2-135m").model == "smollm2-135m"
    monkeypatch.setenv("WORKBENCH_DEVICE", "")
    assert EngineConfig().device == "auto"
    monkeypatch.setenv("WORKBENCH_DEVICE", "toaster")
    with pytest.raises(UsageError, match="device='toaster' is not known"):
        EngineConfig()
    monkeypatch.delenv("WORKBENCH_DEVICE")
    monkeypatch.setenv("WORKBENCH_MODEL", "")
    with pytest.raises(UsageError, match=r"model='' is empty: give a name .* \(WORKBENCH_MODEL sets the default\)"):
        EngineConfig()
    assert EngineConfig(model="qwen3-0.6b").model == "qwen3-0.6b"


@pytest.mark.parametrize("name", [name for name, spec in FIELDS.items() if spec.metadata.get("choices")])
def test_a_value_is_written_once_and_is_built_or_not(name: str) -> None:
    choices, unbuilt = FIELDS[name].metadata["choices"], unbuilt_values(name)
    assert len(set(choices)) == len(choices) and set(unbuilt) < set(choices)
    assert FIELDS[name].metadata["default"] not in unbuilt


def test_a_value_cannot_be_both_built_and_unbuilt() -> None:
    assert _option("a", "words", choices=("a", "b"), unbuilt=("c",)).metadata["choices"] == ("a", "b", "c")
    with pytest.raises(AssertionError, match="either built or not"):
        _option("a", "words", choices=("a", "b"), unbuilt=("b",))


def test_every_option_says_what_it_is() -> None:
    assert all(spec.metadata["help"] for spec in FIELDS.values())


def test_prefix_caching_and_its_index_say_the_same() -> None:
    off, on = EngineConfig(enable_prefix_caching=False), EngineConfig()
    assert (off.enable_prefix_caching, off.prefix_index) == (False, "none")
    assert (on.enable_prefix_caching, on.prefix_index) == (True, "radix")
    none = EngineConfig(prefix_index="none")
    assert none == off
    # What depends on it comes along when it is turned on or off.
    assert off.replace(enable_prefix_caching=True) == on
    changed = on.replace(prefix_index="hash", eviction_policy="fifo", prefix_partial_reuse=True)
    assert changed.replace(enable_prefix_caching=False) == off
    assert on.replace(prefix_index="hash").replace(max_num_seqs=3).prefix_index == "hash"
