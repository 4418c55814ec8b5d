"""The flags that say what a benchmark asks of the engine and when, under vLLM's names where vLLM has them."""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.cli.options import add_engine_flags, engine_config
from workbench.errors import UsageError

if TYPE_CHECKING:
    from workbench.measure.lengths import Lengths
    from workbench.measure.load import Load
    from workbench.measure.workload import Workload

NUM_PROMPTS = 32
LENGTHS = {"input_len": "16:512", "output_len": "16:256"}
SHORT = {"input_len": "16:64", "output_len": "16:64"}


class Flag(NamedTuple):
    type: Callable[[str], Any]
    metavar: str
    help: str


def lengths(text: str) -> Lengths:
    """As argparse wants a type: its error becomes the message."""
    from workbench.measure.lengths import parse_lengths

    try:
        return parse_lengths(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# Which flags a dataset takes and what they are without being given. A flag of another dataset is refused: it would have
# no effect.
DATASETS: dict[str, dict[str, Any]] = {
    "random": {"num_prompts": NUM_PROMPTS, **LENGTHS},
    "prefix_repetition": {
        "num_prompts": NUM_PROMPTS,
        "prefix_repetition_prefix_len": 256,
        "prefix_repetition_num_prefixes": 4,
        "prefix_repetition_suffix_len": "16:64",
        "prefix_repetition_output_len": "16:64",
    },
    "chat": {"chat_users": 8, "chat_turns": 4, "chat_system_len": 128, "chat_think_time": 0.0, **SHORT},
    "rag": {
        "num_prompts": NUM_PROMPTS,
        "rag_documents": 50,
        "rag_document_len": 128,
        "rag_per_prompt": 3,
        "rag_alpha": 1.0,
        "rag_order": "found",
        **SHORT,
    },
    "nano-vllm": {"shrink": 8},
    "trace": {"num_prompts": NUM_PROMPTS, "trace": None, "trace_speed": 1.0},
}

FLAGS = {
    "num_prompts": Flag(int, "N", "requests"),
    "input_len": Flag(
        lengths, "L", "prompt tokens: 128, 16:512, lognormal:MEDIAN:SIGMA[:MIN:MAX] or zipf:ALPHA:MIN:MAX"
    ),
    "output_len": Flag(lengths, "L", "output tokens, likewise"),
    "prefix_repetition_prefix_len": Flag(int, "N", "tokens that the prompts of a group have in common"),
    "prefix_repetition_num_prefixes": Flag(int, "N", "groups"),
    "prefix_repetition_suffix_len": Flag(lengths, "L", "tokens of a prompt's own"),
    "prefix_repetition_output_len": Flag(lengths, "L", "output tokens"),
    "chat_users": Flag(int, "N", "users, each with a talk of their own"),
    "chat_turns": Flag(int, "N", "questions of each user; a turn repeats the talk so far"),
    "chat_system_len": Flag(int, "N", "tokens of the system prompt that all share"),
    "chat_think_time": Flag(float, "S", "seconds between an answer and the user's next question"),
    "rag_documents": Flag(int, "N", "documents in the library"),
    "rag_document_len": Flag(int, "N", "tokens of a document"),
    "rag_per_prompt": Flag(int, "N", "documents in a prompt"),
    "rag_alpha": Flag(float, "A", "document k is asked for in proportion to 1/k^A"),
    "rag_order": Flag(str, "{found,sorted}", "order of the documents in a prompt"),
    "shrink": Flag(int, "N", "divide the 256 requests and their U(100, 1024) lengths by N; 1 = as published"),
    "trace": Flag(str, "FILE", "Mooncake JSONL, Azure or BurstGPT CSV, also .gz"),
    "trace_speed": Flag(float, "X", "replay so many times as fast"),
}
ALIASES = {
    "input_len": ["--random-input-len"],
    "output_len": ["--random-output-len"],
    "trace": ["--dataset-path"],
}


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """What is asked, when, and how it is judged. Absent flags stay absent."""
    group = parser.add_argument_group("requests")
    group.add_argument("--dataset-name", "--workload", metavar="{" + ",".join(DATASETS) + "}", default=None,
                       help="kind of prompts (default: random, or trace with --trace)")  # fmt: skip
    for name, flag in FLAGS.items():
        add_flag(group, name, flag, {kind: known[name] for kind, known in DATASETS.items() if name in known})
    group = parser.add_argument_group("arrivals")
    group.add_argument("--request-rate", type=float, default=None, metavar="R",
                       help="requests a second; inf = all at once (default: inf, or a trace's own times)")  # fmt: skip
    group.add_argument("--burstiness", type=float, default=None, metavar="B",
                       help="shape of the gaps (gamma); 1 = Poisson, below 1 = bursts (default: 1)")  # fmt: skip
    group.add_argument("--on-off", type=on_off_times, default=None, metavar="ON:OFF",
                       help="Poisson arrivals for ON seconds, none for OFF seconds, and so on")  # fmt: skip
    group.add_argument("--max-concurrency", type=int, default=None, metavar="N",
                       help="most requests at once; without a rate, N users in a closed loop")  # fmt: skip
    group = parser.add_argument_group("metrics")
    group.add_argument("--goodput", nargs="+", default=None, metavar="NAME:MS",
                       help="limits that a good request keeps to, such as ttft:500 tpot:50 e2el:5000")  # fmt: skip
    add_percentiles(group)


def add_flag(group: Any, name: str, flag: Flag, defaults: dict[str, Any]) -> None:
    told = {str(value) for value in defaults.values() if value is not None}
    note = (
        f" ({', '.join(f'{kind}: {value}' for kind, value in defaults.items() if value is not None)})" if told else ""
    )
    names = ["--" + name.replace("_", "-"), *ALIASES.get(name, [])]
    group.add_argument(*names, dest=name, type=flag.type, default=None, metavar=flag.metavar, help=flag.help + note)


def add_percentiles(group: Any) -> None:
    group.add_argument("--percentiles", "--metric-percentiles", type=percentile_list, default=(50.0, 90.0, 95.0, 99.0),
                       metavar="P,P", help="percentiles of every latency (default: 50,90,95,99)")  # fmt: skip


def load_of(args: argparse.Namespace) -> Load:
    """What the flags ask for. Raises UsageError for flags that would have no effect."""
    from workbench.measure.load import Load
    from workbench.measure.slo import parse_slo

    config = engine_config(args)
    rate, limit = args.request_rate, args.max_concurrency
    if limit is not None and limit < 1:
        raise UsageError(f"--max-concurrency {limit} must be at least 1")
    workload = arriving(dataset(args, config.seed), args, config.seed)
    slo = None if args.goodput is None else parse_slo(args.goodput)
    replays = workload.description["kind"] == "trace" and rate is None
    if limit is not None and not replays and (rate is None or math.isinf(rate)):
        return Load(config, workload.with_users(limit), None, slo, args.percentiles)
    return Load(config, workload, limit, slo, args.percentiles)


def overlaid(args: argparse.Namespace, options: dict[str, str], command: str) -> argparse.Namespace:
    """``args`` as if the options, engine's or workload's, had been given to ``command`` as flags."""
    parser = argparse.ArgumentParser(prog=command, add_help=False, allow_abbrev=False, exit_on_error=False)
    add_load_flags(parser)
    add_engine_flags(parser)
    flags = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if value in ("true", "false"):
            flags.append(f"--{flag}" if value == "true" else f"--no-{flag}")
        else:
            flags.append(f"--{flag}={value}")
    try:
        found, unknown = parser.parse_known_args(flags, copy.copy(args))
    except argparse.ArgumentError as error:
        raise UsageError(f"{command}: {error}") from None
    if unknown:
        name = unknown[0].lstrip("-").split("=")[0]
        raise UsageError(f"{command}: {name} is no option of the engine or the workload; --help lists them")
    return found


def dataset(args: argparse.Namespace, seed: int) -> Workload:
    """The requests that the flags describe."""
    kind = args.dataset_name or ("random" if args.trace is None else "trace")
    if kind not in DATASETS:
        raise UsageError(f"--dataset-name {kind} is not known; choose from {', '.join(DATASETS)}")
    for name in FLAGS:
        if getattr(args, name) is not None and name not in DATASETS[kind]:
            owners = [owner for owner, names in DATASETS.items() if name in names]
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} has no effect on dataset {kind}, only on {', '.join(owners)}: leave it out")
    return given(kind, args, seed)


