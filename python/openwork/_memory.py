"""A torch module of any architecture, pruned in place, layer by layer."""

from __future__ import annotations

import functools
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ._chain import Chain, Enough, run
from ._inputs import add_inputs, prunable, weight_matrix
from ._native import BoundSpec, Hessian, OpenworkError, Spec
from ._prune import prune

Tell = Callable[[dict[str, Any]], Any] | None


@dataclass
class _Job:
    """One layer and its pattern."""

    name: str
    module: nn.Module
    spec: BoundSpec
    #: Where the layer belongs: the block of a list of blocks, or itself.
    block: str = ""
    hessian: Hessian | None = field(default=None, repr=False)
    #: The layer whose inputs it shares: itself, if they are its own.
    owner: _Job | None = field(default=None, repr=False)


def prune_module(
    model: nn.Module,
    spec: str | Spec | None,
    method: str,
    calib: Any,
    tell: Tell,
    *,
    tokenizer: Any = None,
    samples: int = 128,
    seq_len: int = 1024,
    single_tokens: int | None = None,
    seed: int = 0,
    include: str | None = None,
    exclude: str | None = None,
    rules: Mapping[str, str | Spec | None] | None = None,
) -> dict[str, Any]:
    """See `prune_model`. `rules` gives other patterns to names that match a
    regular expression, or None to leave them dense; the last one wins."""
    if not isinstance(model, nn.Module):
        raise OpenworkError(f"a model is a path or a torch module, not a {type(model).__name__}")
    started = time.monotonic()
    jobs = _plan(model, spec, include, exclude, rules or {})
    batches = _batches(model, calib, tokenizer, samples, seq_len, single_tokens, seed)
    was_training, cache = model.training, getattr(getattr(model, "config", None), "use_cache", None)
    before: list[tuple[torch.Tensor, torch.Tensor]] = []
    layers: list[dict[str, Any]] = []
    notes: list[str] = []
    model.eval()
    try:
        if cache:
            model.config.use_cache = False  # type: ignore[union-attr]
        groups, idle = _in_order(model, jobs, batches[:1])
        notes += [f"{name} was not reached by the calibration batches; it stays dense" for name in idle]
        chain = Chain(model, [group[0].block for group in groups], batches)
        for number, group in enumerate(groups):
            begun = time.monotonic()
            tell_share = functools.partial(_say, tell, number, len(groups), "calibrate")
            _look(group, chain.runs(group[0].block), tell_share)
            linears: list[dict[str, Any]] = []
            for at, job in enumerate(group):
                weight = weight_matrix(job.module)
                before.append((weight, weight.detach().clone()))
                result = prune(weight, job.spec, method, hessian=job.hessian)
                job.hessian = job.owner = None
                linears.append(
                    dict(name=f"{job.name}.weight", error=result.error, density=result.density,
                         damping=result.damping, notes=result.notes, seconds=result.seconds)
                )
                _say(tell, number, len(groups), "prune", (at + 1) / len(group))
            layers.append(dict(index=number, name=group[0].block, seconds=time.monotonic() - begun, linears=linears))
            if tell is not None:
                tell(dict(event="layer", layer=number, layers=len(groups), seconds=layers[-1]["seconds"],
                          error=max(row["error"] for row in linears)))
    except BaseException:
        with torch.no_grad():
            for weight, old in before:
                weight.copy_(old)
        raise
    finally:
        model.train(was_training)
        if cache:
            model.config.use_cache = cache  # type: ignore[union-attr]
    return dict(
        spec=None if spec is None else str(spec), method=method, seed=seed, layers=layers, notes=notes + chain.notes,
        totals=dict(seconds=time.monotonic() - started),
    )


def _say(tell: Tell, layer: int, layers: int, stage: str, share: float) -> None:
    if tell is not None:
        tell(dict(event="progress", layer=layer, layers=layers, stage=stage, share=share))


