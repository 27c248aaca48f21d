// The page reads JSON from its own gateway and draws it; it changes nothing.
"use strict";

const EVERY_MS = 2000;
const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);
let key = sessionStorage.getItem("lmpool key") || "";
let before = null;

function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

function draw(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function compact(count) {
  if (Math.abs(count) < 100000) return String(Math.round(count));
  let value = count, unit = "";
  for (unit of "kMGTP") { value /= 1000; if (Math.abs(value) < 999.5) break; }
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + unit;
}

const percent = (ratio) => (ratio === null ? "–" : (100 * ratio).toFixed(1) + "%");
const seconds = (ms) => (ms < 10000 ? (ms / 1000).toFixed(1) : Math.round(ms / 1000)) + " s";

async function ask(path) {
  const headers = key ? { Authorization: "Bearer " + key } : {};
  const answer = await fetch("/ui/api/" + path, { headers });
  at("door").hidden = answer.status !== 401;
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error.message);
  return said;
}

// --- tables -----------------------------------------------------------------------------------
function fill(table, columns, rows, chosen) {
  const head = make("tr", {}, ...columns.map(([name, kind]) => make("th", { class: kind || "" }, name)));
  const body = rows.map((cells, index) => {
    const row = make("tr", chosen && chosen(index) ? { class: "chosen" } : {});
    cells.forEach((cell, column) => row.append(make("td", { class: columns[column][1] || "" }, cell)));
    return row;
  });
  table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
}

const hashButton = (name) => {
  const button = make("button", { class: "hash", type: "button", title: name }, name.slice(0, 12));
  button.addEventListener("click", () => { at("hash").value = name; showBlock(name); });
  return button;
};

// --- the pool ---------------------------------------------------------------------------------
function tile(value, name) { return make("div", {}, make("b", {}, value), make("span", {}, name)); }

function rate(now, name) {
  if (!before || now.read_ms <= before.read_ms) return null;
  const gained = now.totals[name] - before.totals[name];
  return gained < 0 ? null : (1000 * gained) / (now.read_ms - before.read_ms);
}

function showTiles(pool) {
  const speed = rate(pool, "output_tokens");
  at("tiles").replaceChildren(
    tile(`${pool.up} / ${pool.ranks.length}`, "ranks up"),
    tile(pool.daemons, "lmpoold"),
    tile(compact(pool.totals.requests), "requests answered"),
    tile(speed === null ? "–" : compact(speed), "tokens a second"),
    tile(percent(pool.totals.hit_rate), "of prompts from the cache"),
    tile(pool.ingress + pool.parked, "requests waiting"),
    tile(pool.dead, "could not be served"),
  );
}

function pair(list, name, value) { list.append(make("dt", {}, name), make("dd", {}, value)); }

function rankCard(row) {
  const card = make("div", { class: "rank " + row.state });
  card.append(make("h3", {}, `rank ${row.rank}`, make("span", {}, row.state)));
  const bar = make("div", { class: "bar", role: "img",
    "aria-label": `${row.used} of ${row.blocks} blocks held, ${row.reclaimable} cached` });
  for (const [kind, blocks] of [["held", row.used], ["resv", row.reserved], ["cached", row.reclaimable]]) {
    const part = make("i", { class: kind });
    part.style.width = (row.blocks ? (100 * blocks) / row.blocks : 0) + "%";
    bar.append(part);
  }
  const facts = make("dl");
  pair(facts, "blocks held, cached, free", `${compact(row.used)}, ${compact(row.reclaimable)}, ${compact(row.free)}`);
  pair(facts, "sequences", compact(row.sequences));
  pair(facts, "work waiting, running", `${compact(row.wait_tokens)}, ${compact(row.run_tokens)}`);
  pair(facts, "requests", compact(row.requests));
  pair(facts, "prompts from the cache", percent(row.hit_rate));
  pair(facts, "on", `${row.device} · ${row.host} · ${row.pid}`);
  card.append(bar, facts);
  return card;
}

function showRanks(pool) {
  at("ranks").replaceChildren(...pool.ranks.map(rankCard));
  if (!pool.ranks.length) at("ranks").append(make("p", { class: "quiet" }, "No worker has joined yet."));
  const choice = at("rank"), chosen = choice.value;
  const numbers = pool.ranks.map((row) => String(row.rank));
  if (numbers.join() !== [...choice.options].map((option) => option.value).join()) {
    choice.replaceChildren(...numbers.map((number) => make("option", { value: number }, number)));
    if (numbers.includes(chosen)) choice.value = chosen;
  }
}

// --- transfers --------------------------------------------------------------------------------
const CENTRE = [240, 170], NODE = 30;

function places(ranks) {
  const found = new Map(), count = ranks.length;
  ranks.forEach((row, index) => {
    const angle = Math.PI + (2 * Math.PI * index) / Math.max(1, count);
    found.set(row.rank, count === 1 ? CENTRE
      : [CENTRE[0] + 170 * Math.cos(angle), CENTRE[1] + (count === 2 ? 0 : 118) * Math.sin(angle)]);
  });
  return found;
}

