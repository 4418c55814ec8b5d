"""The four workloads of the comparison: token ids drawn with a seed, the same for every system. No torch.

All are greedy and end by length alone, so that every system computes the same number of tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import UsageError

NAMES = ("a", "b", "c", "d")
STREAM_PROMPT, STREAM_OUTPUT = 128, 128
MIXED, MIXED_PROMPT, MIXED_OUTPUT = 32, (16, 512), (16, 256)
PREFILL = 2048
SHARING, HEAD, OWN, SHARED_OUTPUT = 16, 1024, 32, 32


@dataclass(frozen=True, slots=True)
class Job:
    """Requests that are all there at once."""

    name: str
    title: str
    unit: str
    prompts: list[list[int]]
    output_lens: list[int]
    head: int = 0
    """Tokens that all prompts begin with."""

    @property
    def more_is_better(self) -> bool:
        return self.unit != "s"

    @property
    def total_tokens(self) -> int:
        """Prompt and output tokens of all requests: what a cache must hold if nothing is shared."""
        return sum(map(len, self.prompts)) + sum(self.output_lens)

    @property
    def longest(self) -> int:
        return max(len(prompt) + output for prompt, output in zip(self.prompts, self.output_lens, strict=True))

    def figure(self, seconds: float, first_seconds: float) -> float:
        """What the workload is told by: decode tok/s (from the first token to the last), output tok/s, prompt tok/s or
        seconds. Raises ValueError for times that cannot be."""
        if seconds <= 0 or not 0 <= first_seconds <= seconds:
            raise ValueError(f"a run of {seconds:.6f} s with its first token after {first_seconds:.6f} s cannot be")
        if self.name == "a":
            if not 0 < first_seconds < seconds:
                raise ValueError(f"the first token came after {first_seconds:.6f} of {seconds:.6f} s: no decode time")
            return (self.output_lens[0] - 1) / (seconds - first_seconds)
        if self.name == "b":
            return sum(self.output_lens) / seconds
        if self.name == "c":
            return len(self.prompts[0]) / seconds
        return seconds

    def check(self, answers: Any) -> None:
        """Raises ValueError for answers that have not exactly the tokens asked for."""
        lens = [len(answer) for answer in answers]
        if lens != self.output_lens:
            at = next((i for i, pair in enumerate(zip(lens, self.output_lens, strict=False)) if pair[0] != pair[1]), -1)
            if len(lens) != len(self.output_lens):
                raise ValueError(f"{len(lens)} answers came for {len(self.output_lens)} requests")
            raise ValueError(f"answer {at} has {lens[at]} tokens, not {self.output_lens[at]}")

    def describe(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "unit": self.unit,
            "more_is_better": self.more_is_better,
            "requests": len(self.prompts),
            "prompt_tokens": sum(map(len, self.prompts)),
            "output_tokens": sum(self.output_lens),
            "shared_head": self.head,
        }


def jobs(names: Sequence[str], vocab_size: int, seed: int) -> list[Job]:
    """The jobs of these names, in the order of `NAMES`; what one draws does not depend on the others.

    Raises UsageError for a name that is none.
    """
    for name in names:
        if name not in NAMES:
            raise UsageError(f"--workloads {name!r} is none; choose from {', '.join(NAMES)}")
    return [_job(name, vocab_size, random.Random(f"{seed} {name}")) for name in NAMES if name in names]


def _job(name: str, vocab_size: int, chance: random.Random) -> Job:
    def draw(length: int) -> list[int]:
        return [chance.randrange(vocab_size) for _ in range(length)]

    if name == "a":
        title = f"one stream, {STREAM_PROMPT} → {STREAM_OUTPUT}"
        return Job(name, title, "decode tok/s", [draw(STREAM_PROMPT)], [STREAM_OUTPUT])
    if name == "b":
        prompts = [draw(chance.randint(*MIXED_PROMPT)) for _ in range(MIXED)]
        title = f"{MIXED} mixed requests, {MIXED_PROMPT[0]}–{MIXED_PROMPT[1]} → {MIXED_OUTPUT[0]}–{MIXED_OUTPUT[1]}"
        return Job(name, title, "output tok/s", prompts, [chance.randint(*MIXED_OUTPUT) for _ in prompts])
    if name == "c":
        return Job(name, f"a prefill of {PREFILL:,} tokens", "prompt tok/s", [draw(PREFILL)], [1])
    head = draw(HEAD)
    title = f"{SHARING} requests with a head of {HEAD:,} in common, + {OWN} → {SHARED_OUTPUT}"
    return Job(name, title, "s", [head + draw(OWN) for _ in range(SHARING)], [SHARED_OUTPUT] * SHARING, HEAD)
