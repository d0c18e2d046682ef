"""`prune`: prunes one tensor, or several coupled ones, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _native
from ._native import DEFAULT_METHOD, BoundSpec, Hessian, PruneError, Spec
from ._tensor import WritableTensor, is_torch, like, new_like


@dataclass
class Pruned:
    """The result of `prune`. If a dict of tensors was pruned, `mask` and `weights`
    are dicts with the same keys."""

    #: True where a weight is kept.
    mask: Any
    #: The new weights; the tensors themselves if they were pruned in place.
    weights: Any
    #: Relative output error sqrt(tr(D H D') / tr(W H W')) over all tensors, where D = W_new - W.
    error: float
    #: The same per tensor, by name.
    errors: dict[str, float]
    #: The damping used, as text; None if the method does not use damping.
    damping: str | None
    #: Time spent pruning. For 16-bit tensors it includes the measurement of the error.
    seconds: float
    #: Time spent pruning and measuring the error.
    total_seconds: float = 0.0
    #: Remarks on the run, such as raised damping or dead columns.
    notes: list[str] = field(default_factory=list)
    #: The bound spec.
    spec: BoundSpec | None = None

    @property
    def density(self) -> float:
        """Fraction of the weights that is kept."""
        masks = self.mask.values() if isinstance(self.mask, dict) else [self.mask]
        masks = [np.asarray(mask.cpu() if is_torch(mask) else mask) for mask in masks]
        return float(sum(mask.sum() for mask in masks) / sum(mask.size for mask in masks))

    @property
    def sparsity(self) -> float:
        """Fraction of the weights that is pruned."""
        return 1.0 - self.density

    def __repr__(self) -> str:
        damping = f", damping {self.damping}" if self.damping else ""
        notes = "".join(f"\n  note: {note}" for note in self.notes)
        return f"Pruned(error {self.error:.4%}, density {self.density:.4g}{damping}, {self.seconds:.3f} s){notes}"


def _bind(spec: str | Spec | BoundSpec, weights: Mapping[str, Any], is_single: bool) -> BoundSpec:
    """The spec bound to the shapes of these tensors."""
    if isinstance(spec, BoundSpec):
        return spec
    pattern = Spec.parse(spec) if isinstance(spec, str) else spec
    if not isinstance(pattern, Spec):
        raise TypeError(f"spec must be a str, Spec or BoundSpec, not {type(spec).__name__}")
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if is_single and not pattern.members:
        return pattern.bind(next(iter(shapes.values())))
    return pattern.bind(shapes)


def prune(
    W: Any,
    spec: str | Spec | BoundSpec,
    method: str = DEFAULT_METHOD,
    *,
    hessian: Any = None,
    inputs: Any = None,
    inplace: bool = True,
    progress: Callable[[float], Any] | None = None,
) -> Pruned:
    """Prunes a tensor, or a dict of tensors under a spec that couples them.

    W: numpy array, torch tensor or Parameter. float32 is read without a copy,
        float64 through a float32 copy. float16 and bfloat16 are converted to
        float32 a few rows at a time; all new weights are held in float32 at once
        only if the spec couples all rows (`unstructured`, couplings) or the
        method needs all of them (`admm`, `+refit`, `+swap`). W is modified when
        pruning has finished; an error or Ctrl-C leaves it unchanged.
    spec: a pattern as text, a `Spec` or a `BoundSpec`.
    method: a base method with modifiers and options, such as `"s-obs"`,
        `"admm+swap"` or `"s-obs[damping=diag:0.1]"`; see `openwork.methods()`.
    hessian: a `Hessian` or the matrix X'X/n. For a dict of tensors, a dict by
        name, or one Hessian that all of them share.
    inputs: the inputs X in place of `hessian`, one sample per row.
    inplace: if False, W is left unchanged and `weights` of the result is new.
    progress: called repeatedly with the fraction of the work that is done.

    >>> import numpy, openwork
    >>> rng = numpy.random.default_rng(0)
    >>> W = rng.standard_normal((8, 16), dtype="float32")
    >>> X = rng.standard_normal((256, 16), dtype="float32")
    >>> result = openwork.prune(W, "2:4", method="s-obs", inputs=X)
    >>> float((W == 0).mean()), result.density
    (0.5, 0.5)
    """
    is_single = not isinstance(W, Mapping)
    tensors: dict[str, Any] = {"tensor": W} if is_single else dict(W)
    if not tensors:
        raise PruneError("W is an empty dict; give at least one tensor")
    for name, tensor in tensors.items():
        if not isinstance(tensor, np.ndarray) and not is_torch(tensor):
            kind = type(tensor).__name__
            raise PruneError(f"`{name}` is a {kind}; give a numpy array or a torch tensor")
    bound = _bind(spec, tensors, is_single)
    if is_single:
        if len(bound.names) != 1:
            raise PruneError(f"W is one tensor, but the spec couples {', '.join(bound.names)}; give a dict")
        tensors = {bound.names[0]: W}
    missing = [name for name in bound.names if name not in tensors]
    if missing or len(tensors) != len(bound.names):
        raise PruneError(f"W has tensors {', '.join(tensors)}, but the spec is for {', '.join(bound.names)}")
    if hessian is not None and inputs is not None:
        raise PruneError("hessian and inputs were both given; give only one of them")
    hessians = _hessians(hessian, inputs, bound)

    targets = [WritableTensor(tensors[name]) for name in bound.names]
    done = _native.prune(bound, [target.pair for target in targets], hessians, method, inplace, progress)
    if inplace:
        for target in targets:
            target.commit()
        weights = [tensors[name] for name in bound.names]
    else:
        weights = [new_like(target.tensor, target.kind, new) for target, new in zip(targets, done["weights"])]
    masks = [like(tensors[name], mask) for name, mask in zip(bound.names, done["masks"])]
    notes = list(done["notes"])
    for target in targets:
        notes += [note for note in target.notes if note not in notes]
    return Pruned(
        mask=masks[0] if is_single else dict(zip(bound.names, masks)),
        weights=weights[0] if is_single else dict(zip(bound.names, weights)),
        error=done["error"],
        errors=dict(zip(bound.names, done["errors"])),
        damping=done["damping"],
        seconds=done["seconds"],
        total_seconds=done["total_seconds"],
        notes=notes,
        spec=bound,
    )


def _hessians(hessian: Any, inputs: Any, spec: BoundSpec) -> list[Hessian | None]:
    """The Hessian of each tensor; tensors that share one get the same object."""
    given = hessian if hessian is not None else inputs
    if given is None:
        return [None] * len(spec.names)
    make = as_hessian if hessian is not None else Hessian.from_inputs
    if not isinstance(given, Mapping):
        return [make(given)] * len(spec.names)
    what = "hessian" if hessian is not None else "inputs"
    for name in given:
        if name not in spec.names:
            raise PruneError(f"{what} has an entry for `{name}`, but the spec is for {', '.join(spec.names)}")
    made: dict[int, Hessian] = {}
    return [
        None if name not in given else made.setdefault(id(given[name]), make(given[name]))
        for name in spec.names
    ]


def as_hessian(hessian: Any) -> Hessian:
    """The argument as a `Hessian`; a matrix is converted."""
    return hessian if isinstance(hessian, Hessian) else Hessian.from_matrix(hessian)
