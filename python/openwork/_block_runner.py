"""Runs the blocks of a torch model one after another, so that collecting the
inputs of each block does not rerun the model from its start.

Pruning needs the inputs of every block as the pruned blocks before it produce
them. If a block reads only the output of its predecessor (plus arguments that
do not change), its inputs are its predecessor's outputs, and those are kept.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Batch = Any


class StopForward(Exception):
    """Raised by a hook to end a forward pass once it has captured what it needs."""


def run_model(model: nn.Module, batch: Batch) -> None:
    """Runs the model on a batch until it ends or a hook raises `StopForward`."""
    with torch.no_grad(), contextlib.suppress(StopForward):
        if isinstance(batch, Mapping):
            model(**batch)
        elif isinstance(batch, (tuple, list)):
            model(*batch)
        else:
            model(batch)


@dataclass
class _Call:
    """The arguments of one call of a block."""

    #: Hidden states: the argument that is the previous block's output.
    states: torch.Tensor
    #: The keyword that the states are passed by; None if they are the first positional argument.
    keyword: str | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def with_states(self, states: torch.Tensor) -> _Call:
        return _Call(states, self.keyword, self.args, self.kwargs)

    def __call__(self, block: nn.Module) -> Any:
        with torch.no_grad():
            return self.with_gradients(block)

    def with_gradients(self, block: nn.Module) -> Any:
        """The block's output, which remembers how it was computed."""
        # Cloned because some blocks add to their input in place.
        states = self.states.clone()
        if self.keyword is None:
            return block(states, *self.args, **self.kwargs)
        return block(*self.args, **{self.keyword: states}, **self.kwargs)


def _parse_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
    """The call with its states found; None if it cannot be replayed."""
    if args and torch.is_tensor(args[0]):
        call = _Call(args[0], None, args[1:], kwargs)
    else:
        keyword = next((key for key, value in kwargs.items() if torch.is_tensor(value)), None)
        if args or keyword is None:
            return None
        call = _Call(kwargs[keyword], keyword, args, {k: v for k, v in kwargs.items() if k != keyword})
    return call if _is_replayable(call.args) and _is_replayable(call.kwargs) else None


