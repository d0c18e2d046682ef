"""`prune_model`: a model on disk by the Rust pipeline, one in memory by torch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from . import _native
from ._native import OpenworkError

Progress = Callable[[dict[str, Any]], Any]


def prune_model(
    model: Any,
    *,
    calib: Any,
    spec: str | None = None,
    method: str | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Prunes a whole model, layer by layer, and gives the record of it.

    A path (a Hugging Face folder or a .gguf file) is read and pruned by the Rust
    pipeline and written to the folder `out`, which transformers loads as it is:
    `calib` is a text file (.txt, or .jsonl with a `text` field); options are those
    of `openwork prune`: recipe, samples, seq_len, single_tokens, seed, include, exclude, eval,
    eval_every, eval_tokens, eval_seq_len, resume, force, remove, dtype, sequential,
    max_memory (as "4G"), dry_run (gives what would be done, and does nothing), events
    (a line of JSON on stderr for everything that happens), and spill (hidden states
    are kept in a file).

    A torch module of any architecture is pruned in place: its `nn.Linear`,
    `nn.Conv1d` and `nn.Conv2d` layers in the order in which they run, each on the
    inputs that the layers pruned before it give. `calib` is a list of batches (a
    tensor, a tuple of arguments or a dict of keywords each), or, with
    `tokenizer=`, a text, a list of texts or a text file; options: tokenizer,
    samples, seq_len, single_tokens, seed, include, exclude, rules, allow_dense. On an
    error or Ctrl-C all weights are restored. `dense` of the result lists every parameter of
    two or more dimensions that stays dense, and a note names them; if that is more
    than half of the weights and you did not exclude them, the call fails unless
    allow_dense=True.

    progress: called with a dict for everything that happens; True for a bar of
        tqdm, False for silence; by default a bar where there is a terminal.
    """
    if isinstance(model, (str, os.PathLike)):
        return on_disk(model, out, spec, method, calib, progress, options)[0]
    with _Bar(progress) as tell:
        if out is not None:
            raise OpenworkError("out is for models on disk; a model in memory is pruned in place")
        if spec is None and not options.get("rules"):
            raise OpenworkError("no tensor would be pruned; give spec or rules")
        from ._torch_model import prune_module

        return prune_module(model, spec, method or _native.DEFAULT_METHOD, calib, tell, **options)


_USUAL = dict(
    recipe=None, samples=128, seq_len=None, single_tokens=None, seed=0, include=None, exclude=None, eval=None, eval_every=None,
    eval_tokens=None, eval_seq_len=None, resume=False, force=False, remove=False, dtype=None, sequential=False,
    max_memory=None, dry_run=False, events=False, spill=False,
)


def on_disk(
    path: Any,
    out: Any,
    spec: Any,
    method: Any,
    calib: Any,
    progress: Progress | bool | None,
    options: dict[str, Any],
    executor: Any = None,
) -> tuple[dict[str, Any], str]:
    """A model on disk, by this process or by a executor: the record, and a text for a person."""
    if out is None:
        raise OpenworkError("a model on disk is written to a folder; give out")
    for name in options:
        if name not in _USUAL:
            raise TypeError(f"prune_model of a path has no option {name!r}; it has {', '.join(_USUAL)}")
    asked = _USUAL | options | dict(spec=None if spec is None else str(spec), method=method, calib=calib)
    asked["state_memory_limit"] = 0 if asked.pop("spill") else None
    asked["workers"] = None
    if asked["max_memory"] is not None:
        asked["max_memory"] = str(asked["max_memory"])
    with _Bar(progress) as tell:
        if executor is not None:
            executor.tell = tell
            asked |= executor.size()
        record, text = _native.prune_folder(os.fspath(path), os.fspath(out), asked, tell, executor)
        return json.loads(record), text


class _Bar:
    """Who hears of progress: the caller's function, a bar of tqdm, or nobody."""

    def __init__(self, progress: Progress | bool | None) -> None:
        self.progress = progress
        self.bar: Any = None

    def __enter__(self) -> Progress | None:
        if callable(self.progress):
            return self.progress
        wanted = sys.stderr.isatty() if self.progress is None else self.progress
        if not wanted:
            return None
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return None
        self.bar = tqdm(unit="layer")
        return self._show

    def _show(self, event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            self.bar.total = event["layers"]
            self.bar.set_description(f"{event['stage']} {event['layer']}")
        elif event["event"] == "layer":
            self.bar.total = event["layers"]
            self.bar.update(event["layer"] + 1 - self.bar.n)
        elif event["event"] == "note":
            self.bar.write(f"note: {event['text']}")

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()
