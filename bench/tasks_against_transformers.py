"""Log-likelihoods of tasks: `openwork eval --task` against a plain loop over transformers.

    python bench/tasks_against_transformers.py MODEL TASK.. [--openwork BINARY] [--threads N] [--limit N] [--exact N] [--exact-above D]

MODEL is a Hugging Face folder or a .gguf file. Every choice of every document is one forward pass of transformers
in float32, tokenized as lm-eval does; the differences between the two log-likelihoods, the accuracies of both and
the seconds of both are printed as one JSON object. transformers is timed without loading the model, openwork with it.

torch's log_softmax in float32 adds an error of its own, which grows with the tokens of a choice. Differences are
therefore given twice: `float32` takes transformers' log_softmax as it is, `float64` takes the log_softmax of the same
logits in float64. With --exact N, the first N documents of every task are also computed in float64 from end to
end, and both programs are compared with that. With --exact-above D, so is every choice on which the two programs
differ by more than D (in the log_softmax of float64), and these choices are listed.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time


def encode_pair(tokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """lm-eval's tokens of a context and its continuation."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        continuation = context[-spaces:] + continuation
        context = context[:-spaces]
    if not context:
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        return [start], tokenizer.encode(continuation, add_special_tokens=False)
    whole, before = tokenizer.encode(context + continuation), tokenizer.encode(context)
    return before, whole[len(before):]


class Differences:
    """The largest and the mean absolute difference of two sequences of numbers."""

    def __init__(self) -> None:
        self.largest, self.total, self.count = 0.0, 0.0, 0

    def add(self, a: float, b: float) -> None:
        difference = abs(a - b)
        self.largest, self.total, self.count = max(self.largest, difference), self.total + difference, self.count + 1

    def to_json(self) -> dict:
        return dict(largest=self.largest, mean=self.total / max(self.count, 1), choices=self.count)


def in_double(model):
    """A copy of a Llama-like model that computes in float64, except for the angles of RoPE.

    `model.double()` is not enough: norms and positions are computed in float32 whatever the type of the weights.
    """
    import copy
    import types

    import torch

    def norm(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    def rotary(self, x, position_ids, **_):
        angles = (position_ids[:, :, None].float() * self.inv_freq.float()).double()
        angles = torch.cat((angles, angles), -1)
        return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling

    model = copy.deepcopy(model).double()
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = types.MethodType(norm, module)
        elif kind.endswith("RotaryEmbedding"):
            module.forward = types.MethodType(rotary, module)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("tasks", type=pathlib.Path, nargs="+")
    parser.add_argument("--openwork", default="openwork", help="the command")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--exact", type=int, default=0, help="documents per task that are also computed in float64")
    parser.add_argument("--exact-above", type=float, help="difference above which a choice is computed in float64")
    args = parser.parse_args()

    # openwork first: two programs at once would slow each other down.
    with tempfile.TemporaryDirectory() as folder:
        details = pathlib.Path(folder, "details.jsonl")
        command = [args.openwork, "eval", str(args.model), "--json", "--quiet", "--details", str(details)]
        command += [word for task in args.tasks for word in ("--task", str(task))]
        command += ["--threads", str(args.threads)] + (["--limit", str(args.limit)] if args.limit else [])
        started = time.monotonic()
        ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        our_seconds = time.monotonic() - started
        found = [json.loads(line) for line in details.read_text().splitlines()]

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    where, how = (args.model, {}) if args.model.is_dir() else (args.model.parent, dict(gguf_file=args.model.name))
    tokenizer = AutoTokenizer.from_pretrained(where, **how)
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **how).eval()

    exact_model = in_double(model) if args.exact or args.exact_above is not None else None

    def log_likelihood(logits, tokens) -> float:
        return float(torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None]).sum())

    names = ["float32", "float64", "openwork_from_exact", "transformers_from_exact", "transformers_float64_from_exact"]
    differences = {name: Differences() for name in names}
    seconds, greedy_differs, results, disputed = 0.0, 0, [], []
    answers = iter(found)
    for task, our in zip(args.tasks, ours["tasks"]):
        lines = [line for line in task.read_text().splitlines() if line.strip()][: args.limit]
        correct = normalized = 0
        for number, line in enumerate(lines):
            document = json.loads(line)
            started = time.monotonic()
            scores, kept = [], []
            for i, choice in enumerate(document["choices"]):
                context = document["context"]
                context = context if isinstance(context, str) else context[i]
                before, after = encode_pair(tokenizer, context, choice)
                logits = model(torch.tensor([(before + after)[:-1]])).logits[0, -len(after):]
                greedy = bool((logits.argmax(-1) == torch.tensor(after)).all())
                scores.append((log_likelihood(logits, after), greedy))
                kept.append((before, after, logits))
            seconds += time.monotonic() - started
            answer = next(answers)
            for (log, greedy), (before, after, logits), ll, our_greedy in zip(
                scores, kept, answer["ll"], answer["greedy"], strict=True
            ):
                greedy_differs += greedy != our_greedy
                wide = log_likelihood(logits.double(), after)
                differences["float32"].add(log, ll)
                differences["float64"].add(wide, ll)
                dispute = args.exact_above is not None and abs(wide - ll) > args.exact_above
                if number < args.exact or dispute:
                    logits = exact_model(torch.tensor([(before + after)[:-1]])).logits[0, -len(after):]
                    exact = log_likelihood(logits, after)
                    differences["openwork_from_exact"].add(exact, ll)
                    differences["transformers_from_exact"].add(exact, log)
                    differences["transformers_float64_from_exact"].add(exact, wide)
                    if dispute:
                        disputed.append(dict(
                            task=our["name"], doc=number, tokens=len(before) + len(after) - 1, exact=exact,
                            openwork=ll - exact, transformers=log - exact, transformers_float64=wide - exact,
                        ))
            if len(scores) == 1:
                correct, normalized = correct + scores[0][1], normalized + scores[0][1]
            else:
                per_byte = [log / len(text.encode()) for (log, _), text in zip(scores, document["choices"])]
                logs = [log for log, _ in scores]
                correct += logs.index(max(logs)) == document["gold"]
                normalized += per_byte.index(max(per_byte)) == document["gold"]
        results.append(dict(
            name=our["name"], docs=len(lines), acc=our["acc"], acc_norm=our["acc_norm"],
            transformers_acc=correct / len(lines), transformers_acc_norm=normalized / len(lines),
        ))
    print(json.dumps(dict(
        model=args.model.name, threads=args.threads,
        differences={name: found.to_json() for name, found in differences.items() if found.count},
        greedy_differs=greedy_differs, tasks=results, disputed=disputed,
        openwork_seconds=our_seconds, transformers_seconds=seconds, ratio=seconds / our_seconds,
    ), indent=1))


if __name__ == "__main__":
    main()
