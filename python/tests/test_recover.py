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


def other_pairs(kind):
    """An encoder-decoder, or experts with two-dimensional biases, dense and pruned, and batches."""
    torch.manual_seed(0)
    ids = lambda: torch.randint(4, 64, (2, 16))
    if kind == "marian":
        dense = transformers.MarianMTModel(transformers.MarianConfig(
            vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=32,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2))
        batches = [dict(input_ids=ids(), decoder_input_ids=ids()) for _ in range(8)]
    else:
        dense = transformers.GptOssForCausalLM(transformers.GptOssConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=32, num_local_experts=4, num_experts_per_tok=2,
            layer_types=["sliding_attention", "full_attention"]))
        batches = [ids() for _ in range(8)]
    with torch.no_grad():
        for parameter in dense.parameters():
            parameter.normal_(0, 0.1) if parameter.dim() > 1 else None
    pruned = copy.deepcopy(dense)
    openwork.prune_model(pruned, spec="2:4", method="wanda", calib=batches, progress=False)
    return dense, pruned, batches


@pytest.mark.parametrize(("kind", "stages"), [
    ("marian", "blocks[epochs=1]"), ("gpt-oss", "blocks[epochs=1]"), ("gpt-oss", "model[steps=8]")])
def test_encoder_decoders_and_fused_experts_recover(kind, stages):
    dense, pruned, batches = other_pairs(kind)
    before, start = zeros(pruned), {name: p.detach().clone() for name, p in pruned.named_parameters()}
    result = openwork.recover(pruned, dense, calib=batches, recover=stages, progress=False)
    assert result["recovery"][0]["after"] < result["recovery"][0]["before"] and result["notes"] == []
    after = zeros(pruned)
    assert all(torch.equal(before[name], after[name]) for name in before if not name.endswith("bias"))
    trained = {name for name, p in pruned.named_parameters() if not torch.equal(p, start[name])}
    wanted = ["encoder.layers.0.fc1.weight", "decoder.layers.1.fc1.weight"] if kind == "marian" else [
        "layers.0.mlp.experts.gate_up_proj", "layers.1.mlp.experts.down_proj"]
    assert {f"model.{name}" for name in wanted} <= trained


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
