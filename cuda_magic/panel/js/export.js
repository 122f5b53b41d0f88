// What leaves the page: the numbers as CSV (the columns and bytes of %gpu_mem --history --df), a chart as PNG.

const MIB = 1048576;
const CSV = ["time", "gpu", "name", "total", "used", "utilization", "temperature", "power", ...STACK, "peak", "clock", "throttled"];

function csvOf(cards, points) {
  const word = value => (known(value) ? (/[",\n]/.test(value) ? `"${String(value).replace(/"/g, '""')}"` : String(value)) : "");
  const bytes = mib => (known(mib) ? mib * MIB : null);
  const lines = [CSV.join(",")];
  for (const { t, rows } of points) {
    cards.forEach((card, i) => {
      const row = rows[i] || blank();
      const parts = STACK.map(name => bytes(row[PLACE[name]]));
      const line = [
        new Date(1000 * t).toISOString(), card.id, card.name, bytes(card.total), bytes(row[USED]), row[UTIL], row[TEMP],
        row[POWER], ...parts, bytes(row[PEAK]), row[CLOCK], row[THROTTLED],
      ];
      lines.push(line.map(word).join(","));
    });
  }
  return lines.join("\n") + "\n";
}

function save(name, blob) {
  const link = make("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// The charts of one device under a title, on the page's ground, with the legend.
function pngOf(element, title, plots, looks) {
  const ratio = window.devicePixelRatio || 1, { fg } = ink(element), ground = getComputedStyle(element).backgroundColor;
  const wide = Math.max(...plots.map(plot => plot.ctx.canvas.width)), line = 24 * ratio;
  const high = plots.reduce((sum, plot) => sum + plot.ctx.canvas.height, 2 * line);
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: wide, height: high });
  const draw = canvas.getContext("2d");
  draw.fillStyle = ground;
  draw.fillRect(0, 0, wide, high);
  draw.fillStyle = fg;
  draw.font = `${13 * ratio}px system-ui, sans-serif`;
  draw.fillText(title, 8 * ratio, 16 * ratio);
  let y = line;
  for (const plot of plots) { draw.drawImage(plot.ctx.canvas, 0, y); y += plot.ctx.canvas.height; }
  let x = 8 * ratio;
  for (const name of looks) {
    draw.fillStyle = pattern(draw, name);
    draw.fillRect(x, y + 6 * ratio, 14 * ratio, 12 * ratio);
    draw.strokeStyle = fg;
    draw.strokeRect(x, y + 6 * ratio, 14 * ratio, 12 * ratio);
    draw.fillStyle = fg;
    draw.fillText(LOOK[name].words, x + 20 * ratio, y + 16 * ratio);
    x += 32 * ratio + draw.measureText(LOOK[name].words).width;
  }
  return new Promise(done => canvas.toBlob(done, "image/png"));
}
