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
    accent: style.getPropertyValue("--accent").trim(), onAccent: style.getPropertyValue("--on-accent").trim(),
    soft: style.getPropertyValue("--soft").trim(), line: style.getPropertyValue("--line").trim(),
  };
  return palette;
}

export function forgetColors() { palette = null; }

const pixel = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;
const blend = (a, b, share) => [0, 1, 2].map((i) => a[i] * share + b[i] * (1 - share));

/**
 * A picture of cells: one pixel each. Where `shares` is null, a cell is kept or not. `used` colors
 * are mixed where blocks are too small to see.
 */
export function paint(cells, shares, width, height, { mask, used }) {
  const { blocks, cut, deep, outside, padding } = colors();
  const mean = [0, 1, 2].map((i) => blocks.slice(0, used).reduce((sum, c) => sum + c[i], 0) / used);
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  // Pixels are opaque, so a color of 0 is one that is not known yet.
  const known = new Uint32Array(shares ? 1 << 16 : 1 << 8);
  for (let i = 0; i < cells.length; i += 1) {
    const key = shares ? cells[i] | (shares[i] << 8) : cells[i];
    if (known[key] === 0) {
      const state = cells[i] >> 5;
      const kind = (cells[i] >> 3) & 3;
      const full = kind === MIXED ? mean : blocks[cells[i] & 7];
      let mixed = kind === 2 ? outside : kind === 1 ? padding : full;
      if (mask && (kind === 0 || kind === MIXED) && state !== 3) {
        const share = shares ? shares[i] / 255 : state === 0 ? 1 : 0;
        mixed = blend(full, state === 2 ? deep : cut, share);
      }
      known[key] = pixel(mixed) >>> 0;
    }
    pixels[i] = known[key];
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** The rectangle of a tile of a panel: of `SIDE` cells a side, or of `NUMBERED` ones with numbers. */
export function area(panel, i, j, step, numbers) {
  const side = numbers ? NUMBERED : SIDE;
  const [row, col] = [i * side * step, j * side * step];
  const rows = Math.min(side, Math.ceil((panel.rows - row) / step));
  const cols = Math.min(side, Math.ceil((panel.cols - col) / step));
  return { row, col, rows, cols, step, numbers };
}

const name = ({ row, col, step, numbers }) => `${numbers ? "n" : "p"} ${row} ${col} ${step}`;

/** The step of the picture of everything, which has at most 256 x 256 cells. */
export const overviewStep = (panel) => Math.max(1, 2 ** Math.ceil(Math.log2(Math.max(panel.rows, panel.cols) / SIDE)));

/** The arrays of a tile's bytes. */
function read(tile, bytes) {
  const count = tile.width * tile.height;
  const words = (at) => new Uint32Array(bytes.buffer, bytes.byteOffset + at, count);
  if (tile.numbers) Object.assign(tile, { scopes: words(0), blocks: words(4 * count), cells: bytes.subarray(8 * count) });
  else Object.assign(tile, { cells: bytes.subarray(0, count), shares: tile.step > 1 ? bytes.subarray(count) : null });
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

  /** Tiles that came with the facts: [area, bytes]. */
  give(tiles) {
    for (const [of, bytes] of tiles) {
      const tile = { row: of.row, col: of.col, step: of.step, numbers: of.numbers, width: of.cols, height: of.rows };
      read(tile, bytes);
      this.known.set(name(of), tile);
    }
  }

  /** Whether a tile is here. */
  has(i, j, step, numbers) {
    return Boolean(this.known.get(name(area(this.panel, i, j, step, numbers)))?.cells);
  }

  /** The picture of everything. */
  overview(mask) {
    return this.picture(0, 0, overviewStep(this.panel), mask);
  }

  /** The picture of a tile, or null while it is fetched. */
  picture(i, j, step, mask) {
    const found = this.get(area(this.panel, i, j, step, false));
    if (!found.cells) return null;
    const kind = mask ? "masked" : "plain";
    found[kind] ??= paint(found.cells, found.shares, found.width, found.height, { mask, used: this.used });
    return found;
  }

  /** A tile with the numbers of blocks and scopes, or null while it is fetched. */
  numbered(i, j) {
    const found = this.get(area(this.panel, i, j, 1, true));
    return found.cells ? found : null;
  }

  /** The tile with numbers before another one, if it is here. */
  neighbor(tile, rows, cols) {
    return this.known.get(name({ row: tile.row - rows, col: tile.col - cols, step: 1, numbers: true }));
  }

  get(of) {
    const key = name(of);
    let tile = this.known.get(key);
    if (tile) return tile;
    tile = { row: of.row, col: of.col, step: of.step, numbers: of.numbers, width: of.cols, height: of.rows };
    if (of.rows <= 0 || of.cols <= 0 || this.aborter.signal.aborted) return tile;
    this.known.set(key, tile);
    this.waiting += 1;
    postBytes("/api/tile", { ...this.design, panel: this.number, ...of, mask: true }, this.aborter.signal).then((buffer) => {
      read(tile, new Uint8Array(buffer));
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
