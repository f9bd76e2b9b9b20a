// Filters, order, and unfolding what a link leads to. The page can be read without any of it.
(() => {
  "use strict";
  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // A link to a cell, or to a part of it, unfolds it.
  const unfold = () => {
    const target = location.hash && byId(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target.closest("[hidden]")) {
      byId("controls").reset();
      filter();
    }
    target.scrollIntoView();
    const focus = target.tagName === "DETAILS" ? target.querySelector("summary") : target;
    if (!focus.matches("summary, a, button")) focus.tabIndex = -1;
    focus.focus({ preventScroll: true });
  };
  addEventListener("hashchange", unfold);
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    // The same link again changes no hash, and must unfold all the same.
    if (link && link.getAttribute("href") === location.hash) setTimeout(unfold);
  });

  const controls = byId("controls");
  const cells = all("#cell-list > details");
  const names = all("table.matrix thead th[data-column]").map((th) => th.textContent);
  const filter = () => {
    const status = byId("by-status").value;
    const model = byId("by-model").value;
    const device = byId("by-device").value;
    const fits = (data) => !status || (status === "red" ? data.red === "true" : data.status === status);
    let shown = 0;
    for (const cell of cells) {
      const data = cell.dataset;
      const wanted = fits(data) && (!model || data.model === model) && (!device || data.device === device);
      cell.hidden = !wanted;
      shown += wanted ? 1 : 0;
    }
    for (const place of all("table.matrix [data-column]")) {
      place.hidden = Boolean(device) && names[place.dataset.column] !== device;
    }
    for (const group of all("table.matrix tbody")) {
      let rows = 0;
      for (const row of all("tr:not(.group)", group)) {
        let fields = 0;
        for (const field of all("a.field", row)) {
          const wanted = fits(field.dataset);
          field.classList.toggle("off", !wanted);
          fields += wanted && !field.parentElement.hidden ? 1 : 0;
        }
        row.hidden = fields === 0 && Boolean(status || device);
        rows += row.hidden ? 0 : 1;
      }
      group.hidden = rows === 0 || (Boolean(model) && group.dataset.model !== model);
    }
    byId("shown").textContent = `${shown} of ${cells.length} cells shown`;
  };
  const sort = () => {
    const key = byId("by-order").value;
    const list = byId("cell-list");
    list.append(...[...cells].sort((a, b) => a.dataset[key] - b.dataset[key]));
  };
  if (controls) {
    controls.hidden = false;
    controls.addEventListener("submit", (event) => event.preventDefault());
    controls.addEventListener("change", () => { filter(); sort(); });
    controls.addEventListener("reset", () => setTimeout(() => { filter(); sort(); }));
    filter();
  }
  unfold();
})();
