"""Kills workers and nodes of a Ray cluster at random moments: the bytes must be those of one machine.

    python bench/ray_kills.py MODEL TEXT.txt [--rounds 40] [--seed 0]

Three nodes on this machine, loopback addresses only. A node that was removed is replaced by a new
one after the round. Prints a line for every round, and how many workers went in all.
"""

import argparse
import hashlib
import os
import random
import signal
import tempfile
from pathlib import Path

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback, also on Linux

import ray
from ray.cluster_utils import Cluster

import openwork
import openwork.ray

RUNS = [
    dict(spec="2:4", method="s-obs"),
    dict(spec="2:4", method="sparsegpt+refit", sequential=True),
    dict(spec="rowwise(50%)", method="admm"),
]


def digests(folder):
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("*.safetensors"))]


def workers_alive():
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::_Worker"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--seq-len", type=int, default=64)
    asked = parser.parse_args()
    choice = random.Random(asked.seed)
    size = dict(calib=asked.text, samples=asked.samples, seq_len=asked.seq_len)
    openwork.ray.PATIENCE = 30.0
    cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=0, include_dashboard=False))
    nodes = [cluster.add_node(num_cpus=1, include_dashboard=False) for _ in range(3)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    gone = 0
    with tempfile.TemporaryDirectory() as folder:
        wanted = []
        for number, run in enumerate(RUNS):
            events = []
            openwork.prune_model(asked.model, out=f"{folder}/one{number}", progress=False, **size, **run)
            openwork.ray.prune_model(
                asked.model, out=f"{folder}/three{number}", workers=3, worker_threads=1, progress=events.append,
                **size, **run,
            )
            wanted.append((digests(Path(folder, f"one{number}")), len(events)))
        for number in range(asked.rounds):
            kind = number % len(RUNS)
            what = choice.choice(["worker", "worker", "node"])
            left = choice.randrange(1, max(2, wanted[kind][1] * 3 // 4))
            struck = []

            def see(event):
                nonlocal left
                left -= 1
                if struck or left > 0:
                    return
                struck.append(event.get("stage", event["event"]))
                if what == "node":
                    cluster.remove_node(nodes.pop(choice.randrange(3)), allow_graceful=False)
                elif alive := workers_alive():
                    os.kill(choice.choice(alive), signal.SIGKILL)

            out = Path(folder, f"round{number}")
            record = openwork.ray.prune_model(
                asked.model, out=out, workers=3, worker_threads=1, progress=see, **size, **RUNS[kind]
            )
            same = digests(out) == wanted[kind][0]
            lost = len(record["cluster"]["gone"])
            gone += lost
            print(f"round {number}: {RUNS[kind]['method']}, {what} during {struck}, {lost} lost, same bytes: {same}",
                  flush=True)
            if not same:
                raise SystemExit(1)
            while len(nodes) < 3:
                nodes.append(cluster.add_node(num_cpus=1, include_dashboard=False))
    print(f"{asked.rounds} rounds, {gone} workers lost, all with the same bytes")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
