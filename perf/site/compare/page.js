"use strict";
// Fetches what two commits measured and joins it to a table. Text of the files becomes text alone: no markup.

const shown = JSON.parse(document.getElementById("measured").textContent);
const part = (id) => document.getElementById(id);
const table = document.querySelector("table.compared");
const CHANGE = 3; // column
const UNITS = {
  time: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
  bytes: [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]],
};

function inUnits(value, units, significant) {
  const [scale, unit] = units.find(([least]) => Math.abs(value) >= least) ?? units.at(-1);
  const [, exponent] = (value / scale).toExponential(significant - 1).split("e");
  return `${(value / scale).toFixed(Math.max(0, significant - 1 - Number(exponent)))} ${unit}`;
}

const signed = (fraction) => `${fraction < 0 ? "" : "+"}${(100 * fraction).toFixed(2)}`;

function made(name, text, ...children) {
  const element = document.createElement(name);
  element.textContent = text;
  element.append(...children);
  return element;
}

// Cases by name: `module.Class(8192, 64, 'bfloat16')`.
function casesOf(found) {
  const cases = new Map();
  for (const [benchmark, one] of Object.entries(found.classes)) {
    for (const [values, seconds, half, bytes, session, outcome, ours] of one.cases) {
      const axes = one.axes.map((axis, at) => [`p-${axis}`, values[at]]);
      const made = found.sessions[session];
      cases.set(`${benchmark}(${values.join(", ")})`, { graph: one.graph, axes, seconds, half, bytes, made, outcome, ours });
    }
  }
  return cases;
}

// The two intervals of log time are independent: half their ratio's width is the root of the sum of squares.
function timeChange(base, head) {
  if (!(base?.seconds > 0 && head?.seconds > 0)) return null;
  const log = Math.log(head.seconds / base.seconds);
  if (base.half === null || head.half === null) return { log, differs: false };
  const half = Math.hypot(base.half, head.half);
  return { log, low: Math.expm1(log - half), high: Math.expm1(log + half), differs: Math.abs(log) > half };
}

// As a fraction of the base's; 0 where they may be the same.
function memoryChange(base, head) {
  if (!(base?.bytes > 0 && head?.bytes > 0)) return 0;
  const change = head.bytes / base.bytes - 1;
  const exact = base.made.harness === head.made.harness && !base.made.blocks;
  return Math.abs(change) > (exact ? 0 : shown.blocks) ? change : 0;
}

function historyOf(machine, one) {
  const query = [["machine", machine], ...one.axes].map((pair) => pair.map(encodeURIComponent).join("="));
  return `history.html#${encodeURIComponent(one.graph)}?${query.join("&")}`;
}

function cell(text, value, name = "") {
  const element = made("td", text);
  element.className = `number ${name}`.trim();
  element.dataset.value = value;
  return element;
}

// A name breaks after its parenthesis and commas, not within a number.
function breakable(name) {
  const start = name.indexOf("(") + 1;
  return [name.slice(0, start), document.createElement("wbr"), name.slice(start)];
}

const worseIf = (change) => (change > 0 ? "worse" : "better");

function timeCell(one) {
  const known = one && one.seconds !== null;
  return cell(known ? inUnits(one.seconds, UNITS.time, 4) : one?.outcome || "–", known ? one.seconds : "");
}

function rowOf(machine, name, base, head) {
  const time = timeChange(base, head);
  const memory = memoryChange(base, head);
  const row = document.createElement("tr");
  const title = made("th", "");
  title.scope = "row";
  const linked = [head, base].find((one) => one?.graph);
  if (linked) {
    const link = made("a", "", ...breakable(name));
    link.href = historyOf(machine, linked);
    title.append(link);
  } else title.append(...breakable(name));
  const interval = time && (time.low === undefined ? " (?)" : ` (${signed(time.low)} .. ${signed(time.high)})`);
  const change = time ? `${signed(Math.expm1(time.log))} %${interval}` : "–";
  const bytes = memory
    ? `${inUnits(base.bytes, UNITS.bytes, 3)} → ${inUnits(head.bytes, UNITS.bytes, 3)} (${signed(memory)} %)`
    : "";
  row.append(
    title,
    timeCell(base),
    timeCell(head),
    cell(change, time ? time.log : "", time?.differs ? worseIf(time.log) : ""),
    cell(bytes, memory || "", memory ? worseIf(memory) : ""),
  );
  if (!time?.differs) row.className = "none";
  return { row, text: name.toLowerCase(), time, memory, both: Boolean(base && head), ours: (head ?? base).ours };
}

function describe(where, commit, found) {
  const [hash, date, subject] = commit;
  const code = made("code", hash.slice(0, 8));
  const link = shown.commitUrl ? made("a", "", code) : code;
  if (shown.commitUrl) link.href = shown.commitUrl + hash;
  const sessions = new Set(found.sessions.map((one) => one.made));
  const lines = [...sessions].map((text) => made("p", `measured ${text}`));
  lines.forEach((line) => (line.className = "quiet"));
  where.replaceChildren(link, ` ${subject} `, made("span", date), ...lines);
}

const files = new Map();

async function fetched(machine, hash) {
  const path = `${shown.folder}/${encodeURIComponent(machine)}/${hash}.json`;
  if (!files.has(path)) {
    const answer = await fetch(path);
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    files.set(path, await answer.json());
  }
  return files.get(path);
}

let rows = [];

