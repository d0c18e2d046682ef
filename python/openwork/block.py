"""`BlockSpec` and `BlockCoupling`: groups of weights kept or pruned as a whole (the paper's layer 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _native
from ._native import BoundSpec, PruneError, Spec
from ._tensor import WritableTensor, as_array, is_torch, like
from .view import View, _dims, text


class _Blocks:
    """Base of `BlockSpec` and `BlockCoupling`."""

    #: The `BlockSpec` of each tensor.
    specs: list[BlockSpec]
    name: str | None

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of blocks along each axis; for coupled blocks, of the common grid."""
        return self._single_block_scopes.grid

    def numblk(self) -> int:
        """Number of blocks."""
        return self._single_block_scopes.num_blocks

    def numel(self) -> int:
        """Number of elements."""
        return sum(spec.view.numel() for spec in self.specs)

    def numel_per_block(self) -> int:
        """Number of elements of a block."""
        return self.numel() // self.numblk()

    # A spec whose scopes are single blocks, so that blocks are numbered row-major over the grid.
    _single_block_scopes: BoundSpec

    def _clauses(self) -> str:
        raise NotImplementedError

    def _with_scope(self, scope: str, keep: int) -> BoundSpec:
        """The bound spec with this scope."""
        pattern = Spec.parse(f"{self._clauses()} scope {scope} keep {keep}")
        if pattern.members:
            shapes = {n: tuple(s.view.param.shape) for n, s in zip(self._names(), self.specs)}
            return pattern.bind(shapes)
        return pattern.bind(tuple(self.specs[0].view.param.shape))

    def _names(self) -> list[str]:
        return [f"t{i}" for i in range(len(self.specs))]

    def _pairs(self, values: Any = None) -> list[tuple[str, np.ndarray]]:
        """The arrays to compute scores from: the tensors, or values given in their place."""
        if values is None:
            return [as_array(spec.view.param) for spec in self.specs]
        if isinstance(values, Mapping):
            missing = [spec for spec in self.specs if spec not in values]
            if missing:
                raise PruneError("values must have an entry for every BlockSpec")
            arrays = [values[spec] for spec in self.specs]
        elif len(self.specs) == 1:
            arrays = [values]
        else:
            raise PruneError("values of coupled blocks must be a dict with an entry for every BlockSpec")
        return [as_array(spec._to_tensor_shape(value)) for spec, value in zip(self.specs, arrays)]

    def _like(self, numbers: np.ndarray) -> Any:
        """One number per block in the shape of the grid, as an array of the first tensor's library and device."""
        first = self.specs[0].view.param
        kind = np.float64 if as_array(first)[0] == "f64" else np.float32
        return like(first, numbers.astype(kind).reshape(self.grid_shape))

    def norms(self, values: Any = None, p: float = 2) -> Any:
        """The p-norm of each block, in the shape of the grid."""
        return self._like(_native.reduce_blocks(self._single_block_scopes, self._pairs(values), "norm", float(p)))

    def min(self, values: Any = None) -> Any:
        """The minimum of each block."""
        return self._like(_native.reduce_blocks(self._single_block_scopes, self._pairs(values), "min"))

    def max(self, values: Any = None) -> Any:
        """The maximum of each block."""
        return self._like(_native.reduce_blocks(self._single_block_scopes, self._pairs(values), "max"))

    def sum(self, values: Any = None) -> Any:
        """The sum of each block."""
        return self._like(_native.reduce_blocks(self._single_block_scopes, self._pairs(values), "sum"))

    def mean(self, values: Any = None) -> Any:
        """The mean of each block."""
        total = _native.reduce_blocks(self._single_block_scopes, self._pairs(values), "sum")
        return self._like(total / self.numel_per_block())

    def nnz(self) -> int:
        """Number of nonzero elements."""
        return int(_native.reduce_blocks(self._single_block_scopes, self._pairs(), "nnz").sum())

    def _index(self, block: Any) -> int:
        """The row-major index of a block given by its index or coordinate."""
        if isinstance(block, (tuple, list)):
            try:
                return int(np.ravel_multi_index(tuple(block), self.grid_shape))
            except ValueError:
                raise PruneError(f"block {tuple(block)} is outside the grid {self.grid_shape}") from None
        if not 0 <= int(block) < self.numblk():
            raise PruneError(f"block {block} does not exist; there are {self.numblk()} blocks")
        return int(block)

    def _grid_values(self, values: Any, what: str) -> np.ndarray:
        """One number per block, broadcast to the shape of the grid."""
        array = np.asarray(values.detach().cpu() if is_torch(values) else values)
        try:
            full = np.broadcast_to(array, self.grid_shape)
        except ValueError:
            raise PruneError(
                f"{what} has shape {array.shape}, which does not broadcast to the grid of blocks {self.grid_shape}"
            ) from None
        return np.ascontiguousarray(full).reshape(-1)

    def get_masks(self, block_masks: Any) -> dict[BlockSpec, Any]:
        """Expands a mask over blocks to masks over elements, one for each tensor in the
        shape of its view."""
        kept = self._grid_values(block_masks, "the mask").astype(bool)
        masks = _native.block_masks(self._single_block_scopes, kept)
        return {
            spec: like(spec.view.param, np.ascontiguousarray(spec.view.from_tensor(mask)))
            for spec, mask in zip(self.specs, masks)
        }

    def apply_mask(self, mask: Any) -> None:
        """Zeroes the blocks for which `mask` is true, in place."""
        self._zero(~self._grid_values(mask, "the mask").astype(bool))

    def apply_multiplier(self, multiplier: Any) -> None:
        """Multiplies each block by its multiplier, in place."""
        self._scale(self._grid_values(multiplier, "the multiplier").astype(np.float64))

    def hard_threshold(self, thresholds: Any, values: Any = None) -> None:
        """Zeroes the blocks whose norm is below their threshold, in place. If `values`
        is given, norms are computed from it."""
        norms = _native.reduce_blocks(self._single_block_scopes, self._pairs(values), "norm", 2.0)
        limits = self._grid_values(thresholds, "the threshold").astype(np.float64)
        self._zero(norms >= limits)

    def soft_threshold(self, thresholds: Any) -> None:
        """Shrinks the norm of each block by its threshold t, in place:
        w <- w max(0, 1 - t/|w|)."""
        norms = _native.reduce_blocks(self._single_block_scopes, self._pairs(), "norm", 2.0)
        limits = self._grid_values(thresholds, "the threshold").astype(np.float64)
        self._scale(shrinkage(norms, limits))

    def _zero(self, kept: np.ndarray) -> None:
        kept = np.ascontiguousarray(kept)
        modify(self.specs, lambda pairs: _native.zero_blocks(self._single_block_scopes, pairs, kept))

    def _scale(self, factors: np.ndarray) -> None:
        modify(self.specs, lambda pairs: _native.scale_blocks(self._single_block_scopes, pairs, factors))


