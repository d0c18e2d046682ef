"""Quality against bytes and speed of the patterns of bench/patterns.txt, as a table and a chart.

    KEEP=1 bench/models.sh OPENWORK MODELS C4.jsonl WIKITEXT2.test OUT < bench/patterns.txt
    python bench/patterns.py measure OPENWORK MODELS/smollm2.gguf OUT --threads 2 --record bench/record/DATE-patterns.json
    python bench/patterns.py draw bench/record/DATE-patterns.json docs/patterns.svg

`measure` reads the results of `models.sh` and runs `openwork bench` on each pattern, so nothing else should run
meanwhile; with `--turns 0` it takes perplexities only. `draw` prints the table and writes the chart.
"""

import argparse
import json
import math
import pathlib
import subprocess

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 680, 400, 56, 24, 22, 46
COLORS = {"sparsegpt+refit": "#3b6fd4", "admm": "#c2571a"}


def perplexities(folder: pathlib.Path) -> tuple[float, list[dict]]:
    """The perplexity of the dense model, and a row per pattern."""
    dense, rows = math.nan, {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        perplexity = result["eval"]["token_perplexity"]
        if "prune" not in result:
            dense = perplexity
            continue
        run = result["prune"]
        row = rows.setdefault(run["spec"], {"spec": run["spec"], "density": run["totals"]["density"], "perplexity": {}})
        row["perplexity"][run["method"].split("[")[0]] = perplexity
        row["calibration"] = f"{run['calibration']['samples']} x {run['calibration']['seq_len']}"
    return dense, sorted(rows.values(), key=lambda row: (row["density"], row["spec"]))


def measure(args: argparse.Namespace) -> None:
    dense, rows = perplexities(args.out)
    for row in rows:
        command = [args.openwork, "bench", args.model, "--spec", row["spec"], "--values", "bf16"]
        command += ["--tokens", "48", "--turns", str(args.turns), "--threads", str(args.threads), "--json", "--quiet"]
        if args.turns:
            speed = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            row.update({key: speed[key] for key in ("speedup", "share", "dense_tokens_per_second", "packed_tokens_per_second")})
        print(row, flush=True)
    record = {"dense": dense, "threads": args.threads, "turns": args.turns, "patterns": rows}
    args.record.write_text(json.dumps(record, indent=1) + "\n")


def draw(args: argparse.Namespace) -> None:
    data = json.loads(args.record.read_text())
    rows = data["patterns"]
    methods = [method for method in COLORS if any(method in row["perplexity"] for row in rows)]
    head = ["pattern", "density", *(f"`{method}`" for method in methods), "bytes", "speed"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for row in rows:
        cells = [f"{row['perplexity'][method]:.2f}" if method in row["perplexity"] else "" for method in methods]
        share = f"{100 * row['share']:.1f} %" if "share" in row else ""
        speed = f"{row['speedup']:.2f}x" if "speedup" in row else ""
        print(f"| `{row['spec']}` | {row['density']:.3f} | " + " | ".join([*cells, share, speed]) + " |")
    if args.svg:
        args.svg.write_text("\n".join(chart(data["dense"], rows, methods)) + "\n")


def chart(dense: float, rows: list[dict], methods: list[str]) -> list[str]:
    # A model that is lost would squeeze all others into a line; the table has it.
    rows = [row for row in rows if "share" in row and max(row["perplexity"].values()) < 10 * dense]
    every = [(row["share"], p) for row in rows for p in row["perplexity"].values()]
    x0, x1 = min(s for s, _ in every) - 0.03, 1.02
    y0, y1 = math.log(dense) - 0.04, math.log(max(p for _, p in every)) + 0.05
    x = lambda share: LEFT + (share - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)
    y = lambda perplexity: HEIGHT - BOTTOM - (math.log(perplexity) - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        "<style>.paper{fill:#fff}.ink{fill:#222}.rule{stroke:#ddd}.dense{stroke:#777;stroke-dasharray:4 3}"
        "@media (prefers-color-scheme:dark){.paper{fill:#16181d}.ink{fill:#ddd}.rule{stroke:#333}}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
    ]
    for percent in range(20, 101, 10):
        if x0 < percent / 100 < x1:
            at = x(percent / 100)
            svg.append(f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
            svg.append(f'<text class="ink" x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{percent} %</text>')
    for perplexity in (20, 25, 30, 40, 50, 70, 100, 150, 200, 300, 500, 1000):
        if y0 < math.log(perplexity) < y1:
            at = y(perplexity)
            svg.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
            svg.append(f'<text class="ink" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{perplexity}</text>')
    svg.append(f'<line class="dense" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(dense):.1f}" y2="{y(dense):.1f}"/>')
    svg.append(f'<text class="ink" x="{LEFT + 4}" y="{y(dense) - 5:.1f}">dense {dense:.2f}</text>')
    svg.append(
        f'<text class="ink" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        "bytes of the linear layers, share of dense bf16; up: perplexity</text>"
    )
    for i, method in enumerate(methods):
        at = TOP + 8 + 16 * i
        svg.append(f'<circle cx="{WIDTH - RIGHT - 120}" cy="{at}" r="4" fill="{COLORS[method]}"/>')
        svg.append(f'<text class="ink" x="{WIDTH - RIGHT - 110}" y="{at + 4}">{method}</text>')
    taken: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda row: -max(row["perplexity"].values())):
        for method in methods:
            if perplexity := row["perplexity"].get(method):
                title = f"{row['spec']}, {method}: {perplexity:.2f}"
                svg.append(
                    f'<circle cx="{x(row["share"]):.1f}" cy="{y(perplexity):.1f}" r="4" fill="{COLORS[method]}">'
                    f"<title>{title}</title></circle>"
                )
        at = [x(row["share"]) + 8, y(max(row["perplexity"].values())) + 4]
        while any(abs(at[0] - a) < 90 and abs(at[1] - b) < 13 for a, b in taken):
            at[1] += 13
        taken.append((at[0], at[1]))
        svg.append(f'<text class="ink" x="{at[0]:.1f}" y="{at[1]:.1f}">{label(row["spec"])}</text>')
    return [*svg, "</svg>"]


def label(spec: str) -> str:
    """A short name of a pattern with levels."""
    short = {"block (16,16)": "tiles", "block (64,1)": "64:2:8", "columns(": "columns"}
    first = next((name for start, name in short.items() if spec.startswith(start)), spec)
    return f"{first} else {spec.split(' else ')[1]}" if " else " in spec else first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("measure", help="perplexities and speed, as a record")
    command.add_argument("openwork")
    command.add_argument("model")
    command.add_argument("out", type=pathlib.Path)
    command.add_argument("--threads", type=int, default=2)
    command.add_argument("--turns", type=int, default=5)
    command.add_argument("--record", type=pathlib.Path, required=True)
    command.set_defaults(run=measure)
    command = commands.add_parser("draw", help="a table, and a chart of a record")
    command.add_argument("record", type=pathlib.Path)
    command.add_argument("svg", type=pathlib.Path, nargs="?")
    command.set_defaults(run=draw)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
