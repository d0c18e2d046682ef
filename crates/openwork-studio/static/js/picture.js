// The picture of a panel: a canvas with zoom, pan, a mini-map, outlines and highlights.
// Only the visible part is asked for and drawn.

import { make } from "./dom.js";
import * as handles from "./handles.js";
import { NUMBERED, SIDE, Tiles, area, colors, overviewStep, paint } from "./tiles.js";

/** Pixels per cell from which cells have outlines, and scopes have numbers. */
const OUTLINED = 6;
const LABELED = 24;
const LARGEST = 64;
/** Most cells that are asked for together with the facts. */
const FIRST = 1 << 18;
const MARGIN = 14;

export class Picture {
  /** `events`: hover(picture, row, col), leave(), pin(picture, row, col), edit(picture, drag, change). */
  constructor(number, events) {
    this.number = number;
    this.events = events;
    this.canvas = make("canvas", { class: "main", tabindex: "0", role: "img" });
    this.minimap = make("canvas", { class: "minimap", "aria-hidden": "true", hidden: true });
    this.box = make("div", { class: "canvas" }, this.canvas, this.minimap);
    this.title = make("h3");
    this.element = make("figure", { class: "picture" }, this.title, this.box);
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.zoom = 1;
    this.left = 0;
    this.top = 0;
    this.fitted = true;
    this.masked = true;
    this.cursor = null;
    this.highlights = [];
    this.frame = 0;
    this.tiles = null;
    this.before = null;
    this.held = null;
    this.drag = null;
    new ResizeObserver(() => this.resize()).observe(this.box);
    this.listen();
  }

  /** Shows a panel of a design, some of its tiles given; the view stays where the size is the same. */
  show(design, panel, masked, given = []) {
    const same = this.panel && this.panel.rows === panel.rows && this.panel.cols === panel.cols;
    this.before = same ? this.tiles ?? this.before : null;
    this.tiles?.stop();
    this.panel = panel;
    this.masked = masked;
    // The last tile that is waited for is drawn at once.
    this.tiles = new Tiles(design, panel, this.number, () => (this.tiles?.waiting ? this.redraw() : this.draw()));
    if (same) this.tiles.give(given);
    this.title.textContent = panel.title;
    const about = `${panel.title}, ${panel.rows} rows and ${panel.cols} columns, blocks and scopes of ${panel.spec}. Arrow keys move over the weights, Enter pins, plus and minus zoom.`;
    this.canvas.setAttribute("aria-label", about);
    if (!same || this.fitted) this.fit();
    // Now, not in the next frame: this asks for the tiles.
    this.draw();
    clearTimeout(this.later);
    // What lies behind tiles that are on their way, ready before the first move.
    this.later = setTimeout(() => this.tiles.overview(this.masked), 300);
  }

  /** The tiles that are visible, for a panel of this size; all of it, reduced, if they are many. */
  wanted() {
    if (!this.panel || !this.canvas.width) return [];
    const { step, numbers, list } = this.visible();
    const areas = list.map(([i, j]) => area(this.panel, i, j, step, numbers));
    const cells = areas.reduce((sum, one) => sum + one.rows * one.cols, 0);
    const some = cells <= FIRST && areas.length <= 16 ? areas : [area(this.panel, 0, 0, overviewStep(this.panel), false)];
    return some.map((one) => ({ ...one, panel: this.number, mask: true }));
  }

  mask(masked) {
    this.masked = masked;
    this.redraw();
  }

  resize() {
    const ratio = Math.min(2, devicePixelRatio || 1);
    const { width, height } = this.box.getBoundingClientRect();
    if (!width || !height) return;
    this.ratio = ratio;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    if (this.fitted) this.fit();
    this.draw();
  }

  /** Pixels of a cell so that everything is visible. */
  smallest() {
    const { width, height } = this.size();
    const { left, top } = handles.margins(this.panel);
    return Math.min((width - left - 2 * MARGIN) / this.panel.cols, (height - top - 2 * MARGIN) / this.panel.rows);
  }

  size() {
    return { width: this.canvas.width / (this.ratio ?? 1), height: this.canvas.height / (this.ratio ?? 1) };
  }

  fit() {
    if (!this.panel || !this.canvas.width) return;
    const zoom = this.smallest();
    // Whole pixels keep cells equally large.
    this.zoom = zoom > 2 ? Math.min(Math.floor(zoom), 40) : zoom;
    const { width, height } = this.size();
    const { left, top } = handles.margins(this.panel);
    this.left = (width + left - this.panel.cols * this.zoom) / 2;
    this.top = (height + top - this.panel.rows * this.zoom) / 2;
    this.fitted = true;
    this.redraw();
  }

