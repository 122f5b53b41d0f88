// The view: the head with its tools, the table of devices, the legend. The pieces before it are in js/ (rich.py has
// their order): words, history, kernel, canvas, chart, export, rows, replay.

const LOST = "the kernel was restarted: run %gpu_mem again";
const FEW = 64; // devices up to which the groups of a cluster are open at first
const SORTS = [["gpu", "GPU number"], ["used", "most used"], ["util", "busiest"]];
const MINUTE = 60;

const natural = (a, b) => a.localeCompare(b, undefined, { numeric: true });

function render({ model, el }) {
  const panel = panels.get(model.get("key")), key = model.get("key"), rows = new Map(), details = new Map();
  const view = { panel, el, get alert() { return model.get("alert"); } };
  let paused = null, sort = "gpu", filter = "", stood = [];
  el.classList.add("cmg");
  attribute(el, "role", "region");
  attribute(el, "aria-label", "GPU memory");

  const head = make("div", "cmg-head"), title = make("span", "cmg-title", "GPU memory");
  const badge = make("span", "cmg-badge", model.get("label")), models = make("span", "cmg-models");
  badge.hidden = !model.get("label");
  const total = make("span", "cmg-total"), state = make("span", "cmg-state"), tools = make("span", "cmg-tools");
  const words = make("span", "cmg-words"), top = make("div", "cmg-top");
  state.append(make("span", "cmg-dot"), words);
  const pause = button("cmg-pause", "Pause", "", () => {
    const { history } = panel;
    paused = paused ? null : { values: panel.values, count: history.recent.length, t: history.last?.t ?? panel.time() };
    put(pause, paused ? "Resume" : "Pause");
    attribute(pause, "aria-pressed", String(Boolean(paused)));
    redraw();
  });
  attribute(pause, "aria-pressed", "false");
  const order = make("select", "cmg-sort"), search = make("input", "cmg-filter");
  attribute(order, "aria-label", "Sort devices");
  SORTS.forEach(([value, text]) => { const o = make("option", "", text); o.value = value; order.append(o); });
  attribute(search, "aria-label", "Filter devices by number, cuda index or name");
  search.type = "search";
  search.placeholder = "Filter";
  tools.append(search, order, pause);
  const redraw = () => { draw(); tell(); };
  const player = panel.frames ? replayTools(panel, redraw) : null;
  if (player) { tools.prepend(...player.tools); pause.remove(); }
  view.redraw = redraw;
  view.seek = t => player && player.seek(t);
  view.points = (from, to) => panel.history.from(from).filter(point => point.t <= to + 1e-3);
  view.csv = () => save("gpu_memory.csv", new Blob([csvOf(model.get("cards"), view.points(-Infinity, paused ? paused.t : Infinity))], { type: "text/csv" }));
  head.append(title, badge, models, total, state, tools);
  const legend = make("div", "cmg-legend"), list = make("div", "cmg-list"), none = make("div", "cmg-none"), alerts = make("div", "cmg-alerts");
  attribute(alerts, "role", "status");
  attribute(list, "role", "table");
  attribute(list, "aria-label", "Devices");
  const heads = headRow();
  list.append(heads.root);
  const items = new Map([...STACK, "free"].map(part => [part, legend.appendChild(legendItem(part))]));
  const lines = legend.appendChild(legendItem("line", "utilization"));
  lines.classList.add("cmg-key");
  el.replaceChildren(head, top, list, none, legend, alerts);

  const warned = new Set();
  const device = (i, card, values, points, time, name) => {
    let r = rows.get(i);
    if (!r) {
      r = row(key);
      rows.set(i, r);
      r.name.onclick = () => {
        r.box.hidden = !r.box.hidden;
        attribute(r.name, "aria-expanded", String(!r.box.hidden));
        if (r.box.hidden) { details.get(i)?.end(); details.delete(i); r.box.replaceChildren(); }
        redraw();
      };
    }
    r.root.dataset.gpu = card.id;
    const words = fill(r, card, values, points, i, view.alert, time, name);
    if (!r.box.hidden) r.later = () => {
      if (!details.has(i)) details.set(i, new Detail(r, i, view));
      details.get(i).draw(card, words, values, model.get("who")[i] || [], time);
    };
    return r;
  };
  // One line a host, and below it its devices if the group is open: by hand, else where there are few, or while one filters.
  const turned = new Map();
  const groups = (hosts, cards, values, points, order_, word, time) => {
    const few = cards.length <= FEW && hosts.length <= FEW / 8, waited = now() - panel.hostsAt;
    const own = hosts.map(() => []);
    order_.forEach(i => own[cards[i].host].push(i));
    const at = hosts.map((_, h) => h);
    if (sort === "gpu") at.sort((a, b) => !hosts[a].name - !hosts[b].name || natural(hosts[a].name, hosts[b].name));
    else { // the hosts as their first devices stand
      const first = h => (own[h].length ? order_.indexOf(own[h][0]) : Infinity);
      at.sort((a, b) => first(a) - first(b));
    }
    const made = [];
    at.forEach(h => {
      const host = hosts[h], troubles = troubleWords(host, waited);
      if (word ? !own[h].length : !own[h].length && !host.engines && !troubles.length) return;
      const open = word ? true : turned.get(host.name) ?? few, name = `host ${host.name}`;
      let r = rows.get(name);
      if (!r) {
        r = hostRow(key, () => { turned.set(host.name, r.name.getAttribute("aria-expanded") !== "true"); redraw(); });
        r.root.dataset.host = host.name;
        rows.set(name, r);
      }
      const [card, sums, past] = together(cards, values, points, own[h]);
      card.name = host.name || "engines without a reading";
      const kinds = [...new Set(own[h].map(i => cards[i].name.replace(/^NVIDIA /, "")))].join(", ");
      fill(r, card, sums, past, 0, view.alert, time, own[h].length ? `${own[h].length} × ${kinds}` : "");
      r.root.classList.toggle("cmg-full", own[h].some(i => percent(values[i]?.[USED], cards[i].total) >= view.alert));
      put(r.index, card.name);
      attribute(r.name, "title", host.engines ? `${card.name}: engines ${host.engines}` : card.name);
      attribute(r.name, "aria-expanded", String(open && own[h].length > 0));
      attribute(r.bar, "aria-label", `Memory of ${card.name}, ${own[h].length} devices`);
      put(r.error, [...troubles, host.none].filter(Boolean).join(" · "));
      r.root.classList.toggle("cmg-noted", Boolean(r.error.textContent));
      r.root.classList.toggle("cmg-empty", !own[h].length);
      const stale = !host.engines;
      r.root.classList.toggle("cmg-stale", stale);
      made.push(r);
      const labels = own[h].map(i => cards[i].id);
      if (open) own[h].forEach(i => {
        // containers of one machine number their cards each for themselves
        const twice = labels.filter(one => one === cards[i].id).length > 1;
        const one = twice ? { ...cards[i], label: `${cards[i].id} (${cards[i].uuid})` } : cards[i];
        const line = device(i, one, values[i] || blank(), points, time, cards[i].name.replace(/^NVIDIA /, ""));
        line.root.classList.toggle("cmg-stale", stale);
        made.push(line);
      });
    });
    return made;
  };
  const matching = (cards, hosts, word) => {
    const said = i => `${hosts.length ? hosts[cards[i].host]?.name : ""} gpu ${cards[i].id} ${known(cards[i].cuda) ? `cuda:${cards[i].cuda}` : ""} ${cards[i].name}`.toLowerCase();
    return cards.map((_, i) => i).filter(i => said(i).includes(word));
  };
  const ordered = (some, cards, values) => {
    const rank = sort === "used" ? i => percent(values[i]?.[USED], cards[i].total) : i => values[i]?.[UTIL];
    const byNumber = (a, b) => natural(cards[a].id, cards[b].id) || a - b;
    // rows do not move under the hand that is about to press one
    const held_ = sort !== "gpu" && list.matches(":hover") && stood.length === some.length && stood.every(i => some.includes(i));
    stood = held_ ? stood : some.sort((a, b) => (sort === "gpu" ? 0 : (rank(b) ?? -1) - (rank(a) ?? -1)) || byNumber(a, b));
    return stood;
  };
  const draw = () => {
    const cards = model.get("cards"), hosts = model.get("hosts") || [], { history } = panel;
    el.dataset.seq = panel.seq;
    el.dataset.points = history.recent.length;
    const source = player ? panel.frames[player.spot()] : paused ? paused.values : panel.values;
    if (!source || (!hosts.length && source.length > cards.length)) return;
    el.dataset.shown = paused ? paused.count : history.recent.length;
    const values = cards.map((_, i) => source[i] || blank());
    const newest = history.last?.t ?? panel.time(), late = panel.time() - newest;
    const to = player ? history.last.t : paused ? paused.t : late < Math.max(4, 4 * history.interval) ? newest : panel.time();
    const time = { from: player ? history.began : to - MINUTE, to, at: player ? player.time() : panel.cursor, apart: (a, b) => history.apart(a, b) };
    const points = player ? history.recent : view.points(to - MINUTE - 5, to);
    const word = filter.trim().toLowerCase(), order_ = ordered(matching(cards, hosts, word), cards, values);
    const common = shared(cards);
    const short = card => { const rest = card.name.replace(/^NVIDIA /, "").split(" ").slice(common.n).join(" "); return hosts.length ? card.name : rest; };
    put(models, hosts.length || !cards.length ? "" : `${cards.length > 1 ? `${cards.length} × ` : ""}${common.first}`);
    const shown = hosts.length ? groups(hosts, cards, values, points, order_, word, time) : order_.map(i => device(i, cards[i], values[i], points, time, short(cards[i])));
    shown.forEach((r, place) => {
      const focused = r.root.contains(document.activeElement) ? document.activeElement : null;
      if (list.children[place + 1] !== r.root) {
        list.insertBefore(r.root, list.children[place + 1] || null);
        if (focused) focused.focus({ preventScroll: true });
      }
      if (r.later) { r.later(); r.later = null; }
    });
    const kept = new Set(shown);
    for (const [i, r] of rows) if (!kept.has(r)) { r.root.remove(); rows.delete(i); details.get(i)?.end(); details.delete(i); }
    heads.root.hidden = !shown.length;
    put(heads.heads.sparkcell, player ? "whole run" : "last minute");
    put(none, shown.length ? "" : filter ? `No device matches "${filter}".` : "No device.");
    const alive = i => !hosts.length || Boolean(hosts[cards[i].host]?.engines);
    const counted = cards.map((_, i) => i).filter(i => alive(i) && known(values[i][USED]));
    const silent = cards.length - counted.length, there = hosts.filter(host => host.name).length;
    const alike = cards.every(card => !card.id.includes(":"));
    put(total, alike && (cards.length > 1 || there)
      ? `${there ? `${there} host${there > 1 ? "s" : ""}, ` : ""}${cards.length} device${cards.length > 1 ? "s" : ""}, ${counted.length ? `${size(sumOf(counted.map(i => values[i][USED])))} of ${size(sumOf(counted.map(i => cards[i].total)))}` : "memory not known"}${silent && counted.length ? `, ${silent} without a reading` : ""}` : "");
    put(top, hosts.length || model.get("trouble") ? "" : headline(cards, values, model.get("who"), view.alert));
    STACK.forEach(part => { items.get(part).hidden = !values.some(v => (stacked(v) || {})[part]); });
    el.classList.toggle("cmg-single", cards.length === 1 && !hosts.length);
    const full = [];
    cards.forEach((card, i) => {
      const share = percent(values[i][USED], card.total);
      if (share !== null && share >= view.alert) { if (!warned.has(i)) full.push(hosts.length ? `${card.id} of ${hosts[card.host]?.name}` : card.id); warned.add(i); } else warned.delete(i);
    });
    if (full.length) put(alerts, `GPU ${full.join(", ")} above ${view.alert} percent`);
  };
  const tell = () => {
    const age = now() - panel.fresh, limit = Math.max(6, 6 * model.get("interval")), trouble = model.get("trouble");
    const kind = player ? "replay" : panel.lost ? "lost" : paused ? "paused" : !panel.fresh ? "waiting" : age > limit ? "late" : trouble ? "trouble" : "live";
    attribute(el, "data-state", kind);
    put(words, {
      replay: player && player.told(), lost: LOST, paused: "paused", waiting: "waiting for a reading", late: `no reading for ${Math.round(age)} s`,
      trouble, live: `live, every ${model.get("interval")} s`,
    }[kind]);
  };
  order.onchange = () => { sort = order.value; redraw(); };
  search.oninput = () => { filter = search.value; redraw(); };
  // the notebook's own keys (Enter, Esc, A, B, D D ...) must not act while one types here
  el.addEventListener("keydown", event => { if (event.key !== "Escape") event.stopPropagation(); });
  attribute(el, "data-lm-suppress-shortcuts", "true");

  panel.draws.add(redraw);
  const moved = () => rows.forEach(r => r.spark.point(player ? player.time() : panel.cursor)); // one crosshair through all
  panel.moves.add(moved);
  panel.views.set(view, false);
  redraw();
  const observer = new IntersectionObserver(seen => {
    panel.views.set(view, seen[seen.length - 1].isIntersecting);
    panel.report();
  });
  observer.observe(el);
  const wider = new ResizeObserver(() => { if (details.size) redraw(); });
  wider.observe(el);
  const clock_ = setInterval(redraw, 1000); // time goes on, readings or not
  return () => {
    clearInterval(clock_);
    if (player) player.end();
    observer.disconnect();
    wider.disconnect();
    details.forEach(one => one.end());
    panel.views.delete(view);
    panel.draws.delete(redraw);
    panel.moves.delete(moved);
    panel.report();
  };
}

export default { initialize, render };
