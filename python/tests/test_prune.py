"""`prune`, `Hessian` and `Spec` with numpy alone."""

import doctest
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import openwork
from openwork import Hessian, Spec

# The statistics that each method without modifiers needs.
NEEDS = {row["name"]: row["needs"] for row in openwork.methods() if not row["name"].startswith("+")}


@pytest.fixture
def case(rng):
    W = rng.standard_normal((24, 32)).astype("float32")
    X = (rng.standard_normal((600, 32)) @ rng.standard_normal((32, 32))).astype("float32")
    return W, X


def relative(old, new, x):
    """The output error by its definition, in f64."""
    h = x.T.astype("float64") @ x / len(x)
    size = lambda d: np.einsum("ij,jk,ik->", d, h, d)
    return np.sqrt(size(new.astype("float64") - old) / size(old.astype("float64")))


@pytest.mark.parametrize("method", [*NEEDS, "s-obs+swap"])
def test_every_method_prunes_in_place_and_says_how_well(case, method):
    W, X = case
    old = W.copy()
    pointer = W.ctypes.data
    result = openwork.prune(W, "2:4", method, inputs=X)
    assert W.ctypes.data == pointer and result.weights is W
    assert (W == 0).mean() == 0.5 and result.density == 0.5 and result.sparsity == 0.5
    np.testing.assert_array_equal(W != 0, result.mask)
    assert result.error == pytest.approx(relative(old, W, X), rel=1e-4)
    assert result.errors == {"tensor": result.error}
    assert result.seconds > 0
    # A matrix, a Hessian and the inputs say the same.
    for hessian in (Hessian.from_inputs(X), X.T.astype("float64") @ X / len(X)):
        damped = method if NEEDS.get(method, "hessian") != "hessian" else method.replace(
            method.split("+")[0], method.split("+")[0] + "[damping=diag:0.01]")
        again = openwork.prune(old, "2:4", damped, hessian=hessian, inplace=False)
        assert again.weights is not old and (old != 0).all()
        assert (again.weights == 0).mean() == 0.5


def test_magnitude_is_brute_force(rng):
    W = rng.standard_normal((6, 8)).astype("float32")
    result = openwork.prune(W, "2:4", "magnitude", inplace=False)
    size = np.abs(W).reshape(-1, 4)
    np.testing.assert_array_equal(result.mask.reshape(-1, 4), size >= np.sort(size)[:, 2:3])


