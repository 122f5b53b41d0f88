// A row of the table: one device, or one host of a cluster as the sum of its own; and what opens below a device's row.

const HEADS = [["who", "GPU"], ["barcell", "memory"], ["amount", "used / total"], ["percent", "full"], ["sparkcell", "last minute"], ["util", "utilization"], ["temp", "temp."], ["power", "power"]];
const WHOLE_WORDS = { live: "this kernel's tensors", cached: "this kernel's cache, free to reuse", fragmented: "this kernel's cache lost to fragmentation", context: "this kernel's context and libraries", pools: "other libraries' pools in this kernel" };
const longWords = (name, many) => (WHOLE_WORDS[name] || LOOK[name].words).replace("this kernel's", many ? "the engines'" : "this kernel's");

function headRow() {
  const root = make("div", "cmg-heads");
  attribute(root, "role", "row");
  const heads = {};
  for (const [name, words] of HEADS) {
    heads[name] = root.appendChild(make("span", `cmg-head-${name}`, words));
    attribute(heads[name], "role", "columnheader");
  }
  return { root, heads };
}

function row(key) {
  const r = { root: make("div", "cmg-row") };
  attribute(r.root, "role", "row");
  const cell = (classes, ...inside) => {
    const made = r.root.appendChild(make("div", classes));
    attribute(made, "role", "cell");
    made.append(...inside);
    return made;
  };
  r.name = button("cmg-name", "", "");
  attribute(r.name, "aria-expanded", "false");
  r.index = make("span", "cmg-index");
  r.model = make("span", "cmg-model");
  r.name.append(r.index, r.model);
  r.bar = make("div", "cmg-bar");
  attribute(r.bar, "role", "progressbar");
  attribute(r.bar, "aria-valuemin", 0);
  attribute(r.bar, "aria-valuemax", 100);
  r.parts = Object.fromEntries(STACK.map(part => [part, r.bar.appendChild(make("span", `cmg-part cmg-${part}`))]));
  r.mark = r.bar.appendChild(make("span", "cmg-alertline"));
  r.spark = sparkline();
  cell("cmg-who", r.name);
  cell("cmg-barcell", r.bar);
  r.amount = cell("cmg-num cmg-amount");
  r.percent = cell("cmg-num cmg-percent");
  cell("cmg-sparkcell", r.spark);
  r.util = cell("cmg-num cmg-util");
  r.temp = cell("cmg-num cmg-temp");
  r.power = cell("cmg-num cmg-power");
  r.error = cell("cmg-error");
  r.box = cell("cmg-detail");
  r.box.hidden = true;
  r.box.id = `cmg-${key}-${id()}`;
  attribute(r.name, "aria-controls", r.box.id);
  return r;
}

// A host's button opens its group of devices and no chart.
function hostRow(key, toggle) {
  const r = row(key);
  r.root.classList.add("cmg-host");
  r.box.remove();
  r.name.removeAttribute("aria-controls");
  r.name.onclick = toggle;
  return r;
}

function together(cards, values, points, own) {
  const card = { id: "", name: "", total: sumOf(own.map(i => cards[i].total)), driver: sumOf(own.map(i => cards[i].driver)) };
  const added = rows => Array.from({ length: UNTOLD }, (_, k) => {
    const list = own.map(i => rows[i]?.[k]);
    return k === UTIL || k === TEMP ? most(list) : sumOf(list);
  });
  return [card, added(values), points.map(point => ({ t: point.t, rows: [added(point.rows)] }))];
}
function troubleWords(host, waited) {
  return host.troubles.map(([engine, state, note, age]) => {
    const since = seconds(age + waited);
    if (state === "late") return `engine ${engine}: no reading for ${since}`;
    return `engine ${engine}: ${note || "has not answered yet"}${state === "gone" ? ` (${since} ago)` : ""}`;
  });
}

// what of the models' names differs: said once above the table where it does not
function shared(cards) {
  const names = [...new Set(cards.map(card => card.name.replace(/^NVIDIA /, "").split(" ")))];
  let n = 0;
  while (names.length && names[0][n] !== undefined && names.every(words => words[n] === names[0][n])) n++;
  return { first: names.length ? names[0].slice(0, n).join(" ") : "", n, alike: names.every(words => words.length === n) };
}

