// A recording: play, seek by slider, chart or key, and the clock of the time shown.

const SPEEDS = [["real time", 1], ["10 times", 10], ["60 times", 60], ["600 times", 600]];

function replayTools(panel, redraw) {
  const times = panel.history.recent.map(point => point.t), last = times.length - 1, began = times[0];
  const slider = make("input", "cmg-slider"), speed = make("select", "cmg-sort cmg-speed");
  let timer = null, at = times[last];
  slider.type = "range";
  slider.max = last;
  slider.value = last;
  attribute(slider, "aria-label", "Moment of the recording");
  attribute(speed, "aria-label", "Speed of playing");
  SPEEDS.forEach(([words, factor]) => { const option = make("option", "", words); option.value = factor; speed.append(option); });
  speed.value = 10;
  const stop = () => { clearInterval(timer); timer = null; put(play, "Play"); attribute(play, "aria-pressed", "false"); };
  const play = button("cmg-play", "Play", "", () => {
    if (timer) { stop(); return; }
    if (Number(slider.value) === last) slider.value = 0;
    at = times[slider.value];
    let before = now();
    timer = setInterval(() => {
      at += (now() - before) * Number(speed.value);
      before = now();
      let k = Number(slider.value);
      while (k < last && times[k + 1] <= at) k++;
      if (k !== Number(slider.value)) { slider.value = k; redraw(); }
      if (k === last) stop();
    }, 100);
    put(play, "Stop");
    attribute(play, "aria-pressed", "true");
  });
  attribute(play, "aria-pressed", "false");
  slider.oninput = () => { at = times[slider.value]; redraw(); };
  const nearest = t => times.reduce((a, one, k) => (Math.abs(one - t) < Math.abs(times[a] - t) ? k : a), 0);
  return {
    tools: [play, slider, speed], end: stop,
    spot: () => Number(slider.value), time: () => times[slider.value],
    seek: t => { slider.value = nearest(t); at = times[slider.value]; redraw(); },
    told: () => {
      const t = times[slider.value], words = `${day(t)} ${clock(t)} · ${(t - began).toFixed(1)} s of ${(times[last] - began).toFixed(1)} s`;
      attribute(slider, "aria-valuetext", words);
      return words;
    },
  };
}
