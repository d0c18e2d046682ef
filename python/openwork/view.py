"""`View`: a tensor seen through a shape and strides (the paper's layer 1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._native import PruneError, Spec
from ._tensor import is_torch


def _dims(values: Any, what: str) -> tuple[int, ...]:
    try:
        dims = tuple(int(v) for v in values)
    except TypeError:
        dims = ()
    if not dims or any(d < 0 for d in dims):
        raise PruneError(f"{what} is {values!r}; give a tuple of whole numbers")
    return dims


def text(values: tuple[int, ...]) -> str:
    """A tuple in the spec language."""
    return "(" + ",".join(map(str, values)) + ")"


class View:
    """A numpy array, torch tensor or Parameter through a shape and strides.

    Strides count the tensor's elements in row-major order. A view must meet every
    element exactly once; if not, the error names the first that is missed or met
    twice.

    >>> import numpy
    >>> from openwork import View
    >>> W = numpy.arange(32, dtype="float32").reshape(1, 32)
    >>> View(W, shape=(1, 2, 8, 2), stride=(32, 16, 1, 8)).data[0, 0, 0].tolist()
    [0.0, 8.0]
    """

    def __init__(self, param: Any, shape: Any, stride: Any) -> None:
        if not isinstance(param, np.ndarray) and not is_torch(param):
            raise PruneError(f"a View is of a numpy array or a torch tensor, not of a {type(param).__name__}")
        self.param = param
        self.shape = _dims(shape, "shape")
        self.stride = _dims(stride, "stride")
        self._own = False
        # Checks rank, reach and bijection, in the command's words.
        Spec.parse(f"{self.clause} keep 1").bind(tuple(param.shape))

    @classmethod
    def from_existing(cls, param: Any) -> View:
        """The tensor as it is. A View passes through."""
        if isinstance(param, View):
            return param
        if not isinstance(param, np.ndarray) and not is_torch(param):
            raise PruneError(f"a View is of a numpy array or a torch tensor, not of a {type(param).__name__}")
        shape = tuple(param.shape)
        strides = tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape)))
        view = cls.__new__(cls)
        view.param, view.shape, view.stride, view._own = param, shape, strides, True
        Spec.parse("keep 1").bind(shape)
        return view

    @property
    def clause(self) -> str:
        """The view in the spec language; nothing for the tensor as it is."""
        return "" if self._own else f"view {text(self.shape)}:{text(self.stride)}"

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def numel(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def data(self) -> Any:
        """The elements in the view's shape. Writes go through to the tensor where
        it lies row-major in memory; otherwise this is a copy, and assigning to
        `data` writes."""
        if self._contiguous():
            return self._strided(self.param)
        return self.of_tensor(self.param)

    @data.setter
    def data(self, values: Any) -> None:
        if self._contiguous():
            target = self._strided(self.param)
            target[...] = values
            return
        new = self.to_tensor(values)
        if is_torch(self.param):
            self.param.detach().copy_(new)
        else:
            self.param[...] = new

    def of_tensor(self, values: Any) -> Any:
        """Values in the tensor's shape, in the view's."""
        flat = values.detach().contiguous() if is_torch(values) else np.ascontiguousarray(values)
        return self._strided(flat)

    def to_tensor(self, values: Any) -> Any:
        """Values in the view's shape, in the tensor's."""
        out: Any
        if is_torch(values):
            import torch

            values = values.detach()
            out = torch.empty(tuple(self.param.shape), dtype=values.dtype, device=values.device)
        else:
            values = np.asarray(values)
            out = np.empty(tuple(self.param.shape), dtype=values.dtype)
        target = self._strided(out)
        target[...] = values
        return out

    def _contiguous(self) -> bool:
        if is_torch(self.param):
            return self.param.is_contiguous()
        return bool(self.param.flags.c_contiguous)

    def _strided(self, flat: Any) -> Any:
        if is_torch(flat):
            flat = flat.detach()
            return flat.as_strided(self.shape, self.stride, flat.storage_offset())
        strides = tuple(s * flat.itemsize for s in self.stride)
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides)

    def __repr__(self) -> str:
        return f"View({text(self.shape)}:{text(self.stride)} of {tuple(self.param.shape)})"
