"""What lm-evaluation-harness asks of a model, against transformers; with the library itself where it is installed."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from tests.model.tiny import make_tiny
from tests.tiny_llm import open_llm
from workbench.cli import main
from workbench.errors import UsageError
from workbench.measure import harness
from workbench.measure.harness import answers, harness_model, log_likelihoods
from workbench.model import store
from workbench.text.tokenizer import Tokenizer

PAIRS = [([5, 6, 7], [90, 12]), ([3], [44, 100, 8, 2]), ([5, 6, 7], [91]), (list(range(20, 50)), [1, 2, 3])]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The default model's tokenizer before a tiny model, and the same model in transformers."""
    path = tmp_path_factory.mktemp("tiny")
    model = make_tiny("smollm2", path, vocab_size=49152)
    Tokenizer.from_source(store.locate("smollm2-135m")).transformers.save_pretrained(path)
    return path, model


@torch.inference_mode()
def scored(model, context, continuation):
    """Once more, by transformers: Σ ln p, and whether each token is the likeliest."""
    logprobs = model(torch.tensor([[*context, *continuation]])).logits[0].double().log_softmax(-1)
    rows = logprobs[len(context) - 1 : -1]
    wanted = torch.tensor(continuation)
    return float(rows.gather(1, wanted[:, None]).sum()), bool((rows.argmax(-1) == wanted).all())


def likeliest(model, context, count):
    ids = list(context)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(context) :]


def test_likelihoods_are_those_of_transformers(tiny):
    path, model = tiny
    pairs = [*PAIRS, ([9, 10], likeliest(model, [9, 10], 3))]
    found = log_likelihoods(open_llm(path), pairs)
    for (nats, greedy), pair in zip(found, pairs, strict=True):
        wanted, wanted_greedy = scored(model, *pair)
        assert nats == pytest.approx(wanted, abs=2e-3) and greedy == wanted_greedy
    assert [greedy for _, greedy in found] == [False] * 4 + [True]


def test_a_long_context_loses_its_head(tiny):
    path, model = tiny
    llm = open_llm(path, max_model_len=16)
    context, continuation = [(7 * i) % 200 for i in range(40)], [5, 6]
    ((nats, _),) = log_likelihoods(llm, [(context, continuation)])
    assert nats == pytest.approx(scored(model, context[-13:], continuation)[0], abs=2e-3)
    for pair in (([], [1]), ([1], list(range(15)))):
        with pytest.raises(UsageError, match="max_model_len=16 less one"):
            log_likelihoods(llm, [pair])


def test_answers_end_where_they_are_to(tiny):
    path, _ = tiny
    llm = open_llm(path)
    asked = "The capital of France is"
    (whole,) = answers(llm, [(asked, {"max_gen_toks": 12})])
    stop = whole[len(whole) // 2]
    found = answers(llm, [(asked, {"until": [stop], "max_gen_toks": 12}), (asked, {"until": stop, "max_gen_toks": 12})])
    assert found == [whole[: whole.index(stop)]] * 2
    assert answers(llm, [(asked, {"max_gen_toks": 12, "do_sample": False, "temperature": 2.0})]) == [whole]
    with pytest.raises(UsageError, match="'num_beams' is not supported"):
        answers(llm, [(asked, {"num_beams": 4})])
    with pytest.raises(UsageError, match="max_gen_toks=100000 leaves no room"):
        answers(llm, [(asked, {"max_gen_toks": 100000})])


def test_without_the_library_it_says_how_to_install_it(tiny, monkeypatch, capsys):
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: None)
    assert main(["eval", str(tiny[0]), "--tasks", "anything"]) == 2
    assert "pip install 'llm-workbench[eval]'" in capsys.readouterr().err
    with pytest.raises(UsageError, match="not installed"):
        harness_model(open_llm(tiny[0]))


# -- with the library --

installed = pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-evaluation-harness is not here")
CHOICES = [{"question": "Which is a colour?", "choices": ["red", "seven", "quickly"], "gold": 0},
           {"question": "Which is a number?", "choices": ["blue", "nine", "loudly"], "gold": 1},
           {"question": "Who swims?", "choices": ["a stone", "a fish", "a chair"], "gold": 1}]  # fmt: skip
TASKS = {
    "local_choice": """
task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: gold
metric_list: [{{metric: acc}}]
""",
    "local_text": """
task: local_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list: [{{metric: byte_perplexity}}]
""",
    "local_answer": """
task: local_answer
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[gold]}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 4}}
metric_list: [{{metric: exact_match}}]
""",
}


@installed
def test_local_tasks_run(tiny, tmp_path, capsys):
    path, model = tiny
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in CHOICES))
    for name, text in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(text.format(data=data))
    command = ["eval", str(path), "--tasks", ",".join(TASKS), "--include-path", str(tmp_path), "--json",
               "--device", "cpu", "--num-kv-blocks", "64"]  # fmt: skip
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["tasks"]
    encode = Tokenizer.from_source(path).encode
    right = nats = count = 0
    for row in CHOICES:
        context = encode(row["question"])
        sums = [scored(model, context, encode(f"{row['question']} {choice}")[len(context) :])[0]
                for choice in row["choices"]]  # fmt: skip
        right += int(max(range(3), key=sums.__getitem__) == row["gold"])
        nats += scored(model, [1], context)[0]
        count += len(row["question"].encode())
    assert told["local_choice"]["acc,none"] == pytest.approx(right / 3)
    assert told["local_text"]["byte_perplexity,none"] == pytest.approx(2.718281828 ** (-nats / count), rel=1e-3)
    assert told["local_answer"]["exact_match,none"] == 0
    assert main([*command[:2], "--tasks", "no_such_task", *command[4:]]) == 2
    assert "no task 'no_such_task'" in capsys.readouterr().err


@installed
def test_a_text_longer_than_the_model_is_scored_in_windows(tiny):
    from lm_eval.api.instance import Instance

    path, model = tiny
    llm = open_llm(path, max_model_len=12)
    text = "A ferry leaves at nine, at ten past eleven and at four, except on Sundays."
    (found,) = harness_model(llm).loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])
    ids = Tokenizer.from_source(path).encode(text)
    wanted, done = 0.0, 0
    while done < len(ids):
        end = min(done + 10, len(ids))
        context = ids[end - 11 : done] if done else [1]  # what the window holds before the tokens that are left
        wanted += scored(model, context, ids[done:end])[0]
        done = end
    assert found == pytest.approx(wanted, abs=1e-2)
