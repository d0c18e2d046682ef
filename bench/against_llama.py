"""Generation speed against llama.cpp, in alternating turns on the same threads.

    python3 -m venv llama && llama/bin/pip install xllamacpp
    llama/bin/python bench/against_llama.py --openwork target/release/openwork \\
        --llama q8_0=model-q8_0.gguf --ours "2:4 int8=packed-int8" --threads 2

Ours are packed folders (or anything that `openwork generate` reads); llama.cpp's are GGUF
files of the same model. Prints a table of the best and the median turn in tokens/s, and
writes everything to --record as JSON, with the instructions that both sides used.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess

import xllamacpp

PROMPT = "The history of the windmill begins"


def named(text):
    name, path = text.split("=", 1)
    return name, pathlib.Path(path)


def llama(path, threads):
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 512
    params.n_parallel = 1
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.verbosity = 0
    return xllamacpp.Server(params)


def llama_turn(server, tokens):
    asked = {
        "prompt": PROMPT, "n_predict": tokens, "temperature": 0.0, "ignore_eos": True,
        "cache_prompt": False,
    }
    answer = server.handle_completions(asked)
    answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
    return answer["timings"]["predicted_per_second"]


def our_turn(openwork, path, tokens, threads):
    command = [
        openwork, "generate", path, "--prompt", PROMPT, "--max-new-tokens", str(tokens),
        "--threads", str(threads), "--json",
    ]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return answer["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--openwork", required=True, help="the command, built with --release")
    parser.add_argument("--llama", action="append", type=named, default=[], metavar="NAME=FILE")
    parser.add_argument("--ours", action="append", type=named, default=[], metavar="NAME=DIR")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--record", type=pathlib.Path)
    args = parser.parse_args()
    servers = {name: llama(path, args.threads) for name, path in args.llama}
    speeds = {}
    for _ in range(args.turns):
        for name, server in servers.items():
            speeds.setdefault(f"llama.cpp {name}", []).append(llama_turn(server, args.tokens))
        for name, path in args.ours:
            speed = our_turn(args.openwork, path, args.tokens, args.threads)
            speeds.setdefault(f"openwork {name}", []).append(speed)
    print("| model | tokens/s, best | median |\n|---|---|---|")
    for name, all_turns in speeds.items():
        print(f"| {name} | {max(all_turns):.1f} | {statistics.median(all_turns):.1f} |")
    if args.record:
        record = {
            "benchmark": "against_llama", "threads": args.threads, "tokens": args.tokens,
            "llama.cpp": str(xllamacpp.get_system_info()),
            "OPENWORK_KERNEL": os.environ.get("OPENWORK_KERNEL"), "tokens_per_second": speeds,
        }
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
