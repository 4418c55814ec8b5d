"""LLM: the offline face. Loads a model, builds an engine around it, and turns prompts into answers."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from workbench.attention.foreign import unread_settings
from workbench.attention.registry import chosen_backend, open_backend
from workbench.checks import shown
from workbench.config import EngineConfig, check_names, from_options
from workbench.engine.clock import Clock, WallClock
from workbench.engine.engine import Engine
from workbench.engine.request import Request
from workbench.errors import IgnoredSetting, UsageError
from workbench.fast import kv_dtype, load_model
from workbench.interrupts import SafeInterrupts
from workbench.loading import Checkpoint
from workbench.machine import free_memory, keep_freed_memory
from workbench.model import store
from workbench.model.batch_invariant import require_products
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_names
from workbench.model.cost import StepCost
from workbench.model.cuda_graphs import cannot_capture, capture_sizes, graph_bytes
from workbench.model.decoder import Decoder, activation_dtype, heads_of
from workbench.model.kv_cache import KVCache
from workbench.model.runner import ModelRunner
from workbench.model.sampling import chosen_sampler
from workbench.model.step_recorders import captured_steps, tape_recorder
from workbench.model.weights import read_model_config
from workbench.outputs import CompletionOutput, RequestMetrics, RequestOutput
from workbench.prompts import Messages, Prompt, listed, spread
from workbench.sampling_params import SamplingParams
from workbench.sizing import (
    cpu_pool_bytes,
    resolve_max_model_len,
    resolve_num_host_kv_blocks,
    resolve_num_kv_blocks,
)
from workbench.text.stream import TextStream
from workbench.text.tokenizer import Tokenizer, tokenizer_beside

LOADED_BY = ("model", "tokenizer", "load_format", "device", "dtype", "quantization")
"""The options that say which weights are loaded, and how (dummy weights come from the seed too)."""
CACHE_OPTIONS = (
    "block_size", "kv_cache_memory_bytes", "gpu_memory_utilization", "kv_cache_dtype", "attention_backend",
    "disable_cascade_attn", "sampling_backend", "enforce_eager", "enable_kernel_fusion", "cudagraph_capture_sizes",
    "batch_invariant", "num_threads",
)  # fmt: skip
"""The options that take effect when the model's cache and runner are made, and not in an engine."""


