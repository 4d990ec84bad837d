// Draws an assessment. Everything from the service is set as text, never as markup.

export const LEVELS = ["bad", "poor", "fair", "good", "excellent"];
const NAMES = {
  Blurs: "Blur", "Color distortions": "Colour", Compression: "Compression", Noise: "Noise",
  "Brightness change": "Brightness", Sharpness: "Over-sharpening", Contrast: "Contrast",
};
const SEVERITIES = ["none", "slight", "moderate", "severe", "extreme"];

export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const place = (score) => ((score - 1) / 4) * 100;
export const nearest = (score) => Math.min(5, Math.max(1, Math.floor(score + 0.5)));
// A score that would round into the next level is rounded down.
export const tenth = (score) =>
  nearest(Number(score.toFixed(1))) === nearest(score) ? score.toFixed(1) : (Math.floor(score * 10) / 10).toFixed(1);

function filled(tag, className, styles) {
  const node = el(tag, { class: className });
  Object.assign(node.style, styles);
  return node;
}

function block(title, ...children) {
  return el("section", { class: "block" }, el("h2", {}, title), ...children);
}

export function draw(result) {
  const parts = [hero(result)];
  if (result.not_judged) parts.push(el("p", { class: "status" }, `Not judged: ${result.not_judged}. The score is a guess.`));
  if (result.quality_score !== null) parts.push(scale(result));
  if (result.status !== "ok") parts.push(el("p", { class: "status" }, `${result.status}: ${result.error ?? "no reason given"}`));
  if (result.summary) parts.push(el("p", { class: "reasoning" }, result.summary));
  if (result.state.advice) parts.push(el("p", { class: "advice" }, `What to do: ${result.state.advice}`));
  const logs = result.state.executor_evidence?.tool_logs ?? [];
  const notes = new Set([...result.state.image_notes, ...logs.map((log) => log.note).filter(Boolean)]);
  if (notes.size) parts.push(el("p", { class: "notes" }, `Note: ${[...notes].join("; ")}`));
  const found = findings(result);
  if (found) parts.push(block("What was found", found));
  const more = el("details", { class: "block", id: "details" }, el("summary", {}, "Details"),
    block("Reasoning", el("p", { class: "reasoning" }, result.quality_reasoning)));
  if (result.level_probabilities) more.append(block("How likely each level is", probabilities(result.level_probabilities)));
  if (logs.length) more.append(block("Tools’ readings", readings(logs)));
  more.append(block("Steps taken", steps(result)));
  parts.push(more, json(result));
  return parts;
}

export function spoken(result) {
  if (typeof result.final_answer === "number") {
    const [low, high] = result.score_interval ?? [];
    const range = low === undefined ? "" : `, likely between ${low.toFixed(1)} and ${high.toFixed(1)}`;
    const guess = result.not_judged ? `Not judged: ${result.not_judged}. A guess: score` : "Score";
    return `${guess} ${tenth(result.final_answer)} of 5, ${LEVELS[nearest(result.final_answer) - 1]}${range}.`;
  }
  const text = result.state.options?.[result.final_answer];
  return `Answer: ${result.final_answer}${text ? `. ${text}` : ""}`;
}

function hero(result) {
  const box = el("div", { class: "hero" });
  const options = result.state.options;
  const score = result.quality_score;
  const number = typeof result.final_answer === "number";
  if (number) {
    const [low, high] = result.score_interval ?? [];
    box.append(
      el("div", { class: "score" }, tenth(score), el("small", {}, " of 5")),
      el("div", {},
        el("p", { class: "verdict" }, capital(LEVELS[nearest(score) - 1])),
        low === undefined ? null : el("p", {}, `people likely rate it ${low.toFixed(1)} to ${high.toFixed(1)}`)),
    );
    return box;
  }
  if (options && result.query_type === "mcq") {
    const list = el("ul", { class: "choices" });
    for (const [letter, text] of Object.entries(options)) {
      const item = el("li", {}, el("b", {}, letter), text);
      if (letter === result.final_answer) item.setAttribute("aria-current", "true");
      list.append(item);
    }
    return el("div", {}, el("h2", {}, result.state.query), list);
  }
  return el("div", {}, el("h2", {}, result.state.query), el("p", { class: "text-answer" }, String(result.final_answer)));
}

function scale(result) {
  const score = result.quality_score;
  const [low, high] = result.score_interval ?? [score, score];
  const track = el("div", { class: "track" },
    result.score_interval ? filled("div", "out", { left: "0", width: `${place(low)}%` }) : null,
    result.score_interval ? filled("div", "out", { left: `${place(high)}%`, right: "0" }) : null,
    result.score_interval ? filled("div", "band", { left: `${place(low)}%`, width: `${place(high) - place(low)}%` }) : null,
    filled("div", "mark", { left: `${place(score)}%` }));
  const ticks = el("div", { class: "ticks" });
  LEVELS.forEach((word, i) => {
    const tick = el("span", {}, el("b", {}, String(i + 1)), word);
    tick.style.left = `${i * 25}%`;
    ticks.append(tick);
  });
  const verdict = `${result.level ? capital(LEVELS[nearest(score) - 1]) : "By the tools alone"}: ${tenth(score)} of 5`;
  const label = typeof result.final_answer === "number" ? spoken(result) : verdict;
  const box = el("div", { class: "scale", role: "img" }, track, ticks);
  box.setAttribute("aria-label", label);
  if (typeof result.final_answer === "number") return box;
  return el("div", { class: "block" }, el("h2", {}, verdict), box);
}

