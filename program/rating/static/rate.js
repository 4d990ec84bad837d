(function () {
"use strict";
const $ = (id) => document.getElementById(id);
const TAB = sessionStorage.getItem("tab") || Math.random().toString(36).slice(2);
sessionStorage.setItem("tab", TAB);
const UNSAVED = `unsaved ${TAB}`;
const ABSENT = "The server does not answer. Start the command again.";

function el(kind, name, text) {
  const made = document.createElement(kind);
  if (name) made.className = name;
  if (text != null) made.textContent = text;
  return made;
}
const tell = (text) => { $("told").textContent = text; };

async function ask(path, values) {
  const sent = values ? { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ tab: TAB, ...values }) } : {};
  const reply = await fetch(path, sent);
  const read = await reply.json();
  if (!reply.ok) throw Object.assign(new Error(read.error), { isRefusal: true });
  return read;
}

// Answers wait here until the server has them on disk, through a reload and a restart of the server.

let unsaved = [];
try { unsaved = JSON.parse(sessionStorage.getItem(UNSAVED)) || []; } catch { /* nothing was kept */ }
let isSending = false;

function put(id, answer) {
  unsaved.push({ id, answer });
  keep();
  return send();
}
const keep = () => sessionStorage.setItem(UNSAVED, JSON.stringify(unsaved));

async function send() {
  if (isSending) return;
  isSending = true;
  while (unsaved.length) {
    try {
      const state = await ask("answer", unsaved[0]);
      unsaved.shift();
      keep();
      complain("");
      take(state);
    } catch (error) {
      if (error.isRefusal) {
        complain(`An answer was not taken: ${error.message}`);
        unsaved.shift();
        keep();
        await ask("queue", {}).then(take, () => {});
        continue;
      }
      complain(`Not saved yet: the server does not answer. Start the command again; ${unsaved.length} answer${unsaved.length > 1 ? "s wait" : " waits"} here.`);
      await new Promise((go) => setTimeout(go, 1000));
    }
  }
  isSending = false;
}

function complain(text) { $("fault").textContent = text; $("fault").hidden = !text; }

// What is shown: `queue` is what comes, `past` what was gone back to.

let queue = [], past = null, current = null, isLoaded = false, rated = 0, leftOut = 0;
const loaded = new Map();

function take(state) {
  const waiting = new Set(unsaved.map((each) => each.id));
  queue = state.queue.filter((task) => !waiting.has(task.id));
  rated = state.rated;
  leftOut = state.left_out;
  $("counts").textContent = `${rated} rated · ${state.open} open${state.unsure ? ` · ${state.unsure} unsure` : ""}`;
  $("bar").max = Math.max(rated + state.open, 1);
  $("bar").value = rated;
  if (!past && (queue.length || !unsaved.length)) show(queue[0] || null);  // the end waits for the last answer
  for (const task of queue) load(task);
}

function load(task) {
  if (!loaded.has(task.id)) {
    loaded.set(task.id, Array.from({ length: task.sides }, (_, side) => {
      const image = el("img");
      image.alt = task.sides > 1 ? ["Left picture", "Right picture"][side] : "The picture to rate";
      image.draggable = false;
      image.src = `picture/${task.id}/${side}`;
      return image;
    }));
    for (const old of [...loaded.keys()].slice(0, -4)) loaded.delete(old);
  }
  return loaded.get(task.id);
}

async function show(task) {
  if (current && task && current.id === task.id && current.given === task.given) return;
  current = task;
  isLoaded = false;
  document.documentElement.dataset.shown = "";
  $("stage").hidden = document.querySelector("nav").hidden = !task;
  $("end").hidden = Boolean(task);
  if (!task) return end();
  $("title").textContent = task.title;
  $("forward").hidden = !past;
  answers(task);
  whole = false; centre = [0.5, 0.5];
  const images = load(task);
  $("stage").classList.toggle("two", task.sides > 1);
  $("stage").replaceChildren(...images.map((image, side) => {
    const figure = el("figure");
    figure.append(image);
    if (task.sides > 1) figure.append(el("figcaption", "", ["left", "right"][side]));
    return figure;
  }));
  paint();
  try {
    await Promise.all(images.map((image) => image.decode()));
  } catch {
    if (current === task) await again(task);
    return;
  }
  if (isMissing && current === task) { isMissing = false; complain(""); }
  if (current !== task) return;
  isLoaded = true;
  for (const button of $("answers").children) button.disabled = false;
  paint();
  document.documentElement.dataset.shown = task.id;
}

// A picture that did not load: its file is gone, or the server is.

let isMissing = false;

async function again(task) {
  loaded.delete(task.id);
  isMissing = true;
  try {
    const reply = await fetch(`picture/${task.id}/0`);
    if (!reply.ok && past) complain("This picture cannot be shown any more. Press → to go on.");
    else if (!reply.ok) take(await ask("queue", {}));
  } catch { complain(ABSENT); }
  setTimeout(() => { if (current === task) { current = null; show(task); } }, 1000);
}

function answers(task) {
  $("answers").replaceChildren(...task.answers.map((answer, n) => {
    const button = el("button");
    button.type = "button"; button.dataset.key = String(n + 1);
    button.disabled = true;
    button.setAttribute("aria-pressed", String(task.given === answer.value));
    button.append(el("b", "", String(n + 1)), answer.label);
    return button;
  }));
  $("answers").classList.toggle("long", task.answers.some((answer) => answer.label.length > 12));
  $("numbers").textContent = `1 to ${task.answers.length}`;
  document.querySelector("[data-key=u]").setAttribute("aria-pressed", String(task.given === "unsure"));
}

