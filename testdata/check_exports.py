"""Checks what `openwork pack --format ..` writes by the others' own code.

    pip install torch transformers gguf safetensors [compressed-tensors==0.14.0.1 transformers==4.57.3]
    python testdata/check_exports.py target/debug/openwork

A tiny random model is pruned to 2:4 with torch, exported, and read back: the
tensor cores' order by torch's conversion routines, the bit masks by
compressed-tensors (and the whole folder by transformers where both are
installed), GGUF by the `gguf` package and by transformers. Every weight must
come back bit for bit, except those rounded to Q8_0, of which zeros must.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.sparse._semi_structured_conversions import sparse_semi_structured_to_dense_cutlass
from transformers import LlamaConfig, LlamaForCausalLM

OPENWORK = sys.argv[1]
TESTDATA = Path(__file__).parent


def openwork(*args):
    done = subprocess.run([OPENWORK, *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tensors(folder):
    """All tensors of a folder."""
    return {k: v for f in sorted(Path(folder).glob("*.safetensors")) for k, v in load_file(f).items()}


def pruned(folder):
    """A tiny Llama with 2:4 linears, in bf16."""
    torch.manual_seed(5)
    config = LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=128, max_position_embeddings=64)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, w in model.named_parameters():
            if name.endswith("_proj.weight"):
                groups = w.view(-1, 4)
                drop = groups.abs().topk(2, dim=1, largest=False).indices
                groups.scatter_(1, drop, 0.0)
                groups[::7] = 0.0  # groups with fewer than two that are not zero
                groups[3::7, 1] = 0.0
    model.save_pretrained(folder)
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        (Path(folder) / name).write_bytes((TESTDATA / "models/llama" / name).read_bytes())
    return {k: v for k, v in model.state_dict().items() if k != "lm_head.weight" or not config.tie_word_embeddings}


def same(a, b):
    return a.shape == b.shape and torch.equal(a.view(torch.int16), b.view(torch.int16))


def check_cutlass(folder, dense):
    found = tensors(folder)
    names = [k.removesuffix(".cutlass.meta") for k in found if k.endswith(".cutlass.meta")]
    assert len(names) == 14
    for name in names:
        back = sparse_semi_structured_to_dense_cutlass(found[f"{name}.cutlass.values"], found[f"{name}.cutlass.meta"])
        assert same(back, dense[name]), name
    print(f"torch reads {len(names)} tensors in the tensor cores' order")


def check_compressed(folder, dense):
    found = tensors(folder)
    names = [k.removesuffix(".bitmask") for k in found if k.endswith(".bitmask")]
    assert len(names) == 14
    try:
        from compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask import Sparse24BitMaskTensor
    except ImportError:
        print("compressed-tensors is not installed: its reader was not run")
        return
    for name in names:
        data = {k: found[f"{name}.{k}"] for k in ["shape", "compressed", "bitmask"]}
        back = Sparse24BitMaskTensor.from_compressed_data(**data).decompress()
        assert same(back, dense[f"{name}.weight"]), name
    print(f"compressed-tensors reads {len(names)} tensors")
    import transformers
    if transformers.__version__.startswith("4."):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        state = model.state_dict()
        for name in names:
            assert same(state[f"{name}.weight"], dense[f"{name}.weight"]), name
        print(f"transformers {transformers.__version__} loads the folder")


def check_gguf(work):
    import gguf
    from transformers import AutoModelForCausalLM
    for source in sorted((TESTDATA / "gguf").glob("*.gguf")):
        if "gemma" in source.name:
            continue
        want = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32).state_dict()
        for kind in ["f16", "bf16", "q8_0"]:
            out = work / f"{source.stem}-{kind}.gguf"
            openwork("pack", source, "--out", out, "--format", f"gguf-{kind}", "--like", source)
            reader = gguf.GGUFReader(out)
            assert len(reader.tensors) == len(gguf.GGUFReader(source).tensors)
            found = AutoModelForCausalLM.from_pretrained(work, gguf_file=out.name, dtype=torch.float32).state_dict()
            for name, w in want.items():
                step = w.abs().max() / 120
                assert (found[name] - w).abs().max() <= step, (source.name, kind, name)
                assert (found[name][w == 0] == 0).all(), (source.name, kind, name)
        print(f"gguf and transformers read {source.name} as f16, bf16 and q8_0")


with tempfile.TemporaryDirectory() as folder:
    work = Path(folder)
    dense = pruned(work / "pruned")
    for kind, check in [("cutlass", check_cutlass), ("compressed-tensors", check_compressed)]:
        openwork("pack", work / "pruned", "--out", work / kind, "--spec", "2:4", "--format", kind)
        check(work / kind, dense)
    packed = json.loads(openwork("pack", work / "pruned", "--out", work / "packed", "--spec", "2:4", "--json"))
    assert packed["summary"]["bytes"] * 16 == packed["summary"]["dense_bytes"] * 9
    openwork("unpack", work / "packed", "--out", work / "again")
    again = tensors(work / "again")
    assert all(same(again[k], v) for k, v in dense.items())
    with safe_open(next((work / "packed").glob("model-00002*")), "pt") as f:
        assert any(k.startswith("openwork.packed.") for k in f.metadata())
    print("packed and unpacked bit for bit")
    check_gguf(work)
