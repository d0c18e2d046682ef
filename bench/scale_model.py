"""What a run on many nodes costs: time, bytes moved and memory, from constants that were measured.

    python3 bench/scale_model.py [--threads 32] [--network 1.25e9] [--check RECORD.json]

Prints the tables of docs/scale.md. With --check the model is held against the rows that
bench/ray_scale.py wrote. The formulas are in docs/scale.md.
"""

import argparse
import json
import math

# Measured on one thread of an AMD EPYC (AVX2): bench/record/2026-11-16-ray.md.
FORWARD = 65e9  # flop/s of a forward pass, attention included
GRAM = 70e9  # flop/s of X'X, counting one triangle
MERGE = 1.5e9  # bytes/s: a partial sum taken from the object store and added
STORE = 0.36e9  # bytes/s: put into the object store, taken out and unpacked
ROW = {"s-obs": (2.7e-10, 2.36), "sparsegpt+refit": (6e-10, 2.0)}  # a K^b seconds for a row of K columns
CHUNK = 8192  # tokens

MODELS = {
    "smollm2": dict(hidden=576, ffn=1536, layers=30, q=576, kv=192),
    "0.5B": dict(hidden=896, ffn=4864, layers=24, q=896, kv=128),
    "4B": dict(hidden=2560, ffn=9728, layers=36, q=4096, kv=1024),
    "30B": dict(hidden=5120, ffn=25600, layers=64, q=8192, kv=1024),
    "70B": dict(hidden=8192, ffn=28672, layers=80, q=8192, kv=1024),
}


def linears(m):
    """(rows, columns) of the seven linears."""
    d, f, q, kv = m["hidden"], m["ffn"], m["q"], m["kv"]
    return [(q, d), (kv, d), (kv, d), (d, q), (f, d), (f, d), (d, f)]


def cost(m, tokens, seq, nodes, threads, network, method):
    """Seconds by step, bytes moved and bytes of memory, for one layer."""
    sites = [m["hidden"], m["q"], m["hidden"], m["ffn"]]
    weights = sum(rows * cols for rows, cols in linears(m))
    chunks = -(-tokens // CHUNK)
    busy = min(nodes, chunks)
    share = -(-chunks // busy) * CHUNK  # tokens of the worker that has most
    flops = 2 * (2 * weights + 2 * seq * m["q"]) * min(share, tokens)
    gram = sum(k * k for k in sites) * min(share, tokens)
    triangles = 8 * sum(k * k for k in sites)  # two, in f64
    a, b = ROW[method]
    prune = sum(rows * a * cols**b for rows, cols in linears(m))
    local = STORE if nodes == 1 or network is None else network
    moved = dict(
        partial=1.2 * triangles * chunks, hessians=triangles * nodes, weights=2 * weights * nodes, rows=2 * weights
    )
    seconds = dict(
        forward=flops / (FORWARD * threads) + gram / (GRAM * threads),
        reduce=moved["partial"] / MERGE + (0 if network is None else moved["partial"] / network),
        prune=prune / (threads * nodes) + 2 * weights / local,
        # Nodes that have it pass it on.
        broadcast=(triangles + 2 * weights) * (1 if network is None else 1 + math.log2(nodes)) / local,
    )
    memory = dict(
        states=2 * 4 * m["hidden"] * -(-tokens // busy),
        # The Hessians of a layer, one factored in f64 and f32, the layer in f32.
        hessians=16 * sum(k * k for k in sites) + 20 * max(sites) ** 2,
        layer=4 * weights,
    )
    return seconds, moved, memory


def hours(seconds):
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{seconds / 60:.0f} min"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--network", type=float, default=1.25e9)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--method", default="s-obs")
    parser.add_argument("--check")
    asked = parser.parse_args()
    if asked.check:
        record = json.load(open(asked.check))
        for row in record["rows"]:
            threads = min(1.0, 2 / row["workers"])  # two cores in all
            tokens = record["samples"] * asked.seq
            seconds, moved, _ = cost(MODELS["smollm2"], tokens, asked.seq, row["workers"], threads, None, record["method"])
            total = row["layers"] * sum(seconds.values())
            found = row["layers"] * sum(moved.values()), sum(row["bytes"].values())
            print(
                f"| {row['workers']} | {row['ray_seconds']:.1f} | {total:.1f} | {total / row['ray_seconds']:.2f} | "
                f"{found[1] / 1e6:.0f} | {found[0] / 1e6:.0f} |"
            )
        return
    nodes = [1, 2, 4, 8, 16, 32, 64]
    print(f"| model | {' | '.join(map(str, nodes))} | moved per layer, 8 nodes | memory of a node, 8 nodes |")
    print("|---|" + "---|" * (len(nodes) + 2))
    for name, m in MODELS.items():
        if name == "smollm2":
            continue
        times = []
        for n in nodes:
            seconds, *_ = cost(m, asked.tokens, asked.seq, n, asked.threads, asked.network, asked.method)
            times.append(hours(m["layers"] * sum(seconds.values())))
        _, moved, memory = cost(m, asked.tokens, asked.seq, 8, asked.threads, asked.network, asked.method)
        print(
            f"| {name} | {' | '.join(times)} | {sum(moved.values()) / 1e9:.1f} GB | "
            f"{sum(memory.values()) / 1e9:.1f} GB |"
        )


if __name__ == "__main__":
    main()
