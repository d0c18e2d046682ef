"""Compares llama.cpp with transformers on the models of make_gguf_models.py, with F32 weights
and an F32 cache: log-probabilities of the next token. llama.cpp looks GELU up in a table of F16,
which transformers imitates here.

    pip install xllamacpp torch transformers gguf
    python testdata/check_llama_cpp.py [NAME ..]

With --exports OPENWORK, the path of the command, also the files that `openwork pack --format
gguf-bf16` makes of those in testdata/gguf. There both the weights and, in llama.cpp, the inputs of
linear layers are rounded to 16 bits, so the file itself is compared as well.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import torch
import transformers.activations
import xllamacpp
from make_gguf_models import CASES, HERE, MODELS, make
from make_models import tokenizer
from safetensors.torch import load_file

# llama.cpp chooses the long factors of Phi-3 by the size of its context, so that must be
# within the original one.
PHI3 = dict(max_position_embeddings=1024, original_max_position_embeddings=512)


def gelu_of_a_table(self, x):
    y = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
    return torch.where(x <= -10, 0.0, torch.where(x >= 10, x, y))


transformers.activations.GELUTanh.forward = gelu_of_a_table


def next_token(path, ids):
    """The log-probabilities of the token after `ids`, by llama.cpp."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 256
    params.n_parallel = 1
    params.warmup = False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity = 0
    server = xllamacpp.Server(params)
    asked = {"prompt": ids, "n_predict": 1, "temperature": 0.0, "n_probs": 288, "cache_prompt": False}
    answer = server.handle_completions(asked)
    answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    found = torch.full((288,), float("nan"))
    for entry in top:
        found[entry["id"]] = entry["logprob"]
    return found


def compare(path, tok, ids, logits):
    """The number of log-probabilities, the largest difference, and whether the best token agrees."""
    # llama.cpp says nothing about a token that is part of a character.
    last = [i for i, row in enumerate(logits) if tok.decode(row.argmax()).isascii()][-1]
    found = next_token(path, ids.tolist()[: len(ids) - len(logits) + last + 1])
    want = torch.log_softmax(logits[last], -1)
    known = ~torch.isnan(found)
    worst = (found - want)[known].abs().max().item()
    return int(known.sum()), worst, bool(found.nan_to_num(-1e9).argmax() == want.argmax())


def main(names, openwork):
    tok = tokenizer()
    # llama.cpp no longer reads one tensor per expert.
    for name in names or [name for name in CASES if not name.endswith("-old")]:
        with tempfile.TemporaryDirectory() as folder:
            path, more = Path(folder) / f"{name}.gguf", {}
            if name == "phi3":
                rope = MODELS["phi3"][0].rope_parameters | dict(original_max_position_embeddings=512)
                more = PHI3 | dict(rope_parameters=rope)
            ids, logits = make(name, tok, path, more, ["F32"])
            count, worst, same = compare(path, tok, ids, logits)
            print(f"{name:16} {count:3} log-probabilities within {worst:.1e} of transformers; same token: {same}", flush=True)
            if openwork and name not in ("phi3", "gemma2"):
                source, out = HERE / f"{name}.gguf", Path(folder) / "out.gguf"
                golden = load_file(HERE / f"{name}.safetensors")
                subprocess.run([openwork, "pack", source, "--out", out, "--format", "gguf-bf16"], check=True, capture_output=True)
                before, after = (compare(path, tok, golden["ids"], golden["logits"])[1] for path in (source, out))
                print(f"{'':16} export: within {after:.1e}; the file in testdata: {before:.1e}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--exports", metavar="OPENWORK")
    asked = parser.parse_args()
    main(asked.names, asked.exports)
