"""`Model`: a language model on the CPU, dense or packed, from a folder, a GGUF file or the Hugging Face Hub."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _native
from ._native import OpenworkError

Stream = Callable[[str], Any]


class LogLikelihood(float):
    """A log-likelihood in nats: a float that also knows whether greedy decoding produces the text."""

    greedy: bool

    def __new__(cls, value: float, greedy: bool) -> LogLikelihood:
        self = super().__new__(cls, value)
        self.greedy = greedy
        return self


class Model:
    """A language model that runs in this process.

    model: a Hugging Face folder, a folder of `openwork pack`, a .gguf file, `demo`, or a name on the Hugging Face Hub
        (`org/name`, `org/name@revision`, `org/name/file.gguf`)
    offline: download nothing; use only what is in the cache

    Weights are loaded at first use: as float32 (packed ones as they are) for logits, likelihoods and perplexity, which
    agree with transformers in float32; as bfloat16 or float16 for generation. Long calls release the interpreter, and
    Ctrl-C stops them.

    >>> model = Model("demo")
    >>> model.generate("the", max_new_tokens=3) == model.detokenize(model.tokenize(model.generate("the", max_new_tokens=3)))
    True
    >>> model.logits(model.tokenize("the small")).shape[1] == model.vocab_size
    True
    """

    def __init__(self, model: str | os.PathLike[str], *, offline: bool = False) -> None:
        self.path = os.fspath(_native.model_path(os.fspath(model), offline))
        self._native = _native.LanguageModel(self.path)

    def __repr__(self) -> str:
        return f"Model({self.path!r})"

    @property
    def config(self) -> dict[str, Any]:
        """The model's config, with the keys of config.json."""
        config: dict[str, Any] = json.loads(self._native.config())
        return config

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence."""
        return self._native.max_length

    @property
    def vocab_size(self) -> int:
        """Number of logits of a token."""
        return self._native.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """The beginning-of-sequence token."""
        return self._native.special_tokens()[0]

    @property
    def eos_token_ids(self) -> list[int]:
        """The end-of-sequence tokens, at which generation stops."""
        return self._native.special_tokens()[1]

    @property
    def adds_bos(self) -> bool:
        """Whether prompts and texts start with the beginning-of-sequence token."""
        return self._native.special_tokens()[2]

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens."""
        return self._native.tokenize(text)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of tokens."""
        return self._native.detokenize(_ids(tokens))

    def logits(self, tokens: Iterable[int]) -> np.ndarray:
        """The logits after each token of a sequence: float32, `[tokens, vocab_size]`."""
        ids = _ids(tokens)
        if not ids:
            raise OpenworkError("there are no tokens; give at least one")
        return self._native.logits(ids)

    def loglikelihood(self, context: str, continuation: str) -> LogLikelihood:
        """The log-likelihood of a continuation after a context, in nats, tokenized as lm-eval does.

        The result is a float; its attribute `greedy` tells whether greedy decoding produces the continuation.
        """
        return self.loglikelihoods([(context, continuation)])[0]

    def loglikelihoods(self, pairs: Iterable[tuple[str, str]]) -> list[LogLikelihood]:
        """The log-likelihoods of many pairs of context and continuation, computed together.

        Neighbors with the same context share its computation.
        """
        return [
            LogLikelihood(log, greedy)
            for log, greedy in self._native.loglikelihoods([(context, text) for context, text in pairs])
        ]

    def perplexity(self, text: str, *, seq_len: int | None = None, max_tokens: int | None = None) -> float:
        """The perplexity per token of a text, as `openwork eval` measures it.

        seq_len: tokens per window [default: 2048, or the model's limit]; a shorter text is one window
        max_tokens: use only the first tokens of the text
        """
        if seq_len is None:
            tokens = len(self.tokenize(text)) + self.adds_bos
            seq_len = max(2, min(2048, self.max_length, tokens))
        found = json.loads(self._native.evaluate(text, seq_len, max_tokens))
        return float(found["token_perplexity"])

    def generate(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        stream: Stream | None = None,
    ) -> str:
        """The text that the model generates after a prompt: greedily, or sampled if temperature is above 0.

        stream: called with the new text as it is generated; an exception in it ends the generation
        """
        return self._native.generate(prompt, max_new_tokens, float(temperature), top_k, float(top_p), seed, stream)[0]

    def chat(
        self,
        messages: str | Sequence[Mapping[str, str]],
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        stream: Stream | None = None,
    ) -> str:
        """The model's next message in a conversation, by its own chat template.

        messages: dicts with `role` (`system`, `user`, `assistant`) and `content`, or a text, which is what a user says
        """
        options = (max_new_tokens, float(temperature), top_k, float(top_p), seed, stream)
        return self._native.chat(_said(messages), *options)[0]

    def chat_text(
        self, messages: str | Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """A conversation as the text that the model was trained on, by its own chat template."""
        return self._native.chat_text(_said(messages), add_generation_prompt)


def _ids(tokens: Iterable[int]) -> list[int]:
    """Token ids as a list of int, from a list, a numpy array or a torch tensor of one dimension."""
    if hasattr(tokens, "tolist"):
        tokens = tokens.tolist()
    ids = list(tokens)
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < 2**32:
            raise OpenworkError(f"{token!r} is not a token id; give a list of whole numbers from 0 on")
    return ids


def _said(messages: str | Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Messages as pairs of role and content."""
    if isinstance(messages, str):
        return [("user", messages)]
    pairs = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise OpenworkError(f"message {number} is {message!r}; give a dict with `role` and `content`")
        pairs.append((message["role"], message["content"]))
    return pairs
