"""`prune_model(module)` on architectures of transformers that openwork does not know by name."""

import re
import warnings

import numpy as np
import pytest

import openwork

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCABULARY = 64
TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
             max_position_embeddings=64)
DECODER = dict(SIZES, num_key_value_heads=2)
SEQ2SEQ = dict(vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
               decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, decoder_start_token_id=2, **TOKENS)


def ids():
    return torch.randint(4, VOCABULARY, (2, 24))


def pair():
    return dict(input_ids=ids(), decoder_input_ids=ids())


def sound():
    return dict(input_features=torch.randn(2, 8, 64), decoder_input_ids=ids())


def image():
    return dict(pixel_values=torch.randn(4, 3, 16, 16))


EMBEDDING, ROUTER, BIAS = "embedding or output head", "router of experts", "bias"
OTHER = "not the weight of a linear layer, a convolution or experts"
DIRECT = "read without calling its layer"
HEADS = {"model.embed_tokens.weight": EMBEDDING, "lm_head.weight": EMBEDDING}

#: For each architecture the class, its configuration, its batches, what stays dense and why
#: (numbers as #), and the fused parameters that are stored as inputs by outputs.
ARCHITECTURES = {
    "Marian": ("MarianMTModel", dict(SEQ2SEQ, max_position_embeddings=64), pair, {
        "model.shared.weight": EMBEDDING, "model.encoder.embed_positions.weight": EMBEDDING,
        "model.decoder.embed_positions.weight": EMBEDDING}, None),
    "T5": ("T5ForConditionalGeneration", dict(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
        decoder_start_token_id=0), pair, {
        "shared.weight": EMBEDDING,
        "encoder.block.#.layer.#.SelfAttention.relative_attention_bias.weight": EMBEDDING,
        "decoder.block.#.layer.#.SelfAttention.relative_attention_bias.weight": EMBEDDING}, None),
    "Whisper": ("WhisperForConditionalGeneration", dict(
        SEQ2SEQ, num_mel_bins=8, max_source_positions=32, max_target_positions=32), sound, {
        "model.encoder.embed_positions.weight": EMBEDDING, "model.decoder.embed_tokens.weight": EMBEDDING,
        "model.decoder.embed_positions.weight": EMBEDDING}, None),
    "ViT": ("ViTForImageClassification", dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4),
        image, {"vit.embeddings.cls_token": OTHER, "vit.embeddings.position_embeddings": OTHER}, None),
    "GPTNeoX": ("GPTNeoXForCausalLM", SIZES, ids, {
        "gpt_neox.embed_in.weight": EMBEDDING, "lm_head.weight": EMBEDDING}, None),
    "OPT": ("OPTForCausalLM", dict(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, ffn_dim=48, num_attention_heads=4,
        max_position_embeddings=64, word_embed_proj_dim=16, **TOKENS), ids, {
        "model.decoder.embed_tokens.weight": EMBEDDING, "model.decoder.embed_positions.weight": EMBEDDING}, None),
    "Bloom": ("BloomForCausalLM", dict(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, **TOKENS), ids, {
        "transformer.word_embeddings.weight": EMBEDDING}, None),
    "Mamba": ("MambaForCausalLM", dict(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8, time_step_rank=4, **TOKENS), ids, {
        "backbone.embeddings.weight": EMBEDDING, "backbone.layers.#.mixer.A_log": OTHER,
        "backbone.layers.#.mixer.conv#d.weight": DIRECT, "backbone.layers.#.mixer.dt_proj.weight": DIRECT}, None),
    "GptOss": ("GptOssForCausalLM", dict(
        DECODER, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
        layer_types=["sliding_attention", "full_attention"]), ids, dict(HEADS, **{
            "model.layers.#.mlp.router.weight": ROUTER, "model.layers.#.mlp.experts.gate_up_proj_bias": BIAS,
            "model.layers.#.mlp.experts.down_proj_bias": BIAS}), "gate_up_proj|down_proj"),
    "DeepseekV3": ("DeepseekV3ForCausalLM", dict(
        DECODER, num_key_value_heads=4, moe_intermediate_size=24, n_routed_experts=8, num_experts_per_tok=2, n_group=2,
        topk_group=1, first_k_dense_replace=1, n_shared_experts=1, q_lora_rank=16, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8), ids,
        dict(HEADS, **{"model.layers.#.mlp.gate.weight": ROUTER}), None),
    "Qwen3Next": ("Qwen3NextForCausalLM", dict(
        DECODER, head_dim=8, moe_intermediate_size=24, shared_expert_intermediate_size=24, num_experts=8,
        num_experts_per_tok=2, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"]), ids, dict(HEADS, **{
            "model.layers.#.linear_attn.conv#d.weight": DIRECT, "model.layers.#.mlp.gate.weight": ROUTER,
            "model.layers.#.mlp.shared_expert_gate.weight": ROUTER}), None),
    # All experts in one batched product, in which the tokens of other experts are zero.
    "Llama4Text": ("Llama4ForCausalLM", dict(
        DECODER, head_dim=8, intermediate_size_mlp=48, num_local_experts=4, num_experts_per_tok=1,
        interleave_moe_layer_step=1, attention_chunk_size=32), ids,
        dict(HEADS, **{"model.layers.#.feed_forward.router.weight": ROUTER}), "gate_up_proj|down_proj"),
    # The experts' matrices below each other in two-dimensional parameters.
    "Dbrx": ("DbrxForCausalLM", dict(
        vocab_size=VOCABULARY, d_model=32, n_heads=4, n_layers=2, max_seq_len=64,
        ffn_config=dict(ffn_hidden_size=48, moe_num_experts=4, moe_top_k=2, hidden_size=32),
        attn_config=dict(kv_n_heads=2, rope_theta=1e4, clip_qkv=8.0)), ids, {
        "transformer.wte.weight": EMBEDDING, "lm_head.weight": EMBEDDING,
        "transformer.blocks.#.ffn.router.layer.weight": ROUTER}, "w2"),
    # Experts in attention too, and one module per parameter.
    "JetMoe": ("JetMoeForCausalLM", dict(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_key_value_heads=2, kv_channels=8,
        intermediate_size=48, max_position_embeddings=64, num_local_experts=4, num_experts_per_tok=2), ids, {
        "model.embed_tokens.weight": EMBEDDING, "model.layers.#.mlp.router.layer.weight": ROUTER,
        "model.layers.#.self_attention.experts.router.layer.weight": ROUTER}, None),
}


