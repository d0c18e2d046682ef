// The layout algebra: operations step by step, with grids of offsets.

import { post } from "./api.js";
import { $, make } from "./dom.js";
import { set, state } from "./state.js";

let operations = [];
const steps = [];

export function start(catalog) {
  operations = catalog.layout_operations;
  if (state.tab === "layouts") enter();
}

export function enter() {
  if (!operations.length || steps.length) return;
  for (const one of read()) add(one.op, one.inputs);
  run(0);
}

function read() {
  // `composition(A;B)|coalesce($1)`.
  const found = (state.steps ?? "composition((6,2):(8,2);(4,3):(3,1))").split("|").map((text) => text.match(/^(\w+)\((.*)\)$/));
  const known = found.filter((match) => match && operations.some((op) => op.name === match[1]));
  return known.slice(0, 12).map((match) => ({ op: match[1], inputs: match[2].split(";") }));
}

const write = () => set({ steps: steps.map((step) => `${step.op.name}(${step.fields.map((field) => field.value).join(";")})`).join("|") });

function add(name, inputs) {
  const op = operations.find((one) => one.name === name) ?? operations[0];
  const index = steps.length;
  const select = make("select", { "aria-label": `Operation of step ${index + 1}` }, operations.map((one) => make("option", { value: one.name }, one.name)));
  select.value = op.name;
  const step = { op, fields: [], select, result: null };
  step.summary = make("p", { class: "sub" });
  step.inputs = make("div", { class: "fields" });
  step.out = make("div", { class: "grids", "aria-live": "polite" });
  step.element = make("section", { class: "card step", "aria-label": `Step ${index + 1}` },
    make("div", { class: "fields" },
      make("div", { class: "field" }, make("label", {}, `Step ${index + 1}`, " ", select)),
      step.inputs,
      index ? make("button", { class: "quiet", onclick: () => { const at = steps.indexOf(step); for (const gone of steps.splice(at)) gone.element.remove(); write(); } }, "Remove") : null),
    step.summary, step.out);
  select.addEventListener("change", () => {
    step.op = operations.find((one) => one.name === select.value);
    fields(step, index ? step.op.example.map((text, i) => (i ? text : `$${index}`)) : step.op.example);
    write();
    run(steps.indexOf(step));
  });
  fields(step, inputs ?? op.example);
  steps.push(step);
  $("steps").append(step.element);
  return step;
}

function fields(step, values) {
  step.summary.textContent = step.op.summary;
  step.fields = step.op.inputs.map((name, i) => make("input", {
    value: values[i] ?? step.op.example[i], "aria-label": name, placeholder: name, spellcheck: "false",
    oninput: () => { write(); later(step); },
  }));
  step.inputs.replaceChildren(...step.fields.map((field, i) => make("div", { class: "field" }, make("label", {}, step.op.inputs[i], " ", field))));
}

let timer = 0;
function later(step) {
  clearTimeout(timer);
  timer = setTimeout(() => run(steps.indexOf(step)), 60);
}

/** Computes a step and those after it, which may use its result. */
async function run(from) {
  for (const step of steps.slice(Math.max(0, from))) {
    const inputs = step.fields.map((field) => field.value.replace(/\$(\d+)/g, (all, n) => steps[n - 1]?.result ?? all));
    try {
      const found = await post("/api/layout", { op: step.op.name, inputs });
      step.result = found.output?.split(" + ")[0] ?? null;
      show(step, found);
    } catch (error) {
      step.result = null;
      step.out.replaceChildren(make("p", { class: "failed" }, error.message));
    }
  }
}

function show(step, found) {
  const parts = found.inputs.flatMap((input) => (input.grid ? [box(input.name, input.text, input.grid)] : []));
  if (found.error) {
    step.out.replaceChildren(...parts, make("p", { class: "failed" }, found.error));
    return;
  }
  if (parts.length) parts.push(make("span", { class: "op", "aria-hidden": "true" }, "→"));
  parts.push(found.grid ? box("result", found.output, found.grid) : make("div", { class: "grid-box" }, make("span", { class: "cap" }, "result"), make("span", { class: "output" }, found.output)));
  if (found.steps) parts.push(composition(found.steps));
  step.out.replaceChildren(...parts);
}

/** A grid of offsets, colored by offset so that equal offsets look alike. */
function box(name, text, { rows, cols, cells }) {
  const most = Math.max(1, ...cells.flat());
  const table = make("table", { class: "grid" },
    make("tr", {}, make("th"), ...Array.from({ length: cols }, (_, j) => make("th", { scope: "col" }, String(j)))),
    ...cells.map((line, i) => make("tr", {}, make("th", { scope: "row" }, String(i)), ...line.map((offset) => {
      const cell = make("td", {}, String(offset));
      cell.style.background = `hsl(${Math.round((300 * offset) / most + 200) % 360} 70% ${offset % 2 ? 76 : 84}%)`;
      return cell;
    }))));
  return make("div", { class: "grid-box" }, make("span", { class: "cap" }, `${name} `, make("code", {}, text), ` · ${rows} × ${cols}`), table);
}

function composition({ rows, all }) {
  const table = make("table", { class: "plain" },
    make("tr", {}, ...["c", "B(c)", "A(B(c))", "R(c)"].map((name) => make("th", {}, name))),
    ...rows.map((row) => make("tr", {}, ...[row.c, row.b, row.a, row.r].map((x) => make("td", {}, String(x))))));
  return make("details", {}, make("summary", {}, `Step by step${rows.length < all ? `, the first ${rows.length} of ${all}` : ""}`), table);
}

$("add-step").addEventListener("click", () => {
  if (steps.length >= 12) return;
  const last = steps.at(-1)?.result;
  add("coalesce", last ? [`$${steps.length}`] : undefined);
  write();
  run(steps.length - 1);
});
