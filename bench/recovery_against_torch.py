"""Compares the forward and backward pass of a decoder layer with torch's autograd, taking turns.

    cargo build --release -p openwork-llm --example measure
    python bench/recovery_against_torch.py MODEL.gguf [--threads 1 2] [--rounds 7] [--tokens 1024] [--layer 1]
        [--precision bf16]

Prints one JSON object: for each number of threads the seconds (wall and processor time, least of
the rounds, which alternate) of a forward pass and of a forward with a backward pass on both sides,
the ratio torch / openwork, and how many forward passes a forward with a backward pass costs.
Needs torch, transformers, gguf and accelerate.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from against_transformers import Measure
from transformers import AutoModelForCausalLM


class Layer:
    """One layer of transformers, with the gradients of all its parameters and of its input."""

    def __init__(self, path, index, tokens):
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        vocab = model.config.vocab_size
        ids = torch.tensor([[(i * 7919 + 13) % vocab for i in range(tokens)]])
        with torch.no_grad():
            self.states = model.get_input_embeddings()(ids)
        positions = torch.arange(tokens)[None]
        self.rotation = model.model.rotary_emb(self.states, positions)
        self.layer = model.model.layers[index]

    def run(self, states):
        out = self.layer(states, position_embeddings=self.rotation, attention_mask=None)
        return out[0] if isinstance(out, tuple) else out

    def forward(self):
        with torch.inference_mode():
            self.run(self.states)

    def forward_backward(self):
        states = self.states.clone().requires_grad_(True)
        out = self.run(states)
        # As in training, gradients are overwritten.
        for parameter in self.layer.parameters():
            parameter.grad = None
        out.backward(out.detach())


def timed(work):
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - cpu


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--measure", default="target/release/examples/measure")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--layer", type=int, default=1)
    parser.add_argument("--precision", choices=["bf16", "f32"], default="bf16", help="of our products; torch's are f32")
    args = parser.parse_args()

    layer = Layer(args.model, args.layer, args.tokens)
    result = {"model": args.model.name, "torch": torch.__version__, "tokens": args.tokens, "precision": args.precision, "threads": {}}
    for threads in args.threads:
        torch.set_num_threads(threads)
        ours = Measure(args.measure, args.model, threads)
        result["instructions"] = ours.ask("instructions")
        layer.forward_backward()
        best = {}
        for _ in range(args.rounds):
            answer = ours.ask(f"train {args.layer} {args.tokens} {args.precision}")
            for kind, work in [("forward", layer.forward), ("forward_backward", layer.forward_backward)]:
                times = {"torch": min(timed(work) for _ in range(2))}
                times["openwork"] = (answer[kind]["seconds"], answer[kind]["cpu_seconds"])
                for who, (wall, cpu) in times.items():
                    known = best.setdefault(f"{who}_{kind}", [wall, cpu])
                    best[f"{who}_{kind}"] = [min(known[0], wall), min(known[1], cpu)]
        ours.close()
        ratio = [a / b for a, b in zip(best["torch_forward_backward"], best["openwork_forward_backward"])]
        forwards = [a / b for a, b in zip(best["openwork_forward_backward"], best["openwork_forward"])]
        result["threads"][threads] = {
            **{f"{name}_seconds": wall for name, (wall, _) in best.items()},
            **{f"{name}_cpu_seconds": cpu for name, (_, cpu) in best.items()},
            "speedup": ratio[0],
            "speedup_cpu": ratio[1],
            "forwards": forwards[0],
            "forwards_cpu": forwards[1],
        }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
