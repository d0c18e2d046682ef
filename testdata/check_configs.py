"""Compares openwork with transformers on random tiny models of every family.

    python testdata/check_configs.py [--count 10] [--seed 0] [--keep DIR] [FAMILY ..]

Needs torch, transformers, safetensors and the openwork package. Every model has random
sizes (odd numbers of heads among them), options (ties, biases, windows, routers) and
RoPE; its config.json is written as transformers 5 or 4 does, at random without keys that
have their default value. What transformers computes from the same folder in f64 is the
truth: no logit may differ by more than 1e-4 of the largest one, or by twice as much as
those that transformers computes in f32, if that is more. Of encoders, the vectors of
sentences are compared. A folder that transformers refuses to load is drawn again.
"""

import argparse
import inspect
import json
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import make_encoders
import torch
import transformers
from make_encoders import BERT_ORDER, BERT_TOKENS, MPNET_ORDER, MPNET_TOKENS
from make_models import randomize, tokenizer

import openwork

TOLERANCE = 1e-4
# Not used, but part of a model.
TOKENIZER = tokenizer()
# Of RoPE: what transformers 4 writes beside `rope_scaling`.
OUTSIDE = ["rope_theta", "partial_rotary_factor"]


class Draw(random.Random):
    """Random options of a model."""

    def maybe(self, key, *values, chance=0.5):
        """The key with one of the values, or nothing."""
        return {key: self.choice(values)} if self.random() < chance else {}

    def rope(self, rotated, positions, kinds):
        kind = self.choice(kinds)
        found = dict(rope_type=kind, rope_theta=self.choice([1e4, 5e5, 12345.0]))
        if kind == "linear":
            found |= dict(factor=self.choice([2.0, 3.5]))
        if kind == "llama3":
            found |= dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=self.choice([4.0, 2.0]),
                          original_max_position_embeddings=positions // 2)
        if kind == "yarn":
            found |= dict(factor=self.choice([2.0, 4.0]), original_max_position_embeddings=positions // 2)
            found |= self.maybe("beta_fast", 16.0) | self.maybe("attention_factor", 1.3, chance=0.3)
            found |= self.maybe("truncate", True, False, chance=0.3)
        if kind == "longrope":
            found |= dict(original_max_position_embeddings=positions // 2)
            for key in ["short_factor", "long_factor"]:
                found[key] = [1 + self.random() * 3 for _ in range(rotated // 2)]
        return found

    def sizes(self, divides=False, own_head=True):
        kv_heads = self.choice([1, 1, 2, 3])
        heads = kv_heads * self.choice([1, 2, 3, 5])
        head_dim = self.choice([4, 8, 12, 16, 20])
        hidden = heads * head_dim if not own_head else heads * self.choice([4, 6, 8]) if divides else 2 * self.randint(7, 24)
        layers = self.randint(1, 5)
        found = dict(
            vocab_size=self.randint(90, 300), hidden_size=hidden, intermediate_size=self.randint(9, 60),
            num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
            max_position_embeddings=self.choice([64, 96, 128]), rms_norm_eps=self.choice([1e-6, 1e-5, 1e-3]),
            tie_word_embeddings=self.random() < 0.5, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )
        if own_head:
            found["head_dim"] = head_dim
        return found

    def kinds(self, layers, first="sliding_attention", second="full_attention"):
        return [self.choice([first, second]) for _ in range(layers)]

    def experts(self, count="num_experts", active="num_experts_per_tok"):
        number = self.randint(2, 9)
        return {count: number, active: self.randint(1, number)}


PLAIN = ["default", "linear", "llama3", "yarn"]


def head(sizes):
    return sizes.get("head_dim", sizes["hidden_size"] // sizes["num_attention_heads"])


def with_rope(draw, sizes, kinds=PLAIN):
    return sizes | dict(rope_parameters=draw.rope(head(sizes), sizes["max_position_embeddings"], kinds))


def llama(draw):
    options = with_rope(draw, draw.sizes(divides=True, own_head=draw.random() < 0.5))
    options |= draw.maybe("attention_bias", True) | draw.maybe("mlp_bias", True)
    return "Llama", options | draw.maybe("hidden_act", "gelu_pytorch_tanh", chance=0.2)


def mistral(draw):
    return "Mistral", with_rope(draw, draw.sizes()) | dict(sliding_window=draw.choice([None, 3, 7, 100]))


def mixtral(draw):
    options = with_rope(draw, draw.sizes()) | draw.experts("num_local_experts")
    return "Mixtral", options | dict(sliding_window=draw.choice([None, 5]))


def qwen_window(draw, layers):
    options = draw.maybe("use_sliding_window", True) | draw.maybe("sliding_window", 3, 6)
    options |= dict(max_window_layers=draw.randint(0, layers + 1))
    return options | draw.maybe("layer_types", draw.kinds(layers), chance=0.3) if options.get("sliding_window") else {}


def qwen2(draw):
    sizes = draw.sizes(own_head=False)
    return "Qwen2", with_rope(draw, sizes) | qwen_window(draw, sizes["num_hidden_layers"])


def qwen3(draw):
    sizes = draw.sizes()
    options = with_rope(draw, sizes) | qwen_window(draw, sizes["num_hidden_layers"])
    return "Qwen3", options | draw.maybe("attention_bias", True)


def qwen_experts(draw, layers):
    options = draw.experts() | dict(moe_intermediate_size=draw.randint(5, 30))
    options |= draw.maybe("norm_topk_prob", True, False) | draw.maybe("decoder_sparse_step", 1, 2, chance=0.3)
    return options | draw.maybe("mlp_only_layers", [draw.randrange(layers)], chance=0.3)


def qwen2_moe(draw):
    sizes = draw.sizes(own_head=False)
    options = with_rope(draw, sizes) | qwen_experts(draw, sizes["num_hidden_layers"]) | draw.maybe("qkv_bias", False)
    options |= dict(shared_expert_intermediate_size=draw.randint(5, 40))
    if draw.random() < 0.5:
        options |= dict(use_sliding_window=True, sliding_window=5, max_window_layers=draw.randint(0, 5))
    return "Qwen2Moe", options


def qwen3_moe(draw):
    sizes = draw.sizes()
    options = with_rope(draw, sizes) | qwen_experts(draw, sizes["num_hidden_layers"])
    if draw.random() < 0.3:
        options |= dict(use_sliding_window=True, sliding_window=5)
    return "Qwen3Moe", options | draw.maybe("attention_bias", True)


def olmoe(draw):
    sizes = draw.sizes(own_head=False)
    options = with_rope(draw, sizes) | draw.experts() | draw.maybe("clip_qkv", 0.8)
    return "Olmoe", options | draw.maybe("norm_topk_prob", True) | draw.maybe("attention_bias", True)


def olmo2(draw):
    return "Olmo2", with_rope(draw, draw.sizes(own_head=False)) | draw.maybe("attention_bias", True)


def olmo3(draw):
    sizes = draw.sizes(own_head=False)
    one = lambda: draw.rope(head(sizes), sizes["max_position_embeddings"], PLAIN)
    options = sizes | dict(rope_parameters=dict(sliding_attention=one() | dict(rope_type="default"), full_attention=one()))
    if options["rope_parameters"]["sliding_attention"]["rope_type"] == "default":
        theta = options["rope_parameters"]["sliding_attention"]["rope_theta"]
        options["rope_parameters"]["sliding_attention"] = dict(rope_type="default", rope_theta=theta)
    options |= dict(sliding_window=draw.choice([3, 8])) | draw.maybe("attention_bias", True)
    return "Olmo3", options | draw.maybe("layer_types", draw.kinds(sizes["num_hidden_layers"]))


def phi3(draw):
    sizes = draw.sizes(own_head=False)
    # An odd number of rotated entries is refused.
    partial = draw.choice([share for share in [1.0, 0.5, 0.75] if int(head(sizes) * share) % 2 == 0])
    rotated = int(head(sizes) * partial)
    rope = draw.rope(rotated, sizes["max_position_embeddings"], ["default", "longrope"]) | dict(partial_rotary_factor=partial)
    options = sizes | dict(rope_parameters=rope, sliding_window=draw.choice([None, 5]))
    return "Phi3", options | dict(original_max_position_embeddings=sizes["max_position_embeddings"] // 2)


def smollm3(draw):
    sizes = draw.sizes(own_head=False)
    options = with_rope(draw, sizes) | draw.maybe("no_rope_layer_interval", 2, 3)
    layers = sizes["num_hidden_layers"]
    options |= draw.maybe("no_rope_layers", [draw.randint(0, 1) for _ in range(layers)], chance=0.3)
    if draw.random() < 0.5:
        options |= dict(use_sliding_window=True, sliding_window=4)
    return "SmolLM3", options | draw.maybe("attention_bias", True) | draw.maybe("mlp_bias", True)


def granite(draw):
    options = with_rope(draw, draw.sizes(own_head=False))
    for key in ["embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"]:
        options |= draw.maybe(key, 0.3, 1.7, 4.0)
    return "Granite", options | draw.maybe("attention_bias", True) | draw.maybe("mlp_bias", True)


def glm4(draw):
    sizes = draw.sizes() | dict(head_dim=draw.choice([8, 16]))
    rope = draw.rope(head(sizes) // 2, sizes["max_position_embeddings"], ["default", "linear"])
    rope |= dict(partial_rotary_factor=draw.choice([0.5, 1.0]))
    return "Glm4", sizes | dict(rope_parameters=rope) | draw.maybe("attention_bias", True, False)


def ministral3(draw):
    sizes = draw.sizes()
    rope = draw.rope(head(sizes), sizes["max_position_embeddings"], ["yarn"])
    rope |= dict(llama_4_scaling_beta=draw.choice([0.1, 0.5])) | draw.maybe("mscale", 1.0) | draw.maybe("mscale_all_dim", 0.7)
    return "Ministral3", sizes | dict(rope_parameters=rope, sliding_window=draw.choice([None, 5]))


def gemma2(draw):
    sizes = draw.sizes()
    options = with_rope(draw, sizes) | dict(query_pre_attn_scalar=draw.choice([8, 24]), sliding_window=draw.choice([3, 9]))
    options |= draw.maybe("attn_logit_softcapping", None, 2.0) | draw.maybe("final_logit_softcapping", None, 3.0)
    options |= draw.maybe("layer_types", draw.kinds(sizes["num_hidden_layers"]), chance=0.3)
    return "Gemma2", options | draw.maybe("attention_bias", True)


def gemma3(draw):
    sizes = draw.sizes(divides=True)
    positions = sizes["max_position_embeddings"]
    ropes = dict(
        sliding_attention=draw.rope(head(sizes), positions, ["default"]),
        full_attention=draw.rope(head(sizes), positions, ["default", "linear"]),
    )
    options = sizes | dict(rope_parameters=ropes, query_pre_attn_scalar=draw.choice([8, 24]), sliding_window=draw.choice([3, 9]))
    options |= draw.maybe("layer_types", draw.kinds(sizes["num_hidden_layers"]))
    return "Gemma3Text", options | draw.maybe("attention_bias", True)


def gemma4(draw):
    sizes = draw.sizes() | dict(num_hidden_layers=draw.randint(2, 7))
    layers, heads = sizes["num_hidden_layers"], sizes["num_attention_heads"]
    options = sizes | dict(global_head_dim=draw.choice([8, 12, 16]), sliding_window=draw.choice([3, 9]))
    options |= dict(layer_types=draw.kinds(layers - 1) + ["full_attention"]) if draw.random() < 0.8 else {}
    options |= draw.maybe("attention_k_eq_v", True) | draw.maybe("num_global_key_value_heads", 1, heads)
    options |= draw.maybe("final_logit_softcapping", 4.0) | draw.maybe("attention_bias", True, chance=0.3)
    options |= dict(hidden_size_per_layer_input=draw.choice([0, 3, 8]), vocab_size_per_layer_input=sizes["vocab_size"] + draw.choice([0, 5]))
    options |= draw.maybe("num_kv_shared_layers", *range(1, layers)) | draw.maybe("use_double_wide_mlp", True)
    if draw.random() < 0.4:
        options |= draw.experts(active="top_k_experts") | dict(enable_moe_block=True, moe_intermediate_size=draw.randint(5, 30))
    positions = sizes["max_position_embeddings"]
    ropes = dict(
        sliding_attention=draw.rope(head(sizes), positions, ["default", "linear"]),
        full_attention=draw.rope(options["global_head_dim"], positions, ["default"])
        | dict(rope_type="proportional", partial_rotary_factor=draw.choice([0.25, 0.5, 1.0])),
    )
    return "Gemma4Text", options | (dict(rope_parameters=ropes) if draw.random() < 0.8 else {})


def qwen35(draw, name="Qwen3_5Text"):
    sizes = draw.sizes() | dict(head_dim=draw.choice([8, 16]))
    layers, keys = sizes["num_hidden_layers"], draw.choice([1, 2, 3])
    rope = draw.rope(head(sizes), sizes["max_position_embeddings"], ["default"])
    rope |= dict(partial_rotary_factor=draw.choice([0.25, 0.5, 1.0]), mrope_section=[2, 1, 1], mrope_interleaved=True)
    options = sizes | dict(
        rope_parameters=rope, linear_num_key_heads=keys, linear_num_value_heads=keys * draw.choice([1, 2, 3]),
        linear_key_head_dim=draw.choice([4, 6, 10]), linear_value_head_dim=draw.choice([4, 6, 10]),
        linear_conv_kernel_dim=draw.choice([2, 3, 4]),
    )
    options |= draw.maybe("full_attention_interval", 2, 3) | draw.maybe("attention_bias", True, chance=0.3)
    return name, options | draw.maybe("layer_types", draw.kinds(layers, "linear_attention"))


def qwen35_moe(draw):
    name, options = qwen35(draw, "Qwen3_5MoeText")
    sizes = dict(moe_intermediate_size=draw.randint(5, 30), shared_expert_intermediate_size=draw.randint(5, 30))
    return name, options | draw.experts() | sizes


def gpt_oss(draw):
    sizes = draw.sizes()
    options = with_rope(draw, sizes, ["default", "yarn"]) | draw.experts("num_local_experts")
    options |= dict(sliding_window=draw.choice([3, 8])) | draw.maybe("swiglu_limit", 1.0, 2.0)
    options |= draw.maybe("layer_types", draw.kinds(sizes["num_hidden_layers"]))
    return "GptOss", options | draw.maybe("attention_bias", False, chance=0.3)


def encoder(draw):
    heads = draw.choice([1, 2, 3, 5])
    sizes = dict(
        vocab_size=draw.randint(120, 150), hidden_size=heads * draw.choice([4, 6, 8]), num_attention_heads=heads,
        intermediate_size=draw.randint(9, 60), num_hidden_layers=draw.randint(1, 4), max_position_embeddings=64,
        layer_norm_eps=draw.choice([1e-12, 1e-5, 1e-3]),
    )
    return sizes


def bert(draw):
    options = encoder(draw) | draw.maybe("type_vocab_size", 1, 3)
    return "Bert", options | draw.maybe("hidden_act", "gelu_new", "gelu")


def mpnet(draw):
    return "MPNet", encoder(draw)


def nomic_bert(draw):
    options = encoder(draw)
    rope = dict(rope_type="default", rope_theta=draw.choice([500.0, 1e4]))
    return "NomicBert", options | dict(rope_parameters=rope)


ENCODERS = dict(bert=(BERT_TOKENS, BERT_ORDER), mpnet=(MPNET_TOKENS, MPNET_ORDER), nomic_bert=(BERT_TOKENS, BERT_ORDER))
FAMILIES = [
    llama, mistral, mixtral, qwen2, qwen3, qwen2_moe, qwen3_moe, olmoe, olmo2, olmo3, phi3, smollm3, granite, glm4,
    ministral3, gemma2, gemma3, gemma4, qwen35, qwen35_moe, gpt_oss, bert, mpnet, nomic_bert,
]


def old_rope(config):
    """Writes RoPE as transformers 4 does."""
    rope = config.pop("rope_parameters", None)
    if rope is None:
        return
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    for key in OUTSIDE:
        if key in rope:
            config[key] = rope.pop(key)
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope


def without_defaults(draw, config, kind):
    """Removes some keys that have their default value."""
    defaults = kind().to_dict()
    for key in list(config):
        if key not in ["architectures", "model_type", "rope_parameters", "per_layer_config"] and key in defaults:
            if config[key] == defaults[key] and draw.random() < 0.5:
                del config[key]


def build(draw, family, folder):
    """Writes a random model; returns what it is."""
    name, options = family(draw)
    kind = getattr(transformers, f"{name}Config")
    model_class = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")
    config = kind(**options)
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    randomize(model, torch.Generator().manual_seed(draw.randrange(1 << 30)))
    for key, buffer in model.named_buffers():
        if key.endswith("layer_scalar"):
            buffer.fill_(draw.choice([0.7, 1.0, 1.2]))
    model.tie_weights()
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    model.to(dtype).save_pretrained(folder, **draw.maybe("max_shard_size", "20KB", chance=0.3))
    TOKENIZER.save_pretrained(folder)
    path = folder / "config.json"
    written = json.loads(path.read_text())
    old = draw.random() < 0.4 and name not in ["Gemma4Text", "Olmo3", "Ministral3", "Qwen3_5Text", "Qwen3_5MoeText"]
    if draw.random() < 0.1:
        written.pop("rope_parameters", None)
    if old:
        old_rope(written)
    without_defaults(draw, written, kind)
    path.write_text(json.dumps(written, indent=2))
    return f"{name}, {dtype}{', old RoPE' if old else ''}", options


def build_encoder(draw, family, folder):
    """Writes a random encoder; returns what it is."""
    name, options = family(draw)
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options)).eval()
    make_encoders.randomize(model, torch.Generator().manual_seed(draw.randrange(1 << 30)))
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    model.to(dtype).save_pretrained(folder)
    make_encoders.tokenizer(*ENCODERS[family.__name__]).save_pretrained(folder)
    return f"{name}, {dtype}", options


def vector_trouble(folder):
    """What differs in the vectors of sentences, if anything: means of the states of their tokens."""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    texts = folder / "texts.txt"
    texts.write_text("\n".join(make_encoders.TEXTS))
    words = [sys.executable, "-m", "openwork", "embed", folder, "--text", texts, "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return done.stderr
    for text, line in zip(make_encoders.TEXTS, done.stdout.splitlines(), strict=True):
        with torch.inference_mode():
            want = model(**tokens(text, return_tensors="pt")).last_hidden_state[0].mean(0).double()
        found = change(torch.tensor(json.loads(line), dtype=torch.float64), want)
        if not found <= TOLERANCE:
            return f"{text!r}: differs by {found:.2g} of the largest entry"
    return None


def change(found, want):
    """The largest difference of a logit, as a share of the largest logit."""
    return ((found - want).abs().max() / want.abs().max()).item()


def reference(draw, folder):
    """Sequences of tokens with their logits by transformers, and how far they may be off."""
    how = dict(attn_implementation="eager", experts_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **how).eval()
    found = []
    for length in [1, draw.randint(2, 12), 37]:
        ids = [draw.randrange(model.config.vocab_size) for _ in range(length)]
        with torch.inference_mode():
            single, double = (model.to(t)(torch.tensor([ids]), use_cache=False).logits[0] for t in [torch.float32, torch.float64])
        assert torch.isfinite(double).all()
        found.append((ids, double.double(), max(TOLERANCE, 2 * change(single, double))))
    return found


def trouble_with(folder, expected):
    """What differs in openwork's logits, if anything."""
    model = openwork.Model(folder)
    for ids, want, allowed in expected:
        found = change(torch.from_numpy(model.logits(ids)).double(), want)
        if not found <= allowed:
            return f"{len(ids)} tokens: differs by {found:.2g} of the largest logit, more than {allowed:.2g}"
    return None


def check(family, number, seed, place):
    """One model; the trouble with it, if any."""
    draw = Draw(f"{family.__name__} {number} {seed}")
    folder = place / f"{family.__name__}-{number}"
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            encodes = family.__name__ in ENCODERS
            what, options = (build_encoder if encodes else build)(draw, family, folder)
            expected = None if encodes else reference(draw, folder)
        except Exception as error:  # transformers refuses it: drawn again
            refused = error
            continue
        try:
            trouble = vector_trouble(folder) if encodes else trouble_with(folder, expected)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        if trouble is None:
            shutil.rmtree(folder)
            return None
        return f"{folder.name}: {what}: {trouble}\n    {options}"
    return f"{folder.name}: transformers refuses all drawn models: {refused}"


def main():
    parser = argparse.ArgumentParser(description=inspect.getdoc(sys.modules[__name__]).splitlines()[0])
    parser.add_argument("--count", type=int, default=10, help="models per family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder that keeps the models that differ")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(f.__name__ for f in FAMILIES))
    args = parser.parse_args()
    known = {family.__name__: family for family in FAMILIES}
    if unknown := set(args.families) - set(known):
        parser.error(f"unknown family {', '.join(unknown)}; the families are {', '.join(known)}")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    place = args.keep or Path(tempfile.mkdtemp())
    total, troubles = 0, 0
    for name in args.families or known:
        found = [check(known[name], number, args.seed, place) for number in range(args.count)]
        found = [trouble for trouble in found if trouble]
        total, troubles = total + args.count, troubles + len(found)
        print(f"{name}: {args.count - len(found)} of {args.count} agree", *found, sep="\n  ", flush=True)
    if not args.keep:
        shutil.rmtree(place)
    print(f"{total - troubles} of {total} models agree with transformers")
    return int(troubles > 0)


if __name__ == "__main__":
    sys.exit(main())
