"""Prunes a torch module of any architecture in place, block by block."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import _left_dense
from ._block_runner import BlockRunner, StopForward, run_model
from ._evaluating import evaluating
from ._experts import FusedParameter, FusedParameters, fused_candidates, routers
from ._layer_inputs import add_inputs, has_computed_weight, prunable_layers, weight_matrix
from ._matrix_reads import Form, MatrixReads
from ._native import BoundSpec, Hessian, OpenworkError, Spec
from ._prune import prune

OnEvent = Callable[[dict[str, Any]], Any] | None


@dataclass
class _Layer:
    """A layer to prune and its spec: a linear layer or convolution, or experts."""

    name: str
    spec: BoundSpec
    #: The module whose inputs are observed; None for experts.
    module: nn.Module | None = None
    #: The parameter that holds the matrices of all experts; None for other layers.
    experts: FusedParameter | None = None
    #: The block of a `ModuleList` that holds the layer, or the layer itself.
    block: str = ""
    hessian: Hessian | None = field(default=None, repr=False)
    #: The layer that collects the Hessian: itself, or another with the same input.
    owner: _Layer | None = field(default=None, repr=False)

    @property
    def param(self) -> nn.Parameter:
        return self.experts.param if self.experts is not None else self.module.weight  # type: ignore

    def problems(self) -> Iterator[_Problem]:
        """The matrices to prune, and what each is pruned by. Statistics are released as they are used."""
        if self.module is not None:
            hessian, self.hessian, self.owner = self.hessian, None, None
            yield _Problem(f"{self.name}.weight", weight_matrix(self.module), hessian)
        elif self.experts is not None:
            for expert, tokens, hessian, note in self.experts.statistics():
                facts = dict(expert=expert, tokens=tokens)
                notes = [] if note is None else [note]
                yield _Problem(f"{self.name}[{expert}]", self.experts.matrix(expert), hessian, notes, facts)


@dataclass
class _Problem:
    """A matrix to prune."""

    name: str
    weight: torch.Tensor
    hessian: Hessian | None
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Selection:
    """Which layers are pruned, and by which spec."""

    spec: str | Spec | None
    include: str | None
    exclude: str | None
    rules: Mapping[str, str | Spec | None]

    def spec_for(self, name: str) -> str | Spec | None:
        """The spec of a parameter; None if it was asked to stay dense. Expressions
        may match the parameter's name or that of its module."""
        names = (name, name.rpartition(".")[0])
        matches = lambda pattern: any(re.search(pattern, each) for each in names)
        if (self.include and not matches(self.include)) or (self.exclude and matches(self.exclude)):
            return None
        spec = self.spec
        for pattern, other in self.rules.items():
            if matches(pattern):
                spec = other
        return spec


