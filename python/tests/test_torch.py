"""Torch tensors and Parameters: written through, whatever they are."""

import numpy as np
import pytest

import openwork

torch = pytest.importorskip("torch")


def test_a_parameter_is_pruned_where_it_lies():
    torch.manual_seed(0)
    layer = torch.nn.Linear(32, 16)
    weight, pointer = layer.weight, layer.weight.data_ptr()
    x = torch.randn(400, 32)
    result = openwork.prune(layer.weight, "2:4", "s-obs", inputs=x)
    assert layer.weight is weight and weight.data_ptr() == pointer and weight.requires_grad
    assert (weight == 0).float().mean() == 0.5
    assert isinstance(result.mask, torch.Tensor) and result.mask.dtype == torch.bool
    assert torch.equal(weight != 0, result.mask)
    # It still learns.
    layer(x).square().mean().backward()
    assert weight.grad is not None


def test_autograd_notices_the_change():
    w = torch.nn.Parameter(torch.randn(4, 8))
    out = (w * w).sum()
    openwork.prune(w, "2:4", "magnitude")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types_round_to_the_nearest_and_keep_unchanged_bits(dtype):
    torch.manual_seed(1)
    w = torch.randn(16, 32).to(dtype)
    old = w.clone()
    openwork.prune(w, "2:4", "magnitude")
    assert torch.equal(w[w != 0], old[w != 0]) and (w == 0).float().mean() == 0.5
    w = old.clone()
    x = torch.randn(300, 32)
    result = openwork.prune(w, "2:4", "s-obs", inputs=x)
    wide = openwork.prune(old.float(), "2:4", "s-obs", inputs=x)
    assert torch.equal(w, torch.where(wide.weights == old.float(), old, wide.weights.to(dtype)))
    assert result.error == pytest.approx(wide.error)
    short = openwork.prune(old, "2:4", "s-obs", inputs=x.to(dtype), inplace=False)
    assert short.weights.dtype == dtype and (old != 0).all()


def test_views_into_a_larger_tensor_are_written_through():
    torch.manual_seed(2)
    big = torch.randn(64, 24)
    for part in (big.t(), big[:, 8:16], big[::2], big[3:7]):
        part.copy_(torch.randn(part.shape))
        outside = big.clone()
        want = openwork.prune(part.clone(), "1:2", "magnitude", inplace=False).weights
        openwork.prune(part, "1:2", "magnitude")
        assert torch.equal(part, want)
        part.zero_()
        outside_now, changed = big.clone(), torch.zeros_like(big, dtype=torch.bool)
        openwork_view = part  # the same memory
        openwork_view.fill_(1.0)
        changed = big != outside_now
        assert torch.equal(big[~changed], outside[~changed])


def test_tensors_without_numbers_are_refused():
    with pytest.raises(openwork.PruneError, match="meta"):
        openwork.prune(torch.empty(4, 8, device="meta"), "2:4", "magnitude")
    with pytest.raises(openwork.PruneError, match="only dense tensors"):
        openwork.prune(torch.eye(4).to_sparse(), "2:4", "magnitude")
    with pytest.raises(openwork.PruneError, match="tensors of type int64"):
        openwork.prune(torch.ones(4, 8, dtype=torch.long), "2:4", "magnitude")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="SKIPPED: this machine has no CUDA device")
def test_a_tensor_elsewhere_is_copied_there_and_back():
    w = torch.randn(4, 8, device="cuda")
    result = openwork.prune(w, "2:4", "magnitude")
    assert (w == 0).float().mean() == 0.5 and "copied to the CPU and back" in result.notes[-1]


def test_numpy_and_torch_give_the_same_bits():
    rng = np.random.default_rng(3)
    w, x = rng.standard_normal((16, 32)).astype("float32"), rng.standard_normal((300, 32)).astype("float32")
    a = openwork.prune(w, "2:4@8", "admm+swap", inputs=x, inplace=False)
    b = openwork.prune(torch.from_numpy(w), "2:4@8", "admm+swap", inputs=torch.from_numpy(x), inplace=False)
    np.testing.assert_array_equal(a.weights, b.weights.numpy())
