"""Access to the memory of numpy arrays and torch tensors, for the native module.

A tensor crosses to Rust as a pair `(kind, array)`: a numpy array that shares the
tensor's memory, and the type of its numbers, `f32`, `f64`, `f16` or `bf16`. The
16-bit types are passed as `uint16`, because numpy has no bfloat16.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ._native import PruneError

_KINDS = {"float32": "f32", "float64": "f64", "float16": "f16"}


def is_torch(tensor: Any) -> bool:
    """Whether this is a torch tensor. Does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def as_array(tensor: Any) -> tuple[str, np.ndarray]:
    """The pair `(kind, array)` of a tensor, without a copy if it is in CPU memory."""
    if is_torch(tensor):
        return _from_torch(tensor)
    array = tensor if isinstance(tensor, np.ndarray) else np.asarray(tensor)
    name = array.dtype.name
    if name == "bfloat16":  # from the package ml_dtypes
        return "bf16", array.view(np.uint16)
    if name not in _KINDS:
        raise _unsupported(name)
    if not array.dtype.isnative or not array.flags.aligned:
        raise PruneError("the array is not aligned or not in native byte order; copy it first")
    return _KINDS[name], array.view(np.uint16) if name == "float16" else array


def _from_torch(tensor: Any) -> tuple[str, np.ndarray]:
    import torch

    if tensor.layout != torch.strided:
        raise PruneError(f"the tensor has layout {tensor.layout}; only dense tensors can be pruned")
    if tensor.is_meta:
        raise PruneError("the tensor is on the meta device and has no data")
    plain = tensor.detach()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    if plain.dtype == torch.bfloat16:
        return "bf16", plain.view(torch.int16).numpy().view(np.uint16)
    if plain.dtype == torch.float16:
        return "f16", plain.view(torch.int16).numpy().view(np.uint16)
    if plain.dtype in (torch.float32, torch.float64):
        return ("f32" if plain.dtype == torch.float32 else "f64"), plain.numpy()
    raise _unsupported(str(plain.dtype).removeprefix("torch."))


def _unsupported(name: str) -> PruneError:
    return PruneError(f"tensors of type {name} cannot be pruned; use float32, float16 or bfloat16")


class WritableTensor:
    """A tensor to be modified in place through its array."""

    def __init__(self, tensor: Any) -> None:
        if not isinstance(tensor, np.ndarray) and not is_torch(tensor):
            kind = type(tensor).__name__
            raise PruneError(f"a {kind} cannot be changed in place; give a numpy array or a torch tensor")
        self.tensor = tensor
        self.kind, self.array = as_array(tensor)
        self.notes: list[str] = []
        self._is_copy = is_torch(tensor) and tensor.device.type != "cpu"
        if self._is_copy:
            self.notes.append(f"the tensor is on {tensor.device}: it was copied to the CPU and back")

    @property
    def pair(self) -> tuple[str, np.ndarray]:
        """The pair `(kind, array)`."""
        return self.kind, self.array

    def commit(self) -> None:
        """Completes a change of the array: copies it back to the tensor's device and
        tells autograd."""
        if not is_torch(self.tensor):
            return
        import torch

        if self._is_copy:
            with torch.no_grad():
                self.tensor.copy_(as_torch(self.kind, self.array))
        elif hasattr(torch.autograd.graph, "increment_version"):
            # Autograd cannot see a change made through numpy.
            torch.autograd.graph.increment_version(self.tensor)


def as_torch(kind: str, array: np.ndarray) -> Any:
    """A torch tensor that shares the memory of the array of a pair."""
    import torch

    if kind in ("f16", "bf16"):
        bits = torch.from_numpy(array.view(np.int16))
        return bits.view(torch.float16 if kind == "f16" else torch.bfloat16)
    return torch.from_numpy(array)


def like(tensor: Any, array: np.ndarray) -> Any:
    """The array itself if `tensor` is numpy's, or a torch tensor on the device of `tensor`."""
    if not is_torch(tensor):
        return array
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(tensor.device)


def new_like(tensor: Any, kind: str, array: np.ndarray) -> Any:
    """The pair `(kind, array)` as a tensor of the library, type and device of `tensor`."""
    if is_torch(tensor):
        return as_torch(kind, array).to(device=tensor.device, dtype=tensor.dtype)
    return array.view(tensor.dtype) if kind in ("f16", "bf16") else array.astype(tensor.dtype, copy=False)
