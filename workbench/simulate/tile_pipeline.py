"""Who waits for whom inside a tile of attention: a small model of one SM, to tell FlashAttention 2 and 3 apart.

An SM has tensor cores, which multiply matrices, and special function units, which compute exponentials; they work side
by side, each on one job at a time. A warpgroup (four warps, 64 rows of queries) has three jobs for every block of keys:
``QK`` (scores, tensor cores), ``exp`` (softmax, special functions) and ``PV`` (weights times values, tensor cores). QK
comes before exp, exp before PV.

- One warpgroup in order: QK, exp, PV, next block. The units take turns, and one of them always waits.
- Two warpgroups, taking turns (*ping-pong*): while one computes exponentials, the other multiplies.
- One warpgroup, a block *ahead*: the next block's QK is issued before this block's exponentials.

Left out: loads, the highest score, sums and rescaling, conversions, barriers, and that clocks fall under load. So what
comes out is a bound, and an order, not a rate. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.checks import as_whole
from workbench.errors import UsageError

TENSOR, SPECIAL = "tensor cores", "special functions"
ROWS = 64
"""Of queries, that a warpgroup has."""
UNIT_OF = {"QK": TENSOR, "exp": SPECIAL, "PV": TENSOR}


@dataclass(frozen=True, slots=True)
class Units:
    """Rates of a whole chip, per second: FLOPs of dense 16-bit products, and exponentials."""

    name: str
    flops: float
    exponentials: float
    sms: int
    source: str

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.flops / 1e12:.0f} TFLOP/s, {self.exponentials / 1e12:.1f} T exponentials/s, "
            f"{self.sms} SMs ({self.source})"
        )


UNITS = {
    "a100": Units(
        "A100", 312e12, 16 * 108 * 1.41e9, 108, "data sheet; 16 special functions a clock and SM, 108 SMs, 1.41 GHz"
    ),
    "h100": Units("H100 SXM5", 989e12, 3.9e12, 132, "Shah et al. 2024, section 2.2"),
}


@dataclass(frozen=True, slots=True)
class Job:
    """Times in seconds."""

    warpgroup: int
    block: int
    name: str
    begin: float
    end: float

    @property
    def unit(self) -> str:
        return UNIT_OF[self.name]


@dataclass(frozen=True, slots=True)
class Timeline:
    jobs: tuple[Job, ...]

    @property
    def seconds(self) -> float:
        return max(job.end for job in self.jobs)

    def busy(self, unit: str) -> float:
        """The share of the time in which this unit works."""
        return sum(job.end - job.begin for job in self.jobs if job.unit == unit) / self.seconds


def job_seconds(units: Units, head_dim: int, block_n: int = 128, rows: int = ROWS) -> dict[str, float]:
    """How long each job of a warpgroup takes on an SM that it has for itself."""
    numbers = {"head_dim": head_dim, "block_n": block_n, "rows": rows}
    for name, number in numbers.items():
        if as_whole(number) is None or number < 1:
            raise UsageError(f"{name}={number!r}: must be a whole number of at least 1")
    product = 2 * rows * block_n * head_dim / (units.flops / units.sms)
    return {"QK": product, "exp": rows * block_n / (units.exponentials / units.sms), "PV": product}


def simulate_tile(
    units: Units, *, head_dim: int = 128, blocks: int = 8, warpgroups: int = 1, ahead: bool = False
) -> Timeline:
    """Each warpgroup walks over ``blocks`` blocks of 128 keys. A unit takes the job that can begin first; of two, that
    of the warpgroup that had it longer ago."""
    for name, number in (("blocks", blocks), ("warpgroups", warpgroups)):
        if as_whole(number) is None or number < 1:
            raise UsageError(f"{name}={number!r}: must be a whole number of at least 1")
    seconds = job_seconds(units, head_dim)
    queues = [_order(blocks, ahead) for _ in range(warpgroups)]
    free = {TENSOR: 0.0, SPECIAL: 0.0}
    ended: dict[tuple[int, int, str], float] = {}
    served: dict[str, list[int]] = {unit: list(range(warpgroups)) for unit in free}
    jobs: list[Job] = []
    while any(any(queue.values()) for queue in queues):
        choices = []
        for group, queue in enumerate(queues):
            for unit, waiting in queue.items():
                if waiting and (ready := _ready(group, waiting[0], ended, ahead)) is not None:
                    choices.append((max(ready, free[unit]), served[unit].index(group), unit, group))
        begin, _, unit, group = min(choices)
        block, name = queues[group][unit].pop(0)
        end = begin + seconds[name]
        free[unit] = ended[group, block, name] = end
        served[unit].remove(group)
        served[unit].append(group)
        jobs.append(Job(group, block, name, begin, end))
    return Timeline(tuple(jobs))


def _order(blocks: int, ahead: bool) -> dict[str, list[tuple[int, str]]]:
    """In which order a warpgroup hands its jobs to each unit."""
    products = [(block, name) for block in range(blocks) for name in ("QK", "PV")]
    if ahead:  # QK 0, QK 1, PV 0, QK 2, PV 1, …
        products = [(0, "QK")]
        for block in range(blocks):
            products += [(block + 1, "QK")] * (block + 1 < blocks) + [(block, "PV")]
    return {TENSOR: products, SPECIAL: [(block, "exp") for block in range(blocks)]}


def _ready(group: int, job: tuple[int, str], ended: dict[tuple[int, int, str], float], ahead: bool) -> float | None:
    """When what a job waits for is done; None while that is not known."""
    block, name = job
    if name == "QK":
        # In order: after the block before. Ahead there are two places for scores, each free once its exp is done.
        before = (group, block - 2, "exp") if ahead else (group, block - 1, "PV")
    else:
        before = (group, block, "QK" if name == "exp" else "exp")
    if before[1] < 0:
        return 0.0
    return ended.get(before)
