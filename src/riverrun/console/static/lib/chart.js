// Charts of values over time.
//
//   <${Chart} title="Traffic" unit="bytes/s" series=${[{ label: "In", points: [[ms, value], ...] }]} span=${{ start, end, step }} />
//   <${HistoryChart} title="Traffic" unit="bytes/s" minutes=${60}
//       series=${[{ name: "bytes_in", label: "In" }, ...]} params=${{ node: 1 }} />   reads /history
//   historyPanel("Traffic", "bytes/s", { bytes_in: "In" }, { node: 1 })    the same in a panel
//   <${RangePicker} />  chooses the minutes kept in the URL;  useMinutes() reads them
//
// Units are those of format.unit(). uPlot draws on a canvas, which readers cannot see: the chart is
// a figure with a summary, a hidden table, and arrow keys that speak one moment at a time.

import uPlot from "../vendor/uplot.js";
import { Empty, Failure } from "./feedback.js";
import { Segmented } from "./forms.js";
import { axisClock, clock, day, unit as formatter } from "./format.js";
import { html, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "./preact.js";
import { useQuery } from "./router.js";
import { useResource } from "./state.js";
import { isDark } from "./theme.js";

const TABLE_ROWS_MAX = 24;
const HEIGHT = 150;
const COLOURS = 6;
// Steps of the axis for sizes: powers of two up to a tebibyte.
const BINARY_STEPS = Array.from({ length: 41 }, (_, power) => 2 ** power);
// Steps of the axis for durations in seconds: round parts of a minute, an hour and a day.
const TIME_STEPS = [0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((minutes) => 60 * minutes), ...[1, 2, 3, 6, 12].map((hours) => 3600 * hours), ...Array.from({ length: 10 }, (_, power) => 86_400 * 2 ** power)];
// Steps of the axis for what comes in whole numbers.
const WHOLE_STEPS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const STEPS = { bytes: BINARY_STEPS, "bytes/s": BINARY_STEPS, seconds: TIME_STEPS, count: WHOLE_STEPS };

// All steps of a time, so that the axes of a page agree and missing values leave a gap.
function momentsOf({ start, end, step }) {
  return Array.from({ length: Math.floor((end - start) / step) + 1 }, (_, index) => start + index * step);
}

// Join series with different moments into uPlot's columns: moments in seconds, then values.
function columnsOf(series, span) {
  const moments = span ? momentsOf(span) : [...new Set(series.flatMap((each) => each.points.map(([ms]) => ms)))].sort((a, b) => a - b);
  const values = series.map((each) => {
    const known = new Map(each.points);
    return moments.map((ms) => known.get(ms) ?? null);
  });
  return [moments.map((ms) => ms / 1000), ...values];
}

// Custom properties with light-dark() have no computed colour, so an element resolves them.
function resolvedColours(element) {
  const probe = document.createElement("span");
  element.append(probe);
  const colour = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const found = {
    series: Array.from({ length: COLOURS }, (_, index) => colour(`--series-${index + 1}`)),
    grid: colour("--grid"),
    text: colour("--muted"),
  };
  probe.remove();
  return found;
}

// Points whose neighbours are missing: a line does not show them.
const lonely = (plot, index) => plot.data[index].flatMap((value, at, values) => (value !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null ? [at] : []));

const faint = (colour) => colour.replace(/^rgb\((.*)\)$/, "rgba($1, 0.10)");

function options(series, colours, unit, width, height, onCursor) {
  const format = formatter(unit);
  const axis = { stroke: colours.text, font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: colours.grid, width: 1 } };
  return {
    width,
    height,
    padding: [8, 28, 0, 0], // half of the last time of the axis is to the right of its mark
    legend: { show: false },
    cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false }, sync: { key: "riverrun" } },
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
    axes: [
      { ...axis, grid: { show: false }, size: 22, space: 80, values: (_, splits, axisIndex, space, step) => splits.map((at) => axisClock(at * 1000, step)) },
      { ...axis, size: 72, space: 30, incrs: STEPS[unit], values: (_, splits) => splits.map((value) => format(value)) },
    ],
    series: [
      {},
      ...series.map((each, index) => ({
        label: each.label,
        stroke: colours.series[index % COLOURS],
        fill: series.length <= 2 ? faint(colours.series[index % COLOURS]) : undefined,
        width: 1.5,
        points: { show: false, filter: lonely, size: 4 },
      })),
    ],
    hooks: { setCursor: [(plot) => onCursor(plot.cursor.idx ?? null)] },
  };
}

