"""Trains the demo model on the little language of `generator.py`.

    python train.py OUT [--experts]

Writes a Hugging Face folder (Qwen3, bf16; with `--experts` Qwen3-MoE, eight experts of
which two see each token) with calibration.txt, evaluation.txt and
entropy.json beside the weights. Needs torch, transformers and tokenizers. Everything
is drawn from SEED: the same versions on the same kind of processor give the same
weights.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
)

from generator import read, write

SEED = 5
VOCAB, WINDOW, BATCH = 1024, 256, 16
PARAGRAPHS = 640  # in each of the two texts
END = "<|end|>"
# Training spreads the tokens over the experts; what is written does not depend on the last two.
EXPERTS = dict(
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=128,
    norm_topk_prob=True,
    output_router_logits=True,
    router_aux_loss_coef=0.01,
)


def texts(seed, paragraphs):
    return write(random.Random(seed), paragraphs)[0]


def tokenizer(text):
    """Byte-level BPE: any text can be written, the language's words are one token each."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        text.splitlines(keepends=True),
        trainers.BpeTrainer(
            vocab_size=VOCAB,
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=END, model_max_length=WINDOW, add_bos_token=False
    )


def config(experts):
    kind, width = (Qwen3MoeConfig, EXPERTS) if experts else (Qwen3Config, dict(intermediate_size=384))
    return kind(
        **width,
        vocab_size=VOCAB,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=WINDOW,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )


def nats(model, ids, window=WINDOW):
    """Nats of windows that do not overlap, over all of their tokens but the first, and their number."""
    total, scored = 0.0, 0
    with torch.no_grad():
        for batch in ids[: len(ids) // window * window].view(-1, window).split(16):
            logits = model(batch).logits[:, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
            total, scored = total + loss.item(), scored + batch.numel() - len(batch)
    return total, scored


def pruned(model, keep=2, of=4):
    """A copy of which all linears are pruned by magnitude."""
    other = AutoModelForCausalLM.from_config(model.config)
    other.load_state_dict(model.state_dict())
    for layer in other.model.layers:
        for name, w in layer.named_parameters():
            if w.ndim < 2 or name == "mlp.gate.weight":
                continue
            groups = w.data.view(-1, of)
            groups.scatter_(1, groups.abs().topk(of - keep, dim=1, largest=False).indices, 0.0)
    return other.eval()


def orthogonal(g, steps=5):
    """The nearest matrix with singular values near one, by Newton-Schulz (Muon's step)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    turned = x.shape[0] > x.shape[1]
    x = x.T if turned else x
    for _ in range(steps):
        xx = x @ x.T
        x = a * x + (b * xx + c * xx @ xx) @ x
    return x.T if turned else x


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal: for the matrices inside the layers."""

    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                turned = p.grad.lerp(m, group["momentum"])
                update = orthogonal(turned) if p.ndim == 2 else torch.stack([orthogonal(g) for g in turned])
                p.add_(update, alpha=-group["lr"] * max(1, p.shape[-2] / p.shape[-1]) ** 0.5)


def train(model, stream, steps, log):
    # Routers are small and stay with the embedding.
    is_inner = lambda n, p: p.ndim >= 2 and "embed" not in n and not n.endswith("mlp.gate.weight")
    inner = [p for n, p in model.named_parameters() if is_inner(n, p)]
    outer = [p for n, p in model.named_parameters() if not is_inner(n, p)]
    optimizers = [Muon(inner, lr=0.02), torch.optim.Adam(outer, lr=4e-3, betas=(0.9, 0.98))]
    rates = [group["lr"] for o in optimizers for group in o.param_groups]
    started, seen = time.time(), 0
    for step in range(steps):
        # A short rise, then a straight fall to zero.
        share = min((step + 1) / 50, (steps - step) / steps)
        for rate, group in zip(rates, (g for o in optimizers for g in o.param_groups)):
            group["lr"] = rate * share
        batch = stream[step * BATCH * WINDOW :][: BATCH * WINDOW].view(BATCH, WINDOW)
        loss = model(batch, labels=batch).loss
        loss.backward()
        for o in optimizers:
            o.step()
            o.zero_grad(set_to_none=True)
        seen += batch.numel()
        if step % 20 == 0 or step == steps - 1:
            log(f"step {step:5d}  loss {loss.item():.4f}  {seen / (time.time() - started):.0f} tokens/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--experts", action="store_true", help="eight experts instead of one MLP")
    parser.add_argument("--small", action="store_true", help="do not count the exact entropy (slow)")
    args = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # small products: one core does more alone than two together
    args.out.mkdir(parents=True, exist_ok=True)

    # Three seeds, three texts: no paragraph of the evaluation was drawn for the others.
    evaluation, calibration = texts(SEED + 1, PARAGRAPHS), texts(SEED + 2, PARAGRAPHS)
    (args.out / "evaluation.txt").write_text(evaluation)
    (args.out / "calibration.txt").write_text(calibration)

    tokens = tokenizer(texts(SEED + 3, 20000))
    encode = lambda text: torch.tensor(tokens(text, verbose=False).input_ids)
    test = encode(evaluation)
    needed, parts, seed = args.steps * BATCH * WINDOW, [], SEED + 4
    while sum(map(len, parts)) < needed:
        parts.append(encode(texts(seed, 5000)))
        seed += 1
    stream = torch.cat(parts)
    drawn = write(random.Random(SEED + 1), PARAGRAPHS)[1]
    print(f"{len(stream)} tokens to train on; evaluation: {len(test)} tokens, "
          f"true perplexity {math.exp(drawn / len(test)):.4f}", flush=True)

    model = AutoModelForCausalLM.from_config(config(args.experts))
    print(sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    train(model, stream, args.steps, lambda line: print(line, flush=True))
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=0, pad_token_id=0)
    model.save_pretrained(args.out)
    tokens.save_pretrained(args.out)
    # The name that older versions of transformers know too.
    options = json.loads((args.out / "tokenizer_config.json").read_text())
    options["tokenizer_class"] = "PreTrainedTokenizerFast"
    (args.out / "tokenizer_config.json").write_text(json.dumps(options, indent=2) + "\n")

    model = model.float().eval()
    facts = {}
    for name, m in {"dense": model, "2:4 by magnitude": pruned(model)}.items():
        total, scored = nats(m, test)
        facts[name] = math.exp(total / scored)
        print(f"{name}: perplexity {facts[name]:.4f}")
    if not args.small:
        found = [read(line) for line in evaluation.splitlines()]
        assert max(derivations for _, derivations in found) == 1
        exact = sum(n for n, _ in found)
        assert abs(exact - drawn) < 1e-6 * exact
        entropy = {
            "text": "evaluation.txt",
            "paragraphs": PARAGRAPHS,
            "bytes": len(evaluation.encode()),
            "words": len(evaluation.split()),
            "tokens": len(test),
            "nats": exact,
            "token_perplexity": math.exp(exact / len(test)),
            "word_perplexity": math.exp(exact / len(evaluation.split())),
            "bits_per_byte": exact / math.log(2) / len(evaluation.encode()),
            "transformers": {"seq_len": WINDOW, **{f"{k}": v for k, v in facts.items()}},
        }
        (args.out / "entropy.json").write_text(json.dumps(entropy, indent=2) + "\n")


if __name__ == "__main__":
    main()
