"use strict";
// All text of the appliance is inserted as text, never as markup: peers choose names.
const byId = id => document.getElementById(id);
const PERIOD = 2000, SLOW = 10000, LIMIT = 8000, LINES = 200;
let token = "";
try { token = sessionStorage.getItem("token") || ""; } catch { /* storage is off */ }
let away = null, uptime = null, busy = false, before = null, stopped = false;
const drawn = new Map(), closed = new Set(["log"]), seen = new Map();

function make(tag, attributes = {}, ...children) {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  for (const child of children) one.append(child instanceof Node ? child : String(child));
  return one;
}
const list = value => Array.isArray(value) ? value : [];
const pairs = value => value && typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : [];

function bytes(count) {
  if (typeof count !== "number") return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit++; }
  return (unit && count < 100 ? count.toFixed(1) : Math.round(count)) + " " + units[unit];
}
function time(seconds) {
  if (typeof seconds !== "number") return "";
  const s = Math.floor(seconds), d = Math.floor(s / 86400);
  const two = n => String(n).padStart(2, "0");
  return (d ? d + " d " : "") + two(Math.floor(s / 3600) % 24) + ":" + two(Math.floor(s / 60) % 60) + ":" + two(s % 60);
}
const many = (count, what) => count + " " + what + (count === 1 ? "" : "s");
const micro = seconds => typeof seconds === "number" && seconds > 0 ? (seconds * 1e6).toFixed(1) + " µs" : "";
const percent = share => typeof share === "number" ? (share * 100).toFixed(1) + " %" : "";
const text = value => value === null || value === undefined ? "" : Array.isArray(value) ? value.map(text).join(", ")
  : typeof value === "object" ? JSON.stringify(value) : value === true ? "yes" : value === false ? "no" : String(value);

async function ask(path, options = {}) {
  const control = new AbortController(), timer = setTimeout(() => control.abort(), LIMIT);
  const headers = { ...(options.headers || {}) };
  if (token) headers.Authorization = "Bearer " + token;
  try {
    const answer = await fetch(path, { ...options, headers, signal: control.signal, cache: "no-store", credentials: "omit", redirect: "error" });
    const body = await answer.text();
    return { status: answer.status, etag: answer.headers.get("ETag"), body };
  } finally { clearTimeout(timer); }
}
async function json(path) {
  const { status, body } = await ask(path);
  if (status === 401 || status === 403) throw { denied: body.trim() || status };
  if (status !== 200) throw { status, body };
  return JSON.parse(body);
}

function table(columns, rows, empty) {
  if (!rows.length) return make("p", { class: "dim" }, empty);
  const head = make("tr", {}, ...columns.map(([name, , kind]) => make("th", kind ? { scope: "col", class: kind } : { scope: "col" }, name)));
  const line = row => make("tr", {}, ...columns.map(([name, value, kind]) => make("td", { "data-name": name, ...(kind ? { class: kind } : {}) }, text(value(row)))));
  return make("div", { class: "table", tabindex: "0", role: "region", "aria-label": empty }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows.map(line))));
}
function checks(report) {
  const one = check => make("li", { class: check.state }, make("strong", {}, check.state + " "), make("strong", {}, check.check),
    make("p", {}, text(check.cause)), ...(check.remedy ? [make("p", {}, make("strong", {}, "Remedy: "), text(check.remedy))] : []));
  const all = list(report.checks), bad = all.filter(check => check.state !== "ok"), good = all.filter(check => check.state === "ok");
  const rest = make("details", {}, make("summary", {}, good.length + " checks are in order"), make("ul", { class: "checks" }, ...good.map(one)));
  return make("div", {}, make("ul", { class: "checks" }, ...bad.map(one)), rest);
}

