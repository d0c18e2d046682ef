"""Perplexity against the share of expert weights removed: whole experts by each score, channels, layers.

    python crates/openwork-llm/demo/train.py MODEL --experts
    python bench/experts.py OPENWORK MODEL

MODEL has calibration.txt and evaluation.txt beside its weights. Prints one JSON object.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

OPENWORK, MODEL = sys.argv[1], pathlib.Path(sys.argv[2])
SCORES = ["reap", "load", "s-obd", "s-obs"]


def perplexity(*options):
    """Of what `openwork prune` writes, on the evaluation text."""
    with tempfile.TemporaryDirectory() as folder:
        command = [OPENWORK, "prune", MODEL, *options, "--out", f"{folder}/out", "--json", "--quiet"]
        command += ["--calib", MODEL / "calibration.txt", "--samples", "64", "--seq-len", "256"]
        command += ["--eval", MODEL / "evaluation.txt", "--eval-seq-len", "256"]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            sys.exit(run.stderr)
        evaluations = json.loads(run.stdout)["evaluations"]
        size = sum(file.stat().st_size for file in pathlib.Path(folder, "out").glob("*.safetensors"))
        return dict(dense=evaluations[0]["token_perplexity"], pruned=evaluations[-1]["token_perplexity"], bytes=size)


def main():
    rows = {}
    for keep in [7, 6, 5, 4, 3, 2]:
        for score in SCORES:
            rows[f"experts by {score} keep {keep}"] = perplexity("--spec", f"experts by {score} keep {keep}")
        share = f"{100 * keep / 8:g}%"
        for method in ["s-obs", "s-obd"]:
            rows[f"mlp keep {share}, {method}"] = perplexity("--spec", f"mlp keep {share}", "--method", method)
    for keep in [3, 2]:
        rows[f"layers keep {keep}"] = perplexity("--spec", f"layers keep {keep}")
    rows["2:4"] = perplexity("--spec", "2:4")
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as recipe:
        recipe.write('[[pass]]\nspec = "experts keep 6"\n\n[[pass]]\nspec = "2:4"\n')
        recipe.flush()
        rows["experts keep 6, then 2:4"] = perplexity("--recipe", recipe.name)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
