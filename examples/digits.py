"""Sparse training on real data, without a download: scikit-learn's digits.

Trains a 64-32-32-10 network dense, and with 75% of its hidden weights margs
throughout: under a fixed random mask, with random growth (SET) and with growth
by gradient (RigL), for three patterns. Every second epoch ends with a step on
the full training set, in which masks are updated.

    python examples/digits.py [--seeds 5] [--first-seed 0] [--epochs 60] [--json FILE]

Needs torch and scikit-learn; about a minute on two cores.
"""

import argparse
import json
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from openwork.torch import Sparsifier

PATTERNS = {"1:4": "1:4", "blocks": "block (4,4) keep 25%", "unstructured": "unstructured(25%)"}
METHODS = {"static": "static random", "set": "SET", "rigl": "RigL"}
WIDTH = 32
BATCH = 64
HIDDEN = r"[02]\.weight"


def data(seed):
    """Pixels and labels: training and test set."""
    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x.astype("float32") / 16, y, test_size=0.5, random_state=seed, stratify=y)
    return [torch.from_numpy(np.asarray(part)) for part in parts]


def train(seed, epochs, pattern=None, method=None):
    """Trains one network and returns its test accuracy."""
    torch.manual_seed(seed)
    x, x_test, y, y_test = data(seed)
    sizes = (64, WIDTH, WIDTH, 10)
    layers = [torch.nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])]
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    batches = len(x) // BATCH
    steps = epochs * batches
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    sparsifier = None
    if pattern is not None:
        sparsifier = Sparsifier(
            model, {HIDDEN: pattern}, method, fraction=0.3, every=2 * batches, end=steps * 3 // 4, seed=seed
        )
    for epoch in range(epochs):
        order = torch.randperm(len(x))
        for number, rows in enumerate(order.split(BATCH)[:batches], 1):
            if epoch % 2 == 1 and number == batches:
                rows = order
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            if sparsifier is None:
                optimizer.step()
            else:
                sparsifier.step(optimizer)
            schedule.step()
    if sparsifier is not None:
        assert sparsifier.density == 0.25
    with torch.no_grad():
        return float((model(x_test).argmax(1) == y_test).float().mean())


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    args.add_argument("--seeds", type=int, default=5)
    args.add_argument("--first-seed", type=int, default=0)
    args.add_argument("--epochs", type=int, default=60)
    args.add_argument("--json", help="write the results to this file")
    args = args.parse_args()
    torch.set_num_threads(1)  # the network is small
    started, rows = time.time(), []

    def row(name, pattern=None, method=None):
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        found = [train(seed, args.epochs, pattern, method) for seed in seeds]
        rows.append({"pattern": pattern, "method": method, "accuracy": found})
        print(f"{name:32} {np.mean(found):.2%}  +-{np.std(found):.2%}", flush=True)

    row("dense")
    for name, pattern in PATTERNS.items():
        for method, called in METHODS.items():
            row(f"{name}, {called}", pattern, method)
    if args.json:
        with open(args.json, "w") as file:
            record = {"first_seed": args.first_seed, "seeds": args.seeds, "epochs": args.epochs, "seconds": time.time() - started}
            json.dump(record | {"rows": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
