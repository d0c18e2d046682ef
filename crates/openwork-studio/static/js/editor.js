// The editor of the spec: colors, completion, hints, the caret of an error, undo.

import { $, make } from "./dom.js";
import { set, state } from "./state.js";

const area = $("spec");
const colored = $("colored");
const list = $("completions");

let catalog = { clauses: [], presets: [] };
let symbols = ["M", "K"];
let error = null;

const WORDS = /#[^\n]*|->|\d+:\d+(?:x\d+)?(?:@\d+)?|\d+(?:\.\d+)?%?|[A-Za-z_][A-Za-z0-9_]*|[\s\S]/g;

function kind(word, rest) {
  if (word.startsWith("#")) return "cm";
  if (/^\d+:\d+/.test(word)) return "pre";
  if (/^\d/.test(word)) return "num";
  // `block(` at once is the preset, `block (` the clause.
  const preset = presetNames().has(word);
  if (preset && (rest.startsWith("(") || !clauseNames().has(word))) return "pre";
  if (clauseNames().has(word) || word === "o" || word === "->") return "kw";
  if (/^[A-Za-z_]/.test(word)) return "nm";
  return null;
}

const clauseNames = () => new Set(catalog.clauses.map((clause) => clause.name));
const presetNames = () => new Set(catalog.presets.map((preset) => preset.name.split("(")[0]).filter((name) => /^[a-z]/i.test(name) && !name.startsWith("N:")));

/** Colors the text, and marks the character that an error points at. */
function paint() {
  const text = area.value;
  const parts = [];
  let at = 0;
  for (const [word] of text.matchAll(WORDS)) {
    const end = at + word.length;
    const name = kind(word, text.slice(end));
    if (error !== null && error >= at && error < end) {
      const inside = error - at;
      const whole = /^[A-Za-z_0-9]/.test(word) ? [0, word.length] : [inside, inside + 1];
      parts.push(make("span", { class: `${name ?? ""} err` }, word.slice(...whole)));
    } else {
      parts.push(name ? make("span", { class: name }, word) : word);
    }
    at = end;
  }
  if (error !== null && error >= text.length) parts.push(make("span", { class: "err" }, "\u00a0"));
  // A last empty line needs a character to have a height.
  colored.replaceChildren(...parts, "\u200b");
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}

// Undo: the texts before, with the caret.
const past = [];
const future = [];
let lastPush = 0;

function remember(before, joined) {
  const now = performance.now();
  if (joined && now - lastPush < 500 && past.length) return;
  past.push(before);
  if (past.length > 500) past.shift();
  future.length = 0;
  lastPush = joined ? now : 0;
  buttons();
}

function buttons() {
  $("undo").disabled = !past.length;
  $("redo").disabled = !future.length;
}

function travel(from, to) {
  const found = from.pop();
  if (!found) return;
  to.push({ text: area.value, shape: state.shape, at: area.selectionStart });
  area.value = found.text;
  area.setSelectionRange(found.at, found.at);
  lastPush = 0;
  buttons();
  changed(found.shape);
}

let snapshot = { text: "", shape: "", at: 0 };
const keep = () => { snapshot = { text: area.value, shape: state.shape, at: area.selectionStart }; };

function changed(shape) {
  error = null;
  // First, because this asks for the picture.
  set(shape === undefined ? { spec: area.value } : { spec: area.value, shape });
  keep();
  paint();
}

/** Replaces the whole text; undo brings back the old one, or the one before a `joined` change. */
export function replace(text, shape, joined = false) {
  if (text === area.value && (shape === undefined || shape === state.shape)) return;
  keep();
  if (!joined) remember(snapshot, false);
  area.value = text;
  close();
  changed(shape);
}

/** The state was changed elsewhere, such as by the address. */
export function follow() {
  if (area.value === state.spec) return;
  area.value = state.spec;
  error = null;
  paint();
  keep();
}

/** Shows or clears an error: `at` is the character it points at. */
export function mark(found) {
  if (!found && error === null && area.getAttribute("aria-invalid") === "false") return;
  error = found && found.at !== null && found.at !== undefined ? found.at : null;
  $("editor").classList.toggle("wrong", Boolean(found));
  area.setAttribute("aria-invalid", String(Boolean(found)));
  paint();
}

export function learn(names) {
  symbols = names;
}

// Completion.
let shown = [];
let chosen = 0;
let range = [0, 0];