def build(name, count=6):
    """A random model of an architecture in evaluation mode, and batches."""
    kind, config, batch = ARCHITECTURES[name][:3]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, f"{name}Config")(**config)).float().eval()
    with torch.no_grad():
        for param in model.parameters():
            if param.dim() > 1:
                param.normal_(0, 0.1)
    return model, [batch() for _ in range(count)]


def run(model, batch):
    with torch.no_grad():
        return (model(**batch) if isinstance(batch, dict) else model(batch)).logits


def matrices(model, name, inputs_first):
    """The matrices of a parameter with inputs as the last axis."""
    param = model.get_parameter(name).detach()
    if inputs_first is not None and re.search(rf"\.({inputs_first})$", name):
        if name.endswith("w2"):  # of DBRX, with all experts below each other
            param = param.unflatten(0, (4, -1))
        return param.transpose(-1, -2)
    is_convolution = isinstance(model.get_submodule(name.rpartition(".")[0]), (torch.nn.Conv1d, torch.nn.Conv2d))
    return param.flatten(1) if is_convolution else param


def obeys_two_of_four(weights):
    return bool(((weights != 0).unflatten(-1, (-1, 4)).sum(-1) == 2).all())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_weight_is_pruned_or_named(name):
    model, batches = build(name)
    inputs_first = ARCHITECTURES[name][4]
    start, logits = {k: v.clone() for k, v in model.state_dict().items()}, run(model, batches[0])
    rows = {}
    for method in ("magnitude", "s-obs"):
        model.load_state_dict(start)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            record = openwork.prune_model(model, spec="2:4", method=method, calib=batches, progress=False)
        rows[method] = {row["name"]: row for layer in record["layers"] for row in layer["linears"]}

    # Every matrix has the pattern along its inputs, at a lower error than magnitude gives.
    pruned = {re.sub(r"\[\d+\]$", "", row) for row in rows["s-obs"]}
    for param in pruned:
        assert obeys_two_of_four(matrices(model, param, inputs_first)), param
    for row in rows["s-obs"]:
        assert rows["s-obs"][row]["error"] < rows["magnitude"][row]["error"] < 1, row
        assert rows["s-obs"][row]["density"] == 0.5

    # The rest is listed with its reason and has kept its bits.
    dense = {row["name"]: row for row in record["dense"]}
    large = {n for n, param in model.named_parameters() if param.dim() > 1}
    assert pruned | set(dense) == large and not pruned & set(dense)
    assert {re.sub(r"\d+", "#", n): row["reason"] for n, row in dense.items()} == ARCHITECTURES[name][3]
    total = sum(param.numel() for param in model.parameters())
    for n, row in dense.items():
        assert row["share"] == pytest.approx(model.get_parameter(n).numel() / total)
        assert re.sub(r"\d+", "#", n) in re.sub(r"\d+", "#", record["notes"][0])
    # Tied parameters have several names in a state dict.
    same = {model.get_parameter(n).data_ptr() for n in pruned}
    for n, value in model.state_dict(keep_vars=True).items():
        assert value.data_ptr() in same or torch.equal(value.detach(), start[n]), n

    # What is dense neither by request nor by design is in a warning.
    warned = "\n".join(str(each.message) for each in caught if "stay dense" in str(each.message))
    for n, row in dense.items():
        in_warning = re.sub(r"\d+", "#", n) in re.sub(r"\d+", "#", warned)
        assert in_warning == (row["reason"] in (OTHER, DIRECT)), n
    found = run(model, batches[0])
    assert found.isfinite().all() and not torch.equal(found, logits) and not model.training
    assert not any("run from its start" in note for note in record["notes"])


