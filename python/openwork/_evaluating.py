"""The state in which a torch module is observed and compared: evaluation mode, no caches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


@contextlib.contextmanager
def evaluating(model: nn.Module, eager_experts: bool = False) -> Iterator[None]:
    """Turns dropout and caches off and restores them on exit.

    With `eager_experts`, transformers computes one expert after another with plain matrix
    products, whatever implementation the model is set to.
    """
    training = [(module, module.training) for module in model.modules()]
    found = {id(c): c for module in model.modules() if (c := getattr(module, "config", None)) is not None}
    changed: list[tuple[Any, str, Any]] = []

    def change(config: Any, name: str, value: Any) -> None:
        changed.append((config, name, getattr(config, name)))
        setattr(config, name, value)

    model.eval()
    try:
        for config in found.values():
            if getattr(config, "use_cache", None):
                change(config, "use_cache", False)
            # transformers reads the implementation of experts from here at every call. The weights of
            # `deepgemm_megamoe` have a layout of their own, which plain products would misread.
            implementation = getattr(config, "_experts_implementation_internal", None)
            if eager_experts and implementation not in (None, "eager", "deepgemm_megamoe"):
                change(config, "_experts_implementation_internal", "eager")
        yield
    finally:
        for config, name, value in reversed(changed):
            setattr(config, name, value)
        for module, was_training in training:
            module.training = was_training
