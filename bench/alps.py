"""ALPS (Meng et al. 2024) on captured layers at 2:4, written from its description in torch f64:
ADMM on H scaled to a unit diagonal, the penalty raised by how much of the support changed, then
ten conjugate gradient steps on the support. The twin that `admm` is held against.

    python bench/alps.py CAPTURES LAYER.. [--damping 0.01]

Prints a line of JSON for each layer: output error on the undamped H, seconds. Needs torch, safetensors.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from safetensors.torch import load_file


def two_of_four(x):
    """1 where one of the two largest of four neighbors stands."""
    fours = x.abs().reshape(-1, 4)
    kept = torch.zeros_like(fours).scatter_(1, fours.topk(2, dim=1).indices, 1.0)
    return kept.reshape(x.shape)


def alps(w, h, rho=0.1):
    """The pruned weights; `h` has a unit diagonal."""
    eigenvalues, vectors = torch.linalg.eigh(h)
    start, y, v = rho, w @ h, torch.zeros_like(w)
    d, mask = w, two_of_four(w)
    for i in range(1, 301):
        b = ((y - v + rho * d) @ vectors / (eigenvalues + rho)) @ vectors.T
        new = two_of_four(b + v / rho)
        d = (b + v / rho) * new
        v = v + rho * (b - d)
        if i == 1:
            mask = new
        if i % 3:
            continue
        changed = float((new - mask).abs().sum() / 2 / new.sum())
        mask = new
        if changed == 0 or (i >= 30 and changed < 3e-4):
            # The support settled before the penalty was ever raised: it was too large.
            if rho == start:
                return alps(w, h, rho / 5)
            break
        rho *= 1.3 if changed > 0.1 else 1.2 if changed > 0.005 else 1.1
    return refitted(w, h, d * mask, mask)


def refitted(w, h, x, mask):
    """Ten conjugate gradient steps towards the least squares fit on the mask."""
    r = ((w - x) @ h) * mask
    p, rz = r.clone(), (r * r).sum(1)
    for _ in range(10):
        q = (p @ h) * mask
        a = rz / (p * q).sum(1).clamp(min=1e-300)
        x, r = x + a[:, None] * p, r - a[:, None] * q
        new = (r * r).sum(1)
        p, rz = r + (new / rz.clamp(min=1e-300))[:, None] * p, new
    return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("captures", type=Path)
    parser.add_argument("layers", nargs="+")
    parser.add_argument("--damping", type=float, default=0.01)
    args = parser.parse_args()
    for layer in args.layers:
        tensors = load_file(args.captures / f"{layer}.safetensors")
        w, h = tensors["weight"].double(), tensors["hessian"].double()
        started = time.perf_counter()
        damped = h + torch.diag(args.damping * h.diag())
        scale = damped.diag().sqrt()
        x = alps(w * scale, damped / scale[:, None] / scale) / scale
        seconds = time.perf_counter() - started
        change = x - w
        error = float((((change @ h) * change).sum() / ((w @ h) * w).sum()).sqrt())
        print(json.dumps({"layer": layer, "error": error, "seconds": round(seconds, 2)}), flush=True)


if __name__ == "__main__":
    main()