def prune_module(
    model: nn.Module,
    spec: str | Spec | None,
    method: str,
    calib: Any,
    on_event: OnEvent,
    *,
    tokenizer: Any = None,
    samples: int = 128,
    seq_len: int = 1024,
    single_tokens: int | None = None,
    seed: int = 0,
    include: str | None = None,
    exclude: str | None = None,
    rules: Mapping[str, str | Spec | None] | None = None,
    allow_dense: bool = False,
) -> dict[str, Any]:
    """See `prune_model`. `rules` maps regular expressions to specs; the last rule
    that matches a layer wins, and None leaves the layer dense."""
    if not isinstance(model, nn.Module):
        raise OpenworkError(f"a model is a path or a torch module, not a {type(model).__name__}")
    started = time.monotonic()
    selection = _Selection(spec, include, exclude, rules or {})
    candidates = fused_candidates(model)
    dense_by_design = routers(model, candidates)
    layers = _select(model, selection, dense_by_design)
    if not layers and all(selection.spec_for(name) is None for name in candidates):
        raise OpenworkError(_NOTHING)
    batches = _batches(model, calib, tokenizer, samples, seq_len, single_tokens, seed)
    originals: list[tuple[torch.Tensor, torch.Tensor]] = []
    records: list[dict[str, Any]] = []
    with evaluating(model, eager_experts=True):
        try:
            order, fused, read = _first_run(model, layers, candidates, batches[0])
            layers += _select_experts(selection, fused, model)
            if not layers:
                raise OpenworkError(_NOTHING)
            blocks = _by_block(layers, order)
            dense = _left_dense.dense_parameters(
                model, {id(layer.param) for block in blocks for layer in block},
                _reasons(model, layers, order, read, fused, dense_by_design),
                lambda name: selection.spec_for(name) is None,
            )
            if not allow_dense:
                _left_dense.check(dense)
            notes = _left_dense.note(dense)
            if on_event is not None:
                for note in notes:
                    on_event(dict(event="note", text=note))
            for note in _left_dense.note(_left_dense.unexpected(dense)):
                warnings.warn(note, stacklevel=3)
            runner = BlockRunner(model, [block[0].block for block in blocks], batches)
            for number, block in enumerate(blocks):
                block_started = time.monotonic()
                on_share = functools.partial(_report_progress, on_event, number, len(blocks), "calibrate")
                _collect_statistics(model, block, runner.runs(block[0].block), on_share)
                linears: list[dict[str, Any]] = []
                for at, layer in enumerate(block):
                    for problem in layer.problems():
                        originals.append((problem.weight, problem.weight.detach().clone()))
                        result = prune(problem.weight, layer.spec, method, hessian=problem.hessian)
                        linears.append(
                            dict(name=problem.name, error=result.error, density=result.density, damping=result.damping,
                                 notes=problem.notes + result.notes, seconds=result.seconds, **problem.facts)
                        )
                    _report_progress(on_event, number, len(blocks), "prune", (at + 1) / len(block))
                seconds = time.monotonic() - block_started
                records.append(dict(index=number, name=block[0].block, seconds=seconds, linears=linears))
                if on_event is not None:
                    on_event(dict(event="layer", layer=number, layers=len(blocks), seconds=seconds,
                                  error=max(row["error"] for row in linears)))
        except BaseException:
            with torch.no_grad():
                for weight, original in originals:
                    weight.copy_(original)
            raise
    return dict(
        spec=None if spec is None else str(spec), method=method, seed=seed, layers=records,
        dense=[asdict(param) for param in dense], notes=notes + _few_tokens(records) + runner.notes,
        totals=dict(seconds=time.monotonic() - started),
    )


def _few_tokens(records: list[dict[str, Any]]) -> list[str]:
    """A note on the experts with fewer tokens than inputs; their own notes give the numbers."""
    rows = [row for record in records for row in record["linears"] if "expert" in row]
    few = [row for row in rows if any("routed to this expert" in note for note in row["notes"])]
    if not few:
        return []
    least = min(few, key=lambda row: row["tokens"])
    return [f"{len(few)} of {len(rows)} matrices of experts have fewer tokens than inputs, the fewest "
            f"{least['name']} with {least['tokens']}; more calibration data would help"]


def _report_progress(on_event: OnEvent, layer: int, layers: int, stage: str, share: float) -> None:
    if on_event is not None:
        on_event(dict(event="progress", layer=layer, layers=layers, stage=stage, share=share))


_NOTHING = "no layer would be pruned; check spec, include, exclude and rules"


def _select(model: nn.Module, selection: _Selection, dense_by_design: set[str]) -> list[_Layer]:
    """The linear layers and convolutions to prune with their specs bound. Every mistake in
    the selection is an error here."""
    find_head: Any = getattr(model, "get_output_embeddings", None)
    head = None if find_head is None else find_head()
    layers, errors = [], []
    for name, module in prunable_layers(model):
        is_dense = module is head or f"{name}.weight" in dense_by_design
        spec = None if is_dense else selection.spec_for(f"{name}.weight")
        if spec is None:
            continue
        try:
            bound = _parse(spec).bind(tuple(weight_matrix(module).shape))
        except ValueError as error:
            errors.append(f"  {name}: {error}")
            continue
        layers.append(_Layer(name, bound, module=module, block=_block(model, name, name)))
    _raise_misfits(errors)
    return layers