class LLM:
    """A model and the engine that serves it.

    ``LLM(model="smollm2-135m", **options)`` or ``LLM(EngineConfig(...))``. ``weights_of``: an LLM whose weights and
    tokenizer serve this one too, so that nothing is loaded again; cache and engine are its own. Raises UsageError for
    options that are wrong or not supported and WorkbenchError when the model is not here or is damaged.

    Threads may share one: `generate` and `chat` hold it until their prompts are answered, `stream` for one step at a
    time, so streams run side by side with each other but wait while another thread generates. Whoever drives
    ``llm.engine`` by hand must see to it that no other thread does.
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        clock: Clock | None = None,
        weights_of: LLM | None = None,
        **options: Any,
    ) -> None:
        if config is not None and not isinstance(config, EngineConfig):
            raise UsageError(f"LLM takes an EngineConfig or keyword options such as model=…, not {config!r}")
        if config is not None and options:
            raise UsageError(f"give an EngineConfig or options, not both; put {', '.join(options)} into the config")
        config = config or from_options(({} if weights_of is None else weights_of.loaded_by) | options)
        if weights_of is not None:
            _require_same(config, weights_of.loaded_by)
        for message in unread_settings(os.environ):
            warnings.warn(message, IgnoredSetting, stacklevel=2)
        self._turn = threading.RLock()
        """Whose turn it is to step the engine. The same thread may enter again: a stream's reader may generate."""
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        device = resolve_device(config.device)
        self.loaded_by = {name: getattr(config, name) for name in LOADED_BY}
        """The options that another LLM must share to be opened with ``weights_of`` this one."""
        if config.load_format == "dummy":
            self.loaded_by["seed"] = config.seed
        source = model_source(config)
        self.model_config: ModelConfig = read_model_config(source, config.load_format)
        self.model_config.require_supported()
        require_products(device, self.model_config.latent is not None, config.batch_invariant)
        dtype = _dtype(config.dtype, self.model_config.dtype, device)
        max_model_len = resolve_max_model_len(config, self.model_config.max_position_embeddings)
        self.sampling = chosen_sampler(config.sampling_backend, device)
        """Who samples, and why."""
        if weights_of is None:
            self.tokenizer = _tokenizer(config, source)
            loaded = load_model(Checkpoint(config, self.model_config, source, dtype, device), self.tokenizer)
            self.quantization, self.weights_fingerprint = loaded.quantization, loaded.fingerprint
            open_decoder = loaded.decoder
        else:
            self.tokenizer = weights_of.tokenizer
            self.quantization, self.weights_fingerprint = weights_of.quantization, weights_of.weights_fingerprint
            open_decoder = weights_of.runner.decoder.sharing_weights
        computed = activation_dtype(dtype, device)
        cached = kv_dtype(config, self.quantization.name, computed)
        heads = heads_of(self.model_config, computed, device, cached)
        self.attention = chosen_backend(config.attention_backend, heads, config.block_size, config.batch_invariant)
        """Who computes attention, and why."""
        backend = open_backend(self.attention.name, heads, not config.disable_cascade_attn, config.batch_invariant)
        decoder = open_decoder(backend, max_model_len)
        decoder.maker = "auto" if config.enable_kernel_fusion else "reference"
        if device.type == "cpu":
            keep_freed_memory()  # now, for what loading needed for a moment shall go back
        kv_bytes = self.model_config.kv_bytes_per_token(str(cached).removeprefix("torch."))
        pool_bytes = _pool_bytes(config, device) - _graph_bytes(config, decoder)
        num_kv_blocks = resolve_num_kv_blocks(config, max_model_len, kv_bytes, pool_bytes, _memory_bytes(device))
        self._kv_bytes = kv_bytes
        resolved = {"max_model_len": max_model_len, "num_kv_blocks": num_kv_blocks}
        self.config = config.replace(**resolved, kv_cache_memory_bytes=None)
        cache = KVCache(self.model_config, num_kv_blocks, config.block_size, cached, device)
        clock = clock or WallClock()
        cost = StepCost(
            self.model_config, sum(decoder.weight_bytes), kv_bytes, decoder.weight_bytes[1], decoder.expert_bytes
        )
        captured, recorder = None, None
        if config.records_steps:
            sizes = config.cudagraph_capture_sizes
            captured = captured_steps(decoder, cache, config.max_num_seqs, max_model_len, sizes)
            recorder = tape_recorder(decoder, config.max_num_batched_tokens)
        self.runner = ModelRunner(
            decoder, cache, cost, clock.now, captured, recorder, self.sampling.name, config.batch_invariant
        )
        self.engine = self._open_engine(self.config, clock)

    def new_engine(self, **options: Any) -> Engine:
        """Another engine over this model and its KV cache, with some of its options changed (limits, policies).

        The cache serves engines one after the other: the first step of an idle one takes it over, and an engine that
        loses it amid a request fails at its next step (`KVCache.lend_to`). Raises UsageError for options that belong to
        the model or its cache.
        """
        for name in options:
            if name in (*LOADED_BY, *CACHE_OPTIONS):
                raise UsageError(f"{name} belongs to the model or its cache, not to an engine: open another LLM")
        check_names(options)
        config = self.config.replace(**options)
        resolve_max_model_len(config, self.config.max_model_len or self.model_config.max_position_embeddings)
        return self._open_engine(config, self.engine.clock)

    def _open_engine(self, config: EngineConfig, clock: Clock) -> Engine:
        assert config.num_kv_blocks is not None
        num_host_kv_blocks = resolve_num_host_kv_blocks(config, config.num_kv_blocks, self._kv_bytes)
        if num_host_kv_blocks is not None:
            config = config.replace(num_host_kv_blocks=num_host_kv_blocks, kv_offload_host_gib=0.0)
            self.runner.provide_host(num_host_kv_blocks)
        return Engine(
            config,
            self.runner,
            clock=clock,
            eos_token_ids=self.tokenizer.eos_token_ids if self.tokenizer else self.model_config.eos_token_ids,
            vocab_size=self.model_config.vocab_size,
            tokenize=self.tokenizer.encode if self.tokenizer else None,
            open_text=self._open_text if self.tokenizer else None,
            kv_fields=self._kv_fields(),
        )

    def _kv_fields(self) -> dict[str, str]:
        """What keys and values depend on besides the tokens (`workbench.kv.namespace`)."""
        cache, shape = self.runner.cache, self.model_config
        return {
            "weights": self.weights_fingerprint,
            "dtype": str(self.runner.decoder.dtype),
            "kv_cache_dtype": str(cache.storage.dtype),
            "rope": f"theta {shape.rope_theta} scaling {shape.rope_scaling}",
            "latent": str(shape.latent),
            "windows": str(self.runner.decoder.windows),
        }

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Answers prompts, each text or token ids; one `SamplingParams` for all or one for each.

        Results stand in the order of the prompts. Every prompt is checked before the first step runs. An interrupt
        (Ctrl-C) aborts the prompts of this call and leaves the engine empty of them. Threads take turns: see `LLM`.
        ``cache_salt``: with prefix caching, share cached blocks only with requests of the same salt.
        """
        given = listed(prompts)
        params = spread(sampling_params, len(given))
        groups: list[list[Request]] = []
        with self._turn, self._interrupts() as interrupts:
            try:
                for index, (prompt, one) in enumerate(zip(given, params, strict=True)):
                    groups.append(self._add_listed(prompt, one, cache_salt, index, len(given)).group)
                self._run([request for group in groups for request in group], use_tqdm, interrupts)
            except BaseException:
                for group in groups:
                    for request in group:
                        self.engine.abort(request.request_id)
                raise
        return [self._output(group) for group in groups]

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached keys and values; see `Engine.reset_prefix_cache`. Threads take turns: see `LLM`."""
        with self._turn:
            return self.engine.reset_prefix_cache()

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, laid out by the model's chat template.

        A conversation is a list of ``{"role": …, "content": …}``. ``cache_salt``: as in `generate`.
        """
        if not isinstance(messages, (list, tuple)):
            raise UsageError(f"messages are a list of {{'role': …, 'content': …}}, not a {type(messages).__name__}")
        conversations: Sequence[Any] = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [self._chat_prompt(talk) for talk in conversations]
        return self.generate(prompts, sampling_params, use_tqdm, cache_salt)

    def stream(
        self,
        prompt_or_messages: Prompt | Messages,
        sampling_params: SamplingParams | None = None,
        cache_salt: str | None = None,
    ) -> Iterator[str]:
        """The answer to one prompt or conversation as pieces of text, as soon as they are certain.

        Joined they are the ``text`` that `generate` returns. Closing the iterator aborts the request.
        """
        if self.tokenizer is None:
            raise UsageError("stream gives text and this model came without a tokenizer: use generate with token ids")
        prompt: Any = prompt_or_messages
        if isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], Mapping):
            prompt = self._chat_prompt(prompt)
        [params] = spread(sampling_params, 1)
        if params.n != 1:
            raise UsageError(f"n={params.n}: stream gives one answer; use generate for several")
        return self._pieces(prompt, params, cache_salt)

    def _pieces(self, prompt: Prompt, params: SamplingParams, cache_salt: str | None) -> Iterator[str]:
        request: Request | None = None
        try:
            with self._turn, self._interrupts():
                # Here, on the first piece: an iterator that nobody starts must not leave a request behind.
                request = self._add(prompt, params, cache_salt)
            text = request.text
            assert isinstance(text, TextStream)
            while request.finish_reason is None:
                with self._turn, self._interrupts():
                    if request.finish_reason is None:  # else another thread's turn brought it to its end
                        self.engine.step()
                if piece := text.take():
                    yield piece
            if piece := text.take():
                yield piece
        finally:
            if request is not None:
                with self._turn:
                    self.engine.abort(request.request_id)

    def _interrupts(self) -> SafeInterrupts:
        return SafeInterrupts(lambda: self.engine.executing)

    def _add(self, prompt: Prompt, params: SamplingParams, cache_salt: str | None) -> Request:
        return self.engine.requests[self.engine.add_request(prompt, params, cache_salt=cache_salt)]

    def _add_listed(
        self, prompt: Prompt, params: SamplingParams, cache_salt: str | None, index: int, count: int
    ) -> Request:
        try:
            return self._add(prompt, params, cache_salt)
        except UsageError as error:
            if count == 1:
                raise
            raise UsageError(f"prompt {index} of {count}: {error}") from None

    def _run(self, requests: list[Request], use_tqdm: bool, interrupts: SafeInterrupts) -> None:
        from tqdm.auto import tqdm

        with tqdm(total=len(requests), desc="requests", unit="req", disable=not use_tqdm) as progress:
            done = tokens = 0
            while done < len(requests):
                trace = self.engine.step()
                interrupts.check()
                tokens += len(trace.new_tokens)
                # Counted anew each time: a request may also end in a step that somebody else made.
                ended = sum(request.finish_reason is not None for request in requests)
                if ended > done:
                    progress.set_postfix_str(f"{tokens} tokens", refresh=False)
                    progress.update(ended - done)
                    done = ended

    def _output(self, group: list[Request]) -> RequestOutput:
        first = group[0]
        return RequestOutput(
            request_id=first.request_id,
            prompt_token_ids=first.prompt_token_ids,
            outputs=[self._completion(index, request) for index, request in enumerate(group)],
            metrics=RequestMetrics.of(first),
            num_cached_tokens=first.num_cached_tokens,
            prompt_logprobs=None if first.params.prompt_logprobs is None else [None, *first.prompt_logprobs],
        )

    def _completion(self, index: int, request: Request) -> CompletionOutput:
        text = request.text.text if isinstance(request.text, TextStream) else ""
        logprobs = None if request.params.logprobs is None else request.logprobs
        return CompletionOutput(index, request.output_token_ids, text, request.finish_reason or "abort", logprobs)

    def _open_text(self, request_id: str, params: SamplingParams) -> TextStream:
        assert self.tokenizer is not None
        return TextStream(self.tokenizer, params)

    def _chat_prompt(self, messages: Messages) -> list[int]:
        if self.tokenizer is None:
            raise UsageError("chat needs a tokenizer with a chat template and this model came without one")
        if not isinstance(messages, (list, tuple)):
            raise UsageError(f"a conversation is a list of {{'role': …, 'content': …}}, not {shown(messages)}")
        return self.tokenizer.apply_chat_template(messages)


def model_source(config: EngineConfig) -> Path | str:
    """A folder or file, or the name of a shipped configuration that dummy weights are made for."""
    if config.load_format == "dummy" and config.model in shipped_names():
        return config.model
    return store.locate(config.model)


def _tokenizer(config: EngineConfig, source: Path | str) -> Tokenizer | None:
    if config.tokenizer is not None:
        return Tokenizer.from_source(store.locate(config.tokenizer))
    return tokenizer_beside(source) if isinstance(source, Path) else None


def _require_same(config: EngineConfig, loaded_by: dict[str, Any]) -> None:
    for name, value in loaded_by.items():
        if getattr(config, name) != value:
            raise UsageError(
                f"{name}={getattr(config, name)!r}: the weights to be shared were loaded with {value!r}; leave it "
                "out, or leave weights_of out to load them anew"
            )


def resolve_device(name: str) -> torch.device:
    """``auto``, ``cpu`` or ``cuda`` as a device; raises UsageError where torch sees no GPU for ``cuda``."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device='cuda': torch sees no GPU here; leave it out or use device='cpu'")
    return torch.device(name)


def _dtype(name: str, checkpoint: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = "float32" if device.type == "cpu" else checkpoint
        # Nothing is gained from 32-bit weights on a GPU, and its matrix units want 16 bits.
        name = "bfloat16" if device.type == "cuda" and name not in ("float16", "bfloat16") else name
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _memory_bytes(device: torch.device) -> int:
    return free_memory() if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0])


def _graph_bytes(config: EngineConfig, decoder: Decoder) -> int:
    """What is left free for CUDA graphs, which are captured when the pool is there."""
    if not config.records_steps or cannot_capture(decoder):
        return 0
    sizes = capture_sizes(config.max_num_seqs, config.cudagraph_capture_sizes)
    return graph_bytes(decoder.config, sizes, decoder.dtype)


def _pool_bytes(config: EngineConfig, device: torch.device) -> int:
    if device.type == "cpu":
        return cpu_pool_bytes(free_memory())
    free, total = torch.cuda.mem_get_info(device)
    return int(free - (1 - config.gpu_memory_utilization) * total)
