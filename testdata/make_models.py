"""Makes the tiny checkpoints in `testdata/models` and their golden outputs.

    python testdata/make_models.py testdata/models [NAME ..]

Needs torch, transformers, tokenizers and safetensors. Every family gets a
folder as transformers writes it (random weights, fixed seed), and
`golden.safetensors` with

    ids                 [windows, length]         the input
    logits              [windows, length, vocab]  of transformers, in f32
    tap.<layer>.<site>  [windows * length, width] inputs of the linears, as
                                                  forward hooks see them (TAPPED only)

The sizes are small but no two of them are equal, so that a swapped axis shows.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3TextConfig,
    Gemma4Config,
    Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    Glm4Config,
    Glm4ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Ministral3Config,
    Ministral3ForCausalLM,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Mxfp4Config,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

VOCAB = 288
WINDOWS, LENGTH = 2, 23
SIZES = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
ROPE = dict(rope_type="default", rope_theta=10000.0)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=5000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=24,
)

# name: (config, model class, stored dtype, shard size)
MODELS = {
    # One key/value head for four queries, an explicit head size, rope scaling, an own head.
    "llama": (
        LlamaConfig(**SIZES | dict(num_key_value_heads=1, head_dim=12), rope_parameters=LLAMA3),
        LlamaForCausalLM,
        torch.float32,
        None,
    ),
    # As SmolLM2: tied; biases everywhere, which Llama's options allow; linear rope scaling.
    "llama-tied": (
        LlamaConfig(
            **SIZES,
            tie_word_embeddings=True,
            attention_bias=True,
            mlp_bias=True,
            rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0),
        ),
        LlamaForCausalLM,
        torch.bfloat16,
        None,
    ),
    # A sliding window shorter than the test; several shards.
    "mistral": (
        MistralConfig(**SIZES, head_dim=10, sliding_window=7, rope_parameters=ROPE),
        MistralForCausalLM,
        torch.bfloat16,
        "25KB",
    ),
    # Biases on q, k, v; the upper layer slides.
    "qwen2": (
        Qwen2Config(
            **SIZES,
            tie_word_embeddings=True,
            use_sliding_window=True,
            sliding_window=5,
            max_window_layers=1,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
        ),
        Qwen2ForCausalLM,
        torch.float16,
        None,
    ),
    # Norms on q and k, head size not hidden / heads.
    "qwen3": (
        Qwen3Config(**SIZES | dict(num_key_value_heads=4), head_dim=14, rope_parameters=ROPE),
        Qwen3ForCausalLM,
        torch.bfloat16,
        None,
    ),
    # Three sliding layers to one global one, two rope bases, four norms, scaled embedding.
    "gemma3": (
        Gemma3TextConfig(
            **SIZES | dict(num_hidden_layers=4),
            head_dim=16,
            query_pre_attn_scalar=24,
            sliding_window=6,
            layer_types=["sliding_attention"] * 3 + ["full_attention"],
            rope_parameters=dict(
                sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
            ),
        ),
        Gemma3ForCausalLM,
        torch.bfloat16,
        None,
    ),
}
# A text model inside one that sees images.
MODELS["gemma3-images"] = (
    Gemma3Config(
        text_config=Gemma3TextConfig(
            **SIZES, head_dim=12, query_pre_attn_scalar=20, sliding_window=6, sliding_window_pattern=2
        ).to_dict(),
        vision_config=dict(
            hidden_size=4, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
        ),
        mm_tokens_per_image=4,
        image_token_index=284,
        boi_token_index=285,
        eoi_token_index=286,
    ),
    Gemma3ForConditionalGeneration,
    torch.bfloat16,
    None,
)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16)
MODELS |= {
    # Bounded scores and logits; every other layer slides.
    "gemma2": (
        Gemma2Config(**SIZES, head_dim=10, query_pre_attn_scalar=18, sliding_window=5, rope_parameters=ROPE,
                     attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
        Gemma2ForCausalLM,
        torch.bfloat16,
        None,
    ),
    # The last of three layers has no experts.
    "qwen3-moe": (
        Qwen3MoeConfig(**SIZES | dict(num_hidden_layers=3), head_dim=14, rope_parameters=ROPE, num_experts=6,
                       num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=True, mlp_only_layers=[2]),
        Qwen3MoeForCausalLM,
        torch.bfloat16,
        None,
    ),
    "mixtral": (
        MixtralConfig(**SIZES, rope_parameters=ROPE, num_local_experts=5, num_experts_per_tok=2),
        MixtralForCausalLM,
        torch.bfloat16,
        None,
    ),
    # q, k and v are clamped; the norms of q and k span all heads.
    "olmoe": (
        OlmoeConfig(**SIZES | dict(intermediate_size=24), rope_parameters=ROPE, num_experts=7,
                    num_experts_per_tok=3, clip_qkv=1.5),
        OlmoeForCausalLM,
        torch.bfloat16,
        None,
    ),
    # A shared expert with a gate; every other layer has experts.
    "qwen2-moe": (
        Qwen2MoeConfig(**SIZES | dict(num_hidden_layers=3), rope_parameters=ROPE, num_experts=5,
                       num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=28,
                       decoder_sparse_step=2),
        Qwen2MoeForCausalLM,
        torch.bfloat16,
        None,
    ),
    # Norms on outputs only.
    "olmo2": (Olmo2Config(**SIZES, rope_parameters=ROPE), Olmo2ForCausalLM, torch.bfloat16, None),
    # The global layer has another rope.
    "olmo3": (
        Olmo3Config(**SIZES | dict(num_hidden_layers=4), sliding_window=6,
                    rope_parameters=dict(sliding_attention=ROPE, full_attention=YARN)),
        Olmo3ForCausalLM,
        torch.bfloat16,
        None,
    ),
    # Fused linears, three quarters of a head rotated, divisors for every plane.
    "phi3": (
        Phi3Config(**SIZES, original_max_position_embeddings=32, rope_parameters=dict(
            rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75, original_max_position_embeddings=32,
            short_factor=[1.0, 1.1, 1.3], long_factor=[2.0, 3.0, 4.0])),
        Phi3ForCausalLM,
        torch.bfloat16,
        None,
    ),
    # Every second layer is not rotated.
    "smollm3": (
        SmolLM3Config(**SIZES, rope_parameters=ROPE, no_rope_layer_interval=2),
        SmolLM3ForCausalLM,
        torch.bfloat16,
        None,
    ),
    "granite": (
        GraniteConfig(**SIZES, rope_parameters=ROPE, embedding_multiplier=3.0, attention_multiplier=0.2,
                      residual_multiplier=0.6, logits_scaling=2.5),
        GraniteForCausalLM,
        torch.bfloat16,
        None,
    ),
    # Half a head rotated, in neighbors; fused gate and up; four norms.
    "glm4": (
        Glm4Config(**SIZES, head_dim=12, rope_parameters=dict(ROPE, partial_rotary_factor=0.5)),
        Glm4ForCausalLM,
        torch.bfloat16,
        None,
    ),
    # Queries grow with their position.
    "ministral3": (
        Ministral3Config(**SIZES, head_dim=12, rope_parameters=dict(YARN, llama_4_scaling_beta=0.3,
                         beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)),
        Ministral3ForCausalLM,
        torch.bfloat16,
        None,
    ),
}
# Three gated delta nets for each attention; two value heads for each key head.
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=10,
             linear_conv_kernel_dim=3, head_dim=16,
             rope_parameters=dict(ROPE, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True))
QWEN35 = SIZES | DELTA | dict(num_hidden_layers=4, tie_word_embeddings=True)
MODELS |= {
    "qwen3.5": (Qwen3_5TextConfig(**QWEN35), Qwen3_5ForCausalLM, torch.bfloat16, None),
    "qwen3.5-moe": (
        Qwen3_5MoeTextConfig(**SIZES | DELTA, layer_types=["full_attention", "linear_attention"], num_experts=6,
                             num_experts_per_tok=3, moe_intermediate_size=20, shared_expert_intermediate_size=24),
        Qwen3_5MoeForCausalLM,
        torch.bfloat16,
        None,
    ),
    "qwen3.5-images": (
        Qwen3_5Config(
            text_config=QWEN35 | dict(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"]),
            vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32,
                               num_position_embeddings=16),
            tie_word_embeddings=True,
        ),
        Qwen3_5ForConditionalGeneration,
        torch.bfloat16,
        None,
    ),
    # Sinks, biases everywhere, clamped SwiGLU; experts as columns.
    "gpt-oss": (
        GptOssConfig(**SIZES | dict(intermediate_size=64), head_dim=12, sliding_window=5, num_local_experts=5,
                     num_experts_per_tok=2, swiglu_limit=1.5, rope_parameters=dict(YARN, truncate=False)),
        GptOssForCausalLM,
        torch.bfloat16,
        None,
    ),
}
# Larger heads in the global layer, whose values are its keys; normalized values.
MODELS["gemma4"] = (
    Gemma4TextConfig(
        **SIZES | dict(num_hidden_layers=3), head_dim=10, global_head_dim=16, num_global_key_value_heads=1,
        attention_k_eq_v=True, hidden_size_per_layer_input=0, sliding_window=6, final_logit_softcapping=4.0,
        rope_parameters=dict(sliding_attention=ROPE, full_attention=dict(
            rope_type="proportional", rope_theta=50000.0, partial_rotary_factor=0.5)),
        layer_types=["sliding_attention", "full_attention", "full_attention"],
    ),
    Gemma4ForCausalLM,
    torch.bfloat16,
    None,
)
# Experts beside the MLP.
MODELS["gemma4-moe"] = (
    Gemma4TextConfig(
        **SIZES, head_dim=10, global_head_dim=16, hidden_size_per_layer_input=0, sliding_window=6,
        enable_moe_block=True, num_experts=6, top_k_experts=3, moe_intermediate_size=20,
        rope_parameters=dict(sliding_attention=ROPE, full_attention=dict(
            rope_type="proportional", rope_theta=50000.0, partial_rotary_factor=0.25)),
        layer_types=["sliding_attention", "full_attention"],
    ),
    Gemma4ForCausalLM,
    torch.bfloat16,
    None,
)
# Per-layer embeddings; the last three of six layers use the keys and values of earlier ones,
# and have an MLP of twice the width.
GEMMA4_ROPES = dict(sliding_attention=ROPE, full_attention=dict(
    rope_type="proportional", rope_theta=50000.0, partial_rotary_factor=0.5))
MODELS["gemma4-e2b"] = (
    Gemma4TextConfig(
        **SIZES | dict(num_hidden_layers=6), head_dim=10, global_head_dim=16, hidden_size_per_layer_input=12,
        vocab_size_per_layer_input=VOCAB + 4, num_kv_shared_layers=3, use_double_wide_mlp=True, sliding_window=6,
        final_logit_softcapping=4.0, rope_parameters=GEMMA4_ROPES,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    ),
    Gemma4ForCausalLM,
    torch.bfloat16,
    None,
)
# The same within a model that sees images, of other proportions; with the projections of keys
# and values that published files have in layers that do not use them.
MODELS["gemma4-e2b-images"] = (
    Gemma4Config(
        text_config=SIZES | dict(
            num_hidden_layers=4, head_dim=10, global_head_dim=16, hidden_size_per_layer_input=12,
            vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=2, sliding_window=6, rope_parameters=GEMMA4_ROPES,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
        vision_config=dict(hidden_size=8, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2,
                           num_key_value_heads=2, head_dim=4, patch_size=4, position_embedding_size=16,
                           pooling_kernel_size=2),
        audio_config=None,
    ),
    Gemma4ForConditionalGeneration,
    torch.bfloat16,
    None,
)
# Per-layer embeddings and shared keys and values beside experts.
MODELS["gemma4-e2b-moe"] = (
    Gemma4TextConfig(
        **SIZES | dict(num_hidden_layers=3), head_dim=10, global_head_dim=10, hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=1, use_double_wide_mlp=True, sliding_window=6,
        attention_k_eq_v=True, enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=20,
        rope_parameters=GEMMA4_ROPES, layer_types=["sliding_attention", "full_attention", "full_attention"],
    ),
    Gemma4ForCausalLM,
    torch.bfloat16,
    None,
)
MODELS["gpt-oss-mxfp4"] = MODELS["gpt-oss"]
TAPPED = ["qwen3"]
SITES = dict(qkv="self_attn.q_proj", out="self_attn.o_proj", gate_up="mlp.gate_proj", down="mlp.down_proj")


def randomize(model, generator):
    """Weights large enough that a wrong detail shows in the logits."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            of_one = model.config.model_type.startswith(("gemma2", "gemma3", "qwen3_5")) and "linear_attn" not in name
            centre = 0.0 if of_one else 1.0
            parameter.data = centre + 0.3 * noise
        elif name.endswith("bias") or parameter.ndim == 1:
            parameter.data = 0.5 * noise
        elif "embed" in name:
            parameter.data = noise * parameter.shape[1] ** -0.5
        else:
            parameter.data = noise * 1.5 * parameter.shape[1] ** -0.5


