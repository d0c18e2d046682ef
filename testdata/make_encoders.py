"""Makes the tiny encoders in `testdata/encoders` and their golden outputs.

    python testdata/make_encoders.py testdata/encoders [NAME ..]

Needs torch, transformers, tokenizers and safetensors. Every folder is a random encoder (fixed
seed) with a WordPiece tokenizer and, of some, the files of sentence-transformers, and
`golden.safetensors` with

    ids      [windows, length]          the input
    hidden   [windows, length, hidden]  of transformers, in f32
    vectors  [texts, hidden]            sentence vectors of `texts.txt`, a line each: padded
                                        batches of transformers, pooled as the folder says

The sizes are small but no two of them are equal, so that a swapped axis shows.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    MPNetConfig,
    MPNetModel,
    NomicBertConfig,
    NomicBertModel,
    PreTrainedTokenizerFast,
)

VOCAB = 120
WINDOWS, LENGTH = 2, 41
MAX_SEQ_LENGTH = 20
SIZES = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
)
TEXTS = [
    "The open work of a wall lets the light in.",
    "wind",
    "A wall of stones, of light and of wind: the work is open, and the light goes in and out of it!",
    "The light\tlets the WALL work",
    "out",
]
BERT_TOKENS = dict(cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]")
MPNET_TOKENS = dict(cls_token="<s>", sep_token="</s>", pad_token="<pad>", unk_token="<unk>", mask_token="<mask>")
# In the order of their ids.
BERT_ORDER = ["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"]
MPNET_ORDER = ["cls_token", "pad_token", "sep_token", "unk_token", "mask_token"]

# name: (config, class, stored dtype, special tokens, their order, pooling, normalized)
ENCODERS = {
    # The first token's state, of length 1.
    "bert": (
        BertConfig(**SIZES, max_position_embeddings=64, type_vocab_size=3),
        BertModel, torch.bfloat16, BERT_TOKENS, BERT_ORDER, "cls", True,
    ),
    # In the names of the oldest files, with a head; no word on pooling.
    "bert-masked": (
        BertConfig(**SIZES | dict(num_attention_heads=2), max_position_embeddings=48, hidden_act="gelu_new"),
        BertForMaskedLM, torch.float32, BERT_TOKENS, BERT_ORDER, None, False,
    ),
    "mpnet": (
        MPNetConfig(**SIZES, max_position_embeddings=66, layer_norm_eps=1e-5),
        MPNetModel, torch.bfloat16, MPNET_TOKENS, MPNET_ORDER, "mean", True,
    ),
    # The largest of each entry, of any length.
    "nomic": (
        NomicBertConfig(**SIZES, max_position_embeddings=64, rope_parameters=dict(rope_type="default", rope_theta=500.0)),
        NomicBertModel, torch.bfloat16, BERT_TOKENS, BERT_ORDER, "max", False,
    ),
    # With the keys of Nomic's own code; transformers stores the tensors by its names in any case.
    "nomic-own": (
        NomicBertConfig(**SIZES, max_position_embeddings=64, rope_parameters=dict(rope_type="default", rope_theta=1000.0)),
        NomicBertModel, torch.bfloat16, BERT_TOKENS, BERT_ORDER, "mean", True,
    ),
}

def randomize(model, generator):
    """Weights large enough that a wrong detail shows in the vectors."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            parameter.data = 0.5 * noise
        elif "norm" in name.lower():
            parameter.data = 1.0 + 0.3 * noise
        elif "relative" in name or "embeddings" in name:
            parameter.data = noise
        else:
            parameter.data = noise * 1.5 * parameter.shape[1] ** -0.5


def tokenizer(special, order):
    tok = Tokenizer(models.WordPiece(unk_token=special["unk_token"]))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    names = [special[key] for key in order]
    tok.train_from_iterator(TEXTS * 3, trainers.WordPieceTrainer(vocab_size=VOCAB - 7, special_tokens=names, show_progress=False))
    cls, sep = special["cls_token"], special["sep_token"]
    tok.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, tok.token_to_id(cls)), (sep, tok.token_to_id(sep))],
    )
    return PreTrainedTokenizerFast(tokenizer_object=tok, **special)


