// Numbers and small pieces of the page. Text from outside becomes text only (textContent), never markup.

const [USED, UTIL, TEMP, POWER, FIRST_PART] = [0, 1, 2, 3, 4];
const FIELDS = ["live", "cached", "fragmented", "context", "kernels", "others", "unattributed", "pools"]; // panel/wire.py
const [UNTOLD, PEAK, CLOCK, THROTTLED] = [12, 13, 14, 15];
const PLACE = Object.fromEntries([...FIELDS.map((name, i) => [name, FIRST_PART + i]), ["untold", UNTOLD]]);
const LOOK = Object.fromEntries(LOOKS.map(look => [look.id, look]));
const STACK = LOOKS.map(look => look.id).filter(name => name in PLACE); // from the ground up, as every bar has them
const MINE = ["live", "cached", "fragmented", "pools", "context"];
const HELD = { // NVML's reasons for a lower clock, as devices/model.py has them
  4: "held to its power limit", 8: "slowed down by the hardware", 32: "held down for its temperature",
  64: "slowed down for its temperature", 128: "slowed down by the power supply",
};
const NA = "n/a";

const known = value => value !== null && value !== undefined;
const now = () => Date.now() / 1000;
const id = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 12);
const blank = () => [null, null, null, null];
const unpacked = row => (typeof row === "string" ? row.split(",").map(n => (n === "" ? null : Number(n))) : row);
const percent = (used, total) => (!known(used) || !total ? null : (100 * used) / total);
const sumOf = list => { const some = list.filter(known); return some.length ? some.reduce((a, b) => a + b, 0) : null; };
const most = list => { const some = list.filter(known); return some.length ? Math.max(...some) : null; };

function size(mib) {
  if (!known(mib)) return NA;
  return mib < 1000 ? `${Math.round(mib)} MiB` : `${(mib / 1024).toFixed(1)} GiB`;
}
const gib = mib => (known(mib) ? (mib / 1024).toFixed(1) : NA);
const with_ = (value, unit) => (known(value) ? `${value}${unit}` : NA);
function seconds(s) {
  if (s < 1) return `${Math.round(1000 * s)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  return s < 120 ? `${Math.round(s)} s` : s < 7200 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
}
const clock = t => new Date(1000 * t).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const day = t => { const d = new Date(1000 * t); return `${d.getFullYear()}-${`${d.getMonth() + 1}`.padStart(2, "0")}-${`${d.getDate()}`.padStart(2, "0")}`; };
const held = bits => Object.entries(HELD).filter(([bit]) => bits & bit).map(([, words]) => words).join(", ");

// The parts of what is used, in MiB: they add up to it, and what none of them covers the driver has not told.
function stacked(row) {
  if (!row || !known(row[USED])) return null;
  let left = row[USED];
  const parts = {};
  for (const name of STACK) {
    parts[name] = Math.min(left, Math.max(0, row[PLACE[name]] || 0));
    left -= parts[name];
  }
  parts.untold += left;
  return parts;
}

const SVG = "http://www.w3.org/2000/svg";
function make(tag, classes, text) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text !== undefined) element.textContent = text;
  return element;
}
function put(element, text) { // no change, no repaint, no lost selection
  if (element.textContent !== text) element.textContent = text;
}
function attribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}
function button(classes, text, label, act) {
  const made = make("button", classes, text);
  made.type = "button";
  if (label) attribute(made, "aria-label", label);
  made.onclick = act;
  return made;
}
// The one legend: a swatch and its words, of bars, charts and pictures alike.
function legendItem(name, words) {
  const item = make("span", "cmg-item");
  item.append(make("span", `cmg-swatch cmg-${name}`), make("span", "", words || LOOK[name].words));
  return item;
}
