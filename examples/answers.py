"""Answers to multiple-choice questions: a model as an estimator with `predict` and `score`.

    python examples/answers.py [MODEL] [TASK.jsonl]

Compares the answers by log-likelihood with those by log-likelihood per byte, and lets the model continue one of the
questions. Without arguments it runs on the built-in model and questions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import openwork

QUESTIONS = [
    dict(context="the small", choices=[" cat", " of", " the"], gold=0),
    dict(context="a", choices=[" the", " dog", " a"], gold=1),
]


class Chooser:
    """Chooses the continuation that a model finds likeliest."""

    def __init__(self, model: openwork.Model, per_byte: bool = False) -> None:
        self.model, self.per_byte = model, per_byte

    def predict(self, documents: list[dict]) -> list[int]:
        pairs = [(document["context"], choice) for document in documents for choice in document["choices"]]
        scores = iter(self.model.loglikelihoods(pairs))
        answers = []
        for document in documents:
            sizes = [len(choice.encode()) if self.per_byte else 1 for choice in document["choices"]]
            each = [next(scores) / size for size in sizes]
            answers.append(each.index(max(each)))
        return answers

    def score(self, documents: list[dict]) -> float:
        right = [answer == document["gold"] for answer, document in zip(self.predict(documents), documents)]
        return sum(right) / len(right)


def main() -> None:
    model = openwork.Model(sys.argv[1] if len(sys.argv) > 1 else "demo")
    documents = QUESTIONS
    if len(sys.argv) > 2:
        documents = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines() if line.strip()]
    for per_byte in (False, True):
        accuracy = Chooser(model, per_byte).score(documents)
        print(f"{'per byte' if per_byte else 'plain':9} {accuracy:.4f} of {len(documents)}")
    print(documents[0]["context"], end="")
    model.generate(documents[0]["context"], max_new_tokens=20, stream=lambda text: print(text, end="", flush=True))
    print()


if __name__ == "__main__":
    main()
