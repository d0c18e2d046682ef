"""A Ray cluster gives the bytes of one machine, whatever happens to its workers."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import openwork

# Loopback addresses only, also on Linux; read when ray is imported.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

import openwork.ray  # noqa: E402

MODELS = Path(__file__).parents[2] / "testdata" / "models"
MODEL = MODELS / "qwen3"
ASK = dict(samples=256, seq_len=64)  # two chunks of windows


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "calib.txt"
    words = random.Random(3)
    file.write_text(" ".join(words.choice("a wall of screens leaves light and rows".split()) for _ in range(9000)))
    return file


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=2, include_dashboard=False))
    for _ in range(2):
        cluster.add_node(num_cpus=2, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def one(text, tmp_path_factory):
    """Runs on this machine, by what was asked for."""
    known = {}

    def run(model=MODEL, **ask):
        key = json.dumps([str(model), ask], sort_keys=True)
        if key not in known:
            out = tmp_path_factory.mktemp("one") / "out"
            openwork.prune_model(model, out=out, calib=text, progress=False, **ASK, **ask)
            known[key] = digests(out)
        return known[key]

    return run


def digests(folder):
    files = sorted(Path(folder).glob("*.safetensors*"))
    assert files
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_any_number_of_workers_gives_the_same_bytes(cluster, one, text, tmp_path, workers):
    ask = dict(spec="2:4", method="s-obs")
    record = openwork.ray.prune_model(
        MODEL, out=tmp_path / "out", calib=text, workers=workers, worker_threads=1, progress=False, **ASK, **ask
    )
    assert digests(tmp_path / "out") == one(**ask)
    assert len(record["cluster"]["workers"]) == workers
    assert record["cluster"]["gone"] == []
    assert record["cluster"]["bytes_over_needed"] < 1.2
    assert {"forward", "reduce", "prune", "broadcast"} <= set(record["cluster"]["layers"][0]["seconds"])


@pytest.mark.parametrize("ask", [
    dict(spec="block(2,4)", method="sparsegpt+refit", sequential=True),
    dict(spec="rowwise(50%)", method="admm+swap", dtype="f32"),
    dict(spec="mlp keep 75%", method="s-obs", remove=True),
    dict(spec="block (4,1) scope (1,8) keep 4 then 2:4", method="sparsegpt"),
], ids=lambda ask: ask["method"])
def test_every_kind_of_run_gives_the_same_bytes(cluster, one, text, tmp_path, ask):
    openwork.ray.prune_model(
        MODEL, out=tmp_path / "out", calib=text, workers=2, worker_threads=1, spill_over=1, progress=False,
        **ASK, **ask,
    )
    assert digests(tmp_path / "out") == one(**ask)


# Experts; and layers that use the tokens, and the keys and values of earlier layers.
@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "gpt-oss", "gemma4-e2b", "gemma4-e2b-moe"])
@pytest.mark.parametrize("sequential", [False, True])
def test_models_with_experts_or_shared_keys_give_the_same_bytes(cluster, one, text, tmp_path, name, sequential):
    ask = dict(spec="2:4", method="sparsegpt", sequential=sequential)
    openwork.ray.prune_model(
        MODELS / name, out=tmp_path / "out", calib=text, workers=2, worker_threads=1, spill_over=1, progress=False,
        **ASK, **ask,
    )
    assert digests(tmp_path / "out") == one(MODELS / name, **ask)


def workers_alive():
    """Process numbers of all workers on this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::_Worker"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("name, seed", [("qwen3", 0), ("qwen3", 1), ("qwen3", 2), ("gemma4-e2b-moe", 3)])
def test_a_worker_killed_at_any_moment_changes_nothing(cluster, one, text, tmp_path, name, seed):
    model = MODELS / name
    ask = dict(spec="2:4", method="s-obs", sequential=seed == 2)
    choice = random.Random(seed)
    when, seen, killed = choice.randrange(1, 6), 0, []

    def see(event):
        nonlocal seen
        seen += event["event"] == "progress"
        if seen >= when and not killed:
            killed.append(choice.choice(workers_alive()))
            os.kill(killed[0], signal.SIGKILL)

    record = openwork.ray.prune_model(
        model, out=tmp_path / "out", calib=text, workers=2, worker_threads=1, progress=see, **ASK, **ask
    )
    assert killed
    assert digests(tmp_path / "out") == one(model, **ask)
    assert len(record["cluster"]["gone"]) <= 1


