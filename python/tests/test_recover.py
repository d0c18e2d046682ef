"""Recovery of torch modules: zeros stay, losses fall, and nothing is left changed by a failure."""

import copy

import pytest

import openwork

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def pair(seed=0):
    """A small Llama, dense and pruned, and batches."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False,
    )
    dense = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in dense.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    batches = [torch.randint(0, 64, (2, 16)) for _ in range(12)]
    pruned = copy.deepcopy(dense)
    openwork.prune_model(pruned, spec="2:4", method="wanda", calib=batches, progress=False)
    return dense, pruned, batches


def zeros(model):
    return {name: (p == 0).clone() for name, p in model.named_parameters() if p.dim() > 1}


@pytest.mark.parametrize("stages", ["blocks[epochs=2]", "model[steps=12]", "blocks[epochs=1,batch=3]+model[steps=8,loss=mix]"])
def test_recovery_lowers_the_loss_and_keeps_zeros(stages):
    dense, pruned, batches = pair()
    before, untouched = zeros(pruned), {n: p.clone() for n, p in dense.named_parameters()}
    events = []
    result = openwork.recover(pruned, dense, calib=batches, recover=stages, progress=events.append)
    assert [row["stage"] for row in result["recovery"]] == stages.split("+")
    for row in result["recovery"]:
        assert row["after"] < row["before"] and row["tokens"] > 0 and row["seconds"] > 0
    after = zeros(pruned)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(pruned.lm_head.weight, dense.lm_head.weight)
    assert all(torch.equal(p, untouched[n]) for n, p in dense.named_parameters())
    assert {"progress", "recovered"} <= {event["event"] for event in events}


def test_the_same_seed_gives_the_same_weights():
    dense, pruned, batches = pair()
    runs = [copy.deepcopy(pruned) for _ in range(2)]
    for run in runs:
        openwork.recover(run, dense, calib=batches, recover="blocks[epochs=1]", progress=False)
    assert all(torch.equal(a, b) for a, b in zip(runs[0].parameters(), runs[1].parameters()))


def test_a_diverging_rate_and_an_interrupt_change_nothing():
    dense, pruned, batches = pair()
    start = [p.clone() for p in pruned.parameters()]
    result = openwork.recover(pruned, dense, calib=batches, recover="blocks[lr=1e30]+model[lr=1e30,steps=3]", progress=False)
    assert all(row["after"] == row["before"] for row in result["recovery"])
    assert all(torch.equal(a, b) for a, b in zip(start, pruned.parameters()))

    def stop(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        openwork.recover(pruned, dense, calib=batches, recover="model[steps=3]", progress=stop)
    assert all(torch.equal(a, b) for a, b in zip(start, pruned.parameters()))


def test_mistakes_are_named():
    dense, pruned, batches = pair()
    refused = lambda words, **options: pytest.raises(openwork.OpenworkError, match=words)
    with refused("did you mean `blocks`"):
        openwork.recover(pruned, dense, calib=batches, recover="block")
    with refused("halves"):
        openwork.recover(pruned, dense, calib=batches, recover="halves", progress=False)
    with refused("give at least 2"):
        openwork.recover(pruned, dense, calib=batches[:1])
    with refused("give a torch module"):
        openwork.recover(pruned, "dense", calib=batches)
    with refused("give the dense module"):
        openwork.recover(pruned, torch.nn.Linear(3, 3), calib=batches)
