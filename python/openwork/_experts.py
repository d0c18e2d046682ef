"""Experts of a torch module: parameters that hold the matrices of all experts, the
statistics of each expert's inputs, and the routers, which stay dense."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from ._layer_inputs import prunable_layers
from ._matrix_reads import Form
from ._native import Hessian

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def fused_candidates(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters outside linear layers, convolutions and embeddings that may hold several matrices.
    Whether one does is known once the model has run (`MatrixReads`)."""
    known = {id(module.weight) for _, module in prunable_layers(model)}
    known |= {id(p) for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for p in m.parameters()}

    def is_candidate(name: str, param: nn.Parameter) -> bool:
        if param.dim() not in (2, 3) or param.dtype not in _DTYPES or id(param) in known:
            return False
        # A single matrix may be a table of positions; it is one expert only if it is called so.
        return param.shape[0] > 1 or "expert" in name

    return {name: param for name, param in model.named_parameters() if is_candidate(name, param)}


@dataclass
class FusedParameter:
    """A parameter that holds one matrix per expert."""

    name: str
    param: nn.Parameter
    form: Form
    #: Whether experts read the tokens of the layer, rather than channels of their own.
    reads_tokens: bool = True
    #: Sums over the tokens of each expert that has any.
    sums: dict[int, Hessian] = field(default_factory=dict, repr=False)

    def matrix(self, expert: int) -> torch.Tensor:
        """The weights of an expert as outputs by inputs."""
        return self.form.matrix(self.param, expert)

    def add(self, expert: int, inputs: torch.Tensor) -> None:
        """Accumulates inputs of an expert, one token per row."""
        if expert not in self.sums:
            self.sums[expert] = Hessian(self.form.shape[1])
        for rows in inputs.detach().split(8192):
            self.sums[expert].add(rows.contiguous())

    def statistics(self) -> Iterator[tuple[int, int, Hessian, str | None]]:
        """Yields each expert with its tokens, the Hessian to prune it by, and a note if the tokens were too few.

        The tokens of an expert that are fewer than its inputs are made up for as in the
        pipeline for models on disk (`statistics.rs`):

            reads tokens      (n H + m H_all) / (n + m)    m = inputs - n    H_all: tokens of all experts
            reads channels    (n H + m h I) / (n + m)      h: the mean of H's diagonal, or 1
        """
        width = self.form.shape[1]
        common: np.ndarray | None = None
        few = any(self._tokens(expert) < width for expert in range(self.form.count))
        if self.reads_tokens and self.sums and few:
            # Before any expert is released: every token is routed to the same number of
            # experts, so their pooled tokens are those of the layer.
            total = sum(self._tokens(expert) for expert in self.sums)
            common = np.zeros((width, width))
            for expert, own in self.sums.items():
                common += self._tokens(expert) / total * own.matrix()
        for expert in range(self.form.count):
            tokens = self._tokens(expert)
            hessian = self.sums.pop(expert, None)
            if hessian is not None and tokens >= width:
                yield expert, tokens, hessian, None
                continue
            matrix = np.zeros((width, width)) if hessian is None else hessian.matrix()
            size = float(np.trace(matrix)) / width
            other = common if common is not None else np.eye(width) * (size if size > 0 else 1.0)
            mixed = Hessian.from_matrix((tokens * matrix + (width - tokens) * other) / width, width)
            rest = "they are supplemented as if uncorrelated" if common is None else (
                "the statistics of all tokens of the layer supplement them")
            count = f"{tokens} token{'' if tokens == 1 else 's'}"
            yield expert, tokens, mixed, f"{count} routed to this expert, for {width} inputs: {rest}"

    def _tokens(self, expert: int) -> int:
        return (self.sums[expert].samples or 0) if expert in self.sums else 0


class FusedParameters:
    """The parameters with several matrices that a model reads, found while it runs."""

    def __init__(self, candidates: dict[str, nn.Parameter]) -> None:
        self.candidates = candidates
        #: In the order in which they are first read.
        self.found: dict[str, FusedParameter] = {}
        #: Candidates that are read in more than one form.
        self.ambiguous: set[str] = set()
        #: The first parameter of a group of experts: its first expert, and that expert's inputs.
        self._first: dict[str, tuple[str, int, torch.Tensor]] = {}

    def on_read(self, name: str, form: Form, expert: int, inputs: torch.Tensor) -> None:
        """Takes notice of one product."""
        if name not in self.found:
            # Experts that read the same inputs as the first parameter of their module read
            # tokens (gate, up); the others read what the experts have computed (down).
            first, its_expert, its_inputs = self._first.setdefault(self._group(name), (name, expert, inputs.clone()))
            same = name == first or (its_expert == expert and _equal(its_inputs, inputs))
            self.found[name] = FusedParameter(name, self.candidates[name], form, same)
        elif self.found[name].form != form:
            self.ambiguous.add(name)

    def _group(self, name: str) -> str:
        """The module whose parameters belong to the same experts: the parameter's own,
        or the one above if it holds a single candidate."""
        owner = name.rpartition(".")[0]
        siblings = sum(each.rpartition(".")[0] == owner and self.candidates[each].dim() == self.candidates[name].dim()
                       for each in self.candidates)
        return owner if siblings > 1 else owner.rpartition(".")[0]


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def named_experts(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that hold several experts by their name or that of their module's class, for
    callers that cannot run the model to find out."""
    candidates = fused_candidates(model)
    excluded = routers(model, candidates)

    def is_expert(name: str) -> bool:
        owner = model.get_submodule(name.rpartition(".")[0])
        return "expert" in f"{name} {type(owner).__name__}".lower() and not name.endswith("bias")

    return {name: param for name, param in candidates.items() if name not in excluded and is_expert(name)}


def routers(model: nn.Module, candidates: dict[str, nn.Parameter]) -> set[str]:
    """Names of the parameters that choose experts: those of a module called `router`, and of one
    called `gate` with an output per expert or a single one, next to experts."""
    # Number of experts by the module that holds them and their router.
    counts: dict[str, set[int]] = {}
    for name, param in candidates.items():
        if param.dim() == 3:
            counts.setdefault(_layer(name), set()).add(param.shape[0])
        elif "expert" in name:
            counts.setdefault(_layer(name), set())
    for name, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)) and name.rpartition(".")[2] == "experts":
            counts.setdefault(_layer(name), set()).add(len(module))
    found = set()
    for name, param in model.named_parameters():
        outputs = counts.get(_layer(name))
        if outputs is None or param.dim() < 2:
            continue
        parts = name.split(".")[:-1]
        is_gate = any(re.search(r"(^|_)(gate|gating)$", part) for part in parts)
        if any("router" in part for part in parts) or (is_gate and param.shape[0] in outputs | {1}):
            found.add(name)
    return found


def _layer(name: str) -> str:
    """The name up to the first number: the block of a list of blocks."""
    match = re.match(r".*?\.\d+(?=\.)", f".{name}")
    return "" if match is None else match.group()[1:]