// From the edge of one circle to the edge of another, bent to the left, so that both ways show.
function arc([x1, y1], [x2, y2], bend) {
  const length = Math.hypot(x2 - x1, y2 - y1) || 1;
  const [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length];
  const from = [x1 + ux * (NODE + 6), y1 + uy * (NODE + 6)], to = [x2 - ux * (NODE + 10), y2 - uy * (NODE + 10)];
  const aside = (by) => [(from[0] + to[0]) / 2 + uy * by, (from[1] + to[1]) / 2 - ux * by];
  return { path: `M ${from} Q ${aside(bend)} ${to}`, label: aside(bend / 2 + 14) };
}

function arrowHead(id, colour) {
  const marker = draw("marker", { id, viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 9, markerHeight: 9,
    orient: "auto", markerUnits: "userSpaceOnUse" });
  const head = draw("path", { d: "M 0 0 L 8 4 L 0 8 z" });
  head.style.fill = colour;
  marker.append(head);
  return marker;
}

function sums(rows, blocks) {
  const found = new Map();
  for (const [source, destination, count] of rows.map(blocks)) {
    const name = `${source}>${destination}`, sum = found.get(name) || { source, destination, plans: 0, blocks: 0 };
    sum.plans += 1;
    sum.blocks += count;
    found.set(name, sum);
  }
  return [...found.values()];
}

function showMap(pool) {
  const map = at("map"), where = places(pool.ranks);
  const head = draw("defs", {});
  head.append(arrowHead("arrow-now", "var(--held)"), arrowHead("arrow-past", "var(--cached)"));
  map.replaceChildren(head);
  map.setAttribute("viewBox", pool.ranks.length > 2 ? "0 0 480 350" : "0 90 480 160");
  for (const link of pool.links) {
    const [from, to] = [where.get(link.source), where.get(link.destination)];
    if (from && to && link.source < link.destination)
      map.append(draw("line", { class: "link", x1: from[0], y1: from[1], x2: to[0], y2: to[1] }));
  }
  const ended = pool.log.filter((row) => row.outcome === "finalize");
  const past = sums(ended, (row) => [Number(row.src), Number(row.dst), Number(row.blocks)]);
  const now = sums(pool.plans, (plan) => [plan.source, plan.destination, plan.blocks]);
  for (const [kind, rows, bend] of [["past", past, 34], ["now", now, 62]]) {
    for (const sum of rows) {
      const [from, to] = [where.get(sum.source), where.get(sum.destination)];
      if (!from || !to) continue;
      const curve = arc(from, to, bend);
      const line = draw("path", { class: kind, d: curve.path, "marker-end": `url(#arrow-${kind})` });
      if (kind === "past") line.setAttribute("stroke-width", String(Math.min(6, 1 + Math.log2(1 + sum.blocks) / 2)));
      line.append(draw("title", {}, `${sum.plans} plans, ${sum.blocks} blocks from rank ${sum.source} to rank ${sum.destination}`));
      map.append(line, draw("text", { class: "quiet", x: curve.label[0], y: curve.label[1] + 5 }, `${sum.blocks} blocks`));
    }
  }
  for (const row of pool.ranks) {
    const [x, y] = where.get(row.rank), round = 2 * Math.PI * NODE;
    map.append(draw("circle", { class: "node " + row.state, cx: x, cy: y, r: NODE }));
    const share = row.blocks ? row.used / row.blocks : 0;
    map.append(draw("circle", { class: "fill", cx: x, cy: y, r: NODE, transform: `rotate(-90 ${x} ${y})`,
      "stroke-dasharray": `${share * round} ${round}` }));
    map.append(draw("text", { x, y: y + 5 }, row.rank));
    map.append(draw("text", { class: "quiet", x, y: y + NODE + 22 }, `${compact(row.pages)} pages`));
  }
}

function showPlans(pool) {
  const live = pool.plans.map((plan) => [plan.phase, plan.why, plan.mode, `${plan.source} → ${plan.destination}`,
    compact(plan.blocks), seconds(plan.age_ms), plan.reason === "-" ? "" : plan.reason]);
  const ended = pool.log.slice(0, 12).map((row) => [row.outcome, row.why, row.mode, `${row.src} → ${row.dst}`,
    compact(Number(row.blocks)), seconds(Number(row.publish_us) / 1000), row.reason === "-" ? "" : row.reason]);
  fill(at("plans"), [["phase"], ["why"], ["mode"], ["way"], ["blocks", "number"], ["took", "number"], ["reason"]],
    [...live, ...ended]);
  if (!live.length && !ended.length)
    at("plans").replaceChildren(make("caption", { class: "quiet" }, "No block has moved yet."));
}

async function turn() {
  try {
    const pool = await ask("pool");
    pool.read_ms = performance.now();
    at("serves").textContent = pool.cfg.model
      ? `serves ${pool.cfg.model}, ${pool.cfg.block_size} tokens a block` : "no lmpoold has described the pool yet";
    showTiles(pool);
    showRanks(pool);
    showMap(pool);
    showPlans(pool);
    before = pool;
    at("state").textContent = "live";
    at("state").className = "";
  } catch (error) {
    at("state").textContent = error.message;
    at("state").className = "lost";
  }
}