  zoomBy(factor, x, y) {
    const { width, height } = this.size();
    x ??= width / 2;
    y ??= height / 2;
    let zoom = Math.min(LARGEST, Math.max(Math.min(this.smallest(), 8), this.zoom * factor));
    if (zoom > 3) zoom = factor > 1 ? Math.ceil(zoom) : Math.floor(zoom);
    this.left = x - ((x - this.left) / this.zoom) * zoom;
    this.top = y - ((y - this.top) / this.zoom) * zoom;
    this.zoom = zoom;
    this.fitted = false;
    this.contain();
    this.redraw();
  }

  /** Some of the tensor stays visible. */
  contain() {
    const { width, height } = this.size();
    const keep = 40;
    this.left = Math.min(width - keep, Math.max(keep - this.panel.cols * this.zoom, this.left));
    this.top = Math.min(height - keep, Math.max(keep - this.panel.rows * this.zoom, this.top));
  }

  moveBy(dx, dy) {
    this.left += dx;
    this.top += dy;
    this.fitted = false;
    this.contain();
    this.redraw();
  }

  /** The row and column at a point, or null. */
  at(x, y) {
    if (!this.panel) return null;
    const row = Math.floor((y - this.top) / this.zoom);
    const col = Math.floor((x - this.left) / this.zoom);
    const inside = row >= 0 && col >= 0 && row < this.panel.rows && col < this.panel.cols;
    return inside ? [row, col] : null;
  }

  /** Cells to point out: [{cells: [[row, col]], strong}]. */
  highlight(list) {
    this.highlights = list;
    this.redraw();
  }

