"use strict";
// A page says everything without this script, which sorts and filters its tables.

// What a cell says to sorting and filtering: its value, or its text where that is all there is to say.
const told = (cell) => cell?.dataset.value ?? cell?.textContent.trim() ?? "";

function valueOf(row, column) {
  const text = told(row.cells[column]);
  return text === "" || Number.isNaN(Number(text)) ? text : Number(text);
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b));
}

// A view is an address: what a table is filtered and sorted by stands in the page's query, under the table's name.
const inAddress = (table, what) => `${table.parentElement.getAttribute("aria-labelledby")}.${what}`;

function remembered(table, what) {
  return new URLSearchParams(location.search).get(inAddress(table, what)) ?? "";
}

function remember(table, what, value) {
  const url = new URL(location.href);
  if (value) url.searchParams.set(inAddress(table, what), value);
  else url.searchParams.delete(inAddress(table, what));
  history.replaceState(null, "", url);
}

function sortBy(table, column, down) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [valueOf(row, column), row]);
  keyed.sort(([a], [b]) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // what has no value stays last
    return down ? compare(b, a) : compare(a, b);
  });
  body.append(...keyed.map(([, row]) => row));
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if ("fixed" in head.dataset) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      sortBy(table, column, down);
      remember(table, "sort", (down ? "-" : "") + column);
    });
    const [, down, wanted] = /^(-?)(\d+)$/.exec(remembered(table, "sort")) ?? [];
    if (Number(wanted) === column) sortBy(table, column, down === "-");
  });
}

function filterable(table) {
  const rows = [...table.tBodies[0].rows];
  const bar = document.createElement("div");
  bar.className = "filters";
  const count = document.createElement("span");
  count.setAttribute("role", "status");
  const selects = [];
  const apply = () => {
    let shown = 0;
    for (const row of rows) {
      row.hidden = selects.some(([select, column]) => select.value && told(row.cells[column]) !== select.value);
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} rows`;
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (!("axis" in head.dataset)) return;
    const values = new Map(rows.map((row) => [told(row.cells[column]), row.cells[column].textContent]));
    if (values.size < 2) return;
    const label = document.createElement("label");
    const select = document.createElement("select");
    select.add(new Option("all", ""));
    const numbers = (a, b) => Number(a[0]) - Number(b[0]) || 0;
    [...values].sort(numbers).forEach(([value, text]) => select.add(new Option(text, value)));
    const name = head.textContent.trim();
    select.value = remembered(table, name);
    if (select.selectedIndex < 0) select.value = ""; // an address of another day
    select.addEventListener("change", () => {
      apply();
      remember(table, name, select.value);
    });
    label.append(head.textContent, select);
    bar.append(label);
    selects.push([select, column]);
  });
  if (!selects.length) return;
  bar.append(count);
  table.parentElement.before(bar);
  apply();
}

document.querySelectorAll("table.cases").forEach((table) => {
  filterable(table);
  sortable(table);
  if (table.tBodies[0].rows.length > 20) table.parentElement.classList.add("tall");
});
