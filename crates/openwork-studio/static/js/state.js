// The state of the page, and the address that holds it.

const DEFAULT = { tab: "design", spec: "2:4", shape: "32,64", seed: 1, base: "2:4", draw: "mask" };

export const state = { ...DEFAULT, ...read() };
const listeners = new Set();

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = {};
  for (const key of ["tab", "spec", "shape", "base", "draw", "steps", "patterns", "methods", "tensor"]) {
    if (given.has(key)) found[key] = given.get(key);
  }
  if (/^\d{1,15}$/.test(given.get("seed") ?? "")) found.seed = Number(given.get("seed"));
  return found;
}

/** Changes some of the state, writes the address and tells the listeners what changed. */
export function set(change) {
  const changed = Object.keys(change).filter((key) => state[key] !== change[key]);
  if (!changed.length) return;
  Object.assign(state, change);
  write();
  for (const listener of listeners) listener(changed);
}

export const onChange = (listener) => listeners.add(listener);

/** The address of the current state. */
export function address() {
  const shown = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    const always = key === "spec" || key === "shape";
    if (value !== undefined && value !== null && (always || value !== DEFAULT[key])) shown.set(key, value);
  }
  // Readable: these need no escapes in a fragment. `+`, `&`, `#`, `%` and `=` keep theirs.
  const text = shown.toString().replace(/%(3A|2C|28|29|40|2F|3B|7E|7C)/g, (code) => decodeURIComponent(code));
  return `${location.origin}${location.pathname}#${text}`;
}

let writing = 0;
function write() {
  clearTimeout(writing);
  // Browsers limit how often the address may change.
  writing = setTimeout(() => history.replaceState(null, "", address()), 150);
}

/** The shapes of all tensors: `16,32`, or `q=16,32; o=32,16`. */
export const shapes = (text = state.shape) => text.split(";").map((one) => one.trim()).filter(Boolean);

/** What identifies a design for the server. */
export const design = () => ({ spec: state.spec, shapes: shapes(), seed: state.seed });

addEventListener("hashchange", () => set({ ...DEFAULT, ...read() }));
