"""Prunes an encoder by several patterns and methods, and compares its sentence vectors and its
speed with those of the dense model and of transformers.

    cargo build --release -p openwork-cli
    python bench/encoders.py MODEL --calib c4-en.jsonl --text wikitext2.test.raw.txt --out DIR
        [--specs 2:4 6:8 ..] [--methods sparsegpt+refit admm] [--sentences 500]
        [--samples 128] [--no-prune] [--no-time] [--rounds 5] [--threads 2] [--batch 32] [--record FILE]

Sentences are those of the text with 8 to 40 words, evenly spaced. Prints one JSON object: for
every spec and method, mean and least cosine similarity to the dense vectors; for the dense
model, transformers and the packed form of every spec, sentences per second in batches. What
is timed takes turns, and the fastest round counts. Needs torch and transformers.
"""

import argparse
import json
import re
import subprocess
import time
from pathlib import Path

SPECS = ["2:4", "6:8", "block(16,16)", "rows16"]
METHODS = ["sparsegpt+refit", "admm"]


def sentences(text, count):
    """Evenly spaced sentences of WikiText, detokenized a little."""
    found = []
    for line in Path(text).read_text().splitlines():
        line = line.strip()
        if not line or line.startswith("="):
            continue
        for sentence in re.split(r"(?<= [.!?]) ", line):
            if 8 <= len(sentence.split()) <= 40:
                found.append(re.sub(r" ([.,;:!?%)'])", r"\1", sentence.replace(" @-@ ", "-").replace(" @,@ ", ",")))
    return [found[i * len(found) // count] for i in range(count)]


def run(arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stderr}")
    return json.loads(done.stdout)


class Transformers:
    """Mean pooling of padded batches, as sentence-transformers computes it."""

    def __init__(self, model, threads):
        import torch
        from transformers import AutoModel, AutoTokenizer

        torch.set_num_threads(threads)
        self.torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModel.from_pretrained(model, dtype=torch.float32).eval()

    def seconds(self, texts, batch):
        torch = self.torch
        batches = [texts[i : i + batch] for i in range(0, len(texts), batch)]
        batches = [
            self.tokenizer(part, padding=True, truncation=True, max_length=384, return_tensors="pt") for part in batches
        ]
        start = time.perf_counter()
        with torch.inference_mode():
            for part in batches:
                hidden = self.model(**part).last_hidden_state
                mask = part["attention_mask"][:, :, None].float()
                torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
        return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--calib")
    parser.add_argument("--text", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--openwork", default="target/release/openwork")
    parser.add_argument("--specs", nargs="+", default=SPECS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prune", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--time", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    texts = sentences(options.text, options.sentences)
    file = options.out / "sentences.txt"
    file.write_text("\n".join(texts) + "\n")
    common = ["--threads", str(options.threads), "--json", "--quiet"]
    command = [options.openwork]
    result = dict(model=Path(options.model).name, sentences=len(texts), batch=options.batch, threads=options.threads)

    def folder(spec, method):
        return options.out / re.sub(r"[^a-z0-9+]+", "-", f"{spec} {method}").strip("-")

    result["similarity"] = []
    for method in options.methods:
        for spec in options.specs:
            out = folder(spec, method)
            if options.prune and not (out / "model.safetensors.index.json").exists():
                run([*command, "prune", options.model, "--spec", spec, "--method", method, "--calib", options.calib,
                     "--samples", str(options.samples), "--eval", file, "--out", out, "--resume", *common])
            if (out / "openwork/record.json").exists():
                record = json.loads((out / "openwork/record.json").read_text())
                found = record["similarity"]
                result["similarity"].append(dict(
                    spec=spec, method=method, mean=found["mean"], least=found["least"],
                    mean_error=record["totals"]["mean_error"], seconds=record["totals"]["seconds"],
                ))
    if options.time:
        turns = {"dense": options.model}
        for spec in options.specs:
            source = folder(spec, options.methods[0])
            packed = source.with_name(source.name + "-packed")
            if not packed.exists():
                run([*command, "pack", source, "--out", packed, *common])
            turns[spec] = packed
        theirs = Transformers(options.model, options.threads)
        best = {}
        vectors = options.out / "vectors.safetensors"
        for _ in range(options.rounds):
            took = {"transformers": theirs.seconds(texts, options.batch)}
            for name, model in turns.items():
                took[name] = run([*command, "embed", model, "--text", file, "--batch-size", str(options.batch),
                                  "--out", vectors, "--force", *common])["seconds"]
            for name, seconds in took.items():
                best[name] = min(seconds, best.get(name, seconds))
        result["sentences_per_second"] = {name: len(texts) / seconds for name, seconds in best.items()}
        result["packed_against_dense"] = {name: best["dense"] / best[name] for name in turns if name != "dense"}
        result["against_transformers"] = {name: best["transformers"] / best[name] for name in turns}
    text = json.dumps(result, indent=1)
    if options.record:
        options.record.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
