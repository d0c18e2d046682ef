"""Prunes neural networks to structured sparse patterns. A pattern is one line of text, and every method works
with every pattern.

>>> import numpy, openwork
>>> rng = numpy.random.default_rng(0)
>>> W = rng.standard_normal((8, 16), dtype="float32")
>>> X = rng.standard_normal((256, 16), dtype="float32")
>>> result = openwork.prune(W, "2:4", method="s-obs", inputs=X)
>>> result.density
0.5
"""

from ._language_model import LogLikelihood, Model
from ._model import prune_model
from ._native import (
    BoundSpec,
    Hessian,
    HessianError,
    MethodError,
    OpenworkError,
    PruneError,
    Spec,
    SpecError,
    __version__,
    methods,
    presets,
    set_threads,
)
from ._packing import pack_model, unpack_model
from ._prune import Pruned, prune
from ._recover import recover
from .block import BlockCoupling, BlockSpec
from .obs import StructuredOBS
from .scope import ScopeCoupling, ScopeSpec
from .view import View

__all__ = [
    "BlockCoupling",
    "BlockSpec",
    "BoundSpec",
    "Hessian",
    "HessianError",
    "LogLikelihood",
    "MethodError",
    "Model",
    "OpenworkError",
    "PruneError",
    "Pruned",
    "ScopeCoupling",
    "ScopeSpec",
    "Spec",
    "SpecError",
    "StructuredOBS",
    "View",
    "__version__",
    "methods",
    "pack_model",
    "presets",
    "prune",
    "prune_model",
    "recover",
    "set_threads",
    "unpack_model",
]
