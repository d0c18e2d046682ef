"""A trace of Chromium while the studio's picture is panned, summarized.

`Trace(driver)` records between `start` and `stop` over the DevTools protocol; `summary` counts
the frames that the compositor presented or dropped between two marks of the page, and the
work of the page's main thread per frame.
"""

import json
import statistics
import urllib.request

import websocket

CATEGORIES = ["benchmark", "cc", "devtools.timeline", "disabled-by-default-devtools.timeline", "blink.user_timing"]
START, END = "pan-start", "pan-end"


class Trace:
    """A recording over the browser's own connection: the driver's reports no events."""

    def __init__(self, driver):
        where = driver.capabilities["goog:chromeOptions"]["debuggerAddress"]
        with urllib.request.urlopen(f"http://{where}/json/version") as answer:
            url = json.load(answer)["webSocketDebuggerUrl"]
        self.socket = websocket.create_connection(url, suppress_origin=True, timeout=60)
        self.last = 0

    def call(self, method, **params):
        self.last += 1
        self.socket.send(json.dumps({"id": self.last, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.last:
                assert "error" not in message, message
                return

    def start(self):
        self.call("Tracing.start", transferMode="ReportEvents",
                  traceConfig={"recordMode": "recordAsMuchAsPossible", "includedCategories": CATEGORIES})

    def stop(self):
        """All events."""
        self.call("Tracing.end")
        events = []
        while True:
            message = json.loads(self.socket.recv())
            if message.get("method") == "Tracing.dataCollected":
                events += message["params"]["value"]
            elif message.get("method") == "Tracing.tracingComplete":
                self.socket.close()
                return events


def summary(events):
    """Frames and main-thread work between the marks."""
    mark = {name: next(e for e in events if e["name"] == name) for name in [START, END]}
    start, end = mark[START]["ts"], mark[END]["ts"]
    page = (mark[START]["pid"], mark[START]["tid"])
    within = [e for e in events if start <= e["ts"] <= end]
    # A frame may have several reporters, such as one for each of two halves of its work.
    states = {}
    for event in within:
        if event["name"] == "PipelineReporter" and event["ph"] == "b" and event["pid"] == page[0]:
            args = event["args"].get("chrome_frame_reporter") or event["args"].get("frame_reporter") or {}
            states.setdefault(args.get("frame_sequence"), set()).add(args.get("state", "").removeprefix("STATE_").lower())
    presented = sum(any(state.startswith("presented") for state in one) for one in states.values())
    dropped = sum(one == {"dropped"} for one in states.values())
    tasks = [e["dur"] / 1000 for e in within if e["name"] == "RunTask" and e["ph"] == "X" and (e["pid"], e["tid"]) == page]
    scripts = [e["dur"] / 1000 for e in within if e["name"] == "FireAnimationFrame" and e["ph"] == "X" and (e["pid"], e["tid"]) == page]
    seconds = (end - start) / 1e6
    return {
        "seconds": round(seconds, 2),
        "frames_presented": presented,
        "frames_dropped": dropped,
        "presented_per_second": round(presented / seconds, 1),
        "main_thread_busy": f"{sum(tasks) / (10 * seconds):.0f}%",
        "longest_task_ms": round(max(tasks, default=0), 1),
        "tasks_over_16.7_ms": sum(t > 16.7 for t in tasks),
        "script_ms_per_frame": {"median": round(statistics.median(scripts), 2), "most": round(max(scripts), 2)} if scripts else None,
    }
