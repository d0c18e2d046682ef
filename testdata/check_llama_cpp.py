"""Compares llama.cpp with transformers on the models of make_gguf_models.py, with F32 weights
and an F32 cache: log-probabilities of the next token. llama.cpp looks GELU up in a table of F16,
which transformers imitates here.

    pip install xllamacpp torch transformers gguf
    python testdata/check_llama_cpp.py [NAME ..]
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers.activations
import xllamacpp
from make_gguf_models import CASES, MODELS, make
from make_models import tokenizer

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


def main(names):
    tok = tokenizer()
    # llama.cpp no longer reads one tensor per expert.
    for name in names or [name for name in CASES if not name.endswith("-old")]:
        with tempfile.TemporaryDirectory() as folder:
            path, more = Path(folder) / f"{name}.gguf", {}
            if name == "phi3":
                rope = MODELS["phi3"][0].rope_parameters | dict(original_max_position_embeddings=512)
                more = PHI3 | dict(rope_parameters=rope)
            ids, logits = make(name, tok, path, more, ["F32"])
            # llama.cpp says nothing about a token that is part of a character.
            whole = [i for i, row in enumerate(logits) if tok.decode(row.argmax()).isascii()]
            found = next_token(path, ids.tolist()[: len(ids) - len(logits) + whole[-1] + 1])
        want = torch.log_softmax(logits[whole[-1]], -1)
        known = ~torch.isnan(found)
        worst = (found - want)[known].abs().max().item()
        same = found.nan_to_num(-1e9).argmax() == want.argmax()
        print(f"{name:16} {int(known.sum()):3} log-probabilities within {worst:.1e} of transformers; same token: {bool(same)}")


if __name__ == "__main__":
    main(sys.argv[1:])
