// What the tabs and pages of this plugin share: asking the plugin's API, words, small parts. They import it by an URL with
// the same `v`. React, Chakra and the router are the host's; job data is only ever given to React as text.
const { React, ChakraUI: C } = globalThis;
const h = React.createElement;
const base = new URL(document.baseURI).pathname.replace(/\/$/, "");
const segment = encodeURIComponent;
const color = (token) => `var(--chakra-colors-${token})`;
const SLOW_MS = 30000, FRESH_MS = 5000;

// Airflow's state palettes: the same colours as in the grid.
const PHASE = {
  Submitted: "scheduled", Queued: "queued", Admitted: "scheduled", Starting: "up_for_retry", Restoring: "up_for_retry",
  Running: "running", Checkpointing: "deferred", Preempted: "up_for_reschedule", Suspended: "skipped",
  Succeeded: "success", Failed: "failed", Deleted: "removed",
};

// --- data ---------------------------------------------------------------------------------------------------------
async function api(path, { body, signal } = {}) {
  const answer = await fetch(base + path, {
    method: body === undefined ? "GET" : "POST",
    credentials: "same-origin",
    headers: { Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
  });
  const content = await answer.json().catch(() => null);
  if (!answer.ok) {
    const detail = content && content.detail;
    const text = Array.isArray(detail) ? detail.map((d) => d.msg).join("; ") : detail || answer.statusText;
    throw Object.assign(new Error(text), { status: answer.status });
  }
  return content;
}

// React shows what follows a spinner 0.3 s later at the earliest, and effects come after that: the first question of a
// component is asked when it is drawn for the first time, and its first look takes the answer.
const asked = new Map();
const recent = (ahead) => Boolean(ahead) && Date.now() - ahead.at < FRESH_MS;
const useAhead = (path) => React.useState(() => {
  if (recent(asked.get(path))) return; // React may draw it several times before it shows it
  const answer = api(path);
  answer.catch(() => {}); // who takes it gets the error
  asked.set(path, { answer, at: Date.now() });
});
function first(path, signal) {
  const ahead = asked.get(path);
  asked.delete(path);
  return recent(ahead) ? ahead.answer : api(path, { signal });
}

// Polls `get` until `pause(data, error)` says null; its number is the milliseconds to the next look. In a window that
// nobody sees it looks seldom; with `sleeps` not at all, and at once when somebody looks again.
function usePolled(get, pause, keys, sleeps = false) {
  const [state, setState] = React.useState({ loading: true });
  const again = React.useRef(() => {});
  React.useEffect(() => {
    let alive = true, asleep = false, timer, control;
    const due = () => { if (sleeps && document.hidden) asleep = true; else look(); };
    const wake = () => { if (asleep && !document.hidden) { asleep = false; look(); } };
    document.addEventListener("visibilitychange", wake);
    const look = async () => {
      clearTimeout(timer);
      control = new AbortController();
      let data, error;
      try { data = await get(control.signal); } catch (caught) { error = caught; }
      if (!alive || (error && error.name === "AbortError")) return;
      setState((old) => (error ? { ...old, loading: false, error } : { data }));
      const wait = pause(data, error);
      if (wait !== null) timer = setTimeout(due, document.hidden && !sleeps ? Math.max(wait, SLOW_MS) : wait);
    };
    setState({ loading: true });
    look();
    again.current = look;
    return () => { alive = false; document.removeEventListener("visibilitychange", wake); clearTimeout(timer); if (control) control.abort(); };
  }, keys);
  return [state, () => again.current()];
}

// --- words --------------------------------------------------------------------------------------------------------
const known = (value) => value !== null && value !== undefined;
const seconds = (value) => {
  if (!known(value)) return "–";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${Math.round(value / 86400)} d`;
};
const between = (from, to) => (known(from) && known(to) ? seconds(Math.max(0, to - from)) : "–");
const bytes = (value) => {
  if (!known(value)) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
};
const percent = (value) => (known(value) ? `${Math.round(value * 100)} %` : "–");
const clock = (unix) => new Date(unix * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const taskLink = (r) => `/dags/${segment(r.dag_id)}/runs/${segment(r.run_id)}/tasks/${segment(r.task_id)}${r.map_index >= 0 ? `/mapped/${r.map_index}` : ""}/plugin/training`;

// --- small parts --------------------------------------------------------------------------------------------------
class Boundary extends React.Component { // a throw would otherwise replace the whole Airflow page by an error page
  constructor(props) { super(props); this.state = {}; }
  static getDerivedStateFromError(error) { return { error }; }
  render() { return this.state.error ? h(Notice, { status: "error", title: "This view failed" }, String(this.state.error.message)) : this.props.children; }
}
const Notice = ({ status, title, children }) => h(C.Alert.Root, { status, width: "auto", "data-testid": `training-${status}` },
  h(C.Alert.Indicator), h(C.Alert.Content, null, h(C.Alert.Title, null, title), children && h(C.Alert.Description, null, children)));
const Empty = ({ title, children }) => h(C.EmptyState.Root, { "data-testid": "training-empty" },
  h(C.EmptyState.Content, null, h(C.EmptyState.Title, null, title), h(C.EmptyState.Description, null, children)));
const Card = ({ title, aside, children }) => h(C.Box, { as: "section", "aria-label": title, borderWidth: 1, borderColor: "border", borderRadius: "md", p: 4, minW: 0 },
  h(C.Flex, { justify: "space-between", align: "center", mb: 3, wrap: "wrap", gap: 2 }, h(C.Heading, { size: "sm" }, title), aside), children);
const Stat = ({ label, hint, children, testid }) => h(C.Stat.Root, { minW: "84px", flex: "0 0 auto", title: hint },
  h(C.Stat.Label, null, label), h(C.Stat.ValueText, { fontSize: "lg", "data-testid": testid }, children));
const Phase = ({ phase, size = "md" }) => h(C.Badge, { colorPalette: PHASE[phase] || "none", size, "data-testid": "training-phase" }, phase);
// With a `label` the keyboard can scroll it where it is too wide.
const Table = ({ heads, rows, testid, label }) => h(C.Box, { overflowX: "auto", ...(label && { tabIndex: 0, role: "region", "aria-label": label }) }, h(C.Table.Root, { size: "sm", striped: true, "data-testid": testid },
  h(C.Table.Header, null, h(C.Table.Row, null, heads.map((text) => h(C.Table.ColumnHeader, { key: text, whiteSpace: "nowrap" }, text)))),
  h(C.Table.Body, null, rows.map((cells, i) => h(C.Table.Row, { key: i }, cells.map((cell, j) => h(C.Table.Cell, { key: j, whiteSpace: j === cells.length - 1 ? "normal" : "nowrap" }, cell)))))));
const Loading = () => h(C.VStack, { align: "stretch", p: 4, gap: 3 }, h(C.Skeleton, { height: "60px" }), h(C.Skeleton, { height: "160px" }));
function useWidth() { // drawn in pixels of the panel: text keeps its size at every width
  const ref = React.useRef(null), [width, setWidth] = React.useState(900);
  React.useLayoutEffect(() => {
    const observer = new ResizeObserver((entries) => setWidth(Math.max(360, Math.round(entries[0].contentRect.width))));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}
const text = (x, y, words, { fill = color("fg-muted"), ...rest } = {}) => // the host's CSS beats attributes
  h("text", { x, y, style: { fontSize: "12px", fill }, ...rest }, words);

export { h, base, segment, color, PHASE, SLOW_MS, api, useAhead, first, usePolled, known, seconds, between, bytes,
percent, clock, taskLink, Boundary, Notice, Empty, Card, Stat, Phase, Table, Loading, useWidth, text };
