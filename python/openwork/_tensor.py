"""Tensors of numpy and torch as arrays over their own memory."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ._native import PruneError

_KINDS = {"float32": "f32", "float64": "f64", "float16": "f16"}


def is_torch(tensor: Any) -> bool:
    """Whether this is a torch tensor; torch is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def borrowed(tensor: Any) -> tuple[str, np.ndarray]:
    """The kind of a tensor's numbers, and an array over them: no copy for what
    lies in the CPU's memory. float16 and bfloat16 come as 16-bit integers."""
    if is_torch(tensor):
        return _from_torch(tensor)
    array = tensor if isinstance(tensor, np.ndarray) else np.asarray(tensor)
    name = array.dtype.name
    if name == "bfloat16":  # of the package ml_dtypes
        return "bf16", array.view(np.uint16)
    if name not in _KINDS:
        raise _unknown(name)
    if not array.dtype.isnative or not array.flags.aligned:
        raise PruneError("the array is not aligned or not in this machine's byte order; copy it first")
    return _KINDS[name], array.view(np.uint16) if name == "float16" else array


def _from_torch(tensor: Any) -> tuple[str, np.ndarray]:
    import torch

    if tensor.layout != torch.strided:
        raise PruneError(f"the tensor is {tensor.layout}; only dense tensors can be pruned")
    if tensor.is_meta:
        raise PruneError("the tensor is on the meta device and has no numbers")
    plain = tensor.detach()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    if plain.dtype == torch.bfloat16:
        return "bf16", plain.view(torch.int16).numpy().view(np.uint16)
    if plain.dtype == torch.float16:
        return "f16", plain.view(torch.int16).numpy().view(np.uint16)
    if plain.dtype in (torch.float32, torch.float64):
        return ("f32" if plain.dtype == torch.float32 else "f64"), plain.numpy()
    raise _unknown(str(plain.dtype).removeprefix("torch."))


def _unknown(name: str) -> PruneError:
    return PruneError(f"tensors of type {name} cannot be pruned; use float32, float16 or bfloat16")


class Handle:
    """A tensor that is to be written to."""

    def __init__(self, tensor: Any) -> None:
        if not isinstance(tensor, np.ndarray) and not is_torch(tensor):
            kind = type(tensor).__name__
            raise PruneError(f"a {kind} cannot be changed in place; give a numpy array or a torch tensor")
        self.tensor = tensor
        self.kind, self.array = borrowed(tensor)
        self.notes: list[str] = []
        self._away = is_torch(tensor) and tensor.device.type != "cpu"
        if self._away:
            self.notes.append(f"the tensor is on {tensor.device}: it was copied to the CPU and back")

    @property
    def pair(self) -> tuple[str, np.ndarray]:
        return self.kind, self.array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def commit(self) -> None:
        """Says that the numbers were changed; brings them back where they came from."""
        if not is_torch(self.tensor):
            return
        import torch

        if self._away:
            with torch.no_grad():
                self.tensor.copy_(as_torch(self.kind, self.array))
        elif hasattr(torch.autograd.graph, "increment_version"):
            # So that autograd notices a change that it did not make.
            torch.autograd.graph.increment_version(self.tensor)


def as_torch(kind: str, array: np.ndarray) -> Any:
    """A torch tensor over an array of a kind."""
    import torch

    if kind in ("f16", "bf16"):
        short = torch.from_numpy(array.view(np.int16))
        return short.view(torch.float16 if kind == "f16" else torch.bfloat16)
    return torch.from_numpy(array)


def like(tensor: Any, array: np.ndarray) -> Any:
    """An array as what `tensor` is: numpy stays, torch goes to the tensor's device."""
    if not is_torch(tensor):
        return array
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(tensor.device)


def new_like(tensor: Any, kind: str, array: np.ndarray) -> Any:
    """New weights, those of a kind in 16 bits as integers, in the type of the old ones."""
    if is_torch(tensor):
        return as_torch(kind, array).to(device=tensor.device, dtype=tensor.dtype)
    return array.view(tensor.dtype) if kind in ("f16", "bf16") else array.astype(tensor.dtype, copy=False)