const rate = (row, key) => {
  const old = before && list(before.interfaces).find(other => other.name === row.name);
  if (!old || !before.seconds) return "";
  const change = row[key] - old[key];
  return change < 0 ? "" : bytes(change / before.seconds) + "/s";
};
// Name, title, path (null: that of /status), and the drawing of the answer.
const SECTIONS = [
  ["wrong", "What is wrong", "/api/doctor", checks],
  ["sessions", "Sessions", "/api/rtrs-server", data => table([
    ["session", r => r.name], ["path", r => r.path], ["state", r => r.state], ["in flight", r => r.flight, "n"], ["latency", r => micro(r.latency), "n"],
    ["written", r => bytes(r.written), "n"], ["read", r => bytes(r.read), "n"], ["errors", r => r.errors, "n"]],
  pairs(data).flatMap(([name, s]) => pairs(s.paths).map(([path, p]) => ({ name, path, state: p.state, latency: p.cur_latency_seconds, flight: p.stats?.rdma?.inflight,
    written: p.stats?.rdma?.wr_bytes, read: p.stats?.rdma?.rd_bytes, errors: p.stats?.rdma?.errors }))), "no storage client is connected to the first core")],
  ["volumes", "Volumes", null, status => columns(status.volumes, "there is no volume")],
  ["exports", "Exports", "/api/exports", data => columns(data, "nothing is exported")],
  ["mirrors", "Mirrors", "/api/mirrors", data => table([["mirror", r => r.name], ["state", r => r.state], ["size", r => bytes(r.size), "n"],
    ["members", r => list(r.members).map(m => m.name + ": " + m.state + (m.left_out ? " (" + m.left_out + ")" : "")).join(", ")], ["to copy", r => bytes(r.stale_bytes), "n"]],
  pairs(data).map(([name, m]) => ({ name, ...m })), "there is no mirror")],
  ["links", "Links and throughput", null, status => table([["interface", r => r.name], ["link", r => r.link], ["addresses", r => r.addresses], ["MTU", r => r.mtu, "n"],
    ["receives", r => rate(r, "rx_bytes"), "n"], ["sends", r => rate(r, "tx_bytes"), "n"], ["errors", r => r.rx_errors + r.rx_missed, "n"], ["place", r => r.location]],
  list(status.interfaces), "there is no network interface")],
  ["rules", "Rules", "/api/smc/rules", data => table([["rule", r => r.name], ["listens on", r => r.listen], ["connections", r => r.connections, "n"],
    ["SMC-R, TCP", r => r.left_out ? r.left_out : text(r.smc_clients) + ", " + text(r.tcp_clients)], ["in", r => bytes(r.bytes_in), "n"], ["out", r => bytes(r.bytes_out), "n"],
    ["servers", r => list(r.backends).map(b => b.address + " " + b.state).join(", ")]], list(data), "there is no rule")],
  ["cores", "Cores", null, status => table([["core", r => r.loop, "n"], ["state", r => r.state], ["ports", r => r.ports], ["busy", r => percent(r.busy), "n"], ["idle", r => percent(r.idle), "n"],
    ["halted", r => percent(r.halted), "n"], ["rounds", r => r.rounds, "n"]], list(status.loops), "no core reports")],
  ["refused", "Refusals", "/api/refused", data => table([["from", r => r.from], ["asked", r => r.what + " " + r.asked], ["times", r => r.times, "n"], ["reason", r => r.reason],
    ["what to do", r => r.advice]], list(data), "nothing was refused")],
  ["log", "Log", "/api/log", data => table([["time", r => r.time || text(r.seconds)], ["level", r => r.level], ["message", r => r.message]],
    list(data).slice(-LINES).reverse(), "the log is empty")],
];
function columns(rows, empty) {
  rows = list(rows);
  const names = rows.length ? Object.keys(rows[0]) : [];
  const shown = (name, value) => /^(size|free|rx|tx)$|bytes/.test(name) && typeof value === "number" ? bytes(value) : value;
  return table(names.map(name => [name.replaceAll("_", " "), row => shown(name, row[name])]), rows, empty);
}

function frame() {
  for (const [name, title] of SECTIONS) {
    byId("sections").append(make("li", {}, make("a", { href: "#" + name }, title)));
    const open = !closed.has(name);
    const button = make("button", { type: "button", "aria-expanded": open, "aria-controls": name + "-body" }, title);
    const body = make("div", { id: name + "-body" });
    body.hidden = !open;
    button.addEventListener("click", () => {
      body.hidden = !body.hidden;
      button.setAttribute("aria-expanded", !body.hidden);
      body.hidden ? closed.add(name) : closed.delete(name);
      seen.delete(name);
      round();
    });
    byId("main").append(make("section", { "aria-labelledby": name }, make("h2", { id: name, tabindex: "-1" }, button), body));
  }
}
function draw(name, data, drawing) {
  const body = byId(name + "-body"), key = JSON.stringify(data);
  if (drawn.get(name) === key) return;
  // The redrawn section keeps focus, scroll positions and its open <details>.
  const places = () => [...body.querySelectorAll("[tabindex],summary")], old = places();
  const focused = old.indexOf(document.activeElement), scrolled = old.map(one => one.scrollLeft);
  const open = body.querySelector("details")?.open;
  body.replaceChildren(drawing(data));
  if (open) body.querySelector("details").open = true;
  places().forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
  places()[focused]?.focus({ preventScroll: true });
  drawn.set(name, key);
}

