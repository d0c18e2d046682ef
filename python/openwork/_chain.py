"""A model's blocks one after the other, so that none is run more often than it must."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Batch = Any


class Enough(Exception):
    """All that was wanted from a run of the model has been seen."""


def run(model: nn.Module, batch: Batch) -> None:
    """Runs the model on a batch, until a hook has seen enough."""
    with torch.no_grad(), contextlib.suppress(Enough):
        if isinstance(batch, Mapping):
            model(**batch)
        elif isinstance(batch, (tuple, list)):
            model(*batch)
        else:
            model(batch)


@dataclass
class _Call:
    """The arguments of a block: its states, the name they go by, and the others."""

    states: torch.Tensor
    key: str | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def of(self, states: torch.Tensor) -> _Call:
        return _Call(states, self.key, self.args, self.kwargs)

    def __call__(self, block: nn.Module) -> Any:
        # A copy, for blocks that add to their input in place.
        states = self.states.clone()
        with torch.no_grad():
            if self.key is None:
                return block(states, *self.args, **self.kwargs)
            return block(*self.args, **{self.key: states}, **self.kwargs)


def _call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
    if args and torch.is_tensor(args[0]):
        found = _Call(args[0], None, args[1:], kwargs)
    else:
        key = next((key for key, value in kwargs.items() if torch.is_tensor(value)), None)
        if args or key is None:
            return None
        found = _Call(kwargs[key], key, args, {k: v for k, v in kwargs.items() if k != key})
    return found if _plain(found.args) and _plain(found.kwargs) else None


def _plain(value: Any) -> bool:
    """Whether it is a value that running a block twice cannot change."""
    if isinstance(value, (tuple, list)):
        return all(_plain(each) for each in value)
    if isinstance(value, Mapping):
        return all(_plain(each) for each in value.values())
    return value is None or isinstance(value, (bool, int, float, str)) or torch.is_tensor(value)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if torch.is_tensor(one) and torch.is_tensor(other):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return not torch.is_tensor(one) and not torch.is_tensor(other) and bool(one == other)


def _alike(one: _Call | None, other: _Call | None) -> bool:
    """Whether two calls agree in all but the states."""
    if one is None or other is None:
        return False
    return one.key == other.key and _same(one.args, other.args) and _same(one.kwargs, other.kwargs)


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool((one - other).abs().max() <= 1e-3 * other.abs().max())


def _states_of(output: Any) -> Any:
    return output[0] if isinstance(output, (tuple, list)) and output else output


class Chain:
    """Inputs of the blocks of module lists. Where a block reads what the block
    before it gives, its inputs are kept, and the model is not run from its start.
    Whether it does is seen on the first batch, before and after pruning."""

    def __init__(self, model: nn.Module, wanted: list[str], batches: list[Batch]) -> None:
        self.model = model
        self.batches = batches
        self.notes: list[str] = []
        #: Blocks in the order in which they run.
        self.order: list[str] = []
        #: Those that read what the one before gives, as far as the first batch shows.
        self.linked: set[str] = set()
        #: Whether all blocks have the same other arguments.
        self.alike = False
        #: Otherwise: those of every block, for every batch.
        self.others: dict[str, list[_Call]] = {}
        #: Whose inputs are held, and these.
        self.at: str | None = None
        self.held: list[_Call] = []
        owners = {name.rpartition(".")[0] for name in wanted}
        lists = [(owner, model.get_submodule(owner)) for owner in sorted(owners)]
        names = [
            f"{owner}.{child}" for owner, blocks in lists if isinstance(blocks, nn.ModuleList)
            for child, _ in blocks.named_children()
        ]
        if len(names) > 1:
            self._follow(names)

    def runs(self, block: str) -> list[Callable[[], None]]:
        """For every batch, a call that runs at least the block."""
        if self._reach(block):
            module = self.model.get_submodule(block)
            return [functools.partial(_until_enough, call, module) for call in self.held]
        return [functools.partial(run, self.model, batch) for batch in self.batches]

    def _follow(self, names: list[str]) -> None:
        """Follows the first batch through all blocks."""
        seen: dict[str, list[_Call | None]] = {}
        gave: dict[str, Any] = {}

        def enter(name: str) -> Any:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                seen.setdefault(name, []).append(_call(args, kwargs))

            return hook

        def leave(name: str) -> Any:
            def hook(_: nn.Module, __: Any, output: Any) -> None:
                gave[name] = _states_of(output)

            return hook

        modules = {name: self.model.get_submodule(name) for name in names}
        hooks = [module.register_forward_pre_hook(enter(name), with_kwargs=True) for name, module in modules.items()]
        hooks += [module.register_forward_hook(leave(name)) for name, module in modules.items()]
        with _removed(hooks):
            run(self.model, self.batches[0])
        self.order = list(seen)
        # Blocks that run twice in a run, or hold on to something, are not followed.
        once = {name: calls[0] for name, calls in seen.items() if len(calls) == 1 and calls[0] is not None}
        for before, name in zip(self.order, self.order[1:]):
            if before in once and name in once and _same(once[name].states, gave[before]):
                self.linked.add(name)
        calls = list(once.values())
        self.alike = all(_alike(call, calls[0]) for call in calls)

    def _reach(self, block: str) -> bool:
        """Makes the inputs of a block be held, if they can be."""
        if self.at == block:
            return True
        if block not in self.order:
            return False
        to = self.order.index(block)
        if self.at is not None:
            first = self.order.index(self.at)
            path = self.order[first : to + 1]
            if len(path) > 1 and self.linked.issuperset(path[1:]):
                return self._advance(path)
        if not self.linked.intersection(self.order[to + 1 : to + 2]):
            return False
        # A run may stop at the first block if it knows the arguments of all.
        found = self._captured([block] if self.alike else self.order[to:], self.batches)
        self.others = {name: [call for call in calls if call is not None] for name, calls in found.items()}
        if any(len(calls) != len(self.batches) for calls in self.others.values()):
            return self._give_up(f"not every batch runs the blocks from {block} on as the first one does")
        self.at, self.held = block, self.others[block]
        return True

    def _give_up(self, why: str) -> bool:
        self.notes.append(f"{why}; the model is run from its start for every block")
        self.order, self.at, self.held = [], None, []
        return False

    def _advance(self, path: list[str]) -> bool:
        """Takes what is held through blocks, and compares the first batch with a
        run of the whole model."""
        for before, name in zip(path, path[1:]):
            module = self.model.get_submodule(before)
            for at, call in enumerate(self.held):
                states = _states_of(call(module))
                self.held[at] = (call if self.alike else self.others[name][at]).of(states)
        self.at = path[-1]
        real = self._captured([self.at], self.batches[:1])[self.at][0]
        if _alike(self.held[0], real) and real is not None and _near(self.held[0].states, real.states):
            return True
        return self._give_up(f"{self.at} reads more than {path[-2]} gives")

    def _captured(self, names: list[str], batches: list[Batch]) -> dict[str, list[_Call | None]]:
        """The arguments of blocks for every batch; of all but the first without states."""
        found: dict[str, list[_Call | None]] = {name: [] for name in names}

        def enter(name: str) -> Any:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                call = _call(args, kwargs)
                if call is not None:
                    call = call.of(call.states.clone() if name == names[0] else call.states.new_empty(0))
                    known = found[name][-1] if found[name] else None
                    # One copy of what all batches share.
                    if known is not None and _alike(call, known):
                        call = known.of(call.states)
                found[name].append(call)
                if name == names[-1]:
                    raise Enough

            return hook

        modules = {name: self.model.get_submodule(name) for name in names}
        with _removed([m.register_forward_pre_hook(enter(name), with_kwargs=True) for name, m in modules.items()]):
            for batch in batches:
                run(self.model, batch)
        return found


def _until_enough(call: _Call, block: nn.Module) -> None:
    with contextlib.suppress(Enough):
        call(block)


@contextlib.contextmanager
def _removed(hooks: list[Any]) -> Iterator[None]:
    """Removes hooks at the end."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
