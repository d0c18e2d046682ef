// Trials: patterns and methods on a real matrix, side by side.

import { get, post, postBytes } from "./api.js";
import { $, bytes, duration, make, number, percent, toast } from "./dom.js";
import { set, state } from "./state.js";
import { colors } from "./tiles.js";

let sources = null;
let job = null;
let catalog = null;

const patterns = () => [...$("patterns").querySelectorAll("input")].map((input) => input.value.trim()).filter(Boolean);
const methods = () => [...$("methods").querySelectorAll("input:checked")].map((input) => input.value);

export function start(found) {
  catalog = found;
  const chosen = state.methods?.split("|") ?? ["magnitude", "sparsegpt"];
  const names = found.methods.map((method) => [method.name, method.summary]);
  names.push([`${found.default_method}+swap`, "the default method, its mask improved by swaps"]);
  $("methods").replaceChildren(...names.map(([name, summary]) => {
    const box = make("input", { type: "checkbox", value: name, onchange: limit });
    box.checked = chosen.includes(name);
    return make("label", { class: "chip", title: summary }, box, name);
  }));
  if (state.tab === "trial") enter();
}

function limit(event) {
  if (methods().length > 3) {
    event.target.checked = false;
    toast("At most three methods");
  }
  keep();
}

const keep = () => set({ patterns: patterns().join("|"), methods: methods().join("|") });

function row(text) {
  const input = make("input", { value: text, spellcheck: "false", "aria-label": "Pattern to try", placeholder: "another pattern", onchange: keep });
  const remove = make("button", { class: "quiet icon", "aria-label": "Remove this pattern", onclick: () => { input.closest(".one").remove(); fill(); keep(); } }, "✕");
  return make("div", { class: "one" }, input, remove);
}

/** Two to four rows. */
function fill() {
  const box = $("patterns");
  while (box.children.length < 2) box.append(row(""));
  $("add-pattern")?.remove();
  if (box.children.length < 4) box.append(make("button", { id: "add-pattern", class: "quiet", onclick: () => { $("add-pattern").before(row("")); fill(); } }, "Add a pattern"));
}

/** The tab is shown: the current spec is one of the patterns. */
export async function enter() {
  if (!catalog) return;
  const box = $("patterns");
  if (!box.children.length) {
    const first = state.patterns?.split("|") ?? [...new Set(["2:4", state.spec])];
    box.replaceChildren(...first.slice(0, 4).map(row));
    fill();
  } else if (!patterns().includes(state.spec)) {
    const free = [...box.querySelectorAll("input")].find((input) => !input.value.trim());
    if (free) free.value = state.spec;
    else if (box.querySelectorAll("input").length < 4) { ($("add-pattern") ?? box.lastChild).before(row(state.spec)); fill(); }
  }
  if (sources) return;
  try {
    sources = (await get("/api/sources")).sources;
  } catch (error) {
    return toast(error.message);
  }
  $("source").replaceChildren(...sources.map((source, i) => make("option", { value: String(i) }, source.name)));
  const [source, tensor] = (state.tensor ?? "").split("/");
  const known = sources.findIndex((one) => one.name === source);
  if (known >= 0) $("source").value = String(known);
  tensors(tensor);
}

function tensors(name) {
  const source = sources[Number($("source").value)];
  $("tensor").replaceChildren(...source.tensors.map((tensor, i) => make("option", { value: String(i) },
    `${tensor.name}  ${tensor.shape.join(" × ")}${tensor.has_inputs ? "" : "  (no inputs)"}`)));
  const found = source.tensors.findIndex((tensor) => tensor.name === name);
  if (found >= 0) $("tensor").value = String(found);
}

$("source").addEventListener("change", () => tensors());
for (const id of ["source", "tensor"]) $(id).addEventListener("change", () => {
  const source = sources[Number($("source").value)];
  set({ tensor: `${source.name}/${source.tensors[Number($("tensor").value)].name}` });
});

