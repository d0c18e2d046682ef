"""The command `python -m openwork.ray prune`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import ray

from . import _native
from ._native import OpenworkError
from .ray import prune_and_tell


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m openwork.ray",
        description="openwork on a Ray cluster: the flags of `openwork prune`, and the same bytes.",
    )
    prune = top.add_subparsers(dest="command", required=True).add_parser(
        "prune",
        help="prune a model layer by layer",
        epilog="Example: python -m openwork.ray prune smollm2.gguf --spec 2:4 --calib c4.jsonl --out pruned "
        "--address auto",
    )
    add = prune.add_argument
    add("model", metavar="MODEL", help="a Hugging Face folder or a .gguf file, at the same path on every node")
    add("--address", metavar="ADDRESS", help="a cluster to join, or auto [default: a new one on this machine]")
    add("--workers", type=int, metavar="N", help="workers [default: one for every node]")
    add("--worker-threads", type=int, metavar="N", help="threads of each [default: the CPUs of its node]")
    add("--spill-over", type=int, metavar="BYTES", help="hidden states a worker keeps in memory [default: all]")
    add("--spec", metavar="SPEC", help="the pattern of every linear that no rule of a recipe names")
    add("--method", metavar="METHOD", help="how to prune (see `openwork methods`) [default: admm]")
    add("--recipe", metavar="FILE", help="specs and methods by tensor, as a TOML file")
    add("--calib", required=True, metavar="TEXT", help="the text that inputs are measured on: .txt or .jsonl")
    add("--out", required=True, metavar="DIR", help="the folder to write; it must be empty or new")
    add("--samples", type=int, default=128, metavar="N", help="calibration windows [default: 128]")
    add("--seq-len", type=int, metavar="L", help="tokens in a calibration window [default: 1024 or the model's limit]")
    add("--single-tokens", "--starts", type=int, metavar="N", help="further windows of a single token [default: one for 16 tokens]")
    add("--seed", type=int, default=0, metavar="N", help="what draws the calibration windows [default: 0]")
    add("--include", metavar="RE", help="prune only tensors whose names match")
    add("--exclude", metavar="RE", help="leave tensors whose names match dense")
    add("--eval", metavar="TEXT", help="measure perplexity on this text, in this process")
    add("--eval-every", type=int, metavar="N", help="measure perplexity after every N layers too")
    add("--eval-tokens", type=int, metavar="N", help="use only the first N tokens of the evaluation text")
    add("--eval-seq-len", type=int, metavar="L", help="tokens in an evaluation window")
    add("--resume", action="store_true", help="go on with a run that was stopped, also by `openwork prune`")
    add("--force", action="store_true", help="overwrite what an earlier run left in DIR")
    add("--remove", action="store_true", help="leave pruned heads and channels out of the tensors")
    add("--dry-run", action="store_true", help="say what would be done, and what each worker needs; write nothing")
    add("--max-memory", metavar="BYTES", help="memory of one worker, for instance 4G; states go to files if need be")
    add("--dtype", metavar="TYPE", help="type of the written weights: bf16, f16 or f32")
    add("--sequential", nargs="?", const="on", default="off", choices=["on", "off"],
        help="capture inputs anew after each of a layer's four sites")
    add("--events", action="store_true", help="print a line of JSON on stderr for everything that happens")
    add("--threads", type=int, metavar="N", help="threads of this process [default: all cores]")
    add("--json", action="store_true", help="print exactly one JSON object on stdout")
    add("--quiet", action="store_true", help="no progress and no notes on stderr")
    return top


def _lines(event: dict[str, Any]) -> None:
    """Progress as lines on stderr."""
    kind = event["event"]
    if kind == "note":
        print(f"note: {event['text']}", file=sys.stderr)
    elif kind == "layer":
        print(
            f"layer {event['layer'] + 1} of {event['layers']}: error {event['error']:.4f}, {event['seconds']:.1f} s",
            file=sys.stderr,
        )
    elif kind == "cluster":
        seconds = ", ".join(f"{what} {spent:.1f} s" for what, spent in event["seconds"].items())
        moved = sum(event["bytes"].values()) / 1e6
        print(f"  {event['workers']} workers: {seconds}; {moved:.0f} MB moved", file=sys.stderr)
    elif kind == "evaluated":
        print(f"perplexity {event['token_perplexity']:.3f}", file=sys.stderr)


def _events(event: dict[str, Any]) -> None:
    """What the library does not print itself."""
    if event["event"] == "cluster":
        print(json.dumps(event), file=sys.stderr)


def main(given: list[str] | None = None) -> int:
    """The command; what was wrong with the input ends it with 2, what went wrong with 1."""
    asked = vars(_parser().parse_args(given))
    asked.pop("command")
    quiet, as_json, threads = (asked.pop(name) for name in ("quiet", "json", "threads"))
    asked["sequential"] = asked["sequential"] == "on"
    progress: Any = None if sys.stderr.isatty() else _lines
    if asked["events"]:
        progress = _events
    elif quiet:
        progress = False
    try:
        if threads is not None and not 1 <= threads <= 1024:
            raise OpenworkError(f"--threads {threads}: give a number from 1 to 1024")
        if threads is not None and not _native.set_threads(threads):
            raise RuntimeError(f"--threads {threads}: the threads of this process run already")
        record, text = prune_and_tell(asked.pop("model"), progress=progress, **asked)
    except OpenworkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, ray.exceptions.RayError, ConnectionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; what is done is kept, and --resume goes on from there", file=sys.stderr)
        return 130
    if as_json:
        print(json.dumps(record))
        return 0
    print(text, end="")
    for worker in (record.get("cluster") or {}).get("workers", []):
        rate = worker["tokens_per_second"]
        print(
            f"worker {worker['worker']} ({worker['host']}, {worker['threads']} threads): "
            f"{0 if rate is None else rate:.0f} tokens/s, {worker['jobs']} jobs in {worker['prune_seconds']:.1f} s"
        )
    if not asked["dry_run"]:
        print(f"written to {asked['out']}")
    return 0
