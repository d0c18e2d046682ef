"""The paper's last page, as printed but for the import, for its four patterns."""

import numpy as np
import pytest
from conftest import as_kind, to_numpy

import openwork

LISTING = {
    "2:4": """
from openwork import View, BlockSpec, ScopeSpec, StructuredOBS

# 2:4 sparsity  (W: M x K, keep 2 of 4 consecutive columns)
v     = View.from_existing(W)
block = BlockSpec(v, shape=(1, 1))
part = ScopeSpec(block, shape=(1, 4))
""",
    "2:4x2": """
from openwork import View, BlockSpec, ScopeSpec, StructuredOBS

# 4:8 sparsity  (2-column blocks, keep 2 of 4 blocks)
v     = View.from_existing(W)
block = BlockSpec(v, shape=(1, 2))
part = ScopeSpec(block, shape=(1, 4))
""",
    "2:4@8": """
from openwork import View, BlockSpec, ScopeSpec, StructuredOBS

# Coupled 2:4  (pair columns 8 apart within each 16-col segment)
v     = View(W, shape=(M, K//16, 8, 2), stride=(K, 16, 1, 8))
block = BlockSpec(v, shape=(1, 1, 1, 2))
part = ScopeSpec(block, shape=(1, 1, 4, 1))
""",
    "rows16": """
from openwork import View, BlockSpec, ScopeSpec, StructuredOBS

# 16-column block  (rows 8 apart share one column mask)
v     = View(W, shape=(8, 2, K), stride=(K, 8*K, 1))
block = BlockSpec(v, shape=(1, 1, 16))
part = ScopeSpec(block, shape=(1, 2, 1))
""",
}

PRUNING = """
# Pruning: same call for all patterns
H   = (X.T @ X) / X.shape[0]          # empirical Hessian (K x K)
obs = StructuredOBS(part, H)
obs.prune_true_obs(nnz=k)              # in-place, writes through View
"""

M, K = 16, 64


@pytest.mark.parametrize("pattern", LISTING)
def test_the_listing_runs_as_printed(pattern, kind, rng):
    start = rng.standard_normal((M, K)).astype("float32")
    x = rng.standard_normal((512, K)).astype("float32") @ rng.standard_normal((K, K)).astype("float32")
    W = as_kind(start, kind)
    start = to_numpy(W).astype("float32")
    X = x if kind.startswith("numpy") else as_kind(x, "torch-float32")
    scope = dict(W=W, X=X, M=M, K=K, k=1 if pattern == "rows16" else 2)
    exec(LISTING[pattern] + PRUNING, scope)

    # W itself was written to, and is what `prune` makes of the preset.
    pruned = to_numpy(W)
    assert (pruned == 0).mean() == 0.5
    bound = openwork.Spec.parse(pattern).bind((M, K))
    assert bound.breach(W) is None
    same = openwork.prune(start, pattern, "s-obs", hessian=x.T @ x / len(x), inplace=False)
    assert ((pruned != 0) == same.mask).all()
    near = 1e-4 if "float32" in kind or "parameter" in kind or "64" in kind else 2e-2
    np.testing.assert_allclose(pruned, same.weights, rtol=near, atol=near)
    # It beats dropping the same weights without mending the others.
    error = lambda d: np.einsum("ij,jk,ik->", d, x.T.astype("float64") @ x, d)
    assert error(pruned - start) < error(start * same.mask - start)


def test_where_the_paper_is_wrong_the_error_says_so():
    # The 16-column view covers 16 rows only.
    W = np.zeros((32, 64), "float32")
    with pytest.raises(openwork.SpecError, match="offset 1024") as caught:
        openwork.View(W, shape=(8, 2, 64), stride=(64, 8 * 64, 1))
    assert isinstance(caught.value, ValueError)
    # The view of the paper's section 4 misses 1,536 of 4,096 elements.
    with pytest.raises(openwork.SpecError, match="twice|miss"):
        openwork.View(np.zeros((64, 64), "float32"), (4, 4, 16, 16), (512, 16, 64, 1))


def test_a_view_that_does_not_fit_is_refused():
    W = np.zeros((4, 10), "float32")
    with pytest.raises(openwork.SpecError, match="not a multiple of 4; pad it or narrow the domain"):
        openwork.BlockSpec(W, (1, 4))
    with pytest.raises(openwork.SpecError, match="does not divide the grid of blocks"):
        openwork.ScopeSpec(openwork.BlockSpec(W, (1, 1)), (1, 4))
    part = openwork.ScopeSpec(openwork.BlockSpec(W, (1, 1)), (1, 5))
    with pytest.raises(openwork.SpecError, match="keep is 6, but a scope has"):
        part.hard_threshold(nnz=6)
    with pytest.raises(openwork.HessianError, match="H is 8 x 8, but the weights have 10 columns"):
        openwork.StructuredOBS(part, np.eye(8)).prune_true_obs(nnz=1)
    with pytest.raises(TypeError):
        openwork.StructuredOBS(part, np.eye(10)).prune_true_obs(nnz=1, scorng="joint")
    with pytest.raises(openwork.PruneError, match="a View needs a numpy array or a torch tensor"):
        openwork.View.from_existing([1.0, 2.0])
