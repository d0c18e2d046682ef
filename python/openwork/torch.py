"""Sparse training with torch: masks that stay, or move while the network learns."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _native
from ._inputs import Columns, prunable
from ._native import BoundSpec, MethodError, PruneError, Spec
from ._tensor import borrowed, like

__all__ = ["Sparsifier"]

_METHODS = ("rigl", "set", "static")


class _Group:
    """Tensors under one spec, and which of its blocks stay."""

    def __init__(self, spec: BoundSpec, params: dict[str, torch.nn.Parameter]) -> None:
        self.spec = spec
        self.params = params
        self.stays: np.ndarray = np.ones(spec.num_blocks, bool)
        self.masks: list[torch.Tensor] = []

    def set(self, stays: np.ndarray) -> None:
        self.stays = stays
        masks = _native.masks(self.spec, stays)
        self.masks = [like(p, mask) for p, mask in zip(self.params.values(), masks)]

    def norms(self, tensors: Iterable[torch.Tensor]) -> np.ndarray:
        """The norm of every block of some tensors."""
        return _native.fold(self.spec, [borrowed(t) for t in tensors], "norm", 2.0)


class Sparsifier:
    """Keeps a model sparse while it trains, by rules such as
    `{"layers.*weight": "1:4"}`: the first regular expression that matches the
    whole name of a weight gives its pattern. A text alone is a rule for every
    weight of `nn.Linear`, `nn.Conv1d` and `nn.Conv2d`. A rule for tensors that
    belong together is a dict from the members of its pattern to names:
    `({"up": "fc1.weight", "down": "fc2.weight"}, "blocks up: .. & down: ..")` in
    a list of rules.

    method: `rigl` (blocks grow where the gradient is large), `set` (anywhere) or
        `static` (the mask stays).
    fraction, every, end: the share of blocks that move at first, the steps between
        moves, and the step after which none do; the share falls by a cosine. One
        move drops the blocks of least saliency and grows as many in the same
        scopes: every scope keeps its budget.
    drop: the saliency, `magnitude`, `wanda` or `s-obd`; the last two look at the
        inputs of the layers.
    init: the first mask, `random` or `magnitude`.

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
            raise MethodError(f"there is no method `{method}`; there are {', '.join(_METHODS)}")
        if init not in ("random", "magnitude"):
            raise MethodError(f"there is no init `{init}`; there are random, magnitude")
        if not 0.0 <= fraction <= 1.0:
            raise PruneError(f"fraction is {fraction}; give a number from 0 to 1")
        if every < 1:
            raise PruneError(f"every is {every}; give a whole number from 1 on")
        self.method, self.fraction, self.every, self.drop = method, fraction, every, drop
        self.end = 10**9 if end is None else end
        self.seed = seed
        self.steps = 0
        self.moved = 0
        self._groups = _groups(model, rules)
        for number, group in enumerate(self._groups):
            if init == "random":
                group.set(_native.random_stays(group.spec, self._seed(number, 0)))
            else:
                pairs = [borrowed(p) for p in group.params.values()]
                group.set(_native.stays(group.spec, pairs))
        self._columns = self._watch_inputs(model)
        self._stepped: set[int] = set()
        self._hook = _told_of_steps(self)
        self.apply()

    def _seed(self, group: int, step: int) -> int:
        return (self.seed * 1_000_003 + group * 8191 + step * 65_537) % 2**63

    def _watch_inputs(self, model: torch.nn.Module) -> dict[int, Columns]:
        """Where drops look at inputs: the layers' inputs, just before a move."""
        if self.drop == "magnitude":
            return {}
        if self.drop not in ("wanda", "s-obd"):
            raise MethodError(f"there is no saliency `{self.drop}`; there are magnitude, wanda, s-obd")
        ours = {id(p) for group in self._groups for p in group.params.values()}
        columns = {}
        for _, module in prunable(model):
            if id(module.weight) in ours:
                columns[id(module.weight)] = watched = Columns(module)
                module.register_forward_pre_hook(self._look(watched))
        return columns

    def _look(self, columns: Columns) -> Any:
        def look(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            if module.training and self._due(self.steps + 1) is not None:
                columns.add_squares(args[0])

        return look

    def _due(self, step: int) -> float | None:
        if self.method == "static":
            return None
        return _native.scheduled(step, self.fraction, self.every, self.end)

    @property
    def masks(self) -> dict[str, torch.Tensor]:
        """The mask of every sparse weight by name, true where it stays."""
        return {n: m for group in self._groups for n, m in zip(group.params, group.masks)}

    @property
    def density(self) -> float:
        """The share of the sparse weights that stays."""
        masks = list(self.masks.values())
        return sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)

    @torch.no_grad()
    def apply(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Writes zero to all that is masked: weights, gradients, and what the
        optimizer remembers."""
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
        """To be called after `backward`, in place of `optimizer.step()` or right
        after it: takes the optimizer's step unless it was just taken, masks all,
        and moves the masks when it is time."""
        self.steps += 1
        fraction = self._due(self.steps)
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
            self._move(fraction, growth)
            self.apply(optimizer)

    def _growth(self, group: _Group) -> np.ndarray | None:
        """The norm of every block's gradient; nothing where growth is at random."""
        if self.method != "rigl":
            return None
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in group.params.values()]
        return group.norms(grads)

    def _move(self, fraction: float, growth: list[np.ndarray | None]) -> None:
        self.moved = 0
        for number, (group, grow) in enumerate(zip(self._groups, growth)):
            saliency = self._saliency(group)
            seed = self._seed(number, self.steps)
            stays, moved = _native.update_stays(group.spec, group.stays, saliency, fraction, grow, seed)
            group.set(stays)
            self.moved += moved

    def _saliency(self, group: _Group) -> np.ndarray:
        if self.drop == "magnitude":
            return group.norms(group.params.values())
        squares = [self._columns[id(p)].take_squares() for p in group.params.values()]
        pairs = [borrowed(p) for p in group.params.values()]
        return _native.saliency(group.spec, pairs, self.drop, squares)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs beside the model and the optimizer."""
        return {
            "steps": self.steps,
            "seed": self.seed,
            "blocks": [torch.from_numpy(group.stays.copy()) for group in self._groups],
            "specs": [group.spec.text for group in self._groups],
            "params": [list(group.params) for group in self._groups],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        specs, params = [g.spec.text for g in self._groups], [list(g.params) for g in self._groups]
        if specs != list(state["specs"]) or params != list(state["params"]):
            raise PruneError("this state is of another model or of other rules")
        self.steps, self.seed = int(state["steps"]), int(state["seed"])
        self._stepped.clear()
        for group, stays in zip(self._groups, state["blocks"]):
            group.set(np.ascontiguousarray(stays.cpu().numpy().astype(bool)))
        self.apply()


def _told_of_steps(sparsifier: Sparsifier) -> Any:
    """Notes which optimizers step, for as long as the sparsifier lives."""
    own = weakref.ref(sparsifier)

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        alive = own()
        if alive is not None:
            alive._stepped.add(id(optimizer))

    hook = register_optimizer_step_post_hook(note)
    weakref.finalize(sparsifier, hook.remove)
    return hook


def _groups(model: torch.nn.Module, rules: Any) -> list[_Group]:
    """The groups that the rules make of a model's weights."""
    weights = {f"{name}.weight" if name else "weight": m.weight for name, m in prunable(model)}
    if isinstance(rules, (str, Spec)):
        rules = [(".*", rules)]
    rules = list(rules.items()) if isinstance(rules, Mapping) else list(rules)
    groups: list[_Group] = []
    taken: set[str] = set()
    everything = dict(model.named_parameters())
    for names, spec in rules:
        pattern = spec if isinstance(spec, Spec) else Spec.parse(spec)
        if isinstance(names, Mapping):
            for name in names.values():
                if name not in everything or name in taken:
                    raise PruneError(f"`{name}` is no parameter of the model, or has a rule already")
            members = {member: everything[name] for member, name in names.items()}
            bound = pattern.bind({member: tuple(p.shape) for member, p in members.items()})
            groups.append(_Group(bound, {names[m]: members[m] for m in bound.names}))
            taken.update(names.values())
            continue
        met = [n for n in weights if n not in taken and re.fullmatch(names, n)]
        if not met:
            known = ", ".join(weights) or "none"
            raise PruneError(f"no weight is called `{names}`; there are {known}")
        for name in met:
            param = weights[name]
            groups.append(_Group(pattern.bind(tuple(param.shape)), {name: param}))
        taken.update(met)
    return groups
