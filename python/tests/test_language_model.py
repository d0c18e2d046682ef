"""`openwork.Model` against its definitions, against transformers, and against the command."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hub_server import COMMIT, Hub

import openwork

ROOT = Path(__file__).parents[2]
MODELS = ["llama", "qwen2", "qwen3", "gemma3"]
TEXT = "the open work of a wall lets the light in and the wind out"


def folder(name):
    return ROOT / "testdata" / "models" / name


def command(*args, **environment):
    words = [sys.executable, "-m", "openwork", *map(str, args)]
    return subprocess.run(words, capture_output=True, text=True, env=os.environ | environment)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A pruned and packed model."""
    place = tmp_path_factory.mktemp("packed")
    (place / "text.txt").write_text(TEXT * 20)
    options = dict(spec="2:4", method="magnitude", samples=2, seq_len=16, single_tokens=0, progress=False)
    openwork.prune_model(folder("llama"), calib=place / "text.txt", out=place / "pruned", **options)
    done = command("pack", place / "pruned", "--out", place / "packed")
    assert done.returncode == 0, done.stderr
    return place


def log_softmax(logits):
    wide = logits.astype("float64")
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


@pytest.mark.parametrize("name, known", [("OPENWORK_KERNEL", "scalar"), ("OPENWORK_ACTIVATIONS", "8")])
def test_unknown_values_of_variables_are_refused(monkeypatch, name, known):
    monkeypatch.setenv(name, known)
    openwork.Model(folder("llama"))
    monkeypatch.setenv(name, "fast")
    with pytest.raises(openwork.OpenworkError, match=f'{name} is "fast"; choose'):
        openwork.Model(folder("llama"))


@pytest.mark.parametrize("name", MODELS)
def test_likelihoods_follow_from_the_logits(name):
    model = openwork.Model(folder(name))
    pairs = [("the open work", " of a wall"), ("the open work ", "of a wall"), ("", "a wall"), ("a", " b")]
    found = model.loglikelihoods(pairs)
    for (context, continuation), log in zip(pairs, found):
        before, after = model._native.tokenize_pair(context, continuation)
        logits = model.logits((before + after)[:-1])
        assert logits.shape == (len(before) + len(after) - 1, model.vocab_size) and logits.dtype == np.float32
        each = log_softmax(logits)[len(before) - 1 :]
        want = sum(row[token] for row, token in zip(each, after))
        assert log == pytest.approx(want, abs=1e-4) and isinstance(log, float)
        assert log.greedy == all(row.argmax() == token for row, token in zip(each, after))
        assert model.loglikelihood(context, continuation) == pytest.approx(log, abs=1e-5)
    ids = model.tokenize(TEXT)
    assert model.detokenize(ids) == TEXT
    window = ids[:16]
    each = log_softmax(model.logits(window[:-1]))
    want = math.exp(-np.mean([row[token] for row, token in zip(each, window[1:])]))
    if not model.adds_bos:
        found = model.perplexity(TEXT, seq_len=16, max_tokens=16)
        assert found == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder(name), dtype=torch.float32).eval()
    model = openwork.Model(folder(name))
    ids = model.tokenize(TEXT)
    with torch.no_grad():
        want = reference(torch.tensor([ids])).logits[0].numpy()
    assert np.abs(model.logits(ids) - want).max() < 1e-4 * np.abs(want).max()


def test_packed_and_gguf_models_run(packed):
    dense, small = openwork.Model(packed / "pruned"), openwork.Model(packed / "packed")
    ids = dense.tokenize(TEXT)
    assert np.abs(small.logits(ids) - dense.logits(ids)).max() < 1e-4
    gguf = openwork.Model(ROOT / "testdata" / "gguf" / "llama-bpe.gguf")
    assert np.isfinite(gguf.logits(gguf.tokenize("an assertion"))).all()
    assert gguf.config["model_type"] == "llama" and gguf.max_length > 0


