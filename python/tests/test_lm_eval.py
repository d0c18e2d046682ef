"""The adapter for lm-eval, on a task of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import openwork

lm_eval = pytest.importorskip("lm_eval")

MODEL = Path(__file__).parents[2] / "testdata" / "models" / "llama"
DOCUMENTS = [
    dict(question="the wall", choices=["is open", "is not", "wind"], answer=1),
    dict(question="the light", choices=["of a wall", "is"], answer=0),
    dict(question="a", choices=["wall", "light"], answer=1),
]
TASK = """
task: tiny
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
"""


@pytest.fixture
def task(tmp_path):
    (tmp_path / "tiny.jsonl").write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    (tmp_path / "tiny.yaml").write_text(TASK.format(data=tmp_path / "tiny.jsonl"))
    return tmp_path


def test_a_local_task_gives_the_accuracy_of_eval(task):
    lines = [
        dict(context=document["question"], choices=[f" {choice}" for choice in document["choices"]],
             gold=document["answer"])
        for document in DOCUMENTS
    ]
    (task / "ours.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "openwork", "eval", MODEL, "--task", task / "ours.jsonl", "--json"]
    ours = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["tasks"][0]

    environment = os.environ | dict(HF_HOME=str(task / "home"), HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1")
    command = [sys.executable, "-m", "openwork.lm_eval", "--model", "openwork", "--model_args", f"path={MODEL}",
               "--tasks", "tiny", "--include_path", task, "--output_path", task / "results", "--log_samples"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = task.glob("results/**/results_*.json")
    results = json.loads(found.read_text())["results"]["tiny"]
    assert results["acc,none"] == pytest.approx(ours["acc"])


def test_requests_are_answered_as_by_the_model():
    from lm_eval.api.instance import Instance
    from openwork.lm_eval import OpenworkLM

    adapter = OpenworkLM(path=str(MODEL))
    model = openwork.Model(MODEL)
    pairs = [("the wall", " is"), ("a", " light"), ("the wall", " was open"), ("", "wall"), ("the wall ", "is")]
    ask = lambda kind, args: [Instance(request_type=kind, doc={}, arguments=a, idx=0) for a in args]
    found = adapter.loglikelihood(ask("loglikelihood", pairs), disable_tqdm=True)
    for (log, greedy), want in zip(found, model.loglikelihoods(pairs)):
        assert log == pytest.approx(want, abs=1e-5) and greedy == want.greedy
    (rolling,) = adapter.loglikelihood_rolling(ask("loglikelihood_rolling", [("the open work of a wall",)]))
    assert rolling == pytest.approx(model.loglikelihood("", "the open work of a wall"), abs=1e-4)
    text = model.generate("the wall", max_new_tokens=8)
    options = dict(until=[], max_gen_toks=8)
    assert adapter.generate_until(ask("generate_until", [("the wall", options)])) == [text]
    middle = text[len(text) // 2 :][:2]
    (cut,) = adapter.generate_until(ask("generate_until", [("the wall", options | dict(until=[middle]))]))
    assert cut == text.split(middle)[0]
    # More tokens than the model can read: the context is kept, and generation ends at the limit.
    assert adapter.max_length < adapter.max_gen_toks
    (long,) = adapter.generate_until(ask("generate_until", [("the wall", dict(until=[]))]))
    assert long == model.generate("the wall", max_new_tokens=adapter.max_gen_toks)
    (cut,) = adapter.generate_until(ask("generate_until", [("the wall " * 99, dict(until=[]))]))
    assert cut


def test_wrong_model_args_are_told():
    from openwork.lm_eval import OpenworkLM

    OpenworkLM.create_from_arg_string(f"path={MODEL}", dict(batch_size=1, device="cpu"))
    for arguments, words in [
        (f"path={MODEL},ofline=True", "--model_args has ofline, which openwork does not know; it knows path"),
        ("offline=True", "has no path; give path=MODEL"),
    ]:
        with pytest.raises(openwork.OpenworkError, match=words):
            OpenworkLM.create_from_arg_string(arguments, {})