RECOVER = "blocks[epochs=1]+model[steps=60,batch=4,seq_len=32]"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_recovery_by_any_number_of_workers_gives_the_same_bytes(cluster, one, text, tmp_path, workers):
    ask = dict(spec="2:4", method="wanda", recover=RECOVER)
    events = []
    record = openwork.ray.prune_model(
        MODEL, out=tmp_path / "out", calib=text, workers=workers, worker_threads=1, progress=events.append, **ASK, **ask
    )
    assert digests(tmp_path / "out") == one(**ask)
    assert [stage["stage"] for stage in record["recovery"]] == RECOVER.split("+")
    training, = record["cluster"]["training"]
    assert training["windows"] >= 60 * 4
    assert sum(worker["windows"] for worker in record["cluster"]["workers"]) == training["windows"]
    assert all(worker["windows"] > 0 for worker in record["cluster"]["workers"])
    assert any("loss" in event and event["layer"] is None for event in events)


@pytest.mark.parametrize("name, ask", [
    ("gemma4-e2b-moe", dict(spec="2:4", method="wanda+quant", recover="model[steps=6,batch=3,seq_len=32,states=1]")),
    # The model is smaller than the one that every node has.
    ("qwen3", dict(spec="mlp keep 75%", method="wanda", remove=True, recover="model[steps=6,batch=2,seq_len=32]")),
    ("qwen3", dict(spec="2:4", method="wanda", sequential=True, dtype="f32",
                   recover="halves[epochs=1]+model[steps=6,batch=2,seq_len=32]+model[steps=6,batch=5,loss=ce]")),
], ids=lambda ask: ask if isinstance(ask, str) else ask["recover"])
def test_every_kind_of_recovery_gives_the_same_bytes(cluster, one, text, tmp_path, name, ask):
    record = openwork.ray.prune_model(
        MODELS / name, out=tmp_path / "out", calib=text, workers=2, worker_threads=1, spill_over=1, progress=False,
        **ASK, **ask,
    )
    assert digests(tmp_path / "out") == one(MODELS / name, **ask)
    assert len(record["cluster"]["training"]) == ask["recover"].count("model")


@pytest.mark.parametrize("seed, workers", [(0, 2), (1, 3), (2, 1)])
def test_a_worker_killed_in_a_recovery_changes_nothing(cluster, one, text, tmp_path, seed, workers):
    ask = dict(spec="2:4", method="wanda", recover=RECOVER)
    choice = random.Random(seed)
    when, seen, killed = choice.randrange(1, 4), 0, []

    def see(event):
        nonlocal seen
        seen += "loss" in event and event["layer"] is None
        if seen >= when and not killed:
            killed.append(choice.choice(workers_alive()))
            os.kill(killed[0], signal.SIGKILL)

    record = openwork.ray.prune_model(
        MODEL, out=tmp_path / "out", calib=text, workers=workers, worker_threads=1, progress=see, **ASK, **ask
    )
    assert killed
    assert digests(tmp_path / "out") == one(**ask)
    assert [gone["stage"] for gone in record["cluster"]["gone"]] == [RECOVER.split("+")[1]]


def test_a_recovery_that_was_interrupted_is_resumed_here_or_there(cluster, one, text, tmp_path):
    ask = dict(spec="2:4", method="wanda", recover=RECOVER)
    there = dict(workers=2, worker_threads=1)
    out = tmp_path / "out"

    def until(share):
        def see(event):
            if "loss" in event and event["layer"] is None and event["share"] > share:
                raise InterruptedError("no more")
        return see

    for share, prune, where in [(0.2, openwork.ray.prune_model, there), (0.5, openwork.prune_model, {})]:
        with pytest.raises(InterruptedError):
            prune(MODEL, out=out, calib=text, resume=True, progress=until(share), **ASK, **ask, **where)
        assert not (out / "model.safetensors.index.json").exists()
    openwork.ray.prune_model(MODEL, out=out, calib=text, resume=True, progress=False, **ASK, **ask, **there)
    assert digests(out) == one(**ask)


