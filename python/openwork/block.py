"""`BlockSpec` and `BlockCoupling`: what stays or goes whole (the paper's layer 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import _native
from ._native import BoundSpec, PruneError, Spec
from ._tensor import Handle, borrowed, is_torch, like
from .view import View, _dims, text


class _Blocks:
    """What one tensor's blocks and coupled blocks have in common."""

    #: The blocks' own specs, in order.
    specs: list[BlockSpec]
    name: str | None

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """The blocks along each axis; for coupled blocks the common grid."""
        return self._each.grid

    def numblk(self) -> int:
        """How many blocks there are."""
        return self._each.num_blocks

    def numel(self) -> int:
        """How many elements there are."""
        return sum(spec.view.numel() for spec in self.specs)

    def numel_per_block(self) -> int:
        """How many elements a block has."""
        return self.numel() // self.numblk()

    # A spec whose scopes are single blocks: its blocks are numbered as the grid is.
    _each: BoundSpec

    def _clauses(self) -> str:
        raise NotImplementedError

    def _with_scope(self, scope: str, keep: int) -> BoundSpec:
        """The bound spec with a scope of this text."""
        raw = Spec.parse(f"{self._clauses()} scope {scope} keep {keep}")
        if raw.members:
            shapes = {n: tuple(s.view.param.shape) for n, s in zip(self._names(), self.specs)}
            return raw.bind(shapes)
        return raw.bind(tuple(self.specs[0].view.param.shape))

    def _names(self) -> list[str]:
        return [f"t{i}" for i in range(len(self.specs))]

    def _pairs(self, values: Any = None) -> list[tuple[str, np.ndarray]]:
        """What scores are made from: the tensors, or values given for them."""
        if values is None:
            return [borrowed(spec.view.param) for spec in self.specs]
        if isinstance(values, Mapping):
            missing = [spec for spec in self.specs if spec not in values]
            if missing:
                raise PruneError("values must have an entry for every BlockSpec")
            each = [values[spec] for spec in self.specs]
        elif len(self.specs) == 1:
            each = [values]
        else:
            raise PruneError("for coupled blocks, values are a dict with an entry for every BlockSpec")
        return [borrowed(spec._in_tensor(value)) for spec, value in zip(self.specs, each)]

    def _like(self, numbers: np.ndarray) -> Any:
        """Numbers in the grid's shape, as the first tensor is."""
        first = self.specs[0].view.param
        kind = np.float64 if borrowed(first)[0] == "f64" else np.float32
        return like(first, numbers.astype(kind).reshape(self.grid_shape))

    def norms(self, values: Any = None, p: float = 2) -> Any:
        """The p-norm of each block, in the grid's shape."""
        return self._like(_native.fold(self._each, self._pairs(values), "norm", float(p)))

    def min(self, values: Any = None) -> Any:
        """The least entry of each block."""
        return self._like(_native.fold(self._each, self._pairs(values), "min"))

    def max(self, values: Any = None) -> Any:
        """The largest entry of each block."""
        return self._like(_native.fold(self._each, self._pairs(values), "max"))

    def sum(self, values: Any = None) -> Any:
        """The sum over each block."""
        return self._like(_native.fold(self._each, self._pairs(values), "sum"))

    def mean(self, values: Any = None) -> Any:
        """The mean over each block."""
        total = _native.fold(self._each, self._pairs(values), "sum")
        return self._like(total / self.numel_per_block())

    def nnz(self) -> int:
        """How many elements are not zero."""
        return int(_native.fold(self._each, self._pairs(), "nnz").sum())

    def _number(self, block: Any) -> int:
        """A block's row-major number, from that or from its coordinate."""
        if isinstance(block, (tuple, list)):
            try:
                return int(np.ravel_multi_index(tuple(block), self.grid_shape))
            except ValueError:
                raise PruneError(f"there is no block {tuple(block)}; the grid is {self.grid_shape}") from None
        if not 0 <= int(block) < self.numblk():
            raise PruneError(f"there is no block {block}; there are {self.numblk()}")
        return int(block)

    def _grid_values(self, values: Any, what: str) -> np.ndarray:
        """One number for each block, from one for all or an array of the grid."""
        array = np.asarray(values.detach().cpu() if is_torch(values) else values)
        try:
            full = np.broadcast_to(array, self.grid_shape)
        except ValueError:
            raise PruneError(f"{what} has shape {array.shape}, the grid of blocks is {self.grid_shape}") from None
        return np.ascontiguousarray(full).reshape(-1)

    def get_masks(self, block_masks: Any) -> dict[BlockSpec, Any]:
        """A mask over blocks as a mask over elements, for each tensor in the
        shape of its view."""
        stays = self._grid_values(block_masks, "the mask").astype(bool)
        return self._element_masks(self._each, stays)

    def _element_masks(self, bound: BoundSpec, stays: np.ndarray) -> dict[BlockSpec, Any]:
        masks = _native.masks(bound, stays)
        return {
            spec: like(spec.view.param, np.ascontiguousarray(spec.view.of_tensor(mask)))
            for spec, mask in zip(self.specs, masks)
        }

    def apply_mask(self, mask: Any) -> None:
        """Writes zero to the blocks for which `mask` is true, in place."""
        self._clear(self._each, ~self._grid_values(mask, "the mask").astype(bool))

    def apply_multiplier(self, multiplier: Any) -> None:
        """Multiplies each block by its number, in place."""
        self._scale(self._grid_values(multiplier, "the multiplier").astype(np.float64))

    def hard_threshold(self, thresholds: Any, values: Any = None) -> None:
        """Writes zero to the blocks whose norm is below their threshold, in place.
        The norm is that of `values` where they are given."""
        norms = _native.fold(self._each, self._pairs(values), "norm", 2.0)
        limits = self._grid_values(thresholds, "the threshold").astype(np.float64)
        self._clear(self._each, norms >= limits)

    def soft_threshold(self, thresholds: Any) -> None:
        """Shrinks the norm of each block by its threshold, to zero where it is
        less: w <- w max(0, 1 - t/|w|), in place."""
        norms = _native.fold(self._each, self._pairs(), "norm", 2.0)
        limits = self._grid_values(thresholds, "the threshold").astype(np.float64)
        self._scale(shrinkage(norms, limits))

    def _clear(self, bound: BoundSpec, stays: np.ndarray) -> None:
        handles = [Handle(spec.view.param) for spec in self.specs]
        _native.clear(bound, [handle.pair for handle in handles], np.ascontiguousarray(stays))
        for handle in handles:
            handle.commit()

    def _scale(self, factors: np.ndarray) -> None:
        handles = [Handle(spec.view.param) for spec in self.specs]
        _native.scale(self._each, [handle.pair for handle in handles], factors)
        for handle in handles:
            handle.commit()