$("trial-run").addEventListener("click", async () => {
  keep();
  $("trial-verdict").replaceChildren();
  try {
    const started = await post("/api/trial", {
      source: Number($("source").value), tensor: Number($("tensor").value), patterns: patterns(), methods: methods(),
    });
    job = started.job;
    $("trial-results").replaceChildren();
    drawn = 0;
    tried = new Set(patterns()).size;
    running(true);
    follow(job);
  } catch (error) {
    $("trial-doing").textContent = error.message;
  }
});

$("trial-cancel").addEventListener("click", () => post("/api/trial/cancel", { job }).catch(() => null));

function running(on) {
  $("trial-cancel").hidden = !on;
  $("trial-progress").hidden = !on;
  $("trial-run").disabled = on;
}

let drawn = 0;
let tried = 2;
async function follow(id) {
  while (job === id) {
    let status;
    try {
      status = await post("/api/trial/status", { job: id });
    } catch (error) {
      running(false);
      $("trial-doing").textContent = error.message;
      return;
    }
    $("trial-progress").value = status.share;
    $("trial-doing").textContent = status.ended ? (status.error ?? "") : status.doing;
    const columns = [...new Set(status.results.map((one) => one.pattern))];
    $("trial-results").style.setProperty("--cols", String(Math.max(2, tried)));
    for (; drawn < status.results.length; drawn += 1) {
      const element = card(id, drawn, status);
      // A column for each pattern, a row for each method.
      element.style.setProperty("--col", String(columns.indexOf(status.results[drawn].pattern) + 1));
      $("trial-results").append(element);
    }
    if (status.ended) {
      running(false);
      verdict(status.results);
      return;
    }
    await new Promise((later) => setTimeout(later, 150));
  }
}

const best = (results) => results.filter((one) => one.error !== undefined).reduce((a, b) => (a && a.error <= b.error ? a : b), null);

function verdict(results) {
  const done = results.filter((one) => one.error !== undefined);
  const top = best(done);
  if (!top) return;
  [...$("trial-results").children].forEach((element, i) => {
    const on = results[i] === top && done.length > 1;
    element.classList.toggle("best", on);
    element.querySelector(".tag").textContent = on ? "smallest error" : "";
  });
  // The best method of each pattern, compared.
  const names = [...new Set(done.map((one) => one.pattern))];
  const each = names.map((name) => best(done.filter((one) => one.pattern === name)));
  const lines = [];
  if (each.length > 1) {
    const [first, ...rest] = each;
    for (const other of rest) {
      const ratio = other.error / first.error;
      const size = first.packed?.bytes && other.packed?.bytes ? other.packed.bytes / first.packed.bytes : null;
      lines.push(make("p", {},
        make("code", {}, other.pattern), ` has ${number(ratio, 2)}× the error of `, make("code", {}, first.pattern),
        ` (${percent(other.error, 2)} against ${percent(first.error, 2)})`,
        size ? `, and ${Math.abs(size - 1) < 0.0005 ? "the same packed bytes" : `${percent(Math.abs(1 - size), 1)} ${size < 1 ? "fewer" : "more"} packed bytes`}.` : "."));
    }
  }
  $("trial-verdict").replaceChildren(...lines);
}

