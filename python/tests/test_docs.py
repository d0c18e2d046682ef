"""What the documents show runs."""

import re
from pathlib import Path

import pytest

import openwork

ROOT = Path(__file__).parents[2]


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("name", ["README.md", "docs/python.md"])
def test_a_parameter_in_five_lines(name, capsys):
    pytest.importorskip("torch")
    block = next(block for block in blocks(name) if "torch.nn.Linear" in block)
    assert len([line for line in block.splitlines() if line.strip()]) <= 5
    scope = {}
    exec(block, scope)
    assert scope["result"].density == 0.5 and (scope["layer"].weight == 0).float().mean() == 0.5


def test_the_specs_of_the_page_bind():
    block = next(block for block in blocks("docs/python.md") if "Spec.parse" in block)
    exec(block, {"openwork": openwork})


@pytest.mark.parametrize("name", ["README.md", "docs/python.md"])
def test_a_model_in_one_line(name, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    line = next(block for block in blocks(name) if block.startswith("openwork.prune_model(model"))
    text = tmp_path / "c4.jsonl"
    text.write_text('{"text": "a b c d e f g h"}\n' * 40)
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    tokenizer = lambda text: {"input_ids": [ord(c) % 32 for c in text]}
    exec(line.replace("c4.jsonl", str(text)), dict(openwork=openwork, model=model, tokenizer=tokenizer))
    assert (model.transformer.h[0].mlp.c_fc.weight == 0).float().mean() == 0.5
    assert torch.isfinite(model.transformer.h[0].mlp.c_fc.weight).all()
