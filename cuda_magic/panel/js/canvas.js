// The palette on a canvas: the same looks as the CSS classes (render/palette.py), and the colours of the page.

const tiles = new Map();
function pattern(context, name) {
  const look = LOOK[name], ratio = window.devicePixelRatio || 1, key = `${name} ${ratio}`;
  if (look.pattern === "solid") return look.colour;
  if (!tiles.has(key)) {
    const step = (look.on + look.off) * ratio, on = look.on * ratio;
    const tile = document.createElement("canvas");
    tile.width = tile.height = Math.round(step);
    const draw = tile.getContext("2d");
    draw.fillStyle = look.colour;
    if (look.pattern === "dots") {
      draw.beginPath();
      draw.arc(step / 2, step / 2, 0.32 * step, 0, 7);
      draw.fill();
    } else {
      draw.fillRect(0, 0, step, on);
      if (look.pattern === "grid") draw.fillRect(0, 0, on, step);
    }
    const made = context.createPattern(tile, "repeat");
    made.setTransform(new DOMMatrix().rotate(look.angle));
    tiles.set(key, made);
  }
  return tiles.get(key);
}

// The page's colours as they are now: they change with the theme, and where the user has forced his own.
function ink(element) {
  const style = getComputedStyle(element), of = name => style.getPropertyValue(name).trim();
  return { fg: style.color, edge: of("--cmg-edge") || "#bbb", warn: of("--cmg-warn") || "#b3261e", ok: of("--cmg-ok") || "#1d8a4a", amber: of("--cmg-amber") || "#b26a00" };
}

function sparkline() {
  const svg = document.createElementNS(SVG, "svg");
  attribute(svg, "viewBox", "0 0 100 24");
  attribute(svg, "preserveAspectRatio", "none");
  attribute(svg, "aria-hidden", "true");
  attribute(svg, "class", "cmg-spark");
  const [area, line, cursor] = ["used", "util", "cursor"].map(name => {
    const path = svg.appendChild(document.createElementNS(SVG, "path"));
    attribute(path, "class", `cmg-spark-${name}`);
    return path;
  });
  // points of one device: [time, percent in use, utilization], null where nothing is known
  svg.draw = (points, from, to, at) => {
    const x = t => ((100 * (t - from)) / Math.max(to - from, 0.001)).toFixed(1);
    const y = v => (23 - (22 * Math.min(v, 100)) / 100).toFixed(1);
    const runs = pick => {
      const found = [];
      let run = null;
      for (const point of points) {
        if (point[pick] === null) { run = null; continue; }
        if (!run) found.push(run = []);
        run.push(`${x(point[0])} ${y(point[pick])}`);
      }
      return found;
    };
    // an area ends where its run ends: a gap stays a gap
    attribute(area, "d", runs(1).filter(run => run.length > 1).map(run => `M${run.join("L")}L${run.at(-1).split(" ")[0]} 24L${run[0].split(" ")[0]} 24Z`).join(""));
    attribute(line, "d", runs(2).map(run => `M${run.join("L")}`).join(""));
    svg.point = when => attribute(cursor, "d", known(when) && when >= from && when <= to ? `M${x(when)} 0V24` : "");
    svg.point(at);
  };
  svg.point = () => {};
  return svg;
}
