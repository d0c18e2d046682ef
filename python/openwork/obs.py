"""`StructuredOBS`: the paper's pruner for any scope (its layer 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._native import Hessian, PruneError
from ._prune import Pruned, as_hessian, prune
from .scope import ScopeCoupling, ScopeSpec


class StructuredOBS:
    """Structured OBS over a scope, with the Hessian H = X'X/n of the layer's inputs.

    For coupled tensors, H is one matrix that they share, a list with one for each
    tensor, or a dict by `BlockSpec`.

    >>> import numpy
    >>> from openwork import BlockSpec, ScopeSpec, StructuredOBS, View
    >>> rng = numpy.random.default_rng(0)
    >>> W, X = rng.standard_normal((4, 8), "float32"), rng.standard_normal((99, 8), "float32")
    >>> part = ScopeSpec(BlockSpec(View.from_existing(W), shape=(1, 1)), shape=(1, 4))
    >>> H = (X.T @ X) / X.shape[0]
    >>> result = StructuredOBS(part, H).prune_true_obs(nnz=2)
    >>> float((W == 0).mean())
    0.5
    """

    def __init__(self, scope: ScopeSpec | ScopeCoupling, H: Any, damping: str | None = None) -> None:
        if not isinstance(scope, (ScopeSpec, ScopeCoupling)):
            raise PruneError(f"scope must be a ScopeSpec or ScopeCoupling, not a {type(scope).__name__}")
        self.scope = scope
        self.damping = damping
        specs = scope.blockspecs()
        given: list[Any]
        if isinstance(H, Mapping):
            if any(spec not in H for spec in specs):
                raise PruneError("H must have an entry for every BlockSpec")
            given = [H[spec] for spec in specs]
        elif isinstance(H, (list, tuple)) and len(specs) > 1:
            if len(H) != len(specs):
                raise PruneError(f"H has {len(H)} matrices for {len(specs)} tensors; give one for each")
            given = list(H)
        else:
            given = [H] * len(specs)
        made: dict[int, Hessian] = {}
        self.hessians: Sequence[Hessian] = [made.setdefault(id(h), as_hessian(h)) for h in given]

    def prune_true_obs(self, nnz: int, *, progress: Callable[[float], Any] | None = None) -> Pruned:
        """Keeps exactly `nnz` blocks of every scope, adjusts the remaining weights to
        compensate, and modifies the tensors in place."""
        return self.prune(nnz, "s-obs", progress=progress)

    def prune(self, nnz: int, method: str, *, progress: Callable[[float], Any] | None = None) -> Pruned:
        """Keeps exactly `nnz` blocks of every scope, by any method."""
        bound = self.scope.bind(nnz)
        if self.damping is not None:
            if "[" in method:
                raise PruneError("damping was given both to StructuredOBS and in the method; give it once")
            base, plus, steps = method.partition("+")
            method = f"{base}[damping={self.damping}]{plus}{steps}"
        specs = self.scope.blockspecs()
        if len(specs) == 1:
            return prune(specs[0].view.param, bound, method, hessian=self.hessians[0], progress=progress)
        weights = {name: spec.view.param for name, spec in zip(bound.names, specs)}
        hessians = dict(zip(bound.names, self.hessians))
        return prune(weights, bound, method, hessian=hessians, progress=progress)
