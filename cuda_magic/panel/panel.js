// The rich panel. History, pause, sort, filter and the alert line live here: a click does not reach Python while a
// cell runs. Text from outside becomes text only (textContent), never markup.
// Python sends {s: number of the reading, v: values} a tick, and h: history after a gap; the page says what it sees.
// Of a cluster it sends only the rows that changed ({i: their numbers, v: values}); rows are grouped by host then.
// Of a recording all readings are in the model (frames, times) from the start: only `ready` is said then.

const TARGET = "cuda_magic.panel";
const POINTS = 300;
const PARTS = [
  // field of memory/split.py, short words, words
  ["live", "tensors", "this kernel's live tensors"],
  ["cached", "cache", "this kernel's cache, free to reuse"],
  ["fragmented", "fragmented", "this kernel's cache shut in between live tensors"],
  ["context", "context", "this kernel's CUDA context and libraries"],
  ["kernels", "my other kernels", "my other kernels"],
  ["others", "other processes", "other processes"],
  ["unattributed", "not attributed", "held by no process that can be seen"],
  ["pools", "other pools", "pools of other libraries in this kernel"],
];
const [USED, UTIL, TEMP, POWER, FIRST_PART] = [0, 1, 2, 3, 4];
const LOST = "the kernel was restarted: run %gpu_mem again";
const FEW = 64; // devices up to which the groups of a cluster are open at first
const SORTS = [["gpu", "GPU number"], ["used", "most used"], ["util", "busiest"]];

const panels = new Map(); // key -> what all views of one panel share on this page
const id = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 12);
const now = () => Date.now();
const unpacked = row => (typeof row === "string" ? row.split(",").map(n => (n === "" ? null : Number(n))) : row);
const blank = () => [null, null, null, null];
const point = values => values.flatMap(device => device.slice(0, 2)); // what the lines are drawn from

// -- speaking to the kernel
function overControl(model, body, heard) {
  const kernel = model.widget_manager && model.widget_manager.kernel;
  if (!model.get("control") || !kernel || typeof kernel.sendControlMessage !== "function") return false;
  try {
    const header = {
      msg_id: id(), msg_type: "comm_info_request", username: kernel.username || "", session: kernel.clientId,
      version: "5.3", date: new Date().toISOString(),
    };
    const content = { target_name: TARGET, cuda_magic: body };
    const message = { channel: "control", parent_header: {}, metadata: {}, buffers: [], header, content };
    kernel.sendControlMessage(message, true, true).done.then(
      reply => heard(reply && reply.content && reply.content.cuda_magic), () => {});
    return true;
  } catch (error) {
    return false;
  }
}

function initialize({ model }) {
  const key = model.get("key");
  const panel = {
    views: new Map(), draws: new Set(), history: [], values: null, seq: 0, fresh: 0, lost: false, gone: false,
    asked: 0, said: null, hostsAt: now(),
  };
  panels.set(key, panel);
  const cid = id();
  const draw = () => panel.draws.forEach(one => one());
  const looking = () => document.visibilityState === "visible" && [...panel.views.values()].some(Boolean);
  const heard = answer => {
    if (panel.lost !== !answer) { panel.lost = !answer; draw(); }
    if (answer) {
      panel.fresh = Math.max(panel.fresh, now() - 1000 * answer.age);
      catchUp(answer.seq);
    }
  };
  const say = (t, more) => {
    panel.asked = now();
    const body = { t, key, cid, seq: panel.seq, see: looking(), ...more };
    if (!overControl(model, body, heard)) model.send(body);
  };
  // readings that changed nothing are not sent: the line goes on at the last value
  const catchUp = seq => {
    if (!panel.values || !panel.history.length) return;
    for (let n = Math.min(seq - panel.seq, POINTS); n > 0; n--) panel.history.push(panel.history.at(-1));
    panel.history.splice(0, panel.history.length - POINTS);
    panel.seq = Math.max(panel.seq, seq);
  };
  const frames = model.get("frames") || [];
  if (frames.length) {
    Object.assign(panel, { frames, history: frames.map(point), report: () => {} });
    say("ready");
    return () => panels.delete(key);
  }
  panel.report = () => {
    const sees = looking();
    if (panel.gone || sees === panel.said) return;
    panel.said = sees;
    say(sees ? "show" : "hide");
  };
  const back = () => { panel.gone = false; panel.report(); };
  const leave = () => { panel.gone = true; panel.said = false; say("hide", { see: false, gone: true }); };
  document.addEventListener("visibilitychange", panel.report);
  window.addEventListener("pagehide", leave);
  window.addEventListener("pageshow", back);
  // A beat keeps the lease. Where no tick comes, it also asks whether the kernel still reads.
  const quiet = () => Math.max(2500, 2500 * model.get("interval"));
  const timer = setInterval(() => {
    if (!looking()) return;
    const waited = now() - panel.asked;
    if (waited >= 1000 * model.get("beat") || (now() - panel.fresh > quiet() && waited > quiet())) say("beat");
  }, 500);
  model.on("msg:custom", message => {
    panel.fresh = now();
    if (message.v && message.h) panel.history = message.h.slice(0, -1);
    else catchUp(message.v ? message.s - 1 : message.s);
    if (message.v) {
      if (message.i) {
        const values = (panel.values || []).slice();
        while (values.length < model.get("cards").length) values.push(blank());
        message.i.forEach((row, k) => { values[row] = unpacked(message.v[k]); });
        panel.values = values;
      } else panel.values = message.v.map(unpacked);
      panel.history.push(point(panel.values));
      panel.history.splice(0, panel.history.length - POINTS);
      panel.seq = message.s;
    }
    draw();
  });
  model.on("change:cards", draw);
  model.on("change:hosts", () => { panel.hostsAt = now(); draw(); });
  say("ready");
  return () => {
    clearInterval(timer);
    document.removeEventListener("visibilitychange", panel.report);
    window.removeEventListener("pagehide", leave);
    window.removeEventListener("pageshow", back);
    leave();
    panels.delete(key);
  };
}

