// Connects the parts of the page.

import { get, post, postBlob, postDrawing } from "./api.js";
import * as axes from "./axes.js";
import { $, make, plural, toast } from "./dom.js";
import * as editor from "./editor.js";
import * as facts from "./facts.js";
import * as gallery from "./gallery.js";
import * as layouts from "./layouts.js";
import { Picture } from "./picture.js";
import * as runs from "./runs.js";
import * as share from "./share.js";
import { design, onChange, set, shapes, state } from "./state.js";
import { forgetColors } from "./tiles.js";
import * as trial from "./trial.js";

// Theme: the system's, unless chosen here.
const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(choice) {
  let kept = null;
  try {
    if (choice) localStorage.setItem("theme", choice);
    kept = localStorage.getItem("theme");
  } catch { /* no storage */ }
  document.documentElement.dataset.theme = choice ?? kept ?? (dark.matches ? "dark" : "light");
  forgetColors();
  for (const picture of pictures) if (picture.panel) picture.show(current.design, picture.panel, state.draw !== "structure");
  gallery.draw();
}

const pictures = [];
let current = null;
let pinned = null;

// Facts and pictures follow the text; a newer text replaces one that is on its way.
let asked = null;
let timer = 0;
let lastKey = -1000;
const DEBOUNCE = 8;

function update() {
  clearTimeout(timer);
  // The first key of a burst is answered at once.
  const now = performance.now();
  if (now - lastKey > 100) ask();
  else timer = setTimeout(ask, DEBOUNCE);
  lastKey = now;
}

async function ask() {
  asked?.abort();
  asked = new AbortController();
  const wanted = design();
  const areas = state.tab === "design" && state.draw !== "fragment" ? pictures.flatMap((picture) => picture.wanted()) : [];
  let found;
  let tiles;
  try {
    ({ found, tiles } = await postDrawing({ ...wanted, tiles: areas }, asked.signal));
  } catch (error) {
    if (error.name !== "AbortError") complain({ what: error.message, detail: "", at: null });
    return;
  }
  if (found.error) return complain(found.error);
  current = { design: wanted, found };
  draw(areas.map((area, i) => [area, tiles[i]]).filter(([, bytes]) => bytes));
  editor.mark(null);
  editor.learn(found.dims);
  // What a preset stands for.
  message(found.facts.expanded === found.facts.spec ? "" : `= ${found.facts.expanded}`, true);
  legend();
  // The picture is seen first, then what is known of it.
  requestAnimationFrame(() => setTimeout(async () => {
    if (current.found !== found) return;
    axes.show(found.panels);
    const other = await baseline(wanted);
    if (current.found !== found) return;
    facts.show(found, other);
    if (state.draw === "fragment") fragment();
  }));
}

function complain(error) {
  editor.mark(error);
  message([error.what, error.detail].filter(Boolean).join(": "), false, error);
}

function message(text, good) {
  const box = $("message");
  box.textContent = text;
  box.classList.toggle("ok", good);
}

/** The facts of the pattern to compare with, on the same shape. */
let base = { key: "", found: null };
async function baseline(wanted) {
  const key = JSON.stringify([state.base, wanted.shapes]);
  if (base.key !== key) {
    base = { key, found: null };
    if (state.base) {
      const found = await post("/api/show", { ...wanted, spec: state.base }).catch(() => null);
      base = { key, found: found && !found.error ? found : null };
    }
  }
  return base.found;
}

function draw(given) {
  const { found: { panels } } = current;
  while (pictures.length < panels.length) {
    const picture = new Picture(pictures.length, events);
    pictures.push(picture);
  }
  pictures.length = panels.length;
  const box = $("pictures");
  if (box.children.length !== panels.length || [...box.children].some((child, i) => child !== pictures[i].element)) {
    box.replaceChildren(...pictures.map((picture) => picture.element));
  }
  box.classList.toggle("many", panels.length > 1);
  pinned = null;
  panels.forEach((panel, i) => {
    pictures[i].highlights = [];
    pictures[i].show(current.design, panel, state.draw !== "structure", given.filter(([area]) => area.panel === i));
  });
}

