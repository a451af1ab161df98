// Sorting, seeds on hover and focus, filters. Without this script everything is there, unsorted.
document.documentElement.classList.add("js");

// All tables hold the same rows, so that they are sorted together; the baseline stays on top.
const tables = [...document.querySelectorAll("table.cards")];
const value = (row, at) => {
  const cell = row.cells[at];
  const number = parseFloat(cell.dataset.value);
  return Number.isNaN(number) ? cell.textContent.trim() : number;
};
const isEmpty = (each) => each === "" || each === "\u2013";
const compare = (a, b) => {
  if (isEmpty(a) || isEmpty(b)) return 0;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
};
const sortBy = (head) => {
  const at = head.cellIndex;
  const first = head.classList.contains("n") ? "descending" : "ascending";
  const second = first === "descending" ? "ascending" : "descending";
  const now = head.getAttribute("aria-sort");
  const order = now === first ? second : now === second ? null : first;
  for (const each of document.querySelectorAll("th[aria-sort]")) each.removeAttribute("aria-sort");
  const rows = [...head.closest("table").querySelectorAll("tbody:not(.baseline) tr")];
  rows.sort((a, b) => a.dataset.row - b.dataset.row);
  if (order) {
    head.setAttribute("aria-sort", order);
    const sign = order === "descending" ? -1 : 1;
    rows.sort((a, b) => {
      const [x, y] = [value(a, at), value(b, at)];
      return isEmpty(x) - isEmpty(y) || sign * compare(x, y);
    });
  }
  const numbers = rows.map((row) => row.dataset.row);
  for (const table of tables) {
    const body = table.querySelector("tbody:not(.baseline)");
    const byNumber = new Map([...body.rows].map((row) => [row.dataset.row, row]));
    body.append(...numbers.map((number) => byNumber.get(number)));
  }
};
for (const head of document.querySelectorAll("table.cards thead th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "sort";
  button.append(...head.childNodes);
  button.addEventListener("click", () => sortBy(head));
  head.append(button);
}

// Seeds: one stop of the tab key per table, arrows move from there.
const tip = document.createElement("div");
tip.className = "tip";
tip.id = "tip";
tip.role = "tooltip";
tip.hidden = true;
document.body.append(tip);
let shown = null;
const show = (span) => {
  shown = span;
  tip.textContent = span.parentElement.dataset.seeds;
  tip.hidden = false;
  const [box, size] = [span.getBoundingClientRect(), tip.getBoundingClientRect()];
  const below = box.bottom + 6;
  const top = below + size.height > innerHeight ? box.top - size.height - 6 : below;
  tip.style.top = `${Math.max(0, top)}px`;
  tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - size.width - 4))}px`;
};
const hide = () => {
  shown = null;
  tip.hidden = true;
};
const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const move = (span, [down, right]) => {
  const table = span.closest("table");
  const rows = [...table.querySelectorAll("tbody tr")];
  let [row, column] = [rows.indexOf(span.closest("tr")), span.parentElement.cellIndex];
  for (;;) {
    [row, column] = [row + down, column + right];
    const cell = rows[row]?.cells[column];
    if (!cell) return;
    if (!cell.dataset.seeds) continue;
    for (const each of table.querySelectorAll("[data-seeds] > span")) each.tabIndex = -1;
    cell.firstElementChild.tabIndex = 0;
    cell.firstElementChild.focus();
    return;
  }
};
for (const table of tables) {
  [...table.querySelectorAll("[data-seeds] > span")].forEach((span, at) => {
    span.tabIndex = at ? -1 : 0;
    span.setAttribute("aria-describedby", "tip");
    span.addEventListener("mouseenter", () => show(span));
    span.addEventListener("focus", () => show(span));
    span.addEventListener("mouseleave", hide);
    span.addEventListener("blur", hide);
    span.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
      if (!(event.key in steps)) return;
      event.preventDefault();
      move(span, steps[event.key]);
    });
  });
}
addEventListener("scroll", () => shown && show(shown), { passive: true });

// Translations: filters by test set and length.
const filters = document.querySelector(".filters");
if (filters) {
  const articles = [...document.querySelectorAll("article")];
  const filter = () => {
    const wanted = Object.fromEntries(new FormData(filters));
    for (const each of articles) {
      each.hidden = Object.keys(wanted).some((k) => wanted[k] && each.dataset[k] !== wanted[k]);
    }
    const n = articles.filter((each) => !each.hidden).length;
    filters.querySelector("output").textContent = `${n} of ${articles.length} sentences`;
  };
  filters.hidden = false;
  filters.addEventListener("change", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filter();
}

// Paper shows what is folded on the screen.
addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details")) each.open = true;
});
