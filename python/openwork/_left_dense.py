"""Accounts for the parameters that `prune_model(module)` leaves dense.

A caller must not take a model with dense weights for a sparse one, so every parameter of
two or more dimensions that stays dense is reported with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from ._native import OpenworkError

#: Refuse a run that would leave more than this share of the weights that might be pruned dense unasked.
MAX_SHARE = 0.5

EXCLUDED = "excluded by include, exclude or rules"
EMBEDDING = "embedding or output head"
ROUTER = "router of experts"
BIAS = "bias"
UNREACHED = "not reached by the calibration batches"
DIRECT = "read without calling its layer"
COMPUTED = "its layer computes the weight from other parameters"
AMBIGUOUS = "read as matrices of different shapes"
UNSUPPORTED = "not the weight of a linear layer, a convolution or experts"

#: Reasons for which parameters stay dense by design; others are worth a warning.
EXPECTED = (EXCLUDED, EMBEDDING, ROUTER, BIAS)


@dataclass
class DenseParameter:
    """A parameter of two or more dimensions that stays dense."""

    name: str
    #: Its share of all parameters of the model.
    share: float
    reason: str


def dense_parameters(
    model: nn.Module, pruned: set[int], reasons: Mapping[int, str], is_excluded: Callable[[str], bool]
) -> list[DenseParameter]:
    """Every parameter of two or more dimensions that is not pruned. `pruned` and `reasons`
    identify parameters by `id`; parameters without a reason there get a general one."""
    find_head = getattr(model, "get_output_embeddings", None)
    head = None if find_head is None else find_head()
    embeddings = {
        id(module.weight) for module in model.modules()
        if module is head or isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    }
    total = sum(param.numel() for param in model.parameters())
    found = []
    for name, param in model.named_parameters():
        if param.dim() < 2 or id(param) in pruned:
            continue
        if reasons.get(id(param)) in (UNREACHED, DIRECT) and not is_excluded(name):
            reason = reasons[id(param)]
        elif id(param) in embeddings:
            reason = EMBEDDING
        elif is_excluded(name):
            reason = EXCLUDED
        elif id(param) in reasons:
            reason = reasons[id(param)]
        else:
            reason = BIAS if re.search(r"(^|[._])bias$", name) else UNSUPPORTED
        found.append(DenseParameter(name, param.numel() / total, reason))
    return found


def check(dense: list[DenseParameter]) -> None:
    """Refuses a run that leaves most weights dense although nobody asked for that."""
    expected = sum(param.share for param in dense if param.reason in EXPECTED)
    if sum(param.share for param in unexpected(dense)) > MAX_SHARE * (1 - expected):
        unasked = [param for param in dense if param.reason != EXCLUDED]
        raise OpenworkError(
            f"{sum(param.share for param in unasked):.1%} of the weights would stay dense:\n{_lines(unasked)}\n"
            "exclude them by name (exclude=...), or pass allow_dense=True to prune the rest"
        )


def unexpected(dense: list[DenseParameter]) -> list[DenseParameter]:
    """The parameters that a caller may believe to be pruned."""
    return [param for param in dense if param.reason not in EXPECTED]


def note(dense: list[DenseParameter]) -> list[str]:
    """The note that names what stays dense; empty if nothing does."""
    if not dense:
        return []
    return [f"{sum(param.share for param in dense):.1%} of the weights stay dense:\n{_lines(dense)}"]


def _lines(dense: list[DenseParameter]) -> str:
    """One line per kind of parameter: those whose names differ only in numbers, such as a layer's index."""
    kinds: dict[tuple[str, str], list[DenseParameter]] = {}
    for param in dense:
        kinds.setdefault((re.sub(r"\d+", "#", param.name), param.reason), []).append(param)
    lines = []
    for (_, reason), params in kinds.items():
        names = params[0].name
        if len(params) > 1:
            names += f" {'and' if len(params) == 2 else 'to'} {params[-1].name}"
            names += f" ({len(params)} parameters)" if len(params) > 2 else ""
        lines.append(f"  {names}: {sum(param.share for param in params):.1%}, {reason}")
    return "\n".join(lines)
