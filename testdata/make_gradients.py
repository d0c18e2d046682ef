"""Writes `gradients.safetensors` beside the tiny checkpoints in `testdata/models`.

    python testdata/make_gradients.py testdata/models

Needs torch, transformers and safetensors. For the first window of
`golden.safetensors`, torch's autograd in f64 gives the gradient of

    sum over tokens of -log p(next token) / number of tokens

(the last token has no next one) for every parameter inside the layers and for
the last norm, stored in f32 under the parameter's name, and `loss` itself.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


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
            found[name] = parameter.grad.float().contiguous()
    return found


def main(models):
    for folder in sorted(path for path in models.iterdir() if path.is_dir()):
        found = gradients(folder)
        save_file(found, folder / "gradients.safetensors")
        print(f"{folder.name:14} loss {found['loss'].item():.4f}, {len(found) - 1} parameters")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
