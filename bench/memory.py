"""Memory of a forward over a model that is read one layer at a time.

    cargo build --release -p openwork-cli
    python bench/memory.py MODEL --text wikitext2.test.raw.txt [--seq-len 1024] [--max-tokens 8192] [--threads 2]

Runs `openwork eval`, samples /proc a hundred times a second, and prints one JSON
object: the most anonymous memory (what the program allocated; mapped files can go
whenever the system wants them to) beside what has to be there, one layer in f32, the
hidden states of the windows that go through it together, and one window's inner states,
and beside the whole model in f32.
"""

import argparse
import json
import subprocess
import time


def anonymous(pid):
    """Bytes of memory that no file backs; None once the process is gone."""
    try:
        with open(f"/proc/{pid}/status") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return 1024 * int(fields["RssAnon"].split()[0]), 1024 * int(fields["RssFile"].split()[0])
    except (OSError, KeyError):
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--text", required=True)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--max-tokens", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--openwork", default="target/release/openwork")
    args = parser.parse_args()

    about = json.loads(subprocess.check_output([args.openwork, "inspect", args.model, "--json"]))
    shapes = {tensor["name"]: tensor["shape"] for tensor in about["tensors"]}
    size = lambda shape: 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    layer = sum(size(shape) for name, shape in shapes.items() if name.startswith("model.layers.0."))
    whole = sum(size(shape) for shape in shapes.values())
    rows = lambda name: shapes[f"model.layers.0.{name}_proj.weight"][0]
    hidden = shapes["model.norm.weight"][0]
    inner = 2 * hidden + 2 * rows("self_attn.q") + 2 * rows("self_attn.k") + 2 * rows("mlp.up")

    command = [args.openwork, "eval", args.model, "--text", args.text, "--json", "--quiet"]
    command += ["--seq-len", str(args.seq_len), "--max-tokens", str(args.max_tokens)]
    command += ["--threads", str(args.threads)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    most, mapped = 0, 0
    while process.poll() is None:
        found = anonymous(process.pid)
        if found:
            most, mapped = max(most, found[0]), max(mapped, found[1])
        time.sleep(0.01)
    result = json.loads(process.stdout.read())
    tokens = min(args.max_tokens, (64 << 20) // (4 * hidden) // args.seq_len * args.seq_len)
    needed = dict(
        layer_f32=layer,
        hidden_states=4 * hidden * tokens,
        inner_states_of_a_window=4 * inner * args.seq_len,
    )
    print(
        json.dumps(
            dict(
                model=args.model.rsplit("/", 1)[-1],
                threads=args.threads,
                windows=args.max_tokens // args.seq_len,
                seq_len=args.seq_len,
                token_perplexity=result["token_perplexity"],
                anonymous_peak=most,
                mapped_peak=mapped,
                needed=needed | dict(sum=sum(needed.values())),
                whole_model_f32=whole,
            ),
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
