"""`pack_model` and `unpack_model`: models on disk that store only their kept weights."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

from . import _native


def pack_model(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    spec: str | None = None,
    values: str | None = None,
    head: str | None = None,
    group: int = 32,
) -> dict[str, Any]:
    """Pack a pruned model into the folder `out`, as `openwork pack` does, and return its sizes.

    model: a pruned model: a Hugging Face folder or a .gguf file
    out: the folder to write; must be new or empty
    spec: the pattern of all linear layers, instead of those in the record of the run that pruned the model
    values: the value type of all linear layers, pruned or not: "f32", "f16", "bf16", "int8" or "int4"; unchanged by
        default, or the type that `+quant` rounded to
    head: the value type of the embedding and the output head
    group: how many values of "int8" and "int4" share a scale: 32, 64 or 128

    The result has `bytes` and `dense_bytes` of the packed tensors, `other_bytes` of all others, and a row per packed
    tensor in `tensors`. `Model(out)` runs the packed model.
    """
    sizes, note = _native.pack_folder(_native.model_path(model), out, spec, values, head, group)
    if note is not None:
        warnings.warn(note, stacklevel=2)
    summary: dict[str, Any] = json.loads(sizes)
    return summary


def unpack_model(model: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Restore the dense model of a packed one in the folder `out`, bit for bit, as `openwork unpack` does."""
    _native.unpack_folder(_native.model_path(model), out)
