"""Blocks and scopes against brute force in numpy."""

import numpy as np
import pytest
from conftest import as_kind, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from openwork import BlockCoupling, BlockSpec, PruneError, ScopeCoupling, ScopeSpec, View

PATTERNS = {
    "2:4": lambda W: ScopeSpec(BlockSpec(W, (1, 1)), (1, 4)),
    "coupled": lambda W: ScopeSpec(
        BlockSpec(View(W, (W.shape[0], W.shape[1] // 16, 8, 2), (W.shape[1], 16, 1, 8)), (1, 1, 1, 2)),
        (1, 1, 4, 1),
    ),
    "tiles": lambda W: ScopeSpec(BlockSpec(W, (2, 4)), (1,)),
    "whole": lambda W: ScopeSpec(BlockSpec(W, (1, 2)), (W.shape[0], W.shape[1] // 2)),
}


def element_lists(part):
    """The offsets of every block, by scope, from the index utilities."""
    block = part.block
    return [
        [block.elements(b) for b in part.blocks(s)]
        for s in range(part.numscp())
    ]


def brute(part, w, nnz):
    """Keeps the nnz blocks of largest norm, ties to the lower index."""
    out = w.copy().reshape(-1)
    for scope in element_lists(part):
        norms = np.array([np.sum(w.reshape(-1)[e].astype("float64") ** 2) for e in scope])
        for b in np.argsort(-norms, kind="stable")[nnz:]:
            out[scope[b]] = 0
    return out.reshape(w.shape)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(sorted(PATTERNS)), st.integers(0, 4))
def test_hard_threshold_is_brute_force_also_with_ties(seed, pattern, nnz):
    rng = np.random.default_rng(seed)
    w = rng.integers(-2, 3, (4, 32)).astype("float32")  # many ties
    W = w.copy()
    part = PATTERNS[pattern](W)
    part.hard_threshold(nnz=nnz)
    np.testing.assert_array_equal(W, brute(part, w, nnz))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(sorted(PATTERNS)), st.sampled_from([0, 1, 2, 3, np.inf]))
def test_reductions_are_brute_force(seed, pattern, p):
    W = np.random.default_rng(seed).standard_normal((4, 32)).astype("float32")
    block = PATTERNS[pattern](W).block
    each = [W.reshape(-1)[block.elements(b)].astype("float64") for b in range(block.numblk())]
    close = lambda got, want: np.testing.assert_allclose(got.reshape(-1), want, rtol=1e-5, atol=1e-6)
    close(block.norms(p=p), [np.linalg.norm(e, p) for e in each])
    close(block.min(), [e.min() for e in each])
    close(block.max(), [e.max() for e in each])
    close(block.sum(), [e.sum() for e in each])
    close(block.mean(), [e.mean() for e in each])
    assert block.norms().shape == block.grid_shape


@pytest.mark.parametrize("pattern", PATTERNS)
def test_index_utilities_are_inverse(pattern):
    W = np.arange(128, dtype="float32").reshape(4, 32)
    part = PATTERNS[pattern](W)
    block = part.block
    met = []
    for b in range(block.numblk()):
        at = tuple(int(i) for i in np.unravel_index(b, block.grid_shape))
        for e in block.elements(at):
            assert block.block_of(int(e)) == at
            met.append(int(e))
        np.testing.assert_array_equal(W[block.indices(b)], block.elements(b))
        assert at in part.blocks(part.scope_of(at))
    assert sorted(met) == list(range(128))
    with pytest.raises(PruneError, match="does not exist; there are"):
        block.elements(block.numblk())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_are_what_stays(pattern, rng):
    W = rng.standard_normal((4, 32)).astype("float32")
    part = PATTERNS[pattern](W)
    (spec, mask), = part.get_masks(nnz=2).items()
    assert spec is part.block and mask.shape == spec.view.shape and mask.dtype == bool
    kept = spec.view.data * mask
    part.hard_threshold(nnz=2)
    np.testing.assert_array_equal(spec.view.data, kept)
    # By other values, and by scores in the grid's shape.
    values = rng.standard_normal((4, 32)).astype("float32")
    by_values = part.get_masks(nnz=1, values=values)[spec]
    by_scores = part.get_masks(nnz=1, block_scores=spec.norms(values))[spec]
    np.testing.assert_array_equal(by_values, by_scores)


def test_thresholds_in_place_on_every_kind(kind, rng):
    w = rng.standard_normal((4, 32)).astype("float32")
    W = as_kind(w, kind)
    pointer = W.ctypes.data if isinstance(W, np.ndarray) else W.data_ptr()
    w = to_numpy(W).astype("float32")
    part = ScopeSpec(BlockSpec(W, (1, 2)), (1, 4))
    part.hard_threshold(nnz=2)
    np.testing.assert_array_equal(to_numpy(W), brute(part, w, 2))
    assert pointer == (W.ctypes.data if isinstance(W, np.ndarray) else W.data_ptr())
    assert part.block.nnz() == 64


def test_soft_threshold_shrinks_norms(rng):
    w = rng.standard_normal((4, 32)).astype("float32")
    W = w.copy()
    part = ScopeSpec(BlockSpec(W, (1, 2)), (1, 4))
    before = part.block.norms()
    part.block.soft_threshold(0.5)
    np.testing.assert_allclose(part.block.norms(), np.maximum(before - 0.5, 0), atol=1e-6)
    W[...] = w
    part.soft_threshold(np.full(part.grid_shape, 0.5))
    np.testing.assert_allclose(part.block.norms(), np.maximum(before - 0.5, 0), atol=1e-6)
    W[...] = w
    part.soft_threshold(nnz=2)
    assert ((part.block_norms() > 0).sum(-1) == 2).all()
    with pytest.raises(PruneError, match="thresholds must be finite and not negative"):
        part.soft_threshold(-1.0)
    with pytest.raises(PruneError, match="give either nnz or thresholds"):
        part.hard_threshold()


def test_couplings_decide_together(rng):
    up, gate = (rng.standard_normal((8, 4)).astype("float32") for _ in range(2))
    down = rng.standard_normal((4, 8)).astype("float32")
    specs = [BlockSpec(up, (1, 4)), BlockSpec(gate, (1, 4)), BlockSpec(down, (4, 1))]
    both = BlockCoupling(specs, [(0, 1), (0, 1), (1, 0)])
    want = np.sqrt((up**2).sum(1) + (gate**2).sum(1) + (down**2).sum(0))
    np.testing.assert_allclose(both.norms().reshape(-1), want, rtol=1e-6)
    part = ScopeSpec(both, (4, 1))
    masks = part.get_masks(nnz=2)
    assert [masks[s].shape for s in specs] == [(8, 4), (8, 4), (4, 8)]
    part.hard_threshold(nnz=2)
    keep = np.zeros(8, bool)
    for half in (0, 4):
        keep[half + np.argsort(-want[half : half + 4])[:2]] = True
    for rows in (up, gate, down.T):
        np.testing.assert_array_equal((rows != 0).all(1), keep)
        np.testing.assert_array_equal((rows != 0).any(1), keep)
    with pytest.raises(ValueError, match="cannot be coupled"):
        BlockCoupling([BlockSpec(up, (1, 4)), BlockSpec(down, (1, 4))])


def test_scopes_of_several_tensors_compete(rng):
    a, b = rng.standard_normal((6, 4)).astype("float32"), rng.standard_normal((6, 8)).astype("float32")
    parts = [ScopeSpec(BlockSpec(a, (1, 1)), (1, 4)), ScopeSpec(BlockSpec(b, (1, 2)), (1, 4))]
    both = ScopeCoupling(parts)
    assert both.numblk_per_scope() == 8
    norms = np.concatenate([np.abs(a), np.sqrt((b.reshape(6, 4, 2) ** 2).sum(-1))], 1)
    top = np.sort(norms, 1)[:, -3:-2]
    scores = {p.block: p.block.norms() for p in parts}
    by_scores = both.get_masks(nnz=3, block_scores=scores)
    both.hard_threshold(nnz=3)
    np.testing.assert_array_equal(a != 0, norms[:, :4] >= top)
    np.testing.assert_array_equal((b != 0)[:, ::2], norms[:, 4:] >= top)
    np.testing.assert_array_equal(by_scores[parts[1].block], b != 0)


def test_memory_that_is_not_contiguous_is_written_through(rng):
    big = rng.standard_normal((64, 8)).astype("float32")
    for W in (big.T, big[::2, :].T, big.T[:, ::-1]):
        w = np.ascontiguousarray(W)
        part = ScopeSpec(BlockSpec(W, (1, 1)), (1, 4))
        part.hard_threshold(nnz=2)
        np.testing.assert_array_equal(W, brute(part, w, 2))
        assert View.from_existing(W).data.shape == W.shape
        big[...] = rng.standard_normal((64, 8))


def test_numbers_that_cannot_be_are_refused():
    W = np.ones((2, 4), "float32")
    W[1, 2] = np.nan
    part = ScopeSpec(BlockSpec(W, (1, 1)), (1, 4))
    with pytest.raises(PruneError, match="has NaN in row 1, column 2; every weight must be finite"):
        part.hard_threshold(nnz=2)
    with pytest.raises(PruneError, match="tensors of type int64 cannot be pruned"):
        ScopeSpec(BlockSpec(np.ones((2, 4), int), (1, 1)), (1, 4)).hard_threshold(nnz=2)
    fixed = np.ones((2, 4), "float32")
    fixed.flags.writeable = False
    with pytest.raises(PruneError, match="the array is read-only"):
        ScopeSpec(BlockSpec(fixed, (1, 1)), (1, 4)).hard_threshold(nnz=2)