  redraw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    if (!this.panel || !this.tiles || !this.canvas.width) return;
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const { context: c, ratio } = this;
    const { width, height } = this.size();
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = colors().sheet;
    c.fillRect(0, 0, width, height);
    const visible = this.visible();
    const complete = visible.numbers ? this.drawNumbered(visible) : this.drawPictures(visible);
    if (complete) this.before = null;
    this.drawHighlights(c);
    handles.draw(this, this.drag ?? this.held);
    if (this.drag?.what === "axis") handles.drawDragged(this, this.drag);
    this.drawMinimap(visible.rows, visible.cols);
    this.complete = complete;
    this.canvas.dataset.complete = String(complete);
  }

  /** The picture without handles and highlights, for a file. */
  drawn() {
    const kept = this.highlights;
    const axes = this.panel.axes;
    this.highlights = [];
    this.panel.axes = [];
    this.draw();
    const copy = new OffscreenCanvas(this.canvas.width, this.canvas.height);
    copy.getContext("2d").drawImage(this.canvas, 0, 0);
    this.highlights = kept;
    this.panel.axes = axes;
    this.draw();
    return copy;
  }

  /** The rows and columns that are visible, and their tiles: [i, j] each. */
  visible() {
    const { width, height } = this.size();
    const rows = [Math.max(0, Math.floor(-this.top / this.zoom)), Math.min(this.panel.rows, Math.ceil((height - this.top) / this.zoom))];
    const cols = [Math.max(0, Math.floor(-this.left / this.zoom)), Math.min(this.panel.cols, Math.ceil((width - this.left) / this.zoom))];
    const numbers = this.zoom >= OUTLINED;
    const reduced = 0.75 / (this.zoom * this.ratio);
    const step = !numbers && reduced > 1 ? 2 ** Math.ceil(Math.log2(reduced)) : 1;
    const cells = (numbers ? NUMBERED : SIDE) * step;
    const list = [];
    for (let i = Math.floor(rows[0] / cells); i * cells < rows[1]; i += 1) {
      for (let j = Math.floor(cols[0] / cells); j * cells < cols[1]; j += 1) list.push([i, j]);
    }
    return { rows, cols, numbers, step, list };
  }

  place(tile, picture) {
    const { context: c, zoom } = this;
    const side = tile.step * zoom;
    c.imageSmoothingEnabled = side < 1;
    // The last pixel of a reduced tile may stand for cells beyond the edge.
    const w = Math.min(tile.width * tile.step, this.panel.cols - tile.col);
    const h = Math.min(tile.height * tile.step, this.panel.rows - tile.row);
    c.drawImage(picture, 0, 0, w / tile.step, h / tile.step, this.left + tile.col * zoom, this.top + tile.row * zoom, w * zoom, h * zoom);
  }

  backdrop() {
    const name = this.masked ? "masked" : "plain";
    const own = this.tiles.overview(this.masked);
    const old = own ?? this.before?.overview(this.masked);
    if (old?.[name]) this.place(old, old[name]);
    return own;
  }

  drawPictures({ step, list }) {
    const whole = list.every(([i, j]) => this.tiles.has(i, j, step, false)) ? null : this.backdrop();
    if (whole && step >= whole.step) return true;
    let complete = true;
    for (const [i, j] of list) {
      // A few tiles are asked for together with the overview, more after it.
      const tile = whole || list.length <= 4 || this.tiles.has(i, j, step, false) ? this.tiles.picture(i, j, step, this.masked) : null;
      if (tile) this.place(tile, this.masked ? tile.masked : tile.plain);
      else complete = false;
    }
    return complete;
  }

  drawNumbered({ rows, cols, list }) {
    const tiles = list.map(([i, j]) => this.tiles.numbered(i, j)).filter(Boolean);
    const complete = tiles.length === list.length;
    if (!complete) this.backdrop();
    const { context: c, zoom } = this;
    const theme = colors();
    for (const tile of tiles) {
      const name = this.masked ? "masked" : "plain";
      tile[name] ??= paint(tile.cells, null, tile.width, tile.height, { mask: this.masked, used: this.tiles.used });
      this.place({ ...tile, step: 1 }, tile[name]);
    }
    for (const tile of tiles) tile.edges ??= edges(tile, this.tiles);
    c.save();
    c.translate(this.left, this.top);
    c.scale(zoom, zoom);
    c.lineCap = "square";
    if (zoom >= 9) {
      c.strokeStyle = theme.sheet;
      c.globalAlpha = 0.75;
      c.lineWidth = 1 / zoom;
      for (const tile of tiles) c.stroke(tile.edges.blocks);
      c.globalAlpha = 1;
    }
    c.strokeStyle = theme.ink;
    c.lineWidth = (zoom >= 12 ? 2 : 1) / zoom;
    for (const tile of tiles) c.stroke(tile.edges.scopes);
    c.restore();
    if (zoom >= LABELED) this.drawLabels(tiles, rows, cols);
    return complete;
  }

  drawLabels(tiles, rows, cols) {
    const { context: c, zoom } = this;
    c.font = `600 ${Math.min(12, zoom / 2.4)}px system-ui,sans-serif`;
    c.textBaseline = "top";
    for (const tile of tiles) {
      for (const [row, col, text] of tile.edges.labels) {
        if (row < rows[0] || row >= rows[1] || col < cols[0] || col >= cols[1]) continue;
        const state = tile.cells[(row - tile.row) * tile.width + col - tile.col] >> 5;
        c.fillStyle = this.masked && (state === 1 || state === 2) ? colors().ink : "#14181d";
        c.fillText(text, this.left + col * zoom + 4, this.top + row * zoom + 4, zoom - 5);
      }
    }
  }

  drawHighlights(c) {
    const { zoom } = this;
    const { accent } = colors();
    const list = [...this.highlights];
    if (this.cursor) list.push({ cells: [this.cursor], strong: true });
    for (const { cells, strong } of list) {
      c.lineWidth = strong ? 3 : 1.5;
      c.strokeStyle = accent;
      c.fillStyle = accent;
      const size = Math.max(zoom, 4);
      for (const [row, col] of cells) {
        const x = this.left + col * zoom;
        const y = this.top + row * zoom;
        c.globalAlpha = strong ? 0.35 : 0.14;
        c.fillRect(x, y, size, size);
        c.globalAlpha = 1;
        if (strong || zoom >= 10) c.strokeRect(x + 1, y + 1, size - 2, size - 2);
      }
    }
  }

  drawMinimap(rows, cols) {
    const all = rows[0] === 0 && cols[0] === 0 && rows[1] === this.panel.rows && cols[1] === this.panel.cols;
    this.minimap.hidden = all;
    if (all) return;
    const most = 150;
    const scale = Math.min(most / this.panel.cols, most / this.panel.rows);
    const width = Math.max(24, Math.round(this.panel.cols * scale));
    const height = Math.max(24, Math.round(this.panel.rows * scale));
    if (this.minimap.width !== width || this.minimap.height !== height) {
      this.minimap.width = width;
      this.minimap.height = height;
    }
    const c = this.minimap.getContext("2d");
    c.fillStyle = colors().sheet;
    c.fillRect(0, 0, width, height);
    const whole = this.tiles.overview(this.masked);
    const picture = whole?.[this.masked ? "masked" : "plain"];
    if (picture) c.drawImage(picture, 0, 0, this.panel.cols / whole.step, this.panel.rows / whole.step, 0, 0, width, height);
    c.strokeStyle = colors().accent;
    c.lineWidth = 2;
    const [sx, sy] = [width / this.panel.cols, height / this.panel.rows];
    c.strokeRect(cols[0] * sx, rows[0] * sy, Math.max(4, (cols[1] - cols[0]) * sx), Math.max(4, (rows[1] - rows[0]) * sy));
  }

  listen() {
    const { canvas, box } = this;
    const point = (event) => {
      const { left, top } = box.getBoundingClientRect();
      return [event.clientX - left, event.clientY - top];
    };
    const pointers = new Map();
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      const at = point(event);
      const found = pointers.size || !this.panel ? null : handles.grab(this, ...at, event.pointerType === "touch");
      if (found) {
        this.drag = { ...found, pointer: event.pointerId, from: at, x: at[0], y: at[1], design: this.tiles.design, zoom: this.zoom, value: found.ruler.axis[found.what] };
        this.events.leave();
        return;
      }
      pointers.set(event.pointerId, at);
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = point(event);
      if (this.drag) return this.dragTo(event, ...now);
      if (!pointers.size && this.panel) this.hold(handles.grab(this, ...now, event.pointerType === "touch"));
      if (this.held) return this.events.leave();
      const last = pointers.get(event.pointerId);
      if (last) {
        if (pointers.size === 2) {
          const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
          const far = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
          this.zoomBy(far(now, other) / far(last, other), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
        } else {
          this.moveBy(now[0] - last[0], now[1] - last[1]);
        }
        moved += Math.hypot(now[0] - last[0], now[1] - last[1]);
        pointers.set(event.pointerId, now);
        box.classList.toggle("moving", moved > 4);
        if (moved > 4) return;
      }
      const at = this.at(...now);
      this.cursor = null;
      if (at) this.events.hover(this, ...at);
      else this.events.leave();
    });
    const end = (event) => {
      if (this.drag?.pointer === event.pointerId) return this.drop(event.type === "pointerup");
      const last = pointers.get(event.pointerId);
      pointers.delete(event.pointerId);
      box.classList.remove("moving");
      const at = last && moved <= 4 && event.type === "pointerup" ? this.at(...last) : null;
      if (at) this.events.pin(this, ...at);
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => { this.hold(null); this.events.leave(); });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 30 : 1;
      this.zoomBy(Math.exp(-event.deltaY * lines * 0.0022), ...point(event));
    }, { passive: false });
    canvas.addEventListener("dblclick", (event) => this.zoomBy(2, ...point(event)));
    canvas.addEventListener("keydown", (event) => {
      const step = event.shiftKey ? 8 : 1;
      const moves = { ArrowLeft: [0, -step], ArrowRight: [0, step], ArrowUp: [-step, 0], ArrowDown: [step, 0] };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (moves[event.key]) {
        const [dr, dc] = moves[event.key];
        const clamp = (x, most) => Math.min(most - 1, Math.max(0, x));
        const [row, col] = this.cursor ?? [-dr, -dc];
        this.cursor = [clamp(row + dr, this.panel.rows), clamp(col + dc, this.panel.cols)];
        this.reveal(...this.cursor);
        this.events.hover(this, ...this.cursor);
      } else if (event.key === "Enter" && this.cursor) this.events.pin(this, ...this.cursor);
      else if (event.key === "Escape") { this.cursor = null; this.events.leave(true); }
      else if (event.key === "+" || event.key === "=") this.zoomBy(1.5);
      else if (event.key === "-") this.zoomBy(1 / 1.5);
      else if (event.key === "0") this.fit();
      else return;
      event.preventDefault();
      this.redraw();
    });
    const jump = (event) => {
      if (event.buttons !== 1) return;
      const { left, top, width, height } = this.minimap.getBoundingClientRect();
      const size = this.size();
      this.left = size.width / 2 - ((event.clientX - left) / width) * this.panel.cols * this.zoom;
      this.top = size.height / 2 - ((event.clientY - top) / height) * this.panel.rows * this.zoom;
      this.fitted = false;
      this.contain();
      this.redraw();
    };
    this.minimap.addEventListener("pointerdown", (event) => { this.minimap.setPointerCapture(event.pointerId); jump(event); });
    this.minimap.addEventListener("pointermove", jump);
  }

  /** Points out the handle under the pointer. */
  hold(found) {
    const same = (a, b) => a?.what === b?.what && a?.ruler.index === b?.ruler.index;
    if (same(found, this.held)) return;
    this.held = found;
    this.box.title = found ? handles.describe(found) : "";
    this.canvas.style.cursor = !found ? "" : found.what === "axis" ? "grab" : found.ruler.horizontal ? "ew-resize" : "ns-resize";
    this.redraw();
  }

  /** A handle is dragged: the text follows while it moves. */
  dragTo(event, x, y) {
    const { drag } = this;
    if (event.pointerId !== drag.pointer) return;
    Object.assign(drag, { x, y });
    this.redraw();
    if (drag.what === "axis") return;
    const moved = drag.ruler.horizontal ? x - drag.from[0] : y - drag.from[1];
    const value = handles.extent(drag, moved, drag.zoom);
    if (value === drag.value) return;
    drag.value = value;
    const { axis, index } = drag.ruler;
    const change = drag.what === "block" ? { block: { axis: index, extent: value } } : { scope: { axis: axis.scope_axis, extent: value } };
    this.events.edit(this, drag, change);
  }

  drop(done) {
    const { drag } = this;
    this.drag = null;
    this.redraw();
    if (!done || drag.what !== "axis") return;
    const to = handles.target(this, drag.x, drag.y);
    const far = Math.hypot(drag.x - drag.from[0], drag.y - drag.from[1]) > 6;
    if (far && to && to.index !== drag.ruler.index) this.events.edit(this, drag, { move_axis: { from: drag.ruler.index, to: to.index } });
  }

  /** Moves a cell into view. */
  reveal(row, col) {
    const { width, height } = this.size();
    const x = this.left + col * this.zoom;
    const y = this.top + row * this.zoom;
    if (x < 0 || x + this.zoom > width) this.left = width / 2 - col * this.zoom;
    if (y < 0 || y + this.zoom > height) this.top = height / 2 - row * this.zoom;
    this.redraw();
  }
}