def test_generation_streams_what_it_returns():
    model = openwork.Model("demo")
    pieces = []
    text = model.generate("the", max_new_tokens=12, stream=pieces.append)
    assert text and "".join(pieces) == text == model.generate("the", max_new_tokens=12)
    options = dict(max_new_tokens=12, temperature=0.9, top_k=20, top_p=0.9)
    assert model.generate("the", seed=1, **options) == model.generate("the", seed=1, **options)

    def fail(_):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        model.generate("the", max_new_tokens=100_000 // 1000, stream=fail)
    assert model.generate("the", max_new_tokens=12) == text, "it can be used after an error"


def test_chat_uses_the_model_template(tmp_path):
    for path in folder("llama").iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(openwork.OpenworkError, match="no chat template"):
        openwork.Model(tmp_path).chat("hello")
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'].strip() }}\n{% endfor %}"
    template += "{% if add_generation_prompt %}assistant:{% endif %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    model = openwork.Model(tmp_path)
    messages = [dict(role="system", content=" be open "), dict(role="user", content="a wall")]
    text = "system: be open\nuser: a wall\nassistant:"
    assert model.chat_text(messages) == text
    assert model.chat_text(messages, add_generation_prompt=False) == text.removesuffix("assistant:")
    assert model.chat(messages, max_new_tokens=6) == model.generate(text, max_new_tokens=6)
    assert model.chat_text("hi") == "user: hi\nassistant:"
    with pytest.raises(openwork.OpenworkError, match="message 0 is"):
        model.chat([dict(content="x")])
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("jinja2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == text


def test_mistakes_are_told(tmp_path):
    model = openwork.Model(folder("llama"))
    for call, words in [
        (lambda: model.logits([]), "there are no tokens"),
        (lambda: model.logits([10**6]), "out of range"),
        (lambda: model.logits(["a"]), "is not a token id"),
        (lambda: model.logits([1] * 1000), "exceed the model's limit"),
        (lambda: model.loglikelihood("a", ""), "has no tokens of its own"),
        (lambda: model.generate(""), "the prompt is empty"),
        (lambda: model.generate("a", temperature=-1), "temperature -1 is"),
        (lambda: openwork.Model(tmp_path / "none"), "no such file"),
        (lambda: openwork.Model(tmp_path), "no config.json"),
    ]:
        with pytest.raises(openwork.OpenworkError, match=words):
            call()


def test_the_interpreter_is_released_and_ctrl_c_stops(tmp_path):
    model = openwork.Model("demo")
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.005)

    thread = threading.Thread(target=tick)
    thread.start()
    model.generate("the", max_new_tokens=60)
    done.set()
    thread.join()
    assert len(ticks) > 2, "no other thread ran meanwhile"

    program = tmp_path / "program.py"
    program.write_text(
        "import openwork, signal\n"
        "# A process started in the background ignores the signal otherwise.\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "model = openwork.Model('demo')\n"
        "print('ready', flush=True)\n"
        "try:\n"
        "    model._native.token_loglikelihoods([([1, 2, 3, i % 100], [5, 6]) for i in range(400_000)])\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert out == "interrupted\n"


def test_the_command_is_the_binary(tmp_path):
    assert command("--version").stdout == f"openwork {openwork.__version__}\n"
    shown = command("show", "2:4", "--shape", "4,8", "--json")
    assert json.loads(shown.stdout)["density"] == 0.5
    wrong = command("show", "3:2", "--shape", "4,8")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: ") and not wrong.stdout
    (tmp_path / "task.jsonl").write_text(json.dumps(dict(context="the", choices=[" wall", " of"], gold=0)))
    found = json.loads(command("eval", folder("llama"), "--task", tmp_path / "task.jsonl", "--json").stdout)
    assert found["tasks"][0]["docs"] == 1


def test_names_on_the_hub(tmp_path, monkeypatch):
    hub = Hub()
    hub.add_folder("models/org/tiny", folder("llama"))
    document = json.dumps(dict(context="the", choices=[" wall", " of"], gold=0)).encode()
    hub.repos["datasets/org/texts"] = {
        "a.jsonl": b"".join(b'{"text": "%s"}\n' % TEXT.encode() for _ in range(20)),
        "task.jsonl": document,
    }
    environment = dict(HF_HOME=str(tmp_path / "home"), HF_ENDPOINT=hub.endpoint, HF_TOKEN="hf_donttell")
    words = "prune org/tiny --spec 2:4 --method magnitude --samples 2 --seq-len 16 --single-tokens 0 --json".split()
    words += ["--calib", "datasets:org/texts/a.jsonl", "--out", tmp_path / "out"]
    done = command(*words, **environment)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["model"] == "org/tiny" and "hf_donttell" not in done.stdout + done.stderr
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    model = openwork.Model("org/tiny")
    assert model.path.endswith(f"models--org--tiny/snapshots/{COMMIT}")
    record = openwork.prune_model("org/tiny", calib="datasets:org/texts/a.jsonl", spec="2:4", method="magnitude",
                                  samples=2, seq_len=16, single_tokens=0, out=tmp_path / "again", progress=False,
                                  task="datasets:org/texts/task.jsonl")
    assert record["model"] == "org/tiny"
    assert [task["name"] for task in record["tasks"]] == ["task", "task"]
    hub.close()
    assert openwork.Model("org/tiny", offline=True).path == model.path
    with pytest.raises(openwork.OpenworkError, match="not in the cache"):
        openwork.Model("org/other", offline=True)


def test_a_pruned_model_is_packed_and_unpacked(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the open work of a wall lets the light in and the wind out of the wall\n" * 40)
    pruned = tmp_path / "pruned"
    openwork.prune_model(
        folder("llama"), out=pruned, spec="2:4", method="magnitude", calib=text, samples=2, seq_len=16, progress=False
    )
    sizes = openwork.pack_model(pruned, tmp_path / "packed")
    assert sizes["bytes"] < sizes["dense_bytes"]
    assert {row["spec"] for row in sizes["tensors"]} == {"2:4"}
    tokens = list(range(8))
    dense = openwork.Model(pruned).logits(tokens)
    np.testing.assert_allclose(openwork.Model(tmp_path / "packed").logits(tokens), dense, rtol=1e-4, atol=1e-4)
    openwork.unpack_model(tmp_path / "packed", tmp_path / "dense")
    np.testing.assert_array_equal(openwork.Model(tmp_path / "dense").logits(tokens), dense)

    small = openwork.pack_model(pruned, tmp_path / "small", values="int4", head="int8")
    assert {row["values"] for row in small["tensors"]} == {"int4", "int8"} and small["bytes"] < sizes["bytes"]
    for words, call in {
        "values=int5: value type `int5` is unknown": lambda: openwork.pack_model(pruned, tmp_path / "no", values="int5"),
        "give the pattern": lambda: openwork.pack_model(folder("llama"), tmp_path / "no"),
        "no tensor is packed": lambda: openwork.unpack_model(pruned, tmp_path / "no"),
    }.items():
        with pytest.raises(openwork.OpenworkError, match=words):
            call()
        assert not (tmp_path / "no").exists()