function legend() {
  const { found } = current;
  const levels = Boolean(found.facts.levels);
  const masked = state.draw === "mask";
  const items = [["s0", "color: block within its scope"], ["s1", "outline: scope"]];
  if (masked) items.push(["s2", levels ? "dropped by this level" : "dropped"]);
  if (masked && levels) items.push(["s3", "dropped by an inner level"]);
  if (found.facts.tensors.some((tensor) => tensor.domain_size < tensor.shape.reduce((a, b) => a * b, 1))) items.push(["s4", "outside the domain, kept"]);
  if (found.panels.some((panel) => panel.padded)) items.push(["s5", "padding"]);
  if (found.panels.some((panel) => panel.axes.some((axis) => axis.along))) items.push(["h0", "drag: block"], ["h1", "drag: scope"]);
  $("legend").replaceChildren(...items.map(([name, text]) => make("li", {}, make("i", { class: `swatch ${name}` }), text)));
}

// What is under the pointer.
let hovering = 0;
let looked = null;
const events = {
  hover(picture, row, col) {
    const key = `${picture.number} ${row} ${col}`;
    if (pinned || looked === key) return;
    looked = key;
    clearTimeout(hovering);
    hovering = setTimeout(() => look(picture, row, col), 12);
  },
  leave(unpin) {
    clearTimeout(hovering);
    if (unpin) pinned = null;
    if (pinned) return;
    looked = null;
    for (const picture of pictures) picture.highlight([]);
  },
  pin(picture, row, col) {
    const key = `${picture.number} ${row} ${col}`;
    const again = pinned === key;
    pinned = null;
    if (again) return events.leave();
    look(picture, row, col, true).then(() => { pinned = key; });
  },
  /** A handle was moved: the last change of a drag is the one that is sent. */
  async edit(picture, drag, change) {
    drag.next = change;
    if (drag.busy) return;
    drag.busy = true;
    while (drag.next) {
      const next = drag.next;
      drag.next = null;
      const { spec, shapes: of, seed } = drag.design;
      await axes.edit(next, { of: { spec, shapes: of, seed }, panel: picture.number, joined: Boolean(drag.changed) });
      drag.changed = true;
    }
    drag.busy = false;
  },
};

async function look(picture, row, col, pin) {
  const wanted = current.design;
  let found;
  try {
    found = await post("/api/element", { ...wanted, panel: picture.number, row, col });
  } catch {
    return;
  }
  if (wanted !== current.design || (pinned && !pin)) return;
  describe(found, pin);
  const panel = current.found.panels[picture.number];
  pictures.forEach((other, i) => {
    const tensor = current.found.panels[i].tensor;
    // Levels have pictures of their own; coupled tensors share blocks.
    const same = current.found.panels[i].path.join() === panel.path.join();
    const cells = (list) => (same ? list.filter((cell) => cell[0] === tensor).map((cell) => [cell[1], cell[2]]) : []);
    const list = found.block ? [{ cells: cells(found.scope.cells), strong: false }, { cells: cells(found.block.cells), strong: true }] : [];
    if (i === picture.number) list.push({ cells: [[row, col]], strong: true });
    other.highlight(list);
  });
}

function describe(found, pin) {
  const item = (name, value) => make("span", {}, `${name} `, make("b", {}, value));
  const items = [item(pin ? "pinned" : found.kind, `${found.tensor === "tensor" ? "" : found.tensor}(${found.index.join(",")})`)];
  if (found.kind === "outside") items.push(make("span", {}, "outside the domain: kept as it is"));
  if (found.kind === "padding") items.push(make("span", {}, "padding: no weight"));
  if (found.offset !== null) items.push(item("storage offset", String(found.offset)));
  if (found.view) items.push(item("view", found.view.map(({ axis, at }) => `${axis}=${at}`).join(" ")));
  if (found.block) {
    const state = found.block.kept === null ? "" : found.block.kept ? ", kept in the example" : ", dropped in the example";
    items.push(item("block", `${found.block.number} of ${found.scope.blocks}`), make("span", {}, `${plural(found.block.size, "weight")}${state}`));
    items.push(item("scope", `${found.scope.number}`), make("span", {}, `at (${found.scope.at.join(",")}), keeps ${found.scope.keep}`));
    const mates = found.block.cells.filter(([, row, col]) => row !== found.row || col !== found.col).slice(0, 6)
      .map(([tensor, row, col]) => `${current.found.facts.tensors.length > 1 ? `${current.found.facts.tensors[tensor].name} ` : ""}(${row},${col})`);
    if (mates.length) items.push(item("same block", mates.join(" ") + (found.block.size > mates.length + 1 ? " …" : "")));
  }
  $("readout").replaceChildren(...items);
}

