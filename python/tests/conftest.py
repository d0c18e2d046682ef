"""Shared cases: one weight matrix and its inputs, as numpy and as torch."""

import os
import sys

import numpy as np
import pytest

if os.environ.get("OPENWORK_NO_TORCH"):
    sys.modules["torch"] = None  # as if it were not installed


def as_kind(array, kind):
    """An array as a numpy array or a torch tensor of a type."""
    if kind.startswith("numpy"):
        return array.astype(kind.split("-")[1])
    torch = pytest.importorskip("torch")
    name = kind.split("-")[1]
    tensor = torch.from_numpy(array.astype("float32")).clone()
    if name == "parameter":
        return torch.nn.Parameter(tensor)
    return tensor.to(getattr(torch, name))


def to_numpy(tensor):
    """Numbers of either library as float64."""
    if isinstance(tensor, np.ndarray):
        return tensor.astype("float64")
    return tensor.detach().double().cpu().numpy()


KINDS = [
    "numpy-float32", "numpy-float16", "numpy-float64",
    "torch-float32", "torch-bfloat16", "torch-float16", "torch-parameter",
]


@pytest.fixture(params=KINDS)
def kind(request):
    if request.param.startswith("torch"):
        pytest.importorskip("torch")
    return request.param


@pytest.fixture
def rng():
    return np.random.default_rng(7)
