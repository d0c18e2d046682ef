// Visible texts whose contrast with their background is below 4.5 (3 for large text).
const channel = (x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
const read = (text) => {
  const found = text.match(/rgba?\(([^)]+)\)/);
  if (!found) return null;
  const parts = found[1].split(/[ ,/]+/).map(Number);
  return { rgb: parts.slice(0, 3), alpha: parts[3] ?? 1 };
};
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const color = read(getComputedStyle(e).backgroundColor);
    if (color && color.alpha > 0.99) return color.rgb;
  }
  return [255, 255, 255];
};
const poor = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const style = getComputedStyle(element);
  if (!own || element.offsetParent === null || style.visibility === "hidden" || element.closest(".sr, .skip, [hidden], :disabled, textarea, table.grid")) continue;
  const color = read(style.color);
  if (!color || color.alpha < 0.99 || style.opacity !== "1") continue;
  const [a, b] = [light(color.rgb), light(behind(element))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  const large = parseFloat(style.fontSize) >= 24;
  if (ratio < (large ? 3 : 4.5)) poor.push(`${ratio.toFixed(2)} ${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 40)}`);
}
return poor;