def gpt_oss_inputs(model, batches):
    """The inputs of each expert of the first layer by the definition: of gate_up and of down."""
    seen, experts = [], model.model.layers[0].mlp.experts
    hook = experts.register_forward_pre_hook(lambda _, args: seen.append([each.clone() for each in args[:2]]))
    for batch in batches:
        run(model, batch)
    hook.remove()
    count = experts.gate_up_proj.shape[0]
    tokens = [torch.cat([x[(chosen == e).any(1)] for x, chosen in seen]) for e in range(count)]
    with torch.no_grad():
        channels = [experts._apply_gate(x @ experts.gate_up_proj[e] + experts.gate_up_proj_bias[e])
                    for e, x in enumerate(tokens)]
    return tokens, channels, torch.cat([x for x, _ in seen])


@pytest.mark.parametrize("count", [6, 1])
def test_an_expert_is_pruned_by_its_own_tokens(count):
    model, batches = build("GptOss", count)
    if count == 1:
        # Too few tokens, and none for the last expert.
        batches = [batches[0][:, :8]]
        with torch.no_grad():
            for layer in model.model.layers:
                layer.mlp.router.bias[:] = torch.tensor([0.0, 0.0, 0.0, -1e4])
    tokens, channels, everything = gpt_oss_inputs(model, batches)
    experts = model.model.layers[0].mlp.experts
    start = {n: p.detach().clone() for n, p in experts.named_parameters()}
    record = openwork.prune_model(model, spec="2:4", method="s-obs", calib=batches, include=r"layers\.0\..*experts")
    rows = {row["name"]: row for row in record["layers"][0]["linears"]}
    assert len(rows) == 2 * len(tokens)
    for param, inputs, common in (("gate_up_proj", tokens, everything), ("down_proj", channels, None)):
        for expert, x in enumerate(inputs):
            n, width = x.shape
            hessian = openwork.Hessian.from_inputs(x) if n >= width else None
            if hessian is None:
                h = (x.T @ x / max(n, 1)).double().numpy()
                size = np.trace(h) / width or 1.0
                other = size * np.eye(width) if common is None else (common.T @ common / len(common)).double().numpy()
                hessian = openwork.Hessian.from_matrix((n * h + (width - n) * other) / width, width)
            wanted = start[param][expert].T.clone()
            openwork.prune(wanted, "2:4", "s-obs", hessian=hessian)
            found = getattr(experts, param)[expert].detach().T
            assert torch.equal(found == 0, wanted == 0) and torch.allclose(found, wanted, atol=1e-4)
            row = rows[f"model.layers.0.mlp.experts.{param}[{expert}]"]
            assert (row["expert"], row["tokens"]) == (expert, n)
            rest = "they are supplemented as if uncorrelated" if common is None else (
                "the statistics of all tokens of the layer supplement them")
            notes = [f"{n} tokens routed to this expert, for {width} inputs: {rest}"] if n < width else []
            assert [note for note in row["notes"] if "routed" in note] == notes
    few = "8 of 8 matrices of experts have fewer tokens than inputs, the fewest model.layers.0.mlp.experts.gate_up_proj[3]"
    assert any(few in note for note in record["notes"]) == (count == 1)


