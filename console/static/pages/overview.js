import { html, useMemo } from "../lib/html.js";
import { api } from "../lib/api.js";
import { LineChart, Meter, Sparkline } from "../lib/chart.js";
import { Badge, Card, Empty, Figure, Figures, Loaded, Loading, PageHeader, Problems, Status, Table, Time } from "../lib/components.js";
import { bytes, count, duration, percent, plural, rate, short } from "../lib/format.js";
import { live, useLive } from "../lib/live.js";
import { href, useQuery } from "../lib/state.js";

const MOST = 6;

/** What needs a person's attention, the worst first. */
function attention(clusters, raft, groups, unread) {
  const list = unread.map(([what, query, to]) => ["warn", `${what} could not be read`, query.error.message, to]);
  for (const cluster of clusters) {
    for (const broker of cluster.brokers) {
      if (!broker.reachable) list.push(["bad", `Broker ${broker.name} (${broker.address}) is not reachable`, broker.problem, href(["cluster"])]);
      else if (broker.problem) list.push(["warn", `Broker ${broker.name} (${broker.address}) has a problem`, broker.problem, href(["cluster"])]);
      if ((broker.disk.usedRatio ?? 0) >= 0.85) list.push(["warn", `The disk of ${broker.address} is ${percent(broker.disk.usedRatio)} used`, `${bytes(broker.disk.freeBytes)} free`, href(["cluster"])]);
    }
  }
  for (const group of raft) {
    if (group.leader === null) list.push(["bad", `Raft group ${group.name} has no leader`, group.problem, href(["cluster"])]);
    else if (group.problem) list.push(["warn", `Raft group ${group.name} has a problem`, group.problem, href(["cluster"])]);
    const away = group.members.filter((each) => each.connected === false);
    if (away.length) list.push(["warn", `${plural(away.length, "member")} of Raft group ${group.name} ${away.length === 1 ? "is" : "are"} not connected`, `member ${away.map((each) => each.id).join(", ")}`, href(["cluster"])]);
  }
  for (const group of groups) {
    if (group.disagrees) list.push(["warn", `Members of ${group.name} have different subscriptions`, "Some members get no messages, or the wrong ones.", href(["consumer-groups", group.name], { tab: "members" })]);
  }
  const rank = { bad: 0, warn: 1 };
  return list.sort((left, right) => rank[left[0]] - rank[right[0]]);
}

export function Overview() {
  const clusters = useQuery("clusters", (signal) => api.clusters(signal), { every: 10000 });
  const raft = useQuery("raft-groups", (signal) => api.raftGroups(signal), { every: 10000 });
  const groups = useQuery("groups false", (signal) => api.groups({}, signal), { every: 30000 });
  const topics = useQuery("topics false", (signal) => api.topics({}, signal), { every: 30000 });
  return html`<${PageHeader} title="Overview" />
    <${Loaded} query=${clusters}>${(list) => html`<${Content} clusters=${list} raft=${raft} groups=${groups} topics=${topics} />`}<//>`;
}

function Content({ clusters, raft, groups, topics }) {
  const { figures, times, totals } = useLive();
  const brokers = clusters.flatMap((each) => each.brokers);
  const up = brokers.filter((each) => each.reachable);
  const groupList = groups.data?.items || [];
  const unread = [["Raft groups", raft, href(["cluster"])], ["Consumer groups", groups, href(["consumer-groups"])], ["Topics", topics, href(["topics"])]].filter(([, query]) => query.error);
  const list = useMemo(() => attention(clusters, raft.data || [], groupList, unread), [clusters, raft.data, groupList, unread.length]);
  const reading = raft.loading || groups.loading;
  const lag = figures ? Object.values(figures.lags).reduce((sum, each) => sum + each, 0) : null;
  const inNow = figures ? figures.inPerS : up.reduce((sum, each) => sum + each.rates.inPerS, 0);
  const outNow = figures ? figures.outPerS : up.reduce((sum, each) => sum + each.rates.outPerS, 0);
  return html`
    <${Figures}>
      <${Figure} label="Brokers" value=${`${up.length} of ${brokers.length}`} note="reachable" kind=${up.length < brokers.length ? "bad" : ""} />
      <${Figure} label="Messages in" value=${rate(inNow)} note=${clusters.length === 1 ? clusters[0].name : plural(clusters.length, "cluster")} />
      <${Figure} label="Messages out" value=${rate(outNow)} note="to all consumer groups" />
      <${Figure} label="Lag" value=${short(lag)} note="messages, all groups" />
      <${Figure} label="Topics" value=${topics.data ? count(topics.data.items.length) : "…"} note="without system topics" />
      <${Figure} label="Consumer groups" value=${groups.data ? count(groupList.length) : "…"} note=${groups.data ? `${count(groupList.filter((each) => each.state === "online").length)} online` : ""} />
    <//>
    <${Problems} problems=${figures?.problems} />
    <div class="columns two-one">
      <${Card} title="Messages per second" note="last ten minutes">
        <${LineChart} label="Messages per second of the whole cluster" times=${times} height=${264} format=${rate}
          series=${[{ name: "In", values: totals.of("in"), color: 1 }, { name: "Out", values: totals.of("out"), color: 2 }]} />
      <//>
      <${Card} title="Needs attention" note=${list.length ? plural(list.length, "finding") : ""}>
        ${list.length ? html`<ul class="attention">${list.slice(0, 20).map(([kind, title, why, to]) => html`<li key=${title} class=${kind}><a href=${to}><${Status} kind=${kind}>${title}<//></a>${why && html`<small>${why}</small>`}</li>`)}</ul>`
          : reading ? html`<${Loading} rows=${3} />` : html`<${Empty} icon="check" title="Nothing to do">All brokers answer, each Raft group has a leader, and subscriptions agree.<//>`}
      <//>
    </div>
    <div class="columns">
      <${Busiest} figures=${figures} />
      <${Behind} groups=${groupList} />
    </div>
    <${Card} title="Brokers" flush actions=${html`<a class="button small" href=${href(["cluster"])}>Cluster</a>`}>
      <${Table} label="Brokers" rows=${brokers} rowKey=${(each) => each.address} size=${12} columns=${BROKERS} />
    <//>`;
}

