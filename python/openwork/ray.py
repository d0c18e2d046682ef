"""The same run on a Ray cluster: `python -m openwork.ray prune MODEL ..`.

Workers hold the hidden states of chunks of windows and compute the stages that
`openwork prune` computes on one machine. In recovery, this process trains layers, and
workers compute the windows of a batch when the whole model is trained. Sums are merged in
the order of the chunks, gradients in the order of the windows, so the result has the same
bytes for any number of workers.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import ray

from . import __version__, _native
from ._model import Progress, on_disk, with_options
from ._native import OpenworkError

__all__ = ["prune_model"]

# Seconds until a new worker must have answered.
PATIENCE = 60.0
# Chunks or windows of each worker that are submitted ahead of the one that is awaited.
AHEAD = 2

_DEAD = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.NodeDiedError)


@with_options
def prune_model(
    model: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    calib: str | os.PathLike[str],
    spec: str | None = None,
    method: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    worker_threads: int | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Prune a model on disk by the workers of a Ray cluster, and return the record.

    Options are those of `openwork.prune_model` for a path. The model must be at the
    same path on every node; `out` is written by this process alone. `max_memory` and
    `spill_over` apply to each worker.

    address: a cluster to join, or "auto"; by default the one this process has
        joined, or a new one on this machine.
    workers: number of workers, by default one per node.
    worker_threads: threads per worker, by default the CPUs of its node.
    """
    return prune_with_summary(
        model, out=out, calib=calib, spec=spec, method=method, address=address, workers=workers,
        worker_threads=worker_threads, progress=progress, **options,
    )[0]


def prune_with_summary(
    model: Any,
    *,
    address: str | None = None,
    workers: int | None = None,
    worker_threads: int | None = None,
    progress: Progress | bool | None = None,
    flags: bool = False,
    **options: Any,
) -> tuple[dict[str, Any], str]:
    """As `prune_model`: the record, and a summary as text. Errors name flags instead of keywords if asked to."""
    with _joined(address), _RayExecutor(workers, worker_threads) as executor:
        return on_disk(model, options, progress, executor, flags)


@contextlib.contextmanager
def _joined(address: str | None) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    # Without "local" Ray would join a cluster that happens to run on this machine.
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    started: dict[str, Any] = dict(include_dashboard=False) if address == "local" else {}
    ray.init(address=address, **started, log_to_driver=False, logging_level=logging.WARNING)
    try:
        yield
    finally:
        ray.shutdown()


class _Worker:
    """One worker: an actor around `Steps`."""

    def __init__(self, threads: int) -> None:
        _native.set_threads(threads)
        self.worker: Any = None
        self.trainer: Any = None
        # The files of a model, until it is open.
        self.folder = ""
        # Of the weights that the trainer has.
        self.version = -1

    def hello(self) -> dict[str, Any]:
        return dict(
            version=__version__,
            node=ray.get_runtime_context().get_node_id()[:8],
            host=platform.node(),
            machine=f"{platform.machine()} {_native.instructions()}",
            pid=os.getpid(),
        )

    def start(self, setup: dict[str, Any], shapes: list[tuple[int, int]], spill: bool) -> list[tuple[str, str]]:
        folder = tempfile.gettempdir() if spill else None
        self.trainer = None
        self.worker = _native.StageWorker(setup["model"], setup["dtype"], shapes, folder)
        return self.worker.files()

    def embed(self, chunk: int, windows: Any) -> None:
        self.worker.embed(chunk, windows)

    def capture(self, chunk: int, *call: Any) -> Any:
        return self._timed(self.worker.capture, chunk, *call)

    def advance(self, chunk: int, layer: int) -> Any:
        return self._timed(self.worker.advance, chunk, layer)

    def work(self, layer: int, job: str) -> Any:
        return self._timed(self.worker.work, layer, job)

    def share(self, hessians: dict[str, Any]) -> None:
        self.worker.share(list(hessians.items()))

    def changed(self, layer: int, parameters: Any) -> None:
        self.worker.changed(layer, parameters)

    def receive(self, name: str, data: Any) -> None:
        """A file of the model that is trained: it may be on the driver's node only."""
        self.folder = self.folder or tempfile.mkdtemp(prefix="openwork-")
        data.tofile(os.path.join(self.folder, name))

    def train(self, setup: dict[str, Any], windows: Any, held_out: Any) -> list[tuple[str, str]]:
        self.worker, self.version = None, -1
        folder, self.folder = self.folder, ""
        try:
            self.trainer = _native.TrainingWorker(
                (folder, setup["dtype"]), (setup["reference"], setup["reference_dtype"]), setup["stage"],
                windows, held_out, tempfile.gettempdir(), setup["state_memory_limit"],
            )
        finally:
            # Its files stay mapped.
            shutil.rmtree(folder, ignore_errors=True)
        return self.trainer.files()

    def window(self, version: int, weights: Any, window: int, gradients: bool) -> Any:
        if version != self.version:
            self.trainer.receive(weights)
            self.version = version
        if gradients:
            return self._timed(self.trainer.gradients, window)
        return self._timed(lambda: (self.trainer.loss(window), None))

    def _timed(self, call: Callable[..., Any], *given: Any) -> tuple[Any, float]:
        start = time.perf_counter()
        return call(*given), time.perf_counter() - start


