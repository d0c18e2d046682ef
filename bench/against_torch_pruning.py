"""Torch-Pruning's importances on the MLP channels of a GGUF model, for bench/structures.txt.

    python bench/against_torch_pruning.py smollm2.gguf --calib c4-en.jsonl --text wikitext2.test.raw.txt

Removes a quarter of each layer's channels (gate and up rows, down columns) by group magnitude and by
group Taylor importance, once and without retraining, and measures perplexity on the windows that
`openwork eval --max-tokens 16384 --seq-len 1024` takes. Needs torch, transformers, gguf, torch-pruning.
"""

import argparse
import copy
import json
import math
import random
from importlib.metadata import version
from pathlib import Path

import torch
import torch_pruning as tp
from transformers import AutoModelForCausalLM, AutoTokenizer


def windows(tokenizer, path, length):
    lines = Path(path).read_text(encoding="utf-8")
    if str(path).endswith(".jsonl"):
        lines = "\n\n".join(json.loads(line)["text"] for line in lines.splitlines() if line.strip())
    ids = tokenizer(lines)["input_ids"]
    return [ids[at : at + length] for at in range(0, len(ids) - length + 1, length)]


@torch.no_grad()
def perplexity(model, texts):
    total = sum(model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.item() for ids in texts)
    return math.exp(total / len(texts))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--calib", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--keep", type=float, default=0.75)
    ask = parser.parse_args()
    path = Path(ask.model)
    load = dict(gguf_file=path.name)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **load)
    dense = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **load).eval()
    dense.config.use_cache = False
    calib = windows(tokenizer, ask.calib, ask.seq_len)
    calib = random.Random(0).sample(calib, ask.samples)
    texts = windows(tokenizer, ask.text, ask.seq_len)[: 16384 // ask.seq_len]
    result = dict(torch_pruning=version("torch-pruning"), dense=perplexity(dense, texts))
    importances = dict(
        magnitude=tp.importance.GroupMagnitudeImportance(p=2, group_reduction="mean"),
        taylor=tp.importance.GroupTaylorImportance(),
    )
    for name, importance in importances.items():
        model = copy.deepcopy(dense)
        if name == "taylor":
            for ids in calib:
                model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.backward()
        graph = tp.DependencyGraph().build_dependency(model, example_inputs=torch.tensor([calib[0][:32]]))
        for layer in model.model.layers:
            linear = layer.mlp.gate_proj
            group = graph.get_pruning_group(linear, tp.prune_linear_out_channels, list(range(linear.out_features)))
            order = importance(group).argsort()
            gone = order[: round((1 - ask.keep) * linear.out_features)].tolist()
            graph.get_pruning_group(linear, tp.prune_linear_out_channels, gone).prune()
        assert model.model.layers[0].mlp.down_proj.in_features == round(ask.keep * dense.config.intermediate_size)
        result[name] = perplexity(model, texts)
        del model
    print(json.dumps(result))


if __name__ == "__main__":
    main()
