#!/usr/bin/env python3
"""Times the peers on captured layers and prints one JSON object per result.

    python bench/peers.py CAPTURES [--layers 14.q,14.down] [--rows 64]

CAPTURES is the folder that capture.py wrote. The peers:

* `sparsegpt`: the published algorithm (Frantar and Alistarh 2023) in torch,
  written here anew: 2:4, blocks of 128 columns, damping .01 of the mean
  diagonal;
* `sparsekit s-obs`: `StructuredOBS.prune_true_obs` of the package sparsekit,
  2:4, as installed, in f32 (its default, fp16, fails on some layers), on the
  first --rows rows, as it needs a K x K matrix per row.

`error` is sqrt(tr(D H D') / tr(W H W')) over the rows that were pruned, with
the undamped H, in f64. Everything runs on --threads threads.
"""

import argparse
import json
import pathlib
import time

import torch
from safetensors.torch import load_file

KEEP, OF = 2, 4


def output_error(w, new, h):
    w, d = w.double(), new.double() - w.double()
    return (((d @ h) * d).sum() / ((w @ h) * w).sum()).sqrt().item()


def sparsegpt(w, h, block=128, damp=0.01):
    """Columns from left to right; what a pruned weight loses, the columns to
    its right take up:

        U = upper factor of (H + damp mean(diag H) I)^-1
        for column j:  e = (w_j - q_j) / U_jj;  W[:, j..] -= e U[j, j..]

    Within a block the loss is taken up at once, beyond it block by block. The
    mask of a group of four is chosen when its first column is reached, by the
    least w^2 / U_jj^2.
    """
    w, h = w.clone(), h.float().clone()
    k = w.shape[1]
    dead = h.diagonal() == 0
    h[dead, dead] = 1
    w[:, dead] = 0
    h.diagonal().add_(damp * h.diagonal().mean())
    u = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
    for left in range(0, k, block):
        right = min(left + block, k)
        part, inner = w[:, left:right], u[left:right, left:right]
        losses = torch.zeros_like(part)
        pruned = torch.zeros_like(part, dtype=torch.bool)
        for j in range(right - left):
            if j % OF == 0:
                score = (part[:, j : j + OF] / inner.diagonal()[j : j + OF]) ** 2
                worst = score.topk(OF - KEEP, dim=1, largest=False).indices
                pruned[:, j : j + OF].scatter_(1, worst, True)
            loss = part[:, j] * pruned[:, j] / inner[j, j]
            part[:, j:] -= loss[:, None] * inner[j, None, j:]
            losses[:, j] = loss
        part[pruned] = 0
        w[:, right:] -= losses @ u[left:right, right:]
    return w


def sparsekit_obs(w, h):
    from sparsekit import BlockSpec, ScopeSpec, StructuredOBS, View

    new = w.clone()
    view = View(new, tuple(new.shape), (new.shape[1], 1))
    scope = ScopeSpec(BlockSpec(view, (1, 1)), (1, OF))
    started = time.perf_counter()
    pruner = StructuredOBS(scope, h.float())
    ready = time.perf_counter()
    pruner.prune_true_obs(KEEP, c_dtype=torch.float32)
    return new, time.perf_counter() - ready, ready - started


def conforms(w):
    return bool(((w.reshape(-1, OF) != 0).sum(1) <= KEEP).all() and w.isfinite().all())


def say(**facts):
    print(json.dumps(facts), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("captures", type=pathlib.Path)
    parser.add_argument("--layers", help="such as 14.q,14.down (default: all in the folder)")
    parser.add_argument("--rows", type=int, default=64, help="rows for sparsekit (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="the least time counts")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    names = args.layers.split(",") if args.layers else sorted(p.stem for p in args.captures.glob("*.safetensors"))
    for name in names:
        tensors = load_file(args.captures / f"{name}.safetensors")
        w, h = tensors["weight"], tensors["hessian"]
        common = {"layer": name, "columns": w.shape[1], "threads": args.threads}

        times = []
        for _ in range(args.repeats):
            started = time.perf_counter()
            new = sparsegpt(w, h)
            times.append(time.perf_counter() - started)
        say(peer="sparsegpt", **common, rows=len(w), seconds=min(times),
            ms_per_row=1e3 * min(times) / len(w), error=output_error(w, new, h), conforms=conforms(new))

        rows = w[: args.rows].clone()
        try:
            new, seconds, setup = sparsekit_obs(rows, h)
        except Exception as failure:  # noqa: BLE001: whatever the peer raises is its result
            say(peer="sparsekit s-obs", **common, rows=len(rows), failed=str(failure))
            continue
        say(peer="sparsekit s-obs", **common, rows=len(rows), seconds=seconds, setup_seconds=setup,
            ms_per_row=1e3 * seconds / len(rows), error=output_error(rows, new, h), conforms=conforms(new))


if __name__ == "__main__":
    main()
