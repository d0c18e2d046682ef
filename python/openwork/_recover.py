"""Trains what pruning left of a torch module, with its zeros in place, towards the dense module."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import _native
from ._model import Progress, _Bar
from ._native import OpenworkError

if TYPE_CHECKING:
    import torch
    from torch import nn

#: The gradient of a step is scaled down to this norm when the whole model is trained.
MAX_NORM = 1.0


def recover(
    module: nn.Module,
    reference: nn.Module,
    *,
    calib: Any,
    recover: str = "blocks+model",
    tokenizer: Any = None,
    samples: int = 128,
    seq_len: int = 1024,
    seed: int = 0,
    progress: Progress | bool | None = None,
) -> dict[str, Any]:
    """Train the weights of a pruned torch module that are not zero, in place, towards a dense module.

    Stages and their options are those of `openwork recover`: `blocks` trains each block of
    the module's lists of blocks (`nn.ModuleList`; an encoder and a decoder have one each)
    towards the reference's output of that block, `model` the whole module towards the
    reference's logits. Every zero of a weight stays zero, those of fused experts too.
    torch computes the gradients in the types of the module (`precision` changes nothing here), so the
    module may be on a GPU. `calib` is what
    `prune_model` takes for a module. An eighth of the batches is held out; a stage that
    does not lower their loss is undone. On an error or Ctrl-C the parameters of the stage
    are restored.

    Returns `recovery`, one dict per stage (stage, before, after, seconds, tokens), and `notes`.
    """
    import torch

    from ._evaluating import evaluating
    from ._torch_model import _batches

    for name, given in (("module", module), ("reference", reference)):
        if not isinstance(given, torch.nn.Module):
            raise OpenworkError(f"{name} is a {type(given).__name__}; give a torch module")
    stages = _native.recovery_stages(recover)
    for option in ("regrow", "states"):
        if any(stage[option] for stage in stages):
            raise OpenworkError(f"`{option}` needs a model that openwork reads from disk; use `openwork recover`")
    _check_alike(module, reference)
    batches = _batches(module, calib, tokenizer, samples, seq_len, 0, seed)
    if len(batches) < 2:
        raise OpenworkError(f"calib has {len(batches)} batch; give at least 2: one of them is held out")
    records: list[dict[str, Any]] = []
    notes: list[str] = []
    with _Bar(progress) as tell, evaluating(module), evaluating(reference):
        for stage in stages:
            if stage["unit"] == "halves":
                raise OpenworkError("`halves` needs a model that openwork reads from disk; use `blocks`")
            train = _train_blocks if stage["unit"] == "blocks" else _train_model
            started = time.monotonic()
            before, after, tokens = train(module, reference, batches, stage, seed, tell, notes)
            records.append(
                dict(stage=stage["stage"], before=before, after=after,
                     seconds=time.monotonic() - started, tokens=tokens)
            )
            if tell is not None:
                tell(dict(event="recovered", **records[-1]))
    return dict(recovery=records, notes=notes)


def _check_alike(module: nn.Module, reference: nn.Module) -> None:
    ours, theirs = ({name: tuple(p.shape) for name, p in each.named_parameters()} for each in (module, reference))
    for name in theirs:
        if ours.get(name) != theirs[name]:
            raise OpenworkError(
                f"{name} of the reference has shape {list(theirs[name])}, that of the module "
                f"{list(ours[name]) if name in ours else 'is missing'}; give the dense module that it was pruned from"
            )


class _Training:
    """Adam on some parameters, whose zeros stay zero."""

    def __init__(self, parameters: Iterable[tuple[str, torch.nn.Parameter]], stage: dict[str, Any]) -> None:
        # The biases of fused experts have two dimensions.
        is_weight = lambda name, p: p.dim() > 1 and not name.endswith("bias")
        self.stage = stage
        trained = [
            (name, p) for name, p in parameters
            if stage["weights" if is_weight(name, p) else "norms"] and p.is_floating_point()
        ]
        self.parameters = [p for _, p in trained]
        self.masks = [p.detach() != 0 if is_weight(name, p) else None for name, p in trained]
        self.start = [p.detach().clone() for p in self.parameters]

    def restore(self, values: list[torch.Tensor]) -> None:
        import torch

        with torch.no_grad():
            for parameter, value in zip(self.parameters, values):
                parameter.copy_(value)

    def run(
        self,
        loss: Callable[[Any], torch.Tensor],
        train: list[Any],
        held_out: list[Any],
        steps: int,
        seed: int,
        tell: Callable[[float, float, float], None],
        max_norm: float | None,
    ) -> tuple[float, float, int]:
        """Tries learning rates until one lowers the held-out loss: that loss before and after, and the
        number of batches that were trained on. Parameters keep their values if none does."""
        import torch

        used = 0

        def measure() -> float:
            with torch.no_grad():
                return sum(float(loss(item)) for item in held_out) / len(held_out)

        def attempt(rate: float, steps: int, every: int) -> tuple[float, list[torch.Tensor]] | None:
            """The lowest of the losses measured every so many steps, and its parameters, if it is below `before`."""
            nonlocal used
            best: tuple[float, list[torch.Tensor]] | None = None
            order = _order(len(train), seed)
            means = [(torch.zeros_like(p, dtype=torch.float32), torch.zeros_like(p, dtype=torch.float32))
                     for p in self.parameters]
            wide = [p.detach().float().clone() for p in self.parameters]
            held = before
            for step in range(steps):
                batch = [train[next(order)] for _ in range(self.stage["batch"])]
                value = torch.stack([loss(item) for item in batch]).mean()
                latest = float(value.detach())
                if not math.isfinite(latest):
                    break
                gradients = torch.autograd.grad(value, self.parameters, allow_unused=True)
                used += len(batch)
                self._step(step, rate * _share(self.stage["schedule"], step, steps), gradients, means, wide, max_norm)
                if (step + 1) % every == 0 or step + 1 == steps:
                    held = measure()
                    if not math.isfinite(held) or held > 1.5 * before:
                        break
                    if held < (before if best is None else best[0]):
                        best = held, [p.detach().clone() for p in self.parameters]
                tell((step + 1) / steps, latest, held)
            self.restore(self.start)
            return best

        def rates() -> list[float]:
            """The learning rates of the stage, or those that short trials choose."""
            if self.stage["rates"]:
                return list(self.stage["rates"])
            trials: list[tuple[float, float | None]] = []
            while True:
                rate, chosen = _native.search_learning_rate(trials)
                if rate is None:
                    return chosen
                steps = self.stage["trial_steps"]
                found = attempt(rate, steps, steps)
                trials.append((rate, None if found is None else found[0]))

        before = measure()
        frozen = [p for p in self.parameters if not p.requires_grad]
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        try:
            for rate in rates():
                best = attempt(rate, steps, max(1, steps // 8))
                if best is not None:
                    self.restore(best[1])
                    return before, best[0], used
            return before, before, used
        except BaseException:
            self.restore(self.start)
            raise
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)

    def _step(
        self, step: int, rate: float, gradients: Any, means: Any, wide: list[torch.Tensor], max_norm: float | None
    ) -> None:
        """A step of Adam, in 32 bits whatever the parameters have."""
        import torch

        given = [g.float() if g is not None else None for g in gradients]
        scale = 1.0
        if max_norm is not None:
            norm = math.sqrt(sum(float(g.square().sum()) for g in given if g is not None))
            scale = min(1.0, max_norm / norm) if norm > 0 else 1.0
        with torch.no_grad():
            for parameter, mask, g, (m, v), w, start in zip(
                self.parameters, self.masks, given, means, wide, self.start
            ):
                if g is None:
                    continue
                g = g * scale
                m.mul_(0.9).add_(g, alpha=0.1)
                v.mul_(0.95).addcmul_(g, g, value=0.05)
                root = (v / (1 - 0.95 ** (step + 1))).sqrt_().add_(1e-8)
                w.addcdiv_(m, root, value=-rate / (1 - 0.9 ** (step + 1)))
                if self.stage["decay"] > 0:
                    w.lerp_(start.float(), min(1.0, rate * self.stage["decay"]))
                if mask is not None:
                    w.mul_(mask)
                parameter.copy_(w)


def _share(schedule: str, step: int, steps: int) -> float:
    """The share of the highest learning rate at a step, as in `openwork recover`."""
    warm_up = min(max(steps // 10, 1), 10)
    if step < warm_up:
        return (step + 1) / warm_up
    done = (step - warm_up) / max(steps - warm_up, 1)
    left = {"linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2, "constant": 1.0}[schedule]
    return 0.05 + 0.95 * left


def _order(count: int, seed: int) -> Iterator[int]:
    """All numbers below `count` in random order, again and again."""
    rng = random.Random(seed)
    while True:
        yield from rng.sample(range(count), count)


def _split(items: list[Any]) -> tuple[list[Any], list[Any]]:
    """Items to train on and items that are held out: the last eighth, at least one."""
    count = min(max(len(items) // 8, 1), 16)
    return items[:-count], items[-count:]


def _tokens(batch: Any) -> int:
    import torch

    first = next(iter(batch.values())) if isinstance(batch, dict) else batch
    first = first[0] if isinstance(first, (tuple, list)) else first
    return first.shape[0] * first.shape[1] if torch.is_tensor(first) and first.dim() > 1 else 1


def _block_lists(module: nn.Module) -> list[str]:
    """The outermost lists of blocks with weights: one in a decoder, two in an encoder-decoder."""
    from torch import nn

    found: list[str] = []
    for name, child in module.named_modules():
        is_inner = any(name.startswith(f"{outer}.") for outer in found)
        if isinstance(child, nn.ModuleList) and not is_inner and any(p.dim() > 1 for p in child.parameters()):
            found.append(name)
    return found


def _train_blocks(
    module: nn.Module, reference: nn.Module, batches: list[Any], stage: dict[str, Any], seed: int, on_event: Any,
    notes: list[str],
) -> tuple[float, float, int]:
    from ._block_runner import BlockRunner, output_states

    lists = _block_lists(module)
    if not lists:
        raise OpenworkError("the module has no nn.ModuleList of blocks; use `model`")
    largest = max(lists, key=lambda each: sum(p.numel() for p in module.get_submodule(each).parameters()))
    blocks = [f"{each}.{name}" for each in lists for name, _ in module.get_submodule(each).named_children()]
    ours, theirs = (BlockRunner(each, blocks, batches) for each in (module, reference))
    before, after, tokens = [], [], 0
    skipped: set[str] = set()
    for number, name in enumerate(blocks):
        owner = name.rpartition(".")[0]
        if owner in skipped:
            continue
        calls, wanted = ours.calls(name), theirs.calls(name)
        if calls is None or wanted is None:
            if owner == largest:
                raise OpenworkError(f"{name} cannot be run on its own; use `model`")
            skipped.add(owner)
            notes.append(f"{name} cannot be run on its own; `{stage['stage']}` did not train the blocks of {owner}")
            continue
        dense = reference.get_submodule(name)
        pairs = [(call, output_states(target(dense)).float()) for call, target in zip(calls, wanted)]
        block = module.get_submodule(name)

        def loss(pair: Any, block: Any = block) -> Any:
            call, y = pair
            o = output_states(call.with_gradients(block)).float()
            return ((o - y).square().sum(-1) / y.square().sum(-1).clamp_min(1e-20)).mean()

        def tell(share: float, value: float, held: float, number: int = number) -> None:
            if on_event is not None:
                on_event(dict(event="progress", layer=number, layers=len(blocks), stage="recover",
                              share=share, loss=value, held_out=held))

        train, held_out = _split(pairs)
        steps = stage["epochs"] * math.ceil(len(train) / stage["batch"])
        training = _Training(block.named_parameters(), stage)
        old, new, used = training.run(loss, train, held_out, steps, seed, tell, None)
        before.append(old)
        after.append(new)
        tokens += used * _tokens(batches[0])
    return sum(before) / len(before), sum(after) / len(after), tokens // len(before)


def _train_model(
    module: nn.Module, reference: nn.Module, batches: list[Any], stage: dict[str, Any], seed: int, on_event: Any,
    notes: list[str],
) -> tuple[float, float, int]:
    import torch
    from torch.nn import functional

    def logits(model: Any, batch: Any) -> torch.Tensor:
        output = model(**batch) if isinstance(batch, dict) else model(*batch) if isinstance(
            batch, (tuple, list)) else model(batch)
        found = getattr(output, "logits", output)
        return (found[0] if isinstance(found, (tuple, list)) else found).float()

    a = stage["temperature"]

    def loss(batch: Any) -> torch.Tensor:
        ours = logits(module, batch)
        value = ours.new_zeros(())
        if stage["kl"]:
            with torch.no_grad():
                wanted = functional.log_softmax(logits(reference, batch) / a, -1)
            found = functional.log_softmax(ours / a, -1)
            kl = functional.kl_div(found, wanted, reduction="none", log_target=True).sum(-1).mean()
            value = value + stage["kl"] * a * a * kl
        if stage["ce"]:
            if not torch.is_tensor(batch):
                raise OpenworkError("loss=ce needs batches that are tensors of token ids")
            value = value + stage["ce"] * functional.cross_entropy(ours[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        return value

    def tell(share: float, value: float, held: float) -> None:
        if on_event is not None:
            on_event(dict(event="progress", layer=None, layers=1, stage="recover", share=share, loss=value, held_out=held))

    train, held_out = _split(batches)
    embeddings = {
        id(p)
        for find in ("get_input_embeddings", "get_output_embeddings")
        if (found := getattr(module, find, lambda: None)()) is not None
        for p in found.parameters()
    }
    parameters = [(name, p) for name, p in module.named_parameters() if id(p) not in embeddings]
    before, after, used = _Training(parameters, stage).run(
        loss, train, held_out, stage["steps"], seed, tell, MAX_NORM
    )
    return before, after, used * _tokens(batches[0])