def given(kind: str, args: argparse.Namespace, seed: int) -> Workload:
    """The requests of one dataset, with what the flags say and the defaults for the rest."""
    from workbench.measure import shared_heads, trace_files, workload

    known = DATASETS[kind]
    get = argparse.Namespace(**{name: _value(args, name, default) for name, default in known.items()})
    for name, value in vars(get).items():
        if FLAGS[name].type is int and name != "chat_system_len" and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value} must be at least 1")
    match kind:
        case "random":
            return workload.plain_workload(get.num_prompts, get.input_len, get.output_len, seed)
        case "prefix_repetition":
            return shared_heads.groups(
                get.num_prompts, get.prefix_repetition_num_prefixes, get.prefix_repetition_prefix_len,
                get.prefix_repetition_suffix_len, get.prefix_repetition_output_len, seed,
            )  # fmt: skip
        case "chat":
            return shared_heads.chat(
                get.chat_users, get.chat_turns, get.chat_system_len, get.input_len, get.output_len, seed,
                get.chat_think_time,
            )  # fmt: skip
        case "rag":
            if get.rag_order not in ("found", "sorted"):
                raise UsageError(f"--rag-order {get.rag_order} is not known; choose from found, sorted")
            return shared_heads.rag(
                get.num_prompts, get.rag_documents, get.rag_document_len, get.rag_per_prompt, get.input_len,
                get.output_len, seed, get.rag_alpha, get.rag_order == "sorted",
            )  # fmt: skip
        case "nano-vllm":
            return workload.published_workload(get.shrink, seed)
        case _:
            if get.trace is None:
                raise UsageError("--dataset-name trace needs a file: give it with --trace FILE")
            return trace_files.trace_workload(get.trace, seed, get.num_prompts, get.trace_speed)


