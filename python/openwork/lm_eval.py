"""openwork's models in lm-eval, the evaluation harness of EleutherAI (`pip install lm-eval`).

    python -m openwork.lm_eval --model openwork --model_args path=packed --tasks arc_easy

runs lm-eval's own command with the model `openwork` registered. In Python, import this module and pass
`model="openwork"` to `lm_eval.simple_evaluate`. `path` is what `openwork.Model` takes.
"""

from __future__ import annotations

from typing import Any

from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from ._language_model import Model
from ._native import OpenworkError


# What lm-eval passes to every model, and what says nothing to a model on the CPU.
_OF_LM_EVAL = {"batch_size", "max_batch_size", "device", "trust_remote_code"}


class _Stop(Exception):
    """A text contains what it should end with."""


@register_model("openwork")
class OpenworkLM(TemplateLM):
    """A model of openwork as lm-eval sees it: requests in, log-likelihoods and texts out."""

    backend = "causal"

    def __init__(
        self, path: str | None = None, offline: bool = False, max_gen_toks: int = 256, **others: Any
    ) -> None:
        super().__init__()
        known = "path, offline and max_gen_toks"
        unknown = sorted(set(others) - _OF_LM_EVAL)
        if unknown:
            raise OpenworkError(f"--model_args has {unknown[0]}, which openwork does not know; it knows {known}")
        if path is None:
            raise OpenworkError("--model_args has no path; give path=MODEL, as openwork.Model takes it")
        self.model = Model(path, offline=offline)
        self.max_gen_toks = int(max_gen_toks)

    @property
    def eot_token_id(self) -> int:
        return self.model.eos_token_ids[0]

    @property
    def prefix_token_id(self) -> int:
        bos = self.model.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        return self.model.max_length

    @property
    def tokenizer_name(self) -> str:
        return self.model.path.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        tokens = self.model.tokenize(string)
        bos = self.model.bos_token_id
        adds = self.model.adds_bos if add_special_tokens is None else add_special_tokens and bos is not None
        return [bos, *tokens] if adds and bos is not None and tokens[:1] != [bos] else tokens

    def tok_decode(self, tokens: list[int]) -> str:
        return self.model.detokenize(tokens)

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        # Requests of one context side by side share its computation.
        order = sorted(range(len(requests)), key=lambda i: requests[i][1])
        pairs = [_last(requests[i][1], requests[i][2], self.max_length) for i in order]
        found = self.model._native.token_loglikelihoods(pairs)
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for i, answer in zip(order, found):
            answers[i] = answer
            if requests[i][0] is not None:
                self.cache_hook.add_partial("loglikelihood", requests[i][0], answer)
        return answers

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        totals = []
        for request in requests:
            (text,) = request.args
            windows = utils.get_rolling_token_windows(
                token_list=self.model.tokenize(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs = [utils.make_disjoint_window(window) for window in windows]
            found = self.model._native.token_loglikelihoods([(list(a), list(b)) for a, b in pairs])
            totals.append(sum(log for log, _ in found))
        return totals

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        return [self._generate(*request.args) for request in requests]

    def _generate(self, context: str, options: dict[str, Any]) -> str:
        until = options.get("until") or []
        until = [until] if isinstance(until, str) else until
        most = int(options.get("max_gen_toks", options.get("max_new_tokens", self.max_gen_toks)))
        # A short context leaves no room for as many new tokens: generation then stops at the model's limit.
        kept = max(self.max_length - most, self.max_length // 2)
        tokens = self.model.tokenize(context)
        if len(tokens) > kept:
            context = self.model.detokenize(tokens[-kept:])
        sampled = bool(options.get("do_sample", False))
        temperature = float(options.get("temperature", 1.0)) if sampled else 0.0
        pieces: list[str] = []

        def stop_early(piece: str) -> None:
            pieces.append(piece)
            if any(word in "".join(pieces) for word in until):
                raise _Stop

        try:
            text = self.model.generate(
                context, max_new_tokens=most, temperature=temperature, top_p=float(options.get("top_p", 1.0)),
                stream=stop_early,
            )
        except _Stop:
            text = "".join(pieces)
        for word in until:
            text = text.split(word)[0] if word else text
        return text

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.model.chat_text(chat_history, add_generation_prompt=add_generation_prompt)


def _last(context: list[int], continuation: list[int], most: int) -> tuple[list[int], list[int]]:
    """The last tokens that the model can read, as lm-eval cuts them."""
    extra = len(context) + len(continuation) - 1 - most
    if extra <= 0:
        return context, continuation
    kept = max(len(context) - extra, 1)
    return context[-kept:], continuation[-most:]


def main() -> None:
    """lm-eval's command."""
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError:  # pragma: no cover - an lm-eval without a command
        raise SystemExit("this lm-eval has no command; use lm_eval.simple_evaluate") from None
    cli_evaluate()


if __name__ == "__main__":
    main()
