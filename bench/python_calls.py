#!/usr/bin/env python3
"""What a call from Python costs, and `hard_threshold` against the paper's package.

    python bench/python_calls.py [--json FILE] [--rounds 9]

* overhead: the time of `openwork.prune` on a 576 x 576 matrix over the time that
  the Rust library takes inside it, least of several rounds;
* memory: where the tensor's numbers lie before and after, and what a call adds to
  the peak of the process, in a process of its own;
* hard_threshold: 2:4 in place on 4096 x 4096, turn by turn with the package
  sparsekit where that is installed. sparsekit's own selection needs a GPU from
  1,000 blocks on; it is also timed with `torch.topk` put in its place, and that is
  what the ratio is against.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

import openwork
from openwork import BlockSpec, ScopeSpec, View


def timed(work):
    """Seconds by the clock, and of processors."""
    started, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - used


def overhead(rounds):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((576, 576)).astype("float32")
    h = openwork.Hessian.from_inputs(rng.standard_normal((4096, 576)).astype("float32"))
    spec = openwork.Spec.parse("2:4").bind(w.shape)
    rows = []
    for method in ("magnitude", "wanda", "sparsegpt", "s-obs", "admm"):
        shares = []
        openwork.prune(w.copy(), spec, method, hessian=h)
        for _ in range(rounds):
            copy = w.copy()
            started = time.perf_counter()
            result = openwork.prune(copy, spec, method, hessian=h)
            shares.append((time.perf_counter() - started, result.total_seconds))
        # Both times are of one call, so that a busy machine does not matter much.
        whole, inside = min(shares, key=lambda row: row[0] - row[1])
        rows.append({"method": method, "python_ms": 1e3 * whole, "rust_ms": 1e3 * inside, "overhead": whole / inside - 1})
        print(f"{method:10} python {1e3 * whole:8.2f} ms  rust {1e3 * inside:8.2f} ms  +{whole / inside - 1:.2%}")
    return rows


MEMORY = """
import resource, sys
import numpy as np, openwork
from openwork import BlockSpec, ScopeSpec
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
small = np.ones((64, 64), "float32")
ScopeSpec(BlockSpec(small, (1, 1)), (1, 4)).hard_threshold(nnz=2)
openwork.prune(small + 1, "2:4", "magnitude")
W = np.random.default_rng(0).standard_normal((4096, 4096), dtype="float32")
where, before = W.ctypes.data, peak()
if sys.argv[1] == "hard_threshold":
    ScopeSpec(BlockSpec(W, (1, 1)), (1, 4)).hard_threshold(nnz=2)
else:
    openwork.prune(W, "2:4", "magnitude")
print(peak() - before, where == W.ctypes.data, float((W == 0).mean()))
"""


def memory():
    rows = []
    for call in ("hard_threshold", "prune"):
        done = subprocess.run([sys.executable, "-c", MEMORY, call], capture_output=True, text=True, check=True)
        added, same, zeros = done.stdout.split()
        row = {"call": call, "tensor_bytes": 4096 * 4096 * 4, "added_bytes": int(added), "same_pointer": same == "True"}
        rows.append(row)
        print(f"{call:14} adds {row['added_bytes'] / 1e6:.0f} MB to a tensor of {row['tensor_bytes'] / 1e6:.0f} MB; "
              f"same pointer: {same}; zeros {zeros}")
    return rows


def thresholds(rounds):
    import torch

    start = torch.randn(4096, 4096)
    row = {"threads": torch.get_num_threads()}

    def ours():
        w = start.clone()
        part = ScopeSpec(BlockSpec(View.from_existing(w), (1, 1)), (1, 4))
        return timed(lambda: part.hard_threshold(nnz=2))

    try:
        import sparsekit
        import sparsekit.scope
    except ImportError:
        row["openwork_s"], row["openwork_cpu_s"] = map(min, zip(*(ours() for _ in range(rounds))))
        print(f"hard_threshold {row['openwork_s']:.3f} s; sparsekit is not installed")
        return row

    def theirs():
        w = start.clone()
        view = sparsekit.View.from_existing(w)
        part = sparsekit.ScopeSpec(sparsekit.BlockSpec(view, (1, 1)), (1, 4))
        return timed(lambda: part.hard_threshold(nnz=2))

    row["sparsekit_as_installed"] = "runs"
    try:
        theirs()
    except Exception as error:
        row["sparsekit_as_installed"] = f"fails: {error}"[:120]
    sparsekit.scope.kth_largest = lambda x, k, dim=-1, **_: torch.topk(x, k, dim=dim).values.amin(dim)
    times = [(*ours(), *theirs()) for _ in range(rounds)]
    names = ("openwork_s", "openwork_cpu_s", "sparsekit_s", "sparsekit_cpu_s")
    row |= dict(zip(names, map(min, zip(*times))))
    row["ratio"] = row["sparsekit_s"] / row["openwork_s"]
    row["cpu_ratio"] = row["sparsekit_cpu_s"] / row["openwork_cpu_s"]
    print(f"hard_threshold {row['openwork_s']:.3f} s, sparsekit with topk {row['sparsekit_s']:.3f} s: {row['ratio']:.1f}x "
          f"({row['cpu_ratio']:.1f}x in processor time); as installed it {row['sparsekit_as_installed']}")
    return row


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--json")
    asked.add_argument("--rounds", type=int, default=9)
    asked = asked.parse_args()
    record = {"overhead": overhead(asked.rounds), "memory": memory(), "hard_threshold": thresholds(asked.rounds)}
    record["peak_rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
