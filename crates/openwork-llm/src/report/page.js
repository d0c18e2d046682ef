"use strict";
(() => {
  // Light, dark, or the system's theme; remembered, or given as #light or #dark.
  const root = document.documentElement, button = document.getElementById("theme");
  const themes = ["auto", "light", "dark"];
  const kept = () => { try { return localStorage.getItem("openwork-theme"); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem("openwork-theme", theme); } catch { /* not allowed */ } };
  const show = (theme) => {
    theme === "auto" ? delete root.dataset.theme : root.dataset.theme = theme;
    if (button) button.textContent = "Theme: " + theme;
    return theme;
  };
  const asked = [location.hash.slice(1), kept()].find((theme) => themes.includes(theme));
  let theme = show(asked || "auto");
  if (button) {
    button.hidden = false;
    button.onclick = () => keep(theme = show(themes[(themes.indexOf(theme) + 1) % themes.length]));
  }

  // A hint above tables that are wider than the screen.
  const hint = () => {
    for (const one of document.querySelectorAll(".scroll")) {
      one.toggleAttribute("data-more", one.scrollWidth > one.clientWidth + 1);
    }
  };
  hint();
  addEventListener("resize", hint);
  addEventListener("toggle", hint, true);

  // One tip for the whole page, for the element under the pointer or chosen with the arrow keys.
  const tip = document.getElementById("tip");
  let on = null;
  const place = (x, y) => {
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, Math.min(y + 14, innerHeight - height - 4)) + "px";
  };
  const choose = (element) => {
    if (on) on.classList.remove("on");
    on = element;
    tip.hidden = !on;
    if (on) { on.classList.add("on"); tip.textContent = on.dataset.tip; }
  };
  const pointed = (event) => {
    choose(event.target.closest ? event.target.closest("[data-tip]") : null);
    if (on) place(event.clientX, event.clientY);
  };
  addEventListener("pointermove", pointed);
  addEventListener("pointerdown", pointed);
  addEventListener("scroll", () => choose(null), { passive: true });
  addEventListener("focusout", () => choose(null));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") return choose(null);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const chart = event.target.closest && event.target.closest("figure svg");
    if (!step || !chart) return;
    const all = [...chart.querySelectorAll("[data-tip]")];
    if (!all.length) return;
    event.preventDefault();
    const at = all.indexOf(on);
    choose(all[at < 0 ? (step > 0 ? 0 : all.length - 1) : (at + step + all.length) % all.length]);
    const box = on.getBoundingClientRect();
    place(box.left + box.width / 2, box.top + box.height / 2);
  });
})();