def shrinkage(norms: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """max(0, 1 - t/|w|), and 0 for a block of zeros."""
    if (limits < 0).any() or not np.isfinite(limits).all():
        raise PruneError("a threshold is negative or not finite; give numbers from 0 on")
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = 1.0 - limits / norms
    return np.where(norms > limits, factors, 0.0)


class BlockSpec(_Blocks):
    """Equal blocks over a view; each stays or goes whole.

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
        self._each = self._with_scope(text((1,) * self.view.ndim), 1)

    def _clauses(self) -> str:
        return f"{self.view.clause} block {text(self.shape)}"

    def _in_tensor(self, values: Any) -> Any:
        shape, own = tuple(values.shape), tuple(self.view.param.shape)
        if shape == own:
            return values
        if shape == self.view.shape:
            return self.view.to_tensor(values)
        raise PruneError(f"values have shape {shape}; give the tensor's {own} or the view's {self.view.shape}")

    def elements(self, block: Any) -> np.ndarray:
        """The row-major offsets of a block's elements in the tensor; the block by
        its number or its coordinate."""
        numbers = np.array([self._number(block)], np.int64)
        return _native.block_elements(self._each, numbers, 0)

    def indices(self, block: Any) -> tuple[np.ndarray, ...]:
        """The same as coordinates: `W[spec.indices(block)]` are its elements."""
        return np.unravel_index(self.elements(block), tuple(self.view.param.shape))

    def block_of(self, index: Any) -> tuple[int, ...]:
        """The coordinate of the block that an element of the tensor lies in; the
        element by its offset or its coordinate."""
        offset = index
        if isinstance(index, (tuple, list)):
            try:
                offset = int(np.ravel_multi_index(tuple(index), tuple(self.view.param.shape)))
            except ValueError:
                shape = tuple(self.view.param.shape)
                raise PruneError(f"there is no element {tuple(index)}; the tensor is {shape}") from None
        found = self._each.locate(int(offset))
        assert found is not None, "a view meets every element"
        return tuple(int(i) for i in np.unravel_index(found[0], self.grid_shape))

    def __repr__(self) -> str:
        return f"BlockSpec({text(self.shape)} over {self.view!r}, grid {self.grid_shape})"


class BlockCoupling(_Blocks):
    """Blocks of several tensors that stay or go together. `orders[i][k]` is the
    axis of tensor i's grid that is axis k of the common grid.

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
        self.orders = orders_of(self.specs, orders, [len(s.grid_shape) for s in self.specs])
        self.name = name
        self._each = self._with_scope(text((1,) * len(self.orders[0])), 1)

    def _clauses(self) -> str:
        members = (
            f"{name} perm {text(order)}: {spec._clauses()}"
            for name, spec, order in zip(self._names(), self.specs, self.orders)
        )
        return "blocks " + " & ".join(members)

    def elements(self, block: Any) -> list[np.ndarray]:
        """The row-major offsets of a block's elements, tensor after tensor."""
        numbers = np.array([self._number(block)], np.int64)
        return [_native.block_elements(self._each, numbers, t) for t in range(len(self.specs))]

    def __repr__(self) -> str:
        return f"BlockCoupling({len(self.specs)} tensors, grid {self.grid_shape})"


def orders_of(
    specs: Sequence[Any], orders: Sequence[Sequence[int]] | None, ranks: list[int]
) -> list[tuple[int, ...]]:
    """A permutation for each member; the identity where none is given."""
    if not specs:
        raise PruneError("a coupling needs at least one member")
    if orders is None:
        return [tuple(range(rank)) for rank in ranks]
    if len(orders) != len(specs):
        raise PruneError(f"{len(orders)} orders were given for {len(specs)} members")
    return [_dims(order, "an order") for order in orders]


AnyBlock = (BlockSpec, BlockCoupling)
