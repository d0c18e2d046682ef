"""Every Python block of README.md and docs/*.md runs, and so does every command of
`python -m openwork.ray`. The names that blocks use are bound to tiny models and texts."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import openwork

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
GGUF = ROOT / "testdata" / "gguf" / "llama-bpe.gguf"

#: Text replaced before a block or command runs, with the reason.
REPLACED = [
    (r'"/models/', '"', "the file is in the folder of the test"),
    (r" /models/", " ", "the file is in the folder of the test"),
    (r',? *address="auto"', "", "joins a running cluster; without it one is made for the run"),
    (r" --address \S+", "", "joins a running cluster; without it one is made for the run"),
]


def blocks(language):
    """All fenced blocks of a language, each with its page and line."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for match in re.finditer(rf"^ *```{language}\n(.*?)^ *```", text, re.S | re.M):
            line = text[: match.start()].count("\n") + 1
            found.append(pytest.param(match[1], id=f"{page}:{line}"))
    return found


def replaced(text):
    for pattern, by, _ in REPLACED:
        text = re.sub(pattern, by, text)
    return text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with the files that examples name."""
    monkeypatch.chdir(tmp_path)
    words = "the pattern of openings in a wall a screen or a leaf"
    for name in ("c4.jsonl", "wikitext2.txt"):
        line = '{"text": "%s"}\n' % words if name.endswith(".jsonl") else f"{words}\n"
        Path(name).write_text(line * 400)
    for name in ("smollm2.gguf", "model.gguf"):
        Path(name).write_bytes(GGUF.read_bytes())
    return tmp_path


def names(block):
    """What a block uses without making it, as far as this test knows it."""
    rng = np.random.default_rng(0)
    rows, columns = 32, 64
    X = rng.standard_normal((256, columns)).astype("float32")
    scope = dict(openwork=openwork, W=rng.standard_normal((rows, columns)).astype("float32"), M=rows, K=columns,
                 X=X, H=X.T @ X / len(X), columns=columns, batches=[X[:128], X[128:]], numpy=np, np=np)
    if re.search(r"\b(model|tokenizer|optimizer|torch)\b", block):
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        config = transformers.LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            vocab_size=64, max_position_embeddings=32)
        model = transformers.LlamaForCausalLM(config)
        ids = lambda: torch.randint(0, 64, (1, 32))
        scope |= dict(
            torch=torch, model=model, tokenizer=lambda text: {"input_ids": [ord(c) % 64 for c in text]},
            batches=[ids() for _ in range(4)], data=[(ids(), ids()) for _ in range(3)],
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
            loss=lambda out, y: torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), y.flatten()))
    if "marian" in block:
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        config = transformers.MarianConfig(
            d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=64, max_position_embeddings=32, pad_token_id=0,
            decoder_start_token_id=0, eos_token_id=1)
        ids = lambda: torch.randint(0, 64, (1, 32))
        scope |= dict(marian=transformers.MarianMTModel(config), pairs=[(ids(), ids()) for _ in range(4)])
    return scope


def need_ray():
    if os.environ.get("OPENWORK_NO_TORCH"):
        pytest.skip("Ray examples run in the pass with torch")
    pytest.importorskip("ray")


@pytest.mark.parametrize("block", blocks("python"))
def test_every_python_block_runs(block, folder):
    if "openwork.ray" in block:
        need_ray()
    exec(compile(replaced(block), "block", "exec"), names(block))


@pytest.mark.parametrize("block", [b for b in blocks("sh") if "openwork.ray" in b.values[0]])
def test_every_ray_command_runs(block, folder):
    need_ray()
    for line in (line for line in block.replace("\\\n", " ").splitlines() if "openwork.ray" in line):
        words = shlex.split(replaced(line), comments=True)
        assert words[:3] == ["python", "-m", "openwork.ray"], line
        environment = {**os.environ, "RAY_DEDUP_LOGS": "0"}
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert (folder / "pruned" / "config.json").exists()


@pytest.mark.parametrize("block", [b for b in blocks("python") if "torch.nn.Linear" in b.values[0]])
def test_the_first_example_prunes_half_the_weights_in_five_lines(block):
    pytest.importorskip("torch")
    assert len([line for line in block.splitlines() if line.strip()]) <= 5
    scope = {}
    exec(block, scope)
    assert scope["result"].density == 0.5 and (scope["layer"].weight == 0).float().mean() == 0.5