def test_a_node_that_goes_changes_nothing(one, text, tmp_path):
    # Of a cluster of its own, in a process of its own: nodes do not come back.
    script = tmp_path / "node.py"
    script.write_text(f"""
import ray, openwork.ray
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=0, include_dashboard=False))
nodes = [cluster.add_node(num_cpus=1, include_dashboard=False) for _ in range(3)]
ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
openwork.ray.PATIENCE = 20.0
gone = []
def see(event):
    if event["event"] == "cluster" and not gone:
        gone.append(nodes.pop())
        cluster.remove_node(gone[0], allow_graceful=False)
record = openwork.ray.prune_model({str(MODEL)!r}, out={str(tmp_path / "out")!r}, calib={str(text)!r}, spec="2:4",
    method="s-obs", workers=3, worker_threads=1, progress=see, **{ASK!r})
with open({str(tmp_path / "seen")!r}, "w") as seen:
    print(len(record["cluster"]["gone"]), len(record["cluster"]["workers"]), file=seen)
ray.shutdown()
cluster.shutdown()
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text().split() == ["1", "2"]
    assert digests(tmp_path / "out") == one(spec="2:4", method="s-obs")


def test_a_driver_that_was_killed_is_resumed_here_or_there(cluster, one, text, tmp_path):
    ask = dict(spec="2:4", method="s-obs")
    out = tmp_path / "out"

    def see(event):
        if event["event"] == "layer":
            raise InterruptedError("no more")

    with pytest.raises(InterruptedError):
        openwork.ray.prune_model(
            MODEL, out=out, calib=text, workers=2, worker_threads=1, progress=see, **ASK, **ask
        )
    assert not (out / "model.safetensors.index.json").exists()
    openwork.prune_model(MODEL, out=out, calib=text, resume=True, progress=False, **ASK, **ask)
    assert digests(out) == one(**ask)


def test_what_cannot_be_done_is_said(cluster, text, tmp_path, monkeypatch):
    ask = dict(spec="2:4", calib=text, workers=1, worker_threads=1, progress=False, **ASK)
    with pytest.raises(openwork.OpenworkError, match="the plan does not fit the model"):
        openwork.ray.prune_model(MODEL, out=tmp_path / "o", **(ask | dict(spec="2:7")))
    assert not (tmp_path / "o").exists()
    monkeypatch.setattr(openwork.ray, "PATIENCE", 2.0)
    with pytest.raises(openwork.OpenworkError, match="no worker with 64 CPUs came up"):
        openwork.ray.prune_model(MODEL, out=tmp_path / "c", **(ask | dict(worker_threads=64)))


def command(text, out, *flags):
    asked = ["--spec", "2:4", "--method", "s-obs", "--samples", "256", "--seq-len", "64", "--calib", str(text)]
    line = [sys.executable, "-m", "openwork.ray", "prune", str(MODEL), *asked, "--out", str(out), *flags]
    alone = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(line, capture_output=True, text=True, env=alone, timeout=300)


def test_the_command_is_the_one_of_one_machine(one, text, tmp_path):
    out = tmp_path / "out"
    done = command(text, out, "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert "mean error" in done.stdout and "layer 1: decoder error" in done.stderr
    assert digests(out) == one(spec="2:4", method="s-obs")
    again = command(text, out)
    assert again.returncode == 2 and "the folder is not empty" in again.stderr
    wrong = command(text, tmp_path / "none", "--threads", "0")
    assert wrong.returncode == 2 and "--threads 0: give a number from 1 to 1024" in wrong.stderr


def test_the_command_joins_a_cluster(cluster, one, text, tmp_path):
    out = tmp_path / "out"
    joined = ["--address", cluster.address, "--workers", "2", "--worker-threads", "1"]

    planned = command(text, out, *joined, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "14 of 14 linear layers would be pruned" in planned.stdout
    assert "in each of 2 workers with 1 thread" in planned.stdout
    assert not out.exists()

    refused = command(text, out, *joined, "--max-memory", "1M")
    assert refused.returncode == 2 and "--max-memory 1M: the run needs about" in refused.stderr
    assert not out.exists()

    needed = json.loads(command(text, out, *joined, "--dry-run", "--json").stdout)["memory_bytes"]
    done = command(text, out, *joined, "--max-memory", str(needed - 1), "--events", "--json")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "start" and kinds.count("layer") == 2 and kinds.count("cluster") == 2
    assert kinds.count("pruned") == 14
    record = json.loads(done.stdout)
    assert len(record["cluster"]["workers"]) == 2
    assert all(worker["spills"] for worker in record["cluster"]["workers"])
    assert digests(out) == one(spec="2:4", method="s-obs")


def test_a_node_with_another_version_is_refused_by_name(text, tmp_path):
    # The node finds a copy of the package first, which says that it is another version.
    package = Path(openwork.__file__).parent
    shutil.copytree(package, tmp_path / "old" / "openwork")
    with open(tmp_path / "old" / "openwork" / "__init__.py", "a") as init:
        init.write('\n__version__ = "0.0.7"\n')
    script = tmp_path / "version.py"
    script.write_text(f"""
import openwork.ray
import ray
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1, include_dashboard=False))
cluster.add_node(num_cpus=1, include_dashboard=False, env_vars=dict(PYTHONPATH={str(tmp_path / "old")!r}))
ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
try:
    openwork.ray.prune_model({str(MODEL)!r}, out={str(tmp_path / "out")!r}, calib={str(text)!r}, spec="2:4",
        method="s-obs", workers=2, worker_threads=1, progress=False, **{ASK!r})
except openwork.OpenworkError as error:
    print(error)
ray.shutdown()
cluster.shutdown()
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"has openwork 0.0.7, this process has {openwork.__version__}; install the same version" in done.stdout
