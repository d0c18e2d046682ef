"""Writes `gradients.safetensors` beside the tiny checkpoints in `testdata/models`.

    python testdata/make_gradients.py testdata/models [NAME ..]

Needs torch, transformers and safetensors. For the first window of
`golden.safetensors`, or a random one, stored as `ids`, torch's autograd in f64
gives the gradient of

    sum over tokens of -log p(next token) / number of tokens

(the last token has no next one) for every parameter inside the layers and for
the last norm, stored in f32 under the parameter's name, and `loss` itself.
Fused linear layers and experts are split. Parameters that openwork does not train are left
out.
"""

import sys
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Mxfp4Config


# Parameters that openwork does not train: routers with their norms and factors, the gates of shared experts, sinks, and
# a gated delta net except for its linear layers.
FROZEN = (".mlp.gate.weight", ".mlp.router.weight", ".mlp.router.bias", ".shared_expert_gate.weight", ".sinks",
          ".router.proj.weight", ".router.scale", ".router.per_expert_scale", ".post_feedforward_layernorm_1.weight",
          ".pre_feedforward_layernorm_2.weight", ".post_feedforward_layernorm_2.weight", ".conv1d.weight",
          ".in_proj_a.weight", ".in_proj_b.weight", ".A_log", ".dt_bias", ".linear_attn.norm.weight")


# Random windows instead of golden ones, by seed. In the golden windows of these models some inputs of norms are so
# small that a change of the weights by 1e-7, as by rounding to f32, changes gradients by 6e-4 and 1e-4; here by 2e-5
# and 1e-5.
RANDOM_WINDOWS = {"qwen3.5": 24, "gemma4-e2b-images": 2}


def parts(name, grad, config):
    """A gradient by its linear layers, if it is of a fused one or of experts."""
    if ".experts." in name:
        return experts(name, grad, config.model_type)
    if "qkv_proj" in name:
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        sizes = [head * n for n in (config.num_attention_heads, *[config.num_key_value_heads] * 2)]
        names = [name.replace("qkv_proj", f"{part}_proj") for part in "qkv"]
        return zip(names, grad.split(sizes))
    if "gate_up_proj" in name:
        return zip([name.replace("gate_up", part) for part in ("gate", "up")], grad.chunk(2))
    return [(name, grad)]


def experts(name, grad, family):
    """The gradient of all experts, by expert and linear layer, as `[out, in]`."""
    before, what = name.split(".experts.")
    kind = "bias" if what.endswith("_bias") else "weight"
    names = dict(gate="gate_proj", up="up_proj", down="down_proj")
    if family == "mixtral":
        before, names = before.replace(".mlp", ".block_sparse_moe"), dict(gate="w1", up="w3", down="w2")
    for expert, one in enumerate(grad):
        if family == "gpt_oss":
            # Columns are outputs; those of gate and up alternate.
            one = one.T if kind == "weight" else one
            split = (one[::2], one[1::2])
        else:
            split = one.chunk(2)
        found = zip(("gate", "up"), split) if what.startswith("gate_up") else [("down", one)]
        for role, part in found:
            yield f"{before}.experts.{expert}.{names[role]}.{kind}", part


@contextmanager
def everything_in_f64():
    """transformers casts to f32 inside norms, softmax and delta nets, whatever the type of the model."""
    narrow = torch.float32, torch.Tensor.float
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.Tensor.float = narrow


def gradients(folder):
    how = dict(quantization_config=Mxfp4Config(dequantize=True)) if folder.name.endswith("mxfp4") else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager",
                                                 experts_implementation="eager", **how)
    model = model.eval().double()
    ids = load_file(folder / "golden.safetensors")["ids"][:1].long()
    if seed := RANDOM_WINDOWS.get(folder.name):
        ids = torch.randint(3, 280, ids.shape, generator=torch.Generator().manual_seed(seed))
    with everything_in_f64():
        logits = model(ids, use_cache=False).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1].double(), ids[0, 1:], reduction="sum") / ids.shape[1]
    loss.backward()
    found = dict(loss=loss.detach().reshape(1).float(), ids=ids[0].int())
    for name, parameter in model.named_parameters():
        name = name.replace("model.language_model.", "model.")
        if name.endswith(FROZEN):
            continue
        if name.startswith("model.layers.") or name == "model.norm.weight":
            for part, grad in parts(name, parameter.grad, model.config):
                found[part] = grad.float().contiguous()
    return found


def main(models, names):
    for folder in sorted(models.iterdir()):
        if names and folder.name not in names:
            continue
        found = gradients(folder)
        save_file(found, folder / "gradients.safetensors")
        print(f"{folder.name:14} loss {found['loss'].item():.4f}, {len(found) - 2} parameters")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
