// Handles on the canvas: a ruler for each axis of the view that runs along the rows or columns
// of the picture, with a handle for the extent of a block, one for that of a scope, and the
// name of the axis, which can be dragged to the place of another. The sliders beside the
// picture do the same from the keyboard.

import { colors } from "./tiles.js";

const LANE = 17;
const GAP = 5;
const CHIP = 15;
/** Pixels between the two handles of a ruler, and from a handle at which it is grabbed. */
const APART = 12;
const NEAR = 8;
const NEAR_TOUCH = 16;
/** Most weights of a block that are marked on its ruler. */
const MARKS = 64;

export const divisors = (n) => {
  const found = new Set();
  for (let d = 1; d * d <= n; d += 1) if (n % d === 0) found.add(d).add(n / d);
  return [...found].sort((a, b) => a - b);
};

const nearest = (list, x) => list.reduce((best, one) => (Math.abs(one - x) < Math.abs(best - x) ? one : best));
const chipWidth = (name) => 11 + 7 * Math.min(name.length, 6);

/** The axes that have a ruler, with their numbers in the view. */
function ruled(panel) {
  const all = panel.origin ? panel.axes.map((axis, index) => ({ axis, index })).filter(({ axis }) => axis.along) : [];
  return { across: all.filter(({ axis }) => axis.along === "cols"), down: all.filter(({ axis }) => axis.along === "rows") };
}

/** Pixels that the rulers need to the left of the picture and above it. */
export function margins(panel) {
  const { across, down } = ruled(panel);
  const chips = Math.max(0, ...across.map(({ axis }) => chipWidth(axis.name)));
  return {
    left: (down.length ? down.length * LANE + GAP : 0) + (chips ? chips + 2 * GAP : 0),
    top: Math.max(across.length ? across.length * LANE + GAP : 0, down.length ? CHIP + 2 * GAP : 0),
  };
}

/**
 * The rulers of a picture in pixels: where each starts, the ends of the first block and of the
 * first scope along it, where their handles are, and the place of its name.
 */
export function rulers({ panel, zoom, left, top }) {
  const { across, down } = ruled(panel);
  const space = margins(panel);
  // Rulers stay in sight when the top or the left of the tensor does not.
  const y0 = Math.max(top + (panel.origin?.[0] ?? 0) * zoom - GAP, space.top);
  const x0 = Math.max(left + (panel.origin?.[1] ?? 0) * zoom - GAP, down.length * LANE + GAP);
  const x1 = left + (panel.origin?.[1] ?? 0) * zoom;
  const y1 = top + (panel.origin?.[0] ?? 0) * zoom;
  const one = ({ axis, index }, lane, horizontal) => {
    const cells = (n) => ((n - 1) * axis.step + 1) * zoom;
    const block = cells(axis.block);
    const scope = cells(axis.block * axis.scope);
    const all = cells(axis.extent);
    const atBlock = Math.max(block, 6);
    const line = (horizontal ? y0 : x0) - (lane + 0.5) * LANE;
    const width = chipWidth(axis.name);
    const chip = horizontal
      ? { x: x0 - down.length * LANE - GAP - width, y: line - CHIP / 2, width, height: CHIP }
      : { x: line - Math.min(width, LANE - 1) / 2, y: y0 - GAP - CHIP, width: Math.min(width, LANE - 1), height: CHIP };
    return { axis, index, horizontal, line, start: horizontal ? x1 : y1, block, scope, all, at: { block: atBlock, scope: Math.max(scope, atBlock + APART) }, chip };
  };
  return [...across.map((axis, i) => one(axis, across.length - 1 - i, true)), ...down.map((axis, i) => one(axis, down.length - 1 - i, false))];
}

/** The handle at a point: {ruler, what: "block", "scope" or "axis"}, or null. */
export function grab(picture, x, y, touch) {
  const near = touch ? NEAR_TOUCH : NEAR;
  const all = rulers(picture);
  for (const ruler of all) {
    const { chip } = ruler;
    if (x >= chip.x - 2 && x <= chip.x + chip.width + 2 && y >= chip.y - 1 && y <= chip.y + chip.height + 1) return { ruler, what: "axis" };
  }
  for (const ruler of all) {
    const [along, beside] = ruler.horizontal ? [x, y] : [y, x];
    if (Math.abs(beside - ruler.line) > LANE / 2) continue;
    for (const what of ["block", "scope"]) if (Math.abs(along - ruler.start - ruler.at[what]) <= near) return { ruler, what };
  }
  return null;
}

