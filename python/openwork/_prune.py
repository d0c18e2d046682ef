"""`prune`: one tensor, or several that belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _native
from ._native import BoundSpec, Hessian, PruneError, Spec
from ._tensor import Handle, borrowed, is_torch, like, new_like


@dataclass
class Pruned:
    """What pruning gave. For tensors that were given by name, `mask` and
    `weights` are dicts."""

    #: True where a weight stays.
    mask: Any
    #: The new weights: the tensors themselves if they were pruned in place.
    weights: Any
    #: sqrt(tr(D H D') / tr(W H W')) over all tensors, D the change of the weights.
    error: float
    #: The same for each tensor, by name.
    errors: dict[str, float]
    #: The damping in force, as text; None if the method uses none.
    damping: str | None
    #: How long pruning took; of rows of 16 bits, with the measuring of the error.
    seconds: float
    #: The same with the measuring of the error.
    total: float = 0.0
    #: What you should know.
    notes: list[str] = field(default_factory=list)
    #: The spec, bound.
    spec: BoundSpec | None = None

    @property
    def density(self) -> float:
        """The share of weights that stay."""
        masks = self.mask.values() if isinstance(self.mask, dict) else [self.mask]
        masks = [np.asarray(mask.cpu() if is_torch(mask) else mask) for mask in masks]
        return float(sum(mask.sum() for mask in masks) / sum(mask.size for mask in masks))

    @property
    def sparsity(self) -> float:
        """The share of weights that are zero."""
        return 1.0 - self.density

    def __repr__(self) -> str:
        damping = f", damping {self.damping}" if self.damping else ""
        notes = "".join(f"\n  note: {note}" for note in self.notes)
        return f"Pruned(error {self.error:.4%}, density {self.density:.4g}{damping}, {self.seconds:.3f} s){notes}"


def bound(spec: str | Spec | BoundSpec, weights: Mapping[str, Any], alone: bool) -> BoundSpec:
    """The spec, bound to these tensors."""
    if isinstance(spec, BoundSpec):
        return spec
    pattern = Spec.parse(spec) if isinstance(spec, str) else spec
    if not isinstance(pattern, Spec):
        raise TypeError(f"a spec is a text, a Spec or a BoundSpec, not {type(spec).__name__}")
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if alone and not pattern.members:
        return pattern.bind(next(iter(shapes.values())))
    return pattern.bind(shapes)


def prune(
    W: Any,
    spec: str | Spec | BoundSpec,
    method: str = "s-obs",
    *,
    hessian: Any = None,
    inputs: Any = None,
    inplace: bool = True,
    progress: Callable[[float], Any] | None = None,
) -> Pruned:
    """Prunes a tensor, or a dict of tensors under a spec that couples them.

    W: numpy array, torch tensor or Parameter; float32 without a copy, float64
        through one in float32. float16 and bfloat16 are widened some rows at a
        time, to the same result; new weights are held in float32 as a whole only
        if the spec ties all rows together (`unstructured`, couplings) or the
        method does (`admm`, `+refit`, `+swap`). It is written to when all is
        done; an error or Ctrl-C leaves it as it was. With `inplace=False` it is
        never written to, and `weights` of the result is new.
    spec: a pattern as text, a `Spec`, or one that is bound.
    method: a base and modifiers, such as `"s-obs"`, `"admm+swap"` or
        `"s-obs[damping=diag:0.1]"`; `openwork.methods()` lists them.
    hessian: a `Hessian` or the matrix X'X/n; for a dict of tensors, a dict, or
        one that they share.
    inputs: the inputs X instead, a sample in each row.
    progress: called now and then with the share that is done.

    >>> import numpy, openwork
    >>> rng = numpy.random.default_rng(0)
    >>> W = rng.standard_normal((8, 16), dtype="float32")
    >>> X = rng.standard_normal((256, 16), dtype="float32")
    >>> result = openwork.prune(W, "2:4", method="s-obs", inputs=X)
    >>> float((W == 0).mean()), result.density
    (0.5, 0.5)
    """
    alone = not isinstance(W, Mapping)
    tensors: dict[str, Any] = {"tensor": W} if alone else dict(W)
    if not alone and not tensors:
        raise PruneError("no tensors were given")
    for name, tensor in tensors.items():
        if not isinstance(tensor, np.ndarray) and not is_torch(tensor):
            kind = type(tensor).__name__
            raise PruneError(f"`{name}` is a {kind}; give a numpy array or a torch tensor")
    known = bound(spec, tensors, alone)
    if alone:
        if len(known.names) != 1:
            raise PruneError(f"1 tensors were given, the spec is for {len(known.names)}; give a dict")
        tensors = {known.names[0]: W}
    missing = [name for name in known.names if name not in tensors]
    if missing or len(tensors) != len(known.names):
        wanted, given = ", ".join(known.names), ", ".join(tensors)
        raise PruneError(f"tensors {given} were given, the spec is for {wanted}")
    if hessian is not None and inputs is not None:
        raise PruneError("both hessian and inputs were given; give one of them")
    hessians = _hessians(hessian, inputs, known)

    handles = [Handle(tensors[name]) for name in known.names]
    pairs = [handle.pair for handle in handles]
    done = _native.prune(known, pairs, hessians, method, inplace, progress)
    if inplace:
        for handle in handles:
            handle.commit()
        weights = [tensors[name] for name in known.names]
    else:
        weights = [
            new_like(handle.tensor, handle.kind, new) for handle, new in zip(handles, done["weights"])
        ]
    masks = [like(tensors[name], mask) for name, mask in zip(known.names, done["masks"])]
    notes = list(done["notes"])
    for handle in handles:
        notes += [note for note in handle.notes if note not in notes]
    return Pruned(
        mask=masks[0] if alone else dict(zip(known.names, masks)),
        weights=weights[0] if alone else dict(zip(known.names, weights)),
        error=done["error"],
        errors=dict(zip(known.names, done["errors"])),
        damping=done["damping"],
        seconds=done["seconds"],
        total=done["total"],
        notes=notes,
        spec=known,
    )


def _hessians(hessian: Any, inputs: Any, spec: BoundSpec) -> list[Hessian | None]:
    """A Hessian for each tensor; one that was given once is one object."""
    given = hessian if hessian is not None else inputs
    if given is None:
        return [None] * len(spec.names)
    make = as_hessian if hessian is not None else Hessian.of
    if not isinstance(given, Mapping):
        return [make(given)] * len(spec.names)
    what = "hessian" if hessian is not None else "inputs"
    for name in given:
        if name not in spec.names:
            raise PruneError(f"{what} of `{name}` were given; the spec is for {', '.join(spec.names)}")
    made: dict[int, Hessian] = {}
    return [
        None if name not in given else made.setdefault(id(given[name]), make(given[name]))
        for name in spec.names
    ]


def as_hessian(hessian: Any) -> Hessian:
    """A Hessian, from a matrix if it is not one already."""
    return hessian if isinstance(hessian, Hessian) else Hessian.from_matrix(hessian)


__all__ = ["Pruned", "prune", "bound", "as_hessian", "borrowed"]