function probabilities(masses) {
  const bars = el("div", { class: "bars" });
  for (let level = 5; level >= 1; level--) {
    const mass = masses[level] ?? 0;
    const bar = el("div", { class: "bar", "aria-hidden": "true" }, filled("i", `l${level}`, { width: `${mass * 100}%` }));
    bars.append(el("span", {}, `${capital(LEVELS[level - 1])}`), bar, el("span", { class: "number" }, `${(mass * 100).toFixed(1)} %`));
  }
  return bars;
}

function findings(result) {
  const analysis = result.state.executor_evidence?.distortion_analysis;
  if (!analysis || result.not_judged) return null;
  const list = el("ul", { class: "findings" });
  for (const [region, found] of Object.entries(analysis)) {
    for (const one of found) {
      const rank = SEVERITIES.indexOf(one.severity);
      const dots = el("span", { class: `dots s${rank}` });
      for (let i = 1; i <= 4; i++) dots.append(el("i", { class: i <= rank ? "on" : "", "aria-hidden": "true" }));
      dots.append(` ${one.severity}`);
      const boxed = result.state.executor_evidence.region_boxes?.[region];
      const where = region === "Global" ? null : el("span", { class: "tag" }, boxed ? region : `${region} (whole image)`);
      list.append(el("li", {}, el("div", { class: "head" }, el("span", {}, el("strong", {}, one.fault ? capital(one.fault) : NAMES[one.type] ?? one.type), " ", where ?? ""), dots), el("p", {}, one.explanation)));
    }
  }
  if (!list.childElementCount) list.append(el("li", {}, el("p", {}, "None found.")));
  return list;
}

function readings(logs) {
  const regions = logs.some((log) => log.region !== "Global");
  const names = ["Tool", ...(regions ? ["Region"] : []), "For", "Raw", "Score", "", "Seconds"];
  const kinds = { Raw: "number", Score: "number", Seconds: "number" };
  const head = el("tr", {}, ...names.map((name) => (name ? el("th", { class: kinds[name] ?? "", scope: "col" }, name) : el("td", { class: "meter" }))));
  const rows = logs.map((log) => {
    const first = [el("td", {}, el("strong", {}, log.tool)), ...(regions ? [el("td", {}, log.region)] : []), el("td", {}, log.distortion)];
    if (log.score === null) return el("tr", {}, ...first, el("td", { class: "failed", colSpan: 4 }, log.error ?? "no score"));
    const bar = el("div", { class: "bar", "aria-hidden": "true" }, filled("i", `l${nearest(log.score)}`, { width: `${place(log.score)}%` }));
    return el("tr", {}, ...first,
      el("td", { class: "number" }, log.raw === null ? "" : Number(log.raw.toPrecision(4)).toString()),
      el("td", { class: "number" }, log.score.toFixed(2)), el("td", { class: "meter" }, bar),
      el("td", { class: "number" }, log.cached ? "cached" : log.seconds.toFixed(2)));
  });
  return el("div", { class: "tablebox readings" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
}

function steps(result) {
  const { state, usage } = result;
  const plan = state.plan;
  const evidence = state.executor_evidence;
  const seconds = usage.seconds;
  const total = Math.max(seconds.total ?? 0, 1e-9);
  const count = Object.values(evidence?.distortion_analysis ?? {}).reduce((n, found) => n + found.length, 0);
  const logs = evidence?.tool_logs ?? [];
  const did = {
    planner: plan ? `${plan.query_scope.join(", ")}; ${plan.reference_mode.toLowerCase()}; distortions ${plan.distortion_source}` : "no plan",
    executor: `${plural(count, "distortion")} described, ${plural(logs.length, "tool reading")}`,
    summarizer: `answered as ${result.query_type ?? "no question"}`,
  };
  const list = el("ol", { class: "steps" });
  let start = 0;
  for (const [name, text] of Object.entries(did)) {
    const spent = seconds[name] ?? 0;
    list.append(el("li", {}, el("strong", {}, capital(name)), el("span", {}, text), el("span", {}, `${spent.toFixed(2)} s`),
      el("div", { class: "bar", "aria-hidden": "true" }, filled("i", "", { left: `${(start / total) * 100}%`, width: `${Math.min(100, (spent / total) * 100)}%` }))));
    start += spent;
  }
  for (const entry of state.replan_history) {
    list.append(el("li", {}, el("strong", {}, "Planned again"), el("span", {}, entry.reason), el("span", {}, "")));
  }
  const kept = usage.lm_cache_hits ? ` (${usage.lm_cache_hits} kept)` : "";
  const tokens = usage.input_tokens + usage.output_tokens; // none: the embedded expert, which costs nothing
  const money = usage.cost_usd === null ? "price unknown" : `$${usage.cost_usd.toFixed(4)}`;
  const spent = tokens ? ` · ${tokens} tokens · ${money}` : "";
  const cost = `${(seconds.total ?? 0).toFixed(2)} s in all · ${plural(usage.lm_calls, "model call")}${kept}${spent}`;
  return el("div", {}, list, el("p", { class: "cost" }, cost));
}

function json(result) {
  const text = JSON.stringify(result, null, 2);
  const shown = el("pre", { tabIndex: 0, id: "json" }, text);
  const copy = el("button", { type: "button", class: "quiet", id: "copy" }, "Copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(shown);
      copy.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 2500);
  });
  return el("details", { class: "block" }, el("summary", {}, "JSON"), el("div", { class: "tools" }, copy), shown);
}

const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
