// What the views of one panel share on this page, and how it speaks to the kernel: a click does not reach Python while
// a cell runs, so the page says what it sees on the control channel (kernel/control.py) and does all else by itself.
//
// Python sends {s: number of the reading, t: seconds since the base, v: values} a tick; of a cluster only the rows that
// changed ({i: their numbers}); after a gap {p: points} after number f, or {w, p}: the whole run and the last points;
// {m: marks} that changed. Of a recording all readings are in the model (frames, times): only `ready` is said then.

const TARGET = "cuda_magic.panel";
const panels = new Map(); // key -> what all views of one panel share on this page

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
    views: new Map(), draws: new Set(), values: null, seq: 0, fresh: 0, lost: false, gone: false, asked: 0, said: null,
    hostsAt: now(), skew: 0, marks: new Map(), history: new History(model.get("interval")), cursor: null, moves: new Set(),
  };
  panels.set(key, panel);
  panel.time = () => now() + panel.skew; // the kernel's clock, which may not be the page's
  panel.move = at => { if (panel.cursor !== at) { panel.cursor = at; panel.moves.forEach(one => one()); } };
  const cid = id();
  const draw = () => panel.draws.forEach(one => one());
  const looking = () => document.visibilityState === "visible" && [...panel.views.values()].some(Boolean);
  const heard = answer => {
    const changed = panel.lost !== !answer;
    panel.lost = !answer;
    if (answer) {
      panel.fresh = Math.max(panel.fresh, now() - answer.age);
      catchUp(answer.seq, panel.time() - answer.age);
    }
    if (changed || answer) draw();
  };
  const say = (t, more) => {
    panel.asked = now();
    const body = { t, key, cid, seq: panel.seq, see: looking(), ...more };
    if (!overControl(model, body, heard)) model.send(body);
  };
  // readings that changed nothing are not sent: they are as the last one was, up to the time of the newest
  const catchUp = (seq, t) => {
    const missing = seq - panel.seq, last = panel.history.last;
    if (!panel.values || !last || missing <= 0) return;
    const some = Math.min(missing, RECENT), step = (t - last.t) / some;
    if (step > 0) for (let n = 1; n <= some; n++) panel.history.push(last.t + n * step, last.rows);
    panel.seq = seq;
  };
  const frames = model.get("frames") || [];
  if (frames.length) {
    const base = model.get("base");
    frames.forEach((rows, i) => panel.history.push(base + model.get("times")[i], rows, true));
    Object.assign(panel, { frames, report: () => {} });
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
  const quiet = () => Math.max(2.5, 2.5 * model.get("interval"));
  const timer = setInterval(() => {
    if (!looking()) return;
    const waited = now() - panel.asked;
    if (waited >= model.get("beat") || (now() - panel.fresh > quiet() && waited > quiet())) say("beat");
  }, 500);
  const past = message => {
    const base = model.get("base");
    if (message.w) {
      panel.history.clear();
      unpackPoints(message.w, base).forEach(point => panel.history.older(point));
      unpackPoints(message.p, base).slice(0, -1).forEach(point => panel.history.push(point.t, point.rows));
    } else if (message.p) {
      const points = unpackPoints(message.p, base), mine = panel.seq - message.f;
      if (mine >= 0) points.slice(mine, -1).forEach(point => panel.history.push(point.t, point.rows));
    }
  };
  model.on("msg:custom", message => {
    const t = model.get("base") + message.t;
    panel.fresh = now();
    panel.skew = t - now();
    (message.m || []).forEach(mark => panel.marks.set(mark.i, mark));
    if (message.p) past(message);
    else catchUp(message.v ? message.s - 1 : message.s, message.v ? t - model.get("interval") : t);
    if (message.v) {
      if (message.i) {
        const values = (panel.values || []).slice();
        while (values.length < model.get("cards").length) values.push(blank());
        message.i.forEach((row, k) => { values[row] = unpacked(message.v[k]); });
        panel.values = values;
      } else panel.values = message.v.map(unpacked);
      if (message.s > panel.seq || !panel.history.last) panel.history.push(t, panel.values);
      panel.seq = message.s;
    }
    draw();
  });
  for (const name of ["cards", "who", "trouble"]) model.on(`change:${name}`, draw);
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