/** The extent that a handle means after it was moved by some pixels. */
export function extent({ ruler: { axis, ...ruler }, what }, moved, zoom) {
  const cells = (ruler[what] + moved) / zoom;
  const weights = (cells - 1) / axis.step + 1;
  return what === "block" ? nearest(divisors(axis.extent), weights) : nearest(divisors(axis.extent / axis.block), weights / axis.block);
}

/** The axis whose name is closest to a point. */
export function target(picture, x, y) {
  const far = ({ chip }) => Math.hypot(chip.x + chip.width / 2 - x, chip.y + chip.height / 2 - y);
  return rulers(picture).reduce((best, ruler) => (best && far(best) <= far(ruler) ? best : ruler), null);
}

export const describe = ({ ruler: { axis }, what }) => (what === "axis"
  ? `Drag ${axis.name} to the place of another axis`
  : `Drag to change the ${what} along ${axis.name}, now ${axis[what]}`);

/** Draws the rulers; `held` is the handle under the pointer or being dragged. */
export function draw(picture, held) {
  const { context: c } = picture;
  const theme = colors();
  const same = (ruler, what) => held && held.what === what && held.ruler.index === ruler.index;
  c.save();
  for (const ruler of rulers(picture)) {
    const { axis, horizontal, start, line } = ruler;
    // In the coordinates of a horizontal ruler.
    c.save();
    if (!horizontal) c.transform(0, 1, 1, 0, 0, 0);
    c.fillStyle = theme.sheet;
    c.globalAlpha = 0.82;
    c.fillRect(start - 2, line - LANE / 2, ruler.at.scope + 12, LANE);
    c.globalAlpha = 1;
    c.strokeStyle = theme.line;
    c.lineWidth = 1;
    c.beginPath();
    c.moveTo(start, line);
    c.lineTo(start + ruler.all, line);
    c.stroke();
    // The scope as a line, the weights of the first block on it.
    c.strokeStyle = theme.ink;
    c.lineWidth = 2;
    c.beginPath();
    c.moveTo(start, line);
    c.lineTo(start + ruler.scope, line);
    c.stroke();
    c.fillStyle = theme.accent;
    const size = picture.zoom;
    if (axis.block <= MARKS && axis.step * size >= 3) {
      for (let i = 0; i < axis.block; i += 1) c.fillRect(start + i * axis.step * size, line - 3, Math.max(1.5, size - 1), 6);
    } else c.fillRect(start, line - 3, ruler.block, 6);
    const square = (what, side) => {
      c.lineWidth = same(ruler, what) ? 3 : 2;
      c.fillStyle = what === "block" ? theme.accent : theme.sheet;
      c.strokeStyle = what === "block" ? theme.sheet : theme.ink;
      c.beginPath();
      if (what === "block") c.arc(start + ruler.at.block, line, side / 2, 0, 7);
      else c.rect(start + ruler.at.scope - side / 2, line - side / 2, side, side);
      c.fill();
      c.stroke();
    };
    square("scope", same(ruler, "scope") ? 10 : 8);
    square("block", same(ruler, "block") ? 13 : 10);
    c.restore();
    chip(c, theme, ruler.chip, axis.name, same(ruler, "axis"));
  }
  c.restore();
}

function chip(c, theme, { x, y, width, height }, name, strong) {
  c.fillStyle = strong ? theme.accent : theme.soft;
  c.strokeStyle = theme.accent;
  c.lineWidth = 1;
  c.beginPath();
  c.roundRect(x, y, width, height, 4);
  c.fill();
  c.stroke();
  c.fillStyle = strong ? theme.onAccent : theme.accent;
  c.font = "600 11px ui-monospace,monospace";
  c.textAlign = "center";
  c.textBaseline = "middle";
  c.fillText(name.length > 6 ? `${name.slice(0, 5)}…` : name, x + width / 2, y + height / 2 + 0.5, width - 2);
  c.textAlign = "start";
}

/** A name that is being dragged, and the one whose place it takes. */
export function drawDragged(picture, { ruler, x, y }) {
  const to = target(picture, x, y);
  const theme = colors();
  const { context: c } = picture;
  if (to && to.index !== ruler.index) {
    c.strokeStyle = theme.accent;
    c.lineWidth = 3;
    c.strokeRect(to.chip.x - 3, to.chip.y - 3, to.chip.width + 6, to.chip.height + 6);
  }
  chip(c, theme, { ...ruler.chip, x: x - ruler.chip.width / 2, y: y - CHIP / 2 }, ruler.axis.name, true);
}
