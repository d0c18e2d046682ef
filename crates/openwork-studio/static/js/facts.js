// The cards beside the picture: density, storage, kernels, hardware, details.

import { $, make, number, percent, plural } from "./dom.js";
import { set, state } from "./state.js";

/** Facts of a design and, where there is one, of the pattern it is compared with. */
export function show(found, base) {
  summary(found, base);
  storage(found, base);
  machines(found);
  details(found);
}

function summary({ facts }, base) {
  const other = base && base.facts.spec !== facts.spec ? base.facts : null;
  const exact = facts.density_exact ? ` = ${facts.density_exact}` : "";
  const whole = Math.abs(facts.tensor_density - facts.density) > 1e-9
    ? `; ${percent(facts.tensor_density, 2)} of all weights stay` : "";
  $("summary").replaceChildren(
    make("div", { class: "big" }, make("b", {}, percent(facts.density, 2)), make("span", {}, `dense${exact}`)),
    make("p", { class: "sub" }, facts.levels
      ? `${plural(facts.levels.length, "level")}${whole}`
      : `${facts.keep} of ${plural(facts.blocks_per_scope, "block")} in each of ${plural(facts.num_scopes, "scope")}${whole}`),
    ...(other ? [make("p", { class: "sub" }, `${other.spec}: ${percent(other.density, 2)} dense`)] : []),
  );
}

function bar(value, meta, most, label, base) {
  const values = make("i", { class: "v" });
  values.style.width = `${(100 * value) / most}%`;
  const index = make("i", { class: "m" });
  index.style.width = `${(100 * meta) / most}%`;
  return make("div", { class: `row${base ? " base" : ""}` },
    make("span", {}, label), make("div", { class: "stack", role: "img", "aria-label": `${number(value)} bits of values and ${number(meta)} bits of index per weight` }, values, index),
    make("span", {}, `${number(value + meta, 3)} bits`));
}

/** Bits of values and of the index, per weight of the dense tensor. */
function bits(facts, i) {
  const { value_bits: width, bits_per_weight: all } = facts.facts.storage[i];
  const value = width * facts.density;
  return [Math.min(value, all), Math.max(0, all - value)];
}

const bitsOf = (facts) => { const bits_ = number(facts.facts.index_bits_per_kept, 4); return `${bits_} bit${bits_ === "1" ? "" : "s"}`; };

function storage(found, base) {
  const { facts, index } = found;
  const other = base && base.facts.spec !== facts.spec ? base : null;
  const rows = facts.facts.storage.flatMap((storage, i) => {
    const most = storage.value_bits;
    const own = bar(...bits(facts, i), most, `${most}-bit`, false);
    return other ? [own, bar(...bits(other.facts, i), most, other.facts.spec, true)] : [own];
  });
  const input = make("input", {
    value: state.base, "aria-label": "Compare with this pattern", spellcheck: "false",
    onchange: () => set({ base: input.value.trim() }),
  });
  const smaller = () => {
    const [a, b] = [facts, other.facts].map((one) => one.facts.storage[0].bits_per_weight);
    if (Math.abs(a - b) < 1e-9) return `As large as ${other.facts.spec}.`;
    return `${percent(Math.abs(1 - a / b), 2)} ${a < b ? "smaller" : "larger"} than ${other.facts.spec} at 16 bits: ${bitsOf(facts)} of index per kept weight against ${bitsOf(other.facts)}.`;
  };
  $("storage").replaceChildren(
    make("h2", {}, "Bits per weight"),
    make("div", { class: "keys" }, make("span", {}, make("i", { class: "v" }), "values"), make("span", {}, make("i", { class: "m" }), "index of kept blocks")),
    make("div", { class: "bits" }, ...rows),
    make("p", { class: "why", id: "why" }, index.why[0].toUpperCase() + index.why.slice(1) + "."),
    ...(other ? [make("p", { class: "sub", id: "smaller" }, smaller())] : []),
    make("label", { class: "baseline" }, "Compare with", input),
  );
}

function machine(name, mark, text) {
  return make("div", { class: "machine" }, make("span", { class: "mark" }, make("span", { class: mark[0] }, mark[1]), make("b", {}, name)), make("p", {}, text));
}

function machines({ facts, tensor_cores: cores }) {
  const marks = { true: ["yes", "✓"], false: ["no", "✕"], null: ["na", "–"] };
  const packed = [...new Map((facts.facts.packed ?? []).filter(Boolean).map((one) => [one.format, one])).values()];
  const formats = packed.map((one) => machine(`Packed format ${one.format}`, one.slow ? ["na", "○"] : ["yes", "✓"], one.slow ?? `kernels for ${one.kernels}`));
  if (!formats.length) formats.push(machine("Packed format", ["na", "–"], "there is no packed format for this spec"));
  $("machines").replaceChildren(
    make("h2", {}, "What runs it"),
    ...formats,
    machine("Sparse tensor cores (2:4)", marks[cores.accepted], cores.why),
    machine("Memory", ["na", "≡"], facts.facts.memory.join("; ")),
  );
}

function details({ facts, sheet, panels }) {
  const tuple = (list) => `(${list.join(",")})`;
  const rows = [];
  for (const panel of panels) {
    if (panels.length > 1) rows.push(["", panel.title]);
    rows.push(["view", panel.view], ["axes", panel.axes.map((axis) => axis.name).join(" ")], ["block", tuple(panel.axes.map((axis) => axis.block))]);
  }
  rows.push(["blocks", `${facts.num_blocks.toLocaleString("en-US")} of ${Array.isArray(facts.block_size) ? facts.block_size.join(", ") : facts.block_size} weights`]);
  rows.push(["scopes", `${facts.num_scopes.toLocaleString("en-US")}, grid ${tuple(facts.scope_grid)}`]);
  rows.push(["index", `${facts.facts.index_bits} bits per scope, lower bound ${facts.facts.least_index_bits}`]);
  const densities = facts.facts.densities;
  rows.push(["densities", Array.isArray(densities) ? densities.map((d) => percent(d, 2)).join(", ") : densities]);
  rows.push(["expanded", facts.expanded]);
  $("details").replaceChildren(
    make("h2", {}, "Details"),
    make("dl", { class: "facts" }, rows.flatMap(([name, text]) => [make("dt", {}, name), make("dd", { class: "mono" }, text)])),
    make("details", {}, make("summary", {}, "As `openwork show` prints it"), make("pre", {}, sheet)),
  );
}