// -- words
const NA = "n/a";
function size(mib) {
  if (mib === null || mib === undefined) return NA;
  if (mib < 1024) return `${mib} MiB`;
  return `${(mib / 1024).toFixed(mib < 102400 ? 1 : 0)} GiB`;
}
const with_ = (value, unit) => (value === null || value === undefined ? NA : `${value}${unit}`);
const percent = (used, total) => (used === null || used === undefined || !total ? null : (100 * used) / total);

// -- drawing
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
const attribute_ = (element, name) => element.getAttribute(name);
function attribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}
function sparkline() {
  const svg = document.createElementNS(SVG, "svg");
  attribute(svg, "viewBox", "0 0 100 24");
  attribute(svg, "preserveAspectRatio", "none");
  attribute(svg, "aria-hidden", "true");
  attribute(svg, "class", "cmg-spark");
  const area = document.createElementNS(SVG, "path"), line = document.createElementNS(SVG, "path");
  const cursor = document.createElementNS(SVG, "path");
  attribute(area, "class", "cmg-spark-used");
  attribute(line, "class", "cmg-spark-util");
  attribute(cursor, "class", "cmg-spark-cursor");
  svg.append(area, line, cursor);
  svg.draw = (used, util, span, place) => {
    const x = i => (100 - ((used.length - 1 - i) * 100) / Math.max(1, span - 1)).toFixed(1);
    attribute(cursor, "d", place === undefined ? "" : `M${x(place)} 0V24`);
    const path = values => {
      let out = "", pen = "M";
      values.forEach((v, i) => {
        if (v === null) { pen = "M"; return; }
        out += `${pen}${x(i)} ${(23 - (22 * Math.min(v, 100)) / 100).toFixed(1)}`;
        pen = "L";
      });
      return out;
    };
    const top = path(used);
    attribute(area, "d", top.includes("L") ? `${top}L100 24L${x(0)} 24Z` : "");
    attribute(line, "d", path(util));
  };
  return svg;
}

function row(key) {
  const r = { root: make("li", "cmg-row") };
  r.name = make("button", "cmg-name");
  r.name.type = "button";
  attribute(r.name, "aria-expanded", "false");
  r.index = make("span", "cmg-index");
  r.model = make("span", "cmg-model");
  r.name.append(r.index, r.model);
  r.bar = make("div", "cmg-bar");
  attribute(r.bar, "role", "progressbar");
  attribute(r.bar, "aria-valuemin", 0);
  attribute(r.bar, "aria-valuemax", 100);
  r.parts = [...PARTS.map(part => part[0]), "rest"].map(part => r.bar.appendChild(make("span", `cmg-part cmg-${part}`)));
  r.mark = r.bar.appendChild(make("span", "cmg-alertline"));
  r.amount = make("span", "cmg-amount");
  r.percent = make("span", "cmg-percent");
  r.spark = sparkline();
  r.util = make("span", "cmg-num cmg-util");
  r.temp = make("span", "cmg-num cmg-temp");
  r.power = make("span", "cmg-num cmg-power");
  r.error = make("span", "cmg-error");
  r.detail = make("div", "cmg-detail");
  r.detail.hidden = true;
  r.detail.id = `cmg-${key}-${id()}`;
  attribute(r.name, "aria-controls", r.detail.id);
  r.name.onclick = () => {
    r.detail.hidden = !r.detail.hidden;
    attribute(r.name, "aria-expanded", String(!r.detail.hidden));
  };
  r.root.append(r.name, r.bar, r.amount, r.percent, r.spark, r.util, r.temp, r.power, r.error, r.detail);
  return r;
}

