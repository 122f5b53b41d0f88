// One device over time: what holds its memory as stacked areas, its utilization as a line, and below both its
// temperature and power against their limits. uPlot draws the axes, areas and lines; marks and limits are ours.

const RANGES = [["1 min", 60], ["10 min", 600], ["whole run", Infinity]];
const HIGH = 160, LOW = 84, TOP_ROOM = 22;

// Columns for uPlot: times, and for each pick a list; a gap in time is a row of nulls.
function columns(points, at, apart, picks) {
  const out = [[], ...picks.map(() => [])];
  let before = null;
  for (const point of points) {
    if (before && apart(before, point)) {
      out[0].push((before.t + point.t) / 2);
      picks.forEach((_, k) => out[k + 1].push(null));
    }
    const row = point.rows[at] || blank(), parts = stacked(row);
    out[0].push(point.t);
    picks.forEach((pick, k) => out[k + 1].push(pick(row, parts) ?? null));
    before = point;
  }
  return out;
}

class Chart {
  constructor(box, high, panel, seek) {
    Object.assign(this, { box, high, panel, seek, plot: null, kind: "", lines: [] });
  }

  // spec: {kind, y: {scale: [low, high, unit]}, lines: [{scale, stroke, fill, below, pick}], rules, marks}
  draw(points, at, apart, spec, from, to, ruler) {
    this.points = points;
    Object.assign(this, { spec, from, to, ruler });
    const data = columns(points, at, apart, spec.lines.map(line => line.pick));
    const wide = Math.max(200, Math.floor(this.box.clientWidth || 600));
    if (this.plot && this.kind === spec.kind) {
      if (this.plot.width !== wide) this.plot.setSize({ width: wide, height: this.high });
      this.plot.setData(data, true);
    } else {
      this.end();
      this.kind = spec.kind;
      this.plot = new uPlot(this.options(spec, wide), data, this.box);
    }
    this.follow();
  }

  options(spec, wide) {
    const colour = () => ink(this.box), scales = Object.keys(spec.y);
    const axis = (scale, side) => ({
      scale, side, size: 52, stroke: () => colour().fg, font: "11px system-ui, sans-serif",
      grid: { show: side === 3, stroke: () => colour().edge, width: 0.5 }, ticks: { show: false },
      splits: () => { const [low, high] = this.spec.y[scale]; return [0, 1, 2, 3, 4].map(k => low + ((high - low) * k) / 4); },
      values: (_, splits) => splits.map((v, k) => (k % 2 ? "" : `${Math.round(v)}${this.spec.y[scale][2]}`)),
    });
    return {
      width: wide, height: this.high, padding: [spec.marks ? TOP_ROOM : 8, 8, 0, 0], legend: { show: false },
      scales: {
        x: { time: true, range: () => [this.from, Math.max(this.to, this.from + 1)] },
        ...Object.fromEntries(scales.map(scale => [scale, { range: () => this.spec.y[scale].slice(0, 2) }])),
      },
      axes: [
        {
          stroke: () => colour().fg, font: "11px system-ui, sans-serif", size: 22, space: 90,
          grid: { show: false }, ticks: { stroke: () => colour().edge, size: 4 },
          values: (_, splits) => splits.map(t => clock(t)),
        },
        axis(scales[0], 3), ...(scales[1] ? [axis(scales[1], 1)] : []),
      ],
      series: [{}, ...spec.lines.map(line => ({
        scale: line.scale, width: line.width ?? 1, dash: line.dash, points: { show: false },
        stroke: line.stroke === "fg" ? () => colour().fg : line.stroke,
        ...(line.fill && !line.below ? { fill: u => pattern(u.ctx, line.fill) } : {}),
      }))],
      bands: spec.lines.flatMap((line, k) => (line.below ? [{ series: [k + 1, line.below], fill: u => pattern(u.ctx, line.fill) }] : [])),
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      hooks: {
        drawClear: [u => this.behind(u)], draw: [u => this.above(u)],
        setCursor: [u => { if (!this.following && u.cursor.event) this.panel.move(known(u.cursor.idx) && u.cursor.left >= 0 ? u.data[0][u.cursor.idx] : null); }],
        ready: [u => {
          u.over.addEventListener("click", () => known(u.cursor.idx) && this.seek(u.data[0][u.cursor.idx]));
          u.over.addEventListener("mouseleave", () => this.panel.move(null));
        }],
      },
    };
  }

  // where the clock was held down: a band behind the lines
  behind(u) {
    const { left, top, width, height } = u.bbox, amber = ink(this.box).amber, { points, spec } = this;
    if (!spec.band) return;
    u.ctx.save();
    u.ctx.globalAlpha = 0.25;
    u.ctx.fillStyle = amber;
    points.forEach((point, i) => {
      if (!spec.band(point)) return;
      const from = u.valToPos(point.t, "x", true), next = points[i + 1];
      const to = next ? u.valToPos(next.t, "x", true) : from + 2;
      const a = Math.max(left, from), b = Math.min(left + width, Math.max(to, from + 2));
      if (b > a) u.ctx.fillRect(a, top, b - a, height);
    });
    u.ctx.restore();
  }

