"use strict";
// The page is complete without this; it adds sorting, zooming, finding and colours.
const all = (query, root = document) => [...root.querySelectorAll(query)];
const words = /(\/\/[^\n]*|\/\*[^]*?\*\/|^[ \t]*#[^\n]*)|("(?:[^"\\\n]|\\.)*")|\b(auto|bool|break|char|const|continue|do|double|else|extern|float|for|if|int|long|restrict|return|short|signed|sizeof|static|struct|template|typedef|unsigned|void|while|__global__|__device__|__shared__|__launch_bounds__|[iuf](?:8|16|32|64)(?:x\d+)?)\b|\b(0x[\da-fA-F]+|\d+(?:\.\d*)?(?:e[-+]?\d+)?[a-zA-Z]*)\b|\b(tm_\w+)/gm;
const kinds = ["c", "n", "k", "n", "f"];
function colour(code) {
  const text = code.textContent, made = document.createDocumentFragment();
  let at = 0;
  for (const found of text.matchAll(words)) {
    const span = document.createElement("span");
    span.className = kinds[found.slice(1).findIndex((part) => part !== undefined)];
    span.textContent = found[0];
    made.append(text.slice(at, found.index), span);
    at = found.index + found[0].length;
  }
  made.append(text.slice(at));
  code.replaceChildren(made);
}
for (const block of all("details.text")) {
  const colours = () => { if (block.open) colour(block.querySelector(".source code")); };
  block.addEventListener("toggle", colours, { once: true });
  colours();
}
for (const frame of all(".beside")) {
  const source = frame.querySelector(".source"), rows = [];
  for (const run of (source.dataset.rows || "").split(" ")) {
    const [row, count] = run.split("x");
    for (let i = 0; i < Number(count); i++) rows.push(row);
  }
  const mark = (box) => {
    for (const old of all(".mark", source)) old.remove();
    if (!box || !rows.length) return;
    const code = source.querySelector("code"), high = code.getBoundingClientRect().height / rows.length;
    rows.forEach((row, line) => {
      if (row !== box.dataset.row) return;
      const band = document.createElement("div");
      band.className = "mark";
      band.style.top = `${code.offsetTop + line * high}px`;
      band.style.height = `${high}px`;
      source.append(band);
    });
  };
  for (const box of all(".box", frame)) {
    for (const event of ["mouseenter", "focus"]) box.addEventListener(event, () => mark(box));
    for (const event of ["mouseleave", "blur"]) box.addEventListener(event, () => mark(null));
  }
}
function show() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  target.classList.remove("hidden");
  target.scrollIntoView({ block: "start" });
}
addEventListener("hashchange", show);
for (const link of all('a[href^="#"]'))
  link.addEventListener("click", () => { if (link.getAttribute("href") === location.hash) show(); });
for (const button of all("[data-zoom]")) {
  const frame = button.closest("details").querySelector(".picture"), svg = frame.querySelector("svg");
  const box = svg.viewBox.baseVal;
  button.addEventListener("click", () => {
    const by = Number(button.dataset.zoom), was = svg.getBoundingClientRect().width;
    const whole = Math.min(frame.clientWidth / box.width, frame.clientHeight / box.height) * box.width;
    const width = by ? Math.min(4 * box.width, Math.max(60, was * by)) : Math.max(60, whole);
    svg.setAttribute("width", width);
    svg.style.height = `${(width * box.height) / box.width}px`;
  });
}
for (const table of all("table.sortable")) all("thead th", table).forEach((head, column) =>
  head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending" && column !== 0
      || head.getAttribute("aria-sort") === "ascending";
    const body = table.tBodies[0], rows = [...body.rows], value = (row) => row.cells[column].dataset.value;
    const order = (a, b) => value(a) === undefined
      ? a.cells[column].textContent.localeCompare(b.cells[column].textContent) : value(a) - value(b);
    rows.sort((a, b) => (down ? order(b, a) : order(a, b)));
    for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  }));
const kernels = all("details.kernel"), find = document.getElementById("find");
find.addEventListener("input", () => {
  const wanted = find.value.trim().toLowerCase();
  for (const kernel of kernels) kernel.classList.toggle("hidden", !kernel.dataset.find.includes(wanted));
});
for (const [name, open] of [["open", true], ["close", false]])
  document.getElementById(name).addEventListener("click", () => { for (const kernel of kernels) kernel.open = open; });
addEventListener("beforeprint", () => { for (const one of all("details:not(.text)")) one.open = true; });
show();
