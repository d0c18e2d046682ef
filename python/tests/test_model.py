"""`prune_model`: on disk by the pipeline, in memory by torch."""

import json
from pathlib import Path

import pytest

import openwork

MODELS = Path(__file__).parents[2] / "testdata"


def tiny_folder():
    found = sorted(p.parent for p in MODELS.rglob("config.json"))
    if not found:
        pytest.skip("no tiny checkpoints here")
    return found[0]


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "calib.txt"
    file.write_text("The pattern of openings in a wall, a screen or a leaf. " * 300)
    return file


def test_a_folder_is_pruned_as_the_command_does(text, tmp_path):
    events = []
    record = openwork.prune_model(
        tiny_folder(), out=tmp_path / "out", spec="2:4", method="sparsegpt", calib=text,
        samples=4, seq_len=16, progress=events.append,
    )
    assert (tmp_path / "out" / "config.json").exists()
    saved = json.loads((tmp_path / "out" / "openwork" / "record.json").read_text())
    assert record["spec"] == saved["spec"] == "2:4"
    assert len(record["layers"]) == len([e for e in events if e["event"] == "layer"])
    assert all(abs(row["density"] - 0.5) < 1e-9 for layer in record["layers"] for row in layer["linears"])


def test_a_dry_run_says_what_would_be_done(text, tmp_path, capfd):
    ask = dict(out=tmp_path / "out", spec="2:4", calib=text, samples=4, seq_len=16, progress=False)
    plan = openwork.prune_model(MODELS / "models" / "qwen3", dry_run=True, **ask)
    assert len(plan["tensors"]) == 14 and plan["tensors"][0]["density"] == 0.5
    assert plan["memory_bytes"] > 0 and plan["workers"] is None
    with pytest.raises(openwork.OpenworkError, match="max_memory='1M': the run needs about"):
        openwork.prune_model(MODELS / "models" / "qwen3", max_memory="1M", **ask)
    assert not (tmp_path / "out").exists()
    openwork.prune_model(MODELS / "models" / "qwen3", max_memory=plan["memory_bytes"], events=True, **ask)
    events = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    assert events[0] == "start" and events.count("pruned") == 14


def test_what_is_wrong_with_a_path_is_said_in_the_commands_words(text, tmp_path):
    ask = dict(spec="2:4", calib=text, samples=4, seq_len=16)
    with pytest.raises(openwork.OpenworkError, match="out is required"):
        openwork.prune_model(tiny_folder(), **ask)
    with pytest.raises(openwork.OpenworkError, match="none"):
        openwork.prune_model(tmp_path / "none", out=tmp_path / "o", **ask)
    with pytest.raises(openwork.OpenworkError, match="the plan does not fit the model"):
        openwork.prune_model(tiny_folder(), out=tmp_path / "o", **(ask | {"spec": "2:7"}))
    with pytest.raises(TypeError, match="has no option 'sample'"):
        openwork.prune_model(tiny_folder(), out=tmp_path / "o", sample=3, **ask)
    assert not (tmp_path / "o").exists()


torch = pytest.importorskip("torch")


class Odd(torch.nn.Module):
    """A family that nobody knows: blocks with a convolution and two linears."""

    def __init__(self):
        super().__init__()
        block = lambda: torch.nn.ModuleDict(
            {"mix": torch.nn.Conv1d(8, 8, 3, padding=1), "up": torch.nn.Linear(8, 16), "gate": torch.nn.Linear(8, 16),
             "down": torch.nn.Linear(16, 8)})
        self.blocks = torch.nn.ModuleList(block() for _ in range(2))
        self.head = torch.nn.Linear(8, 4)
        self.unused = torch.nn.Linear(8, 4)

    def forward(self, x):
        for b in self.blocks:
            x = x + b["mix"](x.transpose(1, 2)).transpose(1, 2)
            x = x + b["down"](torch.relu(b["gate"](x)) * b["up"](x))
        return self.head(x)


def test_a_model_that_nobody_knows_is_pruned_layer_by_layer():
    torch.manual_seed(0)
    model, batches = Odd(), [torch.randn(4, 10, 8) for _ in range(6)]
    dense = [model(b) for b in batches]
    start = {k: v.clone() for k, v in model.state_dict().items()}
    events, errors = [], {}
    for method in ("magnitude", "s-obs"):
        model.load_state_dict(start)
        record = openwork.prune_model(model, spec="2:4", method=method, calib=batches, exclude="head",
                                      progress=events.append)
        for name, module in model.named_modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.Conv1d)):
                sparse = 0.0 if name in ("head", "unused") else 0.5
                assert (module.weight == 0).float().mean() == sparse, name
        errors[method] = sum((model(b) - d).square().sum() for b, d in zip(batches, dense))
    assert errors["s-obs"] < errors["magnitude"]
    assert [layer["name"] for layer in record["layers"]] == ["blocks.0", "blocks.1"]
    reasons = {row["name"]: row["reason"] for row in record["dense"]}
    assert reasons == {"head.weight": "excluded by include, exclude or rules",
                       "unused.weight": "not reached by the calibration batches"}
    assert "unused.weight: 2.4%, not reached by the calibration batches" in record["notes"][0]
    assert events[-1]["event"] == "layer" and model.training


