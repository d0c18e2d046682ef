"""The results of bench/models.sh with TASKS, as Markdown tables: one for every model.

    python bench/tasks_table.py OUT/smollm2-*.json OUT/qwen-*.json

A file is called MODEL-dense.json or MODEL-SPEC-METHOD.json. Accuracies are in percent with their standard errors:
`acc_norm` for HellaSwag, `acc` for the others. Perplexity is that of the evaluation text, per token.
"""

import json
import pathlib
import sys

NORMALIZED = {"hellaswag"}


def accuracy(task: dict) -> str:
    normalized = task["name"] in NORMALIZED
    share, error = (task["acc_norm"], task["acc_norm_stderr"]) if normalized else (task["acc"], task["stderr"])
    return f"{100 * share:.1f} ± {100 * error:.1f}"


def row(name: str, result: dict) -> list[str]:
    _, *what = name.split("-", 2)
    pattern, method = (what + [""])[:2]
    found = result["eval"]
    run = result.get("prune", {}).get("calibration", {})
    windows = f"{run['samples']} x {run['seq_len']}" if run else ""
    return [pattern, method, windows, f"{found['token_perplexity']:.2f}", *map(accuracy, found["tasks"])]


def main() -> None:
    models: dict[str, list[tuple[str, dict]]] = {}
    for path in map(pathlib.Path, sys.argv[1:]):
        models.setdefault(path.stem.split("-")[0], []).append((path.stem, json.loads(path.read_text())))
    for model, results in models.items():
        # The dense model first, then by perplexity from the worst on.
        results.sort(key=lambda one: (not one[0].endswith("-dense"), -one[1]["eval"]["token_perplexity"]))
        tasks = results[0][1]["eval"]["tasks"]
        names = [f"{task['name']} ({task['docs']})" for task in tasks]
        print(f"\n{model}:\n")
        print("| pattern | method | calibration | perplexity | " + " | ".join(names) + " |")
        print("|---|---|---|" + "---|" * (1 + len(names)))
        for name, result in results:
            print("| " + " | ".join(row(name, result)) + " |")


if __name__ == "__main__":
    main()
