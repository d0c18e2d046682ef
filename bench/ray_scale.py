"""One process against workers of a Ray cluster on one machine, and what is moved.

    python bench/ray_scale.py MODEL C4.jsonl [--workers 1 2 3] [--samples 16] [--json FILE]

Runs alternate, the least of --repeats counts. Workers have one thread each; the process has as many
threads as the workers it is compared with. Time is that of the layers (the record's), without the
start of Ray and of the workers.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback, also on Linux

import ray

import openwork
import openwork.ray


def alone(model, out, threads, size):
    """The record of a run in a process of its own, with so many threads."""
    code = "import json, sys, openwork; a = json.loads(sys.argv[1]); print(json.dumps(openwork.prune_model(**a)))"
    given = json.dumps(dict(model=model, out=out, **size))
    env = os.environ | dict(RAYON_NUM_THREADS=str(threads))
    return json.loads(subprocess.run([sys.executable, "-c", code, given], env=env, check=True, capture_output=True).stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--method", default="s-obs")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json")
    asked = parser.parse_args()
    size = dict(
        calib=asked.text, samples=asked.samples, seq_len=asked.seq_len, spec="2:4", method=asked.method, progress=False
    )
    ray.init(num_cpus=max(asked.workers), include_dashboard=False, log_to_driver=False, logging_level="error")
    rows = []
    for workers in asked.workers:
        best = {}
        for _ in range(asked.repeats):
            with tempfile.TemporaryDirectory() as folder:
                runs = dict(
                    process=alone(asked.model, f"{folder}/process", min(workers, os.cpu_count()), size),
                    ray=openwork.ray.prune_model(
                        asked.model, out=f"{folder}/ray", workers=workers, worker_threads=1, **size
                    ),
                )
            for name, record in runs.items():
                record["seconds"] = sum(layer["seconds"] for layer in record["layers"])
                if name not in best or record["seconds"] < best[name]["seconds"]:
                    best[name] = record
        layers = best["ray"]["cluster"]["layers"]
        total = lambda what, name: sum(layer[what].get(name, 0) for layer in layers)  # noqa: E731
        row = dict(
            workers=workers,
            process_seconds=best["process"]["seconds"],
            ray_seconds=best["ray"]["seconds"],
            ratio=best["ray"]["seconds"] / best["process"]["seconds"],
            bytes={name: total("bytes", name) for name in ("partial_sums", "hessians", "weights", "pruned_rows")},
            over_needed=best["ray"]["cluster"]["bytes_over_needed"],
            split={name: total("seconds", name) for name in ("forward", "reduce", "prune", "broadcast")},
            rates=[worker["tokens_per_second"] for worker in best["ray"]["cluster"]["workers"]],
            layers=len(layers),
        )
        rows.append(row)
        print(json.dumps(row), flush=True)
    if asked.json:
        with open(asked.json, "w") as out:
            json.dump(dict(model=os.path.basename(asked.model), samples=asked.samples, method=asked.method, rows=rows), out,
                      indent=1)


if __name__ == "__main__":
    main()