async function live() {
  if (!document.hidden) await turn();
  setTimeout(live, EVERY_MS);
}

// --- a request's route ------------------------------------------------------------------------
const TERMS = ["queue", "prefill", "reclaim", "hop"];

function costBar(candidate, most) {
  const bar = make("div", { class: "cost", title: TERMS.map((name) => `${name} ${candidate[name]}`).join(", ") });
  for (const name of TERMS) {
    const part = make("i", { class: name });
    part.style.width = (most ? (100 * Math.max(0, candidate[name])) / most : 0) + "%";
    bar.append(part);
  }
  return bar;
}

async function explain(id) {
  const place = at("route");
  try {
    const found = await ask("request?id=" + encodeURIComponent(id));
    const facts = make("dl");
    for (const [name, value] of Object.entries(found.facts)) if (name !== "id") pair(facts, name, value);
    const table = make("table");
    const most = Math.max(1, ...found.candidates.map((each) => TERMS.reduce((sum, name) => sum + Math.max(0, each[name]), 0)));
    fill(table, [["rank", "number"], ["blocks held", "number"], ["needed", "number"], ["queue", "number"], ["prefill", "number"],
      ["reclaim", "number"], ["hop", "number"], ["lease", "number"], ["cost", "number"], ["made of"], ["verdict"]],
      found.candidates.map((each) => [each.rank, each.hit, each.need, compact(each.queue), compact(each.prefill),
        compact(each.reclaim), compact(each.hop), compact(-each.lease), compact(each.cost), costBar(each, most), each.verdict]),
      (index) => found.candidates[index].rank === found.rank);
    const went = found.rank === null ? "It went nowhere" : `It went to rank ${found.rank}`;
    place.replaceChildren(make("p", {}, `${went}: ${found.sentence}.`), make("div", { class: "scroll" }, table), facts);
  } catch (error) {
    place.replaceChildren(make("p", { class: "wrong" }, error.message));
  }
}

// --- the page table ---------------------------------------------------------------------------
let shown = [], cursor = "0", shownRank = "";

async function showPages(rank, from) {
  try {
    const found = await ask(`pages?rank=${encodeURIComponent(rank)}&cursor=${from}`);
    shown = from === "0" ? found.blocks : shown.concat(found.blocks);
    cursor = found.cursor;
    shownRank = rank;
    shown.sort((one, two) => one.depth - two.depth || (one.hash < two.hash ? -1 : 1));
    fill(at("pages"), [["depth", "number"], ["hash"], ["block", "number"], ["generation", "number"], ["parent"]],
      shown.map((row) => [row.depth, hashButton(row.hash), row.block, row.generation,
        row.depth ? hashButton(row.parent) : make("span", { class: "quiet" }, "the beginning")]));
    if (!shown.length) at("pages").replaceChildren(make("caption", { class: "quiet" }, `Rank ${rank} shows no page.`));
    at("more").hidden = cursor === "0";
    at("block").replaceChildren();
  } catch (error) {
    at("block").replaceChildren(make("p", { class: "wrong" }, error.message));
  }
}

async function showBlock(name) {
  try {
    const found = await ask("block?hash=" + encodeURIComponent(name));
    const place = at("block");
    if (!found.holders.length) {
      place.replaceChildren(make("p", {}, "No rank holds ", make("code", {}, name), "."));
      return;
    }
    const table = make("table");
    fill(table, [["rank", "number"], ["block", "number"], ["generation", "number"], ["depth", "number"]],
      found.holders.map((row) => [row.rank, row.block, row.gen, row.depth]));
    const chain = make("p", {}, "From the prompt's beginning: ");
    found.chain.forEach((each, index) => chain.append(index ? " → " : "", each === name ? make("code", {}, each.slice(0, 12)) : hashButton(each)));
    place.replaceChildren(make("p", {}, make("code", {}, name)), table, make("br"), chain);
  } catch (error) {
    at("block").replaceChildren(make("p", { class: "wrong" }, error.message));
  }
}

// A link may name what to show: /ui#request=<id>, /ui#rank=0, /ui#block=<hash>.
function follow() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.has("request")) { at("request").value = wanted.get("request"); explain(wanted.get("request")); }
  if (wanted.has("block")) { at("hash").value = wanted.get("block"); showBlock(wanted.get("block")); }
  if (wanted.has("rank")) showPages(wanted.get("rank"), "0");
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const before = location.hash;
  location.hash = new URLSearchParams({ request: at("request").value.trim() });
  if (location.hash === before) follow();
});
at("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = at("hash").value.trim();
  if (name) showBlock(name); else showPages(at("rank").value, "0");
});
at("rank").addEventListener("change", () => { at("hash").value = ""; showPages(at("rank").value, "0"); });
at("more").addEventListener("click", () => showPages(shownRank, cursor));
at("door").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value;
  sessionStorage.setItem("lmpool key", key);
  turn();
  follow();
});
window.addEventListener("hashchange", follow);
follow();
live();