class _WorkerHandle:
    """A worker as the driver knows it."""

    def __init__(self, actor: Any, about: dict[str, Any]) -> None:
        self.actor = actor
        self.about = about
        self.chunks: set[int] = set()
        self.forward = self.prune = self.train = 0.0
        self.tokens = self.jobs = self.windows = 0

    def record(self) -> dict[str, Any]:
        rate = self.tokens / self.forward if self.forward else None
        return self.about | dict(
            tokens=self.tokens, forward_seconds=self.forward, tokens_per_second=rate, jobs=self.jobs,
            prune_seconds=self.prune, windows=self.windows, train_seconds=self.train,
        )


class _RayExecutor:
    """Computes the stages of a run on workers. The run itself is in the library, which
    calls the methods without an underscore."""

    def __init__(self, workers: int | None, threads: int | None) -> None:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        cpus = [int(node["Resources"].get("CPU", 0)) for node in nodes]
        self.count = workers or max(1, sum(1 for n in cpus if n > 0))
        usual = max(1, min((n for n in cpus if n > 0), default=1))
        if workers and not threads:
            usual = max(1, sum(cpus) // workers)
        self.threads = threads or usual
        self.members: list[_WorkerHandle] = []
        self.gone: list[dict[str, Any]] = []
        self.started = 0
        self.setup: dict[str, Any] = {}
        self.chunks: list[Any] = []
        self.shapes: list[tuple[int, int]] = []
        # Finished layers, the current one, and what a new worker must be told about it.
        self.done, self.layer = 0, -1
        self.log: list[tuple[str, tuple[Any, ...]]] = []
        self.hessians: Any = None
        # The training of the whole model in progress: its setup, windows and held-out windows.
        self.training: tuple[dict[str, Any], Any, Any] | None = None
        self.version = 0
        self.layers: list[dict[str, Any]] = []
        self.stages: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.tell: Progress | None = None
        self.stopped = False

    def __enter__(self) -> _RayExecutor:
        return self

    def __exit__(self, *_: Any) -> None:
        for member in self.members:
            ray.kill(member.actor)

    # Called by the run.

    def size(self) -> tuple[int, int]:
        """Workers, and threads of each."""
        return self.count, self.threads

    def stop(self) -> None:
        """From another thread: ends the wait for workers."""
        self.stopped = True

    def start(self, setup: dict[str, Any], chunks: list[Any]) -> None:
        self.setup = setup
        self.training = None
        self.chunks = [ray.put(windows) for windows in chunks]
        self.shapes = [windows.shape for windows in chunks]
        self._muster()
        embedded = []
        for chunk in range(len(chunks)):
            member = self.members[chunk % len(self.members)]
            member.chunks.add(chunk)
            embedded.append((member.actor.embed.remote(chunk, self.chunks[chunk]), member))
        for ref, member in embedded:
            with contextlib.suppress(_Lost):
                self._get(ref, member)

    def capture(self, layer: int, begin: bool, attend: bool, sites: list[str]) -> Iterator[Any]:
        self._enter(layer)
        at, waited, moved = time.perf_counter(), 0.0, 0
        call = (layer, begin, attend, sites)
        results = self._each("capture", call)
        while True:
            before = time.perf_counter()
            try:
                sums = next(results)
            except StopIteration:
                break
            waited += time.perf_counter() - before
            moved += sum(part.nbytes for _, parts in sums for part in parts[4:])
            yield sums
        self.log.append(("capture", call))
        self._spent("forward", waited)
        self._spent("reduce", time.perf_counter() - at - waited)
        self._moved("partial_sums", moved)

    def share(self, layer: int, hessians: dict[str, Any]) -> None:
        at = time.perf_counter()
        self.hessians = ray.put(hessians)
        self._all("share", self.hessians)
        size = sum(part.nbytes for packed in hessians.values() for part in packed[3:])
        self._moved("hessians", size * len(self.members))
        self._spent("broadcast", time.perf_counter() - at)

    def work(self, layer: int, jobs: list[str]) -> list[Any]:
        at = time.perf_counter()
        results: dict[int, Any] = {}
        waiting = list(range(len(jobs)))[::-1]
        running: dict[Any, tuple[_WorkerHandle, int]] = {}
        while len(results) < len(jobs):
            busy = {id(member): 0 for member in self.members}
            for member, _ in running.values():
                busy[id(member)] += 1
            # Two at a time, so that a worker need not wait for this process.
            for turn in range(2):
                for member in self.members:
                    if waiting and busy[id(member)] == turn:
                        job = waiting.pop()
                        running[member.actor.work.remote(layer, jobs[job])] = (member, job)
                        busy[id(member)] += 1
            ready = self._wait(list(running))
            member, job = running.pop(ready)
            try:
                results[job], seconds = self._get(ready, member)
            except _Lost:
                again = [ref for ref, (other, _) in running.items() if other is member]
                waiting += [running.pop(ref)[1] for ref in again] + [job]
                continue
            member.jobs += 1
            member.prune += seconds
            self._moved("pruned_rows", sum(part.nbytes for _, part in results[job][0]))
        self._spent("prune", time.perf_counter() - at)
        return [results[job] for job in range(len(jobs))]

    def changed(self, layer: int, parameters: list[Any]) -> None:
        self._enter(layer)
        at = time.perf_counter()
        given = (layer, ray.put(parameters))
        self._all("changed", *given)
        self.log.append(("changed", given))
        self._moved("weights", sum(part.nbytes for _, part in parameters) * len(self.members))
        self._spent("broadcast", time.perf_counter() - at)

    def advance(self, layer: int) -> list[tuple[float, float]]:
        self._enter(layer)
        at = time.perf_counter()
        errors = list(self._each("advance", (layer,)))
        self.done = layer + 1
        self.log = []
        self.hessians = None
        self._spent("forward", time.perf_counter() - at)
        self._tell(dict(event="cluster", workers=len(self.members)) | self.layers[-1])
        return errors

    def train(self, setup: dict[str, Any], windows: Any, held_out: Any) -> None:
        at = time.perf_counter()
        self.training = (setup, ray.put(windows), ray.put(held_out))
        # The hidden states of the chunks are not needed any more.
        self.chunks, self.shapes = [], []
        self.stages.append(dict(
            stage=setup["stage"], windows=0, seconds=0.0, bytes=dict(weights=0, gradients=0),
        ))
        self._muster()
        self.stages[-1]["start_seconds"] = time.perf_counter() - at

    def windows(self, weights: Any, windows: list[int], gradients: bool) -> Iterator[Any]:
        """The loss of every window, with its gradients if asked for, in the order of the windows. The store
        holds the weights once, and the gradients of at most `AHEAD` windows of each worker."""
        at, stage = time.perf_counter(), self.stages[-1]
        self.version += 1
        given = (self.version, ray.put(weights))
        stage["bytes"]["weights"] += weights.nbytes * min(len(windows), len(self.members))
        running: dict[int, tuple[Any, _WorkerHandle]] = {}

        def submit(place: int) -> None:
            loads = [sum(of is member for _, of in running.values()) for member in self.members]
            # Of the least busy workers, the one that had this window before has the dense model's states.
            turn = {number: (number - windows[place]) % len(loads) for number in range(len(loads))}
            member = self.members[min(turn, key=lambda number: (loads[number], turn[number]))]
            running[place] = (member.actor.window.remote(*given, windows[place], gradients), member)

        for place in range(len(windows)):
            while True:
                for near in range(place, min(len(windows), place + AHEAD * len(self.members))):
                    if near not in running:
                        submit(near)
                ref, member = running[place]
                try:
                    value, seconds = self._get(ref, member)
                    break
                except _Lost:
                    for lost in [near for near, (_, of) in running.items() if of is member]:
                        del running[lost]
            del running[place], ref
            member.windows += 1
            member.train += seconds
            stage["bytes"]["gradients"] += value[1].nbytes if gradients else 0
            yield value
            del value
        stage["windows"] += len(windows)
        stage["seconds"] += time.perf_counter() - at

    def record(self) -> str:
        def over(moved: dict[str, int]) -> float:
            return sum(moved.values()) / max(1, sum(moved.get(name, 0) for name in _NEEDED))

        return json.dumps(dict(
            workers=[member.record() for member in self.members],
            gone=self.gone,
            layers=self.layers,
            training=self.stages,
            bytes_over_needed=max((over(layer["bytes"]) for layer in self.layers), default=None),
            notes=self.notes,
        ))

    # Helpers.

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
        self._tell(dict(event="note", text=text))

    def _tell(self, event: dict[str, Any]) -> None:
        if self.tell is not None:
            self.tell(event)

    def _spills(self) -> bool:
        """Whether the states of a worker, and as many targets, are too many for its memory."""
        if self.setup.get("state_memory_limit") is None:
            return False
        share = -(-len(self.shapes) // max(1, self.count)) / max(1, len(self.shapes))
        return share * self.setup["state_bytes"] > self.setup["state_memory_limit"]

    def _enter(self, layer: int) -> None:
        if layer != self.layer:
            self.layer = layer
            self.log = []
            self.layers.append(dict(layer=layer, bytes={}, seconds={}))

    def _spent(self, what: str, seconds: float) -> None:
        spent = self.layers[-1]["seconds"]
        spent[what] = spent.get(what, 0.0) + seconds

    def _moved(self, what: str, size: int) -> None:
        moved = self.layers[-1]["bytes"]
        moved[what] = moved.get(what, 0) + size

    def _hire(self, count: int, share: float = 1.0) -> list[_WorkerHandle]:
        """New workers, checked; fewer than `count` if the cluster has no room."""
        patience = PATIENCE * share
        made: Any = ray.remote(num_cpus=self.threads, max_restarts=0)(_Worker)
        actors = [made.options(scheduling_strategy="SPREAD").remote(self.threads) for _ in range(count)]
        pending = {actor.hello.remote(): actor for actor in actors}
        ready, late = ray.wait(list(pending), num_returns=count, timeout=patience)
        for ref in late:
            ray.kill(pending[ref])
        members, died = [], ""
        for ref in ready:
            try:
                about = ray.get(ref)
            except _DEAD as error:
                died = str(error).strip()
                continue
            about |= dict(worker=self.started, threads=self.threads, spills=self._spills())
            members.append(_WorkerHandle(pending[ref], about))
            self.started += 1
        if died and not members and not self.members:
            raise RuntimeError(f"no worker could start; the last one said: {died}")
        if not members and not self.members:
            have = sum(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
            raise OpenworkError(
                f"no worker with {self.threads} CPUs came up within {patience:.0f} s; the cluster has {have:.0f} "
                "CPUs in all: give fewer worker_threads, or wait until they are free"
            )
        if late:
            self._note(f"{len(members)} of {count} workers came up; the cluster has no room for more")
        _check(members)
        if len({member.about["machine"] for member in members + self.members}) > 1:
            self._note("workers have different CPUs: products may round differently there")
        return self._equip(members)

    def _muster(self) -> None:
        """Has all workers start what comes next; those that are gone are replaced."""
        self.done, self.layer = 0, -1
        self.log, self.hessians = [], None
        before = self.members
        for member in before:
            member.chunks = set()
        self.members = self._equip(before)
        for member in before:
            if member not in self.members:
                self._went(member)
        missing = (len(before) or self.count) - len(self.members)
        if missing:
            self.members += self._hire(missing)

    def _equip(self, members: list[_WorkerHandle]) -> list[_WorkerHandle]:
        """Gives workers the model; returns those that are still there."""
        if self.training is None:
            setup = self.setup
            files = [member.actor.start.remote(setup, self.shapes, self._spills()) for member in members]
        else:
            setup = self.training[0]
            self._send(setup["model"], members)
            files = [member.actor.train.remote(*self.training) for member in members]
            setup = setup | dict(model=setup["reference"])
        alive = []
        for member, found in zip(members, files):
            try:
                _check_files(member.about, [tuple(file) for file in ray.get(found)], setup)
                alive.append(member)
            except _DEAD:
                continue
            except ray.exceptions.RayTaskError as error:
                where = f"the worker on {member.about['host']} (node {member.about['node']})"
                raise OpenworkError(f"{where}: {error.cause}; the model must be at that path on every node") from None
        if members and not alive and not self.members:
            raise RuntimeError(f"all {len(members)} workers went away while they read {setup['model']}")
        return alive

    def _send(self, folder: str, members: list[_WorkerHandle]) -> None:
        """Sends the files of a model, one after the other: the workers may not see the output folder."""
        for file in sorted(os.scandir(folder), key=lambda file: file.name) if members else []:
            if file.is_file() and file.stat().st_size:
                data = ray.put(np.memmap(file.path, np.uint8, "r").view(np.ndarray))
                sent = [member.actor.receive.remote(file.name, data) for member in members]
                for ref, member in zip(sent, members):
                    try:
                        ray.get(ref)
                    except _DEAD:
                        continue
                    except ray.exceptions.RayTaskError as error:
                        where = f"the worker on {member.about['host']} (node {member.about['node']})"
                        raise OpenworkError(f"{where}: {error.cause}; it needs room for a copy of the model in "
                                            "its folder for temporary files (TMPDIR)") from None

    def _wait(self, refs: list[Any]) -> Any:
        """The first that is there."""
        while True:
            if self.stopped:
                raise KeyboardInterrupt
            ready, _ = ray.wait(refs, num_returns=1, timeout=0.5)
            if ready:
                return ready[0]

    def _get(self, ref: Any, member: _WorkerHandle) -> Any:
        try:
            return ray.get(self._wait([ref]))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except _DEAD:
            self._replace(member)
            raise _Lost from None

    def _all(self, method: str, *given: Any) -> None:
        """Calls every worker; one that is gone is replaced by one that knows."""
        refs = [(getattr(member.actor, method).remote(*given), member) for member in self.members]
        lost = False
        for ref, member in refs:
            try:
                self._get(ref, member)
            except _Lost:
                lost = True
        if lost:
            # Successors have what the log tells; for the others once more does no harm.
            self._all(method, *given)

    def _each(self, method: str, given: tuple[Any, ...]) -> Iterator[Any]:
        """Calls the owner of every chunk; results in the order of the chunks."""
        refs: dict[int, tuple[Any, _WorkerHandle]] = {}
        received: set[int] = set()

        def submit(chunk: int) -> None:
            member = next(member for member in self.members if chunk in member.chunks)
            refs[chunk] = (getattr(member.actor, method).remote(chunk, *given), member)

        for chunk in range(len(self.chunks)):
            while True:
                for near in range(chunk, min(len(self.chunks), chunk + AHEAD * len(self.members))):
                    if near not in refs:
                        submit(near)
                ref, member = refs[chunk]
                try:
                    value, seconds = self._get(ref, member)
                    break
                except _Lost:
                    # Its chunks have new owners, which stand before this call.
                    for lost in [c for c, (_, of) in refs.items() if of is member]:
                        submit(lost)
            member.forward += seconds
            member.tokens += self.shapes[chunk][0] * self.shapes[chunk][1]
            received.add(chunk)
            refs[chunk] = (None, member)
            yield value
        # A worker that went after its chunks were received took their states along.
        for chunk, (ref, member) in refs.items():
            if ref is not None and chunk in received:
                with contextlib.suppress(_Lost):
                    self._get(ref, member)

    def _replace(self, member: _WorkerHandle) -> None:
        """Gives the chunks of a worker that is gone to a new one, or to those that are left."""
        if member not in self.members:
            return
        self.members.remove(member)
        self._went(member)
        self.members += self._hire(1, 0.25 if self.members else 1.0)
        heirs: dict[int, list[int]] = {number: [] for number in range(len(self.members))}
        for chunk in sorted(member.chunks):
            least = min(heirs, key=lambda number: len(self.members[number].chunks))
            self.members[least].chunks.add(chunk)
            heirs[least].append(chunk)
        for heir, chunks in [(self.members[number], chunks) for number, chunks in heirs.items()]:
            # Also one without a chunk must know the weights and Hessians, if it is new.
            if chunks or not heir.chunks:
                self._catch_up(heir, chunks)

    def _went(self, member: _WorkerHandle) -> None:
        """Records that a worker is gone."""
        stage = None if self.training is None else self.training[0]["stage"]
        layer = self.layer if stage is None else None
        self.gone.append(member.record() | dict(layer=layer, stage=stage))
        where = f"in layer {layer}" if stage is None else f"in the training of {stage}"
        self._note(f"worker {member.about['worker']} on {member.about['host']} went away {where}")
        with contextlib.suppress(Exception):
            ray.kill(member.actor)

    def _catch_up(self, member: _WorkerHandle, chunks: list[int]) -> None:
        """Takes chunks from the beginning to where the run is."""
        actor = member.actor
        calls = [actor.embed.remote(chunk, self.chunks[chunk]) for chunk in chunks]
        for layer in range(self.done if chunks else 0):
            shard = self.setup["shards"][layer]
            parameters = _native.shard_parameters(self.setup["model"], shard, self.setup["dtype"], layer)
            calls.append(actor.changed.remote(layer, parameters))
            calls += [actor.advance.remote(chunk, layer) for chunk in chunks]
        for method, given in self.log:
            if method == "changed":
                calls.append(actor.changed.remote(*given))
            else:
                calls += [actor.capture.remote(chunk, *given) for chunk in chunks]
        if self.hessians is not None:
            calls.append(actor.share.remote(self.hessians))
        for call in calls:
            try:
                self._get(call, member)
            except _Lost:
                return  # Its own successor has caught up.


# What has to be moved in any case.
_NEEDED = ("partial_sums", "hessians", "weights")


class _Lost(Exception):
    """A worker is gone, and has been replaced."""


def _check(members: list[_WorkerHandle]) -> None:
    """Refuses workers of another version; notes other CPUs."""
    for member in members:
        found = member.about["version"]
        if found != __version__:
            raise OpenworkError(
                f"the worker on {member.about['host']} (node {member.about['node']}) has openwork {found}, this "
                f"process has {__version__}; install the same version on every node"
            )


def _check_files(about: dict[str, Any], found: list[tuple[str, str]], setup: dict[str, Any]) -> None:
    """Refuses a worker whose model is another."""
    wanted = [tuple(file) for file in setup["files"]]
    if found != wanted:
        names = [name for name, _ in set(found) ^ set(wanted)] or ["its files"]
        raise OpenworkError(
            f"the worker on {about['host']} (node {about['node']}) has another model at {setup['model']}: "
            f"{', '.join(sorted(set(names))[:3])} differ; put the same files there"
        )


if __name__ == "__main__":
    # Not from here: workers would be given this text instead of what is installed where they are.
    from openwork._ray_command import main

    sys.exit(main())
