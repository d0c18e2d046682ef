"""Log-likelihoods of tasks: `openwork eval --task` against a plain loop over transformers.

    python bench/tasks_against_transformers.py MODEL TASK.. [--openwork BINARY] [--threads N] [--limit N]

MODEL is a Hugging Face folder or a .gguf file. Every choice of every document is one forward pass of transformers
in float32, tokenized as lm-eval does; the largest difference between the two log-likelihoods, the accuracies of
both and the seconds of both are printed as one JSON object. transformers is timed without loading the model,
openwork with it.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("tasks", type=pathlib.Path, nargs="+")
    parser.add_argument("--openwork", default="openwork", help="the command")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=int)
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

    seconds, worst, mean, count, greedy_differs, results = 0.0, 0.0, 0.0, 0, 0, []
    answers = iter(found)
    for task, our in zip(args.tasks, ours["tasks"]):
        lines = [line for line in task.read_text().splitlines() if line.strip()][: args.limit]
        correct = normalized = 0
        for line in lines:
            document = json.loads(line)
            started = time.monotonic()
            scores = []
            for i, choice in enumerate(document["choices"]):
                context = document["context"]
                context = context if isinstance(context, str) else context[i]
                before, after = encode_pair(tokenizer, context, choice)
                logits = model(torch.tensor([(before + after)[:-1]])).logits[0, -len(after):]
                each = torch.log_softmax(logits, -1).gather(1, torch.tensor(after)[:, None])
                scores.append((float(each.sum()), bool((logits.argmax(-1) == torch.tensor(after)).all())))
            seconds += time.monotonic() - started
            answer = next(answers)
            for (log, greedy), our_log, our_greedy in zip(scores, answer["ll"], answer["greedy"], strict=True):
                worst, mean, count = max(worst, abs(log - our_log)), mean + abs(log - our_log), count + 1
                greedy_differs += greedy != our_greedy
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
        model=args.model.name, threads=args.threads, choices=count, largest_difference=worst,
        mean_difference=mean / count, greedy_differs=greedy_differs, tasks=results,
        openwork_seconds=our_seconds, transformers_seconds=seconds, ratio=seconds / our_seconds,
    ), indent=1))


if __name__ == "__main__":
    main()
