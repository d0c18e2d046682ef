"""Inputs of torch layers as matrices whose columns match the columns of the weight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from ._native import Hessian, PruneError


def prunable_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields every linear layer and convolution with its name; a layer registered under two names is yielded once.
    Layers that compute their weight at every call (weight norm) have none to prune."""
    for name, module in model.named_modules():
        if _is_prunable(module) and not has_computed_weight(module):
            yield name, module


def _is_prunable(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)) or _is_transposed(module)


def has_computed_weight(module: nn.Module) -> bool:
    """Whether a linear layer or convolution has a weight that is not a parameter of its own."""
    return _is_prunable(module) and not isinstance(module._parameters.get("weight"), nn.Parameter)


def _is_transposed(module: nn.Module) -> bool:
    """Whether the weight is stored as inputs by outputs, as in transformers' `Conv1D` (GPT-2)."""
    return type(module).__name__ == "Conv1D"


def weight_matrix(module: nn.Module) -> torch.Tensor:
    """The weight with outputs as its first axis, which a spec calls M."""
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    return weight.t() if _is_transposed(module) else weight


def input_matrix(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The input of a layer with one sample per row: for a linear layer its input
    vectors, for a convolution the patch that each output sees (im2col)."""
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
    """Padding on the left, right, top and bottom, in the order of `nn.functional.pad`."""
    pads = list(module._reversed_padding_repeated_twice)
    return tuple(pads + [0, 0] * (2 - axes))


def _patches(x: torch.Tensor, kernel: Any, stride: Any, dilation: Any, pad: Any, module: Any) -> torch.Tensor:
    mode = module.padding_mode
    if any(pad):
        x = nn.functional.pad(x, pad) if mode == "zeros" else nn.functional.pad(x, pad, mode=mode)
    if module.groups > 1:
        # The filters of a group see only its channels, so each group contributes samples of its own.
        x = x.reshape(x.shape[0] * module.groups, -1, *x.shape[2:])
    is_16_bit = x.dtype in (torch.float16, torch.bfloat16)
    cols = nn.functional.unfold(x.float() if is_16_bit else x, kernel, dilation=dilation, stride=stride)
    return cols.transpose(1, 2).reshape(-1, cols.shape[1])


class ColumnSquares:
    """Running mean square of each input column of one layer."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._sum: torch.Tensor | None = None
        self._samples = 0

    @torch.no_grad()
    def add(self, x: torch.Tensor) -> None:
        """Accumulates one input of the layer."""
        rows = input_matrix(self.module, x.detach())
        total = rows.double().square().sum(0)
        self._sum = total if self._sum is None else self._sum + total
        self._samples += rows.shape[0]

    def take(self) -> np.ndarray:
        """Returns the mean squares and resets them."""
        if self._sum is None:
            raise PruneError("the layer has seen no inputs since the last mask update; is the model in train() mode?")
        mean = (self._sum / max(self._samples, 1)).cpu().numpy()
        self._sum, self._samples = None, 0
        return np.ascontiguousarray(mean)


def add_inputs(hessian: Hessian, module: nn.Module, x: torch.Tensor) -> None:
    """Adds the input of a layer to its Hessian, in batches of rows to bound memory."""
    for rows in input_matrix(module, x.detach()).split(8192):
        hessian.add(rows.contiguous())