def write(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def sentence_files(folder, pooling, normalized):
    kind = "sentence_transformers.models."
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")] + [("2_Normalize", "Normalize")] * normalized
    write(folder / "modules.json", [
        dict(idx=i, name=str(i), path=path, type=kind + name) for i, (path, name) in enumerate(modules)
    ])
    modes = dict(cls="cls_token", mean="mean_tokens", max="max_tokens")
    write(folder / "1_Pooling/config.json", dict(
        word_embedding_dimension=SIZES["hidden_size"],
        **{f"pooling_mode_{key}": key == modes[pooling] for key in [*modes.values(), "mean_sqrt_len_tokens"]},
    ))
    write(folder / "sentence_bert_config.json", dict(max_seq_length=MAX_SEQ_LENGTH, do_lower_case=False))


def rename(folder, name):
    """Stores a folder as other programs named its tensors and keys."""
    if name == "bert-masked":
        path, new = folder / "model.safetensors", {}
        for key, value in load_file(path).items():
            if "LayerNorm" in key:
                key = key.replace(".weight", ".gamma").replace(".bias", ".beta")
            new[key] = value
        assert all(key.startswith(("bert.", "cls.")) for key in new)
        new["bert.embeddings.position_ids"] = torch.arange(48)[None]
        save_file(new, path, metadata=dict(format="pt"))
    if name == "nomic-own":
        write(folder / "config.json", dict(
            activation_function="swiglu", architectures=["NomicBertModel"], attn_pdrop=0.0, causal=False,
            embd_pdrop=0.0, layer_norm_epsilon=1e-12, mlp_fc1_bias=False, mlp_fc2_bias=False,
            model_type="nomic_bert", n_embd=32, n_head=4, n_inner=56, n_layer=2, n_positions=64,
            parallel_block=False, prenorm=False, qkv_proj_bias=False, rotary_emb_base=1000,
            rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_scaling_factor=None,
            scale_attn_weights=True, type_vocab_size=2, use_rms_norm=False, vocab_size=VOCAB,
        ))


def vectors(model, tok, pooling, normalized, most):
    # Padded together: padding must not change a vector.
    batch = tok(TEXTS, padding=True, truncation=True, max_length=most, return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][:, :, None].float()
    pooled = {
        "cls": lambda: hidden[:, 0],
        "mean": lambda: (hidden * mask).sum(1) / mask.sum(1),
        "max": lambda: hidden.masked_fill(mask == 0, -1e9).max(1).values,
    }[pooling]()
    return torch.nn.functional.normalize(pooled, dim=1) if normalized else pooled


def make(name, folder):
    config, kind, dtype, special, order, pooling, normalized = ENCODERS[name]
    generator = torch.Generator().manual_seed(len(name))
    tok = tokenizer(special, order)
    model = kind(config).eval()
    randomize(model, generator)
    model.tie_weights()
    model.to(dtype).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tok.save_pretrained(folder)
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    # The oracle reads what was stored, and computes in f32.
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.randint(0, VOCAB, (WINDOWS, LENGTH), generator=generator)
    with torch.inference_mode():
        hidden = model(ids).last_hidden_state
    most = MAX_SEQ_LENGTH if pooling else config.max_position_embeddings
    golden = dict(
        ids=ids.to(torch.int32), hidden=hidden, vectors=vectors(model, tok, pooling or "mean", normalized, most)
    )
    assert all(torch.isfinite(value).all() for value in golden.values())
    save_file({key: value.contiguous() for key, value in golden.items()}, folder / "golden.safetensors")
    if pooling:
        sentence_files(folder, pooling, normalized)
    rename(folder, name)
    print(f"{name:12} states in {hidden.min():.2f} .. {hidden.max():.2f}, {len(tok)} tokens")


def main(out, names):
    for name in names or ENCODERS:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.rglob("*"), reverse=True):
            old.rmdir() if old.is_dir() else old.unlink()
        make(name, folder)
    (out / "texts.txt").write_text("\n".join(TEXTS) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
