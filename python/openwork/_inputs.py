"""The inputs of torch layers as the columns that their weights multiply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from ._native import Hessian, PruneError


def prunable(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every linear layer and convolution, by name; a layer that is used under two
    names comes once."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            yield name, module
        elif type(module).__name__ == "Conv1D" and getattr(module, "weight", None) is not None:
            # transformers' Conv1D (GPT-2): a linear layer that is stored transposed.
            yield name, module


def is_transposed(module: nn.Module) -> bool:
    """Whether the weight is stored as inputs by outputs."""
    return type(module).__name__ == "Conv1D"


def weight_matrix(module: nn.Module) -> torch.Tensor:
    """The weight, outputs first: rows are what a spec calls M."""
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    return weight.t() if is_transposed(module) else weight


def columns(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A sample in each row: of a linear layer the last axis of its input, of a
    convolution the patches that each output sees (im2col)."""
    if isinstance(module, nn.Conv1d):
        x = x.unsqueeze(-2) if x.dim() == 3 else x.unsqueeze(0).unsqueeze(-2)
        (k,), (s,), (d,) = module.kernel_size, module.stride, module.dilation
        return _patches(x, (1, k), (1, s), (1, d), _padding(module, 1), module)
    if isinstance(module, nn.Conv2d):
        x = x if x.dim() == 4 else x.unsqueeze(0)
        kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
        return _patches(x, kernel, stride, dilation, _padding(module, 2), module)
    return x.reshape(-1, x.shape[-1])


def _padding(module: Any, axes: int) -> tuple[int, ...]:
    """What is added on the left, right, top and bottom, as `nn.functional.pad`
    takes it."""
    pads = list(module._reversed_padding_repeated_twice)
    return tuple(pads + [0, 0] * (2 - axes))


def _patches(x: torch.Tensor, kernel: Any, stride: Any, dilation: Any, pad: Any, module: Any) -> torch.Tensor:
    mode = module.padding_mode
    if any(pad):
        x = nn.functional.pad(x, pad) if mode == "zeros" else nn.functional.pad(x, pad, mode=mode)
    if module.groups > 1:
        # Every group's filters see their own channels: each gives samples.
        x = x.reshape(x.shape[0] * module.groups, -1, *x.shape[2:])
    short = x.dtype in (torch.float16, torch.bfloat16)
    cols = nn.functional.unfold(x.float() if short else x, kernel, dilation=dilation, stride=stride)
    return cols.transpose(1, 2).reshape(-1, cols.shape[1])


class Columns:
    """Statistics of one layer's inputs."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.count = weight_matrix(module)[0].numel()
        self._squares: torch.Tensor | None = None
        self._samples = 0

    @torch.no_grad()
    def add_squares(self, x: torch.Tensor) -> None:
        """Adds to the mean square of every column."""
        rows = columns(self.module, x.detach())
        total = rows.double().square().sum(0)
        self._squares = total if self._squares is None else self._squares + total
        self._samples += rows.shape[0]

    def take_squares(self) -> np.ndarray:
        """The mean square of every column, and starts afresh."""
        if self._squares is None:
            raise PruneError("the layer saw no inputs since the last move; was the model in train()?")
        mean = (self._squares / max(self._samples, 1)).cpu().numpy()
        self._squares, self._samples = None, 0
        return np.ascontiguousarray(mean)


def add_inputs(hessian: Hessian, module: nn.Module, x: torch.Tensor) -> None:
    """Adds a layer's input to its Hessian, some rows at a time."""
    rows = columns(module, x.detach())
    for part in rows.split(8192):
        hessian.add(part.contiguous())