def modify(specs: Sequence[BlockSpec], change: Callable[[list[tuple[str, np.ndarray]]], None]) -> None:
    """Modifies the tensors of some specs in place."""
    targets = [WritableTensor(spec.view.param) for spec in specs]
    change([target.pair for target in targets])
    for target in targets:
        target.commit()


def shrinkage(norms: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """The factors max(0, 1 - t/|w|); 0 for a block of zeros."""
    if (limits < 0).any() or not np.isfinite(limits).all():
        raise PruneError("thresholds must be finite and not negative")
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = 1.0 - limits / norms
    return np.where(norms > limits, factors, 0.0)


class BlockSpec(_Blocks):
    """Divides a view into equal blocks, each kept or pruned as a whole.

    >>> import numpy
    >>> from openwork import BlockSpec
    >>> W = numpy.array([[3, 4, 0, 0], [0, 0, 6, 8]], "float32")
    >>> BlockSpec(W, shape=(1, 2)).norms().tolist()
    [[5.0, 0.0], [0.0, 10.0]]
    """

    def __init__(self, view: Any, shape: Any, name: str | None = None) -> None:
        self.view = View.from_existing(view)
        self.shape = _dims(shape, "the block's shape")
        self.name = name
        self.specs = [self]
        self._single_block_scopes = self._with_scope(text((1,) * self.view.ndim), 1)

    def _clauses(self) -> str:
        return f"{self.view.clause} block {text(self.shape)}"

    def _to_tensor_shape(self, values: Any) -> Any:
        shape, own = tuple(values.shape), tuple(self.view.param.shape)
        if shape == own:
            return values
        if shape == self.view.shape:
            return self.view.to_tensor(values)
        raise PruneError(f"values has shape {shape}; it must be the tensor's {own} or the view's {self.view.shape}")

    def elements(self, block: Any) -> np.ndarray:
        """The row-major offsets of a block's elements in the tensor. The block is given
        by its index or coordinate."""
        numbers = np.array([self._index(block)], np.int64)
        return _native.block_elements(self._single_block_scopes, numbers, 0)

    def indices(self, block: Any) -> tuple[np.ndarray, ...]:
        """The coordinates of a block's elements: `W[spec.indices(block)]` selects them."""
        return np.unravel_index(self.elements(block), tuple(self.view.param.shape))

    def block_of(self, index: Any) -> tuple[int, ...]:
        """The coordinate of the block that contains an element of the tensor. The
        element is given by its offset or coordinate."""
        offset = index
        if isinstance(index, (tuple, list)):
            try:
                offset = int(np.ravel_multi_index(tuple(index), tuple(self.view.param.shape)))
            except ValueError:
                shape = tuple(self.view.param.shape)
                raise PruneError(f"element {tuple(index)} is outside the tensor of shape {shape}") from None
        found = self._single_block_scopes.locate(int(offset))
        assert found is not None, "a view covers every element"
        return tuple(int(i) for i in np.unravel_index(found[0], self.grid_shape))

    def __repr__(self) -> str:
        return f"BlockSpec({text(self.shape)} over {self.view!r}, grid {self.grid_shape})"


class BlockCoupling(_Blocks):
    """Couples blocks of several tensors, which are kept or pruned together.
    `orders[i][k]` is the axis of tensor i's grid that is axis k of the common grid.

    >>> import numpy
    >>> from openwork import BlockCoupling, BlockSpec, ScopeSpec
    >>> up, down = numpy.ones((8, 4), "float32"), numpy.ones((4, 8), "float32")
    >>> neurons = BlockCoupling([BlockSpec(up, (1, 4)), BlockSpec(down, (4, 1))], [(0, 1), (1, 0)])
    >>> ScopeSpec(neurons, (4, 1)).hard_threshold(nnz=2)
    >>> up[:, 0].tolist() == down[0].tolist()
    True
    """

    def __init__(
        self,
        specs: Sequence[BlockSpec],
        orders: Sequence[Sequence[int]] | None = None,
        name: str | None = None,
    ) -> None:
        self.specs = list(specs)
        self.orders = check_orders(self.specs, orders, [len(s.grid_shape) for s in self.specs])
        self.name = name
        self._single_block_scopes = self._with_scope(text((1,) * len(self.orders[0])), 1)

    def _clauses(self) -> str:
        members = (
            f"{name} perm {text(order)}: {spec._clauses()}"
            for name, spec, order in zip(self._names(), self.specs, self.orders)
        )
        return "blocks " + " & ".join(members)

    def elements(self, block: Any) -> list[np.ndarray]:
        """The row-major offsets of a block's elements in each tensor."""
        numbers = np.array([self._index(block)], np.int64)
        return [_native.block_elements(self._single_block_scopes, numbers, t) for t in range(len(self.specs))]

    def __repr__(self) -> str:
        return f"BlockCoupling({len(self.specs)} tensors, grid {self.grid_shape})"


def check_orders(
    specs: Sequence[Any], orders: Sequence[Sequence[int]] | None, ranks: list[int]
) -> list[tuple[int, ...]]:
    """The permutation of each member; identities if none are given."""
    if not specs:
        raise PruneError("a coupling needs at least one member")
    if orders is None:
        return [tuple(range(rank)) for rank in ranks]
    if len(orders) != len(specs):
        raise PruneError(f"orders has {len(orders)} entries for {len(specs)} members")
    return [_dims(order, "an order") for order in orders]


AnyBlock = (BlockSpec, BlockCoupling)