function count() {
  if (rows.length === 0) return;
  const words = part("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = rows.filter((one) => words.every((word) => one.text.includes(word)));
  const changed = (one) => one.time?.differs || one.memory;
  const visible = new Set(part("differing").checked ? matching.filter(changed) : matching);
  rows.forEach((one) => (one.row.hidden = !visible.has(one)));
  const of = (condition) => matching.filter(condition).length;
  const differs = (one) => one.time?.differs;
  const said = [
    `${of((one) => differs(one) && one.time.log > 0)} slower`,
    `${of((one) => differs(one) && one.time.log < 0)} faster`,
    `${of((one) => one.time && !differs(one))} not distinguishable`,
  ];
  const memory = [of((one) => one.memory > 0), of((one) => one.memory < 0)];
  const alone = of((one) => !one.both);
  const untimed = of((one) => one.both && !one.time);
  if (memory[0] + memory[1]) said.push(`peak memory ${memory[0]} larger, ${memory[1]} smaller`);
  if (untimed) said.push(`${untimed} without times`);
  if (alone) said.push(`${alone} measured at one commit only`);
  const controls = of((one) => one.both && !one.ours);
  const moved = of((one) => changed(one) && !one.ours);
  const whole = matching.length < rows.length ? `${matching.length} of ${rows.length} cases` : `${rows.length} cases`;
  const machine = moved ? `Cases without project code that differ, which no commit caused: ${moved} of ${controls}.` : "No case without project code differs.";
  part("counts").textContent = `${whole}: ${said.join(", ")}. ${controls ? machine : ""}`;
}

function fill(machine, commits, found) {
  const [base, head] = found.map(casesOf);
  rows = [...new Set([...base.keys(), ...head.keys()])].map((name) => rowOf(machine, name, base.get(name), head.get(name)));
  table.tBodies[0].replaceChildren(...rows.map((one) => one.row));
  table.parentElement.classList.toggle("tall", rows.length > 20);
  const sorted = [...table.tHead.rows[0].cells].findIndex((one) => one.hasAttribute("aria-sort"));
  const down = sorted < 0 || table.tHead.rows[0].cells[sorted].getAttribute("aria-sort") === "descending";
  sortBy(table, sorted < 0 ? CHANGE : sorted, down);
  commits.forEach((one, at) => describe(part(["base-made", "head-made"][at]), one, found[at]));
  const sittings = new Set(found.flatMap((one) => one.sessions.map((each) => each.sitting)));
  part("sittings").textContent =
    sittings.size > 1
      ? "They were measured in sessions of different days or GPUs, which differ by themselves."
      : "They were measured one after another on one day.";
  count();
}

const known = (machine) => shown.machines.find((one) => one.machine === machine);
const commitsOf = (machine) => known(machine).commits;
const chosen = (id) => part(id).value;
let asked = 0;

async function show() {
  const machine = chosen("machine");
  const commits = ["base", "head"].map((id) => commitsOf(machine).find(([hash]) => hash === chosen(id)));
  const [base, head] = commits.map(([hash]) => hash.slice(0, 8));
  part("gate").textContent = `python -m perf gate ${base} ${head}`;
  if (location.protocol === "file:") {
    part("trouble").textContent =
      "A browser lets no page fetch files from a disk. Serve this folder: asv preview, or python -m http.server in it.";
    return;
  }
  const mine = ++asked;
  part("counts").textContent = "Loading …";
  try {
    const found = await Promise.all(commits.map(([hash]) => fetched(machine, hash)));
    if (mine === asked) fill(machine, commits, found);
  } catch (error) {
    if (mine !== asked) return;
    rows = [];
    table.tBodies[0].replaceChildren();
    ["base-made", "head-made"].forEach((id) => part(id).replaceChildren());
    part("counts").textContent = `Cannot be loaded: ${error.message}`;
  }
}

// The wanted commit, by a hash of 4 digits or more; else the one at that place.
function preselect(id, commits, wanted, place) {
  const named = wanted.length >= 4 && commits.find(([hash]) => hash.startsWith(wanted));
  if (wanted && !named) part("trouble").append(`${wanted} is none of these commits, so another stands as ${id}. `);
  part(id).replaceChildren(...commits.map(([hash, date, subject]) => new Option(`${hash.slice(0, 8)} ${date} ${subject}`, hash)));
  part(id).value = (named || commits[place])[0];
}

function offer(machine, base, head) {
  part("trouble").textContent = "";
  const places = known(machine).pair;
  preselect("base", commitsOf(machine), base, places[0]);
  preselect("head", commitsOf(machine), head, places[1]);
}

function keep(values) {
  const url = new URL(location.href);
  Object.entries(values).forEach(([name, value]) => {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  });
  history.replaceState(null, "", url);
}

function start() {
  const address = new URLSearchParams(location.search);
  const wanted = (name) => address.get(name) ?? "";
  const names = shown.machines.map((one) => one.machine);
  part("machine").replaceChildren(...names.map((name) => new Option(name, name)));
  part("machine").value = names.includes(wanted("machine")) ? wanted("machine") : names[0];
  offer(chosen("machine"), wanted("base"), wanted("head"));
  if (wanted("machine") && !names.includes(wanted("machine")))
    part("trouble").append(`${wanted("machine")} is none of these machines, so ${chosen("machine")} stands here.`);
  part("filter").value = wanted("filter");
  part("differing").checked = wanted("differing") === "1";
  part("choice").addEventListener("submit", (event) => event.preventDefault());
  part("machine").addEventListener("change", () => offer(chosen("machine"), "", ""));
  part("choice").addEventListener("change", () => {
    part("trouble").textContent = "";
    keep({ machine: chosen("machine"), base: chosen("base"), head: chosen("head") });
    show();
  });
  const filter = () => {
    keep({ filter: chosen("filter"), differing: part("differing").checked ? "1" : "" });
    count();
  };
  part("filter").addEventListener("input", filter);
  part("differing").addEventListener("change", filter);
  show();
}

start();
