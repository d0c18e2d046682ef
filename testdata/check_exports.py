"""Reads what `openwork pack --format ..` writes with the programs it is meant for.

    pip install torch transformers gguf safetensors [compressed-tensors==0.14.0.1 transformers==4.57.3]
    python testdata/check_exports.py target/debug/openwork [FOLDER]

A tiny random model is pruned to 2:4 with torch, exported and read back: the
tensor-core layout with torch's conversion routines, bit masks with
compressed-tensors, the folder with transformers, GGUF files with the `gguf`
package and transformers. Every weight must come back bit for bit; of weights
rounded to Q8_0, the zeros must. A second model keeps some linears dense. With
FOLDER, a model written by `openwork prune --spec 2:4` is also exported for
compressed-tensors, and as a GGUF file from the folder alone.

Checks whose package is not installed print "skipped". transformers loads
`sparse-24-bitmask` up to 4.57.3, with compressed-tensors 0.14.0.1. To use both
next to a newer transformers, create an environment with `pip install --no-deps
transformers==4.57.3 compressed-tensors==0.14.0.1 "huggingface_hub<1"
"tokenizers<=0.23.0" loguru frozendict accelerate psutil` and a .pth file that
names the site-packages folder with torch.
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
from transformers import __version__ as VERSION

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
                         num_key_value_heads=2, vocab_size=288, max_position_embeddings=64)
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


def check_cutlass(folder, dense, _):
    found = tensors(folder)
    names = [k.removesuffix(".cutlass.meta") for k in found if k.endswith(".cutlass.meta")]
    assert len(names) == 14
    for name in names:
        back = sparse_semi_structured_to_dense_cutlass(found[f"{name}.cutlass.values"], found[f"{name}.cutlass.meta"])
        assert same(back, dense[name]), name
    print(f"torch reads {len(names)} tensors in the tensor cores' order")


def check_compressed(folder, dense, source):
    found = tensors(folder)
    names = [k.removesuffix(".bitmask") for k in found if k.endswith(".bitmask")]
    assert names
    try:
        from compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask import Sparse24BitMaskTensor
    except ImportError:
        print("skipped: compressed-tensors is not installed")
        return
    for name in names:
        data = {k: found[f"{name}.{k}"] for k in ["shape", "compressed", "bitmask"]}
        back = Sparse24BitMaskTensor.from_compressed_data(**data).decompress()
        assert same(back, dense[f"{name}.weight"]), name
    print(f"compressed-tensors reads {len(names)} tensors")
    if not VERSION.startswith("4."):
        print(f"skipped: transformers {VERSION} does not load sparse-24-bitmask; 4.57.3 does")
        return
    import transformers
    read = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    state = read.state_dict()
    for name, w in dense.items():
        assert same(state[name], w), name
    plain = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    tokens = torch.arange(3, 35)[None]
    with torch.no_grad():
        a, b = read(tokens).logits, plain(tokens).logits
    assert torch.isfinite(a).all() and torch.equal(a, b), (a - b).abs().max()
    print(f"transformers {VERSION} loads the folder: {len(names)} packed tensors and "
          f"{len(dense) - len(names)} dense ones bit for bit, and the logits of 32 tokens")


def check_partly_pruned(work):
    """A model with dense linears: they are listed in `ignore`, and the folder loads."""
    (work / "calibration.txt").write_text("the open work of a wall lets the light in " * 40)
    (work / "recipe.toml").write_text('spec = "2:4"\nmethod = "magnitude"\n[[rule]]\n'
                                      'match = "layers.0.*(q_proj|down_proj)"\ndense = true\n')
    folder, out = work / "partly", work / "partly-compressed"
    openwork("prune", TESTDATA / "models/mistral", "--recipe", work / "recipe.toml", "--calib",
             work / "calibration.txt", "--samples", 1, "--seq-len", 16, "--out", folder)
    openwork("pack", folder, "--out", out, "--format", "compressed-tensors")
    dense = tensors(folder)
    sparsity = json.loads((out / "config.json").read_text())["quantization_config"]["sparsity_config"]
    assert sparsity["ignore"][1:] == [f"model.layers.0.{k}" for k in ["self_attn.q_proj", "mlp.down_proj"]], sparsity
    zeros = sum((w == 0).sum().item() for w in dense.values())
    assert sparsity["global_sparsity"] == zeros / sum(w.numel() for w in dense.values()), sparsity
    check_compressed(out, dense, folder)


def check_alone(work, source):
    """A GGUF file from a folder alone: tokens and weights by the `gguf` package."""
    try:
        import gguf
    except ImportError:
        print("skipped: gguf is not installed")
        return
    out = work / "alone.gguf"
    openwork("pack", source, "--out", out, "--format", "gguf-bf16")
    reader = gguf.GGUFReader(out)
    config = json.loads((Path(source) / "config.json").read_text())
    field = lambda key: reader.fields[key].contents()
    name = field("general.architecture")
    assert field(f"{name}.block_count") == config["num_hidden_layers"]
    assert field(f"{name}.attention.head_count_kv") == config["num_key_value_heads"]
    tokenizer = json.loads((Path(source) / "tokenizer.json").read_text())
    tokens = field("tokenizer.ggml.tokens")
    assert len(tokens) == config["vocab_size"]
    assert all(tokens[i] == token for token, i in tokenizer["model"]["vocab"].items())
    marks = field("tokenizer.ggml.token_type")
    for token in tokenizer["added_tokens"]:
        assert (tokens[token["id"]], marks[token["id"]]) == (token["content"], 3 if token["special"] else 4)
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    assert field("tokenizer.ggml.merges") == merges
    dense = tensors(source)
    for tensor in reader.tensors:
        if tensor.name.endswith(("ffn_down.weight", "ffn_up.weight", "ffn_gate.weight", "attn_v.weight", "attn_output.weight")):
            _, layer, part, _ = tensor.name.split(".")
            there = {"ffn_down": "mlp.down_proj", "ffn_up": "mlp.up_proj", "ffn_gate": "mlp.gate_proj",
                     "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}[part]
            want = dense[f"model.layers.{layer}.{there}.weight"].bfloat16().view(torch.uint8)
            assert torch.equal(torch.from_numpy(tensor.data.copy()).view(torch.uint8).reshape(want.shape), want), tensor.name
    print(f"gguf reads {Path(source).name} written from the folder alone: "
          f"{len(tokens)} tokens, {len(merges)} merges, {len(reader.tensors)} tensors")
    from transformers import AutoModelForCausalLM
    found = AutoModelForCausalLM.from_pretrained(work, gguf_file=out.name, dtype=torch.float32)
    want = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).to(torch.float32)
    ids = torch.arange(3, 35)[None]
    with torch.no_grad():
        worst = (found(ids).logits - want(ids).logits).abs().max().item()
    assert worst < 1e-3, worst
    print(f"transformers reads it: logits of 32 tokens within {worst:.1e}")


def check_gguf(work):
    try:
        import gguf
    except ImportError:
        print("skipped: gguf is not installed")
        return
    from transformers import AutoModelForCausalLM
    # transformers reads these from GGUF.
    for source in sorted(path.with_suffix(".gguf") for path in (TESTDATA / "gguf").glob("*.json")):
        # transformers 4 reads no head_dim from a GGUF file of Qwen3.
        if "gemma" in source.name or "qwen3" in source.name and VERSION.startswith("4."):
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


def check_families(work):
    """Every family from GGUF, as a folder. One linear is pruned; with its weights restored, the
    logits of transformers are those of the file."""
    try:
        import gguf
    except ImportError:
        print("skipped: gguf is not installed")
        return
    from transformers import AutoModelForCausalLM
    for golden in sorted((TESTDATA / "gguf").glob("*.safetensors")):
        source, out = golden.with_suffix(".gguf"), work / golden.stem
        # All but the last o_proj: the first layers of Qwen3.5 have none.
        found = {t.name: t for t in gguf.GGUFReader(source).tensors}
        last = max(int(name.split(".")[1]) for name in found if name.startswith("blk."))
        (work / "dense.toml").write_text('spec = "2:4"\nmethod = "magnitude"\n[[rule]]\nmatch = "."\ndense = true\n'
                                         f'[[rule]]\nmatch = "layers.{last}.self_attn.o_proj"\nspec = "2:4"\n')
        openwork("prune", source, "--recipe", work / "dense.toml", "--calib", work / "calibration.txt",
                 "--samples", 1, "--seq-len", 16, "--dtype", "f32", "--out", out)
        model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
        stored = found[f"blk.{last}.attn_output.weight"]
        weight = model.model.layers[last].self_attn.o_proj.weight
        assert (weight == 0).float().mean() >= 0.5, source.name
        golden = load_file(golden)
        with torch.no_grad():
            dense = gguf.quants.dequantize(stored.data, stored.tensor_type)
            weight.copy_(torch.from_numpy(dense.copy()).reshape(weight.shape))
            found = model(golden["ids"].long()[None], use_cache=False).logits[0]
        worst = ((found[-len(golden["logits"]):] - golden["logits"]).abs().max() / golden["logits"].abs().max()).item()
        assert worst < 1e-4, (source.name, worst)
        print(f"transformers reads {out.name} as a folder: logits within {worst:.1e} of the file's")


with tempfile.TemporaryDirectory() as folder:
    work = Path(folder)
    dense = pruned(work / "pruned")
    for kind, check in [("cutlass", check_cutlass), ("compressed-tensors", check_compressed)]:
        openwork("pack", work / "pruned", "--out", work / kind, "--spec", "2:4", "--format", kind)
        check(work / kind, dense, work / "pruned")
    check_partly_pruned(work)
    packed = json.loads(openwork("pack", work / "pruned", "--out", work / "packed", "--spec", "2:4", "--json"))
    assert packed["summary"]["bytes"] * 16 == packed["summary"]["dense_bytes"] * 9
    openwork("unpack", work / "packed", "--out", work / "again")
    again = tensors(work / "again")
    assert all(same(again[k], v) for k, v in dense.items())
    with safe_open(next((work / "packed").glob("model-00002*")), "pt") as f:
        assert any(k.startswith("openwork.packed.") for k in f.metadata())
    print("packed and unpacked bit for bit")
    check_gguf(work)
    check_families(work)
    check_alone(work, work / "pruned")
    if len(sys.argv) > 2:
        folder = Path(sys.argv[2])
        openwork("pack", folder, "--out", work / "given", "--spec", "2:4", "--format", "compressed-tensors")
        check_compressed(work / "given", tensors(folder), folder)
        check_alone(work / "given", folder)