function fill(r, card, values, points, at, alert, time, shortName) {
  put(r.index, `GPU ${card.label || card.id}`);
  put(r.model, shortName);
  const cuda = known(card.cuda) ? `cuda:${card.cuda}` : "";
  attribute(r.name, "title", [card.name, cuda, "press for the chart"].filter(Boolean).join(" · "));
  r.root.classList.toggle("cmg-broken", Boolean(card.error));
  put(r.error, card.error || "");
  const used = values[USED], full = percent(used, card.total), parts = stacked(values);
  r.root.classList.toggle("cmg-full", full !== null && full >= alert);
  const words = [];
  for (const name of STACK) {
    const part = parts ? parts[name] : 0;
    r.parts[name].style.width = card.total ? `${(100 * part) / card.total}%` : "0";
    if (part) words.push([name, part, longWords(name, card.host !== undefined)]);
  }
  r.mark.style.left = `${alert}%`;
  const spoken = full === null ? "memory not known" : `${Math.round(full)} percent, ${size(used)} of ${size(card.total)} used`;
  attribute(r.bar, "aria-label", `Memory of GPU ${card.id}, ${card.name}`);
  if (full === null) r.bar.removeAttribute("aria-valuenow"); else attribute(r.bar, "aria-valuenow", Math.round(full));
  attribute(r.bar, "aria-valuetext", spoken);
  attribute(r.bar, "title", [spoken, ...words.map(([, mib, long]) => `${size(mib)} ${long}`)].join("\n"));
  put(r.amount, full === null ? `${NA} / ${gib(card.total)} GiB` : `${gib(used)} / ${gib(card.total)} GiB`);
  put(r.percent, full === null ? NA : `${full >= alert ? "▲ " : ""}${Math.round(full)} %`);
  put(r.util, with_(values[UTIL], " %"));
  put(r.temp, with_(values[TEMP], " °C"));
  const slow = values[THROTTLED] ? held(values[THROTTLED]) : "";
  put(r.power, with_(values[POWER], " W") + (slow ? " ▾" : ""));
  attribute(r.power, "title", [slow, card.limit ? `limit ${card.limit} W` : ""].filter(Boolean).join(", "));
  r.root.classList.toggle("cmg-held", Boolean(slow));
  const list = [];
  let before = null;
  for (const point of points) {
    if (before && time.apart(before, point)) list.push([(before.t + point.t) / 2, null, null]);
    const one = point.rows[at] || blank();
    list.push([point.t, percent(one[USED], card.total), one[UTIL] ?? null]);
    before = point;
  }
  r.spark.draw(list, time.from, time.to, time.at);
  return words;
}

function whoWords([pid, , kind, name, , notebook]) {
  if (kind === "this") return "this kernel";
  if (kind === "outside") return "outside this container";
  return notebook || (kind === "mine" ? "my kernel" : name) || `pid ${pid}`;
}

// The top line: the fullest card in words, who holds it, and what of it is this kernel's.
function headline(cards, values, who, alert) {
  const full = i => percent(values[i][USED], cards[i].total) ?? -1;
  const some = cards.map((_, i) => i).filter(i => full(i) >= 0 && !cards[i].unified);
  if (!some.length) return "";
  const i = some.reduce((a, b) => (full(b) > full(a) ? b : a));
  const mine = MINE.reduce((sum, name) => sum + (values[i][PLACE[name]] || 0), 0);
  const other = (who[i] || []).filter(one => one[2] !== "this" && known(one[1])).sort((a, b) => b[1] - a[1])[0];
  const state = full(i) >= alert ? "is full" : `is ${Math.round(full(i))} % full`;
  const said = [];
  if (other) said.push(`${size(other[1])} by ${[other[4], whoWords(other)].filter(Boolean).join(", ")}`);
  said.push(mine ? `you hold ${size(mine)}` : "you hold nothing");
  return `GPU ${cards[i].id} ${state}: ${said.join("; ")}.`;
}

