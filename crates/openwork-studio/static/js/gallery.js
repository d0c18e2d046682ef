// Patterns to start from, with small pictures.

import { postBytes } from "./api.js";
import { $, make } from "./dom.js";
import { replace } from "./editor.js";
import { onChange, state } from "./state.js";
import { paint } from "./tiles.js";

const TINY = 16;
let entries = [];

export function start(catalog) {
  entries = [...catalog.presets, ...catalog.examples];
  $("gallery").replaceChildren(...entries.map((entry) => {
    const canvas = make("canvas", { width: TINY, height: TINY, "aria-hidden": "true" });
    entry.canvas = canvas;
    entry.button = make("button", {
      title: entry.summary, "data-spec": entry.spec,
      onclick: () => replace(entry.spec, shapeFor(entry)),
    }, canvas, make("div", {}, make("b", {}, entry.spec.length > 24 ? entry.name : entry.spec), make("span", {}, entry.summary)));
    return make("li", {}, entry.button);
  }));
  mark();
  onChange(mark);
  // After the picture that the user waits for.
  setTimeout(draw, 400);
}

/** The example's own shape, unless the current one is for one tensor too and large enough. */
function shapeFor(entry) {
  return entry.shapes.join("; ");
}

function mark() {
  for (const entry of entries) entry.button.setAttribute("aria-current", String(entry.spec === state.spec));
}

/** Draws all small pictures, one after the other. */
export async function draw() {
  for (const entry of entries) {
    try {
      const body = { spec: entry.spec, shapes: entry.shapes, seed: 3, panel: 0, row: 0, col: 0, rows: TINY, cols: TINY, step: 1, numbers: false, mask: true };
      entry.bytes ??= await postBytes("/api/tile", body);
      const count = TINY * TINY;
      const picture = paint(new Uint8Array(entry.bytes, 0, count), new Uint8Array(entry.bytes, count, count), TINY, TINY, { mask: true, used: 8 });
      entry.canvas.getContext("2d").drawImage(picture, 0, 0);
    } catch { /* the name is enough */ }
  }
}