def arriving(workload: Workload, args: argparse.Namespace, seed: int) -> Workload:
    """The workload at the times that the flags ask for; its own where they ask for none."""
    from workbench.measure import arrivals

    rate = args.request_rate
    shaped = [
        flag for flag, value in (("--burstiness", args.burstiness), ("--on-off", args.on_off)) if value is not None
    ]
    if len(shaped) == 2:
        raise UsageError("--burstiness and --on-off are two shapes of arrivals: give one of them")
    if shaped and (rate is None or math.isinf(rate)):
        raise UsageError(f"{shaped[0]} has no effect without a finite --request-rate: give one or leave it out")
    if rate is None:
        return workload
    if args.trace_speed is not None:
        raise UsageError("--trace-speed has no effect with --request-rate, which replaces the trace's times")
    n = workload.num_arrivals
    if args.on_off is not None:
        on, off = args.on_off
        times = arrivals.on_off(n, rate, on, off, seed)
        return workload.arriving(times, {"arrivals": "on/off", "request_rate": rate, "on": on, "off": off})
    burstiness = 1.0 if args.burstiness is None else args.burstiness
    times = arrivals.gamma(n, rate, burstiness, seed)
    if math.isinf(rate):
        return workload.arriving(times, {"arrivals": "at once"})
    return workload.arriving(times, {"arrivals": "gamma", "request_rate": rate, "burstiness": burstiness})


def on_off_times(text: str) -> tuple[float, float]:
    on, colon, off = text.partition(":")
    try:
        pair = float(on), float(off)
    except ValueError:
        pair = 0.0, 0.0
    if not (colon and 0 < pair[0] < math.inf and 0 <= pair[1] < math.inf):
        raise argparse.ArgumentTypeError(f"{text!r} is no pair of seconds such as 10:30")
    return pair


def percentile_list(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= percentile <= 100 for percentile in found):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of percentiles from 0 to 100 such as 50,90,99")
    return found


def _value(args: argparse.Namespace, name: str, default: Any) -> Any:
    given = getattr(args, name)
    if given is not None:
        return given
    return lengths(default) if FLAGS[name].type is lengths else default