def _is_replayable(value: Any) -> bool:
    """Whether a block that runs twice with this argument leaves it unchanged (a cache would not be)."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_replayable, value))
    if isinstance(value, Mapping):
        return all(map(_is_replayable, value.values()))
    return value is None or isinstance(value, (bool, int, float, str)) or torch.is_tensor(value)


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if torch.is_tensor(a) and torch.is_tensor(b):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return not torch.is_tensor(a) and not torch.is_tensor(b) and bool(a == b)


def _equal_except_states(a: _Call | None, b: _Call | None) -> bool:
    if a is None or b is None:
        return False
    return a.keyword == b.keyword and _equal(a.args, b.args) and _equal(a.kwargs, b.kwargs)


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors agree to a thousandth of the largest entry."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool((a - b).abs().max() <= 1e-3 * b.abs().max())


def output_states(output: Any) -> Any:
    return output[0] if isinstance(output, (tuple, list)) and output else output


class BlockRunner:
    """Provides the inputs of the blocks of a `ModuleList`, block by block.

    A block is *linked* if it reads what the block before it returns. The inputs
    of linked blocks are kept from block to block; for all others the model runs
    from its start. Links are detected on the first batch and checked again on it
    after every pruned block.
    """

    def __init__(self, model: nn.Module, blocks: list[str], batches: list[Batch]) -> None:
        self.model = model
        self.batches = batches
        self.notes: list[str] = []
        #: Blocks in the order in which they run.
        self.order: list[str] = []
        #: Blocks that read what the block before them returns.
        self.linked: set[str] = set()
        #: Whether all blocks have the same arguments apart from the states.
        self.shared_arguments = False
        #: Otherwise, the arguments of every block for every batch.
        self.arguments: dict[str, list[_Call]] = {}
        #: The block whose inputs are kept, and those inputs.
        self.current: str | None = None
        self.inputs: list[_Call] = []
        owners = {name.rpartition(".")[0] for name in blocks}
        lists = [(owner, model.get_submodule(owner)) for owner in sorted(owners)]
        names = [
            f"{owner}.{child}" for owner, children in lists if isinstance(children, nn.ModuleList)
            for child, _ in children.named_children()
        ]
        if len(names) > 1:
            self._detect_links(names)

    def runs(self, block: str) -> list[Callable[[], None]]:
        """One call per batch that runs at least this block."""
        if self._move_to(block):
            module = self.model.get_submodule(block)
            return [functools.partial(_run_block, call, module) for call in self.inputs]
        return [functools.partial(run_model, self.model, batch) for batch in self.batches]

    def calls(self, block: str) -> list[_Call] | None:
        """The calls of a block, one per batch; None if the block cannot be run alone."""
        return self.inputs if self._move_to(block) else None

    def _detect_links(self, names: list[str]) -> None:
        """Runs the first batch and compares each block's input with the output before it."""
        calls: dict[str, list[_Call | None]] = {}
        outputs: dict[str, Any] = {}

        def before(name: str) -> Any:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                calls.setdefault(name, []).append(_parse_call(args, kwargs))

            return hook

        def after(name: str) -> Any:
            def hook(_: nn.Module, __: Any, output: Any) -> None:
                outputs[name] = output_states(output)

            return hook

        modules = {name: self.model.get_submodule(name) for name in names}
        hooks = [module.register_forward_pre_hook(before(name), with_kwargs=True) for name, module in modules.items()]
        hooks += [module.register_forward_hook(after(name)) for name, module in modules.items()]
        with _removing(hooks):
            run_model(self.model, self.batches[0])
        self.order = list(calls)
        # Blocks that run twice per batch or cannot be replayed are not linked.
        once = {name: made[0] for name, made in calls.items() if len(made) == 1 and made[0] is not None}
        for previous, name in zip(self.order, self.order[1:]):
            if previous in once and name in once and _equal(once[name].states, outputs[previous]):
                self.linked.add(name)
        all_calls = list(once.values())
        self.shared_arguments = all(_equal_except_states(call, all_calls[0]) for call in all_calls)

    def _move_to(self, block: str) -> bool:
        """Makes `inputs` those of the block; False if they cannot be kept."""
        if self.current == block:
            return True
        if block not in self.order:
            return False
        target = self.order.index(block)
        if self.current is not None:
            path = self.order[self.order.index(self.current) : target + 1]
            if len(path) > 1 and self.linked.issuperset(path[1:]):
                return self._advance(path)
        if not self.linked.intersection(self.order[target + 1 : target + 2]):
            return False
        # The forward pass may stop at this block if its arguments serve for all later ones.
        captured = self._capture([block] if self.shared_arguments else self.order[target:], self.batches)
        self.arguments = {name: [call for call in calls if call is not None] for name, calls in captured.items()}
        if any(len(calls) != len(self.batches) for calls in self.arguments.values()):
            return self._give_up(f"some batches do not run the blocks from {block} on as the first batch does")
        self.current, self.inputs = block, self.arguments[block]
        return True

    def _give_up(self, reason: str) -> bool:
        self.notes.append(f"{reason}; the model was run from its start for every block")
        self.order, self.current, self.inputs = [], None, []
        return False

    def _advance(self, path: list[str]) -> bool:
        """Passes the kept inputs through the blocks of a path, then checks the first
        batch against a run of the whole model."""
        for previous, name in zip(path, path[1:]):
            module = self.model.get_submodule(previous)
            for at, call in enumerate(self.inputs):
                states = output_states(call(module))
                self.inputs[at] = (call if self.shared_arguments else self.arguments[name][at]).with_states(states)
        self.current = path[-1]
        expected = self._capture([self.current], self.batches[:1])[self.current][0]
        kept = self.inputs[0]
        if expected is not None and _equal_except_states(kept, expected) and _close(kept.states, expected.states):
            return True
        return self._give_up(f"{self.current} reads more than the output of {path[-2]}")

    def _capture(self, names: list[str], batches: list[Batch]) -> dict[str, list[_Call | None]]:
        """The calls of some blocks for every batch; only those of the first block keep their states."""
        captured: dict[str, list[_Call | None]] = {name: [] for name in names}

        def before(name: str) -> Any:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                call = _parse_call(args, kwargs)
                if call is not None:
                    states = call.states.clone() if name == names[0] else call.states.new_empty(0)
                    call = call.with_states(states)
                    last = captured[name][-1] if captured[name] else None
                    # Arguments that all batches share are stored once.
                    if last is not None and _equal_except_states(call, last):
                        call = last.with_states(states)
                captured[name].append(call)
                if name == names[-1]:
                    raise StopForward

            return hook

        modules = {name: self.model.get_submodule(name) for name in names}
        with _removing([m.register_forward_pre_hook(before(name), with_kwargs=True) for name, m in modules.items()]):
            for batch in batches:
                run_model(self.model, batch)
        return captured


def _run_block(call: _Call, block: nn.Module) -> None:
    with contextlib.suppress(StopForward):
        call(block)


@contextlib.contextmanager
def _removing(hooks: list[Any]) -> Iterator[None]:
    """Removes hooks on exit."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
