// The tab `Training` of a task instance, of a Dag, and the page of all training runs. Hand written, no build step: the
// host's own React, Chakra and router are globals, so colours, fonts and dark mode are Airflow's. Loaded once per URL.
// Job data is only ever given to React as text: the session cookie can be readable by scripts.
const shared = await import(new URL(`shared.js?v=${new URL(import.meta.url).searchParams.get("v")}`, import.meta.url));
(() => {
  const { React, ChakraUI: C, ReactRouterDOM: Router } = globalThis;
  const { h, segment, color, SLOW_MS, api, useAhead, first, usePolled, known, seconds, between, bytes, percent, clock,
    taskLink, Boundary, Notice, Empty, Card, Stat, Phase, Table, Loading, useWidth, text } = shared;
  const FINAL = ["Succeeded", "Failed", "Deleted"];
  const TASK_FINAL = ["success", "failed", "skipped", "removed", "upstream_failed"];
  const POLL_MS = 4000, ROWS = 40;
  const SEGMENT = { queue: "queued", start: "up_for_retry", run: "running", save: "deferred" };
  const LEGEND = [["queue", "waits for quota"], ["start", "starts or restores"], ["run", "trains"], ["save", "checkpoint"]];

  // --- words ---------------------------------------------------------------------------------------------------------
  const steps = (a) => (known(a.first_step) && known(a.last_step) ? `${a.first_step} – ${a.last_step}` : known(a.first_step) && known(a.first_step_at) ? `${a.first_step} –` : "–");
  // Its first step; a program without steps trains as soon as it runs.
  const trains = (a) => (known(a.first_step_at) ? a.first_step_at : a.running_at);
  const ended = (a) => {
    if (a.ended_by === "Finished") return ["success", "finished"];
    if (a.ended_by === "Failed") return ["failed", "failed"];
    if (a.preempted_by) return ["up_for_reschedule", `preempted by ${a.preempted_by}`];
    if (a.ended_by) return ["up_for_reschedule", a.ended_by];
    return ["running", "running"];
  };

  // --- timeline -----------------------------------------------------------------------------------------------------
  // `tries`: [{label, attempts}], oldest first. One row per attempt, one coloured stretch per thing it did.
  function stretches(a, now) {
    const end = a.finished_at || a.released_at || a.committed_at || now;
    const stop = a.evicted_at || a.finished_at || now;
    const parts = [];
    const add = (kind, from, to, words) => { if (known(from) && to > from) parts.push({ kind, from, to, words: `${words}: ${seconds(to - from)}` }); };
    add("queue", a.queued_at, a.admitted_at, "waited for quota");
    add("start", a.admitted_at, trains(a) || stop, a.restored_from ? `restored ${a.restored_from}` : "started");
    add("run", trains(a), stop, `trained, steps ${steps(a)}`);
    if (a.evicted_at) add("save", a.evicted_at, a.committed_at || a.released_at || end, a.checkpoint ? `checkpoint ${a.checkpoint}` : "no checkpoint");
    return parts;
  }
  function Timeline({ tries, now }) {
    const [hover, setHover] = React.useState(null), [ref, width] = useWidth();
    const rows = tries.flatMap((t) => t.attempts.map((a) => ({ a, label: `${t.label}${a.attempt} · `, name: `${a.flavor || "?"} × ${a.pods}`, parts: stretches(a, now) })));
    const all = rows.flatMap((r) => r.parts);
    if (!all.length) return h(C.Text, { color: "fg.muted", ref }, "No attempt yet: the job waits for its first admission.");
    const from = Math.min(...all.map((p) => p.from)), to = Math.max(...all.map((p) => p.to), from + 1);
    const left = 16 + 7 * Math.max(...rows.map((r) => r.label.length + r.name.length)), row = 30, height = rows.length * row + 24;
    const x = (time) => left + ((time - from) / (to - from)) * (width - left - 12);
    return h("div", { ref }, h("svg", { width, height, role: "img", "aria-label": "attempts over time", style: { display: "block" }, "data-testid": "training-timeline" },
      rows.map((r, i) => h("g", { key: i, onMouseEnter: () => setHover(i), onMouseLeave: () => setHover(null), opacity: hover === null || hover === i ? 1 : 0.45 },
        text(0, i * row + 19, `${r.label}${r.name}`, { fill: color("fg") }),
        r.parts.map((p, j) => h("rect", { key: j, "data-kind": p.kind, x: x(p.from), y: i * row + 5, width: Math.max(2, x(p.to) - x(p.from)), height: 20, rx: 3, fill: color(`${SEGMENT[p.kind]}-solid`) }, h("title", null, p.words))))),
      [0, 0.25, 0.5, 0.75, 1].map((f) => h("g", { key: f },
        h("line", { x1: x(from + f * (to - from)), x2: x(from + f * (to - from)), y1: 0, y2: height - 20, stroke: color("border"), strokeDasharray: "2 4" }),
        text(x(from + f * (to - from)), height - 4, f === 0 ? clock(from) : `+${seconds(f * (to - from))}`, { textAnchor: f === 1 ? "end" : f === 0 ? "start" : "middle" })))));
  }
  const Legend = () => h(C.HStack, { gap: 4, wrap: "wrap" }, LEGEND.map(([kind, words]) => h(C.HStack, { key: kind, gap: 1.5 },
    h("span", { style: { width: 10, height: 10, borderRadius: 2, background: color(`${SEGMENT[kind]}-solid`), display: "inline-block" } }), h(C.Text, { fontSize: "xs", color: "fg.muted" }, words))));

  // --- trace: where the seconds of a move went ----------------------------------------------------------------------
  // A table with a bar in each row: who cannot see the bars, or their colours, has phase, worker and seconds as text.
  const WORKER = { Kueue: "purple-solid", Kubernetes: "cyan-solid", controller: "fg-muted", sidecar: "fg-muted", sidecars: "fg-muted", ranks: "blue-solid", agent: "blue-solid", launcher: "green-solid", CRIU: "orange-solid", device: "pink-solid", store: "yellow-solid" };
  const moved = (m) => `attempt ${m.left} to ${known(m.right) ? m.right : "the queue"}`;
  function Trace({ moves }) {
    const [chosen, choose] = React.useState(null); // null: always the newest
    const m = moves.find((one) => one.left === chosen) || moves[moves.length - 1];
    const why = [m.ended_by && `${m.ended_by}${m.preempted_by ? ` by ${m.preempted_by}` : ""}`, m.checkpoint ? `checkpoint ${m.checkpoint}` : "no checkpoint"].filter(Boolean).join(", ");
    const share = (part) => (m.seconds > 0 ? Math.min(100, (100 * part) / m.seconds) : 0);
    const cell = (extra) => ({ py: 1, whiteSpace: "nowrap", borderBottomWidth: 0, ...extra });
    const select = moves.length > 1 && h(C.NativeSelect.Root, { size: "sm", width: "auto" },
      h(C.NativeSelect.Field, { value: m.left, "aria-label": "move", "data-testid": "training-trace-move", onChange: (e) => choose(Number(e.target.value)) },
        [...moves].reverse().map((one) => h("option", { key: one.left, value: one.left }, `${moved(one)}: ${one.seconds.toFixed(1)} s`))), h(C.NativeSelect.Indicator));
    return h(Card, { title: "Where the seconds of a move went", aside: select },
      h(C.Text, { color: "fg.muted", mb: 2, fontSize: "sm", "data-testid": "training-trace-head" }, `${m.left_flavor} → ${known(m.right) ? m.right_flavor : "the queue"}, ${moved(m)}: ${m.seconds.toFixed(2)} s. ${why}`),
      m.spans.length > 0 && h(C.Box, { overflowX: "auto" }, h(C.Table.Root, { size: "sm", "data-testid": "training-trace", "aria-label": `phases of the move from ${moved(m)}` },
        h(C.Table.Header, null, h(C.Table.Row, null, ["Phase", "By", "Seconds"].map((name, i) => h(C.Table.ColumnHeader, { key: name, py: 1, textAlign: i === 2 ? "end" : "start" }, name)), h(C.Table.ColumnHeader, { py: 1, width: "100%", "aria-hidden": true }))),
        h(C.Table.Body, null, m.spans.map((s, i) => h(C.Table.Row, { key: i },
          h(C.Table.Cell, cell(), s.phase), h(C.Table.Cell, cell({ color: "fg.muted" }), s.by), h(C.Table.Cell, cell({ textAlign: "end", fontVariantNumeric: "tabular-nums" }), s.seconds.toFixed(2)),
          h(C.Table.Cell, cell({ minW: "240px", "aria-hidden": true, title: `${s.phase} (${s.by}): ${s.seconds.toFixed(3)} s from ${s.start.toFixed(3)} s on` }),
            h("div", { style: { background: color("bg-muted"), borderRadius: 3, overflow: "hidden" } },
              h("div", { "data-bar": s.phase, style: { height: 12, minWidth: 3, borderRadius: 3, width: `${share(s.seconds)}%`, marginLeft: `min(${share(s.start)}%, 100% - 3px)`, background: color(WORKER[s.by] || "fg-muted") } })))))))),
      (m.notes || []).map((note) => h(C.Text, { key: note, color: "fg.muted", fontSize: "sm", mt: 1 }, note)));
  }

  // --- loss curve ---------------------------------------------------------------------------------------------------
  function Curve({ points, cuts }) {
    const [ref, width] = useWidth();
    const height = 190, left = 52, top = 8, bottom = 26;
    const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = [Math.min(...ys, 0), Math.max(...ys)];
    const x = (v) => left + ((v - x0) / (x1 - x0 || 1)) * (width - left - 12);
    const y = (v) => top + (1 - (v - y0) / (y1 - y0 || 1)) * (height - top - bottom);
    return h("div", { ref }, h("svg", { width, height, role: "img", "aria-label": "training loss", style: { display: "block" }, "data-testid": "training-loss" },
      [0, 0.5, 1].map((f) => h("g", { key: f }, h("line", { x1: left, x2: width - 12, y1: y(y0 + f * (y1 - y0)), y2: y(y0 + f * (y1 - y0)), stroke: color("border-emphasized"), strokeDasharray: "3 3" }),
        text(0, y(y0 + f * (y1 - y0)) + 4, (y0 + f * (y1 - y0)).toPrecision(3)))),
      cuts.filter((c) => c > x0 && c < x1).map((c) => h("line", { key: c, x1: x(c), x2: x(c), y1: top, y2: height - bottom, stroke: color("up_for_reschedule-solid") }, h("title", null, `moved at step ${c}`))),
      h("path", { d: `M${points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join("L")}`, fill: "none", stroke: color("blue-fg"), strokeWidth: 2 }),
      text(left, height - 6, `step ${x0}`), text(width - 12, height - 6, `step ${x1}`, { textAnchor: "end" })));
  }

  // --- actions ------------------------------------------------------------------------------------------------------
  function Ask({ title, label, words, field, start, type, onCancel, onSend }) {
    const [value, setValue] = React.useState(start);
    const send = (event) => { event.preventDefault(); onSend({ [field]: type === "number" ? Number(value) : value.trim() }); };
    return h(C.Dialog.Root, { open: true, onOpenChange: (e) => { if (!e.open) onCancel(); }, placement: "center" }, h(C.Portal, null, h(C.Dialog.Backdrop), h(C.Dialog.Positioner, null,
      h(C.Dialog.Content, { "data-testid": "training-dialog" }, h("form", { onSubmit: send },
        h(C.Dialog.Header, null, h(C.Dialog.Title, null, title)),
        h(C.Dialog.Body, null, h(C.Field.Root, null, h(C.Field.Label, null, label),
          h(C.Input, { value, type, min: type === "number" ? 1 : undefined, autoFocus: true, name: field, onChange: (e) => setValue(e.target.value) }), h(C.Field.HelperText, null, words))),
        h(C.Dialog.Footer, null, h(C.Button, { variant: "outline", onClick: onCancel }, "Cancel"),
          h(C.Button, { type: "submit", colorPalette: "brand", disabled: !String(value).trim(), "data-testid": "training-send" }, title)))))));
  }
  function Actions({ own, job, onDone }) {
    const [busy, setBusy] = React.useState(null), [asked, setAsked] = React.useState(null), [answer, setAnswer] = React.useState(null);
    const send = async (name, body) => {
      setAsked(null); setBusy(name); setAnswer(null);
      try { const reply = await api(`${own}/actions/${name}`, { body }); setAnswer({ status: "success", title: `${name}: ${reply.message}` }); onDone(); }
      catch (error) { setAnswer({ status: "error", title: `${name} was refused${error.status ? ` (${error.status})` : ""}`, text: error.message }); }
      setBusy(null);
    };
    const button = (name, words, click) => h(C.Button, { key: name, size: "sm", variant: "outline", loading: busy === name, disabled: busy !== null, onClick: click, "data-testid": `training-${name}` }, words);
    const paused = job.phase === "Suspended";
    return h(React.Fragment, null,
      h(C.HStack, { gap: 2, wrap: "wrap" },
        button("checkpoint", "Checkpoint now", () => send("checkpoint", {})),
        button("resize", "Resize", () => setAsked("resize")), button("migrate", "Migrate", () => setAsked("migrate")),
        paused ? button("resume", "Resume", () => send("resume", {})) : button("pause", "Pause", () => send("pause", {}))),
      answer && h(C.Box, { flexBasis: "100%" }, h(Notice, { status: answer.status, title: answer.title }, answer.text)),
      asked === "resize" && h(Ask, { title: "Resize", field: "workers", type: "number", label: "Pods", start: String(job.workers || 1), onCancel: () => setAsked(null), onSend: (body) => send("resize", body),
        words: `The ${job.world_size} ranks stay; they are spread over this many pods. A checkpoint is committed first, no step is lost.` }),
      asked === "migrate" && h(Ask, { title: "Migrate", field: "flavor", type: "text", label: "ResourceFlavor", start: "", onCancel: () => setAsked(null), onSend: (body) => send("migrate", body),
        words: "The job gives its quota back after a checkpoint and continues on this flavor as soon as Kueue admits it there." }));
  }

  // --- checkpoints: the branches of the job, and the way back to one of them ----------------------------------------
  const branch = (c, job) => (c.unusable ? ["failed", "damaged"] : c.side_branch ? ["skipped", "side branch"]
    : job.origin && job.origin.checkpoint === c.id ? ["scheduled", `from ${job.origin.job}`] : ["success", "current"]);
  const back = (r) => `Attempt ${r.attempt} was rewound${r.by ? ` by ${r.by}` : ""} to checkpoint ${r.checkpoint} (step ${r.step}); ${r.steps} steps are given up`;
  function Checkpoints({ own, job, may, over, onDone }) {
    const [asked, setAsked] = React.useState(null), [busy, setBusy] = React.useState(false), [answer, setAnswer] = React.useState(null);
    const send = async (name, body) => {
      setAsked(null); setBusy(true); setAnswer(null);
      try { const reply = await api(`${own}/actions/${name}`, { body }); setAnswer({ status: "success", title: `${name}: ${reply.message}` }); onDone(); }
      catch (error) { setAnswer({ status: "error", title: `${name} was refused${error.status ? ` (${error.status})` : ""}`, text: error.message }); }
      setBusy(false);
    };
    const button = (name, words, c) => h(C.Button, { size: "xs", variant: "outline", disabled: busy, onClick: () => setAsked([name, c]), "data-testid": `training-${name}` }, words);
    const buttons = (c) => (!may || c.unusable ? [] : [h(C.HStack, { key: "actions", gap: 1 }, !over && button("rewind", "Rewind", c), button("fork", "Fork", c))]);
    return h(Card, { title: "Checkpoints" },
      (job.rewinds || []).map((r) => h(C.Text, { key: r.attempt, fontSize: "sm", color: "fg.muted", "data-testid": "training-rewind-note" }, back(r))),
      answer && h(Notice, { status: answer.status, title: answer.title }, answer.text),
      h(Table, { testid: "training-checkpoints", heads: ["Checkpoint", "Step", "Committed", "Size", "New in the store", "Branch", ...(may ? ["Go on from it"] : [])],
        rows: [...job.checkpoints].reverse().map((c) => [c.id, known(c.step) ? c.step : "–", known(c.committed_at) ? `${clock(c.committed_at)} (${seconds(Math.max(0, Date.now() / 1000 - c.committed_at))} ago)` : "–", bytes(c.bytes), bytes(c.bytes_stored),
          h(C.Badge, { colorPalette: branch(c, job)[0] }, branch(c, job)[1]), ...(may ? [buttons(c)] : [])]) }),
      asked && asked[0] === "rewind" && h(Ask, { title: "Rewind", field: "checkpoint", type: "text", label: "Checkpoint", start: asked[1].id, onCancel: () => setAsked(null), onSend: (body) => send("rewind", body),
        words: `The job goes on from step ${asked[1].step}. What it has done since is given up, and not saved.` }),
      asked && asked[0] === "fork" && h(Ask, { title: "Fork", field: "name", type: "text", label: "Name of the new job", start: "", onCancel: () => setAsked(null), onSend: (body) => send("fork", { ...body, checkpoint: asked[1].id }),
        words: `A second job goes on from step ${asked[1].step}. It belongs to no task of Airflow; this job is left alone.` }));
  }

  // --- the tab of one task instance ---------------------------------------------------------------------------------
  function TaskTab({ dagId, runId, taskId, mapIndex }) {
    const index = mapIndex === undefined || String(mapIndex).startsWith("{") ? "-1" : String(mapIndex);
    const own = `/singularity/dags/${segment(dagId)}/dagRuns/${segment(runId)}/taskInstances/${segment(taskId)}/${index}`;
    const keys = [dagId, runId, taskId, index];
    const over = React.useRef(false);
    useAhead(`${own}/context`);
    // What Airflow keeps is there for good, and is all that a job which has ended needs: one request. A job that lives is
    // asked for in the cluster as well; for other tasks nothing else is fetched, so nothing fails.
    const ends = (data) => data.job && data.kept && data.kept.uid === data.job.uid && FINAL.includes(data.kept.phase);
    const [context, lookAgain] = usePolled((signal) => first(`${own}/context`, signal), (data, error) => (error ? (error.status === 401 ? null : SLOW_MS / 3) : ends(data) ? null : data.job ? POLL_MS * 2 : SLOW_MS / 3), keys);
    const uid = context.data && context.data.job && context.data.job.uid, settled = context.data && ends(context.data);
    const [live, liveAgain] = usePolled((signal) => (uid && !over.current ? api(`${own}/live`, { signal }) : Promise.resolve(null)),
      (data, error) => ((!data && !error) || (error && error.status === 401) ? null : error || !data.job ? SLOW_MS / 3 : FINAL.includes(data.job.phase) ? null : POLL_MS), [...keys, uid]);

    // The document that ended the task wins over the cluster's, which may already be of the past or gone.
    const kept = context.data && context.data.kept, fresh = live.data && live.data.job, job = settled ? kept : fresh || kept;
    over.current = Boolean(settled || (fresh && FINAL.includes(fresh.phase)));
    if (!job && (context.loading || (uid && live.loading))) return h(Loading);
    if (!job) {
      const { error } = context;
      if (error) return h(C.Box, { p: 4 }, h(Notice, { status: "error", title: error.status === 403 ? "You may not read this Dag" : `Training data cannot be read${error.status ? ` (${error.status})` : ""}` }, error.message));
      if (context.data && context.data.why) return h(C.Box, { p: 4 }, h(Notice, { status: "warning", title: "This task's XCom lineage cannot be read" }, context.data.why));
      return h(Empty, { title: "No training data" }, "This task is not a training step, or its job has not been submitted yet.");
    }
    const now = over.current ? Math.max(...job.attempts.map((a) => a.finished_at || a.released_at || a.admitted_at), 0) : Date.now() / 1000;
    const moves = (settled || !fresh ? context.data && context.data.moves : live.data.moves) || [];
    const past = ((context.data && context.data.past) || []).filter((p) => p.uid !== job.uid);
    const tries = [...past.map((p, i) => ({ label: `job ${i + 1}, attempt `, attempts: p.attempts })), { label: past.length ? `job ${past.length + 1}, attempt ` : "attempt ", attempts: job.attempts }];
    const seen = job.progress || {};
    const cuts = job.attempts.slice(1).map((a) => a.first_step).filter(known);
    const evictions = job.attempts.filter((a) => a.evicted_at).length;
    const trouble = !over.current && live.error;
    // Only the task knows its own limit; the cluster's document does not.
    const alarm = kept && kept.uid === job.uid && kept.preemption_alert;
    return h(C.VStack, { align: "stretch", gap: 3, p: 3, overflow: "auto", height: "100%", "data-testid": "training-tab" },
      context.error && context.error.status === 401 && h(Notice, { status: "warning", title: "Not updating: you are not logged in any more" }),
      alarm && h(Notice, { status: "warning", title: `Preempted ${kept.preemptions} times: more often than preemption_alert allows` }),
      job.saveable && job.saveable.verdict === "no" && !over.current && h(Notice, { status: "warning", title: `Attempt ${job.saveable.attempt} cannot be saved: whoever stops it now loses its work since the last checkpoint` }, job.saveable.why),
      trouble && h(Notice, { status: "info", title: "Shown as Airflow last heard of it" }, live.error.message),
      h(C.Flex, { justify: "space-between", align: "center", wrap: "wrap", gap: 3 },
        h(C.HStack, { gap: 6, wrap: "wrap" },
          h(Stat, { label: "Step", testid: "training-step" }, known(seen.total) && known(seen.step) ? `${seen.step} / ${seen.total}` : job.step),
          known(seen.eta_s) && h(Stat, { label: "Left" }, seconds(seen.eta_s)),
          known(seen.loss) && h(Stat, { label: "Loss" }, Number(seen.loss).toPrecision(4)),
          h(Stat, { label: "Attempts", hint: `${evictions} evictions` }, job.attempts.length + (job.attempts_omitted || 0)),
          h(Stat, { label: "Pods", hint: `wants ${job.workers}, at least ${job.min_workers}; ${job.world_size} ranks` }, job.pods ? `${job.pods} × ${job.flavor}` : `0 of ${job.workers}`),
          h(Stat, { label: "Steps lost", testid: "training-lost", hint: "and the training time that a later attempt started without" }, job.seconds_lost >= 1 ? `${job.steps_lost} (${seconds(job.seconds_lost)})` : job.steps_lost),
          job.saveable && !over.current && h(Stat, { label: "Can be saved", testid: "training-saveable", hint: job.saveable.verdict === "not tried" ? job.saveable.why || "no checkpoint and no trial yet" : `as a ${job.saveable.by} has shown` }, job.saveable.verdict),
          known(job.cost) && h(Stat, { label: "Cost", testid: "training-cost", hint: known(job.cost_per_step) ? `${Number(job.cost_per_step).toPrecision(3)} per step` : "no step yet" }, Number(job.cost).toPrecision(3)),
          known(job.goodput) && h(Stat, { label: "Goodput", hint: "share of the time since submission in which steps ran that count" }, percent(job.goodput))),
        h(Phase, { phase: job.phase })),
      h(C.Text, { color: "fg.muted", "data-testid": "training-message" }, `Job ${job.namespace}/${job.name}, queue ${job.queue}${job.priority_class ? `, priority ${job.priority_class}` : ""}: ${job.message}`),
      !over.current && context.data && context.data.can_act && h(C.Flex, { wrap: "wrap", gap: 3 }, h(Actions, { own, job, onDone: () => { liveAgain(); lookAgain(); } })),
      (job.requests || []).filter((r) => (!over.current && r.state === "running") || (r.state === "failed" && now - r.at < 600)).map((r) => h(Notice, { key: r.id, status: r.state === "failed" ? "warning" : "info", title: `${r.op} ${r.state === "failed" ? "failed" : "is under way"}` }, r.message)),
      h(Card, { title: "Attempts over time", aside: h(Legend) }, h(Timeline, { tries, now })),
      moves.length > 0 && h(Trace, { moves }),
      job.curve && job.curve.length > 1 && h(Card, { title: "Training loss" }, h(Curve, { points: job.curve, cuts })),
      job.attempts.length > 0 && h(Card, { title: "Attempts" }, h(Table, { testid: "training-attempts",
        heads: ["#", "Flavor", "Pods", "Steps", "Queued", "To first step", "Checkpoint", "Ended", "Note"],
        rows: [...job.attempts].reverse().map((a) => [a.attempt, a.flavor, a.pods, steps(a), between(a.queued_at, a.admitted_at), between(a.admitted_at, trains(a)), between(a.evicted_at, a.committed_at),
          h(C.Badge, { colorPalette: ended(a)[0] }, ended(a)[1]), a.note || ""]) })),
      job.checkpoints.length > 0 && h(Checkpoints, { own, job, may: Boolean(context.data && context.data.can_act), over: over.current, onDone: () => { liveAgain(); lookAgain(); } }),
      h(C.Box, { pb: 2 }));
  }

  // --- all runs (page), or those of one Dag (tab) -------------------------------------------------------------------
  function Runs({ dagId }) {
    const path = `/singularity/runs?limit=1000${dagId ? `&dag_id=${segment(dagId)}` : ""}`;
    useAhead(path);
    const [state] = usePolled((signal) => first(path, signal), (data, error) => (error && error.status === 401 ? null : SLOW_MS / 3), [dagId]);
    const [shown, setShown] = React.useState(ROWS), [wanted, setWanted] = React.useState("");
    if (state.loading) return h(Loading);
    if (!state.data) return h(C.Box, { p: 4 }, h(Notice, { status: "error", title: "Training runs cannot be read" }, state.error.message));
    const words = wanted.trim().toLowerCase();
    const found = state.data.runs.filter((r) => !words || [r.dag_id, r.task_id, r.run_id, r.queue, r.phase, r.flavor, r.name].some((v) => String(v || "").toLowerCase().includes(words)));
    if (!state.data.runs.length && !(state.data.unreadable || []).length) return h(Empty, { title: "No training runs" }, "Tasks made with SingularityTrainOperator or @task.singularity_train appear here.");
    const alive = state.data.runs.filter((r) => !FINAL.includes(r.phase) && !TASK_FINAL.includes(r.state));
    const shares = state.data.runs.map((r) => r.goodput).filter(known);
    return h(C.VStack, { align: "stretch", gap: 3, p: 3, overflow: "auto", height: "100%", "data-testid": "training-runs" },
      h(C.Flex, { justify: "space-between", align: "center", wrap: "wrap", gap: 3 },
        h(C.HStack, { gap: 6 }, h(Stat, { label: "Training runs" }, state.data.runs.length), h(Stat, { label: "Active" }, alive.length), h(Stat, { label: "Waiting" }, alive.filter((r) => ["Queued", "Preempted", "Suspended"].includes(r.phase)).length),
          h(Stat, { label: "Evictions" }, state.data.runs.reduce((sum, r) => sum + r.evictions, 0)), h(Stat, { label: "Steps lost" }, state.data.runs.reduce((sum, r) => sum + (r.steps_lost || 0), 0)),
          shares.length > 0 && h(Stat, { label: "Goodput", hint: "mean over the runs" }, percent(shares.reduce((a, b) => a + b, 0) / shares.length))),
        h(C.HStack, { gap: 2, wrap: "wrap" }, !dagId && h(C.Button, { asChild: true, variant: "outline", size: "sm" }, h(Router.Link, { to: "/plugin/training_cluster", "data-testid": "training-to-cluster" }, "Cluster")),
        h(C.Input, { placeholder: "Dag, task, queue, flavor, phase", value: wanted, onChange: (e) => setWanted(e.target.value), width: "280px", size: "sm", "aria-label": "filter" }))),
      (state.data.unreadable || []).length > 0 && h(Notice, { status: "warning", title: `Not shown: ${state.data.unreadable.length} whose XCom lineage cannot be read` },
        state.data.unreadable.slice(0, 5).map((r) => `${r.dag_id}, ${r.run_id}, ${r.task_id}${r.map_index >= 0 ? ` [${r.map_index}]` : ""}: ${r.why}`).join("; ")),
      h(Table, { testid: "training-runs-table", heads: [...(dagId ? [] : ["Dag"]), "Task", "Run", "Phase", "Queue", "On", "Step", "Attempts", "Lost", "Goodput", "Why"],
        rows: found.slice(0, shown).map((r) => [...(dagId ? [] : [r.dag_id]),
          h(C.Link, { asChild: true, color: "fg.info" }, h(Router.Link, { to: taskLink(r) }, r.map_index >= 0 ? `${r.task_id} [${r.map_index}]` : r.task_id)), r.run_id, h(Phase, { phase: r.phase, size: "sm" }), r.queue,
          r.pods ? `${r.pods} × ${r.flavor}` : "–", r.step, r.attempts, r.seconds_lost >= 1 ? `${r.steps_lost} (${seconds(r.seconds_lost)})` : r.steps_lost, percent(r.goodput), h(C.Text, { color: "fg.muted", fontSize: "sm", lineClamp: 2 }, r.message)]) }),
      found.length > shown && h(C.Button, { variant: "outline", size: "sm", onClick: () => setShown(shown + 200) }, `Show more (${found.length - shown})`));
  }

  const Root = (props) => (props.taskId && props.runId ? h(TaskTab, { ...props, key: [props.dagId, props.runId, props.taskId, props.mapIndex].join("|") }) : h(Runs, { dagId: props.dagId, key: props.dagId || "all" }));
  // Its own name first: two bundles that load at the same time share the other one.
  globalThis.Training = globalThis.AirflowPlugin = (props) => h(Boundary, null, h(Root, props));
})();
