"""Adds a low-rank matrix to pruned weights, and compares the error with that of a denser pattern
of the same bytes.

    python bench/low_rank.py CAPTURES [--openwork target/release/openwork] [--layers 14.q,14.o,14.down]
        [--method sparsegpt+refit] [--rounds 3] [--record FILE]

For each linear of a folder written by capture.py: W is pruned to 2:4 (S), and A B minimizes
|(W - S - A B) X| in closed form, the truncated singular value decomposition of (W - S) L with
H = L L'. In further rounds W - A B is pruned again, and A B fitted again. The rank is chosen so
that S with A and B in 16 bits takes the bytes of 5:8 or 6:8 with a bit mask. Errors are relative
output errors, on the calibration tokens and on held-out ones.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

#: Bits per weight at 16-bit values: kept values and index.
BITS = {"2:4": 9.0, "5:8": 11.0, "6:8": 13.0}


def prune(openwork, w, capture, spec, method):
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "w.safetensors", Path(folder) / "out.safetensors"
        save_file({"weight": np.ascontiguousarray(w, dtype=np.float32)}, source)
        command = [openwork, "tensor", f"{source}:weight", "--hessian", f"{capture}:hessian", "--spec", spec,
                   "--method", method, "--out", out, "--quiet", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return next(iter(load_file(out).values())).astype(np.float64)


def error(d, w, h):
    return float(np.sqrt(np.einsum("ij,jk,ik->", d, h, d, optimize=True) / np.einsum("ij,jk,ik->", w, h, w, optimize=True)))


def low_rank(residual, l, rank):
    """The matrix of this rank that is nearest to the residual in the norm of H = L L'."""
    u, s, vt = np.linalg.svd(residual @ l, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ np.linalg.solve(l.T, vt[:rank].T).T


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("captures", type=Path)
    parser.add_argument("--openwork", default="target/release/openwork")
    parser.add_argument("--layers", default="14.q,14.o,14.down")
    parser.add_argument("--method", default="sparsegpt+refit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.layers.split(","):
        capture = options.captures / f"{name}.safetensors"
        tensors = load_file(capture)
        w, h = tensors["weight"].astype(np.float64), tensors["hessian"]
        x = tensors["held_out"].astype(np.float64)
        held = x.T @ x / len(x)
        l = np.linalg.cholesky(h + 1e-6 * np.mean(np.diag(h)) * np.eye(len(h)))
        m, k = w.shape

        def note(spec, rank, rounds, s, ab):
            d = s + ab - w
            bits = BITS[spec] + 16 * rank * (m + k) / (m * k)
            rows.append(dict(linear=name, spec=spec, rank=rank, rounds=rounds, bits=round(bits, 2),
                             error=error(d, w, h), held_out=error(d, w, held)))
            print(rows[-1], flush=True)

        for spec in BITS:
            s = prune(options.openwork, w, capture, spec, options.method)
            note(spec, 0, 0, s, np.zeros_like(w))
        for target in ("5:8", "6:8"):
            rank = int((BITS[target] - BITS["2:4"]) * m * k / (16 * (m + k)))
            ab = np.zeros_like(w)
            for rounds in range(1, options.rounds + 1):
                s = prune(options.openwork, w - ab, capture, "2:4", options.method)
                ab = low_rank(w - s, l, rank)
                note("2:4", rank, rounds, s, ab)
    if options.record:
        options.record.write_text(json.dumps(dict(method=options.method, rows=rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
