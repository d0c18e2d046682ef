"""Writes `gradients.safetensors` beside the tiny checkpoints in `testdata/models`.

    python testdata/make_gradients.py testdata/models

Needs torch, transformers and safetensors. For the first window of
`golden.safetensors`, torch's autograd in f64 gives the gradient of

    sum over tokens of -log p(next token) / number of tokens

(the last token has no next one) for every parameter inside the layers and for
the last norm, stored in f32 under the parameter's name, and `loss` itself.
Fused linear layers are split. Models that openwork does not train are left out.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


# Experts, multipliers, bounded scores, clamped or scaled queries, other mixers.
UNTRAINABLE = {"gemma2", "gemma4", "gemma4-moe", "gpt-oss", "gpt-oss-mxfp4", "granite", "ministral3", "mixtral", "olmoe", "qwen2-moe", "qwen3-moe",
               "qwen3.5", "qwen3.5-images", "qwen3.5-moe"}


def parts(name, grad, config):
    """A gradient by its linear layers, if it is of a fused one."""
    if "qkv_proj" in name:
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        sizes = [head * n for n in (config.num_attention_heads, *[config.num_key_value_heads] * 2)]
        names = [name.replace("qkv_proj", f"{part}_proj") for part in "qkv"]
        return zip(names, grad.split(sizes))
    if "gate_up_proj" in name:
        return zip([name.replace("gate_up", part) for part in ("gate", "up")], grad.chunk(2))
    return [(name, grad)]


def gradients(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    ids = load_file(folder / "golden.safetensors")["ids"][:1].long()
    logits = model(ids, use_cache=False).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1].double(), ids[0, 1:], reduction="sum") / ids.shape[1]
    loss.backward()
    found = dict(loss=loss.detach().reshape(1).float())
    for name, parameter in model.named_parameters():
        name = name.replace("model.language_model.", "model.")
        if name.startswith("model.layers.") or name == "model.norm.weight":
            for part, grad in parts(name, parameter.grad, model.config):
                found[part] = grad.float().contiguous()
    return found


def main(models):
    for folder in sorted(path for path in models.iterdir() if path.name not in UNTRAINABLE):
        found = gradients(folder)
        save_file(found, folder / "gradients.safetensors")
        print(f"{folder.name:14} loss {found['loss'].item():.4f}, {len(found) - 1} parameters")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