function candidates() {
  const at = area.selectionStart;
  const before = area.value.slice(0, at);
  const word = before.match(/[A-Za-z0-9_:@.]*$/)[0];
  range = [at - word.length, at];
  const start = /(^|\bthen\s*\(?|\belse\s*\(?|:)\s*$/.test(before.slice(0, at - word.length));
  const after = /(block|scope|keep|pad|view|in|on|perm)\s*[^a-z]*$/.test(before.slice(0, at - word.length)) && /[(,*/]\s*$/.test(before.slice(0, at - word.length));
  const all = [];
  if (after) for (const name of symbols) all.push({ text: name, hint: "symbol" });
  if (start) for (const preset of catalog.presets) all.push({ text: preset.spec, hint: preset.summary });
  if (!after) for (const clause of catalog.clauses) all.push({ text: clause.name, hint: clause.hint, more: " " });
  if (!start && !after) for (const name of symbols) all.push({ text: name, hint: "symbol" });
  const key = word.toLowerCase();
  const fits = all.filter((one) => one.text.toLowerCase().startsWith(key) && one.text !== word);
  return { fits, word };
}

function open(force) {
  const { fits, word } = candidates();
  shown = fits.slice(0, 12);
  if (!shown.length || (!force && !/^[A-Za-z]/.test(word))) return close();
  chosen = 0;
  list.replaceChildren(...shown.map((one, i) => make("li", {
    id: `completion-${i}`, role: "option",
    onpointerdown: (event) => { event.preventDefault(); accept(i); },
  }, make("b", {}, one.text), make("span", {}, one.hint))));
  list.hidden = false;
  area.setAttribute("aria-expanded", "true");
  choose(0);
}

function choose(i) {
  chosen = (i + shown.length) % shown.length;
  [...list.children].forEach((item, j) => item.setAttribute("aria-selected", String(j === chosen)));
  list.children[chosen].scrollIntoView({ block: "nearest" });
  area.setAttribute("aria-activedescendant", `completion-${chosen}`);
}

function close() {
  list.hidden = true;
  shown = [];
  area.setAttribute("aria-expanded", "false");
  area.removeAttribute("aria-activedescendant");
}

function accept(i) {
  const one = shown[i];
  keep();
  remember(snapshot, false);
  const rest = area.value.slice(range[1]);
  const text = one.text + (one.more && !rest.startsWith(" ") ? one.more : "");
  area.value = area.value.slice(0, range[0]) + text + rest;
  const at = range[0] + text.length;
  area.setSelectionRange(at, at);
  close();
  area.focus();
  changed();
  hint();
}

/** What the clause under the caret means. */
function hint() {
  const before = area.value.slice(0, area.selectionStart).replace(/#[^\n]*/g, "");
  const rest = area.value.slice(area.selectionStart).match(/^[A-Za-z0-9_:@]*/)[0];
  const words = [...(before + rest + area.value.slice(area.selectionStart + rest.length, area.selectionStart + rest.length + 1))
    .matchAll(/(\d+:\d+[x@\d]*|[A-Za-z_][A-Za-z0-9_]*)(\(?)/g)].reverse();
  const box = $("hint");
  for (const [, word, call] of words) {
    // `block(` at once is the preset, `block (` the clause.
    const named = call && presetNames().has(word);
    const clause = named ? undefined : catalog.clauses.find((one) => one.name === word);
    const preset = /^\d+:\d+/.test(word)
      ? catalog.presets.find((one) => one.name === (word.includes("@") ? "N:M@D" : word.includes("x") ? "N:MxB" : "N:M"))
      : catalog.presets.find((one) => one.name.split("(")[0] === word && !clause);
    const found = clause ? [clause.name, clause.hint, clause.example] : preset ? [word, preset.summary, null] : null;
    if (found) {
      box.replaceChildren(make("b", {}, found[0]), ` ${found[1]}`, found[2] ? make("span", {}, " · ", make("code", {}, found[2])) : "");
      return;
    }
  }
  box.replaceChildren("Ctrl+Space completes clauses, presets and symbols.");
}

export function start(found) {
  catalog = found;
  area.value = state.spec;
  paint();
  keep();
  buttons();
  hint();
}

area.addEventListener("beforeinput", keep);
area.addEventListener("input", () => {
  remember(snapshot, true);
  changed();
  open(false);
  hint();
});
area.addEventListener("keydown", (event) => {
  const control = event.ctrlKey || event.metaKey;
  const key = event.key.toLowerCase();
  if (control && key === "z") {
    event.preventDefault();
    if (event.shiftKey) travel(future, past); else travel(past, future);
  } else if (control && key === "y") {
    event.preventDefault();
    travel(future, past);
  } else if (control && event.code === "Space") {
    event.preventDefault();
    open(true);
  } else if (!list.hidden) {
    if (event.key === "ArrowDown") { event.preventDefault(); choose(chosen + 1); }
    else if (event.key === "ArrowUp") { event.preventDefault(); choose(chosen - 1); }
    else if (event.key === "Enter" || event.key === "Tab") { event.preventDefault(); accept(chosen); }
    else if (event.key === "Escape") { event.preventDefault(); close(); }
  }
});
area.addEventListener("blur", close);
for (const event of ["click", "keyup"]) area.addEventListener(event, hint);
addEventListener("resize", paint);
$("undo").addEventListener("click", () => travel(past, future));
$("redo").addEventListener("click", () => travel(future, past));