const BROKERS = [
  { id: "name", title: "Broker", wide: true, cell: (row) => html`<b>${row.name}</b> <span class="faint mono">${row.address}</span>` },
  { id: "role", title: "Role", cell: (row) => html`<${Badge} kind=${row.role === "leader" || row.role === "master" ? "accent" : "plain"}>${row.role}<//>` },
  { id: "state", title: "State", cell: (row) => html`<${Status} kind=${row.reachable ? (row.problem ? "warn" : "good") : "bad"}>${row.reachable ? (row.problem ? "problem" : "reachable") : "not reachable"}<//>` },
  { id: "in", title: "In", number: true, cell: (row) => (row.reachable ? rate(row.rates.inPerS) : "–") },
  { id: "out", title: "Out", number: true, cell: (row) => (row.reachable ? rate(row.rates.outPerS) : "–") },
  { id: "disk", title: "Disk", cell: (row) => (row.disk.usedRatio === null ? html`<span class="faint">${row.disk.error || "unknown"}</span>` : html`<span class="with-meter"><${Meter} ratio=${row.disk.usedRatio} label=${`${percent(row.disk.usedRatio)} used`} />${percent(row.disk.usedRatio)}</span>`) },
  { id: "started", title: "Started", cell: (row) => html`<${Time} ms=${row.startedMs} />` },
];

function Busiest({ figures }) {
  const rows = figures ? Object.entries(figures.topics).filter(([, each]) => each.inPerS > 0 || each.outPerS > 0).sort((left, right) => right[1].inPerS + right[1].outPerS - left[1].inPerS - left[1].outPerS).slice(0, MOST) : [];
  return html`<${Card} title="Busiest topics" flush actions=${html`<a class="button small" href=${href(["topics"])}>All topics</a>`}>
    <${Table} label="Busiest topics" rows=${rows} rowKey=${([name]) => name} empty=${html`<${Empty} title="No messages now">Topics with messages in the last seconds are listed here.<//>`}
      columns=${[
        { id: "name", title: "Topic", wide: true, className: "break", cell: ([name]) => html`<a href=${href(["topics", name])}>${name}</a>` },
        { id: "chart", title: "Last minutes", cell: ([name]) => html`<${Sparkline} values=${live.topicsIn.of(name)} />` },
        { id: "in", title: "In", number: true, cell: ([, each]) => rate(each.inPerS) },
        { id: "out", title: "Out", number: true, cell: ([, each]) => rate(each.outPerS) },
      ]} />
  <//>`;
}

function Behind({ groups }) {
  const rows = groups.filter((each) => each.lag > 0).sort((left, right) => right.lag - left.lag).slice(0, MOST);
  return html`<${Card} title="Furthest behind" flush actions=${html`<a class="button small" href=${href(["consumer-groups"])}>All groups</a>`}>
    <${Table} label="Consumer groups that are furthest behind" rows=${rows} rowKey=${(each) => each.name} empty=${html`<${Empty} icon="check" title="No group is behind">Each message has been consumed.<//>`}
      columns=${[
        { id: "name", title: "Consumer group", wide: true, className: "break", cell: (row) => html`<a href=${href(["consumer-groups", row.name])}>${row.name}</a>` },
        { id: "chart", title: "Last minutes", cell: (row) => html`<${Sparkline} values=${live.lags.of(row.name)} color=${3} />` },
        { id: "lag", title: "Lag", number: true, cell: (row) => short(live.figures?.lags[row.name] ?? row.lag) },
        { id: "age", title: "Oldest", number: true, cell: (row) => duration(row.lagS) },
      ]} />
  <//>`;
}