// A host is drawn as a device that is the sum of its own; its button opens the group.
function hostRow(key, toggle) {
  const r = row(key);
  r.root.classList.add("cmg-host");
  r.detail.remove();
  r.name.removeAttribute("aria-controls");
  r.name.onclick = toggle;
  return r;
}
const most = list => { const known = list.filter(n => n !== null && n !== undefined); return known.length ? Math.max(...known) : null; };
const sumOf = list => { const known = list.filter(n => n !== null && n !== undefined); return known.length ? known.reduce((a, b) => a + b, 0) : null; };
function together(cards, values, history, own) {
  const card = { id: "", name: "", total: sumOf(own.map(i => cards[i].total)), driver: sumOf(own.map(i => cards[i].driver)) };
  const all = Array.from({ length: FIRST_PART + PARTS.length }, (_, k) => {
    const list = own.map(i => values[i]?.[k]);
    return k === UTIL || k === TEMP ? most(list) : sumOf(list);
  });
  const past = history.slice(-POINTS / 5).map(p => [sumOf(own.map(i => p[2 * i])), most(own.map(i => p[2 * i + 1]))]);
  return [card, all, past];
}
function seconds(s) { return s < 120 ? `${Math.round(s)} s` : `${Math.round(s / 60)} min`; }
function troubleWords(host, waited) {
  return host.troubles.map(([engine, state, note, age]) => {
    const since = seconds(age + waited);
    if (state === "late") return `engine ${engine}: no reading for ${since}`;
    return `engine ${engine}: ${note || "has not answered yet"}${state === "gone" ? ` (${since} ago)` : ""}`;
  });
}

function fill(r, card, values, history, at, alert, place) {
  put(r.index, `GPU ${card.label || card.id}`);
  put(r.model, card.name.replace(/^NVIDIA /, ""));
  const cuda = card.cuda !== null && card.cuda !== undefined ? `cuda:${card.cuda}` : "";
  attribute(r.name, "title", [card.name, cuda, "press for details"].filter(Boolean).join(" · "));
  r.root.classList.toggle("cmg-broken", Boolean(card.error));
  put(r.error, card.error || "");
  const used = values[USED], full = percent(used, card.total);
  r.root.classList.toggle("cmg-full", full !== null && full >= alert);
  // the bar: what is known of the used memory, then the rest of it
  let rest = used || 0;
  const words = [];
  PARTS.forEach(([, , long], i) => {
    const part = Math.min(values[FIRST_PART + i] || 0, rest);
    rest -= part;
    r.parts[i].style.width = card.total ? `${(100 * part) / card.total}%` : "0";
    if (part) words.push([PARTS[i][0], part, card.host === undefined ? long : long.replace("this kernel's", "the engines'")]);
  });
  r.parts[PARTS.length].style.width = card.total ? `${(100 * rest) / card.total}%` : "0";
  if (rest) words.push(["rest", rest, "used"]);
  r.mark.style.left = `${alert}%`;
  const spoken = full === null ? "memory not known" : `${Math.round(full)} percent, ${size(used)} of ${size(card.total)} used`;
  attribute(r.bar, "aria-label", `Memory of GPU ${card.id}, ${card.name}`);
  if (full === null) r.bar.removeAttribute("aria-valuenow"); else attribute(r.bar, "aria-valuenow", Math.round(full));
  attribute(r.bar, "aria-valuetext", spoken);
  attribute(r.bar, "title", [spoken, ...words.map(([, mib, long]) => `${size(mib)} ${long}`)].join("\n"));
  put(r.amount, `${size(used)} / ${size(card.total)}`);
  put(r.percent, full === null ? NA : `${full >= alert ? "▲ " : ""}${Math.round(full)} %`);
  put(r.util, with_(values[UTIL], " %"));
  put(r.temp, with_(values[TEMP], " °C"));
  put(r.power, with_(values[POWER], " W"));
  const tail = place === undefined ? history.slice(-POINTS / 5) : history; // live: a minute at 1 s
  const span = place === undefined ? POINTS / 5 : history.length;
  r.spark.draw(tail.map(p => percent(p[2 * at], card.total)), tail.map(p => p[2 * at + 1]), span, place);
  detail(r.detail, card, words, values, cuda, history, at);
}

