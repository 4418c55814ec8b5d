"""This engine as a model of lm-evaluation-harness, which asks three things of one: how likely a continuation is, how
likely a whole text is, and what it says next. The library is optional, and imported only when it is asked for.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from workbench.errors import UsageError
from workbench.llm import LLM
from workbench.sampling_params import SamplingParams

INSTALL = "pip install 'llm-workbench[eval]'"
MOST_TOKENS = 256
"""Of an answer whose task sets no limit; the harness' own default."""
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def require_harness() -> None:
    """Raises UsageError, with how to install it, where the library is not."""
    if importlib.util.find_spec("lm_eval") is None:
        raise UsageError(f"tasks need lm-evaluation-harness, which is not installed: {INSTALL}")


def harness_model(llm: LLM) -> Any:
    """``llm`` as an ``lm_eval.api.model.LM``. Raises UsageError without the library or without a tokenizer."""
    require_harness()
    if llm.tokenizer is None:
        raise UsageError(f"{llm.config.model} has no tokenizer, which tasks need: give one by --tokenizer")
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    tokenizer, longest = llm.tokenizer, llm.config.max_model_len
    assert longest is not None
    ends = tokenizer.eos_token_ids

    class Harness(TemplateLM):  # type: ignore[misc]
        """Text is encoded as everywhere here: no token is added. ``TemplateLM`` cuts contexts from continuations."""

        @property
        def eot_token_id(self) -> int:
            return ends[0] if ends else 0

        @property
        def prefix_token_id(self) -> int:
            """Stands for an empty context."""
            return self.eot_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id

        @property
        def tokenizer_name(self) -> str:
            return str(llm.config.model)

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            return tokenizer.encode(string)

        def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            ids = tokenizer.apply_chat_template(chat_history, add_generation_prompt)
            return tokenizer.decode(ids, skip_special_tokens=False)

        def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
            pairs = [(context, continuation) for _, context, continuation in requests]
            return log_likelihoods(llm, pairs)

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            """Every token once, in windows as long as the model takes (the harness' own rule)."""
            found = []
            for request in requests:
                ids = tokenizer.encode(request.args[0])
                windows = get_rolling_token_windows(ids, self.prefix_token_id, longest - 2, 1)
                found.append(sum(nats for nats, _ in log_likelihoods(llm, list(map(make_disjoint_window, windows)))))
            return found

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            return answers(llm, [request.args for request in requests])

    return Harness()


def log_likelihoods(llm: LLM, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
    """Of each continuation after its context: Σ ln p, and whether every token of it is the likeliest.

    Both are token ids. What is too long for the model loses the head of its context. Raises UsageError for an empty
    context and for a continuation that is too long by itself.
    """
    longest = llm.config.max_model_len
    assert longest is not None
    prompts, lengths = [], []
    for context, continuation in pairs:
        if not context or len(continuation) + 2 > longest:
            raise UsageError(f"a continuation of {len(continuation)} tokens after {len(context)}: a context must hold "
                             f"at least one, and both together fit into max_model_len={longest} less one")  # fmt: skip
        prompts.append([*context, *continuation][-(longest - 1) :])
        lengths.append(len(continuation))
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1), use_tqdm=False)
    found = []
    for output, length in zip(outputs, lengths, strict=True):
        assert output.prompt_logprobs is not None
        ids, told = output.prompt_token_ids, output.prompt_logprobs
        nats, greedy = 0.0, True
        for place in range(len(ids) - length, len(ids)):
            logprobs = told[place]
            assert logprobs is not None
            own = logprobs[ids[place]]
            nats += own.logprob
            greedy = greedy and own.rank == 1
        found.append((nats, greedy))
    return found


def answers(llm: LLM, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """What is said after each context, up to the first text of ``until``. Options as the harness writes them; raises
    UsageError for those that are not known here."""
    assert llm.tokenizer is not None and llm.config.max_model_len is not None
    prompts, params = [], []
    for context, options in asked:
        options = dict(options)
        until = options.pop("until", None) or []
        most = int(options.pop("max_gen_toks", MOST_TOKENS))
        sampling = {name: options.pop(name) for name in _SAMPLING if name in options}
        if not options.pop("do_sample", False):
            sampling["temperature"] = 0.0
        if options:
            raise UsageError(f"generation option {next(iter(options))!r} is not supported; supported: until, "
                             f"max_gen_toks, do_sample, {', '.join(_SAMPLING)}")  # fmt: skip
        if most >= llm.config.max_model_len:
            raise UsageError(f"max_gen_toks={most} leaves no room in max_model_len={llm.config.max_model_len}")
        prompts.append(llm.tokenizer.encode(context)[-(llm.config.max_model_len - most) :])
        stop = [until] if isinstance(until, str) else list(until)
        params.append(SamplingParams(max_tokens=most, stop=stop, **sampling))
    return [output.text for output in llm.generate(prompts, params, use_tqdm=False)]


def run_tasks(
    open_llm: Callable[[], LLM], tasks: Sequence[str], folder: str | None = None, limit: int | None = None
) -> dict[str, Any]:
    """Runs tasks by name, those in ``folder`` among them.

    Returns model, quantization, limit, tasks {name: {metric: value}}. Raises UsageError without the library (before a
    model is loaded) and for a task that there is none of.
    """
    require_harness()
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=folder)
    unknown = [name for name in tasks if name not in manager.all_tasks]
    if unknown:
        raise UsageError(f"there is no task {unknown[0]!r}; --include-path names a folder with tasks of your own")
    llm = open_llm()
    found = simple_evaluate(
        harness_model(llm), tasks=list(tasks), task_manager=manager, limit=limit, bootstrap_iters=0, log_samples=False
    )
    figures = {
        task: {name: float(value) for name, value in row.items() if isinstance(value, (int, float)) and "," in name}
        for task, row in found["results"].items()
    }
    return {"model": llm.config.model, "quantization": llm.quantization.name, "limit": limit, "tasks": figures}
