// Share: the address, text in several languages, SVG, PNG, a page.

import { post, postBlob } from "./api.js";
import { $, copy, make, save, toast } from "./dom.js";
import { address, design, state } from "./state.js";

const KINDS = [["text", "Spec"], ["command", "Command"], ["recipe", "Recipe"], ["python", "Python"], ["rust", "Rust"]];

const fileName = (end) => `${state.spec.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 40) || "pattern"}.${end}`;

export function start(pictures) {
  $("share-open").addEventListener("click", async () => {
    let found;
    try {
      found = await post("/api/share", design());
    } catch (error) {
      return toast(error.message);
    }
    const item = (name, text) => make("div", { class: "share-item", "data-kind": name }, make("span", {}, name), make("pre", { tabindex: "0" }, text),
      make("button", { "aria-label": `Copy ${name}`, onclick: () => copy(text, name.toLowerCase()) }, "Copy"));
    $("share-items").replaceChildren(item("Link", address()), ...KINDS.map(([key, name]) => item(name, found[key])));
    $("share").showModal();
  });
  $("copy-spec").addEventListener("click", () => copy(state.spec, "the spec"));
  const file = (id, work) => $(id).addEventListener("click", () => work().catch((error) => toast(error.message)));
  file("save-svg", async () => save(await postBlob("/api/svg", design()), fileName("svg")));
  file("save-page", async () => {
    const page = await postBlob("/api/export", design());
    save(new Blob([page], { type: "text/html" }), fileName("html"));
  });
  file("save-png", async () => {
    const all = pictures().map((picture) => picture.drawn());
    const width = all.reduce((sum, canvas) => sum + canvas.width + 16, -16);
    const sheet = new OffscreenCanvas(width, Math.max(...all.map((canvas) => canvas.height)));
    let x = 0;
    for (const canvas of all) {
      sheet.getContext("2d").drawImage(canvas, x, 0);
      x += canvas.width + 16;
    }
    save(await sheet.convertToBlob({ type: "image/png" }), fileName("png"));
  });
}
