"""Measures the studio: first paint, keystroke to picture, frames while panning (from a trace of
Chromium, studio_trace.py), page size, concurrent and hostile requests, memory of the server.

    cargo build --release -p openwork-cli
    python bench/studio.py target/release/openwork [--hostile 100000]

Needs selenium with Chromium and chromedriver (crates/openwork-studio/tests/browser). The server
is started here and listens on 127.0.0.1 only. Prints one JSON object.
"""

import argparse
import asyncio
import json
import pathlib
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "crates/openwork-studio/tests/browser"))

REPEATS = 15


def median(values):
    return round(statistics.median(values), 1)


def memory(server, key):
    """VmRSS or VmHWM of the server, in MB."""
    for line in open(f"/proc/{server.pid}/status"):
        if line.startswith(key):
            return round(int(line.split()[1]) / 1000, 1)


def start(command, runs):
    server = subprocess.Popen([command, "studio", "--json", "--runs", runs], stdout=subprocess.PIPE, text=True)
    return server, json.loads(server.stdout.readline())["address"]


# The time from a change of the text, as an input event, to the frame in which the picture of
# the new text is complete.
KEYSTROKE = """
const [text, done] = [arguments[0], arguments[1]];
const area = document.getElementById("spec");
const started = performance.now();
let first = null;
area.value = text;
area.dispatchEvent(new Event("beforeinput"));
area.dispatchEvent(new InputEvent("input"));
const check = () => {
  const shown = studio.pictures[0];
  const now = performance.now() - started;
  if (first === null && shown.tiles && shown.tiles.design.spec === text && shown.tiles.overview(true)) first = now;
  if (studio.complete() && shown.tiles.design.spec === text) done([first ?? now, now]);
  else requestAnimationFrame(check);
};
requestAnimationFrame(check);
"""

# Pans for two seconds between two marks; the intervals between frames.
PAN = """
const done = arguments[0];
const picture = studio.pictures[0];
const times = [];
const frame = (now) => {
  if (!times.length) performance.mark("pan-start");
  times.push(now);
  picture.moveBy(Math.cos(times.length / 40) * 9, Math.sin(times.length / 40) * 5);
  if (times.length < 121) return requestAnimationFrame(frame);
  performance.mark("pan-end");
  done(times.slice(1).map((time, i) => time - times[i]));
};
requestAnimationFrame(frame);
"""


