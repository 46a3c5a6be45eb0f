// The page `Training cluster`: quota, who holds it, who waits and why, goodput, and what moved lately. It shows the report
// of `singularityctl top`, cut by the API to what the user may see, and judges nothing itself.
const shared = await import(new URL(`shared.js?v=${new URL(import.meta.url).searchParams.get("v")}`, import.meta.url));
(() => {
  const { React, ChakraUI: C, ReactRouterDOM: Router } = globalThis;
  const { h, segment, color, SLOW_MS, api, usePolled, known, seconds, percent, clock, taskLink, Boundary, Notice, Empty, Card,
    Phase, Table, Loading } = shared;
  const POLL_MS = 5000, SOON_MS = 700;
  const ALL = "all resources";
  const TIMES = [
    ["useful_s", "running", "training that counts"], ["lost_s", "failed", "steps run again"],
    ["starting_s", "up_for_retry", "start"], ["restoring_s", "skipped", "restore"],
    ["saving_s", "deferred", "checkpoint"], ["releasing_s", "queued", "release"],
  ];

  // --- words --------------------------------------------------------------------------------------------------------
  const many = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
  const sentence = (words) => (words ? words[0].toUpperCase() + words.slice(1) : "–");
  const unit = (resource) => { const last = resource.split("/").pop(); return last.length > 3 ? last : last.toUpperCase(); };
  const ago = (at, time) => `${seconds(Math.max(0, at - time))} ago`;
  const ratio = (line, part) => `${line.words[part]} of ${line.words.nominal}`;
  const unseen = (count) => `${many(count, "job")} that you may not see`;

  // --- parts --------------------------------------------------------------------------------------------------------
  const Small = ({ children, ...rest }) => h(C.Text, { fontSize: "xs", color: "fg.muted", ...rest }, children);
  const Muted = ({ children, ...rest }) => h(C.Text, { fontSize: "sm", color: "fg.muted", ...rest }, children);
  const Tile = ({ label, hint, children, testid }) => h(C.Box, { borderWidth: 1, borderColor: "border", borderRadius: "md", px: 4, py: 3, minW: 0 },
    h(C.Text, { fontSize: "sm", color: "fg.muted" }, label), h(C.Text, { fontSize: "2xl", fontWeight: "semibold", lineHeight: "short", fontVariantNumeric: "tabular-nums", "data-testid": testid }, children), h(Small, { minH: "1lh" }, hint));
  const Swatch = ({ paint, striped, words }) => h(C.HStack, { gap: 1.5 },
    h("span", { "aria-hidden": true, style: { width: 10, height: 10, borderRadius: 2, display: "inline-block", background: striped ? STRIPES : paint, backgroundColor: paint } }), h(Small, null, words));
  const Task = ({ task, job }) => h(C.Box, { maxW: "280px" },
    h(C.Link, { asChild: true, color: "fg.info", display: "block", truncate: true }, h(Router.Link, { to: taskLink(task), title: `${task.dag_id}, ${task.run_id}, ${task.task_id}` }, `${task.dag_id} · ${task.task_id}${task.map_index >= 0 ? ` [${task.map_index}]` : ""}`)),
    h(Small, { truncate: true, title: job }, task.run_id));

  // --- quota --------------------------------------------------------------------------------------------------------
  const STRIPES = "repeating-linear-gradient(135deg, rgba(255, 255, 255, .55) 0 3px, transparent 3px 6px)";
  const TRAINING = color("running-solid"), OTHERS = color("fg-muted"), TRACK = color("border-emphasized");
  function Bar({ line }) { // as wide as the larger of nominal and used; what is borrowed is striped and beyond the mark
    const full = Math.max(line.nominal, line.used), share = (part) => (full > 0 ? `${(100 * part) / full}%` : "0%");
    const words = `${line.name}, ${line.flavor} ${line.resource}: ${ratio(line, "used")} used, ${line.words.borrowed} borrowed, ${line.words.available} available now`;
    const piece = (left, part, background, rest) => part > 0 && h("div", { style: { position: "absolute", top: 0, bottom: 0, left: share(left), width: share(part), background, ...rest } });
    return h("div", { role: "img", "aria-label": words, title: words, style: { position: "relative", height: 16, borderRadius: 4, overflow: "hidden", background: TRACK, minWidth: 80 } },
      piece(0, line.training, TRAINING), piece(line.training, line.others, OTHERS), piece(line.nominal, line.borrowed, STRIPES),
      line.borrowed > 0 && h("div", { style: { position: "absolute", top: 0, bottom: 0, left: `calc(${share(line.nominal)} - 1px)`, width: 2, background: color("fg") } }));
  }
  function QuotaRow({ line, again, trouble, resource }) {
    const cohort = line.scope === "cohort";
    const beside = [line.borrowed > 0 && `${line.words.borrowed} borrowed`, `${line.words.available} available`].filter(Boolean).join(", ");
    return h(C.Grid, { role: "row", templateColumns: { base: "1fr auto", md: "minmax(150px, 1.3fr) minmax(90px, .9fr) minmax(120px, 4fr) 90px minmax(130px, 1.2fr)" }, columnGap: 4, rowGap: 1, alignItems: "center", py: 1.5, borderTopWidth: again ? 0 : 1, borderColor: "border", "data-quota": `${line.name}/${line.flavor}/${line.resource}` },
      h(C.HStack, { role: "cell", gap: 2, minW: 0, ps: { base: 0, md: line.depth * 4 }, display: { base: again ? "none" : "flex", md: "flex" }, gridColumn: { base: "1 / -1", md: "auto" } },
        !again && h(C.Text, { truncate: true, fontWeight: cohort ? "semibold" : "normal", title: line.name }, line.name), !again && cohort && h(Small, null, "cohort"),
        !again && trouble && h(C.Badge, { colorPalette: "failed", size: "sm" }, trouble)),
      h(C.Text, { role: "cell", fontSize: "sm", truncate: true, title: `${line.flavor} ${line.resource}` }, line.flavor, resource === ALL && h(C.Text, { as: "span", color: "fg.muted" }, ` ${unit(line.resource)}`)),
      h(C.Box, { role: "cell", gridColumn: { base: "1 / -1", md: "auto" }, gridRow: { base: again ? 2 : 3, md: "auto" }, minW: 0 }, h(Bar, { line })),
      h(C.Text, { role: "cell", fontSize: "sm", textAlign: "end", fontVariantNumeric: "tabular-nums", whiteSpace: "nowrap" }, ratio(line, "used")),
      h(Small, { role: "cell", gridColumn: { base: "1 / -1", md: "auto" }, gridRow: { base: again ? 3 : 4, md: "auto" }, truncate: true, title: beside }, beside));
  }
  function Quota({ report }) {
    const resources = [...new Set(report.quota.map((line) => line.resource))].sort((a, b) => b.includes("/") - a.includes("/") || a.localeCompare(b));
    const [chosen, choose] = React.useState(null);
    const resource = chosen === ALL || resources.includes(chosen) ? chosen : resources[0];
    const lines = report.quota.filter((line) => resource === ALL || line.resource === resource);
    const trouble = Object.fromEntries(report.queues.map((queue) => [queue.name, queue.trouble]));
    const legend = h(C.HStack, { columnGap: 4, rowGap: 1, wrap: "wrap" }, h(Swatch, { paint: TRAINING, words: "training jobs" }), h(Swatch, { paint: OTHERS, words: "other workloads" }), h(Swatch, { paint: OTHERS, striped: true, words: "borrowed" }), h(Swatch, { paint: TRACK, words: "free" }));
    const select = resources.length > 1 && h(C.NativeSelect.Root, { size: "xs", width: "auto" },
      h(C.NativeSelect.Field, { value: resource, "aria-label": "resource", onChange: (e) => choose(e.target.value) }, [...resources, ALL].map((name) => h("option", { key: name, value: name }, name))), h(C.NativeSelect.Indicator));
    return h(Card, { title: "Quota by flavor", aside: h(C.HStack, { gap: 4, wrap: "wrap" }, legend, select) },
      lines.length === 0 ? h(Muted, null, "There is no ClusterQueue, or none that Airflow's account may list.")
        : h(C.Box, { role: "table", "aria-label": "quota by flavor", "data-testid": "cluster-quota" }, lines.map((line, i) => h(QuotaRow, { key: `${line.scope}/${line.name}/${line.flavor}/${line.resource}`, line, resource,
          again: i > 0 && lines[i - 1].name === line.name && lines[i - 1].scope === line.scope, trouble: line.scope === "queue" && trouble[line.name] }))));
  }

  // --- who holds, who waits -----------------------------------------------------------------------------------------
  const Count = ({ all, own }) => h(Small, null, all === own ? many(all, "workload") : `${own} of ${many(all, "workload")}`);
  function Waiting({ report }) {
    const rows = report.waiting.map((w) => [known(w.place) ? w.place : "–", h(Task, w), w.queue, w.asks || "–", seconds(w.for_s), h(C.Box, { fontSize: "sm", minW: "220px" }, sentence(w.message), w.kueue && h(Small, null, `Kueue: ${w.kueue}`))]);
    const others = report.others_wait.map((o) => ["", h(Muted, null, unseen(o.count)), o.queue || "–", h(Muted, null, many(o.pods, "pod")), "", ""]);
    return h(Card, { title: "Who waits, and why", aside: h(Count, { all: report.waits, own: report.waiting.length }) },
      rows.length + others.length ? h(Table, { testid: "cluster-waiting", label: "who waits", heads: ["Place", "Task", "Queue", "Asks for", "Waits", "Why"], rows: [...rows, ...others] })
        : h(Muted, null, "Nobody waits for quota."));
  }
  function Holding({ report }) {
    const rows = report.holders.map((j) => [h(Task, j), j.queue, h(C.Box, null, `${j.pods} × ${j.flavors.join(", ") || "–"}`, h(Small, { title: j.quota }, j.quota.replace(/^[^:;]*: (?=[^;]*$)/, ""))), known(j.attempt) ? j.attempt : "–", seconds(j.for_s),
      known(j.gpu_utilisation) ? `${Math.round(j.gpu_utilisation)} %` : "–", h(Phase, { phase: j.phase, size: "sm" }), h(C.Text, { fontSize: "sm", color: "fg.muted", minW: "180px" }, sentence(j.message))]);
    const others = report.others_hold.map((o) => [h(Muted, null, unseen(o.count)), o.queue, h(C.Box, null, h(Muted, null, many(o.pods, "pod")), h(Small, null, o.quota)), "", "", "", "", ""]);
    return h(Card, { title: "Who holds quota", aside: h(Count, { all: report.holds, own: report.holders.length }) },
      rows.length + others.length ? h(Table, { testid: "cluster-holders", label: "who holds quota", heads: ["Task", "Queue", "Workers", "Attempt", "For", "GPU", "Phase", "What it does"], rows: [...rows, ...others] })
        : h(Muted, null, "Nobody holds quota."),
      report.left_out > 0 && h(Muted, { mt: 2 }, `${report.left_out} rows are left out here; singularityctl top has all.`));
  }

  // --- goodput ------------------------------------------------------------------------------------------------------
  const money = (amount) => String(Number(Number(amount).toPrecision(4)));  // as `singularityctl top` has it
  function Share({ done, height }) {
    const words = TIMES.filter(([name]) => done[name] > 0).map(([name, , what]) => `${what} ${percent(done[name] / done.held_s)}`).join(", ");
    return h("div", { role: "img", "aria-label": words, title: words, style: { display: "flex", height, borderRadius: 4, overflow: "hidden", background: TRACK } },
      TIMES.map(([name, palette]) => done[name] > 0 && h("div", { key: name, style: { width: `${(100 * done[name]) / done.held_s}%`, background: color(`${palette}-solid`) } })));
  }
  function Goodput({ report }) {
    const done = report.goodput, queues = report.queues.filter((queue) => queue.goodput.held_s > 0);
    if (!(done.held_s > 0)) return h(Card, { title: "Goodput" }, h(Muted, null, "No training job has held quota yet."));
    const row = (name, one, height, strong) => h(React.Fragment, { key: name }, h(C.Text, { fontSize: "sm", truncate: true, title: name, fontWeight: strong ? "semibold" : "normal" }, name), h(Share, { done: one, height }), h(C.Text, { fontSize: "sm", textAlign: "end", fontVariantNumeric: "tabular-nums", fontWeight: strong ? "semibold" : "normal" }, percent(one.goodput)));
    return h(Card, { title: "Goodput", aside: h(Small, null, `${seconds(done.held_s)} of pod time held`) },
      h(C.Grid, { templateColumns: "minmax(70px, auto) minmax(80px, 1fr) auto", columnGap: 4, rowGap: 2, alignItems: "center", mb: 4, "data-testid": "cluster-goodput" }, row("all queues", done, 20, true), queues.map((queue) => row(queue.name || "not known", queue.goodput, 12))),
      h(C.HStack, { columnGap: 4, rowGap: 1, wrap: "wrap" }, TIMES.map(([name, palette, what]) => h(Swatch, { key: name, paint: color(`${palette}-solid`), words: `${what} ${seconds(done[name])}` }))),
      h(Muted, { mt: 3 }, `${many(done.steps, "step")} done, ${done.steps_lost} of them run again; lost: ${seconds(done.lost_s)}, waited for quota: ${seconds(done.waited_s)} of pod time.`),
      done.cost > 0 && h(C.Box, { mt: 3 }, h(Table, { testid: "cluster-cost", label: "cost by queue", heads: ["Cost", "In all", "Per step", "Steps"],
        rows: [["all queues", done], ...queues.map((queue) => [queue.name || "not known", queue.goodput])].filter(([, one]) => one.cost > 0).map(([name, one]) => [name, money(one.cost), known(one.cost_per_step) ? money(one.cost_per_step) : "–", one.cost_steps]) })));
  }

  // --- promised and delivered ---------------------------------------------------------------------------------------
  function DeviceTime({ report }) {
    const told = report.shares, part = (share) => (known(share) ? percent(share) : "–");
    const owed = (one) => (one.owed_s > 0 ? h(C.Badge, { colorPalette: "failed", size: "sm" }, `owed ${seconds(one.owed_s)}`) : "");
    const tenants = told.tenants.map((t) => [`${t.namespace} / ${t.local_queue}`, t.unmeasured ? `${t.jobs}, ${t.unmeasured} not measured` : t.jobs, part(t.promised), part(t.delivered), owed(t)]);
    const jobs = told.jobs.map((j) => [h(Task, j), j.priority_class || "–", part(j.promised), part(j.delivered), h(C.Box, { fontSize: "sm" }, owed(j), h(Small, null, [j.unmeasured, ...j.remarks, j.paused_s > 0 && `paused for ${seconds(j.paused_s)}`, j.ended && "ended"].filter(Boolean).map(sentence).join("; ")))]);
    return h(Card, { title: "Device time: promised and delivered", aside: h(Small, null, `last ${seconds(told.period_s)}, jobs that still exist`) },
      tenants.length > 0 && h(Table, { testid: "cluster-tenant-shares", label: "device time of tenants", heads: ["Tenant", "Jobs", "Promised", "Delivered", ""], rows: tenants }),
      jobs.length > 0 ? h(C.Box, { mt: 4 }, h(Table, { testid: "cluster-shares", label: "device time of jobs", heads: ["Task", "Class", "Promised", "Delivered", "Remarks"], rows: jobs }))
        : h(Muted, null, "No training job that you may see has asked for device time lately."),
      told.notes.map((note) => h(Muted, { key: note, mt: 2 }, sentence(note))),
      told.left_out > 0 && h(Muted, { mt: 2 }, `${told.left_out} rows are left out here; singularityctl report has all.`),
      told.others > 0 && h(Muted, { mt: 2 }, `${unseen(told.others)} count in the lines of their tenants only.`));
  }

  // --- what moved lately --------------------------------------------------------------------------------------------
  function Preemptions({ report }) {
    const by = (p) => (p.by ? h(Task, p.by) : h(Muted, null, `a job that you may not see${known(p.by_priority) ? `, priority ${p.by_priority}` : ""}`));
    const rows = report.preemptions.map((p) => [ago(report.at, p.time), h(Task, p), by(p), `${p.pods} × ${p.flavor}`, p.checkpoint ? h(C.Badge, { colorPalette: "success", size: "sm", title: p.checkpoint }, "saved") : h(C.Badge, { colorPalette: p.released ? "failed" : "deferred", size: "sm" }, p.released ? "none" : "under way")]);
    return h(Card, { title: "Who preempted whom", aside: h(Small, null, "last day") },
      rows.length > 0 && h(Table, { testid: "cluster-preemptions", label: "preemptions of the last day", heads: ["When", "Gave its quota", "To", "Gave", "Checkpoint"], rows }),
      rows.length === 0 && report.others_preempted === 0 && h(Muted, null, "No training job that still exists was preempted."),
      report.others_preempted > 0 && h(Muted, { mt: rows.length ? 2 : 0 }, `${many(report.others_preempted, "preemption")} of jobs that you may not see.`));
  }
  function Planner({ report }) {
    const rows = report.actions.map((a) => [ago(report.at, a.time), h(C.HStack, { gap: 1 }, a.policy, a.dry_run && h(C.Badge, { size: "sm", variant: "outline" }, "dry run")), h(Task, a), h(C.Box, { minW: "160px" }, h(C.Text, { fontSize: "sm" }, sentence(a.action)), h(Small, null, sentence(a.reason)))]);
    return h(Card, { title: "What the planner did, or would do, and why", aside: h(Small, null, "last hour") },
      rows.length > 0 && h(Table, { testid: "cluster-actions", label: "actions of the planner", heads: ["When", "Policy", "Task", "Action and reason"], rows }),
      rows.length === 0 && report.others_moved === 0 && h(Muted, { "data-testid": "cluster-no-actions" }, "The planner has moved no training job and proposed nothing. Regrowth acts when quota for more workers, or on an earlier flavor, is free."),
      report.others_moved > 0 && h(Muted, { mt: rows.length ? 2 : 0 }, `${many(report.others_moved, "action")} on jobs that you may not see.`));
  }

  // --- the page -----------------------------------------------------------------------------------------------------
  function Tiles({ report }) {
    const roots = report.quota.filter((line) => line.depth === 0), sums = {};
    for (const line of roots) { const sum = (sums[line.resource] = sums[line.resource] || { used: 0, nominal: 0 }); sum.used += line.used; sum.nominal += line.nominal; }
    const main = Object.keys(sums).sort((a, b) => b.includes("/") - a.includes("/") || a.localeCompare(b))[0];
    const figure = (value) => (Number.isInteger(value) ? value : value.toFixed(1));
    const own = report.holders.length, wait = report.waiting.length;
    return h(C.SimpleGrid, { columns: { base: 2, md: 3, xl: 5 }, gap: 3 },
      main && h(Tile, { label: `${sentence(unit(main))} in use`, hint: sums[main].nominal > 0 ? `${percent(sums[main].used / sums[main].nominal)} of its quota` : "" }, `${figure(sums[main].used)} of ${figure(sums[main].nominal)}`),
      h(Tile, { label: "Hold quota", hint: `${own} that you may see`, testid: "cluster-holds" }, report.holds), h(Tile, { label: "Wait", hint: `${wait} that you may see`, testid: "cluster-waits" }, report.waits),
      h(Tile, { label: "Goodput", hint: "of the held time", testid: "cluster-share" }, percent(report.goodput.goodput)),
      h(Tile, { label: "Preempted", hint: "in the last day" }, report.preemptions.length + report.others_preempted));
  }
  function Report({ report }) {
    return h(React.Fragment, null, h(Tiles, { report }), h(Quota, { report }), h(Waiting, { report }), h(Holding, { report }),
      h(C.SimpleGrid, { columns: { base: 1, xl: 2 }, gap: 3 }, h(Goodput, { report }), h(Planner, { report })), h(DeviceTime, { report }), h(Preemptions, { report }));
  }
  function Cluster() {
    const [query, setQuery] = Router.useSearchParams();
    const wanted = query.get("connection");
    const [state] = usePolled((signal) => api(`/singularity/cluster${wanted ? `?connection=${segment(wanted)}` : ""}`, { signal }),
      (data, error) => (error ? (error.status === 401 ? null : SLOW_MS / 3) : data.connection && !data.report && !data.trouble ? SOON_MS : POLL_MS), [wanted], true);
    const { data, error } = state, report = data && data.report;
    if (state.loading) return h(Loading);
    const select = data && data.connections.length > 1 && h(C.NativeSelect.Root, { size: "sm", width: "auto" },
      h(C.NativeSelect.Field, { value: data.connection || "", "aria-label": "connection", "data-testid": "cluster-connection", onChange: (e) => setQuery({ connection: e.target.value }) }, data.connections.map((name) => h("option", { key: name, value: name }, name))), h(C.NativeSelect.Indicator));
    return h(C.VStack, { align: "stretch", gap: 3, p: 3, overflow: "auto", height: "100%", "data-testid": "cluster-page" },
      h(C.Flex, { justify: "space-between", align: "center", wrap: "wrap", gap: 3 },
        h(C.Box, null, h(C.Heading, { size: "lg", as: "h1" }, "Training cluster"), report && h(Small, { "data-testid": "cluster-at" }, `${data.connection}, as of ${clock(report.at)}`)),
        h(C.HStack, { gap: 2 }, select, h(C.Button, { asChild: true, variant: "outline", size: "sm" }, h(Router.Link, { to: "/plugin/training_all" }, "All training runs")))),
      error && h(Notice, { status: error.status === 401 ? "warning" : "error", title: error.status === 401 ? "Not updating: you are not logged in any more" : "The cluster's report cannot be read" }, error.message),
      data && data.trouble && h(Notice, { status: "warning", title: report ? "Shown as it was seen last" : "The cluster cannot be shown" }, sentence(data.trouble)),
      report && report.notes.length > 0 && h(Notice, { status: "info", title: "Not everything can be shown" }, report.notes.map((note) => h(C.Text, { key: note, fontSize: "sm" }, sentence(note)))),
      report && report.unreadable > 0 && h(Notice, { status: "info", title: `${many(report.unreadable, "part")} of objects cannot be read` }, "All else is shown; singularityctl top names them."),
      report ? h(Report, { report }) : data && !data.trouble && (data.connection ? h(Loading) : h(Empty, { title: "No cluster yet" }, "No task of a Dag that you may read has submitted a training job yet. The first one tells which cluster to show.")),
      h(C.Box, { pb: 2 }));
  }
  globalThis["Training cluster"] = () => h(Boundary, null, h(Cluster));
})();
