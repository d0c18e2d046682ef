// The axes of the view: dragged to another place, with handles for the extents of blocks and
// scopes. The server rewrites the text.

import { post } from "./api.js";
import { $, make, toast } from "./dom.js";
import { replace } from "./editor.js";
import { divisors } from "./handles.js";
import { design } from "./state.js";

const box = $("axes");
let panels = [];
let shown = 0;

/** Changes a clause of a design; `joined` to the last change, which undo takes back with it. */
export async function edit(change, { of = design(), panel = shown, joined = false } = {}) {
  try {
    const { spec } = await post("/api/edit", { ...of, panel, edit: change });
    replace(spec, undefined, joined);
  } catch (error) {
    toast(error.message);
  }
}

/** A handle that steps through the divisors of an extent. */
function knob(axis, word, extent, value, change) {
  const steps = divisors(extent);
  const output = make("output", {}, String(value));
  const input = make("input", {
    type: "range", min: "0", max: String(steps.length - 1), step: "1",
    "aria-label": `${word} along ${axis.name}`, "aria-valuetext": String(value),
    "data-axis": axis.name, "data-of": word,
    oninput: () => { output.textContent = steps[input.value]; input.setAttribute("aria-valuetext", steps[input.value]); },
    onchange: () => edit(change(steps[input.value])),
  });
  input.value = String(Math.max(0, steps.indexOf(value)));
  input.disabled = steps.length < 2;
  return make("label", { class: "knob" }, make("span", {}, word), input, output);
}

function row(axis, index) {
  const grip = make("button", {
    class: "grip", "aria-label": `Move axis ${axis.name}; position ${index + 1} of ${panels[shown].axes.length}; arrow keys move it`,
    title: "Drag to another place", "data-axis": axis.name,
  }, "⠿");
  const strides = axis.stride ? `stride ${axis.stride}` : "";
  const line = make("div", { class: "axis", "data-axis": axis.name },
    grip,
    make("div", {},
      make("div", { class: "head" }, make("b", {}, axis.name), make("span", {}, `${axis.extent}`), make("span", {}, strides)),
      knob(axis, "block", axis.extent, axis.block, (extent) => ({ block: { axis: index, extent } })),
      knob(axis, "scope", axis.extent / axis.block, axis.scope, (extent) => ({ scope: { axis: axis.scope_axis, extent } })),
    ));
  const last = panels[shown].axes.length - 1;
  const move = (to) => { if (to !== index && to >= 0 && to <= last) edit({ move_axis: { from: index, to } }); };
  grip.addEventListener("keydown", (event) => {
    if (event.key === "ArrowUp") move(index - 1);
    else if (event.key === "ArrowDown") move(index + 1);
    else return;
    event.preventDefault();
    refocus = axis.name;
  });
  grip.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    grip.setPointerCapture(event.pointerId);
    const from = event.clientY;
    line.classList.add("dragging");
    const drag = (moved) => { line.style.transform = `translateY(${moved.clientY - from}px)`; };
    const drop = (dropped) => {
      grip.removeEventListener("pointermove", drag);
      line.classList.remove("dragging");
      line.style.transform = "";
      const rows = [...box.querySelectorAll(".axis")];
      const y = dropped.clientY;
      let to = rows.findIndex((other) => y < other.getBoundingClientRect().bottom);
      if (to < 0) to = last;
      move(to);
    };
    grip.addEventListener("pointermove", drag);
    grip.addEventListener("pointerup", drop, { once: true });
    grip.addEventListener("pointercancel", () => { line.classList.remove("dragging"); line.style.transform = ""; }, { once: true });
  });
  return line;
}

let refocus = null;

export function show(found) {
  panels = found;
  shown = Math.min(shown, panels.length - 1);
  const panel = panels[shown];
  const active = document.activeElement?.dataset;
  const held = active?.of ? [active.axis, active.of] : null;
  const choose = panels.length > 1 ? make("select", {
    "aria-label": "Tensor or level", onchange: (event) => { shown = Number(event.target.value); show(panels); },
  }, panels.map((one, i) => { const option = make("option", { value: String(i) }, one.title); option.selected = i === shown; return option; })) : null;
  const keep = make("input", {
    type: "range", min: "0", max: String(Math.min(panel.blocks_per_scope, 4096)), step: "1", "aria-label": "keep", "data-axis": "keep", "data-of": "keep",
    oninput: () => { count.textContent = `${keep.value} of ${panel.blocks_per_scope}`; },
    onchange: () => edit({ keep: { count: Number(keep.value) } }),
  });
  keep.value = String(panel.keep);
  keep.disabled = panel.blocks_per_scope > 4096;
  const count = make("output", {}, `${panel.keep} of ${panel.blocks_per_scope}`);
  const knobs = make("label", { class: "knob keep" }, make("span", {}, "keep"), keep, count);
  box.replaceChildren(
    make("h2", {}, "Axes of the view"),
    ...(choose ? [choose] : []),
    ...panel.axes.map(row),
    make("div", { class: "axis" }, make("span"), knobs),
  );
  // A handle keeps the focus while it is moved with the keyboard.
  if (held) box.querySelector(`input[data-axis="${CSS.escape(held[0])}"][data-of="${CSS.escape(held[1])}"]`)?.focus();
  if (refocus) box.querySelector(`.grip[data-axis="${CSS.escape(refocus)}"]`)?.focus();
  refocus = null;
}
