"""EngineConfig: every option of the engine in one frozen dataclass, under vLLM's names.

Options that later rooms bring are already named here. A value whose room is not built yet is refused by name, so an
accepted option always takes effect. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from workbench.checks import MAX_WHOLE, as_real, as_whole, shown
from workbench.errors import UsageError

DEFAULT_MODEL = "smollm2-135m"
MAX_KV_BLOCKS = 1 << 24
"""Most blocks of a pool: keeping the books of each takes about 50 bytes, whatever lies in it."""


def _option(default: Any, help: str, **metadata: Any) -> Any:
    """A config field. ``choices``: the values that are built; ``unbuilt``: those named by the interface and refused for
    now; ``minimum``/``maximum``: bounds; ``env``: an environment variable that replaces the default.

    The field's own metadata lists all values of the interface as ``choices``.
    """
    env, choices, unbuilt = metadata.get("env"), metadata.get("choices", ()), metadata.get("unbuilt", ())
    assert not set(choices) & set(unbuilt), f"{help}: a value is either built or not"
    if choices:
        metadata["choices"] = choices + unbuilt
    metadata = {"help": help, "default": default, **metadata}
    if env:
        return field(default_factory=lambda: _from_environment(env, default, bool(choices)), metadata=metadata)
    return field(default=default, metadata=metadata)


def _from_environment(name: str, default: str, chosen: bool) -> str:
    """An empty choice means no choice; an empty name is a mistake, and is refused when the config is checked."""
    found = os.environ.get(name, default)
    return default if chosen and not found else found


_ONLY_WITH_INDEX: dict[str, Any] = {"eviction_policy": "lru", "prefix_partial_reuse": False}
"""What has no effect without prefix caching, with its defaults."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All options of an engine. Raises UsageError (a ValueError) that names the value, the limit and the remedy."""

    model: str = _option(
        DEFAULT_MODEL, "a name from `workbench model list`, a folder, a .gguf file or a hub id", env="WORKBENCH_MODEL"
    )
    tokenizer: str | None = _option(None, "folder or file of another tokenizer; default: the model's own")
    load_format: str = _option(
        "auto",
        "how weights are read; dummy = random weights of the right shapes",
        choices=("auto", "dummy", "safetensors", "gguf"),
    )
    device: str = _option(
        "auto",
        "where the model runs; auto = cuda where there is one",
        env="WORKBENCH_DEVICE",
        choices=("auto", "cpu", "cuda"),
    )
    dtype: str = _option(
        "auto",
        "dtype of weights and activations; auto = float32 on a CPU, the checkpoint's on a GPU",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    seed: int = _option(0, "seed of everything random: sampling without an own seed, dummy weights", minimum=0)
    max_model_len: int | None = _option(
        None, "most tokens of one request, prompt and output; default: the model's", minimum=1
    )
    block_size: int = _option(16, "tokens in one KV block", minimum=1)
    num_kv_blocks: int | None = _option(
        None, "KV blocks in the pool; default: sized from memory", minimum=1, maximum=MAX_KV_BLOCKS
    )
    gpu_memory_utilization: float = _option(
        0.9, "share of the GPU's memory for weights and KV (GPU only)", minimum=0.01, maximum=1.0
    )
    kv_cache_memory_bytes: int | None = _option(None, "bytes for the KV pool; default: sized from memory", minimum=1)
    max_num_seqs: int = _option(128, "most requests that run at once", minimum=1)
    max_num_batched_tokens: int = _option(2048, "most tokens computed in one step", minimum=1)
    enable_chunked_prefill: bool = _option(
        True, "cut long prompts into chunks that share steps with decodes; off: a prompt is computed whole or waits"
    )
    long_prefill_token_threshold: int = _option(
        0,
        "most prompt tokens of one request in one step; 0 = no own limit",
        minimum=0,
        only_if=("enable_chunked_prefill", True),
    )
    batching: str = _option(
        "continuous",
        "when requests may join and leave a batch",
        choices=("continuous", "static", "dynamic", "prefill-first"),
    )
    max_wait_ms: float | None = _option(
        None,
        "longest wait of dynamic batching, milliseconds; default there: 100",
        minimum=0,
        only_if=("batching", "dynamic"),
    )
    scheduling_policy: str = _option(
        "fcfs",
        "order of the waiting queue",
        choices=("fcfs", "priority", "shortest-prefill-first", "lpm"),
    )
    preemption_mode: str = _option(
        "recompute",
        "what happens to the KV of a request that must make room",
        choices=("recompute", "swap"),
    )
    enable_prefix_caching: bool = _option(True, "keep and reuse the KV of matching heads of prompts")
    prefix_index: str | None = _option(
        None,
        "how matching heads are found; none = prefix caching off; default with prefix caching: radix",
        choices=("radix", "hash", "none"),
    )
    eviction_policy: str = _option(
        "lru",
        "which cached block leaves first: the longest unused, the least often used, the oldest",
        choices=("lru", "lfu", "fifo"),
        only_if=("enable_prefix_caching", True),
    )
    prefix_partial_reuse: bool = _option(
        False,
        "where a request parts from a cached block inside the block, copy the block and use its equal first tokens",
        only_if=("enable_prefix_caching", True),
    )
    attention_backend: str = _option(
        "auto",
        "who computes attention; `workbench info attention` says what auto takes, and why",
        choices=(
            "auto",
            "torch_native",
            "sdpa",
            "flex",
            "cpu",
            "triton",
            "flashinfer",
            "fa3",
            "flash_attn",
            "xformers",
            "flashmla",
        ),
    )
    disable_cascade_attn: bool = _option(
        True,
        "attend a head whose blocks several requests share anew for each of them; off: once for all where it is long "
        "enough; then the last bits of a result depend on who shares, and decode steps are not recorded",
        only_if=(("attention_backend", "triton"), ("batch_invariant", False)),
    )
    sampling_backend: str = _option("auto", "who samples", choices=("auto", "torch", "cpu", "triton", "flashinfer"))
    quantization: str = _option(
        "auto",
        "weight format to compute in; auto = what the checkpoint says, else none; fast = the fastest that "
        "is measured to lose next to nothing; a GPU takes those of 4 bits and 16-bit activations (w4a16, and what "
        "gptq, awq and compressed-tensors store in 4 bits), the others are for CPUs so far",
        choices=("auto", "none", "fast", "w8a16", "w4a16", "w4a16-g64", "w8a8-int8", "w4a8", "gguf", "gptq", "awq",
                 "compressed-tensors"),
        unbuilt=("fp8", "mxfp4", "nvfp4"),
    )  # fmt: skip
    kv_cache_dtype: str = _option(
        "auto",
        "dtype of the KV cache; auto = that of activations",
        choices=("auto", "fp16"),
        unbuilt=("fp8_e4m3", "fp8_e5m2", "int8", "int4"),
    )
    kv_offload_host_gib: float = _option(
        0.0,
        "host memory for KV that leaves the pool, GiB; 0 = as many blocks as the pool has",
        minimum=0,
        only_if=("preemption_mode", "swap"),
    )
    num_host_kv_blocks: int | None = _option(
        None,
        "KV blocks in host memory; default: sized by kv_offload_host_gib",
        minimum=1,
        only_if=("preemption_mode", "swap"),
    )
    kv_offload_dir: str | None = _option(None, "folder for KV that leaves host memory", unbuilt_unless_default=True)
    kv_offload_disk_gib: float = _option(0.0, "disk for KV that leaves host memory, GiB", minimum=0, maximum=0)
    enforce_eager: bool = _option(False, "never replay a recorded decode step (a tape on a CPU, a CUDA graph on a GPU)")
    enable_kernel_fusion: bool = _option(
        True,
        "one kernel for norm and residual, RoPE and cache write, SiLU and product; off: torch operations one after the "
        "other, to compare with (no step is recorded then)",
    )
    cudagraph_capture_sizes: tuple[int, ...] | None = _option(
        None,
        "sizes of batches for which a CUDA graph is captured; a batch between two is filled up, one above the largest "
        "runs without (GPU only); default: 1, 2, 4, 8, 16, 24, … up to max_num_seqs, at most 512",
        only_if=(("enforce_eager", False), ("enable_kernel_fusion", True)),
    )
    batch_invariant: bool = _option(
        False,
        "the same bits whatever else is in the batch and however a prompt is cut; prompts are then attended query by "
        "query (CPU only)",
    )
    max_num_queued_reqs: int | None = _option(
        None, "most requests that may wait; one more is refused; default: no limit", minimum=1
    )
    num_threads: int | None = _option(
        None, "CPU threads; default: all that this process may use", minimum=1, maximum=1024
    )

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            object.__setattr__(self, spec.name, _checked(self, spec.name, value, spec.metadata, str(spec.type)))
        if self.num_kv_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise UsageError(
                f"num_kv_blocks={self.num_kv_blocks} and kv_cache_memory_bytes={self.kv_cache_memory_bytes} both size "
                "the KV pool: give one of them"
            )
        if self.num_host_kv_blocks is not None and self.kv_offload_host_gib:
            raise UsageError(
                f"num_host_kv_blocks={self.num_host_kv_blocks} and kv_offload_host_gib={self.kv_offload_host_gib} both "
                "size the host's blocks: give one of them"
            )

        self._settle_prefix_caching()

    def _settle_prefix_caching(self) -> None:
        """One truth in two options: caching is on with an index, and off with none."""
        on, index = self.enable_prefix_caching, self.prefix_index
        if not on and index not in (None, "none"):
            raise UsageError(
                f"prefix_index={index!r} has no effect without enable_prefix_caching=True: leave it out or set that"
            )
        for name, default in _ONLY_WITH_INDEX.items():
            if on and index == "none" and getattr(self, name) != default:
                raise UsageError(
                    f"{name}={getattr(self, name)!r} has no effect with prefix_index='none', which turns prefix "
                    "caching off: leave one of them out"
                )
        if self.prefix_partial_reuse and self.block_size == 1:
            raise UsageError(
                "prefix_partial_reuse=True has no effect with block_size=1, where every token is a whole block: leave "
                "it out or choose a larger block_size"
            )
        if self.scheduling_policy == "lpm" and (not on or index == "none"):
            raise UsageError(
                "scheduling_policy='lpm' (longest cached head first) has no effect without enable_prefix_caching=True: "
                "choose another or set that"
            )
        object.__setattr__(self, "prefix_index", (index or "radix") if on else "none")
        object.__setattr__(self, "enable_prefix_caching", self.prefix_index != "none")

    @property
    def records_steps(self) -> bool:
        """Whether decode steps are recorded where that can be done."""
        return self.enable_kernel_fusion and not self.enforce_eager

    def replace(self, **changes: Any) -> EngineConfig:
        """A copy with some options changed, validated again.

        Turning prefix caching on or off takes what depends on it along: its index, and off also the other options
        that have no effect then.
        """
        on = changes.get("enable_prefix_caching")
        if on is not None and on != self.enable_prefix_caching:
            changes = {"prefix_index": None, **({} if on else _ONLY_WITH_INDEX), **changes}
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}


