"""`View`: a tensor viewed through a shape and strides (the paper's layer 1)."""

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
        raise PruneError(f"{what} is {values!r}; give a tuple of non-negative integers")
    return dims


def text(values: tuple[int, ...]) -> str:
    """The tuple as written in the spec language."""
    return "(" + ",".join(map(str, values)) + ")"


def _check_tensor(param: Any) -> None:
    if not isinstance(param, np.ndarray) and not is_torch(param):
        raise PruneError(f"a View needs a numpy array or a torch tensor, not a {type(param).__name__}")


class View:
    """A numpy array, torch tensor or Parameter viewed through a shape and strides.

    Strides are in elements of the row-major tensor. A view must cover every element
    exactly once; otherwise the error names the first one missed or covered twice.

    >>> import numpy
    >>> from openwork import View
    >>> W = numpy.arange(32, dtype="float32").reshape(1, 32)
    >>> View(W, shape=(1, 2, 8, 2), stride=(32, 16, 1, 8)).data[0, 0, 0].tolist()
    [0.0, 8.0]
    """

    def __init__(self, param: Any, shape: Any, stride: Any) -> None:
        _check_tensor(param)
        self.param = param
        self.shape = _dims(shape, "shape")
        self.stride = _dims(stride, "stride")
        self._is_identity = False
        # Checks rank, bounds and bijectivity.
        Spec.parse(f"{self.clause} keep 1").bind(tuple(param.shape))

    @classmethod
    def from_existing(cls, param: Any) -> View:
        """The identity view of a tensor. A `View` is returned unchanged."""
        if isinstance(param, View):
            return param
        _check_tensor(param)
        shape = tuple(param.shape)
        strides = tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape)))
        view = cls.__new__(cls)
        view.param, view.shape, view.stride, view._is_identity = param, shape, strides, True
        Spec.parse("keep 1").bind(shape)
        return view

    @property
    def clause(self) -> str:
        """The view clause in the spec language; empty for the identity view."""
        return "" if self._is_identity else f"view {text(self.shape)}:{text(self.stride)}"

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def data(self) -> Any:
        """The elements in the view's shape. It shares memory with a tensor that is
        contiguous; otherwise it is a copy, and only assigning to `data` modifies
        the tensor."""
        if self._is_contiguous():
            return self._strided(self.param)
        return self.from_tensor(self.param)

    @data.setter
    def data(self, values: Any) -> None:
        if self._is_contiguous():
            target = self._strided(self.param)
            target[...] = values
            return
        new = self.to_tensor(values)
        if is_torch(self.param):
            self.param.detach().copy_(new)
        else:
            self.param[...] = new

    def from_tensor(self, values: Any) -> Any:
        """Rearranges values from the tensor's shape into the view's."""
        flat = values.detach().contiguous() if is_torch(values) else np.ascontiguousarray(values)
        return self._strided(flat)

    def to_tensor(self, values: Any) -> Any:
        """Rearranges values from the view's shape into the tensor's."""
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

    def _is_contiguous(self) -> bool:
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
