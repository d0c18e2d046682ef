"""`ScopeSpec` and `ScopeCoupling`: groups of blocks that compete to be kept (the paper's layer 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _native
from ._native import BoundSpec, PruneError, Spec
from ._tensor import is_torch, like
from .block import AnyBlock, BlockCoupling, BlockSpec, _Blocks, check_orders, modify, shrinkage
from .view import _dims, text


class _Scopes:
    """Base of `ScopeSpec` and `ScopeCoupling`."""

    name: str | None
    _bound: BoundSpec

    def bind(self, nnz: int) -> BoundSpec:
        """The bound spec that keeps `nnz` blocks of every scope."""
        if isinstance(nnz, bool) or int(nnz) != nnz or nnz < 0:
            raise PruneError(f"nnz is {nnz!r}; give the number of blocks to keep in each scope")
        return self._bound.with_keep(int(nnz))

    def blockspecs(self) -> list[BlockSpec]:
        """The BlockSpec of each tensor."""
        raise NotImplementedError

    def _pairs(self, values: Any = None) -> list[tuple[str, np.ndarray]]:
        raise NotImplementedError

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of scopes along each axis."""
        return self._bound.scope_grid

    def numblk(self) -> int:
        """Number of blocks."""
        return self._bound.num_blocks

    def numscp(self) -> int:
        """Number of scopes."""
        return self._bound.num_scopes

    def numblk_per_scope(self) -> int:
        """Number of blocks of a scope."""
        return self._bound.blocks_per_scope

    def numel_per_scope(self) -> int:
        """Number of elements of a scope."""
        return sum(spec.view.numel() for spec in self.blockspecs()) // self.numscp()

    def sparsity_to_nnz(self, sparsity: float) -> int:
        """Number of blocks to keep per scope for a sparsity, rounded up."""
        if not 0.0 <= sparsity <= 1.0:
            raise PruneError(f"sparsity is {sparsity}; give a number from 0 to 1")
        return int(np.ceil((1.0 - sparsity) * self.numblk_per_scope() - 1e-9))

    def _scores(self, block_scores: Any) -> np.ndarray:
        """One score per block, ordered by scope."""
        raise NotImplementedError

    def block_norms(self, values: Any = None) -> Any:
        """The L2 norm of each block: the axes of the grid of scopes, then the blocks of a scope."""
        norms = _native.reduce_blocks(self._bound, self._pairs(values), "norm", 2.0)
        shape = (*self.grid_shape, self.numblk_per_scope())
        return like(self.blockspecs()[0].view.param, norms.astype(np.float32).reshape(shape))

    def get_masks(self, nnz: int, values: Any = None, block_scores: Any = None) -> dict[BlockSpec, Any]:
        """For each BlockSpec, the mask in the shape of its view that keeps exactly `nnz`
        blocks of every scope: those with the highest L2 norm of the tensor or of
        `values`, or with the highest `block_scores`. Ties go to the lower index."""
        bound = self.bind(nnz)
        if block_scores is None:
            kept = _native.top_blocks(bound, self._pairs(values))
        else:
            kept = _native.top_blocks_by_score(bound, self._scores(block_scores))
        masks = _native.block_masks(bound, kept)
        return {
            spec: like(spec.view.param, np.ascontiguousarray(spec.view.from_tensor(mask)))
            for spec, mask in zip(self.blockspecs(), masks)
        }

    def hard_threshold(self, nnz: int | None = None, thresholds: Any = None, values: Any = None) -> None:
        """Zeroes all but the `nnz` blocks of highest norm of every scope, in place; or
        with `thresholds`, the blocks whose norm is below the threshold of their scope."""
        bound, limits = self._bind_limits(nnz, thresholds)
        if limits is None and values is None:
            return modify(self.blockspecs(), lambda pairs: _native.keep_top_blocks(bound, pairs))
        if limits is None:
            kept = _native.top_blocks(bound, self._pairs(values))
        else:
            kept = _native.reduce_blocks(bound, self._pairs(values), "norm", 2.0) >= limits
        modify(self.blockspecs(), lambda pairs: _native.zero_blocks(bound, pairs, kept))

    def soft_threshold(self, thresholds: Any = None, nnz: int | None = None) -> None:
        """Shrinks the norm of every block by the threshold of its scope, in place. With
        `nnz`, the threshold is the (nnz + 1)-th highest norm of the scope, so at most
        `nnz` of its blocks remain nonzero."""
        bound, limits = self._bind_limits(nnz, thresholds)
        norms = _native.reduce_blocks(bound, self._pairs(), "norm", 2.0)
        if limits is None:
            assert nnz is not None
            scopes = norms.reshape(-1, self.numblk_per_scope())
            if nnz >= scopes.shape[1]:
                return
            limit = -np.partition(-scopes, nnz, axis=1)[:, nnz]
            limits = np.repeat(limit, scopes.shape[1])
        factors = shrinkage(norms, limits)
        modify(self.blockspecs(), lambda pairs: _native.scale_blocks(bound, pairs, factors))

    def _bind_limits(self, nnz: int | None, thresholds: Any) -> tuple[BoundSpec, np.ndarray | None]:
        if (nnz is None) == (thresholds is None):
            raise PruneError("give either nnz or thresholds")
        if nnz is not None:
            return self.bind(nnz), None
        array = np.asarray(thresholds.detach().cpu() if is_torch(thresholds) else thresholds, np.float64)
        try:
            full = np.broadcast_to(array, self.grid_shape)
        except ValueError:
            raise PruneError(
                f"thresholds has shape {array.shape}, which does not broadcast to the grid of scopes {self.grid_shape}"
            ) from None
        return self._bound, np.repeat(full.reshape(-1), self.numblk_per_scope())

    def svg(self, nnz: int = 1) -> str:
        """A drawing of the structure and an example mask, as SVG."""
        return self.bind(nnz).svg()

    def _repr_svg_(self) -> str:
        return self.svg(max(1, self.numblk_per_scope() // 2))


class ScopeSpec(_Scopes):
    """Divides a grid of blocks into equal scopes, in each of which some blocks are
    kept. Trailing extents that are left out span the whole dimension.

    >>> import numpy
    >>> from openwork import BlockSpec, ScopeSpec, View
    >>> W = numpy.array([[1, -5, 2, 3]], "float32")
    >>> part = ScopeSpec(BlockSpec(View.from_existing(W), shape=(1, 1)), shape=(1, 4))
    >>> part.hard_threshold(nnz=2)
    >>> W.tolist()
    [[0.0, -5.0, 0.0, 3.0]]
    """

    def __init__(self, block: Any, shape: Any, name: str | None = None) -> None:
        if not isinstance(block, AnyBlock):
            raise PruneError(f"a ScopeSpec needs a BlockSpec or BlockCoupling, not a {type(block).__name__}")
        self.block: _Blocks = block
        self.shape = _dims(shape, "the scope's shape")
        self.name = name
        self._bound = block._with_scope(text(self.shape), 1)
        self._order: np.ndarray | None = None

    def blockspecs(self) -> list[BlockSpec]:
        return self.block.specs

    def _pairs(self, values: Any = None) -> list[tuple[str, np.ndarray]]:
        return self.block._pairs(values)

    def _grid_order(self) -> np.ndarray:
        if self._order is None:
            self._order = _native.grid_order(self._bound)
        return self._order

    def _scores(self, block_scores: Any) -> np.ndarray:
        grid = self.block._grid_values(block_scores, "block_scores").astype(np.float64)
        return np.ascontiguousarray(grid[self._grid_order()])

    def scope_of(self, block: Any) -> tuple[int, ...]:
        """The coordinate of the scope that contains a block. The block is given by its
        index in the grid of blocks or by its coordinate."""
        at = np.unravel_index(self.block._index(block), self.block.grid_shape)
        tile = np.array(self.block.grid_shape) // np.array(self.grid_shape)
        return tuple(int(i // t) for i, t in zip(at, tile))

    def blocks(self, scope: Any) -> list[tuple[int, ...]]:
        """The coordinates of the blocks of a scope, given by its index or coordinate."""
        index = scope
        if isinstance(scope, (tuple, list)):
            try:
                index = int(np.ravel_multi_index(tuple(scope), self.grid_shape))
            except ValueError:
                raise PruneError(f"scope {tuple(scope)} is outside the grid {self.grid_shape}") from None
        found = (self._bound.block_index(index, b)[1] for b in range(self.numblk_per_scope()))
        return [tuple(int(i) for i in np.unravel_index(b, self.block.grid_shape)) for b in found]

    def __repr__(self) -> str:
        return f"ScopeSpec({text(self.shape)} over {self.block!r}, grid {self.grid_shape})"


class ScopeCoupling(_Scopes):
    """Couples scopes of several tensors, whose blocks then compete with each other.
    `orders[i][k]` is the axis of tensor i's grid of scopes that is axis k of the
    common grid.

    >>> import numpy
    >>> from openwork import BlockSpec, ScopeCoupling, ScopeSpec
    >>> a, b = numpy.array([[1, 4]], "float32"), numpy.array([[2, 3]], "float32")
    >>> both = ScopeCoupling([ScopeSpec(BlockSpec(w, (1, 1)), (1, 2)) for w in (a, b)])
    >>> both.hard_threshold(nnz=2)
    >>> a.tolist(), b.tolist()
    ([[0.0, 4.0]], [[0.0, 3.0]])
    """

    def __init__(
        self,
        scopes: Sequence[ScopeSpec],
        orders: Sequence[Sequence[int]] | None = None,
        name: str | None = None,
    ) -> None:
        self.scopes = list(scopes)
        for scope in self.scopes:
            if not isinstance(scope, ScopeSpec) or isinstance(scope.block, BlockCoupling):
                raise PruneError("a ScopeCoupling needs ScopeSpecs over single tensors, not over a BlockCoupling")
        self.orders = check_orders(self.scopes, orders, [len(s.grid_shape) for s in self.scopes])
        self.name = name
        members = (
            f"t{i} perm {text(order)}: {scope.block._clauses()} scope {text(scope.shape)}"
            for i, (scope, order) in enumerate(zip(self.scopes, self.orders))
        )
        shapes = {f"t{i}": tuple(s.view.param.shape) for i, s in enumerate(self.blockspecs())}
        self._bound = Spec.parse("scopes " + " & ".join(members) + " keep 1").bind(shapes)

    def blockspecs(self) -> list[BlockSpec]:
        return [scope.block.specs[0] for scope in self.scopes]

    def _pairs(self, values: Any = None) -> list[tuple[str, np.ndarray]]:
        pairs = []
        for scope, spec in zip(self.scopes, self.blockspecs()):
            if values is not None and spec not in values:
                raise PruneError("values must have an entry for every BlockSpec")
            pairs += scope._pairs(None if values is None else values[spec])
        return pairs

    def _scores(self, block_scores: Any) -> np.ndarray:
        grids = []
        for spec in self.blockspecs():
            if spec not in block_scores:
                raise PruneError("block_scores must have an entry for every BlockSpec")
            grids.append(spec._grid_values(block_scores[spec], "block_scores").astype(np.float64))
        return np.ascontiguousarray(np.concatenate(grids)[_native.grid_order(self._bound)])

    def __repr__(self) -> str:
        return f"ScopeCoupling({len(self.scopes)} tensors, grid {self.grid_shape})"
