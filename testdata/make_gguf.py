"""Makes gguf/: tiny GGUF files with random weights and small trained
tokenizers, and what transformers makes of them: `NAME.json` has the config,
the shape and CRC-32 of every weight as f32, and the token ids of some texts.

    pip install torch transformers gguf sentencepiece
    python testdata/make_gguf.py

The text that the tokenizers are trained on is Python's own documentation
(`pydoc_data.topics`).
"""

import io
import json
import zlib
from pathlib import Path

import gguf
import numpy as np
import sentencepiece
import torch
from gguf import GGMLQuantizationType, TokenType
from gguf.quants import quantize
from pydoc_data import topics
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent / "gguf"
PROSE = "\n".join(topics.topics[key] for key in sorted(topics.topics))
TEXTS = [
    "",
    "Hello world, this is a statement.",
    "x = [1, 23, 456, 7890]  # four numbers",
    "    indented  by  spaces\n\n\n\tand tabs\r\n",
    "caf\u00e9 na\u00efve \u00bd \u00b2 \u2167",
    "\u65e5\u672c\u8a9e \U0001f389\U0001f468\u200d\U0001f469 \u0627\u0644",
    "I'm, WE'LL, they'd; don't",
    "ends with spaces   ",
    "special <|end|> </s> <eos> in text",
    "an <unk> word",
    topics.topics["assert"][:600],
]
HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, WIDE = 32, 1, 4, 2, 8, 64
random = np.random.default_rng(11)


def sentence_piece(size, **options):
    """A SentencePiece BPE vocabulary: tokens, scores, types."""
    model = io.BytesIO()
    lines = iter(line for line in PROSE.split("\n") if line.strip())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, model_type="bpe", vocab_size=size,
        byte_fallback=True, split_digits=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, num_threads=1, minloglevel=2, **options,
    )
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens, scores, types = [], [], []
    for i in range(sp.vocab_size()):
        kind = TokenType.NORMAL
        if sp.is_unknown(i):
            kind = TokenType.UNKNOWN
        elif sp.is_control(i):
            kind = TokenType.CONTROL
        elif sp.is_byte(i):
            kind = TokenType.BYTE
        elif sp.id_to_piece(i) in options.get("user_defined_symbols", []):
            kind = TokenType.USER_DEFINED
        piece = sp.id_to_piece(i)
        # As llama.cpp's converter writes them.
        if kind == TokenType.USER_DEFINED:
            piece = piece.replace("\u2581", " ")
        tokens.append(piece)
        scores.append(sp.get_score(i))
        types.append(kind)
    return tokens, scores, types


def byte_level(size):
    """A byte-level BPE vocabulary: tokens, merges, types."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    trained.train_from_iterator([PROSE], trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    types = [TokenType.CONTROL if token == "<|end|>" else TokenType.NORMAL for token in tokens]
    return tokens, merges, types


def write(name, arch, vocabulary, pre=None, bias=False, qk_norm=False, tied=True, types=("F32",)):
    writer = gguf.GGUFWriter(HERE / f"{name}.gguf", arch)
    tokens, middle, marks = vocabulary
    writer.add_context_length(128)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    if arch in ("qwen3", "gemma3"):
        writer.add_key_length(DIM)
        writer.add_value_length(DIM)
    if arch == "gemma3":
        writer.add_sliding_window(32)
    if arch == "llama":
        writer.add_rope_dimension_count(DIM)
        writer.add_vocab_size(len(tokens))
    if pre:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(middle)
        writer.add_eos_token_id(tokens.index("<|end|>"))
        writer.add_add_bos_token(False)
    else:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(middle)
        writer.add_bos_token_id(next(i for i, t in enumerate(tokens) if t in ("<s>", "<bos>")))
        writer.add_eos_token_id(next(i for i, t in enumerate(tokens) if t in ("</s>", "<eos>")))
        writer.add_unk_token_id(tokens.index("<unk>"))
        writer.add_add_bos_token(True)
        if arch == "gemma3":
            writer.add_add_space_prefix(False)
    writer.add_token_list(tokens)
    writer.add_token_types(marks)

    kinds = iter(np.resize(types, 1000))

    def matrix(rows, columns):
        return (random.standard_normal((rows, columns)) * 0.1).astype(np.float32)

    def put(tensor, value):
        kind = GGMLQuantizationType[next(kinds)] if value.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor, quantize(value, kind), raw_dtype=kind)

    def norm(tensor, size):
        put(tensor, (1 + 0.1 * random.standard_normal(size)).astype(np.float32))

    put("token_embd.weight", matrix(len(tokens), HIDDEN))
    norm("output_norm.weight", HIDDEN)
    if not tied:
        put("output.weight", matrix(len(tokens), HIDDEN))
    for i in range(LAYERS):
        blk = f"blk.{i}"
        norm(f"{blk}.attn_norm.weight", HIDDEN)
        norm(f"{blk}.ffn_norm.weight", HIDDEN)
        if arch == "gemma3":
            norm(f"{blk}.post_attention_norm.weight", HIDDEN)
            norm(f"{blk}.post_ffw_norm.weight", HIDDEN)
        if qk_norm:
            norm(f"{blk}.attn_q_norm.weight", DIM)
            norm(f"{blk}.attn_k_norm.weight", DIM)
        for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            put(f"{blk}.attn_{part}.weight", matrix(heads * DIM, HIDDEN))
            if bias:
                put(f"{blk}.attn_{part}.bias", matrix(1, heads * DIM)[0])
        put(f"{blk}.attn_output.weight", matrix(HIDDEN, HEADS * DIM))
        put(f"{blk}.ffn_gate.weight", matrix(WIDE, HIDDEN))
        put(f"{blk}.ffn_up.weight", matrix(WIDE, HIDDEN))
        put(f"{blk}.ffn_down.weight", matrix(HIDDEN, WIDE))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    tokenizer = AutoTokenizer.from_pretrained(HERE, gguf_file=f"{name}.gguf")
    model = AutoModelForCausalLM.from_pretrained(
        HERE, gguf_file=f"{name}.gguf", dtype=torch.float32
    )
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    weights = {
        key: [list(value.shape), zlib.crc32(value.numpy().tobytes())]
        for key, value in model.state_dict().items()
        if not (tied and key == "lm_head.weight")
    }
    config = model.config.to_dict()
    config.pop("_name_or_path", None)
    lines = ",\n".join(
        f" {json.dumps(key)}: {json.dumps(value, sort_keys=True)}"
        for key, value in
        {"config": config, "weights": weights, "texts": TEXTS, "ids": ids}.items()
    )
    (HERE / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")


HERE.mkdir(exist_ok=True)
llama = sentence_piece(400)
gemma = sentence_piece(
    420, pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", bos_piece="<bos>",
    eos_piece="<eos>", unk_piece="<unk>", add_dummy_prefix=False,
    user_defined_symbols=["\n\n", "\n\n\n", "\u2581\u2581", "\u2581\u2581\u2581\u2581"],
)
bpe = byte_level(420)
write("llama-spm", "llama", llama, types=("F16", "Q8_0", "F32"))
write("llama-bpe", "llama", bpe, pre="llama-bpe", tied=False, types=("BF16", "Q4_0"))
write("qwen2", "qwen2", bpe, pre="qwen2", bias=True, types=("Q5_0", "Q4_1", "Q5_1"))
write("qwen3", "qwen3", bpe, pre="qwen2", qk_norm=True, types=("F16",))
write("gemma3", "gemma3", gemma, qk_norm=True, types=("BF16",))
