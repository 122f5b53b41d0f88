// The readings by time: the last ones as they were, and the whole run thinned by maximum (panel/history.py has the rule).

const RECENT = 600, WHOLE = 500, DAY = 86400;

const topOf = row => Math.max(row[USED] || 0, row[PEAK] || 0);
function merged(a, b) {
  const rows = [];
  for (let i = 0; i < Math.max(a.rows.length, b.rows.length); i++) {
    let one = a.rows[i], two = b.rows[i];
    if (!one || !known(one[USED]) || (two && known(two[USED]) && topOf(two) > topOf(one))) [one, two] = [two, one];
    if (!one || !two || !known(two[USED])) { rows.push(one || two); continue; }
    const made = one.slice();
    for (const at of [UTIL, TEMP, POWER]) made[at] = most([one[at], two[at]]);
    rows.push(made);
  }
  return { t: a.t, rows };
}

class History {
  constructor(interval) {
    this.interval = interval;
    this.clear();
  }

  clear() {
    this.recent = [];
    this.whole = [];
    this.step = Math.max(this.interval, 0.25);
  }

  // One reading, later than those before. A recording is kept as it is.
  push(t, rows, all = false) {
    const point = { t, rows };
    this.recent.push(point);
    if (all) return;
    if (this.recent.length > RECENT) this.recent.shift();
    this.older(point);
  }

  older(point) {
    this.join(point);
    if (this.whole.length > WHOLE) {
      this.step *= 2;
      const old = this.whole;
      this.whole = [];
      old.forEach(one => this.join(one));
    }
    while (this.whole.length && this.whole[0].t < point.t - DAY) this.whole.shift();
  }

  join(point) {
    const last = this.whole.at(-1);
    if (last && Math.floor(last.t / this.step) === Math.floor(point.t / this.step)) this.whole[this.whole.length - 1] = merged(last, point);
    else this.whole.push(point);
  }

  get last() { return this.recent.at(-1); }
  get began() { return Math.min(this.whole[0]?.t ?? Infinity, this.recent[0]?.t ?? Infinity); }

  // All points from a time on, the finest there are.
  from(t = -Infinity) {
    const first = this.recent[0]?.t ?? Infinity;
    return [...this.whole.filter(point => point.t < first && point.t >= t), ...this.recent.filter(point => point.t >= t)];
  }

  // How far apart two neighbours may be: more is a gap, in which nobody knows anything.
  apart(a, b) {
    const first = this.recent[0]?.t ?? Infinity;
    return b.t - a.t > Math.max(3, 3.5 * (a.t < first ? this.step : this.interval));
  }
}

// Packed points: [seconds since the base, row, ...], where a row that is as it was before is 0.
function unpackPoints(packed, base) {
  let before = [];
  return packed.map(([t, ...rows]) => {
    before = rows.map((row, i) => (row === 0 ? before[i] : unpacked(row)));
    return { t: base + t, rows: before };
  });
}
