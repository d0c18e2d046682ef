#!/usr/bin/env python3
"""Captures real linear layers: weights, Hessians and inputs of a GGUF model.

Runs text through the model with transformers and writes one safetensors file
per linear, `<out>/<layer>.<linear>.safetensors`, with the tensors

    weight    M x K  f32   the dense weights
    hessian   K x K  f64   X'X / n over all calibration tokens
    inputs    n1 x K f32   the first calibration tokens, for small-sample tests
    held_out  n2 x K f32   tokens of the windows after the calibration windows

and the counts in the file's metadata. Documents are joined by a blank line
and cut into windows of --seq-len tokens; every window is a sequence of its own.

    python bench/capture.py --model smollm2.gguf --text c4-en.jsonl --out captures/smollm2
"""

import argparse
import json
import pathlib
import time

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

# Where each linear lives in a Llama-like decoder layer.
LINEARS = {
    "q": ("self_attn", "q_proj"),
    "k": ("self_attn", "k_proj"),
    "v": ("self_attn", "v_proj"),
    "o": ("self_attn", "o_proj"),
    "gate": ("mlp", "gate_proj"),
    "up": ("mlp", "up_proj"),
    "down": ("mlp", "down_proj"),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True, type=pathlib.Path, help="a .gguf file")
    parser.add_argument("--text", required=True, type=pathlib.Path, help="a .txt, or a .jsonl with a text field")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the captures")
    parser.add_argument("--layers", default="0,14,29", help="decoder layers (default %(default)s)")
    parser.add_argument("--linears", default="q,o,gate,down", help="of " + ",".join(LINEARS))
    parser.add_argument("--tokens", type=int, default=65536, help="calibration tokens (default %(default)s)")
    parser.add_argument("--inputs", type=int, default=8192, help="calibration tokens stored as rows")
    parser.add_argument("--held-out", type=int, default=4096, help="held-out tokens stored as rows")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def text_of(path):
    raw = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        return raw
    return "\n\n".join(json.loads(line)["text"] for line in raw.splitlines() if line.strip())


class Site:
    """Sees the inputs of one linear: sums X'X, keeps the rows asked for."""

    def __init__(self, linear, inputs, held_out):
        self.linear = linear
        self.want_inputs, self.want_held_out = inputs, held_out
        self.sum = torch.zeros(linear.in_features, linear.in_features, dtype=torch.float64)
        self.count = 0
        self.inputs, self.held_out = [], []
        self.calibrating = True

    def __call__(self, _module, args):
        x = args[0].detach().reshape(-1, args[0].shape[-1]).float()
        if self.calibrating:
            # f32 products over one window, summed in f64 over windows.
            self.sum += (x.T @ x).double()
            if self.count < self.want_inputs:
                self.inputs.append(x[: self.want_inputs - self.count].clone())
            self.count += len(x)
        else:
            kept = sum(len(part) for part in self.held_out)
            if kept < self.want_held_out:
                self.held_out.append(x[: self.want_held_out - kept].clone())

    def tensors(self):
        upper = torch.triu(self.sum / self.count)
        return {
            "weight": self.linear.weight.detach().float().contiguous(),
            "hessian": upper + torch.triu(upper, 1).T,
            "inputs": torch.cat(self.inputs),
            "held_out": torch.cat(self.held_out),
        }


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    folder, file = str(args.model.parent), args.model.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    model.eval()

    ids = tokenizer(text_of(args.text), add_special_tokens=False, verbose=False)["input_ids"]
    calibration = -(-args.tokens // args.seq_len)
    held_out = -(-args.held_out // args.seq_len)
    need = (calibration + held_out) * args.seq_len
    if len(ids) < need:
        raise SystemExit(f"error: {args.text} has {len(ids)} tokens; {need} are needed")
    windows = torch.tensor(ids[:need]).reshape(-1, args.seq_len)

    sites = {}
    for index in map(int, args.layers.split(",")):
        for name in args.linears.split(","):
            part, attribute = LINEARS[name]
            linear = getattr(getattr(model.model.layers[index], part), attribute)
            site = Site(linear, args.inputs, args.held_out)
            linear.register_forward_pre_hook(site)
            sites[f"{index}.{name}"] = site

    started = time.time()
    with torch.no_grad():
        for w, window in enumerate(windows):
            for site in sites.values():
                site.calibrating = w < calibration
            model.model(window[None], use_cache=False)
            print(f"window {w + 1} of {len(windows)}, {time.time() - started:.0f} s", flush=True)

    args.out.mkdir(parents=True, exist_ok=True)
    for name, site in sites.items():
        path = args.out / f"{name}.safetensors"
        counts = {"tokens": str(site.count), "seq_len": str(args.seq_len)}
        save_file(site.tensors(), path, metadata=counts)
        print(path)


if __name__ == "__main__":
    main()