@pytest.mark.parametrize("method", ["magnitude", "sparsegpt", "s-obs", "admm", "s-obs+swap"])
def test_specs_inside_specs(case, method):
    W, X = case
    spec = Spec.parse("block (8,1) scope (1,8) keep 4 then 2:4")
    assert str(spec) == "block (8,1) scope (1,8) keep 4 then 2:4"
    bound = spec.bind(W.shape)
    assert bound.has_levels and bound.density == 0.25
    assert [level["path"] for level in bound.show()["levels"]] == [[], ["then"]]
    result = openwork.prune(W.copy(), spec, method, inputs=X)
    assert result.density == 0.25 and bound.breach(result.weights) is None
    np.testing.assert_array_equal(result.weights != 0, result.mask)
    if method == "magnitude":
        norms = (W.reshape(3, 8, 4, 8) ** 2).sum(1)  # strip, scope, column
        kept = np.sort(np.argsort(-norms, axis=-1)[..., :4], axis=-1)
        want = np.zeros_like(W, bool)
        for row in range(24):
            for scope in range(4):
                columns = 8 * scope + kept[row // 8, scope]
                want[row, columns[np.argsort(-np.abs(W[row, columns]))[:2]]] = True
        np.testing.assert_array_equal(result.mask, want)
    with pytest.raises(openwork.SpecError, match="levels of .* depend on its keep"):
        bound.with_keep(2)
    with pytest.raises(openwork.SpecError, match="needs scopes that run along one axis"):
        openwork.prune(W, "unstructured(50%) then 2:4", "magnitude")


def test_coupled_tensors_are_pruned_together(rng):
    up, down = rng.standard_normal((8, 4)).astype("float32"), rng.standard_normal((4, 8)).astype("float32")
    x, y = rng.standard_normal((99, 4)).astype("float32"), rng.standard_normal((99, 8)).astype("float32")
    text = "blocks up: block (1,_) & down perm (1,0): block (_,1) scope (_,1) keep 4"
    result = openwork.prune({"up": up, "down": down}, text, "s-obs", inputs={"up": x, "down": y})
    np.testing.assert_array_equal((up != 0).any(1), (down != 0).any(0))
    assert (up != 0).any(1).sum() == 4
    assert set(result.mask) == {"up", "down"} and result.weights["up"] is up
    with pytest.raises(openwork.PruneError, match="W has tensors up, but the spec is for up, down"):
        openwork.prune({"up": up}, result.spec)


def test_other_types_are_stored_as_they_are(rng):
    for dtype in ("float16", "float64"):
        W = rng.standard_normal((4, 8)).astype(dtype)
        old = W.copy()
        openwork.prune(W, "2:4", "magnitude")
        assert W.dtype == dtype
        np.testing.assert_array_equal(W[W != 0], old[W != 0])
    # A new weight that f16 cannot hold leaves everything as it was.
    W = np.full((1, 4), 6e4, "float16")
    W[0, 3] = 5e4
    X = np.ones((8, 4), "float32")
    old = W.copy()
    with pytest.raises(openwork.PruneError, match="is outside the range of f16; nothing was written"):
        openwork.prune(W, "1:4", "s-obs[damping=diag:0.0001]", inputs=X)
    np.testing.assert_array_equal(W, old)


#: Tall enough for several bands of rows, and for one where rows are tied together.
TALL = (20_000, 32)


@pytest.mark.parametrize("spec", ["2:4", "rows16", "block(4,4)", "unstructured(50%)"])
@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt", "s-obs"])
def test_rows_of_16_bits_are_pruned_as_in_float32(rng, spec, method):
    if (spec, method) == ("unstructured(50%)", "s-obs"):
        pytest.skip("SKIPPED: takes minutes over so many rows")
    W = rng.standard_normal(TALL, dtype="float32").astype("float16")
    H = openwork.Hessian.from_inputs(rng.standard_normal((99, TALL[1]), dtype="float32"))
    wide = openwork.prune(W.astype("float32"), spec, method, hessian=H)
    new = openwork.prune(W, spec, method, hessian=H, inplace=False)
    assert new.weights.dtype == W.dtype and (W != 0).mean() > 0.99
    strided = np.empty((TALL[0], 2 * TALL[1]), "float16")[:, ::2]
    strided[:] = W
    for tensor in (W, strided):
        found = openwork.prune(tensor, spec, method, hessian=H)
        np.testing.assert_array_equal(tensor, wide.weights.astype("float16"))
        np.testing.assert_array_equal(found.mask, wide.mask)
        assert found.error == pytest.approx(wide.error, rel=1e-12)
        assert (found.damping, found.notes) == (wide.damping, wide.notes)
    np.testing.assert_array_equal(new.weights, W)


def test_the_papers_pruner_goes_by_rows_too(rng):
    W = rng.standard_normal(TALL, dtype="float32").astype("float16")
    wide, H = W.astype("float32"), openwork.Hessian.from_inputs(rng.standard_normal((99, TALL[1]), dtype="float32"))
    for tensor in (W, wide):
        part = openwork.ScopeSpec(openwork.BlockSpec(openwork.View.from_existing(tensor), (1, 1)), (1, 4))
        openwork.StructuredOBS(part, H).prune_true_obs(nnz=1)
    np.testing.assert_array_equal(W, wide.astype("float16"))


PEAK = """
import resource, sys
import numpy as np, openwork
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
W, rng = np.zeros((65536, 512), "float16"), np.random.default_rng(0)
for row in W:  # a whole matrix of other numbers would be the peak
    row[:] = rng.standard_normal(512, dtype="float32")
H = openwork.Hessian.from_inputs(np.ones((4, 512), "float32"))
openwork.prune(W[:96].copy(), "2:4", sys.argv[1], hessian=H)
before = peak()
openwork.prune(W, "2:4", sys.argv[1], hessian=H)
print((peak() - before) / W.size, float((W == 0).mean()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units")
@pytest.mark.parametrize("method", ["magnitude", "wanda"])
def test_16_bits_are_never_all_wide(method):
    done = subprocess.run([sys.executable, "-c", PEAK, method], capture_output=True, text=True, check=True)
    added, zeros = map(float, done.stdout.split())
    # New weights take two bytes each and the mask one, so a copy in f32 would make seven.
    assert zeros >= 0.5 and added < 5.0, done.stdout


BAD = [
    (dict(spec="2:"), openwork.SpecError, "expected|2:"),
    (dict(spec="2:5"), openwork.SpecError, "not a multiple of 5"),
    (dict(spec="scope (1,4)"), openwork.SpecError, "does not say how much to keep"),
    (dict(spec="view (4,4):(8,1) keep 2"), openwork.SpecError, "view"),
    (dict(method="s-obz"), openwork.MethodError, "there is no method `s-obz`; did you mean `s-obd`"),
    (dict(method="s-obs[scorng=joint]"), openwork.MethodError, "did you mean `scoring`"),
    (dict(inputs=None), openwork.PruneError, "s-obs needs statistics of the inputs of `tensor`"),
    (dict(inputs=np.zeros((0, 8), "float32")), openwork.HessianError, "H has no samples"),
    (dict(inputs=np.full((2, 8), np.nan, "float32")), openwork.HessianError, "sample 0, column 0 is NaN"),
    (dict(inputs=np.ones((2, 7), "float32")), openwork.HessianError, "H is 7 x 7, but the weights have 8 columns"),
    (dict(inputs=np.ones(8, "float32")), openwork.HessianError, r"the batch has shape \[8\]"),
    (dict(inputs=None, hessian=np.ones((8, 7))), openwork.HessianError, "H is 8 x 7; it must be square"),
    (dict(inputs=None, hessian=-np.eye(8)), openwork.HessianError, "the diagonal of X'X cannot be negative"),
    (dict(inputs=None, hessian=np.triu(np.ones((8, 8)))), openwork.HessianError, "H is not symmetric"),
    (dict(hessian=np.eye(8)), openwork.PruneError, "hessian and inputs were both given"),
    (dict(W=np.full((2, 8), np.inf, "float32")), openwork.PruneError, "has inf in row 0, column 0"),
    (dict(W=np.ones((2, 8), "int32")), openwork.PruneError, "tensors of type int32 cannot be pruned"),
    (dict(W=[[1.0, 2.0]]), openwork.PruneError, "give a numpy array or a torch tensor"),
]


@pytest.mark.parametrize("change, error, words", BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_is_refused_in_the_commands_words(change, error, words):
    W = np.arange(16, dtype="float32").reshape(2, 8) + 1
    asked = dict(W=W, spec="2:4", method="s-obs", inputs=np.ones((4, 8), "float32")) | change
    old = W.copy()
    with pytest.raises(error, match=words) as caught:
        openwork.prune(asked.pop("W"), asked.pop("spec"), asked.pop("method"), **asked)
    assert isinstance(caught.value, (ValueError, openwork.OpenworkError))
    np.testing.assert_array_equal(W, old)


def test_a_hessian_streams_saves_and_loads(case, tmp_path):
    _, X = case
    h = Hessian(32)
    for start in range(0, len(X), 77):
        h.add(X[start : start + 77])
    assert (h.columns, h.samples) == (32, 600)
    np.testing.assert_array_equal(h.matrix(), Hessian.from_inputs(X).matrix())
    np.testing.assert_allclose(h.matrix(), X.T.astype("float64") @ X / 600, rtol=1e-5)
    np.testing.assert_array_equal(h.matrix(), Hessian.from_inputs(X.reshape(6, 100, 32)).matrix())
    np.testing.assert_array_equal(h.matrix(), Hessian.from_inputs(np.asfortranarray(X)).matrix())
    half = X.astype("float16")
    np.testing.assert_array_equal(Hessian.from_inputs(half).matrix(), Hessian.from_inputs(half.astype("float32")).matrix())
    h.save(tmp_path / "h.safetensors")
    again = Hessian.load(tmp_path / "h.safetensors")
    np.testing.assert_array_equal(again.matrix(), h.matrix())
    assert again.samples == 600
    with pytest.raises(openwork.HessianError, match=r"start one with Hessian\(columns\) to add samples"):
        again.add(X)
    with pytest.raises(openwork.HessianError, match="has no tensor `G`; it has H"):
        Hessian.load(tmp_path / "h.safetensors", "G")
    with pytest.raises(openwork.HessianError, match="no such file"):
        Hessian.load(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"no")
    with pytest.raises(openwork.HessianError, match="truncated or damaged"):
        Hessian.load(tmp_path / "bad")


def test_specs_show_what_they_mean():
    bound = Spec.parse("2:4@8").bind((4, 32))
    show = bound.show()
    assert show["spec"] == "2:4@8" and show["tensors"][0]["block_grid"] == [4, 2, 8, 1]
    assert (show["num_scopes"], show["blocks_per_scope"], show["keep"]) == (16, 4, 2)
    assert bound.grid == (4, 2, 8, 1) and bound.scope_grid == (4, 2, 2, 1)
    assert bound.svg().startswith("<svg") and bound._repr_svg_() == bound.svg()
    assert "scope" in bound.describe()
    assert Spec.parse("2:4") == Spec.parse(" 2:4 ") and hash(Spec.parse("2:4")) == hash(Spec.parse(" 2:4 "))
    assert repr(Spec.parse("2:4")) == 'Spec.parse("2:4")'
    with pytest.raises(openwork.SpecError, match="is not a shape"):
        Spec.parse("2:4").bind("x")
    assert {"2:4", "rows16"} <= {row["example"] for row in openwork.presets()}


def test_progress_is_told_and_may_stop(rng):
    W = rng.standard_normal((600, 512)).astype("float32")
    X = rng.standard_normal((1024, 512)).astype("float32")
    shares = []
    openwork.prune(W.copy(), "2:4", "s-obs+swap", inputs=X, progress=shares.append)
    assert shares and all(0.0 <= share <= 1.0 for share in shares)

    def stop(share):
        raise RuntimeError("enough")

    old = W.copy()
    with pytest.raises(RuntimeError, match="enough"):
        openwork.prune(W, "2:4", "s-obs+swap", inputs=X, progress=stop)
    np.testing.assert_array_equal(W, old)


INTERRUPTED = """
import numpy as np, openwork, signal
# Ignored in a child of a shell's background job, such as a test run may be.
signal.signal(signal.SIGINT, signal.default_int_handler)
rng = np.random.default_rng(0)
W = rng.standard_normal((4096, 1024)).astype("float32")
h = openwork.Hessian.from_inputs(rng.standard_normal((2048, 1024)).astype("float32"))
old = W.copy()
shares = []

def progress(share):
    shares.append(share)
    if len(shares) == 1:
        print("ready", flush=True)

try:
    openwork.prune(W, "2:4", "s-obs+swap", hessian=h, progress=progress)
    print("done")
except KeyboardInterrupt:
    print("stopped", (W == old).all(), shares[-1] < 1.0)
"""


@pytest.mark.skipif(os.name == "nt", reason="SKIPPED: Windows sends no SIGINT to a child")
def test_an_interrupt_stops_a_long_call_and_changes_nothing():
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate()
    assert out == "stopped True True\n"


def test_two_threads_prune_two_tensors(rng):
    X = rng.standard_normal((512, 128)).astype("float32")
    first, second = (rng.standard_normal((256, 128)).astype("float32") for _ in range(2))
    want = [openwork.prune(w, "2:4", "s-obs", inputs=X, inplace=False).weights for w in (first, second)]
    threads = [
        threading.Thread(target=openwork.prune, args=(w, "2:4", "s-obs"), kwargs={"inputs": X})
        for w in (first, second)
    ]
    [t.start() for t in threads]
    [t.join() for t in threads]
    np.testing.assert_array_equal(first, want[0])
    np.testing.assert_array_equal(second, want[1])


def test_the_examples_in_the_native_docstrings_run():
    parser, runner, tried = doctest.DocTestParser(), doctest.DocTestRunner(), 0
    scope = vars(openwork).copy()
    for name, item in vars(openwork._native).items():
        for owner, text in [(name, item.__doc__)] + [
            (f"{name}.{part}", getattr(item, part).__doc__) for part in dir(item)
            if isinstance(item, type) and not part.startswith("__")
        ]:
            test = parser.get_doctest(text or "", scope.copy(), owner, None, 0)
            runner.run(test)
            tried += len(test.examples)
    assert tried > 15 and runner.failures == 0


def test_the_default_method_is_the_commands(rng):
    w, x = rng.standard_normal((8, 16)).astype("float32"), rng.standard_normal((64, 16)).astype("float32")
    default = openwork.prune(w.copy(), "2:4", inputs=x).weights
    named = openwork.prune(w.copy(), "2:4", openwork._native.DEFAULT_METHOD, inputs=x).weights
    np.testing.assert_array_equal(default, named)