def _select_experts(selection: _Selection, fused: FusedParameters, model: nn.Module) -> list[_Layer]:
    """The experts to prune with their specs bound to the matrix of one expert."""
    layers, errors = [], []
    for name, experts in fused.found.items():
        spec = selection.spec_for(name)
        if spec is None or name in fused.ambiguous:
            continue
        try:
            bound = _parse(spec).bind(experts.form.shape)
        except ValueError as error:
            errors.append(f"  {name}: {error}")
            continue
        layers.append(_Layer(name, bound, experts=experts, block=_block(model, name, name.rpartition(".")[0])))
    _raise_misfits(errors)
    return layers


def _parse(spec: str | Spec) -> Spec:
    return spec if isinstance(spec, Spec) else Spec.parse(spec)


def _raise_misfits(errors: list[str]) -> None:
    if errors:
        raise OpenworkError(
            "the spec does not fit these layers; exclude them or give them a rule:\n" + "\n".join(errors)
        )


def _block(model: nn.Module, name: str, otherwise: str) -> str:
    """The block that holds a layer: a child of the outermost list, as in a decoder, or a module of its own."""
    lists = (each for each, module in model.named_modules() if isinstance(module, (nn.ModuleList, nn.Sequential)))
    owner = next((each for each in lists if name.startswith(f"{each}.")), None)
    if owner is None or not isinstance(model.get_submodule(owner), nn.ModuleList):
        return otherwise
    return f"{owner}.{name[len(owner) + 1 :].split('.')[0]}"