class Detail {
  constructor(r, i, view) {
    Object.assign(this, { r, i, view, range: 1, looks: [] });
    const bar = make("div", "cmg-chartbar"), panel = view.panel;
    this.ranges = RANGES.map(([words], k) => button("cmg-tool", words, "", () => { this.range = k; view.redraw(); }));
    this.read = make("div", "cmg-read");
    const csv = button("cmg-tool cmg-csv", "CSV", "Save the history of all devices as CSV", () => view.csv());
    const png = button("cmg-tool cmg-png", "PNG", "Save this chart as a picture", () => this.png());
    bar.append(...this.ranges, csv, png);
    this.line = make("div", "cmg-time");
    attribute(this.line, "role", "slider");
    attribute(this.line, "aria-valuemin", 0);
    attribute(this.line, "aria-valuemax", 100);
    this.line.tabIndex = 0;
    this.line.onkeydown = event => this.key(event);
    this.memory = new Chart(this.line.appendChild(make("div", "cmg-chart")), HIGH, panel, view.seek);
    this.heat = new Chart(this.line.appendChild(make("div", "cmg-chart")), LOW, panel, view.seek);
    this.parts = make("div", "cmg-legend cmg-parts");
    this.facts = make("div", "cmg-facts");
    this.who = make("div", "cmg-people");
    this.r.box.replaceChildren(bar, this.read, this.line, this.parts, this.facts, this.who);
    this.moved = () => { this.memory.follow(); this.heat.follow(); this.told(); };
    panel.moves.add(this.moved);
    if (panel.frames || view.panel.history.began > panel.time() - 60) this.range = 2;
  }

  end() {
    this.memory.end();
    this.heat.end();
    this.view.panel.moves.delete(this.moved);
  }

  draw(card, words, values, people, time) {
    const { view, i } = this, span = RANGES[this.range][1];
    const from = Math.max(time.to - span, Math.min(view.panel.history.began, time.to - 10));
    const points = view.points(from - 5, time.to);
    Object.assign(this, { card, from, time, shown: points });
    this.ranges.forEach((one, k) => attribute(one, "aria-pressed", String(k === this.range)));
    attribute(this.line, "aria-label", `Time line of GPU ${card.id}; arrow keys move`);
    const spec = memorySpec(card, i, points, view.alert);
    this.looks = spec.seen;
    this.memory.draw(points, i, time.apart, spec, from, time.to);
    const heat = heatSpec(card, i, points);
    this.heat.box.hidden = !heat;
    if (heat) this.heat.draw(points, i, time.apart, heat, from, time.to); else this.heat.end();
    const items = words.map(([name, mib, long]) => [name, `${size(mib)} ${long}`]);
    const free = !known(values[USED]) || !known(card.total) ? null : card.total - values[USED] - (card.driver || 0);
    if (free !== null) items.push(["free", `${size(Math.max(0, free))} free`]);
    if (card.driver) items.push(["reserved", `${size(card.driver)} kept by the driver`]);
    items.push(["line", "utilization"]);
    while (this.parts.children.length > items.length) this.parts.lastChild.remove();
    items.forEach(([name, text], k) => {
      const line = this.parts.children[k] || this.parts.appendChild(legendItem(name, text));
      attribute(line.children[0], "class", `cmg-swatch cmg-${name}`);
      put(line.children[1], text);
    });
    put(this.facts, this.factsOf(card, values));
    this.people(people);
    this.told();
  }

  factsOf(card, values) {
    const all = this.view.points(-Infinity, this.time.to).map(point => point.rows[this.i] || blank());
    const highest = most(all.flatMap(one => [one[USED], one[PEAK]]));
    const facts = [
      card.unified ? "shares the system's memory" : "", known(card.cuda) ? `here cuda:${card.cuda}` : "",
      `highest of ${seconds(this.time.to - this.view.panel.history.began)}: ${size(highest)}`,
      card.limit ? `power limit ${card.limit} W` : "", card.hot ? `slows down at ${card.hot} °C` : "",
      known(values[CLOCK]) ? `clock ${values[CLOCK]}${card.fast ? ` of ${card.fast}` : ""} MHz` : "",
      values[THROTTLED] ? held(values[THROTTLED]) : "",
    ];
    return facts.filter(Boolean).join(" · ");
  }