def default_model() -> str:
    """The model meant where none is named: ``WORKBENCH_MODEL``, else the course's. Raises UsageError if it is empty."""
    return EngineConfig(device="auto").model


def from_options(options: dict[str, Any]) -> EngineConfig:
    """An EngineConfig from keyword options. Unknown names are refused, never ignored."""
    check_names(options)
    return EngineConfig(**options)


def check_names(options: Iterable[str]) -> None:
    """Raises UsageError for the first name that no option has."""
    known = {spec.name for spec in dataclasses.fields(EngineConfig)}
    for name in options:
        if name not in known:
            import difflib

            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; the options are {', '.join(sorted(known))}"
            raise UsageError(f"unknown engine option {shown(name)}{hint}")


def _checked(config: EngineConfig, name: str, value: Any, meta: Any, type_: str) -> Any:
    """The value, as a plain int or float where it is another kind of number. Raises UsageError."""
    if value is None and "None" in type_:
        return None
    kind = type_.split(" ")[0]
    given, told = value, f"{name}={shown(value)}"
    if kind == "tuple[int,":
        value = _rising(value)
        kind = "tuple"
    if kind in ("int", "float"):
        value = as_whole(value) if kind == "int" else as_real(value)
    elif not isinstance(value, {"bool": bool, "str": str, "tuple": tuple}[kind]):
        value = None
    if value is None:
        if kind == "tuple":
            raise UsageError(f"{told} must be whole numbers from 1 on, rising, such as (1, 2, 4, 8)")
        raise UsageError(f"{told} must be of type {type_}, not {type(given).__name__}")
    if kind == "float" and not math.isfinite(value):
        raise UsageError(f"{told} must be a finite number")
    choices, unbuilt = meta.get("choices"), meta.get("unbuilt", ())
    if choices and value not in choices:
        origin = f" ({meta['env']} says so)" if "env" in meta and os.environ.get(meta["env"]) == value else ""
        raise UsageError(f"{told} is not known{origin}; choose from {', '.join(choices)}")
    if value == "":
        origin = f" ({meta['env']} sets the default)" if "env" in meta else ""
        raise UsageError(f"{told} is empty: give {meta['help'].split('; default')[0]}{origin}")
    if value in unbuilt or (meta.get("unbuilt_unless_default") and value != meta["default"]):
        built = [c for c in choices if c not in unbuilt] if choices else [meta["default"]]
        raise UsageError(f"{told} is not supported yet; this version supports {', '.join(map(str, built))}")
    low, high = meta.get("minimum"), meta.get("maximum", MAX_WHOLE if kind == "int" else None)
    if low is not None and value < low:
        raise UsageError(f"{told} is too small: the least is {low}")
    if high is not None and value > high:
        if high == low:
            raise UsageError(f"{told} is not supported yet; leave it at {meta['default']!r}")
        raise UsageError(f"{told} is too large: the most is {high}")
    if "only_if" in meta and value != meta["default"]:
        first = meta["only_if"]  # a pair, or several
        for other, needed in (first,) if isinstance(first[0], str) else first:
            if getattr(config, other) != needed:
                raise UsageError(f"{told} has no effect without {other}={needed!r}: leave it out or set that")
    return value


def _rising(value: Any) -> tuple[int, ...] | None:
    """Whole numbers of any kind, at least one, each larger than the one before and none below 1; else None."""
    if not isinstance(value, (list, tuple, range)) or not value:
        return None
    numbers = [as_whole(one) for one in value]
    found = tuple(one for one in numbers if one is not None)
    rising = len(found) == len(numbers) and all(low < high for low, high in zip((0, *found), found, strict=False))
    return found if rising else None