async function end() {
  $("title").textContent = "Rate pictures";
  $("ended").textContent = rated ? `All are rated: ${rated}.` : "There is nothing to rate.";
  if (leftOut) $("ended").textContent += ` ${leftOut} left out: press Done, and the terminal says why.`;
  await worth();
  $("end").focus();
  document.documentElement.dataset.shown = "end";
}

async function worth() {
  const { lines, compile } = await ask("worth");
  $("worth").replaceChildren(...lines.map((line) => el("li", "", line)));
  $("command").textContent = compile;
  return lines;
}

// Answers.

function answer(value, words) {
  if (!current || !isLoaded) return;
  const task = current;
  tell(words);
  past = null;
  current = null;
  queue = queue.filter((each) => each.id !== task.id);
  if (queue.length) show(queue[0]);
  else { isLoaded = false; document.documentElement.dataset.shown = ""; for (const button of $("answers").children) button.disabled = true; }
  put(task.id, value);
  if ((rated + 1) % 25 === 0) worth().then((lines) => tell(lines.join("; ")), () => {});
}

async function back() {
  const { task } = await ask("before", { id: past ? past.id : null });
  if (!task) return tell("this is the first");
  past = task;
  show(task);
  tell("one back");
}

function forward() {
  if (!past) return;
  past = null;
  show(queue[0] || null);
}

async function undo() {
  const { task } = await ask("before", { id: null });
  if (!task) return tell("nothing to undo");
  past = null;
  current = null;
  tell("undone");
  await put(task.id, null);
}

// Looking: fitted to the screen and never enlarged, or 100 %: a pixel of the picture is one of the screen.

let whole = false, centre = [0.5, 0.5], grabbed = null;

function paint() {
  for (const figure of $("stage").children) {
    const image = figure.firstChild, width = image.naturalWidth, height = image.naturalHeight;
    if (!width) continue;
    const one = 1 / (window.devicePixelRatio || 1);
    const fitted = Math.min(figure.clientWidth / width, figure.clientHeight / height, one);
    const scale = whole ? one : fitted;
    image.style.width = `${width * scale}px`;
    image.style.height = `${height * scale}px`;
    const at = [[figure.clientWidth, width], [figure.clientHeight, height]].map(([room, side], axis) => {
      const size = side * scale;
      return size <= room ? (room - size) / 2 : Math.min(0, Math.max(room - size, room / 2 - centre[axis] * size));
    });
    image.style.left = `${Math.round(at[0])}px`;
    image.style.top = `${Math.round(at[1])}px`;
  }
  $("stage").classList.toggle("whole", whole);
  $("look").setAttribute("aria-pressed", String(whole));
}

function look() { whole = !whole; paint(); }

$("stage").addEventListener("pointerdown", (event) => { grabbed = [event.clientX, event.clientY]; $("stage").setPointerCapture(event.pointerId); });
$("stage").addEventListener("pointermove", (event) => {
  const image = $("stage").querySelector("img");
  if (!grabbed || !whole || !image) return;
  centre = [[event.clientX - grabbed[0], image.width], [event.clientY - grabbed[1], image.height]]
    .map(([moved, side], axis) => Math.min(1, Math.max(0, centre[axis] - moved / side)));
  grabbed = [event.clientX, event.clientY];
  paint();
});
$("stage").addEventListener("pointerup", () => { grabbed = null; });
$("stage").addEventListener("dblclick", look);
addEventListener("resize", paint);

// Keys and buttons.

const ACTIONS = { u: () => answer("unsure", "unsure"), ArrowLeft: back, ArrowRight: forward, Backspace: undo, " ": look, z: look, "?": () => $("keys").click() };

function act(key) {
  const name = key.length === 1 ? key.toLowerCase() : key;
  const chosen = current && current.answers[Number(name) - 1];
  if (chosen && /^[1-9]$/.test(name)) { answer(chosen.value, chosen.label); return true; }
  if (!ACTIONS[name]) return false;
  Promise.resolve(ACTIONS[name]()).catch(() => complain(ABSENT));
  return true;
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("button") && (event.key === " " || event.key === "Enter")) return;
  if (event.repeat) { event.preventDefault(); return; }
  if (act(event.key)) event.preventDefault();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-key]");
  if (button) { act(button.dataset.key); $("stage").focus(); }
});
$("keys").addEventListener("click", () => { $("help").hidden = !$("help").hidden; $("keys").setAttribute("aria-expanded", String(!$("help").hidden)); paint(); });
$("done").addEventListener("click", async () => {
  await worth();
  await ask("done", {});
  current = null;
  $("stage").hidden = document.querySelector("nav").hidden = $("keys").hidden = $("done").hidden = true;
  $("end").hidden = false;
  $("end").focus();
  $("ended").textContent = `${rated} rated. The server has stopped; the same command goes on here.`;
});

async function start() {
  try {
    if (unsaved.length) await send();
    take(await ask("queue", {}));
    complain("");
  } catch { complain(ABSENT); setTimeout(start, 1000); return; }
  $("stage").focus({ preventScroll: true });
  document.documentElement.dataset.ready = "yes";
}
start();
})();
