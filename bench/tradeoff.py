"""Draws error against time from a record of `single_layer`, as docs/methods.md shows it.

    python bench/tradeoff.py bench/record/DATE-single-layer.json docs/methods.svg
"""

import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 62, 150, 18, 46
COLORS = ["#3b6fd4", "#c2571a", "#2b8a57", "#9a3fb0"]


def short(method):
    """The method without its options."""
    out, depth = "", 0
    for c in method:
        depth += c == "["
        out += c if depth == 0 else ""
        depth -= c == "]"
    return out


def points(results):
    """For each pattern and method the mean error and all seconds."""
    table = {}
    for r in results:
        errors, seconds = table.setdefault(r["pattern"], {}).setdefault(short(r["method"]), ([], []))
        errors.append(math.log(r["error"]))
        seconds.append(r["seconds"])
    return {
        pattern: {m: (sum(s), 100 * math.exp(sum(e) / len(e))) for m, (e, s) in methods.items()}
        for pattern, methods in table.items()
    }


def main(record, out):
    data = json.load(open(record))
    table = points(data["results"])
    every = [p for methods in table.values() for p in methods.values()]
    x0, x1 = math.log10(min(p[0] for p in every)) - 0.1, math.log10(max(p[0] for p in every)) + 0.1
    y0, y1 = math.log(min(p[1] for p in every)) - 0.05, math.log(max(p[1] for p in every)) + 0.05
    x = lambda s: LEFT + (math.log10(s) - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)
    y = lambda e: HEIGHT - BOTTOM - (math.log(e) - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        "<style>.paper{fill:#fff}.ink{fill:#222}.rule{stroke:#ddd}.line{fill:none;stroke-width:1.5;opacity:.5}"
        "@media (prefers-color-scheme:dark){.paper{fill:#16181d}.ink{fill:#ddd}.rule{stroke:#333}}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
    ]
    for exponent in range(math.ceil(x0), math.floor(x1) + 1):
        at = x(10.0**exponent)
        svg.append(f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        label = f"{10.0**exponent:g} s"
        svg.append(f'<text class="ink" x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>')
    for error in (15, 20, 25, 30, 40, 50):
        if y0 < math.log(error) < y1:
            at = y(error)
            svg.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
            svg.append(f'<text class="ink" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{error} %</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    threads = data["threads"]
    svg.append(
        f'<text class="ink" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"seconds for all layers, {threads} thread{'s' if threads > 1 else ''}; down: output error</text>"
    )
    labels = []
    for color, (pattern, methods) in zip(COLORS, table.items()):
        path = sorted(methods.values())
        d = " ".join(f"{'M' if i == 0 else 'L'}{x(s):.1f} {y(e):.1f}" for i, (s, e) in enumerate(path))
        svg.append(f'<path class="line" stroke="{color}" d="{d}"/>')
        for method, (seconds, error) in methods.items():
            svg.append(
                f'<circle cx="{x(seconds):.1f}" cy="{y(error):.1f}" r="4" fill="{color}">'
                f"<title>{method}, {pattern}: {error:.2f} %, {seconds:.2f} s</title></circle>"
            )
        seconds, error = path[-1]
        at = y(error) + 18
        while any(abs(at - other) < 14 for other in labels):
            at += 14
        labels.append(at)
        svg.append(f'<text x="{x(seconds) + 4:.1f}" y="{at:.1f}" fill="{color}">{pattern}</text>')
    # The methods are named once, along the highest line.
    top = max(table, key=lambda p: max(e for _, e in table[p].values()))
    taken = []
    for method, (seconds, error) in sorted(table[top].items(), key=lambda m: m[1]):
        at = [x(seconds) + 7, y(error) - 7]
        while any(abs(at[0] - a) < 70 and abs(at[1] - b) < 13 for a, b in taken):
            at[1] -= 13
        taken.append(tuple(at))
        svg.append(f'<text class="ink" x="{at[0]:.1f}" y="{at[1]:.1f}">{method}</text>')
    svg.append("</svg>")
    with open(out, "w") as file:
        file.write("\n".join(svg) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
