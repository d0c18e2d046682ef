// Patterns to start from, with small pictures.

import { postBytes } from "./api.js";
import { $, make } from "./dom.js";
import { replace } from "./editor.js";
import { onChange, state } from "./state.js";
import { paint } from "./tiles.js";

const TINY = 48;
let entries = [];

export function start(catalog) {
  entries = [...catalog.presets, ...catalog.examples];
  $("gallery").replaceChildren(...entries.map((entry) => {
    const canvas = make("canvas", { width: TINY, height: TINY, "aria-hidden": "true" });
    entry.canvas = canvas;
    entry.button = make("button", {
      title: entry.summary, "data-spec": entry.spec,
      onclick: () => replace(entry.spec, entry.shapes.join("; ")),
    }, canvas, make("div", {}, make("b", {}, entry.spec.length > 24 ? entry.name : entry.spec), make("span", {}, entry.summary)));
    return make("li", {}, entry.button);
  }));
  mark();
  onChange(mark);
  // After the picture that the user waits for.
  setTimeout(draw, 400);
}

function mark() {
  for (const entry of entries) {
    const current = String(entry.spec === state.spec);
    if (entry.button.getAttribute("aria-current") !== current) entry.button.setAttribute("aria-current", current);
  }
}

/** Draws all small pictures, one after the other. */
export async function draw() {
  for (const entry of entries) {
    try {
      const dims = entry.shapes[0].replace(/^.*=/, "").split(",").map(Number);
      const side = Math.min(16, dims[0], dims.slice(1).reduce((a, b) => a * b, 1));
      const body = { spec: entry.spec, shapes: entry.shapes, seed: 3, panel: 0, row: 0, col: 0, rows: side, cols: side, step: 1, numbers: false, mask: true };
      entry.bytes ??= await postBytes("/api/tile", body);
      const picture = paint(new Uint8Array(entry.bytes), null, side, side, { mask: true, used: 8 });
      const context = entry.canvas.getContext("2d");
      context.imageSmoothingEnabled = false;
      context.drawImage(picture, 0, 0, TINY, TINY);
    } catch { /* the name is enough */ }
  }
}
