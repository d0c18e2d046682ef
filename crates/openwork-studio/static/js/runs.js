// Runs of `openwork prune`: how far they are, charts, the report, how to resume.

import { get } from "./api.js";
import { $, copy, duration, make, number, percent, svg } from "./dom.js";

let on = false;
let timer = 0;
/** The name of the run that is shown: numbers change when runs appear. */
let chosen = null;
let last = "";

export function enter(shown) {
  on = shown;
  clearTimeout(timer);
  if (on) refresh();
}

async function refresh() {
  try {
    const found = await get("/api/runs");
    $("runs-folder").replaceChildren("Runs of ", make("code", {}, "openwork prune"), ` below ${found.folder}. This page only reads them.`);
    // Running ones first.
    const runs = found.runs.sort((a, b) => (b.state === "running") - (a.state === "running"));
    const shown = runs.find((run) => run.name === chosen) ?? runs[0];
    chosen = shown?.name ?? null;
    list(runs);
    if (shown) await one(shown);
    else $("run").replaceChildren(make("p", { class: "empty" }, "There are no runs here yet. Start one with ", make("code", {}, "openwork prune MODEL --spec 2:4 --calib TEXT --out pruned"), ", or give another folder with --runs."));
  } catch { /* tried again below */ }
  if (on) timer = setTimeout(refresh, 1500);
}

function list(runs) {
  const text = JSON.stringify([runs, chosen]);
  if (text === last) return;
  last = text;
  const focused = document.activeElement?.dataset.run;
  $("runs-list").replaceChildren(...runs.map((run) => make("li", {}, make("button", {
    "aria-current": String(run.name === chosen), "data-run": run.name, onclick: () => { chosen = run.name; list(runs); one(run); },
  }, make("b", {}, run.name), make("code", {}, run.spec || "recipe"),
  make("span", { class: `state ${run.state}` }, `${run.state}${run.all ? `, ${run.done} of ${run.all} layers` : ""}${run.perplexity ? ` · perplexity ${number(run.perplexity, 2)}` : ""}`)))));
  if (focused !== undefined) $("runs-list").querySelector(`button[data-run="${CSS.escape(focused)}"]`)?.focus();
}

let shownRun = "";
async function one({ number: number_, name }) {
  const run = await get(`/api/run?run=${number_}`);
  // Another run has this number by now; the next list tells the new one.
  if (run.name !== name || name !== chosen) return;
  const text = JSON.stringify(run);
  if (text === shownRun) return;
  shownRun = text;
  const parts = [make("h2", {}, run.name),
    make("p", {}, make("span", { class: `state ${run.state}` }, run.state), ` · `, make("code", {}, run.spec || "recipe"), ` by `, make("code", {}, run.method || "the default method"), run.elapsed ? ` · ${duration(run.elapsed)}` : "")];
  if (run.all && run.state !== "finished") {
    const part = run.progress && run.progress.layer === run.done ? run.progress.share : 0;
    parts.push(make("progress", { max: String(run.all), value: String(run.done + part), "aria-label": "Layers done" }),
      make("p", { class: "sub" }, run.progress ? `layer ${run.progress.layer}: ${run.progress.pruned}${run.progress.all ? ` of ${run.progress.all}` : ""} matrices pruned` : `${run.done} of ${run.all} layers`));
  }
  if (run.layers.length) parts.push(figure("Error of each layer's outputs", run.layers.map((layer) => [layer.index, layer.decoder_error]), percent));
  const measured = run.evaluations.filter((one_) => one_.after_layer !== null);
  if (measured.length > 1) parts.push(figure("Perplexity after each layer", measured.map((one_) => [one_.after_layer, one_.perplexity]), (x) => number(x, 2)));
  if (run.dense_perplexity) parts.push(make("p", { class: "sub" }, `perplexity: dense ${number(run.dense_perplexity, 3)}${run.perplexity ? `, pruned ${number(run.perplexity, 3)}` : ""}`));
  if (run.state === "finished") parts.push(make("p", {}, make("a", { href: `/report?run=${number_}`, target: "_blank", rel: "noopener" }, "Open the report page")), line(run.report));
  if (run.resume) parts.push(make("p", {}, "Resume it with (MODEL and the text as you gave them):"), line(run.resume));
  $("run").replaceChildren(make("div", { class: "card form" }, ...parts));
}

const line = (text) => make("div", { class: "copyline" }, make("code", {}, text), make("button", { onclick: () => copy(text, "the command") }, "Copy"));

function figure(title, points, shown) {
  const known = points.filter(([, y]) => y !== null);
  const [w, h, left, bottom] = [640, 190, 56, 22];
  const xs = known.map(([x]) => x);
  const ys = known.map(([, y]) => y);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1)];
  const [y0, y1] = [Math.min(0, ...ys), Math.max(...ys, 1e-9)];
  const x = (v) => left + ((v - x0) / (x1 - x0)) * (w - left - 10);
  const y = (v) => h - bottom - ((v - y0) / (y1 - y0)) * (h - bottom - 12);
  const path = known.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
  const label = `${title}: from ${shown(ys[0] ?? 0)} at layer ${xs[0]} to ${shown(ys.at(-1) ?? 0)} at layer ${xs.at(-1)}`;
  const text = (at, value, anchor) => { const t = svg("text", { ...at, "text-anchor": anchor }); t.textContent = value; return t; };
  return make("figure", {}, make("figcaption", {}, title), svg("svg", { class: "chart", viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": label },
    svg("path", { class: "axis-line", d: `M${left} 8V${h - bottom}H${w - 6}`, fill: "none" }),
    svg("path", { class: "curve", d: path }),
    ...known.map(([a, b]) => svg("circle", { class: "dots", cx: x(a), cy: y(b), r: known.length > 40 ? 1.5 : 3 })),
    text({ x: left - 6, y: 16 }, shown(y1), "end"), text({ x: left - 6, y: h - bottom }, shown(y0), "end"),
    text({ x: left, y: h - 6 }, `layer ${x0}`, "start"), text({ x: w - 8, y: h - 6 }, `${x1}`, "end")));
}