class Tower(torch.nn.Module):
    """Blocks one after the other; `kind` says what else they read."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

        def forward(self, x, gain=None, mask=None):
            return x + self.down(torch.relu(self.up(x * gain))) * mask, None

    def __init__(self, kind):
        super().__init__()
        self.embed = torch.nn.Linear(4, 8)
        self.blocks = torch.nn.ModuleList(self.Block() for _ in range(4))
        self.head = torch.nn.Linear(8, 4)
        self.kind, self.starts = kind, 0

    def forward(self, x):
        self.starts += 1
        x, mask = self.embed(x), (x[..., :1] > -1).float()
        for i, block in enumerate(self.blocks):
            gain = torch.tensor(1.0 + (i if self.kind in ("by block", "early") else 0))
            if self.kind == "hidden":
                gain = x.mean() + 1
            if self.kind == "skip":
                x = x * 0.9
            if self.kind == "early" and i == 1 and x.shape[0] == 2:
                break
            x = block(x, gain=gain, mask=mask)[0]
        return self.head(x)


@pytest.mark.parametrize("kind", ["plain", "by block", "hidden", "skip", "early"])
def test_inputs_of_blocks_are_those_of_the_pruned_model(kind):
    torch.manual_seed(5)
    model, batches = Tower(kind), [torch.randn(3, 10, 4) for _ in range(30)]
    if kind == "early":
        batches[7] = batches[7][:2]
    start = {k: v.clone() for k, v in model.state_dict().items()}
    record = openwork.prune_model(model, spec="2:4", method="s-obs", calib=batches, include="blocks.[023]")
    found, starts = {k: v.clone() for k, v in model.state_dict().items()}, model.starts
    # Layer after layer, the whole model for each block, as the definition says.
    model.load_state_dict(start)
    for number in (0, 2, 3):
        block, seen = model.blocks[number], {}
        hooks = [layer.register_forward_pre_hook(lambda m, x: seen.setdefault(m, []).append(x[0].detach()))
                 for layer in (block.up, block.down)]
        for batch in batches:
            model(batch)
        for hook in hooks:
            hook.remove()
        for layer in (block.up, block.down):
            h = openwork.Hessian(layer.in_features)
            for x in seen[layer]:
                h.add(x.reshape(-1, layer.in_features))
            openwork.prune(layer.weight, "2:4", "s-obs", hessian=h)
    for name, weight in model.state_dict().items():
        assert torch.allclose(weight, found[name], atol=1e-5), name
        assert torch.equal(weight == 0, found[name] == 0), name
    why = dict(hidden="blocks.2 reads more than the output of blocks.1",
               early="some batches do not run the blocks from blocks.0 on as the first batch does")
    notes = [f"{why[kind]}; the model was run from its start for every block"] if kind in why else []
    assert record["notes"][1:] == notes  # the first says what stays dense
    if kind in ("plain", "by block"):
        # Orders, the chain's first look, the inputs of the first block, and a check at each other.
        assert starts == 2 + len(batches) + 2


def test_an_error_puts_all_weights_back():
    model, batches = Odd(), [torch.randn(4, 10, 8)]
    start = {k: v.clone() for k, v in model.state_dict().items()}

    def stop(event):
        if event["event"] == "layer" and event["layer"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        openwork.prune_model(model, spec="2:4", calib=batches, exclude="head|unused", progress=stop)
    assert all(torch.equal(v, start[k]) for k, v in model.state_dict().items())
    with pytest.raises(openwork.OpenworkError, match=r"(?s)exclude them or give them a rule:.*blocks.0.up"):
        openwork.prune_model(model, spec="2:7", calib=batches)
    with pytest.raises(openwork.OpenworkError, match="at least one"):
        openwork.prune_model(model, spec="2:4", calib=[])
    record = openwork.prune_model(model, rules={"down": "1:4"}, calib=batches)
    assert [row["density"] for layer in record["layers"] for row in layer["linears"]] == [0.25, 0.25]


def test_a_convolution_is_pruned_by_the_patches_it_sees():
    torch.manual_seed(1)
    for conv in (
        torch.nn.Conv2d(4, 6, 3, stride=2, padding=1),
        torch.nn.Conv2d(4, 6, (3, 1), padding="same", dilation=2),
        torch.nn.Conv2d(4, 8, 3, groups=2, padding=1, padding_mode="circular"),
        torch.nn.Conv1d(4, 6, 3, padding=2),
    ):
        from openwork._layer_inputs import input_matrix

        x = torch.randn(2, 4, 9, 9) if isinstance(conv, torch.nn.Conv2d) else torch.randn(2, 4, 9)
        rows = input_matrix(conv, x)
        weight = conv.weight.reshape(conv.weight.shape[0], -1)
        assert rows.shape[1] == weight.shape[1]
        if conv.groups == 1:
            out = (rows @ weight.t() + conv.bias).reshape(2, -1, weight.shape[0]).transpose(1, 2)
            assert torch.allclose(out, conv(x).flatten(2), atol=1e-5)
        openwork.prune(conv.weight, "unstructured(50%)", "s-obs", inputs=rows)
        assert (conv.weight == 0).float().mean() == 0.5


def test_a_transformers_model_in_one_line():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=64, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)
    batches = [torch.randint(0, 64, (1, 32)) for _ in range(8)]
    record = openwork.prune_model(model, spec="2:4", calib=batches)
    assert len(record["layers"]) == 2 and len(record["layers"][0]["linears"]) == 4
    for row in record["layers"][1]["linears"]:
        assert row["density"] == 0.5
    # GPT-2 stores its weights transposed: two of four inputs stay for each output.
    weight = model.transformer.h[1].mlp.c_fc.weight
    assert ((weight != 0).reshape(8, 4, -1).sum(1) == 2).all()


SHAPE = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=8, max_position_embeddings=64, num_experts_per_tok=2)
#: Configurations of models whose experts transformers 5 fuses into one parameter.
FUSED = {
    "MixtralConfig": dict(intermediate_size=64, num_local_experts=4),
    "Qwen3MoeConfig": dict(intermediate_size=64, moe_intermediate_size=32, num_experts=4),
    "GptOssConfig": dict(intermediate_size=64, num_local_experts=4,
                         layer_types=["sliding_attention", "full_attention"]),
}


@pytest.mark.parametrize("config", FUSED)
def test_fused_experts_are_pruned_or_excluded(config):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**SHAPE, **FUSED[config]))
    model = model.float()
    experts = [name for name, _ in model.named_parameters() if ".experts." in name]
    fused = {name for name in experts if model.get_parameter(name).dim() == 3}
    if not fused:
        pytest.skip(f"SKIPPED: transformers {transformers.__version__} does not fuse the experts of {config}")
    batches = [torch.randint(0, 64, (1, 32)) for _ in range(4)]
    start = {k: v.clone() for k, v in model.state_dict().items()}

    record = openwork.prune_model(model, spec="2:4", method="magnitude", calib=batches)
    # What the note names is exactly what has no zeros to speak of, and the shares add up.
    dense = {n for n, p in model.named_parameters() if p.dim() >= 2 and (p == 0).float().mean() != 0.5}
    assert {row["name"] for row in record["dense"]} == dense and not fused & dense
    assert all(name in record["notes"][0] for name in dense)
    total = sum(p.numel() for p in model.parameters())
    share = sum(model.get_parameter(name).numel() for name in dense) / total
    assert sum(row["share"] for row in record["dense"]) == pytest.approx(share) and share < 0.3
    assert f"{share:.1%} of the weights stay dense" in record["notes"][0]

    # Who excludes them asks for it.
    model.load_state_dict(start)
    record = openwork.prune_model(model, spec="2:4", method="magnitude", calib=batches, exclude="experts")
    assert {row["name"] for row in record["dense"] if row["reason"].startswith("excluded")} == set(experts)
    assert all(torch.equal(model.get_parameter(name), start[name]) for name in experts)


def test_embeddings_alone_may_be_most_of_a_model():
    model = torch.nn.Sequential(torch.nn.Embedding(4096, 8), torch.nn.Linear(8, 8))
    record = openwork.prune_model(model, spec="2:4", calib=[torch.arange(64)[None]])
    assert record["notes"] == ["99.8% of the weights stay dense:\n  0.weight: 99.8%, embedding or output head"]


def test_a_text_is_read_in_windows_and_as_single_tokens():
    torch = pytest.importorskip("torch")

    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.line = torch.nn.Embedding(32, 8), torch.nn.Linear(8, 8)
            self.seen = set()

        def forward(self, ids):
            self.seen.add(tuple(ids.shape))
            return self.line(self.embed(ids))

    def read(**options):
        model = Reader()
        openwork.prune_model(
            model, spec="2:4", method="s-obs", calib="some words " * 40, samples=4, seq_len=32,
            tokenizer=lambda text: {"input_ids": [ord(c) % 32 for c in text]}, **options,
        )
        return model.seen

    assert read() == {(1, 32), (4 * 32 // 16, 1)}
    assert read(single_tokens=0) == {(1, 32)}
    assert read(single_tokens=40) == {(1, 32), (32, 1), (8, 1)}