  above(u) {
    const { ctx, bbox: { left, top, width, height } } = u, colours = ink(this.box), ratio = window.devicePixelRatio || 1;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.lineWidth = ratio;
    for (const [scale, value, words] of this.spec.rules || []) { // limits
      const y = u.valToPos(value, scale, true);
      if (y < top - 1 || y > top + height) continue;
      ctx.strokeStyle = ctx.fillStyle = colours.warn;
      ctx.setLineDash([4 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(left, y);
      ctx.lineTo(left + width, y);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.fillStyle = colours.fg;
      ctx.fillText(words, left + 4 * ratio, y + (y - top < 14 * ratio ? 12 : -3) * ratio);
    }
    if (this.spec.cap) {
      ctx.strokeStyle = colours.fg;
      ctx.lineWidth = 2 * ratio;
      for (const point of this.points) { // what was held for less than a tick
        const peak = this.spec.cap(point);
        if (!known(peak) || point.t < this.from) continue;
        const x = u.valToPos(point.t, "x", true), y = u.valToPos(peak, Object.keys(this.spec.y)[0], true);
        ctx.beginPath();
        ctx.moveTo(x - 4 * ratio, y);
        ctx.lineTo(x + 4 * ratio, y);
        ctx.stroke();
      }
    }
    if (this.spec.marks) this.marks(u, colours, ratio);
    ctx.restore();
  }

  // cells as brackets above the plot, flags where memory ran out or room was made
  marks(u, colours, ratio) {
    const { ctx, bbox: { left, top, width, height } } = u, end = left + width;
    ctx.textAlign = "center";
    let taken = -Infinity;
    for (const mark of this.panel.marks.values()) {
      const a = u.valToPos(mark.a, "x", true), b = u.valToPos(mark.b ?? this.to, "x", true);
      if (b < left || a > end) continue;
      if (mark.k === "cell") {
        const from = Math.max(a, left), to = Math.min(b, end);
        ctx.strokeStyle = ctx.fillStyle = mark.x ? colours.warn : colours.fg;
        ctx.lineWidth = 1.5 * ratio;
        ctx.beginPath();
        ctx.moveTo(from, top - 2 * ratio);
        ctx.lineTo(from, top - 6 * ratio);
        ctx.lineTo(to, top - 6 * ratio);
        ctx.lineTo(to, top - 2 * ratio);
        ctx.stroke();
        const words = `[${mark.n}]`, middle = (from + to) / 2, half = ctx.measureText(words).width / 2 + 2 * ratio;
        if (middle - half > taken) { ctx.fillText(words, middle, top - 9 * ratio); taken = middle + half; }
      } else if (a >= left) {
        ctx.fillStyle = ctx.strokeStyle = mark.k === "oom" ? colours.warn : colours.ok;
        ctx.fillText(mark.k === "oom" ? "▼" : "◆", a, top + 9 * ratio);
        ctx.setLineDash([2 * ratio, 2 * ratio]);
        ctx.lineWidth = ratio;
        ctx.beginPath();
        ctx.moveTo(a, top + 12 * ratio);
        ctx.lineTo(a, top + height);
        ctx.stroke();
        ctx.setLineDash([]);
      }
    }
    ctx.textAlign = "start";
  }

  // the crosshair stands at the panel's time, whichever chart or key moved it
  follow() {
    if (!this.plot) return;
    this.following = true;
    const at = this.panel.cursor, left = known(at) ? this.plot.valToPos(at, "x") : -10;
    this.plot.setCursor({ left, top: known(at) ? 10 : -10 }, false);
    this.following = false;
  }

  end() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }
}

function memorySpec(card, at, points, alert) {
  const total = (card.total || 1024) / 1024;
  const seen = STACK.filter(name => points.some(point => (stacked(point.rows[at]) || {})[name]));
  const lines = seen.map((name, k) => ({
    scale: "GiB", stroke: LOOK[name].colour, fill: name, below: k,
    pick: (row, parts) => parts && seen.slice(0, k + 1).reduce((sum, one) => sum + parts[one], 0) / 1024,
  }));
  lines.push({ scale: "%", stroke: "fg", width: 1.5, pick: row => row[UTIL] });
  return {
    kind: `memory ${seen.join(" ")} ${card.total}`, y: { GiB: [0, total, " GiB"], "%": [0, 100, " %"] }, lines, marks: true,
    cap: point => { const peak = point.rows[at]?.[PEAK]; return known(peak) ? peak / 1024 : null; },
    rules: card.total ? [["GiB", (total * alert) / 100, `${alert} %`]] : [], seen,
  };
}

function heatSpec(card, at, points) {
  const some = place => points.some(point => known(point.rows[at]?.[place]));
  const y = {}, lines = [], rules = [];
  if (some(TEMP)) {
    y["°C"] = [0, Math.max(card.hot || 0, 100), " °C"];
    lines.push({ scale: "°C", stroke: LOOK.fragmented.colour, width: 1.5, pick: row => row[TEMP] });
    if (card.hot) rules.push(["°C", card.hot, `slows down at ${card.hot} °C`]);
  }
  if (some(POWER)) {
    const top = Math.max(card.limit || 0, most(points.map(point => point.rows[at]?.[POWER])) || 1) * 1.1;
    y.W = [0, top, " W"];
    lines.push({ scale: "W", stroke: LOOK.context.colour, width: 1.5, dash: [5, 3], pick: row => row[POWER] });
    if (card.limit) rules.push(["W", card.limit, `power limit ${card.limit} W`]);
  }
  if (!lines.length) return null;
  return { kind: `heat ${Object.keys(y).join()}`, y, lines, rules, band: point => Boolean(point.rows[at]?.[THROTTLED]) };
}
