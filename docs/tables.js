// Long tables of the site: a click on a heading sorts, numbers from the largest; a field filters by words.
const number = (text) => {
  const digits = text.replaceAll("\u2212", "-").replaceAll(",", "").match(/^[+-]?\d+(\.\d+)?/);
  return digits ? Number(digits[0]) : null;
};

const sortBy = (table, head) => {
  const body = table.tBodies[0];
  const text = (row) => row.cells[head.cellIndex].textContent.trim();
  const isNumeric = [...body.rows].map(text).every((each) => !each || number(each) !== null);
  const orders = isNumeric ? ["descending", "ascending"] : ["ascending", "descending"];
  const order = head.getAttribute("aria-sort") === orders[0] ? orders[1] : orders[0];
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  const sign = order === "descending" ? -1 : 1;
  const compare = (a, b) => {
    if (!a || !b) return !a - !b; // what is empty comes last
    const [x, y] = [number(a), number(b)];
    return sign * (x === null || y === null ? a.localeCompare(b) : x - y);
  };
  body.append(...[...body.rows].sort((a, b) => compare(text(a), text(b))));
};

const filter = (table, words) => {
  for (const row of table.tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
};

for (const table of document.querySelectorAll("article table")) {
  if (table.tBodies[0].rows.length < 30) continue;
  table.dataset.sortable = "";
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortBy(table, head));
    head.append(button);
  }
  const field = document.createElement("input");
  field.type = "search";
  field.className = "filter";
  field.placeholder = "filter by words";
  field.ariaLabel = "Filter the rows of the table by words";
  field.addEventListener("input", () => filter(table, field.value.toLowerCase().split(/\s+/)));
  table.before(field);
}
