"""Makes quants.safetensors: random blocks of every GGUF type that openwork
reads, and the numbers that the `gguf` package dequantizes them to.

    pip install gguf safetensors numpy
    python testdata/make_quants.py
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.numpy import save_file

# Where each type keeps its f16 scales, as byte offsets in the block.
SCALES = {
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "IQ2_XXS": [0],
    "IQ3_XXS": [0],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "BF16": None,
    "F16": None,
    # Its scale is a power of two, in the first byte.
    "MXFP4": [],
}
BLOCKS = 6

random = np.random.default_rng(7)
tensors = {}
for name, scales in SCALES.items():
    kind = GGMLQuantizationType[name]
    if scales is None:
        # Every 97th bit pattern, without infinities and NaN.
        bits = np.arange(0, 1 << 16, 97, dtype=np.uint16)
        finite = (bits & 0x7F80) != 0x7F80 if name == "BF16" else (bits & 0x7C00) != 0x7C00
        blocks = bits[finite].view(np.uint8).reshape(1, -1)
        if name == "F16":
            numbers = blocks.view(np.float16).astype(np.float32)
        else:
            numbers = dequantize(blocks, kind)
    else:
        _, size = GGML_QUANT_SIZES[kind]
        # All byte values are lawful but in the scales, which are small as in real files.
        blocks = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for at in scales:
            scale = (random.standard_normal(BLOCKS) * 0.01).astype(np.float16)
            blocks[:, at : at + 2] = scale.view(np.uint8).reshape(BLOCKS, 2)
        numbers = dequantize(blocks, kind)
    tensors[f"{name}.blocks"] = np.ascontiguousarray(blocks).reshape(-1)
    tensors[f"{name}.numbers"] = np.ascontiguousarray(numbers, dtype=np.float32).reshape(-1)
save_file(tensors, Path(__file__).parent / "quants.safetensors")