function health(report) {
  const place = byId("health"), words = { ok: "Everything is in order", warning: "Works, with warnings", fault: "Something does not work" };
  const what = (words[report.state] || text(report.state)) + (report.state === "ok" ? "" : ": " + many(report.faults, "fault") + ", " + many(report.warnings, "warning"));
  if (place.textContent !== what) place.textContent = what;
  place.className = report.state in words ? report.state : "";
}
function reached(version) {
  if (away) byId("away").hidden = true;
  away = null;
  if (uptime !== null && version.uptime_seconds < uptime) seen.clear();
  uptime = version.uptime_seconds;
  const name = text(version.hostname);
  document.title = name + " – Isthmus";
  byId("title").textContent = "Isthmus " + name;
  byId("about").textContent = "version " + text(version.version) + ", commit " + text(version.commit) + ", up " + time(version.uptime_seconds);
}
function unreachable() {
  away = away || new Date();
  byId("away").textContent = "Unreachable since " + away.toLocaleTimeString() + ". What is shown is from then; this page tries again.";
  byId("away").hidden = false;
}
function denied(why) {
  // Not repeated: each attempt would be a refusal in the log of the appliance.
  stopped = true;
  token = "";
  signed();
  byId("main").hidden = byId("nav").hidden = true;
  byId("health").textContent = "Sign in to see the state";
  byId("health").className = "warning";
  byId("access").textContent = text(why);
}

async function round() {
  if (busy || stopped || document.hidden) return;
  busy = true;
  try {
    const now = performance.now(), status = await json("/status");
    if (before) before.seconds = (now - before.at) / 1000;
    byId("main").hidden = byId("nav").hidden = false;
    reached(status.version || {});
    for (const [name, , path, drawing] of SECTIONS) {
      const first = name === "wrong";
      if (!first && closed.has(name)) continue;
      if (name === "log" && now - (seen.get(name) ?? -SLOW) < SLOW) continue;
      const data = path ? await json(path) : status;
      seen.set(name, now);
      if (first) health(data);
      draw(name, path ? data : name === "links" ? { ...status, at: now } : { volumes: status.volumes, loops: status.loops }, drawing);
    }
    before = { at: now, interfaces: status.interfaces };
  } catch (why) {
    if (why && why.denied) denied(why.denied); else unreachable();
  } finally { busy = false; }
}

function result(what) { byId("result").textContent = what; }
const changes = body => {
  try {
    const all = JSON.parse(body);
    const one = c => typeof c === "string" ? c : Object.entries(c).map(([k, v]) => k + ": " + text(v)).join(", ");
    return [...list(all.cuts).map(c => "cuts off: " + c), ...list(all.changes ?? all).map(one), ...list(all.notes), ...(all.error ? [all.error] : [])].join("\n") || "no change";
  } catch { return body; }
};
let tag = null;
const CONFIG = "/api/v1/config/";
const actions = {
  async load() {
    const { status, etag, body } = await ask(CONFIG + "candidate");
    if (status !== 200) return result(changes(body));
    byId("document").value = body;
    tag = etag;
    result("loaded");
  },
  async compare() {
    const headers = { "Content-Type": "application/toml", ...(tag ? { "If-Match": tag } : {}) };
    const put = await ask(CONFIG + "candidate", { method: "PUT", headers, body: byId("document").value });
    if (put.status !== 200) return result(changes(put.body));
    tag = put.etag;
    result(changes((await ask(CONFIG + "compare")).body));
  },
  async commit() {
    const minutes = Number(byId("minutes").value), terms = { yes: byId("yes").checked, ...(minutes ? { confirm_minutes: minutes } : {}) };
    const headers = { "Content-Type": "application/json", ...(tag ? { "If-Match": tag } : {}) };
    const { status, body } = await ask(CONFIG + "commit", { method: "POST", headers, body: JSON.stringify(terms) });
    result((status < 300 ? "in force" + (minutes ? ", until it is confirmed or " + minutes + " minutes have passed" : "") + "\n" : "not committed\n") + changes(body));
    byId("yes").checked = false;
    tag = null;
  },
  async confirm() { result(changes((await ask(CONFIG + "confirm", { method: "POST" })).body)); },
};
for (const [name, action] of Object.entries(actions)) byId(name).addEventListener("click", () => action().catch(() => result("the appliance is unreachable; nothing is known of the last step")));

function signed() { byId("config").hidden = !token; byId("access").textContent = token ? "signed in" : ""; }
byId("sign-in").addEventListener("submit", event => {
  event.preventDefault();
  token = byId("token").value.trim();
  byId("token").value = "";
  stopped = false;
  try { byId("keep").checked ? sessionStorage.setItem("token", token) : sessionStorage.removeItem("token"); } catch { /* storage is off */ }
  signed();
  if (token) ask("/api/v1/config/compare").then(({ status, body }) => {
    if (status !== 200) { token = ""; signed(); byId("access").textContent = body.trim(); return; }
    round();
  }).catch(unreachable);
  else round();
});
byId("sign-out").addEventListener("click", () => {
  token = "";
  try { sessionStorage.removeItem("token"); } catch { /* storage is off */ }
  byId("document").value = "";
  result("");
  signed();
});
document.addEventListener("visibilitychange", round);
frame();
signed();
round();
setInterval(round, PERIOD);