MXFP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4(folder):
    """Stores the experts of a folder as gpt-oss's published files do."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        weights = tensors.pop(name).float().transpose(1, 2)  # [experts, out, in]
        blocks = weights.unflatten(-1, (-1, 32))
        scale = blocks.abs().amax(-1).clamp(min=1e-9).log2().floor() - 2
        codes = (blocks / 2.0 ** scale[..., None])[..., None].sub(MXFP4).abs().argmin(-1)
        tensors[f"{name}_blocks"] = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8).contiguous()
        tensors[f"{name}_scales"] = (scale + 127).to(torch.uint8).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata=dict(format="pt"))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = dict(
        quant_method="mxfp4",
        modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    )
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def unused_keys(folder):
    """Adds projections of keys and values to the layers that use those of earlier ones."""
    tensors = load_file(folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())["text_config"]
    for layer in range(text["num_hidden_layers"] - text["num_kv_shared_layers"], text["num_hidden_layers"]):
        like = layer - text["num_kv_shared_layers"]
        for part in ["k_proj", "v_proj", "k_norm"]:
            name = f"model.language_model.layers.{{}}.self_attn.{part}.weight"
            tensors[name.format(layer)] = tensors[name.format(like)] + 1
    save_file(tensors, folder / "model.safetensors", metadata=dict(format="pt"))


def tokenizer():
    """A byte-level BPE that knows every byte and a few English pairs."""
    special = ["<pad>", "<s>", "</s>"]
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    text = ["the open work of a wall lets the light in and the wind out"] * 9
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 5,  # models often have more rows than the tokenizer has tokens
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def make(name, folder, tok):
    config, kind, dtype, shard = MODELS[name]
    generator = torch.Generator().manual_seed(len(name))
    config._attn_implementation = "eager"
    model = kind(config).eval()
    randomize(model, generator)
    for key, buffer in model.named_buffers():
        if key.endswith("layer_scalar"):
            buffer.fill_(0.75)
    model.tie_weights()
    model.to(dtype).save_pretrained(folder, **(dict(max_shard_size=shard) if shard else {}))
    for stale in ["generation_config.json"]:
        (folder / stale).unlink(missing_ok=True)
    tok.save_pretrained(folder)
    for stale in ["special_tokens_map.json", "chat_template.jinja"]:
        (folder / stale).unlink(missing_ok=True)

    how = {}
    if name.endswith("mxfp4"):
        mxfp4(folder)
        how = dict(quantization_config=Mxfp4Config(dequantize=True))
    if name == "gemma4-e2b-images":
        unused_keys(folder)
    # The oracle reads what was stored, and computes in f32.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **how).eval()
    model = model.float()
    ids = torch.randint(0, VOCAB, (WINDOWS, LENGTH), generator=generator)
    golden = dict(ids=ids.to(torch.int32))
    hooks = []
    if name in TAPPED:
        for index, layer in enumerate(model.model.layers):
            for site, path in SITES.items():

                def see(module, inputs, key=f"tap.{index}.{site}"):
                    golden[key] = inputs[0].detach().reshape(-1, inputs[0].shape[-1]).clone()

                hooks.append(layer.get_submodule(path).register_forward_pre_hook(see))
    with torch.inference_mode():
        golden["logits"] = model(ids, use_cache=False).logits.float()
    for hook in hooks:
        hook.remove()
    assert torch.isfinite(golden["logits"]).all()
    save_file({key: value.contiguous() for key, value in golden.items()}, folder / "golden.safetensors")
    print(f"{name:12} logits in {golden['logits'].min():.2f} .. {golden['logits'].max():.2f}")


def main(out, names):
    tok = tokenizer()
    for name in names or MODELS:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        make(name, folder, tok)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