async function fragment() {
  const box = $("fragment");
  const wanted = design();
  try {
    const [found, blob] = await Promise.all([
      post("/api/fragment", wanted),
      postBlob("/api/fragment.svg", wanted),
    ]);
    const held = (name, one) => `${name}: ${one.structure.min === one.structure.max ? one.structure.min : `${one.structure.min} to ${one.structure.max}`} of ${one.owned} kept${one.balanced ? ", balanced" : ""}`;
    const image = make("img", { alt: `The first fragment of ${found.name}: which lane owns which weight`, src: URL.createObjectURL(blob) });
    image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
    box.replaceChildren(
      make("p", {}, `${found.name}: ${held("lane", found.lanes)}; ${held("thread group", found.groups)}; metadata ${found.metadata_bits} bits per fragment. A block stays within one ${found.block_within}, a scope within one ${found.scope_within}.`),
      image);
  } catch (error) {
    box.replaceChildren(make("p", { class: "empty" }, error.message));
  }
}

function drawMode() {
  for (const mode of ["structure", "mask", "fragment"]) $(`draw-${mode}`).setAttribute("aria-pressed", String(state.draw === mode));
  $("pictures").hidden = state.draw === "fragment";
  $("legend").hidden = state.draw === "fragment";
  $("fragment").hidden = state.draw !== "fragment";
  if (state.draw === "fragment") fragment();
  else for (const picture of pictures) picture.mask(state.draw === "mask");
  if (current) legend();
}

const TABS = ["design", "trial", "layouts", "runs"];
function showTab() {
  if (!TABS.includes(state.tab)) return set({ tab: "design" });
  for (const name of TABS) {
    const on = state.tab === name;
    $(name).hidden = !on;
    $(`tab-${name}`).setAttribute("aria-selected", String(on));
    $(`tab-${name}`).tabIndex = on ? 0 : -1;
  }
  if (state.tab === "trial") trial.enter();
  if (state.tab === "layouts") layouts.enter();
  runs.enter(state.tab === "runs");
}

for (const name of TABS) {
  $(`tab-${name}`).addEventListener("click", () => set({ tab: name }));
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    const next = TABS[(TABS.indexOf(name) + move + TABS.length) % TABS.length];
    set({ tab: next });
    $(`tab-${next}`).focus();
  });
}
for (const mode of ["structure", "mask", "fragment"]) $(`draw-${mode}`).addEventListener("click", () => set({ draw: mode }));
$("reseed").addEventListener("click", () => set({ seed: state.seed + 1 }));
$("zoom-in").addEventListener("click", () => pictures.forEach((picture) => picture.zoomBy(1.6)));
$("zoom-out").addEventListener("click", () => pictures.forEach((picture) => picture.zoomBy(1 / 1.6)));
$("zoom-fit").addEventListener("click", () => pictures.forEach((picture) => picture.fit()));
$("shape").addEventListener("input", () => set({ shape: $("shape").value }));
$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => theme());

onChange((changed) => {
  if (changed.some((key) => ["spec", "shape", "seed", "base"].includes(key))) update();
  if (changed.includes("spec")) editor.follow();
  if (changed.includes("shape") && $("shape").value !== state.shape) $("shape").value = state.shape;
  if (changed.includes("draw")) drawMode();
  if (changed.includes("tab")) showTab();
});

$("shape").value = state.shape;
document.documentElement.dataset.theme = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })() ?? (dark.matches ? "dark" : "light");
showTab();
drawMode();
ask();
try {
  const catalog = await get("/api/catalog");
  editor.start(catalog);
  gallery.start(catalog);
  trial.start(catalog);
  layouts.start(catalog);
  share.start(() => pictures);
} catch (error) {
  toast(error.message);
}

// For measurements: when the picture of the current text was complete.
globalThis.studio = { pictures, state, complete: () => Boolean(current) && current.design.spec === state.spec && shapes().join() === current.design.shapes.join() && pictures.every((picture) => picture.complete) };
