// Tiles: cells of a panel from the server, as pictures at several resolutions.

import { postBytes } from "./api.js";

/** Cells along a side of a picture, and of a tile with numbers. */
export const SIDE = 256;
export const NUMBERED = 64;

const MIXED = 3;

let palette = null;

/** The colors of the theme, as 32-bit pixels. */
export function colors() {
  if (palette) return palette;
  const style = getComputedStyle(document.documentElement);
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (name) => {
    canvas.fillStyle = style.getPropertyValue(name).trim();
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const blocks = [0, 1, 2, 3, 4, 5, 6, 7].map((i) => rgb(`--c${i}`));
  palette = {
    blocks, cut: rgb("--cut"), deep: rgb("--deep"), outside: rgb("--out"), padding: rgb("--pad"),
    sheet: style.getPropertyValue("--sheet").trim(), ink: style.getPropertyValue("--ink").trim(),
    accent: style.getPropertyValue("--accent").trim(),
  };
  return palette;
}

export function forgetColors() { palette = null; }

const pixel = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;
const blend = (a, b, share) => [0, 1, 2].map((i) => a[i] * share + b[i] * (1 - share));

/** A picture of cells: one pixel each. `used` colors are mixed where blocks are too small to see. */
export function paint(cells, shares, width, height, { mask, used }) {
  const { blocks, cut, deep, outside, padding } = colors();
  const mean = [0, 1, 2].map((i) => blocks.slice(0, used).reduce((sum, c) => sum + c[i], 0) / used);
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const memo = new Map();
  for (let i = 0; i < cells.length; i += 1) {
    const key = cells[i] | (shares ? shares[i] << 8 : 0);
    let color = memo.get(key);
    if (color === undefined) {
      const state = cells[i] >> 5;
      const kind = (cells[i] >> 3) & 3;
      const full = kind === MIXED ? mean : blocks[cells[i] & 7];
      let mixed = kind === 2 ? outside : kind === 1 ? padding : full;
      if (mask && (kind === 0 || kind === MIXED) && state !== 3) {
        const share = shares ? shares[i] / 255 : state === 0 ? 1 : 0;
        mixed = blend(full, state === 2 ? deep : cut, share);
      }
      color = pixel(mixed) >>> 0;
      memo.set(key, color);
    }
    pixels[i] = color;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** The tiles of one panel of one design. */
export class Tiles {
  constructor(design, panel, number, changed) {
    Object.assign(this, { design, panel, number, changed });
    this.used = Math.min(8, panel.blocks_per_scope);
    this.known = new Map();
    this.aborter = new AbortController();
    this.waiting = 0;
  }

  stop() { this.aborter.abort(); }

  /** The picture of everything, reduced to at most 256 x 256 cells. */
  overview(mask) {
    const step = Math.max(1, 2 ** Math.ceil(Math.log2(Math.max(this.panel.rows, this.panel.cols) / SIDE)));
    return this.picture(0, 0, step, mask);
  }

  /** The picture of a tile, or null while it is fetched. */
  picture(i, j, step, mask) {
    const found = this.get(`p ${i} ${j} ${step}`, i * SIDE * step, j * SIDE * step, SIDE, step, false);
    if (!found.cells) return null;
    const name = mask ? "masked" : "plain";
    found[name] ??= paint(found.cells, found.shares, found.width, found.height, { mask, used: this.used });
    return found;
  }

  /** A tile with the numbers of blocks and scopes, or null while it is fetched. */
  numbered(i, j) {
    const found = this.get(`n ${i} ${j}`, i * NUMBERED, j * NUMBERED, NUMBERED, 1, true);
    return found.cells ? found : null;
  }

  get(key, row, col, side, step, numbers) {
    let tile = this.known.get(key);
    if (tile) return tile;
    const height = Math.min(side, Math.ceil((this.panel.rows - row) / step));
    const width = Math.min(side, Math.ceil((this.panel.cols - col) / step));
    tile = { row, col, step, width, height };
    this.known.set(key, tile);
    if (width <= 0 || height <= 0) return tile;
    this.waiting += 1;
    const body = { ...this.design, panel: this.number, row, col, rows: height, cols: width, step, numbers, mask: true };
    postBytes("/api/tile", body, this.aborter.signal).then((buffer) => {
      const count = width * height;
      if (numbers) {
        tile.scopes = new Uint32Array(buffer, 0, count);
        tile.blocks = new Uint32Array(buffer, 4 * count, count);
        tile.cells = new Uint8Array(buffer, 8 * count, count);
      } else {
        tile.cells = new Uint8Array(buffer, 0, count);
        tile.shares = new Uint8Array(buffer, count, count);
      }
      this.waiting -= 1;
      this.changed();
    }, (error) => {
      this.waiting -= 1;
      // Another design took its place, or it is asked for again when it is drawn next.
      if (error.name !== "AbortError") this.known.delete(key);
    });
    return tile;
  }
}
