"""Masks while a network learns: budgets, momentum, resume."""

import copy

import numpy as np
import pytest

import openwork

torch = pytest.importorskip("torch")
from openwork.torch import Sparsifier  # noqa: E402


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    )


RULES = {
    "1:4": {r"[02]\.weight": "1:4"},
    "blocks": {r"[02]\.weight": "block(4,4,25%)"},
    "unstructured": {r"[02]\.weight": "unstructured(25%)"},
    "coupled": [({"up": "0.weight", "down": "2.weight"},
                 "blocks up: block (1,_) & down perm (1,0): block (_,1) scope (_,1) keep 25%")],
}


def budgets(sparsifier):
    """Kept blocks of every scope."""
    return [g.kept.reshape(-1, g.spec.blocks_per_scope).sum(1) for g in sparsifier._groups]


def steps(model, optimizer, sparsifier, count, first=0, after=False):
    for step in range(first, first + count):
        x = torch.from_numpy(np.random.default_rng(step).standard_normal((32, 16)).astype("float32"))
        optimizer.zero_grad()
        (model(x) - x[:, :4].sin()).square().mean().backward()
        if after:
            optimizer.step()
        sparsifier.step(optimizer)
        for name, mask in sparsifier.masks.items():
            param = model.get_parameter(name)
            assert (param[~mask] == 0).all() and (param.grad[~mask] == 0).all()
            for state in optimizer.state[param].values():
                if torch.is_tensor(state) and state.shape == param.shape:
                    assert (state[~mask] == 0).all()


@pytest.mark.parametrize("method", ["rigl", "set", "static"])
@pytest.mark.parametrize("rules", RULES)
def test_every_scope_keeps_its_budget_after_every_step(rules, method):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sparsifier = Sparsifier(model, RULES[rules], method, every=2, end=9, fraction=0.4)
    first = {name: mask.clone() for name, mask in sparsifier.masks.items()}
    for group, kept in zip(sparsifier._groups, budgets(sparsifier)):
        assert (kept == group.spec.keep).all()
    for step in range(10):
        steps(model, optimizer, sparsifier, 1, step)
        for group, kept in zip(sparsifier._groups, budgets(sparsifier)):
            assert (kept == group.spec.keep).all()
    moved = any((mask != first[name]).any() for name, mask in sparsifier.masks.items())
    # A neuron that is zero on both sides has no gradient to grow by.
    if (rules, method) != ("coupled", "rigl"):
        assert moved == (method != "static")
    assert sparsifier.density == 0.25


def test_stepping_before_or_in_place_of_the_optimizer_is_the_same():
    ends = []
    for after in (False, True):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        sparsifier = Sparsifier(model, "1:2", every=3, end=10)
        steps(model, optimizer, sparsifier, 12, after=after)
        ends.append([p.detach().clone() for p in model.parameters()])
    # What leaves a mask never comes back by momentum, so the masks agree; weights too.
    for a, b in zip(*ends):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("method", ["rigl", "set"])
def test_a_resumed_run_ends_as_one_that_was_not_stopped(method, tmp_path):
    def fresh():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, Sparsifier(model, RULES["1:4"], method, every=2, end=15, seed=5)

    model, optimizer, sparsifier = fresh()
    steps(model, optimizer, sparsifier, 7)
    torch.save([x.state_dict() for x in (model, optimizer, sparsifier)], tmp_path / "state.pt")
    steps(model, optimizer, sparsifier, 9, 7)

    again, again_optimizer, again_sparsifier = fresh()
    for part, state in zip((again, again_optimizer, again_sparsifier), torch.load(tmp_path / "state.pt")):
        part.load_state_dict(state)
    steps(again, again_optimizer, again_sparsifier, 9, 7)
    for a, b in zip(model.parameters(), again.parameters()):
        assert torch.equal(a, b)
    other = Sparsifier(network(), "1:2")
    with pytest.raises(openwork.PruneError, match="another model or other rules"):
        other.load_state_dict(copy.deepcopy(sparsifier.state_dict()))


@pytest.mark.parametrize("drop", ["wanda", "s-obd"])
def test_drops_may_look_at_inputs(drop):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier = Sparsifier(model, RULES["1:4"], every=2, end=9, drop=drop, init="magnitude")
    steps(model, optimizer, sparsifier, 6)
    assert sparsifier.moved > 0 and sparsifier.density == 0.25


def test_rigl_grows_where_the_gradient_is_largest():
    model = torch.nn.Sequential(torch.nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        model[0].weight[:] = torch.tensor([[1.0, 0.1, 0.2, 0.3]])
    sparsifier = Sparsifier(model, "2:4", every=1, end=10, fraction=0.5, init="magnitude")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    assert sparsifier.masks["0.weight"].tolist() == [[True, False, False, True]]
    model(torch.tensor([[0.0, 0.0, 5.0, 1.0]])).sum().backward()
    sparsifier.step(optimizer)
    assert sparsifier.masks["0.weight"].tolist() == [[True, False, True, False]]


def test_what_cannot_be_is_refused():
    model = network()
    with pytest.raises(openwork.MethodError, match="unknown method `rigle`"):
        Sparsifier(model, "1:4", "rigle")
    with pytest.raises(openwork.PruneError, match="no weight matches `layers"):
        Sparsifier(model, {"layers.*": "1:4"})
    with pytest.raises(openwork.SpecError, match="not a multiple of 5"):
        Sparsifier(model, "1:5")
    with pytest.raises(openwork.PruneError, match="fraction is 2"):
        Sparsifier(model, "1:4", fraction=2)


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = torch.nn.Linear(8, 4), torch.nn.Parameter(torch.randn(4, 16, 8))


def test_fused_experts_are_refused():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Experts())
    words = r"`\.\*` matches experts that share one parameter, which a Sparsifier cannot mask: 1.up \(82.6% of the weights\)"
    with pytest.raises(openwork.PruneError, match=words):
        Sparsifier(model, "1:4")
    assert list(Sparsifier(model, {r"0\.weight": "1:4"}).masks) == ["0.weight"]


LEVELS = "block (4,4) scope (1,_) keep 50% else 2:4"


@pytest.mark.parametrize("init", ["random", "magnitude"])
def test_specs_with_levels_have_static_masks(init):
    model = network()
    with pytest.raises(openwork.MethodError, match="has levels, whose masks cannot move yet"):
        Sparsifier(model, {r"[02]\.weight": LEVELS})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sparsifier = Sparsifier(model, {r"[02]\.weight": LEVELS}, "static", init=init)
    first = {name: mask.clone() for name, mask in sparsifier.masks.items()}
    assert sparsifier.density == 0.75
    steps(model, optimizer, sparsifier, 3)
    for name, mask in sparsifier.masks.items():
        assert (mask == first[name]).all()
        weight = model.get_parameter(name)
        assert openwork.Spec.parse(LEVELS).bind(tuple(weight.shape)).breach(weight.detach().numpy()) is None
    other = Sparsifier(network(), {r"[02]\.weight": LEVELS}, "static", init=init, seed=5)
    other.load_state_dict(sparsifier.state_dict())
    assert all((other.masks[name] == mask).all() for name, mask in sparsifier.masks.items())
