"""`prune_model`: a model on disk by the Rust pipeline, one in memory by torch."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from . import _native
from ._native import OpenworkError

Progress = Callable[[dict[str, Any]], Any]
Function = TypeVar("Function", bound=Callable[..., Any])

# The options of a run, from the library's table: `openwork prune` has the same.
OPTIONS: dict[str, dict[str, Any]] = {option["name"]: option for option in _native.run_options()}

_TYPES = {"flag": "bool", "count": "int", "text": "str", "bytes": "str | int", "path": "str | os.PathLike[str]",
          "paths": "str | os.PathLike[str] | list[str | os.PathLike[str]]"}


def default(option: dict[str, Any]) -> Any:
    """The default of a keyword; None if the library computes it."""
    if option["kind"] == "flag":
        return False
    words = option["default"] or ""
    return int(words) if words.isdigit() else None


def with_options(function: Function) -> Function:
    """Gives a function with `**options` the keywords of a run, in its signature and its docstring."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    given = {parameter.name for parameter in parameters}
    lines = []
    for option in OPTIONS.values():
        lines.append(f"    {option['name']}: {option['help']}")
        if option["default"] is not None:
            lines[-1] += f" [default: {option['default']}]"
        if option["name"] in given:
            continue
        annotation = _TYPES[option["kind"]]
        if option["kind"] != "flag" and default(option) is None:
            annotation += " | None"
        parameters.append(inspect.Parameter(
            option["name"], inspect.Parameter.KEYWORD_ONLY, default=default(option), annotation=annotation
        ))
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions of a model on disk:\n\n" + "\n".join(lines)
    return function


@with_options
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
    """Prune a whole model, layer by layer, and return the record of the run.

    A path (a Hugging Face folder or a .gguf file) is pruned by the Rust pipeline and
    written to the folder `out`, which transformers loads as it is. `calib` is a text
    file (.txt, or .jsonl with a `text` field), and the options are those of
    `openwork prune`, listed below. A dry run returns the plan.

    A torch module of any architecture is pruned in place: its `nn.Linear`, `nn.Conv1d`
    and `nn.Conv2d` layers and its fused experts in the order in which they run, each on
    the inputs that the pruned layers before it produce, each expert on its own tokens.
    `calib` is a list of batches (a tensor, a tuple of arguments or a dict of keywords
    each), or, with `tokenizer=`, a text, a list of texts or a text file. Its options are
    tokenizer, samples, seq_len, single_tokens, seed, include, exclude, rules and
    allow_dense. On an error or Ctrl-C all weights are restored. `dense` of the result
    lists every parameter of two or more dimensions that stays dense, with the reason, and
    a warning names those that do neither by design nor by request; if these are more than
    half of the weights that might be pruned, the call fails unless allow_dense=True.

    progress: called with a dict for every event, with the keys of `openwork prune
        --events`; True for a tqdm bar, False for silence; by default a bar if stderr
        is a terminal.
    """
    if isinstance(model, (str, os.PathLike)):
        # Names on the Hub become the paths of their downloads.
        model, calib = _native.model_path(model), _native.text_path(calib)
        if options.get("eval") is not None:
            options["eval"] = _native.text_path(options["eval"])
        if options.get("task"):
            tasks = options["task"]
            tasks = [tasks] if isinstance(tasks, (str, os.PathLike)) else tasks
            options["task"] = [_native.text_path(task) for task in tasks]
        return on_disk(model, options | dict(out=out, spec=spec, method=method, calib=calib), progress)[0]
    with _Bar(progress) as tell:
        if out is not None:
            raise OpenworkError("out is for models on disk; a model in memory is pruned in place")
        if spec is None and not options.get("rules"):
            raise OpenworkError("no tensor would be pruned; give spec or rules")
        from ._torch_model import prune_module

        return prune_module(model, spec, method or _native.DEFAULT_METHOD, calib, tell, **options)


def on_disk(
    path: Any, options: dict[str, Any], progress: Progress | bool | None, executor: Any = None, flags: bool = False
) -> tuple[dict[str, Any], str]:
    """Prune a model on disk, in this process or by an executor: the record, and a summary."""
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"prune_model of a path has no option {name!r}; it has {', '.join(OPTIONS)}")
    if options.get("spec") is not None:
        options = options | dict(spec=str(options["spec"]))
    with _Bar(progress) as tell:
        if executor is not None:
            executor.tell = tell
        record, text = _native.prune_folder(os.fspath(path), options, tell, executor, flags)
        return json.loads(record), text


class _Bar:
    """Where events go: to the caller's function, to a tqdm bar, or nowhere."""

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
        kind = event["event"]
        if "layers" in event and kind != "cluster":
            self.bar.total = event["layers"]
        if kind == "start":
            self.bar.update(event["first"] - self.bar.n)
        elif kind == "progress":
            self.bar.set_description(f"{event['stage']} {event['layer']}")
        elif kind == "layer":
            self.bar.update(event["layer"] + 1 - self.bar.n)
        elif kind == "note":
            self.bar.write(f"note: {event['text']}")

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()
