"""torch on the matrices of the `packed` benchmark: one vector, dense and sparse.

    python bench/packed_torch.py [--threads 1,2] [--rows 16384] [--columns 8192]

Dense bf16 and f32, CSR in f32, and BSR (16 x 16) in f32, all with half of the
weights zero, in one run and turn by turn; the least time counts. torch has no
bf16 CSR or BSR product on a CPU. Prints one JSON object.
"""

import argparse
import json
import os
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--threads", default="1,2")
parser.add_argument("--rows", type=int, default=16384)
parser.add_argument("--columns", type=int, default=8192)
parser.add_argument("--repeats", type=int, default=10)
args = parser.parse_args()

torch.manual_seed(3)
rows, cols = args.rows, args.columns
dense = torch.rand(rows, cols) * 2 - 1
x = torch.rand(cols) * 2 - 1

groups = dense.clone().view(-1, 4)
groups.scatter_(1, groups.abs().topk(2, dim=1, largest=False).indices, 0.0)
two_four = groups.view(rows, cols)

blocks = dense.view(rows // 16, 16, cols // 16, 16)
energy = blocks.pow(2).sum(dim=(1, 3))
keep = torch.zeros_like(energy).scatter_(1, energy.topk(cols // 32, dim=1).indices, 1.0)
by_blocks = (blocks * keep[:, None, :, None]).reshape(rows, cols)

half, half_x = dense.bfloat16(), x.bfloat16()
csr, bsr = two_four.to_sparse_csr(), by_blocks.to_sparse_bsr((16, 16))
column = x[:, None]
things = {
    "dense bf16": lambda: half @ half_x,
    "dense f32": lambda: dense @ x,
    "2:4 as CSR f32": lambda: csr @ x,
    "block(16,16) as BSR f32": lambda: bsr @ column,
}
results = []
for threads in map(int, args.threads.split(",")):
    torch.set_num_threads(threads)
    least = dict.fromkeys(things, float("inf"))
    for _ in range(args.repeats):
        for name, thing in things.items():
            start = time.perf_counter()
            thing()
            least[name] = min(least[name], time.perf_counter() - start)
    base = least["dense bf16"]
    results += [{"threads": threads, "what": k, "seconds": v, "speedup": base / v} for k, v in least.items()]
print(json.dumps({"benchmark": "packed_torch", "torch": torch.__version__, "load": os.getloadavg(),
                  "rows": rows, "columns": cols, "results": results}, indent=2))
