"use strict";
// What peers said comes onto the page as text alone: textContent of elements that are made here, never as HTML.

const ASK_MS = 1000;
const PATIENCE_MS = 4000;
const EVENTS_SHOWN = 60;
const CELLS_WITH_KEYS = 64;
const CELL_CHARS = 15;
const ROWS_SHOWN = 24;
const STATES = {
  FREE: ["·", "nothing is in it"],
  FILLING: ["▲", "bytes arrive"],
  READY: ["●", "complete, waits in its queue"],
  LENT: ["■", "a trainer reads it"],
  QUARANTINED: ["✕", "its trainer seems gone"],
  ON_DEVICE: ["◆", "on the trainer's device"],
};

const at = (id) => document.getElementById(id);
let status = null; // the daemon's last
let statusAt = 0; // when that came
let timeline = null;
let timelineAt = 0;
let moments = [];
let known = { epoch: "", last: -1, nowS: 0 };
let awaySince = null;
let isAsking = false;
let pointedAt = -1;

// --- words ---

/** Spells out what could hide or turn other words: controls, formatting and bidirectional marks, odd blanks. */
function shown(text, limit = 80) {
  const spelled = String(text).replace(/[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu, (char) => {
    const code = char.codePointAt(0).toString(16);
    return code.length <= 2 ? `\\x${code.padStart(2, "0")}` : `\\u{${code}}`;
  });
  const chars = [...spelled];
  if (chars.length <= limit) return spelled;
  // More of the end, by which keys mostly differ.
  const head = Math.floor((limit - 1) / 3);
  return `${chars.slice(0, head).join("")}…${chars.slice(chars.length - (limit - 1 - head)).join("")}`;
}

function size(bytes) {
  for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [1024, "KiB"]]) {
    if (bytes >= unit) return `${Number((bytes / unit).toPrecision(3))} ${name}`;
  }
  return `${bytes} B`;
}

