// Small helpers for elements. Text is always set as text, never as markup.

export const $ = (id) => document.getElementById(id);

/** An element with attributes, listeners (`onclick`) and children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

let hideToast = 0;
export function toast(text) {
  const box = $("toast");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(hideToast);
  hideToast = setTimeout(() => { box.hidden = true; }, 2200);
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without permission, the old way.
    const area = make("textarea", { class: "sr" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast(`Copied ${what}`);
}

export function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** A number with at most `digits` decimals. */
export const number = (x, digits = 3) => String(+x.toFixed(digits));
export const percent = (x, digits = 1) => `${number(100 * x, digits)}%`;

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB"];
  let unit = 0;
  while (count >= 1000 && unit < 3) { count /= 1000; unit += 1; }
  return `${number(count, unit ? (count < 10 ? 2 : 1) : 0)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds < 1e-3) return `${number(seconds * 1e6, 1)} µs`;
  if (seconds < 1) return `${number(seconds * 1e3, 1)} ms`;
  if (seconds < 120) return `${number(seconds, 1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

export const plural = (n, what) => `${n.toLocaleString("en-US")} ${what}${n === 1 ? "" : "s"}`;
