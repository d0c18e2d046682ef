"""Observes the matrices inside parameters that a running torch model multiplies by.

Models store their experts as one parameter, such as `gate_up_proj` of transformers 5 with
shape [experts, out, in], and compute with `F.linear`, `@`, `bmm` or grouped products of its
parts. Below autograd all of these are a few operators, and the memory of an operand tells
which matrix of which parameter it is. So neither the name of a parameter nor the order of
its axes has to be known.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Matrix products, and the position of their left factor; the right factor follows it.
_PRODUCTS = {
    "aten::mm": 0,
    "aten::addmm": 1,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
    "aten::_grouped_mm": 0,
    "transformers::grouped_mm_fallback": 0,
}


@dataclass(frozen=True)
class Form:
    """How a model reads a parameter: as equal matrices, one after another."""

    #: Number of matrices.
    count: int
    #: Shape of one matrix as it is stored.
    stored: tuple[int, int]
    #: Whether a matrix is stored as inputs by outputs.
    is_transposed: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs of one matrix."""
        return self.stored[::-1] if self.is_transposed else self.stored

    def matrix(self, param: torch.Tensor, index: int) -> torch.Tensor:
        """A matrix of the parameter as outputs by inputs, in the parameter's memory."""
        data = param.detach()
        matrix = (data if data.dim() == 3 else data.view(self.count, *self.stored))[index]
        return matrix.t() if self.is_transposed else matrix


#: Called with a parameter's name, its form, the number of a matrix and the matrix's inputs, one per row.
OnRead = Callable[[str, Form, int, torch.Tensor], None]


class MatrixReads(TorchDispatchMode):
    """While active, reports every product with a matrix of these parameters."""

    def __init__(self, params: Mapping[str, torch.Tensor], on_read: OnRead) -> None:
        super().__init__()
        self._on_read = on_read
        named = sorted(params.items(), key=lambda item: item[1].data_ptr())
        self._params = [(name, param.detach()) for name, param in named if param.data_ptr() != 0]
        self._starts = [param.data_ptr() for _, param in self._params]
        #: Parameters that any operator has read.
        self.read: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for arg in itertools.chain.from_iterable(a if isinstance(a, (list, tuple)) else (a,) for a in args):
            if torch.is_tensor(arg) and (found := self._locate(arg)) is not None:
                self.read.add(found[0])
        schema = func._schema.name
        if schema in _PRODUCTS:
            first = _PRODUCTS[schema]
            if len(args) >= first + 2:
                offsets = args[2] if "grouped" in schema and len(args) > 2 else kwargs.get("offs")
                self._observe(args[first], args[first + 1], offsets)
        return func(*args, **kwargs)

    def _observe(self, left: torch.Tensor, right: torch.Tensor, offsets: torch.Tensor | None) -> None:
        for weight, x, is_right in ((right, left, True), (left, right, False)):
            found = self._locate(weight)
            if found is None:
                continue
            name, param, offset = found
            # One sample per row, whichever side the weight is on.
            rows = x if is_right else x.transpose(-1, -2)
            if weight.dim() == 2:
                self._report(name, param, weight, offset, is_right, rows)
            elif offsets is not None:
                if is_right and x.dim() == 2 and _is_whole(weight, param, offset):
                    starts = [0, *offsets.tolist()]
                    for index in range(weight.shape[0]):
                        part = rows[starts[index] : starts[index + 1]]
                        self._report(name, param, weight[index], index * param.stride(0), is_right, part)
            elif weight.shape[0] == 1:
                self._report(name, param, weight[0], offset, is_right, rows[0])
            elif _is_whole(weight, param, offset):
                for index in range(weight.shape[0]):
                    part = rows[index]
                    # Tokens of other experts are rows of zeros where every expert gets all tokens.
                    part = part[(part != 0).any(dim=1)]
                    self._report(name, param, weight[index], index * param.stride(0), is_right, part)

    def _locate(self, weight: torch.Tensor) -> tuple[str, torch.Tensor, int] | None:
        """The parameter that holds this operand, and the position of its first number there."""
        at = bisect.bisect_right(self._starts, weight.data_ptr()) - 1
        if at < 0:
            return None
        name, param = self._params[at]
        offset, rest = divmod(weight.data_ptr() - self._starts[at], param.element_size())
        if rest or weight.device != param.device or weight.dtype != param.dtype:
            return None
        span = sum((extent - 1) * step for extent, step in zip(param.shape, param.stride()))
        return (name, param, offset) if offset <= span else None

    def _report(
        self, name: str, param: torch.Tensor, weight: torch.Tensor, offset: int, is_right: bool, rows: torch.Tensor
    ) -> None:
        found = _form(param, weight, offset, is_right)
        if found is not None and rows.shape[0] > 0:
            self._on_read(name, *found, rows)


def _is_whole(weight: torch.Tensor, param: torch.Tensor, offset: int) -> bool:
    """Whether a three-dimensional operand holds all matrices of a parameter in their order."""
    if param.dim() != 3 or offset != 0:
        return False
    return weight.shape[0] == param.shape[0] and weight.stride(0) == param.stride(0)


def _form(param: torch.Tensor, weight: torch.Tensor, offset: int, is_right: bool) -> tuple[Form, int] | None:
    """The form in which an operand shows the parameter, and the number of the matrix;
    None if the operand is not one of several equal matrices."""
    shape, stride = tuple(weight.shape), weight.stride()
    if param.dim() == 3:
        stored, steps, step = tuple(param.shape[1:]), param.stride()[1:], param.stride(0)
        as_stored = (shape, stride) == (stored, steps)
        if not as_stored and (shape, stride) != (stored[::-1], steps[::-1]):
            return None
        count = param.shape[0]
    else:
        # Rows of several matrices below each other, as in DBRX.
        if not param.is_contiguous():
            return None
        as_stored = stride == (shape[1], 1)
        if not as_stored and stride != (1, shape[0]):
            return None
        stored = shape if as_stored else shape[::-1]
        step = stored[0] * stored[1]
        if stored[1] != param.shape[1] or stored[0] == 0 or param.shape[0] % stored[0]:
            return None
        count = param.shape[0] // stored[0]
        if count < 2:
            return None
    index, rest = divmod(offset, step)
    # The right factor of a product is inputs by outputs, the left one outputs by inputs.
    return None if rest else (Form(count, (stored[0], stored[1]), as_stored == is_right), index)
