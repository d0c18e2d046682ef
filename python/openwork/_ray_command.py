"""The command `python -m openwork.ray prune`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import ray

from . import _native
from ._native import OpenworkError
from ._model import OPTIONS
from .ray import prune_with_summary


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
    prune.add_argument(
        "model", metavar="MODEL", help="a Hugging Face folder or a .gguf file, at the same path on every node"
    )
    cluster = prune.add_argument_group("Cluster")
    cluster.add_argument("--address", help="a cluster to join, or auto [default: a new one on this machine]")
    cluster.add_argument("--workers", type=int, metavar="N", help="number of workers [default: one per node]")
    cluster.add_argument(
        "--worker-threads", type=int, metavar="N", help="threads per worker [default: the CPUs of its node]"
    )
    groups: dict[str, Any] = {}
    for option in OPTIONS.values():
        if option["group"] not in groups:
            groups[option["group"]] = prune.add_argument_group(option["group"])
        _add(groups[option["group"]], option)
    output = prune.add_argument_group("Global options")
    output.add_argument("--threads", type=int, metavar="N", help="threads of this process [default: all cores]")
    output.add_argument("--json", action="store_true", help="print exactly one JSON object on stdout")
    output.add_argument("--quiet", action="store_true", help="no progress and no notes on stderr")
    return top


def _add(group: Any, option: dict[str, Any]) -> None:
    """Adds the flag of an option, and hides its other names."""
    text = option["help"] if option["default"] is None else f"{option['help']} [default: {option['default']}]"
    how: dict[str, Any] = dict(dest=option["name"], default=argparse.SUPPRESS)
    if option["kind"] == "flag" and not option["value"]:
        how |= dict(action="store_true")
    elif option["kind"] == "flag":
        how |= dict(nargs="?", const="on", choices=["on", "off"], metavar=option["value"])
    elif option["kind"] == "paths":
        how |= dict(action="append", metavar=option["value"])
    else:
        how |= dict(type=int if option["kind"] == "count" else str, metavar=option["value"])
    flags = [f"--{option['flag']}"] + ([f"-{option['short']}"] if option["short"] else [])
    # Every name is a flag of its own: required ones are checked by the library.
    group.add_argument(*flags, help=text.replace("%", "%%"), **how)
    for alias in option["aliases"]:
        group.add_argument(f"--{alias}", help=argparse.SUPPRESS, **how)


def _lines(event: dict[str, Any]) -> None:
    """Progress as lines on stderr."""
    kind = event["event"]
    if kind == "note":
        print(f"note: {event['text']}", file=sys.stderr)
    elif kind == "layer":
        print(
            f"layer {event['layer']}: decoder error {event['decoder_error']:.4f}, {event['seconds']:.1f} s",
            file=sys.stderr,
        )
    elif kind == "cluster":
        seconds = ", ".join(f"{what} {spent:.1f} s" for what, spent in event["seconds"].items())
        moved = sum(event["bytes"].values()) / 1e6
        print(f"  {event['workers']} workers: {seconds}; {moved:.0f} MB moved", file=sys.stderr)
    elif kind == "recovered":
        print(
            f"{event['stage']}: held-out loss {event['before']:.4f} to {event['after']:.4f}, {event['seconds']:.1f} s",
            file=sys.stderr,
        )
    elif kind == "evaluated":
        print(f"perplexity {event['token_perplexity']:.3f}", file=sys.stderr)


def _events(event: dict[str, Any]) -> None:
    """What the library does not print itself."""
    if event["event"] == "cluster":
        print(json.dumps(event), file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; exit code 2 if the input is wrong, 1 if the run fails."""
    options = vars(_parser().parse_args(arguments))
    options.pop("command")
    quiet, as_json, threads = (options.pop(name) for name in ("quiet", "json", "threads"))
    progress: Any = None if sys.stderr.isatty() else _lines
    if options.get("events"):
        progress = _events
    elif quiet:
        progress = False
    try:
        if threads is not None and not 1 <= threads <= 1024:
            raise OpenworkError(f"--threads {threads}: give a number from 1 to 1024")
        if threads is not None and not _native.set_threads(threads):
            raise RuntimeError(f"--threads {threads}: the threads of this process run already")
        record, text = prune_with_summary(options.pop("model"), progress=progress, flags=True, **options)
    except OpenworkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, ray.exceptions.RayError, ConnectionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; finished layers are kept, and --resume continues from there", file=sys.stderr)
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
            + (f", {worker['windows']} windows in {worker['train_seconds']:.1f} s" if worker["windows"] else "")
        )
    if not options.get("dry_run"):
        print(f"written to {options['out']}")
    return 0