def in_browser(address):
    import studio_trace
    from conftest import browser
    from selenium.webdriver.support.ui import WebDriverWait

    found = {}
    driver = browser()
    try:
        wait = WebDriverWait(driver, 60, poll_frequency=0.02)

        def visit(state):
            driver.get("about:blank")
            driver.get(f"{address}#{state}")
            wait.until(lambda d: d.execute_script("return Boolean(globalThis.studio?.complete())"))
            time.sleep(1.5)  # the small pictures of the gallery

        paints = []
        for _ in range(REPEATS):
            visit("spec=2:4&shape=512,512")
            paints.append(driver.execute_script(
                "return performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        found["first_contentful_paint_ms"] = median(paints)
        found["page_bytes"] = driver.execute_script("""
            return performance.getEntriesByType('resource').filter((e) => !e.name.includes('/api/'))
                .reduce((sum, e) => sum + e.decodedBodySize, performance.getEntriesByType('navigation')[0].decodedBodySize)""")
        for shape in ["512,512", "4096,4096"]:
            for family in [["2:4", "2:4@8", "1:4"], ["block(16,16)", "rows16", "unstructured(50%)"]]:
                visit(f"spec=2:8&shape={shape}")
                first, whole = [], []
                for i in range(REPEATS):
                    # Every text is new, so nothing is known before.
                    text = f"{family[i % 3]} # {i}"
                    a, b = driver.execute_async_script(KEYSTROKE, text)
                    first.append(a)
                    whole.append(b)
                found[f"keystroke_ms {shape} {' '.join(family)}"] = {
                    "picture": median(first), "picture_worst": round(max(first), 1),
                    "sharp": median(whole), "sharp_worst": round(max(whole), 1)}
        for zoom in [1, 4, 16]:
            visit("spec=2:4@8&shape=4096,4096")
            driver.execute_script(f"studio.pictures[0].zoomBy({zoom} / studio.pictures[0].zoom)")
            time.sleep(1)
            trace = studio_trace.Trace(driver)
            trace.start()
            frames = sorted(driver.execute_async_script(PAN))
            found[f"pan 4096,4096 at {zoom} px per weight"] = {
                "frames_per_second": round(1000 * len(frames) / sum(frames), 1),
                "frame_ms_median": median(frames), "frame_ms_p95": round(frames[int(0.95 * len(frames))], 1),
                "trace": studio_trace.summary(trace.stop())}
    finally:
        driver.quit()
    return found


async def request(port, head, body=b"", slow=0.0):
    """Sends a request; the status, or 0 if the connection was closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        text = f"{head} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(text.encode())
        if slow:
            await writer.drain()
            await asyncio.sleep(slow)
        writer.write(body)
        await writer.drain()
        line = await asyncio.wait_for(reader.readline(), 60)
        # The rest is read, as a browser does.
        while await reader.read(1 << 16):
            pass
        return int(line.split()[1]) if line.startswith(b"HTTP/1.1") else 0
    except (ConnectionError, asyncio.IncompleteReadError, IndexError):
        return 0
    finally:
        writer.close()


def show(spec, shapes):
    return json.dumps({"spec": spec, "shapes": shapes}).encode()


async def concurrent(port, count):
    body = lambda i: show(f"2:4 # {i}", ["512,512"])
    started = time.time()
    statuses = await asyncio.gather(*(request(port, "POST /api/show", body(i)) for i in range(count)))
    return {"requests": count, "ok": statuses.count(200), "seconds": round(time.time() - started, 2)}


def hostile(rng):
    """One request that nobody means well."""
    tile = lambda **more: json.dumps({"spec": "2:4", "shapes": ["4096,4096"], "panel": 0, "row": 0, "col": 0, "rows": 64, "cols": 64,
                                      "step": 1, "numbers": False, "mask": True, **more}).encode()
    n = rng.randrange(1 << 40)
    if rng.random() < 0.002:
        # What needs most memory: levels, sets of runs, scopes that interleave in storage.
        return rng.choice([
            lambda: ("POST /api/tile", tile(spec=f"columns(50%) then 2:4 # {n}")),
            lambda: ("POST /api/show", show(f"in ~((0,0)+(4096,1) | (0,2)+(4096,1)) keep 50% # {n}", ["4096,4096"])),
            lambda: ("POST /api/tile", tile(spec=f"in (2,1365,4096):(3,2,4096) scope (2,1,1) keep 1 # {n}")),
            lambda: ("POST /api/tile", tile(spec=f"unstructured(50%) # {n}", shapes=["2048,2048"])),
        ])()
    return rng.choice([
        lambda: ("POST /api/show", show("2:4 # " + "x" * rng.randrange(60_000), ["8,16"])),
        lambda: ("POST /api/show", show("(" * rng.randrange(9000), ["8,16"])),
        lambda: ("POST /api/show", show("in " + "~(" * 60 + "(0,0)+(1,1)" + ")" * 60 + " keep 1", ["8,16"])),
        lambda: ("POST /api/show", show(f"keep {n}", [f"{n},{n}"])),
        lambda: ("POST /api/show", show(f"2:4 pad (1,{n})", ["4,4"])),
        lambda: ("POST /api/show", show(f"unstructured(50%) # {n}", ["4096,4096"])),
        lambda: ("POST /api/show", show(f"view m k -> k m scope (4,1) keep 2 # {n}", ["2048,2048"])),
        lambda: ("POST /api/show", show("2:4", ["4,4"] * rng.randrange(5000))),
        lambda: ("POST /api/draw", json.dumps({"spec": f"2:4 # {n}", "shapes": ["2048,2048"], "tiles": [
            {"panel": 0, "row": n, "col": 0, "rows": 512, "cols": 512, "step": 1, "numbers": True, "mask": True}] * rng.randrange(4)}).encode()),
        lambda: ("POST /api/tile", tile(row=n, col=n)),
        lambda: ("POST /api/tile", tile(rows=n, cols=n)),
        lambda: ("POST /api/tile", tile(step=n)),
        lambda: ("POST /api/layout", json.dumps({"op": "image", "inputs": [f"{n}:1"]}).encode()),
        lambda: ("POST /api/edit", json.dumps({"spec": "2:4", "shapes": ["8,16"], "panel": 0, "edit": {"block": {"axis": 1, "extent": n}}}).encode()),
        lambda: ("POST /api/trial/status", json.dumps({"job": n}).encode()),
        lambda: ("POST /api/show", bytes(rng.randrange(256) for _ in range(200))),
        lambda: ("POST /api/show", b"[" * 100_000),
        lambda: (f"GET /{'../' * rng.randrange(9)}etc/passwd", b""),
        lambda: (f"GET /api/run?run=../../{n}", b""),
        lambda: (f"DELETE /api/{n}", b""),
        lambda: (f"GET /{'a' * rng.randrange(12_000)}", b""),
    ])()


async def attack(port, count, server, seconds):
    rng = random.Random(1)
    statuses = {}
    limit = asyncio.Semaphore(200)

    async def one(head, body, slow=0.0):
        async with limit:
            status = await request(port, head, body, slow)
            statuses[status] = statuses.get(status, 0) + 1

    started = time.time()
    tasks = set()
    sent = 0
    for i in range(count):
        if time.time() - started > seconds:
            break
        sent += 1
        slow = 30.0 if i % 2000 == 0 else 0.0
        tasks.add(asyncio.create_task(one(*hostile(rng), slow)))
        if len(tasks) > 400:
            _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if i % 1000 == 0:
            print(f"{i} hostile requests, {memory(server, 'VmRSS')} MB", file=sys.stderr)
    await asyncio.gather(*tasks)
    taken = time.time() - started
    alive = await request(port, "POST /api/show", show("2:4", ["8,16"]))
    return {"requests": sent, "seconds": round(taken, 1), "statuses": dict(sorted(statuses.items())),
            "answers_afterwards": alive == 200, "rss_mb": memory(server, "VmRSS"), "peak_mb": memory(server, "VmHWM")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("--hostile", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3600, help="most seconds of hostile requests")
    parser.add_argument("--no-browser", action="store_true")
    options = parser.parse_args()
    import tempfile
    with tempfile.TemporaryDirectory() as runs:
        server, address = start(options.command, runs)
        port = int(address.rstrip("/").rsplit(":", 1)[1])
        try:
            found = {"rss_at_start_mb": memory(server, "VmRSS")}
            if not options.no_browser:
                found.update(in_browser(address))
            found["concurrent"] = asyncio.run(concurrent(port, 200))
            found["hostile"] = asyncio.run(attack(port, options.hostile, server, options.seconds))
            assert server.poll() is None, "the server ended"
        finally:
            server.terminate()
            server.wait()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