  people(list) {
    const key = JSON.stringify([list, Math.floor(now() / 10)]);
    if (key === this.said) return;
    this.said = key;
    if (!list.length) { this.who.replaceChildren(); return; }
    const table = make("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    ["pid", "who", "user", "GiB", "idle"].forEach(words => { const th = head.appendChild(make("th", "", words)); th.scope = "col"; });
    for (const one of list) {
      const [pid, mib, kind, , user, , since] = one, line = body.insertRow();
      const idle = kind === "this" || !known(since) ? "" : seconds(Math.max(0, this.view.panel.time() - since));
      [pid, whoWords(one), user || NA, gib(mib), idle].forEach((text, k) => { const cell = line.insertCell(); cell.textContent = text; if (k === 3) cell.className = "cmg-num"; });
      line.className = `cmg-${kind}-line`;
    }
    this.who.replaceChildren(table);
  }

  // what is under the crosshair, or the newest reading, in words
  told() {
    const { shown, i, card } = this, at = this.view.panel.cursor;
    if (!shown || !shown.length) { put(this.read, "no reading yet"); return; }
    const inside = known(at) ? shown.filter(point => point.t >= this.from) : shown;
    const point = known(at) ? inside.reduce((a, b) => (Math.abs(b.t - at) < Math.abs(a.t - at) ? b : a), inside[0]) : shown.at(-1);
    if (!point) return;
    const one = point.rows[i] || blank(), parts = stacked(one);
    const cell = [...this.view.panel.marks.values()].filter(mark => mark.k === "cell" && mark.a <= point.t && (mark.b ?? Infinity) >= point.t - 0.5).at(-1);
    const flags = [...this.view.panel.marks.values()].filter(mark => mark.k !== "cell" && Math.abs(mark.a - point.t) <= Math.max(1, this.view.panel.history.interval));
    const words = [
      clock(point.t), `${size(one[USED])} of ${size(card.total)}`,
      ...(parts ? STACK.filter(name => parts[name]).map(name => `${LOOK[name].words} ${size(parts[name])}`) : []),
      known(one[PEAK]) ? `up to ${size(one[PEAK])} in between` : "", with_(one[UTIL], " % busy"), with_(one[TEMP], " °C"), with_(one[POWER], " W"),
      one[THROTTLED] ? held(one[THROTTLED]) : "",
      cell ? `In [${cell.n}]${known(cell.b) ? `, ${seconds(cell.b - cell.a)}` : ", running"}${known(cell.d) ? `, ${cell.d < 0 ? "−" : "+"}${size(Math.abs(cell.d))}` : ""}${cell.x ? `, ${cell.x}` : ""}` : "",
      ...flags.map(mark => (mark.k === "oom" ? "out of memory" : mark.x)),
    ].filter(word => word && word !== NA);
    put(this.read, words.join(" · "));
    attribute(this.line, "aria-valuenow", Math.round((100 * (point.t - this.from)) / Math.max(1, this.time.to - this.from)));
    attribute(this.line, "aria-valuetext", known(at) ? words.join(", ") : `newest reading, ${words[1]}`);
  }

  key(event) {
    const { shown, view: { panel } } = this, moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
    if (event.key === "Escape") { panel.move(null); return; }
    if (!(event.key in moves) || !shown?.length) return;
    event.preventDefault();
    const list = shown.filter(point => point.t >= this.from), at = panel.cursor;
    let k = known(at) ? list.findIndex(point => point.t >= at - 1e-3) : list.length - 1;
    if (k < 0) k = list.length - 1;
    if (known(at) || Math.abs(moves[event.key]) > 1) k += moves[event.key];
    panel.move(list[Math.min(list.length - 1, Math.max(0, k))].t);
    if (panel.frames) this.view.seek(panel.cursor);
  }

  async png() {
    const plots = [this.memory, this.heat].map(chart => chart.plot).filter(Boolean);
    const title = `GPU ${this.card.id}, ${this.card.name}: ${day(this.from)} ${clock(this.from)} to ${clock(this.time.to)}`;
    save(`gpu${this.card.id}.png`, await pngOf(this.view.el, title, plots, this.looks));
  }
}
