// The page: its state, its address, and what is drawn from it.
"use strict";
(() => {
  const find = (id) => document.getElementById(id);
  const data = JSON.parse(find("data").textContent);
  const targets = data.targets.map((target) => ({...target, texts: target.texts.map((text) => ({...text, ...replay.unpackText(text)}))}));
  const hasDials = targets.length > 0, lanes = data.lanes, sampled = data.sampled[0];
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  // --- the state and its address ---
  // A round of null is the last one. The address holds what differs from the defaults.
  const DEFAULTS = {
    target: 0, text: 0, draft: "feature", k: 6, round: null, costs: 0,
    bandwidth: 0, arithmetic: 0, users: 0, drafting: 1, pass: 1, rest: 1, place: 0, clock: 0, lane: 0, of: null, tour: 0, at: "",
  };
  const ALWAYS = ["text", "k", "draft"];
  let state = {...DEFAULTS};
  const integer = (value, high) => clamp(Math.round(Number(value)) || 0, 0, high);
  const factor = (value) => (Number.isFinite(Number(value)) ? clamp(Number(value), 0, 3) : 1);

  // Whatever an address says becomes a state that exists.
  const checked = (wanted) => {
    const next = {...DEFAULTS, ...wanted};
    next.target = integer(next.target, Math.max(0, targets.length - 1));
    next.text = hasDials ? integer(next.text, targets[next.target].texts.length - 1) : 0;
    const drafts = hasDials ? Object.keys(targets[next.target].texts[next.text].proposals) : [];
    if (next.draft !== "none" && !drafts.includes(next.draft)) next.draft = drafts[0] || "none";
    next.k = integer(next.k, replay.LENGTHS);
    next.round = next.round === null ? null : integer(next.round, 9999);
    next.costs = integer(next.costs, Math.max(0, data.presets.length - 1));
    for (const name of ["drafting", "pass", "rest"]) next[name] = factor(next[name]);
    for (const name of ["bandwidth", "arithmetic"]) next[name] = clamp(Number(next[name]) || 0, -3, 3);
    next.users = integer(next.users, 9);
    next.place = integer(next.place, 9999);
    next.clock = integer(next.clock, Math.max(0, lanes.length - 1));
    next.lane = lanes.length ? integer(next.lane, lanes[next.clock].lanes.length - 1) : 0;
    next.of = next.of === null ? null : integer(next.of, 9999);
    next.tour = integer(next.tour, TOUR.length);
    next.at = ["replay", "costs", "sampling", "lanes"].includes(next.at) ? next.at : "";
    return next;
  };
  const address = () => {
    const words = new URLSearchParams();
    for (const name of Object.keys(DEFAULTS)) {
      if ((hasDials && ALWAYS.includes(name)) || state[name] !== DEFAULTS[name]) words.set(name, state[name]);
    }
    return `#${words}`;
  };
  const fromAddress = () => {
    const known = [...new URLSearchParams(location.hash.slice(1))].filter(([name]) => name in DEFAULTS);
    return checked(Object.fromEntries(known));
  };
  const change = (wanted) => {
    state = checked({...state, at: "", ...wanted});
    history.replaceState(null, "", address());
    show();
  };

  // --- the replay ---
  const view = () => {
    const target = targets[state.target], text = target.texts[state.text], preset = data.presets[state.costs];
    const dials = {
      draft: state.drafting, pass: state.pass, rest: state.rest,
      bandwidth: 2 ** state.bandwidth, arithmetic: 2 ** state.arithmetic, users: 2 ** state.users,
    };
    const limit = replay.limit(preset.machine, state.k + 1, dials);
    const costs = replay.turned(preset, state.draft, dials), found = replay.rounds(text, state.draft, state.k);
    const round = state.round === null ? found.length : Math.min(state.round, found.length);
    const unit = costs.step_ms / 1000;
    const times = replay.clock(found, costs).map(({phases, end}) => ({phases: phases.map((part) => part * unit), end: end * unit}));
    return {target, text, preset, limit, costs, found, round, times, unit, picture: (id) => target.pictures[id]};
  };
  const ownKind = (round) => (round.drafted.length ? (round.rejected ? "c" : "b") : "p");
  const draftKind = (round, i) => {
    if (i < round.accepted) return "a";
    return round.rejected ? (i === round.accepted ? "r" : "u") : "e";
  };
  const asRound = ({text, picture}, round) => ({
    drafts: round.drafted.map((id, i) => [picture(id), draftKind(round, i)]),
    own: round.committed > round.accepted ? [[picture(text.ids[round.start + round.accepted]), ownKind(round)]] : [],
  });
  const milliseconds = (seconds) => (seconds >= 1 ? `${seconds.toFixed(2)} s` : `${draw.number(seconds * 1000)} ms`);
  const plural = (n, word, more) => `${n} ${n === 1 ? word : more || `${word}s`}`;

  const showReplay = (now) => {
    const {text, found, times, round, unit} = now, all = replay.counts(found), format = milliseconds;
    const alpha = replay.acceptance(all), total = times.length ? times[times.length - 1].end : 0;
    const nSteps = text.ids.length - 1;
    find("result").textContent =
      `${plural(text.ids.length, "token")} in ${plural(all.rounds, "pass", "passes")} of the target; one by one it takes ${nSteps}. ` +
      `${(all.tokens / all.rounds).toFixed(2)} tokens per round, α ${alpha === null ? "-" : alpha.toFixed(2)}. ` +
      `${format(total)} against ${format(nSteps * unit)}: ${((nSteps * unit) / total).toFixed(2)}x.`;
    const clock = Array.from({length: nSteps + 1}, (_, i) => i * unit);
    draw.strip(find("strip"), [{name: `${state.draft}, k = ${state.k}`, rounds: times, at: round}], clock, format, (_, n) => change({round: n}));
    const tokens = [[text.pieces[0], "f", 0, 0]];
    found.forEach((one, i) => {
      const shown = asRound(now, one);
      for (let j = 0; j < one.committed; j++) {
        const own = j === one.accepted;
        if (own && one.rejected) tokens.push([...shown.drafts[j], i + 1, j]);
        tokens.push([text.pieces[one.start + j], own ? ownKind(one) : "a", i + 1, j]);
      }
    });
    draw.words(find("words"), text.prompt, tokens, (n) => change({round: n}));
    for (const token of find("words").querySelectorAll("[data-round]")) {
      token.classList.toggle("later", Number(token.dataset.round) > round);
      token.classList.toggle("now", Number(token.dataset.round) === round);
    }
    draw.scrollTo(find("words").parentElement, find("words").querySelector(".now"));
    const one = found[round - 1];
    draw.chips(find("chips"), one ? asRound(now, one) : {drafts: [], own: [[now.picture(text.ids[0]), "f"]]});
    const end = round ? times[round - 1].end : 0;
    find("line").textContent = one
      ? `Round ${round} of ${found.length}: drafted ${one.drafted.length}, kept ${one.accepted}. ` +
        `${one.start + one.committed} tokens after ${format(end)}; plain decoding has ${1 + Math.min(nSteps, Math.floor(end / unit + 1e-9))}.`
      : "The first token comes from the pass over the prompt. Both clocks start here.";
    dial("round", round, found.length, `${round} of ${found.length}`);
    find("back").disabled = !round;
    find("forward").disabled = round === found.length;
    draw.table(find("round-table"), ["round", "kept", "tokens", "until", "draft", "pass", "rest"], found.map((each, i) => {
      const {drafts, own} = asRound(now, each);
      const words = [...drafts, ...own].map(([picture, kind]) => `${draw.SIGNS[kind]}${picture}`).join(" ");
      return [i + 1, `${each.accepted}/${each.drafted.length}`, words, format(times[i].end), ...times[i].phases.map(format)];
    }));
    for (const row of find("round-table").querySelectorAll("tr")) row.children[2].className = "words";
  };

  // --- the costs ---
  const listed = (numbers) => {
    const parts = [];
    for (const n of numbers) {
      const last = parts[parts.length - 1];
      if (last && last[1] === n - 1) last[1] = n; else parts.push([n, n]);
    }
    return parts.map(([low, high]) => (low === high ? low : `${low} to ${high}`)).join(", ");
  };
  // What limits a pass: a dial of 0 leaves the machine as it was measured, and each 1 doubles.
  const LIMITS = {
    start: "neither of these two but, for example, the starting of operations, which the tokens of a pass share: further ones cost little",
    read: "the reading of the weights, which all tokens of the pass share: further ones cost little",
    compute: "arithmetic: every further token is paid",
  };
  const showMachine = ({costs, limit, preset}) => {
    const gigabytes = (preset.machine.bandwidth * 2 ** state.bandwidth) / 1e9;
    dial("bandwidth", state.bandwidth, 3, `×${draw.number(2 ** state.bandwidth)}, ${draw.number(gigabytes)} GB a second`);
    dial("arithmetic", state.arithmetic, 3, `×${draw.number(2 ** state.arithmetic)}`);
    const users = 2 ** state.users, shared = users > 1 ? `, which ${users} users share (their caches are not counted; the rest of a round is counted once)` : "";
    dial("users", state.users, 9, String(users));
    find("limit").textContent =
      `A step takes ${draw.number(costs.step_ms)} ms${shared}, and a pass over ${plural(state.k + 1, "token")} takes ` +
      `${costs.pass[state.k].toFixed(2)} steps. Of reading, arithmetic and the rest its longest part is ${LIMITS[limit]}.`;
  };
  const showCosts = ({text, costs, preset}) => {
    const speedups = replay.curve(text, state.draft, costs), best = replay.best(speedups), k = state.k;
    const alphas = speedups.map((_, i) => replay.acceptance(replay.counts(replay.rounds(text, state.draft, i))));
    const book = alphas.map((alpha, i) => (alpha === null || i === 0 ? null : replay.book(alpha, i)));
    draw.curve(find("curve"), speedups, book, k, best);
    const steps = (value) => `${draw.number(value)} step${value === 1 ? "" : "s"}`;
    const dialText = (times, value) => `×${times.toFixed(2)}, ${value}`;
    dial("cost-draft", state.drafting, 3, dialText(state.drafting, `${plural(k, "token")}: ${steps(costs.draft[k])}`));
    dial("cost-pass", state.pass, 3, dialText(state.pass, `${plural(k + 1, "token")}: ${steps(costs.pass[k])}`));
    dial("cost-rest", state.rest, 3, dialText(state.rest, steps(costs.rest[k])));
    find("preset-about").textContent =
      `${preset.about} A step is one pass of the target over one token, ${draw.number(costs.step_ms)} ms here. ` +
      "Where longer drafts were not measured, the curves go on in a straight line.";
    const found = replay.rounds(text, state.draft, k), all = replay.counts(found), total = all.tokens / speedups[k];
    const says =
      `At k = ${k} a round commits ${(all.tokens / all.rounds).toFixed(2)} tokens and takes ${(total / all.rounds).toFixed(2)} steps. `;
    const slow = speedups.flatMap((value, i) => (i && draw.isSlower(value) ? [i] : []));
    let verdict = `That is ${speedups[k].toFixed(2)}x as fast as plain decoding. `;
    if (draw.isSlower(speedups[k])) verdict = `Here it gets slower: ${speedups[k].toFixed(2)}x. The tokens of a round must be more than its steps. `;
    else if (k === best) verdict = `This is the best k: ${speedups[k].toFixed(2)}x. `;
    const where = slow.length ? `It is slower than plain decoding at k = ${listed(slow)}.` : "It is slower than plain decoding at no k.";
    find("verdict").textContent = `${says}${verdict}${k === best ? "" : `The best is k = ${best}, ${speedups[best].toFixed(2)}x. `}${where}`;
    draw.table(find("curve-table"), ["k", "rounds", "tokens per round", "α", "speedup", "book"], speedups.map((value, i) => {
      const one = replay.counts(replay.rounds(text, state.draft, i));
      return [i, one.rounds, (one.tokens / one.rounds).toFixed(2), alphas[i] === null ? "-" : alphas[i].toFixed(3), `${value.toFixed(2)}x`, book[i] === null ? "-" : `${book[i].toFixed(2)}x`];
    }));
  };

  // --- sampling ---
  // A place for each tested token, and for each one that the target added: after a rejected token that is the same place.
  const places = sampled
    ? sampled.rounds.flatMap(({drafts, own}, round) => [
        ...drafts.flatMap((token, i) => (token[2] ? [{round, i, token, next: token[1] === "r" ? own[0] : null}] : [])),
        ...own.flatMap((token) => (token[2] && token[1] !== "c" ? [{round, i: drafts.length, token, next: null}] : [])),
      ])
    : [];
  const showSampling = () => {
    const at = Math.min(state.place, places.length - 1), {round, i, token, next} = places[at];
    const [picture, kind, [p, q, u], candidates] = token, level = q === null ? null : u * q;
    dial("place", at, places.length - 1, `${at + 1} of ${places.length}`);
    find("place-back").disabled = !at;
    find("place-forward").disabled = at === places.length - 1;
    const where = `Round ${round}, ${q === null ? "after the draft" : `drafted token ${i + 1}`}: ${picture}. `;
    const digits = level !== null && draw.number(level) === draw.number(p) ? 6 : 3;
    find("place-line").textContent = where + (level === null
      ? `${kind === "b" ? "All drafted tokens were kept" : "Nothing was drafted"}, so the target adds a token of its own, drawn from p. It had p = ${draw.number(p)}.`
      : `u × q = ${draw.number(u)} × ${draw.number(q)} = ${draw.number(level, digits)} is ${level < p ? "below" : "not below"} p = ${draw.number(p, digits)}: ` +
        `${kind === "a" ? "kept" : "rejected"}${(kind === "a") === level < p ? "" : ", against the rule"}. ` +
        (next ? `In its place stands ${next[0]}, drawn from the hatched rest.` : ""));
    const chosen = q === null ? -1 : candidates.findIndex(([text]) => text === picture);
    draw.bars(find("bars"), candidates, chosen, level);
    draw.table(find("bar-table"), ["token", "p", "q", "min(p, q)", "residual"], candidates.map(([text, one, other]) =>
      [text, draw.number(one), ...(other === null ? ["-", "-", "-"] : [other, Math.min(one, other), Math.max(0, one - other)].map((value) => draw.number(value)))]), 1);
    const tokens = sampled.rounds.flatMap(({drafts, own, texts}, n) => {
      const kept = texts.length - own.length;
      return texts.flatMap((text, j) => [
        ...(j === kept ? drafts.filter(([, one]) => one === "r").map(([one, its]) => [one, its, n, j]) : []),
        [text, j < kept ? "a" : own[j - kept][1], n, j],
      ]);
    });
    const frame = find("sampled-words");
    draw.words(frame, sampled.prompt, tokens, (n, j) => {
      const found = places.findIndex((place) => place.round === n && place.i >= j);
      change({place: found < 0 ? 0 : found});
    });
    const marks = [...frame.querySelectorAll(`[data-round="${round}"]`)];
    const wanted = String(Math.min(i, Math.max(...marks.map((mark) => Number(mark.dataset.place)))));
    for (const mark of marks) mark.classList.toggle("chosen", mark.dataset.place === wanted);
    draw.scrollTo(frame.parentElement, frame.querySelector(".chosen"));
  };

  // --- lanes ---
  const showLanes = () => {
    const set = lanes[state.clock], rounds = set.lanes.map((lane) => lane.rounds.slice(1));
    const n = rounds[state.lane].length, at = state.of === null ? n : Math.min(state.of, n);
    find("lanes-about").textContent = set.about;
    draw.strip(find("lane-strip"), set.lanes.map(({name}, i) => ({name, rounds: rounds[i], at: i === state.lane ? at : undefined})),
      set.baseline, milliseconds, (lane, of) => change({lane, of}));
    dial("lane-round", at, n, `${at} of ${n}`);
    const one = set.lanes[state.lane].rounds[at], nKept = one.drafts.filter(([, kind]) => kind === "a").length;
    const had = set.lanes[state.lane].rounds.slice(0, at + 1).reduce((sum, {drafts, own}) =>
      sum + own.length + drafts.filter(([, kind]) => kind === "a").length, 0);
    const baseline = set.baseline.filter((seconds) => seconds <= one.end).length;
    find("lane-line").textContent = at
      ? `Round ${at}: drafted ${one.drafts.length}, kept ${nKept}. ${had} tokens after ${milliseconds(one.end)}; plain decoding has ${baseline}.`
      : "The first token comes from the pass over the prompt. All clocks start here.";
    draw.chips(find("lane-chips"), one);
  };

  // --- the tour ---
  const roundWhere = (test) => {
    const {found} = view(), at = found.findIndex(test);
    return at < 0 ? Math.min(1, found.length) : at + 1;
  };
  const TOUR = [
    ["Prefill", "replay", () => ({round: 0}),
      "Prefill: the target reads the whole prompt in one pass. That gives the first token, and both clocks start there."],
    ["Draft", "replay", () => ({round: roundWhere((one) => one.drafted.length > 1)}),
      "Draft: the cheap draft proposes up to k tokens, one after the other. It may be wrong as often as it likes."],
    ["One pass", "replay", () => ({round: roundWhere((one) => one.drafted.length > 1 && one.accepted > 0)}),
      "One pass: the target reads the last token and all drafted tokens in one pass over k + 1 tokens. Each row of the result says what the target itself would write next, so each row checks one drafted token."],
    ["Reject", "replay", () => ({round: roundWhere((one) => one.rejected)}),
      "Reject: the first drafted token that is not the target's own choice is rejected, and the target's token takes its place. What was drafted after it is never tested."],
    ["Bonus", "replay", () => ({round: roundWhere((one) => one.drafted.length && !one.rejected)}),
      "Bonus: where all drafted tokens are kept, the last row gives one more token for nothing. A round commits up to k + 1 tokens."],
    ["Why not faster", "costs", () => ({k: replay.LENGTHS}),
      "Why not faster: every drafted token costs time, a wider pass costs more than a step, and tokens after a rejected one are wasted. The speedup is the tokens of a round divided by its steps. Turn k down and watch the curve."],
  ];
  const showTour = () => {
    find("caption").textContent = state.tour ? TOUR[state.tour - 1][3] : "Each step sets the dials and says what you see.";
    [...find("tour-steps").children].forEach((button, i) => {
      if (i + 1 === state.tour) button.setAttribute("aria-current", "step"); else button.removeAttribute("aria-current");
    });
    for (const id of ["replay", "costs"]) find(id).classList.toggle("toured", state.tour > 0 && TOUR[state.tour - 1][1] === id);
  };

  // --- what stands on the page ---
  const dial = (id, value, most, said) => {
    const input = find(id);
    input.max = most;
    input.value = value;
    input.setAttribute("aria-valuetext", said);
    find(`${id}-value`).textContent = said;
  };
  const fill = (id, names, chosen) => {
    const select = find(id);
    if (select.length !== names.length || names.some((name, i) => select.options[i].value !== String(name[0]))) {
      select.replaceChildren();
      for (const [value, label] of names) draw.make(select, "option", "", label).value = value;
    }
    select.value = chosen;
  };
  const numbered = (names) => names.map((name, i) => [i, name]);
  const show = () => {
    if (hasDials) {
      const now = view();
      fill("target", numbered(targets.map(({name}) => name)), state.target);
      fill("text", numbered(now.target.texts.map(({kind}) => kind)), state.text);
      fill("draft", [...Object.keys(now.text.proposals), "none"].map((name) => [name, name]), state.draft);
      fill("preset", numbered(data.presets.map(({name}) => name)), state.costs);
      dial("k", state.k, replay.LENGTHS, String(state.k));
      showReplay(now);
      showMachine(now);
      showCosts(now);
      showTour();
    }
    if (places.length) showSampling();
    if (lanes.length) {
      fill("lane-text", numbered(lanes.map(({kind}) => kind)), state.clock);
      fill("lane", numbered(lanes[state.clock].lanes.map(({name}) => name)), state.lane);
      showLanes();
    }
  };

  // --- playing ---
  let timer = 0;
  const SECONDS = 20; // a replay takes about so long
  const pause = () => {
    clearTimeout(timer);
    timer = 0;
    find("play").setAttribute("aria-pressed", "false");
    find("play").textContent = "Play";
    find("line").setAttribute("aria-live", "polite");
  };
  const playOn = () => {
    const {times, round} = view();
    if (round === times.length) return pause();
    const [before, {end}, last] = [round ? times[round - 1].end : 0, times[round], times[times.length - 1].end];
    timer = setTimeout(() => {
      change({round: round + 1});
      playOn();
    }, Math.max(120, (1000 * SECONDS * (end - before)) / last));
    return undefined;
  };
  const play = () => {
    if (timer) return pause();
    const {times, round} = view();
    if (round === times.length) change({round: 0});
    find("play").setAttribute("aria-pressed", "true");
    find("play").textContent = "Pause";
    find("line").setAttribute("aria-live", "off");
    return playOn();
  };

  // --- begin ---
  const on = (id, event, act) => find(id).addEventListener(event, () => act(find(id)));
  const valueOf = {
    target: "target", text: "text", draft: "draft", k: "k", preset: "costs", bandwidth: "bandwidth", arithmetic: "arithmetic", users: "users",
    "cost-draft": "drafting", "cost-pass": "pass", "cost-rest": "rest", round: "round", place: "place", lane: "lane", "lane-text": "clock", "lane-round": "of",
  };
  const FORGET = {target: {round: null, text: 0}, text: {round: null}, draft: {round: null}, k: {round: null}, lane: {of: null}, "lane-text": {of: null}};
  for (const [id, name] of Object.entries(valueOf)) {
    on(id, "input", (input) => {
      if (["target", "text", "draft", "k", "round"].includes(id)) pause();
      change({...FORGET[id], ...(["round", "place", "lane-round"].includes(id) ? {} : {tour: 0}), [name]: input.value});
    });
  }
  const step = (by) => {
    pause();
    change({round: Math.max(0, view().round + by)});
  };
  on("back", "click", () => step(-1));
  on("forward", "click", () => step(1));
  on("play", "click", play);
  on("place-back", "click", () => change({place: Math.max(0, Math.min(state.place, places.length - 1) - 1)}));
  on("place-forward", "click", () => change({place: Math.min(state.place + 1, places.length - 1)}));
  on("rejected", "change", (box) => document.body.classList.toggle("no-rejected", !box.checked));
  TOUR.forEach(([name, section, goal], i) => {
    draw.make(find("tour-steps"), "button", "", `${i + 1} ${name}`).addEventListener("click", () => {
      pause();
      change({round: null, k: DEFAULTS.k, draft: DEFAULTS.draft});
      change({...goal(), tour: i + 1});
      find(section).scrollIntoView({block: "nearest"});
    });
  });
  for (const [kind, meaning] of Object.entries(draw.MEANINGS)) {
    const item = draw.make(find("marks"), "li", "");
    draw.make(item, draw.LOST.includes(kind) ? "del" : "span", draw.marked(kind), draw.name(kind));
    item.append(` ${draw.SIGNS[kind]} ${meaning}`);
  }
  for (const id of ["tour", "replay", "costs"]) find(id).hidden = !hasDials;
  find("sampling").hidden = !places.length;
  if (sampled) find("sampling-about").textContent = sampled.about;
  find("lanes").hidden = !lanes.length;
  find("lane-text-label").hidden = lanes.length < 2;
  find("target-label").hidden = targets.length < 2;
  find("main").hidden = false;
  const go = () => {
    state = fromAddress();
    if (hasDials && !data.own && !location.hash) state = checked({...TOUR[1][2](), tour: 2}); // the first round
    if (data.own && !location.hash) state = checked({of: 1});
    show();
    if (state.at) {
      find(state.at).scrollIntoView();
      find(state.at).focus({preventScroll: true});
    }
  };
  addEventListener("hashchange", go);
  addEventListener("resize", show);
  go();
})();
