"""Makes gguf/NAME.gguf of families whose GGUF form needs more than names (experts, fused
linear layers, factors, several norms), and gguf/NAME.safetensors with what transformers
computes from the same weights:

    ids     [length]        the input
    logits  [LAST, vocab]   of its last tokens, in f32

    pip install torch transformers gguf safetensors
    python testdata/make_gguf_models.py [NAME ..]

Names of tensors and keys are those of the `gguf` package. Configs are those of
make_models.py, changed where llama.cpp has no key for an option. Weights are rounded to the
file's types before transformers computes with them.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, TokenType
from gguf.quants import dequantize, quantize
from make_models import MODELS, ROPE, SIZES, VOCAB, YARN, randomize, tokenizer
from safetensors.torch import save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

HERE = Path(__file__).parent / "gguf"
LENGTH, LAST = 20, 6

# name: (model of make_models.py, architecture, changes of the config, types of matrices)
CASES = {
    "qwen3moe": ("qwen3-moe", "qwen3moe", dict(mlp_only_layers=[], num_hidden_layers=2), ["BF16", "Q8_0"]),
    "mixtral": ("mixtral", "llama", {}, ["BF16", "Q4_0"]),
    # One tensor per expert, as in files of 2023 and 2024.
    "mixtral-old": ("mixtral", "llama", dict(num_hidden_layers=1, num_local_experts=3), ["F16"]),
    "olmoe": ("olmoe", "olmoe", dict(num_key_value_heads=4, clip_qkv=None), ["BF16"]),
    "qwen2moe": ("qwen2-moe", "qwen2moe", dict(decoder_sparse_step=1, num_hidden_layers=2, layer_types=None), ["F16", "Q8_0"]),
    "olmo2": ("olmo2", "olmo2", {}, ["BF16"]),
    "olmo3": ("olmo3", "olmo2", {}, ["BF16"]),
    "phi3": ("phi3", "phi3", {}, ["BF16"]),
    "smollm3": (
        "smollm3", "smollm3",
        dict(num_hidden_layers=4, no_rope_layers=None, no_rope_layer_interval=4, layer_types=None), ["BF16"],
    ),
    "granite": ("granite", "granite", {}, ["BF16"]),
    "glm4": ("glm4", "glm4", {}, ["BF16"]),
    "mistral3": ("ministral3", "mistral3", {}, ["BF16"]),
    "gemma2": ("gemma2", "gemma2", dict(query_pre_attn_scalar=10), ["BF16"]),
    # llama.cpp has one head size for keys and values of delta nets.
    "qwen35": ("qwen3.5", "qwen35", dict(linear_key_head_dim=8, linear_value_head_dim=8), ["BF16", "Q8_0"]),
    "qwen35moe": (
        "qwen3.5-moe", "qwen35moe",
        dict(linear_num_value_heads=6, linear_key_head_dim=8, linear_value_head_dim=8,
             layer_types=["linear_attention", "full_attention"]), ["BF16"],
    ),
    # llama.cpp rounds the ends of YaRN's ramp, gpt-oss does not; no plane lies where that matters.
    "gpt-oss": (
        "gpt-oss", "gpt-oss", dict(swiglu_limit=7.0, rope_parameters=dict(YARN, truncate=False)),
        # Those of a layer are q, k, v, o, gate, up and down, after the embedding.
        ["MXFP4", "BF16", "BF16", "BF16", "Q8_0", "MXFP4", "MXFP4"],
    ),
    "gemma4": ("gemma4", "gemma4", {}, ["BF16"]),
    "gemma4-moe": ("gemma4-moe", "gemma4", {}, ["BF16", "Q8_0"]),
    "gemma4-e2b": ("gemma4-e2b", "gemma4", dict(vocab_size_per_layer_input=VOCAB), ["BF16"]),
    "gemma4-e2b-moe": ("gemma4-e2b-moe", "gemma4", {}, ["BF16"]),
    # Rows of 256 entries, a block of Q4_K.
    "qwen3moe-quants": (None, "qwen3moe", {}, ["Q4_K", "Q4_0", "Q8_0"]),
}
WIDE = (
    Qwen3MoeConfig(**SIZES | dict(hidden_size=256, num_hidden_layers=1, intermediate_size=64), head_dim=16,
                   rope_parameters=ROPE, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=32,
                   norm_topk_prob=True, tie_word_embeddings=True),
    Qwen3MoeForCausalLM,
)
# Rows of q and k are interleaved for ggml's rotation.
INTERLEAVED = ["llama", "smollm3", "granite", "mistral3"]


def changed(config, changes):
    return type(config)(**{k: v for k, v in config.to_dict().items() if k not in changes}, **changes)


def keys(writer, arch, c):
    """The metadata that llama.cpp's converter writes for these architectures."""
    heads, rope = c.num_attention_heads, c.rope_parameters
    head_dim = None if arch == "gemma4" else getattr(c, "head_dim", None) or c.hidden_size // heads
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    if hasattr(c, "intermediate_size") and arch != "gemma4":
        writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(heads)
    if arch != "gemma4":
        writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    if arch == "gemma4":
        gemma4_keys(writer, c)
    elif arch not in ("phi3", "granite"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    full = rope.get("full_attention", rope)
    writer.add_rope_freq_base(full["rope_theta"])
    if arch in INTERLEAVED + ["phi3", "glm4", "qwen35", "qwen35moe"]:
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if full["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        if "beta_fast" in full:
            writer.add_rope_scaling_yarn_beta_fast(full["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(full["beta_slow"])
    if "sliding_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        writer.add_sliding_window(c.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in c.layer_types])
    if arch == "mistral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if arch == "phi3":
        original = rope["original_max_position_embeddings"]
        grown = c.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(np.sqrt(1 + np.log(grown) / np.log(original)).item())
        writer.add_sliding_window(0)
    if arch == "granite":
        writer.add_attention_scale(c.attention_multiplier)
        writer.add_embedding_scale(c.embedding_multiplier)
        writer.add_residual_scale(c.residual_multiplier)
        writer.add_logit_scale(c.logits_scaling)
    if arch == "gemma2":
        writer.add_sliding_window(c.sliding_window)
        writer.add_attn_logit_softcapping(c.attn_logit_softcapping)
        writer.add_final_logit_softcapping(c.final_logit_softcapping)
    if arch == "gpt-oss":
        writer.add_sliding_window(c.sliding_window)
    if arch.startswith("qwen35"):
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
        writer.add_full_attention_interval(c.layer_types.index("full_attention") + 1)
        writer.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
        writer.add_ssm_state_size(c.linear_key_head_dim)
        writer.add_ssm_group_count(c.linear_num_key_heads)
        writer.add_ssm_time_step_rank(c.linear_num_value_heads)
        writer.add_ssm_inner_size(c.linear_num_value_heads * c.linear_value_head_dim)
    experts = getattr(c, "num_experts", None) or getattr(c, "num_local_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(c.top_k_experts if arch == "gemma4" else c.num_experts_per_tok)
    if arch == "gpt-oss":
        writer.add_expert_feed_forward_length(c.intermediate_size)
    if arch in ("qwen3moe", "qwen2moe", "qwen35moe") or arch == "gemma4" and experts:
        writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    if arch in ("qwen2moe", "qwen35moe"):
        writer.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)


def gemma4_heads(c):
    """The head size of sliding and of global layers, and the heads of keys likewise."""
    d = c.to_dict()
    other = next(iter(d["per_layer_config"].values()), {})
    return [(d[key], other.get(key, d[key])) for key in ("head_dim", "num_key_value_heads")]


def gemma4_keys(writer, c):
    """Keys of Gemma 4, whose global layers have other heads."""
    (local, whole), kv_heads = gemma4_heads(c)
    slides = [kind == "sliding_attention" for kind in c.layer_types]
    shared = c.num_hidden_layers - c.num_kv_shared_layers
    wide = [2 if c.use_double_wide_mlp and i >= shared else 1 for i in range(c.num_hidden_layers)]
    writer.add_feed_forward_length([c.intermediate_size * times for times in wide] if 2 in wide else c.intermediate_size)
    if kv_heads[0] != kv_heads[1]:
        writer.add_head_count_kv([kv_heads[0 if own else 1] for own in slides])
    else:
        writer.add_head_count_kv(kv_heads[0])
    writer.add_shared_kv_layers(c.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(c.hidden_size_per_layer_input or 0)
    for length in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        length(whole)
    for length in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
        length(local)
    # Without the key llama.cpp assumes 30.
    writer.add_final_logit_softcapping(c.final_logit_softcapping or 0.0)


def vocabulary(writer, tok):
    import json
    model = json.loads(tok.backend_tokenizer.to_str())["model"]
    tokens = [f"[PAD{i}]" for i in range(VOCAB)]
    types = [TokenType.UNUSED] * VOCAB
    for token, i in model["vocab"].items():
        tokens[i], types[i] = token, TokenType.CONTROL if i < 3 else TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def interleaved(rows, heads):
    """d and d + half of a head become neighbors."""
    per_head = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(np.moveaxis(per_head, 1, 2)).reshape(rows.shape)


def filed(name, array, arch, c):
    """A parameter as files have it, and the order of its rows and columns there."""
    if "linear_attn" not in name:
        adds = arch.startswith(("gemma2", "gemma3", "qwen35")) and name.endswith("norm.weight")
        return array + 1 if adds else array, slice(None), slice(None)
    groups, heads, before = c.linear_num_key_heads, c.linear_num_value_heads, 2 * c.linear_num_key_heads * c.linear_key_head_dim

    def tiled(size):
        """The first head of values of every head of keys, then the second, ..."""
        return np.arange(heads * size).reshape(groups, -1, size).swapaxes(0, 1).reshape(-1)

    one, whole = tiled(1), tiled(c.linear_value_head_dim)
    part = name.split("linear_attn.")[1]
    if part == "A_log":
        return -np.exp(array[one]), slice(None), slice(None)
    if part == "conv1d.weight":
        return array[np.concatenate([np.arange(before), before + whole]), 0], slice(None), slice(None)
    if part == "dt_bias":
        return array[one], slice(None), slice(None)
    rows = {
        "in_proj_qkv.weight": np.concatenate([np.arange(before), before + whole]),
        "in_proj_z.weight": whole, "in_proj_a.weight": one, "in_proj_b.weight": one,
    }
    return array, rows.get(part, slice(None)), whole if part == "out_proj.weight" else slice(None)


def blocks_of(kind, shape, random):
    """Random blocks of a type that the gguf package only reads."""
    per_block, size = GGML_QUANT_SIZES[kind]
    count = int(np.prod(shape)) // per_block
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for at in (0, 2):
        scale = (np.abs(random.standard_normal(count)) * 4e-4 + 1e-4).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(count, 2)
    return blocks.reshape(*shape[:-1], -1)


def tensors(model, arch, merged):
    """(name in the gguf package's map, value, parameter, its part) of every tensor."""
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if arch == "gemma4":
            yield name, value
            continue
        if arch == "gpt-oss" and ".experts." in name:
            name, bias, _ = name.partition("_bias")
            parts = ["gate_proj", "up_proj"] if "gate_up" in name else ["down_proj"]
            for i, part in enumerate(parts):
                one = value[..., i :: len(parts)]
                base = f"{name.rsplit('.', 1)[0]}.{part}"
                yield (f"{base}.bias", one) if bias else (f"{base}.weight", one.transpose(1, 2))
            continue
        if name.endswith("experts.gate_up_proj"):
            half = value.shape[1] // 2
            pairs = [("gate_proj", value[:, :half]), ("up_proj", value[:, half:])]
        elif name.endswith("experts.down_proj"):
            pairs = [("down_proj", value)]
        else:
            yield name, value
            continue
        for part, value in pairs:
            base = f"{name.rsplit('.', 1)[0]}.{part}.weight"
            if merged:
                yield base, value
            else:
                for i, one in enumerate(value):
                    yield f"{base}#{i}", one


def make(name, tok, path=None, more={}, types=None):
    """Writes a file, with other types if given; returns tokens and the last logits."""
    source, arch, changes, own = CASES[name]
    types = types or own
    config, kind = WIDE if source is None else MODELS[source][:2]
    config = changed(config, changes | more)
    config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(len(name) + 40)
    random = np.random.default_rng(len(name))
    model = kind(config).eval()
    randomize(model, generator)
    for key, buffer in model.named_buffers():
        if key.endswith("layer_scalar"):
            buffer.fill_(0.75)
    model.tie_weights()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()

    writer = gguf.GGUFWriter(path or HERE / f"{name}.gguf", arch)
    keys(writer, arch, config)
    vocabulary(writer, tok)
    id = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(id, config.num_hidden_layers)
    count = 0
    for there, value in tensors(model, arch, not name.endswith("-old")):
        there, _, expert = there.partition("#")
        here = names.get_name(there.replace("dt_bias", "dt_proj.bias"), try_suffixes=(".weight", ".bias"))
        if here and not here.endswith(("weight", "bias", "ssm_a")):
            here += ".weight"
        # Factors that are no tensors of their own in the package's map.
        for scale, owner in ("router.scale", "ffn_gate_inp"), ("router.per_expert_scale", "ffn_down_exps"):
            if there.endswith(scale):
                here = f"blk.{there.split('.')[2]}.{owner}.scale"
        assert here, there
        if expert:
            here = here.replace("_exps.", f".{expert}.")
        array = value.numpy()
        if there.endswith("shared_expert_gate.weight"):
            array = array[0]
        array, rows, columns = filed(there, array, arch, config)
        array = np.ascontiguousarray(array[rows][..., columns])
        kind = GGMLQuantizationType.F32
        if array.ndim > 1 and not any(part in here for part in ("ffn_gate_inp", "conv1d", ".bias")):
            kind = GGMLQuantizationType[types[count % len(types)]]
            count += 1
            if array.shape[-1] % GGML_QUANT_SIZES[kind][0]:
                kind = GGMLQuantizationType.BF16
        if kind == GGMLQuantizationType.Q4_K:
            blocks = blocks_of(kind, array.shape, random)
        else:
            blocks = quantize(array, kind)
        if array.ndim == value.ndim > 1:
            rounded = np.array(dequantize(blocks, kind).reshape(array.shape))
            own = np.empty_like(rounded)
            own[rows] = rounded
            rounded = own.copy()
            own[..., columns] = rounded
            # In place: a part of a fused parameter is a view of it.
            value.copy_(torch.from_numpy(own))
        if arch in INTERLEAVED:
            heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
            heads = next((n for part, n in heads.items() if f"{part}." in there), None)
            blocks = interleaved(blocks, heads) if heads else blocks
        writer.add_tensor(here, blocks, raw_dtype=kind)
    if arch == "gemma4":
        half = gemma4_heads(config)[0][1] // 2
        turned = int(half * config.rope_parameters["full_attention"]["partial_rotary_factor"])
        writer.add_tensor("rope_freqs.weight", np.array([1.0] * turned + [1e30] * (half - turned), dtype=np.float32))
    if arch == "phi3":
        for factor in ("long", "short"):
            values = np.array(config.rope_parameters[f"{factor}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{factor}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    ids = torch.randint(3, VOCAB, (1, LENGTH), generator=generator)
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[0].float()
    assert torch.isfinite(logits).all()
    return ids[0].to(torch.int32), logits[-LAST:].contiguous()


if __name__ == "__main__":
    tok = tokenizer()
    for name in sys.argv[1:] or CASES:
        ids, logits = make(name, tok)
        save_file(dict(ids=ids, logits=logits), HERE / f"{name}.safetensors")
        size = (HERE / f"{name}.gguf").stat().st_size
        print(f"{name:16} {size / 1e3:6.1f} kB, logits in {logits.min():.2f} .. {logits.max():.2f}")