function spellS(seconds) {
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  const whole = Math.floor(seconds);
  const [days, hours, minutes, rest] = [whole / 86400, (whole / 3600) % 24, (whole / 60) % 60, whole % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${rest} s` : `${rest} s`;
}

const peerWords = (peer) => (peer ? shown(peer.pid ? `${peer.name} ${peer.pid} on ${peer.host}` : peer.name) : "");
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

// --- elements ---

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Sets a text only where it changes, so that a reader's place and a selection stay. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function swatch(state) {
  const mark = make("span", "swatch", STATES[state] ? STATES[state][0] : "?");
  mark.dataset.state = state;
  mark.setAttribute("aria-hidden", "true");
  return mark;
}

function stateCell(state) {
  const cell = make("td");
  cell.append(swatch(state), shown(state));
  return cell;
}

function keysCell(keys) {
  if (!keys.length) return make("td");
  const [cell, list] = [make("td", "prose"), make("ol", "keys")];
  for (const key of keys.slice(0, 12)) list.append(make("li", "", `${shown(key)} `));
  if (keys.length > 12) list.append(make("li", "", `and ${keys.length - 12} more`));
  cell.append(list);
  return cell;
}

const number = (text) => make("td", "number", text);
const words = (text) => make("td", "", text);
const prose = (text) => make("td", "prose", text);

/** Fills a table: a row for each of some lists of cells, the first of which names the row. */
function fill(table, header, rows, empty) {
  const head = make("thead");
  const line = make("tr");
  for (const [index, name] of header.entries()) {
    const isNumber = rows.length && rows[0][index].classList.contains("number");
    const cell = make("th", isNumber ? "number" : "", name);
    cell.scope = "col";
    line.append(cell);
  }
  head.append(line);
  const body = make("tbody");
  for (const cells of rows) {
    const row = make("tr");
    row.append(...cells);
    body.append(row);
  }
  table.replaceChildren(...(rows.length ? [head, body] : [make("caption", "", empty)]));
}

function rowHead(text) {
  const cell = make("th", "", text);
  cell.scope = "row";
  return cell;
}

// --- the daemon ---

function moodOf(found) {
  if (found.stopping) return ["held", "▼ stopping: takes nothing in"];
  const paused = found.paused ? ", paused: lends nothing" : "";
  if (found.draining) return ["held", `▼ draining: takes nothing in${paused}`];
  if (found.paused) return ["held", "‖ serving, paused: lends nothing"];
  return ["serving", "● serving"];
}

function drawMood() {
  const [kind, text] = awaySince
    ? ["away", `✕ ${awaySince.words} since ${clock(awaySince.at)}`]
    : status ? moodOf(status) : ["unknown", "asking the daemon"];
  at("mood").dataset.mood = kind;
  say(at("mood"), text);
  const old = awaySince && status ? `what is shown is ${spellS((Date.now() - statusAt) / 1000)} old` : "";
  say(at("note"), old);
  at("main").classList.toggle("old", Boolean(awaySince));
  document.title = awaySince ? "✕ Forebay" : "Forebay";
}

function drawFacts(found) {
  const bound = found.max_private_bytes ? ` of ${size(found.max_private_bytes)}` : "";
  const held = found.slots.reduce((sum, slot) => sum + slot.slot_bytes, 0);
  const used = found.slots.filter((slot) => slot.state !== "FREE").length;
  const facts = {
    "version": shown(found.software),
    "process": `${found.peer.pid} on ${shown(found.peer.host)}`,
    "up": spellS(found.uptime_s),
    "private memory": found.private_bytes ? `${size(found.private_bytes)}${bound}` : "not looked at",
    "pool": shown(found.pool),
    "slots": `${used} of ${found.slots.length} in use, ${size(held)}`,
    "published": `${found.counters.published || 0} micro-batches, ${size(found.counters.published_bytes || 0)}`,
    "peers": String(found.peer_count),
  };
  const list = at("facts");
  for (const [name, value] of Object.entries(facts)) {
    let entry = list.querySelector(`[data-fact="${name}"]`);
    if (!entry) {
      const pair = make("div");
      entry = make("dd");
      entry.dataset.fact = name;
      pair.append(make("dt", "", name), entry);
      list.append(pair);
    }
    say(entry, value);
  }
}

// --- slots ---

function drawLegend() {
  for (const [state, [, meaning]] of Object.entries(STATES)) {
    const entry = make("li");
    entry.append(swatch(state), `${state}: ${meaning}`);
    at("legend").append(entry);
  }
}

function slotWords(slot) {
  const told = [`slot ${slot.index}: ${shown(slot.state)}`, `${size(slot.slot_bytes)} reserved`];
  if (slot.key) {
    told.splice(1, 0, `key ${shown(slot.key)}`, `queue ${shown(slot.queue)}`, size(slot.payload_bytes));
    told.push(`so for ${spellS(slot.age_s)}`, `offered ${spellS(slot.offered_s)} ago`);
  }
  if (slot.expected_bytes) told.push(`${size(slot.received_bytes)} of ${size(slot.expected_bytes)} arrived`);
  if (slot.sender) told.push(`from ${peerWords(slot.sender)}`);
  if (slot.silent_s >= 1) told.push(`nothing arrived for ${spellS(slot.silent_s)}`);
  if (slot.holder) told.push(`held by ${peerWords(slot.holder)} for ${spellS(slot.held_s)}`);
  if (slot.policy_version !== null) told.push(`policy version ${slot.policy_version}`);
  if (slot.stale_in_s !== null) told.push(`stale in ${spellS(slot.stale_in_s)}`);
  return told.join(", ");
}

function newCell(index) {
  const cell = make("button", "cell");
  cell.type = "button";
  cell.tabIndex = index === 0 ? 0 : -1;
  const top = make("span", "top");
  top.append(make("span", "index", String(index)), make("span", "sign"));
  const part = make("span", "part");
  part.hidden = true;
  cell.append(top, make("span", "key"), part);
  cell.addEventListener("pointerenter", () => point(index));
  cell.addEventListener("focus", () => point(index));
  cell.addEventListener("keydown", (press) => moveFrom(cell, press));
  return cell;
}

function moveFrom(cell, press) {
  const cells = [...at("strip").children];
  const place = cells.indexOf(cell);
  const target = { ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1, Home: 0, End: cells.length - 1 }[press.key];
  if (target === undefined || !cells[target]) return;
  press.preventDefault();
  cell.tabIndex = -1;
  cells[target].tabIndex = 0;
  cells[target].focus();
}

function point(index) {
  pointedAt = index;
  const slot = status && status.slots[index];
  if (slot) say(at("readout"), slotWords(slot));
}

function drawStrip(slots) {
  const strip = at("strip");
  strip.classList.toggle("many", slots.length > CELLS_WITH_KEYS);
  while (strip.children.length > slots.length) strip.lastChild.remove();
  while (strip.children.length < slots.length) strip.append(newCell(strip.children.length));
  for (const slot of slots) {
    const cell = strip.children[slot.index];
    cell.dataset.state = slot.state;
    say(cell.querySelector(".sign"), STATES[slot.state] ? STATES[slot.state][0] : "?");
    say(cell.querySelector(".key"), slot.key ? shown(slot.key, CELL_CHARS) : shown(slot.state.toLowerCase()));
    const part = cell.querySelector(".part");
    part.hidden = !slot.expected_bytes;
    if (slot.expected_bytes) part.style.width = `${(100 * slot.received_bytes) / slot.expected_bytes}%`;
    cell.setAttribute("aria-label", slotWords(slot));
  }
  if (pointedAt >= 0) point(pointedAt);
}

function drawSlots(slots) {
  const used = slots.filter((slot) => slot.state !== "FREE");
  const rows = used.map((slot) => [
    rowHead(String(slot.index)),
    stateCell(slot.state),
    words(shown(slot.key)),
    words(shown(slot.queue)),
    number(size(slot.payload_bytes)),
    number(slot.expected_bytes ? `${Math.floor((100 * slot.received_bytes) / slot.expected_bytes)} %` : ""),
    number(spellS(slot.age_s)),
    words(peerWords(slot.holder || slot.sender)),
  ]);
  fill(at("slots"), ["slot", "state", "key", "queue", "size", "arrived", "so for", "holder or sender"], rows, "No slot is in use.");
  const free = slots.length - used.length;
  say(at("free"), used.length && free ? `${free} ${free === 1 ? "slot is" : "slots are"} FREE` : "");
}

// --- queues, offers, events ---

function trainerWords(queue) {
  if (queue.trainer && !queue.trainer_is_back) return `${peerWords(queue.trainer)}, not back since the daemon started`;
  if (queue.trainer) return `${peerWords(queue.trainer)}, for ${spellS(queue.trainer_since_s)}`;
  const least = queue.was_seen_to_go ? "" : "at least ";
  if (queue.last_trainer) return `none; ${peerWords(queue.last_trainer)} went ${least}${spellS(queue.gone_s)} ago`;
  return "none";
}

function asksWords(queue) {
  const told = queue.asks_s ? [`for ${spellS(queue.asks_s)}`] : [];
  if (queue.waits_for.length) told.push(`waits for ${queue.waits_for.slice(0, 4).map((key) => shown(key)).join(", ")}`);
  return told.join(", ");
}

function drawQueues(queues) {
  const rows = queues.map((queue) => [
    rowHead(shown(queue.name) + (queue.paused ? " ‖ paused" : "")),
    keysCell(queue.ready),
    keysCell(queue.on_device),
    words(trainerWords(queue)),
    words(asksWords(queue)),
    number(queue.policy_version === null ? "" : String(queue.policy_version)),
  ]);
  fill(at("queues"), ["queue", "READY, in order", "on device", "trainer", "asks for more", "policy version"], rows, "No queue was used yet.");
}

function drawOffers(offers) {
  const rows = offers.map((offer) => [
    rowHead(shown(offer.key)),
    words(shown(offer.queue)),
    number(size(offer.payload_bytes)),
    words(peerWords(offer.sender)),
    number(spellS(offer.waits_s)),
    number(spellS(offer.left_s)),
  ]);
  fill(at("offers"), ["key", "queue", "size", "from", "waits", "for at most"], rows, "None.");
}

function drawEvents() {
  const newest = moments.slice(-EVENTS_SHOWN).reverse();
  const rows = newest.map((moment) => {
    const [, atS, event, queue, key, slot, generation, who, more] = moment;
    const when = new Date(known.at - (known.nowS - atS) * 1000);
    const time = words(clock(when.getTime()));
    return [time, words(event), words(shown(key)), words(shown(queue)), number(slot < 0 ? "" : `${slot}/${generation}`), words(shown(who)), prose(shown(more, 200))];
  });
  fill(at("events"), ["time", "event", "key", "queue", "slot/generation", "who", "more"], rows, "Nothing has happened yet.");
}

// --- the timeline ---

const SVG = "http://www.w3.org/2000/svg";
const [LABEL, ROW, GAP, AXIS] = [104, 20, 4, 22];

function draw(parent, tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

/** Returns the rows: slots by index, then each queue's device, which has as many lanes as it takes. */
function rowsOf(told, nowS, beginS) {
  const rows = new Map();
  const put = (name, order, bar) => {
    if (bar.to < beginS) return;
    if (!rows.has(name)) rows.set(name, { name, order, bars: [] });
    rows.get(name).bars.push(bar);
  };
  const open = new Set();
  for (const life of told.lives) {
    for (const span of life.spans) {
      const state = span.phase.toUpperCase();
      const isOpen = span.end === "open";
      const bar = { state, key: life.key, queue: life.queue, from: span.began_at, to: isOpen ? nowS : span.ended_at, isBegun: span.is_begin_known, end: span.end };
      if (span.slot >= 0) put(`slot ${span.slot}`, [0, span.slot], bar);
      else if (state === "ON_DEVICE") put(`device ${shown(life.queue, 12)}`, [1, life.queue], bar);
      if (isOpen) open.add(span.slot >= 0 ? `slot ${span.slot}` : `${state} ${life.queue} ${life.key}`);
    }
  }
  addForgotten(put, open, nowS);
  return [...rows.values()].sort((one, other) => (one.order[0] - other.order[0]) || (one.order[1] < other.order[1] ? -1 : 1));
}

/** Adds what lasts since a moment that the daemon does not tell of any more, as its status has it. */
function addForgotten(put, open, nowS) {
  if (!status || status.epoch !== timeline.epoch) return;
  for (const slot of status.slots) {
    if (slot.state === "FREE" || open.has(`slot ${slot.index}`) || slot.age_s < 2) continue;
    const from = nowS - slot.age_s - (Date.now() - statusAt) / 1000;
    put(`slot ${slot.index}`, [0, slot.index], { state: slot.state, key: slot.key, queue: slot.queue, from, to: nowS, isBegun: true, end: "open" });
  }
  for (const queue of status.queues) {
    for (const [index, key] of queue.on_device.entries()) {
      const since = queue.on_device_s[index];
      if (open.has(`ON_DEVICE ${queue.name} ${key}`) || !(since >= 2)) continue;
      const from = nowS - since - (Date.now() - statusAt) / 1000;
      put(`device ${shown(queue.name, 12)}`, [1, queue.name], { state: "ON_DEVICE", key, queue: queue.name, from, to: nowS, isBegun: true, end: "open" });
    }
  }
}

function lanesOf(bars) {
  const ends = [];
  for (const bar of bars.sort((one, other) => one.from - other.from)) {
    bar.lane = ends.findIndex((end) => end <= bar.from + 1e-6);
    if (bar.lane < 0) bar.lane = ends.length;
    ends[bar.lane] = bar.to;
  }
  return Math.max(1, ends.length);
}

function drawTimeline() {
  const svg = at("timeline");
  if (!timeline || at("hold").getAttribute("aria-pressed") === "true") return;
  const seconds = Number(at("window").value);
  const nowS = timeline.now_s + (awaySince ? awaySince.at - timelineAt : Date.now() - timelineAt) / 1000;
  const beginS = nowS - seconds;
  const all = rowsOf(timeline, nowS, beginS);
  const rows = all.slice(0, ROWS_SHOWN).concat(all.slice(ROWS_SHOWN).filter((row) => row.order[0] === 1));
  for (const row of rows) row.lanes = lanesOf(row.bars);
  const width = Math.max(280, svg.clientWidth);
  const height = rows.reduce((sum, row) => sum + row.lanes * ROW + GAP, 0) + AXIS + GAP;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.height = `${height}px`;
  svg.replaceChildren();
  const xOf = (atS) => LABEL + ((atS - beginS) / seconds) * (width - LABEL - 1);
  drawGrid(svg, { width, height, seconds, xOf, beginS, nowS });
  let y = GAP;
  for (const row of rows) {
    draw(svg, "text", { x: 0, y: y + ROW - 6 }, row.name);
    for (const bar of row.bars) drawBar(svg, bar, xOf, beginS, y + bar.lane * ROW);
    y += row.lanes * ROW + GAP;
  }
  const left = all.length - rows.length;
  const forgotten = timeline.began_at > beginS ? "Before the grey edge nothing is told." : "";
  say(at("timeline-note"), [rows.length ? "" : "Nothing happened in this time.", left ? `${left} more slots are not shown.` : "", forgotten].join(" ").trim());
}

function drawGrid(svg, { width, height, seconds, xOf, beginS, nowS }) {
  const pattern = draw(draw(svg, "defs", {}), "pattern", { id: "stripes", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  draw(pattern, "line", { x1: 0, y1: 0, x2: 0, y2: 8, class: "stripe" });
  if (timeline.began_at > beginS) {
    draw(svg, "rect", { x: LABEL, y: 0, width: Math.max(0, xOf(Math.min(nowS, timeline.began_at)) - LABEL), height: height - AXIS, class: "unknown" });
  }
  const steps = width < 500 ? 2 : 5;
  for (let step = 0; step <= steps; step += 1) {
    const x = xOf(nowS - (seconds * step) / steps);
    draw(svg, "line", { x1: x, x2: x, y1: 0, y2: height - AXIS, class: "grid" });
    const anchor = step === 0 ? "end" : step === steps ? "start" : "middle";
    draw(svg, "text", { x, y: height - 6, class: "axis", "text-anchor": anchor }, step === 0 ? "now" : `−${(seconds * step) / steps} s`);
  }
}

function drawBar(svg, bar, xOf, beginS, y) {
  const from = xOf(Math.max(beginS, bar.from));
  const width = Math.max(1.5, xOf(bar.to) - from);
  const box = { x: from, y: y + 1, width, height: ROW - 2, rx: 2 };
  const sign = STATES[bar.state] ? STATES[bar.state][0] : "?";
  const state = Object.hasOwn(STATES, bar.state) ? bar.state : "";
  const rect = draw(svg, "rect", { ...box, class: `span ${state}` });
  const lasted = `${bar.isBegun ? "" : "at least "}${spellS(bar.to - bar.from)}`;
  const ended = { open: ", goes on", lost: ", its end is not known" }[bar.end] || "";
  draw(rect, "title", {}, `${bar.state} ${shown(bar.key)}, queue ${shown(bar.queue)}, ${lasted}${ended}`);
  if (bar.state === "FILLING") draw(svg, "rect", { ...box, fill: "url(#stripes)", "pointer-events": "none" });
  const room = Math.floor((width - 24) / 7.5);
  const inside = room >= 6 ? `${sign} ${shown(bar.key, room)}` : sign;
  if (width >= 16) draw(svg, "text", { x: from + 4, y: y + ROW - 6, class: "inside" }, inside);
}

// --- asking ---

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) {
    const error = new Error("the daemon does not answer in time");
    error.isBusy = true;
    throw error;
  }
  return answer.json();
}

/** Learns what happened since; of another run of the daemon, or after a gap, all that is still worth showing. */
async function askEvents() {
  if (known.last < 0) {
    const now = await ask("/events.json?after=-1");
    known = { epoch: now.epoch, last: Math.max(0, now.last - EVENTS_SHOWN), nowS: now.now_s };
    moments = [];
  }
  const found = await ask(`/events.json?after=${known.last}`);
  if (found.epoch !== known.epoch) {
    known.last = -1;
    return askEvents();
  }
  moments = moments.concat(found.moments).slice(-EVENTS_SHOWN);
  const isNews = found.moments.length > 0;
  known = { epoch: found.epoch, last: found.last, nowS: found.now_s, at: Date.now() };
  return isNews;
}

async function askTimeline(isNews) {
  const seconds = Number(at("window").value);
  if (!isNews && timeline && timeline.epoch === known.epoch && timeline.seconds >= seconds) return;
  const found = await ask(`/timeline.json?seconds=${seconds}`);
  timeline = { ...found, seconds };
  timelineAt = Date.now();
}

async function askAll() {
  const found = await ask("/state.json");
  status = found;
  statusAt = Date.now();
  await askTimeline(await askEvents());
  awaySince = null;
}

function noteAway(error) {
  const text = error.isBusy || error.name === "TimeoutError" ? "the daemon does not answer" : "the daemon is away";
  awaySince = { at: awaySince ? awaySince.at : Date.now(), words: text };
}

function drawAll() {
  drawMood();
  if (status && !awaySince) {
    drawFacts(status);
    drawStrip(status.slots);
    drawSlots(status.slots);
    drawQueues(status.queues);
    drawOffers(status.offers);
    drawEvents();
  }
  drawTimeline();
}

async function look() {
  if (isAsking || document.visibilityState !== "visible") return;
  isAsking = true;
  try {
    await askAll();
  } catch (error) {
    noteAway(error);
  }
  isAsking = false;
  drawAll();
}

drawLegend();
at("hold").addEventListener("click", () => {
  const isHeld = at("hold").getAttribute("aria-pressed") !== "true";
  at("hold").setAttribute("aria-pressed", String(isHeld));
  drawTimeline();
});
at("window").addEventListener("change", look);
addEventListener("resize", drawTimeline);
document.addEventListener("visibilitychange", look);
setInterval(look, ASK_MS);
look();