def _first_run(
    model: nn.Module, layers: list[_Layer], candidates: dict[str, nn.Parameter], batch: Any
) -> tuple[dict[str, int], FusedParameters, set[str]]:
    """Runs one batch: the order in which layers and fused parameters are first read, the latter,
    and all of the parameters that were read."""
    order: dict[str, int] = {}
    fused = FusedParameters(candidates)

    def record(name: str) -> Any:
        def hook(*_: Any) -> None:
            order.setdefault(name, len(order))

        return hook

    def on_read(name: str, form: Form, expert: int, inputs: torch.Tensor) -> None:
        if name in candidates:
            order.setdefault(name, len(order))
            fused.on_read(name, form, expert, inputs)

    hooks = [layer.module.register_forward_pre_hook(record(layer.name)) for layer in layers if layer.module is not None]
    weights = {f"{layer.name}.weight": layer.param for layer in layers}
    reads = MatrixReads(weights | candidates, on_read)
    try:
        with reads:
            run_model(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return order, fused, reads.read


def _by_block(layers: list[_Layer], order: dict[str, int]) -> list[list[_Layer]]:
    """The layers that run, grouped by block, in the order in which they first run."""
    blocks: dict[str, list[_Layer]] = {}
    for layer in sorted((each for each in layers if each.name in order), key=lambda each: order[each.name]):
        blocks.setdefault(layer.block, []).append(layer)
    return list(blocks.values())


def _reasons(
    model: nn.Module, layers: list[_Layer], order: dict[str, int], read: set[str], fused: FusedParameters,
    dense_by_design: set[str],
) -> dict[int, str]:
    """Why parameters stay dense, by their `id`."""
    found = {
        id(layer.param): _left_dense.DIRECT if f"{layer.name}.weight" in read else _left_dense.UNREACHED
        for layer in layers if layer.name not in order
    }
    found.update((id(param), _left_dense.UNREACHED) for name, param in fused.candidates.items() if name not in read)
    for name, param in model.named_parameters():
        if name in dense_by_design:
            found[id(param)] = _left_dense.ROUTER
        elif name in fused.ambiguous:
            found[id(param)] = _left_dense.AMBIGUOUS
    for module in model.modules():
        if has_computed_weight(module):
            found.update((id(param), _left_dense.COMPUTED) for param in module.parameters())
    return found


def _collect_statistics(
    model: nn.Module, block: list[_Layer], runs: list[Callable[[], None]], on_share: Callable[[float], None]
) -> None:
    """Runs every batch up to the last layer of a block and accumulates the Hessians of its layers."""
    remaining: set[str] = set()
    experts = {layer.name: layer.experts for layer in block if layer.experts is not None}
    #: The layer that first read an input of the current batch. The input is kept
    #: alive so that no other tensor gets its id.
    first_reader: dict[tuple[int, int], tuple[_Layer, Any]] = {}

    def collect(layer: _Layer) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else next(iter(kwargs.values()))
            if layer.owner is None:
                # Linears with the same input, such as q, k and v, share one Hessian.
                columns = weight_matrix(module)[0].numel()
                layer.owner, _ = first_reader.setdefault((id(x), columns), (layer, x))
                if layer.owner is layer or not isinstance(module, nn.Linear):
                    layer.owner, layer.hessian = layer, Hessian(columns)
                else:
                    layer.hessian = layer.owner.hessian
            if layer.owner is layer and layer.hessian is not None:
                add_inputs(layer.hessian, module, x)
            remaining.discard(layer.name)
            if not remaining:
                raise StopForward

        return hook

    def on_read(name: str, form: Form, expert: int, inputs: torch.Tensor) -> None:
        if experts[name].form == form:
            experts[name].add(expert, inputs)

    def stop(*_: Any) -> None:
        raise StopForward

    hooks = [
        layer.module.register_forward_pre_hook(collect(layer), with_kwargs=True)
        for layer in block if layer.module is not None
    ]
    if experts:
        # Which experts a batch reaches is not known before the block has returned.
        hooks.append(model.get_submodule(block[0].block).register_forward_hook(stop))
    reads = MatrixReads({name: each.param for name, each in experts.items()}, on_read)
    try:
        with reads if experts else contextlib.nullcontext():
            for at, run in enumerate(runs):
                remaining.update(layer.name for layer in block)
                run()
                first_reader.clear()
                on_share((at + 1) / len(runs))
    finally:
        for hook in hooks:
            hook.remove()


def _batches(
    model: nn.Module, calib: Any, tokenizer: Any, samples: int, seq_len: int, single_tokens: int | None, seed: int
) -> list[Any]:
    """Calibration batches: those given, or windows sampled from a text followed by
    windows of a single token each."""
    device = next(model.parameters()).device
    if tokenizer is None:
        if isinstance(calib, (str, os.PathLike)):
            raise OpenworkError("calib is text; pass tokenizer= as well, or a list of batches")
        if torch.is_tensor(calib):
            calib = [calib]
        batches = [_to_device(batch, device) for batch in calib]
        if not batches:
            raise OpenworkError("calib has no batches; give at least one")
        return batches
    ids = tokenizer(_read_text(calib))["input_ids"]
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None) or seq_len
    length = min(seq_len, limit)
    if len(ids) < length:
        raise OpenworkError(
            f"calib has {len(ids)} tokens, fewer than one window of {length}; give more text or a smaller seq_len"
        )
    rng = random.Random(seed)
    firsts = list(range(0, len(ids) - length + 1, length))
    if len(firsts) > samples:
        firsts = sorted(rng.sample(firsts, samples))
    windows = [torch.tensor([ids[first : first + length]], device=device) for first in firsts]
    count = len(firsts) * length // 16 if single_tokens is None else single_tokens
    singles = rng.sample(ids, min(count, len(ids)))
    chunks = [singles[at : at + length] for at in range(0, len(singles), length)]
    return windows + [torch.tensor(chunk, device=device)[:, None] for chunk in chunks]


def _read_text(calib: Any) -> str:
    """The calibration text: `calib` itself, several texts joined, or the contents of a file."""
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
    except (OSError, ValueError):  # a text that is not a valid path: too long, or with a null byte
        return False


def _to_device(batch: Any, device: torch.device) -> Any:
    if torch.is_tensor(batch):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(_to_device(value, device) for value in batch)
    return batch