function usePlot(host, series, columns, unit, height, onCursor) {
  const plot = useRef(null);
  const shape = JSON.stringify(series.map((each) => each.label));
  const dark = isDark.value;
  useLayoutEffect(() => {
    const element = host.current;
    const make = (width) => {
      plot.current = new uPlot(options(series, resolvedColours(element), unit, width, height, onCursor), columns, element);
    };
    const observer = new ResizeObserver(() => {
      const width = Math.floor(element.clientWidth);
      if (width === 0) return;
      if (plot.current === null) make(width);
      else plot.current.setSize({ width, height });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, dark, height]);
  useEffect(() => {
    plot.current?.setData(columns);
  }, [columns]);
  return plot;
}

function HiddenTable({ id, title, series, columns, format }) {
  const step = Math.max(1, Math.ceil(columns[0].length / TABLE_ROWS_MAX));
  const chosen = columns[0].map((_, index) => index).filter((index) => index % step === 0);
  // A table cannot be smaller than its rows: its box hides it, so that the page does not grow.
  return html`<div class="hidden" id=${id}><table>
    <caption>${title}</caption>
    <thead><tr><th scope="col">Time</th>${series.map((each) => html`<th scope="col" key=${each.label}>${each.label}</th>`)}</tr></thead>
    <tbody>
      ${chosen.map((index) => html`<tr key=${index}>
        <th scope="row">${clock(columns[0][index] * 1000)}</th>
        ${series.map((each, at) => html`<td key=${each.label}>${format(columns[at + 1][index])}</td>`)}
      </tr>`)}
    </tbody>
  </table></div>`;
}

export function Chart({ title, series, span, note, unit = "count", height = HEIGHT, actions }) {
  const id = useId();
  const host = useRef(null);
  const format = formatter(unit);
  const columns = useMemo(() => columnsOf(series, span), [series]);
  const [cursor, setCursor] = useState(null);
  const [spoken, setSpoken] = useState("");
  const plot = usePlot(host, series, columns, unit, height, setCursor);

  const at = (index, column) => (index === null ? null : columns[column + 1]?.[index]);
  const shownAt = cursor !== null && columns[0][cursor] !== undefined ? cursor : null;
  const moment = shownAt === null ? null : columns[0][shownAt] * 1000;
  const latest = (column) => at(shownAt ?? columns[0].length - 1, column);
  const summary = series.map((each, index) => `${each.label}: ${format(latest(index) ?? null)}`).join(", ");

  const move = (event) => {
    const last = columns[0].length - 1;
    const now = shownAt ?? last;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    if (next === undefined || last < 0 || !plot.current) return;
    event.preventDefault();
    const index = Math.max(0, Math.min(last, next));
    plot.current.setCursor({ left: plot.current.valToPos(columns[0][index], "x"), top: 10 });
    setCursor(index);
    setSpoken(`${clock(columns[0][index] * 1000)}: ${series.map((each, of) => `${each.label} ${format(at(index, of))}`).join(", ")}`);
  };

  return html`<figure class="chart" aria-labelledby=${`${id}-title`} aria-details=${`${id}-table`}>
    <figcaption>
      <span class="chart-title" id=${`${id}-title`}>${title}</span>
      <span class="chart-time">${moment === null ? "" : `${day(moment)} ${clock(moment)}`}</span>
      ${actions}
      <span class="legend">
        ${series.map((each, index) => html`<span key=${each.label}>
          <span class="swatch s${(index % COLOURS) + 1}" aria-hidden="true"></span>${each.label} <b>${format(latest(index) ?? null)}</b>
        </span>`)}
      </span>
    </figcaption>
    ${note && html`<p class="chart-note">${note}</p>`}
    <div ref=${host} class="plot h${height}" tabindex="0" role="img" aria-label=${`${title}. ${summary}. Arrow keys read single moments.`} onKeyDown=${move} style=${{ height: `${height}px` }}></div>
    <${HiddenTable} id=${`${id}-table`} ...${{ title, series, columns, format }} />
    <span class="hidden" aria-live="polite">${spoken}</span>
  </figure>`;
}

export const RANGES = [
  { value: "15", label: "15 min" },
  { value: "60", label: "1 h" },
  { value: "360", label: "6 h" },
  { value: "1440", label: "24 h" },
];

export function useMinutes() {
  return useQuery("minutes", "60");
}

export function RangePicker() {
  const [minutes, setMinutes] = useMinutes();
  return html`<${Segmented} label="Time range" value=${minutes} options=${RANGES} onInput=${setMinutes} />`;
}

// `series` of the response may be one object per name, or a list of objects with labels.
function pointsOf(found) {
  if (!found) return [];
  return Array.isArray(found) ? found.flatMap((each) => each.points ?? []) : found.points ?? [];
}

// Nodes whose share is missing in the curves: "without node 3 before 10:30:20".
function gapsOf(gaps = []) {
  const when = ({ before_ms, after_ms }) => [before_ms && ` before ${clock(before_ms)}`, after_ms && ` since ${clock(after_ms)}`].filter(Boolean).join(" and");
  return gaps.map((gap) => `without node ${gap.node}${when(gap)}`).join("; ");
}

export function HistoryChart({ title, unit, series, params = {}, minutes, height = HEIGHT }) {
  const chosen = useMinutes()[0];
  const names = series.map((each) => each.name).join(",");
  const resource = useResource("history", { ...params, series: names, minutes: minutes ?? chosen }, { every: 10_000 });
  const drawn = useMemo(
    () => series.map((each) => ({ label: each.label, points: pointsOf(resource.data?.series?.[each.name]) })),
    [resource.data, names],
  );
  const gap = (content) => html`<div class="chart-gap" style=${{ height: `${height + 52}px` }} aria-busy=${content ? null : "true"}>${content}</div>`;
  if (resource.error?.status === 403 && !resource.data) return gap(html`<${Empty} title=${title} icon="acls">Your user may not see this curve: it needs the right Describe on the cluster.<//>`);
  if (resource.error && !resource.data) return gap(html`<p class="chart-title">${title}</p><${Failure} error=${resource.error} />`);
  if (!resource.data) return gap(null);
  if (drawn.every((each) => each.points.length < 2)) return gap(html`<${Empty} title=${title} icon="overview">There are too few values in this time. A new node has the first ones after about 20 seconds.<//>`);
  const { start_ms: start, end_ms: end, step_ms: step } = resource.data;
  return html`<${Chart} title=${title} unit=${unit} series=${drawn} span=${{ start, end, step }} note=${gapsOf(resource.data.gaps)} height=${height} />`;
}

export function historyPanel(title, unit, labels, params) {
  const series = Object.entries(labels).map(([name, label]) => ({ name, label }));
  return html`<section class="panel"><${HistoryChart} ...${{ title, unit, series, params }} /></section>`;
}