/**
 * The edges between blocks and between scopes of a tile, as paths in cells, with collinear
 * edges joined; and where the numbers of scopes stand. Edges to the tile before it belong to
 * this one, so every edge is drawn once.
 */
function edges(tile, tiles) {
  const { width, height, scopes, blocks, row, col } = tile;
  const left = tiles.neighbor(tile, 0, NUMBERED);
  const above = tiles.neighbor(tile, NUMBERED, 0);
  const before = (r, c) => {
    if (c < 0) return left?.cells ? [left.scopes[r * left.width + left.width - 1], left.blocks[r * left.width + left.width - 1]] : null;
    if (r < 0) return above?.cells ? [above.scopes[(above.height - 1) * above.width + c], above.blocks[(above.height - 1) * above.width + c]] : null;
    return [scopes[r * width + c], blocks[r * width + c]];
  };
  const paths = { scopes: new Path2D(), blocks: new Path2D() };
  const labels = [];
  // Runs of edges of one kind along a line.
  const line = (count, kindAt, draw) => {
    let start = 0;
    let kind = null;
    for (let k = 0; k <= count; k += 1) {
      const next = k < count ? kindAt(k) : null;
      if (next === kind) continue;
      if (kind) draw(paths[kind], start, k);
      [start, kind] = [k, next];
    }
  };
  const between = (a, b) => (a === null || a[0] !== b[0] ? "scopes" : a[1] !== b[1] ? "blocks" : null);
  for (let c = 0; c <= width; c += 1) {
    const end = c === width;
    if (end && col + width !== tiles.panel.cols) break;
    line(height, (r) => (end ? "scopes" : between(before(r, c - 1), before(r, c))), (path, from, to) => {
      path.moveTo(col + c, row + from);
      path.lineTo(col + c, row + to);
    });
  }
  for (let r = 0; r <= height; r += 1) {
    const end = r === height;
    if (end && row + height !== tiles.panel.rows) break;
    line(width, (c) => (end ? "scopes" : between(before(r - 1, c), before(r, c))), (path, from, to) => {
      path.moveTo(col + from, row + r);
      path.lineTo(col + to, row + r);
    });
  }
  for (let r = 0; r < height; r += 1) {
    for (let c = 0; c < width; c += 1) {
      const here = before(r, c);
      if (here[0] === 0xffffffff) continue;
      if (before(r, c - 1)?.[0] !== here[0] && before(r - 1, c)?.[0] !== here[0]) labels.push([row + r, col + c, String(here[0])]);
    }
  }
  return { ...paths, labels };
}
