"""Sparse training with torch: `Sparsifier` keeps weights masked and can move the masks during training."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _native
from ._experts import named_experts
from ._layer_inputs import ColumnSquares, prunable_layers
from ._native import BoundSpec, MethodError, PruneError, Spec
from ._tensor import as_array, like

__all__ = ["Sparsifier"]

_METHODS = ("rigl", "set", "static")


class _Group:
    """Parameters under one spec, and which of its blocks are kept; of a spec with levels, which weights."""

    def __init__(self, spec: BoundSpec, params: dict[str, torch.nn.Parameter]) -> None:
        self.spec = spec
        self.params = params
        self.kept: np.ndarray = np.ones(spec.num_blocks, bool)
        self.masks: list[torch.Tensor] = []

    def set(self, kept: np.ndarray) -> None:
        self.kept = kept
        if self.spec.has_levels:
            masks = [kept.reshape(self.spec.shapes[0])]
        else:
            masks = _native.block_masks(self.spec, kept)
        self.masks = [like(p, mask) for p, mask in zip(self.params.values(), masks)]

    def norms(self, tensors: Iterable[torch.Tensor]) -> np.ndarray:
        """The L2 norm of every block of these tensors."""
        return _native.reduce_blocks(self.spec, [as_array(t) for t in tensors], "norm", 2.0)

    def arrays(self) -> list[tuple[str, np.ndarray]]:
        return [as_array(param) for param in self.params.values()]


class Sparsifier:
    """Keeps a model sparse during training.

    rules: specs by parameter name, such as `{"layers.*weight": "1:4"}`. The first
        regular expression that matches the full name of a weight applies. A single
        spec applies to every weight of `nn.Linear`, `nn.Conv1d` and `nn.Conv2d`.
        A rule that matches experts fused into one parameter is refused.
        For coupled tensors, give a list of pairs whose first item maps the members
        of the spec to parameter names:
        `[({"up": "fc1.weight", "down": "fc2.weight"}, "blocks up: .. & down: ..")]`.
    method: `rigl` (grow the blocks with the largest gradient), `set` (grow random
        blocks) or `static` (fixed mask). Specs with `then` or `else` need `static`.
    fraction, every, end: initial fraction of kept blocks replaced per mask update,
        steps between updates, and the step after which the mask is fixed. The
        fraction decays along a cosine. An update drops the blocks of lowest
        saliency and grows as many in the same scopes, so every scope keeps its
        number of blocks.
    drop: saliency that selects the blocks to drop: `magnitude`, `wanda` or `s-obd`.
        The last two use the inputs of the layers.
    init: initial mask: `random` or `magnitude`.
    seed: random seed for the initial mask and for `set`.

    >>> import torch
    >>> from openwork.torch import Sparsifier
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> sparsifier = Sparsifier(model, "1:4", every=2, end=8)
    >>> for step in range(10):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(8, 16)).square().mean().backward()
    ...     sparsifier.step(optimizer)
    >>> float((model[0].weight != 0).float().mean()) <= 0.25
    True
    """

    def __init__(
        self,
        model: torch.nn.Module,
        rules: str | Spec | Mapping[str, Any] | Iterable[tuple[Any, Any]],
        method: str = "rigl",
        *,
        fraction: float = 0.3,
        every: int = 100,
        end: int | None = None,
        drop: str = "magnitude",
        init: str = "random",
        seed: int = 0,
    ) -> None:
        if method not in _METHODS:
            raise MethodError(f"unknown method `{method}`; choose from {', '.join(_METHODS)}")
        if init not in ("random", "magnitude"):
            raise MethodError(f"unknown init `{init}`; choose from random, magnitude")
        if not 0.0 <= fraction <= 1.0:
            raise PruneError(f"fraction is {fraction}; give a number from 0 to 1")
        if every < 1:
            raise PruneError(f"every is {every}; give an integer of at least 1")
        self.method, self.fraction, self.every, self.drop = method, fraction, every, drop
        self.end = 10**9 if end is None else end
        self.seed = seed
        #: Training steps taken.
        self.steps = 0
        #: Blocks replaced by the last mask update.
        self.moved = 0
        self._groups = _groups(model, rules)
        for number, group in enumerate(self._groups):
            if group.spec.has_levels:
                if method != "static":
                    raise MethodError(
                        f"`{group.spec.text}` has levels, whose masks cannot move yet; use method=\"static\""
                    )
                arrays = group.arrays() if init == "magnitude" else None
                group.set(_native.level_mask(group.spec, self._seed(number, 0), arrays))
            elif init == "random":
                group.set(_native.random_blocks(group.spec, self._seed(number, 0)))
            else:
                group.set(_native.top_blocks(group.spec, group.arrays()))
        self._squares = self._collect_squares(model)
        self._stepped: set[int] = set()
        self._hook = _record_optimizer_steps(self)
        self.apply()

    def _seed(self, group: int, step: int) -> int:
        return (self.seed * 1_000_003 + group * 8191 + step * 65_537) % 2**63

    def _collect_squares(self, model: torch.nn.Module) -> dict[int, ColumnSquares]:
        """Input statistics of the sparse layers, if the drop saliency needs them."""
        if self.drop == "magnitude":
            return {}
        if self.drop not in ("wanda", "s-obd"):
            raise MethodError(f"unknown saliency `{self.drop}`; choose from magnitude, wanda, s-obd")
        sparse = {id(p) for group in self._groups for p in group.params.values()}
        squares = {}
        for _, module in prunable_layers(model):
            if id(module.weight) in sparse:
                squares[id(module.weight)] = collected = ColumnSquares(module)
                module.register_forward_pre_hook(self._before_forward(collected))
        return squares

    def _before_forward(self, squares: ColumnSquares) -> Any:
        def hook(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            # Only the forward passes of a step that updates the mask.
            if module.training and self._update_fraction(self.steps + 1) is not None:
                squares.add(args[0])

        return hook

    def _update_fraction(self, step: int) -> float | None:
        if self.method == "static":
            return None
        return _native.update_fraction(step, self.fraction, self.every, self.end)

    @property
    def masks(self) -> dict[str, torch.Tensor]:
        """The mask of every sparse weight by name; true where a weight is kept."""
        return {n: m for group in self._groups for n, m in zip(group.params, group.masks)}

    @property
    def density(self) -> float:
        """Fraction of the sparse weights that is kept."""
        masks = list(self.masks.values())
        return sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)

    @torch.no_grad()
    def apply(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Zeroes the masked entries of weights, gradients and optimizer state."""
        for group in self._groups:
            for param, mask in zip(group.params.values(), group.masks):
                param.mul_(mask)
                if param.grad is not None:
                    param.grad.mul_(mask)
                for state in optimizer.state.get(param, {}).values() if optimizer else ():
                    if torch.is_tensor(state) and state.shape == param.shape:
                        state.mul_(mask.to(state.device))

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes one training step under the mask, and updates the mask when an update is due.

        Call it after `backward`, in place of `optimizer.step()` or right after it:
        the optimizer's step is taken unless it was just taken."""
        self.steps += 1
        fraction = self._update_fraction(self.steps)
        growth = [self._growth(group) if fraction is not None else None for group in self._groups]
        for group in self._groups:
            for param, mask in zip(group.params.values(), group.masks):
                if param.grad is not None:
                    param.grad.mul_(mask)
        if id(optimizer) not in self._stepped:
            optimizer.step()
        self._stepped.clear()
        self.apply(optimizer)
        if fraction is not None:
            self._update_masks(fraction, growth)
            self.apply(optimizer)

    def _growth(self, group: _Group) -> np.ndarray | None:
        """The gradient norm of every block; None if blocks grow at random."""
        if self.method != "rigl":
            return None
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in group.params.values()]
        return group.norms(grads)

    def _update_masks(self, fraction: float, growth: list[np.ndarray | None]) -> None:
        self.moved = 0
        for number, (group, grow) in enumerate(zip(self._groups, growth)):
            saliency = self._saliency(group)
            seed = self._seed(number, self.steps)
            kept, moved = _native.update_blocks(group.spec, group.kept, saliency, fraction, grow, seed)
            group.set(kept)
            self.moved += moved

    def _saliency(self, group: _Group) -> np.ndarray:
        if self.drop == "magnitude":
            return group.norms(group.params.values())
        squares = [self._squares[id(p)].take() for p in group.params.values()]
        return _native.saliency(group.spec, group.arrays(), self.drop, squares)

    def state_dict(self) -> dict[str, Any]:
        """The state to save besides those of the model and the optimizer."""
        return {
            "steps": self.steps,
            "seed": self.seed,
            "blocks": [torch.from_numpy(group.kept.copy()) for group in self._groups],
            "specs": [group.spec.text for group in self._groups],
            "params": [list(group.params) for group in self._groups],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state saved by `state_dict`."""
        specs, params = [g.spec.text for g in self._groups], [list(g.params) for g in self._groups]
        if specs != list(state["specs"]) or params != list(state["params"]):
            raise PruneError("the state was saved for another model or other rules")
        self.steps, self.seed = int(state["steps"]), int(state["seed"])
        self._stepped.clear()
        for group, kept in zip(self._groups, state["blocks"]):
            group.set(np.ascontiguousarray(kept.cpu().numpy().astype(bool)))
        self.apply()


def _record_optimizer_steps(sparsifier: Sparsifier) -> Any:
    """Records which optimizers take a step, for as long as the sparsifier lives."""
    reference = weakref.ref(sparsifier)

    def after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        alive = reference()
        if alive is not None:
            alive._stepped.add(id(optimizer))

    hook = register_optimizer_step_post_hook(after_step)
    weakref.finalize(sparsifier, hook.remove)
    return hook


def _groups(model: torch.nn.Module, rules: Any) -> list[_Group]:
    """The parameters of a model grouped by the rules that apply to them."""
    weights = {f"{name}.weight" if name else "weight": m.weight for name, m in prunable_layers(model)}
    if isinstance(rules, (str, Spec)):
        rules = [(".*", rules)]
    rules = list(rules.items()) if isinstance(rules, Mapping) else list(rules)
    groups: list[_Group] = []
    taken: set[str] = set()
    parameters = dict(model.named_parameters())
    experts = named_experts(model)
    for names, spec in rules:
        pattern = spec if isinstance(spec, Spec) else Spec.parse(spec)
        if isinstance(names, Mapping):
            for name in names.values():
                if name not in parameters:
                    raise PruneError(f"the model has no parameter `{name}`; it has {', '.join(parameters)}")
                if name in taken:
                    raise PruneError(f"parameter `{name}` is matched by two rules; a coupling needs it to itself")
            members = {member: parameters[name] for member, name in names.items()}
            bound = pattern.bind({member: tuple(p.shape) for member, p in members.items()})
            groups.append(_Group(bound, {names[m]: members[m] for m in bound.names}))
            taken.update(names.values())
            continue
        fused = [n for n in experts if re.fullmatch(names, n)]
        if fused:
            share = sum(experts[n].numel() for n in fused) / sum(p.numel() for p in model.parameters())
            others = f" and {len(fused) - 1} more" if len(fused) > 1 else ""
            raise PruneError(
                f"`{names}` matches experts that share one parameter, which a Sparsifier cannot mask: "
                f"{fused[0]}{others} ({share:.1%} of the weights); give rules that match other weights only"
            )
        matched = [n for n in weights if n not in taken and re.fullmatch(names, n)]
        if not matched:
            raise PruneError(f"no weight matches `{names}`; the model has {', '.join(weights) or 'none'}")
        for name in matched:
            param = weights[name]
            groups.append(_Group(pattern.bind(tuple(param.shape)), {name: param}))
        taken.update(matched)
    return groups
