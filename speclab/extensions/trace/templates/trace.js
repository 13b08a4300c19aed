// Steps through a decoding. The data comes from trace_page.py; texts are set as text, never as markup.
"use strict";
(() => {
  const find = (id) => document.getElementById(id);
  const data = JSON.parse(find("data").textContent);
  const rounds = data.rounds, clock = data.baseline;
  const ends = rounds.map((round) => round.end);
  const total = Math.max(ends[ends.length - 1], clock[clock.length - 1]);
  // A stop for the first token, for every round, and for the baseline's end where it comes later.
  const stops = total > ends[ends.length - 1] ? [...ends, total] : ends;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const text = find("text"), baseline = find("baseline"), slider = find("slider"), line = find("line");
  const byRound = rounds.map(() => []);
  for (const token of text.querySelectorAll("[data-r]")) byRound[token.dataset.r].push(token);
  const tokens = [...text.querySelectorAll(".t")];
  const baselineTokens = [...baseline.querySelectorAll("span:not(.prompt)")];
  let stop = -1, shownBaseline = -1, time = 0, playing = false, frame = 0, timer = 0, last = 0;

  const make = (parent, tag, className, content) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (content !== undefined) element.textContent = content;
    parent.append(element);
    return element;
  };
  const kindName = (kind) => kind.replace("_eos", " EOS");
  const short = (value) => (value === null ? "-" : String(Number(value.toPrecision(3))));
  const ms = (seconds) =>
    seconds >= 1 ? seconds.toFixed(2) + " s" : (seconds * 1000).toFixed(seconds >= 0.1 ? 0 : 1) + " ms";
  const count = (times, until) => {
    let low = 0, high = times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] <= until) low = middle + 1; else high = middle;
    }
    return low;
  };
  const roundAt = (index) => Math.min(index, rounds.length - 1);

  // --- the strip ---
  const lanes = find("lanes"), cursor = find("cursor");
  const share = (seconds) => (total ? (100 * seconds) / total : 0) + "%";
  const boxes = [], ticks = [];
  lanes.hidden = false;
  // The strip is never wider than its frame; where rounds get narrow, no line parts them.
  const thin = () => lanes.classList.toggle("thin", lanes.clientWidth < 5 * Math.max(rounds.length, clock.length));
  addEventListener("resize", thin);
  thin();
  rounds.forEach((round, n) => {
    if (!n) return;
    const start = ends[n - 1], length = round.end - start;
    const box = make(find("lane-rounds"), "div", "round-box");
    box.style.left = share(start);
    box.style.width = share(length);
    box.title = `round ${n}`;
    let at = 0;
    ["draft", "verify", "other"].forEach((name, i) => {
      const segment = make(box, "i", `seg ${name}`);
      segment.style.left = (length ? (100 * at) / length : 0) + "%";
      at += round.phases[i];
      segment.style.width = (length ? (100 * round.phases[i]) / length : 0) + "%";
    });
    boxes[n] = box;
  });
  clock.forEach((seconds, n) => {
    if (!n) return;
    const tick = make(find("lane-baseline"), "i", "seg token late");
    tick.style.left = share(clock[n - 1]);
    tick.style.width = share(seconds - clock[n - 1]);
    ticks[n] = tick;
  });
  const axis = find("axis");
  const step = [1, 2, 5].flatMap((m) => [1e-4, 1e-3, 1e-2, 1e-1, 1, 10, 100].map((p) => m * p)).sort((a, b) => a - b)
    .find((s) => total / s <= 5) || total || 1;
  for (let i = 0; i * step < total * 0.86; i++) make(axis, "span", "", ms(i * step).replace(/\.0 /, " ")).style.left = share(i * step);
  make(axis, "span", "last", ms(total)).style.left = "100%";
  for (const lane of lanes.querySelectorAll(".lane")) {
    lane.addEventListener("click", (event) => {
      const frame = lanes.getBoundingClientRect();
      pause();
      // A click on a round shows the round, so the stop at its end.
      const at = (total * (event.clientX - frame.left)) / frame.width;
      goTo(Math.min(count(stops, at), stops.length - 1));
    });
  }

  // --- the round ---
  // Sampling: the probability to be kept, and the uniform drawn.  -> the numbers that there are
  const drawBar = (row, kind, p, q, u) => {
    const bar = make(row, "span", "bar" + (kind === "accepted" ? " kept" : kind === "rejected" ? " lost" : ""));
    bar.setAttribute("aria-hidden", "true");
    if (q === null) bar.style.visibility = "hidden";
    else make(bar, "i", "").style.width = 100 * Math.min(1, q > 0 ? p / q : Number(p > 0)) + "%";
    if (u !== null && kind !== "untested" && kind !== "after_eos") make(bar, "b", "").style.left = 100 * u + "%";
    return [["q", q], ["p", p], ["u", u]].filter((pair) => pair[1] !== null);
  };
  // A drafted tree: every token above those that follow it.
  const drawTree = (round, place) => {
    const frame = find("tree");
    frame.replaceChildren();
    frame.hidden = !round.children.length;
    const below = (parent, children) => {
      if (!children.length) return;
      const row = make(parent, "ul", "");
      for (const i of children) {
        const [token, kind] = round.drafts[i];
        const item = make(row, "li", kind === "accepted" ? "on-path" : "");
        const box = make(item, "span", "node" + (String(i) === place ? " hot" : ""));
        make(box, "span", "sign", data.signs[kind]);
        make(box, ["rejected", "untested", "after_eos"].includes(kind) ? "del" : "span", (kind === "accepted" ? "t " : "g ") + kind, token);
        box.title = `${kindName(kind)}: ${data.meanings[kind]}`;
        below(item, round.children[i + 1]);
      }
    };
    if (round.children.length) below(frame, round.children[0]);
  };
  const inspect = (n, place) => {
    const round = rounds[n], list = find("round");
    list.replaceChildren();
    drawTree(round, place);
    const kept = round.drafts.filter((d) => d[1] === "accepted").length;
    find("round-title").textContent = n
      ? `Round ${n}` + (round.drafts.length ? `: ${kept} of ${round.drafts.length} kept` : ": nothing drafted")
      : "Before the first round";
    find("round-times").textContent = n
      ? ["draft", "verify", "other"].map((name, i) => `${name} ${ms(round.phases[i])}`).join(", ")
      : "both clocks start when the first token is there";
    const inTree = round.children.length > 0;
    const rows = round.drafts.map((draft, i) => [draft, String(i)]).filter(([draft]) => !inTree || draft[1] !== "untested");
    if (round.own) rows.push([round.own, "own"]);
    for (const [[token, kind, outcome, ...used], where] of rows) {
      const row = make(list, "li", where === place ? "hot" : "");
      make(row, "span", "sign", data.signs[kind]);
      const box = make(row, "span", "token");
      const lost = ["rejected", "untested", "after_eos"].includes(kind);
      make(box, lost ? "del" : "span", (lost ? "g " : "t ") + kind, token);
      const numbers = data.greedy ? [] : drawBar(row, kind, ...used);
      if (data.greedy) {
        const choice = make(row, "span", "choice", used.length ? "target: " : "");
        if (used.length) make(choice, "span", "token", used[0]);
      }
      const outcomeCell = make(row, "span", "outcome");
      make(outcomeCell, "span", "numbers", numbers.map(([name, value]) => `${name} ${short(value)}`).join(", "));
      outcomeCell.append((numbers.length ? " · " : "") + (outcome || `${kindName(kind)}: ${data.meanings[kind]}`));
    }
  };

  // --- time ---
  const follow = (pre, element) => {
    const frame = pre.parentElement;
    if (!element || frame.scrollHeight <= frame.clientHeight) return;
    const box = element.getBoundingClientRect(), view = frame.getBoundingClientRect();
    if (box.top < view.top + 24 || box.bottom > view.bottom - 24) {
      frame.scrollTop += box.bottom - view.bottom + frame.clientHeight * 0.3;
    }
  };
  const show = (seconds, force) => {
    time = Math.min(Math.max(seconds, 0), total);
    const index = count(stops, time + 1e-12) - 1, n = roundAt(index);
    if (index !== stop || force) {
      const before = stop < 0 ? -1 : roundAt(stop);
      byRound.forEach((members, r) => {
        if (!force && before >= 0 && (r > before) === (r > n) && (r === before) === (r === n)) return;
        for (const token of members) {
          token.classList.toggle("later", r > n);
          token.classList.toggle("now", r === n);
        }
      });
      boxes.forEach((box, r) => {
        box.classList.toggle("later-box", r > n);
        box.classList.toggle("now-box", r === n);
      });
      stop = index;
      slider.value = index;
      slider.setAttribute("aria-valuetext", index < rounds.length ? `round ${n} of ${rounds.length - 1}` : "the baseline's end");
      find("home").disabled = find("back").disabled = index === 0;
      find("end").disabled = find("forward").disabled = index === stops.length - 1;
      find("progress").textContent = `${rounds[n].tokens} tokens` + (n === rounds.length - 1 ? ", done" : "");
      line.textContent = index < rounds.length ? rounds[n].line : `The baseline is done after ${ms(total)}.`;
      inspect(n);
      const shown = byRound[n];
      follow(text, shown[shown.length - 1]);
    }
    const there = count(clock, time + 1e-12);
    if (there !== shownBaseline || force) {
      baselineTokens.forEach((token, i) => token.classList.toggle("later", i >= there));
      ticks.forEach((tick, i) => tick.classList.toggle("late", i >= there));
      find("baseline-progress").textContent = `${there} tokens` + (there === clock.length ? ", done" : "");
      shownBaseline = there;
      follow(baseline, baselineTokens[there - 1]);
    }
    cursor.style.left = share(time);
  };
  const goTo = (index) => show(stops[Math.min(Math.max(index, 0), stops.length - 1)]);

  const pause = () => {
    if (!playing) return;
    playing = false;
    if (frame) cancelAnimationFrame(frame);
    frame = 0;
    clearTimeout(timer);
    document.body.classList.remove("playing");
    find("play").setAttribute("aria-label", "Play");
    line.setAttribute("aria-live", "polite");
    const lineNow = line.textContent; // read aloud once the line is live again
    line.textContent = "";
    line.textContent = lineNow;
  };
  const play = () => {
    if (playing) return pause();
    if (time >= total) goTo(0);
    playing = true;
    document.body.classList.add("playing");
    find("play").setAttribute("aria-label", "Pause");
    line.setAttribute("aria-live", "off"); // a line that changes all the time is noise
    if (calm.matches) {
      const next = () => {
        goTo(stop + 1);
        if (time >= total) pause(); else timer = setTimeout(next, 1500);
      };
      timer = setTimeout(next, 1500);
      return;
    }
    last = performance.now();
    const tick = (now) => {
      show(time + (now - last) / 1000 / Number(find("speed").value));
      last = now;
      if (time >= total) pause(); else frame = requestAnimationFrame(tick);
    };
    frame = requestAnimationFrame(tick);
  };

  // --- controls ---
  const slower = [1, 2, 5, 10, 20, 50, 100, 200, 500];
  const fitting = slower.reduce((best, f) => (Math.abs(Math.log((total * f) / 25)) < Math.abs(Math.log((total * best) / 25)) ? f : best), 1);
  for (const factor of slower) {
    const option = make(find("speed"), "option", "", factor === 1 ? "as measured" : `1/${factor}`);
    option.value = factor;
    option.selected = factor === fitting;
  }
  slider.max = stops.length - 1;
  const actions = {
    home: () => goTo(0),
    back: () => goTo(time > stops[stop] + 1e-12 ? stop : stop - 1),
    forward: () => goTo(stop + 1),
    end: () => goTo(stops.length - 1),
  };
  for (const name of Object.keys(actions)) {
    find(name).addEventListener("click", () => { pause(); actions[name](); });
  }
  find("play").addEventListener("click", play);
  slider.addEventListener("input", () => { const wanted = Number(slider.value); pause(); goTo(wanted); });
  const toggle = () => document.body.classList.toggle("rejected-shown", find("rejected").checked);
  find("rejected").addEventListener("change", toggle);
  toggle();

  // --- tokens: one stop of the Tab key, up and down between them ---
  let hot = null;
  const leave = () => {
    if (!hot) return;
    hot.classList.remove("hot");
    hot = null;
    inspect(roundAt(stop));
  };
  const enter = (token) => {
    leave();
    hot = token;
    token.classList.add("hot");
    inspect(Number(token.dataset.r), token.dataset.p);
  };
  const name = (token) => {
    const round = rounds[token.dataset.r];
    const row = token.dataset.p === "own" ? round.own : round.drafts[token.dataset.p];
    return row ? `${kindName(row[1])} ${row[0]}, round ${token.dataset.r}: ${row[2] || data.meanings[row[1]]}` : "";
  };
  tokens.forEach((token, i) => {
    token.tabIndex = i ? -1 : 0;
    token.setAttribute("role", "button");
    token.setAttribute("aria-label", name(token));
  });
  const tokenOf = (event) => event.target.closest && event.target.closest("#text [data-r]");
  text.addEventListener("mouseover", (event) => { const token = tokenOf(event); if (token) enter(token); else leave(); });
  text.addEventListener("mouseleave", leave);
  text.addEventListener("focusin", (event) => {
    const token = tokenOf(event);
    if (!token) return;
    for (const other of tokens) other.tabIndex = -1;
    token.tabIndex = 0;
    enter(token);
  });
  text.addEventListener("focusout", leave);
  const jump = (token) => { pause(); goTo(Number(token.dataset.r)); enter(token); };
  text.addEventListener("click", (event) => { const token = tokenOf(event); if (token) jump(token); });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const target = event.target, token = tokenOf(event);
    const owns = (tags) => tags.includes(target.tagName);
    let action = null;
    // In a report the keys belong to the page until something of the decoding has the focus.
    if (document.body.classList.contains("report") && !find("decoding").contains(target)) return;
    if (owns(["SELECT"]) || (target === slider && event.key !== " ")) return;
    if (event.key === "ArrowLeft") action = () => { pause(); actions.back(); };
    else if (event.key === "ArrowRight") action = () => { pause(); actions.forward(); };
    else if (event.key === "Home") action = () => { pause(); actions.home(); };
    else if (event.key === "End") action = () => { pause(); actions.end(); };
    else if (event.key === "r") action = () => find("rejected").click();
    else if (event.key === " " && token) action = () => jump(token);
    else if (event.key === " " && !owns(["BUTTON", "SUMMARY", "A"]) && target.type !== "checkbox") action = play;
    else if (event.key === "Enter" && token) action = () => jump(token);
    else if ((event.key === "ArrowUp" || event.key === "ArrowDown") && token) {
      action = () => {
        const there = tokens.filter((t) => !t.classList.contains("later"));
        const next = there[there.indexOf(token) + (event.key === "ArrowDown" ? 1 : -1)];
        if (next) next.focus();
      };
    }
    if (!action) return;
    event.preventDefault();
    action();
  });

  document.body.style.setProperty("--rows", Math.min(5, Math.max(...rounds.map((r) => r.drafts.length + (r.own ? 1 : 0)))));
  for (const part of document.querySelectorAll(".controls, .status")) part.hidden = false;
  addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });
  show(stops[Math.min(1, stops.length - 1)], true); // the first round, which has something to explain
})();