function detail(box, card, words, values, cuda, history, at) {
  const items = words.map(([part, mib, long]) => [part, `${size(mib)} ${long}`]);
  const free = values[USED] === null || card.total === null ? null : card.total - values[USED] - (card.driver || 0);
  if (free !== null) items.push(["free", `${size(Math.max(0, free))} free`]);
  if (card.driver) items.push(["driver", `${size(card.driver)} kept by the driver`]);
  const peak = Math.max(...history.map(p => p[2 * at] || 0));
  const facts = [card.unified ? "shares the system's memory" : "", cuda && `here ${cuda}`];
  facts.push(`highest of the last ${history.length} readings ${size(peak)}`);
  facts.push(card.limit ? `power limit ${card.limit} W` : "");
  items.push(["", facts.filter(Boolean).join(" · ")]);
  while (box.children.length > items.length) box.lastChild.remove();
  items.forEach(([part, text], i) => {
    let line = box.children[i];
    if (!line) {
      line = box.appendChild(make("span", "cmg-item"));
      line.append(make("span"), make("span"));
    }
    attribute(line.children[0], "class", part ? `cmg-swatch cmg-${part}` : "");
    put(line.children[1], text);
  });
}

function render({ model, el }) {
  const panel = panels.get(model.get("key"));
  const view = {};
  const rows = new Map();
  let paused = null, sort = "gpu", filter = "";
  el.classList.add("cmg");
  attribute(el, "role", "region");
  attribute(el, "aria-label", "GPU memory");

  const head = make("div", "cmg-head"), title = make("span", "cmg-title", "GPU memory");
  const badge = make("span", "cmg-badge", model.get("label"));
  badge.hidden = !model.get("label");
  const total = make("span", "cmg-total"), state = make("span", "cmg-state"), tools = make("span", "cmg-tools");
  const dot = make("span", "cmg-dot"), words = make("span", "cmg-words");
  state.append(dot, words);
  const pause = make("button", "cmg-pause", "Pause");
  pause.type = "button";
  const order = make("select", "cmg-sort"), search = make("input", "cmg-filter");
  attribute(order, "aria-label", "Sort devices");
  SORTS.forEach(([value, text]) => { const o = make("option", "", text); o.value = value; order.append(o); });
  attribute(search, "aria-label", "Filter devices by number or name");
  search.type = "search";
  search.placeholder = "Filter";
  tools.append(search, order, pause);
  const slider = make("input", "cmg-slider"), frames = panel.frames;
  if (frames) {
    const times = model.get("times");
    const at = () => `${times[slider.value].toFixed(1)} s of ${times.at(-1).toFixed(1)} s`;
    slider.type = "range";
    slider.max = frames.length - 1;
    slider.value = frames.length - 1;
    attribute(slider, "aria-label", "Moment of the recording");
    slider.told = () => { attribute(slider, "aria-valuetext", at()); return at(); };
    slider.oninput = () => redraw();
    tools.prepend(slider);
    pause.hidden = true;
  }
  head.append(title, badge, total, state, tools);
  const legend = make("div", "cmg-legend"), list = make("ul", "cmg-list"), none = make("div", "cmg-none");
  const alerts = make("div", "cmg-alerts");
  attribute(alerts, "role", "status");
  attribute(list, "role", "list");
  attribute(list, "aria-label", "Devices");
  const items = new Map([...PARTS, ["rest", "used"], ["free", "free"]].map(([part, short]) => {
    const item = make("span", "cmg-item");
    item.append(make("span", `cmg-swatch cmg-${part}`), make("span", "", short));
    item.hidden = true;
    legend.append(item);
    return [part, item];
  }));
  const utilItem = legend.appendChild(make("span", "cmg-item cmg-key"));
  utilItem.append(make("span", "cmg-swatch cmg-line"), make("span", "", "utilization, last minute"));
  const minutes = Math.round(frames ? model.get("times").at(-1) : (POINTS / 5) * model.get("interval"));
  put(utilItem.lastChild, `utilization over ${minutes < 120 ? `${minutes} s` : `${Math.round(minutes / 60)} min`}`);
  el.replaceChildren(head, list, none, legend, alerts);

  const warned = new Set();
  const device = (i, card, values, history, alert, spot) => {
    let r = rows.get(i);
    if (!r) { r = row(model.get("key")); rows.set(i, r); }
    r.root.dataset.gpu = card.id;
    fill(r, card, values, history, i, alert, spot);
    return r;
  };
  // One line a host, and below it its devices if the group is open: by hand, else where there are few, or while one filters.
  const turned = new Map();
  const groups = (hosts, cards, values, history, order_, word, alert) => {
    const few = cards.length <= FEW && hosts.length <= FEW / 8;
    const waited = (now() - panel.hostsAt) / 1000;
    const own = hosts.map(() => []);
    order_.forEach(i => own[cards[i].host].push(i));
    let at = hosts.map((_, h) => h);
    if (sort === "gpu") at.sort((a, b) => !hosts[a].name - !hosts[b].name || hosts[a].name.localeCompare(hosts[b].name, undefined, { numeric: true }));
    else { // the hosts as their first devices stand
      const first = h => (own[h].length ? order_.indexOf(own[h][0]) : Infinity);
      at.sort((a, b) => first(a) - first(b));
    }
    const lines = [];
    at.forEach(h => {
      const host = hosts[h], troubles = troubleWords(host, waited);
      if (word ? !own[h].length : !own[h].length && !host.engines && !troubles.length) return;
      const open = word ? true : turned.get(host.name) ?? few;
      const key = `host ${host.name}`;
      let r = rows.get(key);
      if (!r) {
        r = hostRow(model.get("key"), () => { turned.set(host.name, attribute_(r.name, "aria-expanded") !== "true"); redraw(); });
        r.root.dataset.host = host.name;
        rows.set(key, r);
      }
      const [card, sums, past] = together(cards, values, history, own[h]);
      card.name = host.name || "engines without a reading";
      fill(r, card, sums, past, 0, alert);
      r.root.classList.toggle("cmg-full", own[h].some(i => percent(values[i]?.[USED], cards[i].total) >= alert));
      put(r.index, card.name);
      const models = [...new Set(own[h].map(i => cards[i].name.replace(/^NVIDIA /, "")))].join(", ");
      put(r.model, own[h].length ? `${own[h].length} × ${models}` : "");
      attribute(r.name, "title", host.engines ? `${card.name}: engines ${host.engines}` : card.name);
      attribute(r.name, "aria-expanded", String(open && own[h].length > 0));
      attribute(r.bar, "aria-label", `Memory of ${card.name}, ${own[h].length} devices`);
      put(r.error, [...troubles, host.none].filter(Boolean).join(" · "));
      r.root.classList.toggle("cmg-noted", Boolean(r.error.textContent));
      r.root.classList.toggle("cmg-empty", !own[h].length);
      const stale = !host.engines;
      r.root.classList.toggle("cmg-stale", stale);
      lines.push(r);
      const labels = own[h].map(i => cards[i].id);
      if (open) own[h].forEach(i => {
        // containers of one machine number their cards each for themselves
        const twice = labels.filter(one => one === cards[i].id).length > 1;
        const line = device(i, twice ? { ...cards[i], label: `${cards[i].id} (${cards[i].uuid})` } : cards[i], values[i] || blank(), history, alert);
        line.root.classList.toggle("cmg-stale", stale);
        lines.push(line);
      });
    });
    return lines;
  };
  const draw = () => {
    const cards = model.get("cards"), alert = model.get("alert");
    el.dataset.seq = panel.seq;
    el.dataset.points = panel.history.length;
    const spot = panel.frames ? Number(slider.value) : undefined;
    const live = { values: panel.frames ? panel.frames[spot] : panel.values, history: panel.history };
    const shown = paused || live;
    const cluster = (model.get("hosts") || []).length > 0;
    if (!shown.values || (!cluster && shown.values.length !== cards.length)) return;
    const { history } = shown;
    const values = cards.map((_, i) => shown.values[i] || blank());
    el.dataset.shown = history.length;
    const word = filter.trim().toLowerCase();
    const hosts = model.get("hosts") || [];
    const words = i => `${hosts.length ? hosts[cards[i].host]?.name : ""} gpu ${cards[i].id} ${cards[i].name}`.toLowerCase();
    const order_ = cards.map((_, i) => i).filter(i => words(i).includes(word));
    const rank = sort === "used" ? i => percent(values[i]?.[USED], cards[i].total) : i => values[i]?.[UTIL];
    if (sort !== "gpu") order_.sort((a, b) => (rank(b) ?? -1) - (rank(a) ?? -1) || a - b);
    const lines = hosts.length ? groups(hosts, cards, values, history, order_, word, alert) : order_.map(i => device(i, cards[i], values[i], history, alert, spot));
    lines.forEach((r, place) => {
      const focused = r.root.contains(document.activeElement) ? document.activeElement : null;
      if (list.children[place] !== r.root) {
        list.insertBefore(r.root, list.children[place] || null);
        if (focused) focused.focus({ preventScroll: true });
      }
    });
    const kept = new Set(lines);
    for (const [i, r] of rows) if (!kept.has(r)) { r.root.remove(); rows.delete(i); }
    put(none, lines.length ? "" : `No device matches "${filter}".`);
    const sum = (pick, some = cards.map((_, i) => i)) => some.reduce((n, i) => n + (pick(i) || 0), 0);
    const alike = cards.every(c => !c.id.includes(":"));
    const there = hosts.filter(host => host.name).length;
    put(total, alike && (cards.length > 1 || there)
      ? `${there ? `${there} host${there > 1 ? "s" : ""}, ` : ""}${cards.length} device${cards.length > 1 ? "s" : ""}, ${size(sum(i => values[i][USED]))} of ${size(sum(i => cards[i].total))}` : "");
    PARTS.forEach(([part], k) => { items.get(part).hidden = !values.some(v => v[FIRST_PART + k]); });
    items.get("rest").hidden = !values.some(v => (v[USED] || 0) - v.slice(FIRST_PART).reduce((a, b) => a + (b || 0), 0) > 0);
    items.get("free").hidden = false;
    el.classList.toggle("cmg-single", cards.length === 1 && !cluster);
    const full = [];
    cards.forEach((card, i) => {
      const share = percent(values[i][USED], card.total);
      if (share !== null && share >= alert) { if (!warned.has(i)) full.push(cluster ? `${card.id} of ${hosts[card.host]?.name}` : card.id); warned.add(i); } else warned.delete(i);
    });
    if (full.length) put(alerts, `GPU ${full.join(", ")} above ${alert} percent`);
  };
  const tell = () => {
    const late = now() - panel.fresh, limit = Math.max(6000, 6000 * model.get("interval"));
    const kind = frames ? "replay" : panel.lost ? "lost" : paused ? "paused" : !panel.fresh ? "waiting" : late > limit ? "late" : "live";
    attribute(el, "data-state", kind);
    put(words, {
      replay: frames && slider.told(), lost: LOST, paused: "paused", waiting: "waiting for a reading", late: `no reading for ${Math.round(late / 1000)} s`,
      live: `live, every ${model.get("interval")} s`,
    }[kind]);
  };
  const redraw = () => { draw(); tell(); };
  pause.onclick = () => {
    paused = paused ? null : { values: panel.values, history: panel.history.slice() };
    put(pause, paused ? "Resume" : "Pause");
    attribute(pause, "aria-pressed", String(Boolean(paused)));
    redraw();
  };
  order.onchange = () => { sort = order.value; redraw(); };
  search.oninput = () => { filter = search.value; redraw(); };
  // the notebook's own keys (Enter, Esc, A, B, D D ...) must not act while one types here
  el.addEventListener("keydown", event => { if (event.key !== "Escape") event.stopPropagation(); });
  attribute(el, "data-lm-suppress-shortcuts", "true");

  panel.draws.add(redraw);
  panel.views.set(view, false);
  redraw();
  const observer = new IntersectionObserver(seen => {
    panel.views.set(view, seen[seen.length - 1].isIntersecting);
    panel.report();
  });
  observer.observe(el);
  const troubled = () => (model.get("hosts") || []).some(host => host.troubles.length); // their seconds go on
  const clock = setInterval(() => (troubled() ? redraw() : tell()), 1000);
  return () => {
    clearInterval(clock);
    observer.disconnect();
    panel.views.delete(view);
    panel.draws.delete(redraw);
    panel.report();
  };
}

export default { initialize, render };