def _plan(
    model: nn.Module, spec: str | Spec | None, include: str | None, exclude: str | None, rules: Mapping[str, Any]
) -> list[_Job]:
    """Every layer that is to be pruned, with its pattern; all mistakes end here."""
    find: Any = getattr(model, "get_output_embeddings", None)
    output = None if find is None else find()
    lists = [name for name, module in model.named_modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    jobs, wrong = [], []
    for name, module in prunable(model):
        if module is output or (include and not re.search(include, name)) or (exclude and re.search(exclude, name)):
            continue
        asked = spec
        for pattern, other in rules.items():
            if re.search(pattern, name):
                asked = other
        if asked is None:
            continue
        pattern_of = asked if isinstance(asked, Spec) else Spec.parse(asked)
        try:
            bound = pattern_of.bind(tuple(weight_matrix(module).shape))
        except ValueError as error:
            wrong.append(f"  {name}: {error}")
            continue
        # The outermost list that holds it: a decoder's blocks, one after the other.
        owner = next((each for each in lists if name.startswith(f"{each}.")), None)
        block = name
        if owner is not None and isinstance(model.get_submodule(owner), nn.ModuleList):
            block = f"{owner}.{name[len(owner) + 1 :].split('.')[0]}"
        jobs.append(_Job(name, module, bound, block))
    if wrong:
        raise OpenworkError(
            "the plan does not fit the model; exclude these layers or give them a rule:\n" + "\n".join(wrong)
        )
    if not jobs:
        raise OpenworkError("no layer would be pruned; look at spec, include, exclude and rules")
    return jobs


def _in_order(model: nn.Module, jobs: list[_Job], batches: list[Any]) -> tuple[list[list[_Job]], list[str]]:
    """Groups of layers by block, in the order in which they first run, and the
    names of those that do not run."""
    order: dict[str, int] = {}

    def note(name: str) -> Any:
        def hook(*_: Any) -> None:
            order.setdefault(name, len(order))

        return hook

    hooks = [job.module.register_forward_pre_hook(note(job.name)) for job in jobs]
    try:
        for batch in batches:
            run(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    groups: dict[str, list[_Job]] = {}
    for job in sorted((j for j in jobs if j.name in order), key=lambda j: order[j.name]):
        groups.setdefault(job.block, []).append(job)
    return list(groups.values()), [job.name for job in jobs if job.name not in order]


def _look(group: list[_Job], runs: list[Callable[[], None]], share: Callable[[float], None]) -> None:
    """Runs every batch up to the last layer of a group, and sums its inputs."""
    left: set[str] = set()
    #: Who met an input of the batch at hand first; the inputs are held so that no
    #: other takes their place.
    met: dict[tuple[int, int], tuple[_Job, Any]] = {}

    def look(job: _Job) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else next(iter(kwargs.values()))
            if job.owner is None:
                # Linears with the same input, such as q, k and v, share one Hessian.
                columns = weight_matrix(module)[0].numel()
                job.owner, _ = met.setdefault((id(x), columns), (job, x))
                if job.owner is job or not isinstance(module, nn.Linear):
                    job.owner, job.hessian = job, Hessian(columns)
                else:
                    job.hessian = job.owner.hessian
            if job.owner is job and job.hessian is not None:
                add_inputs(job.hessian, module, x)
            left.discard(job.name)
            if not left:
                raise Enough

        return hook

    hooks = [job.module.register_forward_pre_hook(look(job), with_kwargs=True) for job in group]
    try:
        for at, run_batch in enumerate(runs):
            left.update(job.name for job in group)
            run_batch()
            met.clear()
            share((at + 1) / len(runs))
    finally:
        for hook in hooks:
            hook.remove()


def _batches(
    model: nn.Module, calib: Any, tokenizer: Any, samples: int, seq_len: int, single_tokens: int | None, seed: int
) -> list[Any]:
    """What the model is run on: the batches as they are, or windows of a text, and
    then single tokens, as texts begin."""
    device = next(model.parameters()).device
    if tokenizer is None:
        if isinstance(calib, (str, os.PathLike)):
            raise OpenworkError("calib is a text; give tokenizer too, or a list of batches")
        if torch.is_tensor(calib):
            calib = [calib]
        batches = [_moved(batch, device) for batch in calib]
        if not batches:
            raise OpenworkError("calib has no batches; give at least one")
        return batches
    text = _text(calib)
    ids = tokenizer(text)["input_ids"]
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None) or seq_len
    length = min(seq_len, limit)
    if len(ids) < length:
        raise OpenworkError(f"calib has {len(ids)} tokens, a window {length}; give more text or a smaller seq_len")
    chance = random.Random(seed)
    firsts = list(range(0, len(ids) - length + 1, length))
    if len(firsts) > samples:
        firsts = sorted(chance.sample(firsts, samples))
    windows = [torch.tensor([ids[first : first + length]], device=device) for first in firsts]
    count = len(firsts) * length // 16 if single_tokens is None else single_tokens
    singles = chance.sample(ids, min(count, len(ids)))
    parts = [singles[at : at + length] for at in range(0, len(singles), length)]
    return windows + [torch.tensor(part, device=device)[:, None] for part in parts]


def _text(calib: Any) -> str:
    """One text, from itself, several, or a file."""
    if isinstance(calib, (str, os.PathLike)) and _is_file(calib):
        raw = Path(calib).read_text(encoding="utf-8")
        if str(calib).endswith(".jsonl"):
            import json

            return "\n\n".join(json.loads(line)["text"] for line in raw.splitlines() if line.strip())
        return raw
    if isinstance(calib, str):
        return calib
    if isinstance(calib, Iterable):
        return "\n\n".join(calib)
    raise OpenworkError(f"calib is a {type(calib).__name__}; with a tokenizer, give a text, texts or a text file")


def _is_file(calib: str | os.PathLike[str]) -> bool:
    try:
        return Path(calib).is_file()
    except (OSError, ValueError):  # a text that is no name: too long, or with a zero
        return False


def _moved(batch: Any, device: torch.device) -> Any:
    if torch.is_tensor(batch):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _moved(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(_moved(value, device) for value in batch)
    return batch