function card(id, index, status) {
  const one = status.results[index];
  const head = make("header", {}, make("code", {}, one.pattern), make("span", { class: "tag" }));
  const box = make("article", { class: "card result", "data-pattern": one.pattern, "data-method": one.method }, head);
  if (one.failed) {
    box.append(make("p", {}, `by ${one.method}`), make("p", { class: "failed" }, one.failed));
    return box;
  }
  const meter = make("i");
  meter.style.width = `${Math.min(100, 100 * one.error)}%`;
  const facts = [
    ["error", make("b", { class: "error" }, percent(one.error, 2)), one.blind ? " of the weights (no inputs)" : " of the outputs"],
    ["energy kept", percent(one.energy, 1)],
    ["density", percent(one.density, 2)],
    ["pruned in", duration(one.seconds)],
  ];
  const packed = one.packed ?? {};
  if (packed.bytes) {
    facts.push(["packed", `${bytes(packed.bytes)}, ${percent(packed.bytes / packed.dense_bytes, 1)} of dense (${packed.format})`]);
    facts.push(["of that", `${bytes(packed.value_bytes)} values, ${bytes(packed.index_bytes)} index`]);
    if (packed.seconds) facts.push(["matvec", `${duration(packed.seconds)}, ${number(packed.dense_seconds / packed.seconds, 2)}× dense on this machine`]);
  } else if (packed.why) facts.push(["packed", packed.why]);
  box.append(
    make("p", {}, `by `, make("code", {}, one.method)),
    make("div", { class: "meter", role: "img", "aria-label": `error ${percent(one.error, 2)}` }, meter),
    make("dl", { class: "facts" }, facts.flatMap(([name, ...text]) => [make("dt", {}, name), make("dd", {}, ...text)])),
  );
  const mask = make("canvas", { role: "img" });
  const range = `${percent(Math.min(...one.rows.errors), 1)} to ${percent(Math.max(...one.rows.errors), 1)}`;
  const rows = one.rows.group > 1 ? `every ${one.rows.group} rows` : "every row";
  const heat = make("canvas", { class: "heat", role: "img", title: `Error of ${rows}: ${range}`, "aria-label": `Error of ${rows}, from top to bottom: ${range}` });
  const caption = make("span");
  const whole = make("button", { class: "quiet small" });
  let all = false;
  const show = () => {
    const part = drawMask(mask, id, index, status.shape, all);
    const what = all || part.whole ? "The whole mask" : `The first ${part.rows} × ${part.cols} weights of the mask`;
    mask.setAttribute("aria-label", `${what} of ${one.pattern} by ${one.method}`);
    caption.textContent = `${what}; right, the error of ${rows}: ${range}`;
    whole.textContent = all ? "Show its corner" : "Show all of it";
    whole.hidden = part.whole;
  };
  whole.addEventListener("click", () => { all = !all; show(); });
  box.append(make("figure", {}, make("div", { class: "pictures2" }, mask, heat), make("figcaption", {}, caption, " ", whole)));
  drawHeat(heat, one.rows.errors);
  show();
  for (const note of one.notes ?? []) box.append(make("p", { class: "sub" }, note));
  return box;
}

function drawHeat(canvas, errors) {
  canvas.width = 1;
  canvas.height = errors.length;
  const most = Math.max(...errors, 1e-12);
  const context = canvas.getContext("2d");
  errors.forEach((error, i) => {
    const share = error / most;
    context.fillStyle = `hsl(${Math.round(55 - 45 * share)} 85% ${Math.round(92 - 52 * share)}%)`;
    context.fillRect(0, i, 1, 1);
  });
}

/** Weight by weight the corner of a mask, or all of it, reduced. What is drawn, at once. */
function drawMask(canvas, id, index, [rows, cols], all) {
  const CORNER = [48, 96];
  const step = all ? 2 ** Math.max(0, Math.ceil(Math.log2(Math.sqrt((rows * cols) / 131072)))) : 1;
  const height = Math.min(Math.ceil(rows / step), all ? Infinity : CORNER[0]);
  const width = Math.min(Math.ceil(cols / step), all ? Infinity : CORNER[1]);
  postBytes("/api/trial/mask", { job: id, result: index, step, rows: height, cols: width }).then((buffer) => {
    const shares = new Uint8Array(buffer);
    const { blocks, cut } = colors();
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    shares.forEach((share, i) => {
      for (let k = 0; k < 3; k += 1) image.data[4 * i + k] = (blocks[0][k] * share + cut[k] * (255 - share)) / 255;
      image.data[4 * i + 3] = 255;
    });
    context.putImageData(image, 0, 0);
  }, () => null);
  return { rows: height, cols: width, whole: rows <= CORNER[0] && cols <= CORNER[1] };
}
