"""Compares openwork with transformers on the same GGUF file, taking turns.

    cargo build --release -p openwork-llm --example measure
    python bench/against_transformers.py MODEL.gguf [--threads 1 2] [--rounds 7]
        [--text wikitext2.test.raw.txt --windows 4 --openwork target/release/openwork]

Prints one JSON object: the largest difference of logits relative to their
scale, seconds of a 1024-token forward on both sides (least of the rounds, which
alternate), the share of the machine's gemm rate, seconds per decoded token
against those of reading as many bytes, turn by turn, and, with --text, both token perplexities.
Needs torch, transformers, gguf and accelerate.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class Measure:
    """The Rust side: one question a line, one answer a line."""

    def __init__(self, binary, model, threads):
        self.process = subprocess.Popen(
            [binary, model, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, question):
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def flops(config, tokens):
    """Multiplications and additions of a forward with all logits; causal scores counted once."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    q, kv = config.num_attention_heads * head, config.num_key_value_heads * head
    linears = config.hidden_size * (2 * q + 2 * kv + 3 * config.intermediate_size)
    scores = tokens * q  # q.k and p.v, half of them masked
    layers = config.num_hidden_layers * (linears + scores)
    return 2 * tokens * (layers + config.vocab_size * config.hidden_size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--measure", default="target/release/examples/measure")
    parser.add_argument("--openwork", default="target/release/openwork")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--windows", type=int, default=4)
    args = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(
        args.model.parent, gguf_file=args.model.name, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    vocab = model.config.vocab_size
    ids = torch.tensor([[(i * 7919 + 13) % vocab for i in range(1024)]])
    result = {"model": args.model.name, "torch": torch.__version__, "threads": {}}

    with torch.inference_mode():
        ours = Measure(args.measure, args.model, max(args.threads))
        result["instructions"] = ours.ask("instructions")
        with tempfile.NamedTemporaryFile() as out:
            few = ids[0, :96].tolist()
            ours.ask(f"logits {out.name} " + " ".join(map(str, few)))
            got = np.fromfile(out.name, dtype=np.float32).reshape(96, vocab)
        want = model(ids[:, :96], use_cache=False).logits[0].numpy()
        result["logits_difference"] = float(np.abs(got - want).max() / np.abs(want).max())
        ours.close()

        for threads in args.threads:
            torch.set_num_threads(threads)
            ours = Measure(args.measure, args.model, threads)
            theirs_s, ours_s, gemm, decode = [], [], [], []
            theirs_cpu, ours_cpu = [], []
            for _ in range(args.rounds):
                started, cpu = time.perf_counter(), time.process_time()
                model(ids, use_cache=False)
                theirs_s.append(time.perf_counter() - started)
                theirs_cpu.append(time.process_time() - cpu)
                answer = ours.ask("forward 1024")
                ours_s.append(answer["seconds"])
                ours_cpu.append(answer["cpu_seconds"])
                gemm.append(ours.ask("gemm")["gflops"])
                decode.append(ours.ask("decode 32"))
            rate = flops(model.config, 1024) / min(ours_s) / 1e9
            token, read = ([d[kind]["median"] for d in decode] for kind in ("token", "read"))
            size = decode[0]["bytes_per_token"]
            result["threads"][threads] = {
                "transformers_seconds": min(theirs_s),
                "openwork_seconds": min(ours_s),
                "speedup": min(theirs_s) / min(ours_s),
                "transformers_cpu_seconds": min(theirs_cpu),
                "openwork_cpu_seconds": min(ours_cpu),
                "all_transformers": [round(x, 3) for x in theirs_s],
                "all_openwork": [round(x, 3) for x in ours_s],
                "gflops": rate,
                "gemm_gflops": max(gemm),
                "share_of_gemm": rate / max(gemm),
                "decode_bytes_per_token": size,
                "decode_tokens_per_second": 1 / min(token),
                "read_gb_per_second": size / min(read) / 1e9,
                "decode_share_of_reading": min(read) / min(token),
                "all_decode_shares": [round(r / t, 3) for r, t in zip(read, token)],
            }
            ours.close()

        if args.text:
            tokenizer = AutoTokenizer.from_pretrained(args.model.parent, gguf_file=args.model.name)
            text = args.text.read_text()
            tokens = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids[0]
            losses = []
            for i in range(args.windows):
                window = tokens[None, i * 1024 : (i + 1) * 1024]
                logits = model(window, use_cache=False).logits[0, :-1].double()
                losses.append(torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum").item())
            theirs = float(np.exp(sum(losses) / (1023 * len(losses))))
            command = [args.openwork, "eval", args.model, "--text", args.text, "--seq-len", "1024"]
            command += ["--max-tokens", str(1024 * args.windows), "--json", "--quiet"]
            ours = json.loads(subprocess.check_output(command))
            result["perplexity"] = {
                "windows": args.windows,
                "transformers": theirs,
                "openwork": ours["token_perplexity"],
                "difference": ours["token_perplexity"] / theirs - 1,
            }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