def test_the_implementation_of_experts_does_not_matter():
    found = {}
    for implementation in ("eager", "grouped_mm", "batched_mm"):
        model, batches = build("GptOss", 2)
        model.set_experts_implementation(implementation)
        openwork.prune_model(model, spec="2:4", method="sparsegpt", calib=batches)
        assert model.config._experts_implementation == implementation
        found[implementation] = model.state_dict()
    for name, weight in found["eager"].items():
        assert all(torch.equal(weight, other[name]) for other in found.values()), name


class Experts(torch.nn.Module):
    """Experts of an own kind: a parameter that is read in slices, in copies, or in different shapes."""

    def __init__(self, kind):
        super().__init__()
        self.router, self.kind = torch.nn.Linear(8, 4), kind
        self.up = torch.nn.Parameter(torch.randn(4, 16, 8))
        self.down = torch.nn.Parameter(torch.randn(4, 8, 16))
        self.rest = torch.nn.Linear(8, 8)

    def forward(self, x):
        chosen = self.router(x).argmax(-1)
        out = torch.zeros_like(x)
        for e in chosen.unique().tolist():
            up = self.up[e].clone() if self.kind == "copies" else self.up[e]
            h = torch.relu(x[chosen == e] @ up.T)
            out[chosen == e] = h @ self.down[e].T
        if self.kind == "shapes":
            out = out + x @ self.down.view(-1, 8, 8)[0] @ self.up[0].T @ self.up[0]
        if self.kind == "2-D":
            out = out + x @ self.table[:8] + x @ self.table[:16].T @ self.table[:16]
        return self.rest(out)


def test_experts_that_cannot_be_read_are_named():
    torch.manual_seed(0)
    batches = [torch.randn(200, 8) for _ in range(2)]
    model = Experts("slices")
    record = openwork.prune_model(model, spec="2:4", calib=batches)
    assert [row["name"] for row in record["dense"]] == ["router.weight"]
    assert obeys_two_of_four(model.up.detach()) and obeys_two_of_four(model.down.detach())

    model = Experts("copies")
    with pytest.warns(UserWarning, match=rf"stay dense:\n  up: .*%, {OTHER}"):
        record = openwork.prune_model(model, spec="2:4", calib=batches)
    assert {row["name"] for row in record["dense"]} == {"router.weight", "up"}
    # Most of the weights: refused, unless it is asked for.
    model.down = None
    model.forward = lambda x: model.rest(x @ model.up[0].clone().T @ model.up[1].clone())
    with pytest.raises(openwork.OpenworkError, match=r"(?s)of the weights would stay dense:.*up: .*allow_dense=True"):
        openwork.prune_model(model, spec="2:4", calib=batches)

    model = Experts("2-D")
    model.table = torch.nn.Parameter(torch.randn(32, 8))
    with pytest.warns(UserWarning, match="table: .*%, read as matrices of different shapes"):
        openwork.prune_model(model, spec="2:4", calib=batches)


def test_experts_are_selected_by_name_and_shape():
    torch.manual_seed(0)
    model, batches = Experts("slices"), [torch.randn(200, 8)]
    start = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(openwork.OpenworkError, match=r"(?s)exclude them or give them a rule:\n  up: .*not a multiple of 16"):
        openwork.prune_model(model, spec="1:16", calib=batches, exclude="rest")
    with pytest.raises(openwork.OpenworkError, match="no layer would be pruned"):
        openwork.prune_model(model, spec="2:4", calib=batches, include="router")
    record = openwork.prune_model(model, spec="2:4", calib=batches, rules={"down": "1:4", "rest": None})
    assert {row["name"][:-3]: row["density"] for row in record["layers"][0]["linears"]} == {"up": 0.5, "down": 0.25}

    model.load_state_dict(start)

    def stop(event):
        if event["event"] == "progress" and event["stage"] == "prune":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        openwork.prune_model(model, spec="2:4", calib=batches, progress=stop)
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())


def test_a_weight_that_is_computed_is_named():
    from torch.nn.utils.parametrizations import weight_norm

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), weight_norm(torch.nn.Linear(8, 4)))
    with pytest.warns(UserWarning, match="1.parametrizations.weight.original1: .*computes the weight from other"):
        record = openwork.prune_model(model, spec="2:4", calib=[torch.randn(64, 8)])
    assert [row["name"] for layer in record["layers"] for row in layer["linears"]] == ["0.weight"]
