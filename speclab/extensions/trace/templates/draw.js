// Pictures of rounds, made of elements whose texts are set as text, never as markup.
"use strict";
const draw = (() => {
  const KINDS = {f: "first", p: "plain", a: "accepted", c: "corrected", b: "bonus", r: "rejected", u: "untested", e: "after_eos"};
  const SIGNS = {f: "▪", p: "·", a: "✓", c: "▸", b: "★", r: "✗", u: "?", e: "|"};
  const MEANINGS = {
    f: "comes from the pass over the prompt", p: "nothing was drafted: an ordinary step of the target",
    a: "was drafted, and is kept", c: "is the target's own, in place of a rejected one",
    b: "is the target's own, after all drafted tokens were kept", r: "was drafted, and is rejected",
    u: "was drafted after a rejected token or beside a kept one, and is never tested",
    e: "was drafted after the end of the text",
  };
  const LOST = "rue";
  const name = (kind) => KINDS[kind].replace("_eos", " the end");

  const make = (parent, tag, className, content) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (content !== undefined) element.textContent = content;
    parent.append(element);
    return element;
  };
  const svg = (parent, tag, attributes, content) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (content !== undefined) element.textContent = content;
    parent.append(element);
    return element;
  };
  // A picture as wide as its frame, so that letters keep their size.
  const canvas = (frame, height, label) => {
    frame.replaceChildren();
    const width = Math.max(260, frame.clientWidth);
    return [svg(frame, "svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label}), width];
  };
  const number = (value, digits = 3) => String(Number(value.toPrecision(digits)));
  // What prints as 1.00x is as fast as plain decoding.
  const isSlower = (speedup) => Number(speedup.toFixed(2)) < 1;

  // --- tokens ---
  const marked = (kind) => `${LOST.includes(kind) ? "g" : "t"} ${KINDS[kind]}`;
  const chip = (parent, [picture, kind]) => {
    const box = make(parent, "span", "chip");
    make(box, LOST.includes(kind) ? "del" : "span", marked(kind), picture);
    make(box, "small", "", `${SIGNS[kind]} ${name(kind)}`);
    return box;
  };
  // A round's tokens: drafted ones, as a tree where `parents` says so, then the target's own.
  const chips = (frame, {drafts, own, parents}) => {
    frame.replaceChildren();
    const list = document.createElement("ol");
    if (parents) {
      const below = (parent, place) => {
        const children = parents.flatMap((one, i) => (one === place ? [i] : []));
        if (!children.length) return;
        const row = make(parent, "ul", "");
        for (const i of children) {
          const item = make(row, "li", drafts[i][1] === "a" ? "on-path" : "");
          chip(item, drafts[i]);
          below(item, i);
        }
      };
      below(make(frame, "div", "tree"), -1);
    }
    for (const token of parents ? own : [...drafts, ...own]) chip(make(list, "li", ""), token);
    frame.append(list);
  };
  // A text with its marks: prompt, then [text, kind, round, number in the round] for each token.
  const words = (frame, prompt, tokens, choose) => {
    frame.replaceChildren();
    make(frame, "span", "prompt", prompt);
    for (const [text, kind, round, place] of tokens) {
      const lost = LOST.includes(kind);
      // A line end that is marked can be seen; that of a rejected token breaks no line.
      const seen = lost ? text : text.replace(/\n/g, "↵\n");
      const element = make(frame, lost ? "del" : "span", marked(kind), seen);
      element.dataset.round = round;
      element.dataset.place = place;
      element.title = `round ${round}: ${name(kind)}`;
    }
    frame.onclick = (event) => {
      const token = event.target.closest("[data-round]");
      if (token) choose(Number(token.dataset.round), Number(token.dataset.place));
    };
  };
  // Scroll a frame, and nothing else, so that this part of it is seen.
  const scrollTo = (frame, part) => {
    if (!part || frame.clientHeight === frame.scrollHeight) return;
    const above = part.offsetTop < frame.scrollTop, below = part.offsetTop + part.offsetHeight > frame.scrollTop + frame.clientHeight;
    if (above || below) frame.scrollTop = part.offsetTop - frame.clientHeight / 2;
  };
  const table = (frame, heads, rows, nWords = 0) => {
    frame.replaceChildren();
    const all = make(frame, "table", "");
    const row = (parent, tag, cells) => {
      const line = make(parent, "tr", "");
      cells.forEach((cell, i) => make(line, tag, i < nWords ? "words" : "", cell));
    };
    row(make(all, "thead", ""), "th", heads);
    const body = make(all, "tbody", "");
    for (const cells of rows) row(body, "td", cells);
  };

  // --- time ---
  const lineOfTime = (frame, total, format) => {
    const axis = make(frame, "div", "axis");
    const steps = [-4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((m) => m * 10 ** power));
    const step = steps.find((one) => total / one <= (frame.clientWidth < 500 ? 3 : 5)) || total || 1;
    for (let i = 0; i * step < total * 0.82; i++) make(axis, "span", "", format(i * step)).style.left = `${(100 * i * step) / total}%`;
    make(axis, "span", "last", format(total)).style.left = "100%";
  };
  // Lanes of rounds on one clock above the baseline's steps.
  // lanes: {name, rounds: [{phases, end}], at: the number of the round that is shown, from 1}. steps: times of tokens.
  const strip = (frame, lanes, steps, format, choose) => {
    frame.replaceChildren();
    const ends = lanes.map(({rounds}) => (rounds.length ? rounds[rounds.length - 1].end : 0));
    const total = Math.max(...ends, steps[steps.length - 1]) || 1, share = (part) => `${(100 * part) / total}%`;
    lanes.forEach((lane, which) => {
      make(frame, "p", "lane-name", lane.name);
      const row = make(frame, "div", "lane");
      lane.rounds.forEach(({phases, end}, i) => {
        const length = phases[0] + phases[1] + phases[2], box = make(row, "div", "box");
        box.classList.toggle("at", i + 1 === lane.at);
        box.classList.toggle("after", i + 1 > lane.at);
        box.style.left = share(end - length);
        box.style.width = share(length);
        let at = 0;
        ["draft", "verify", "other"].forEach((phase, place) => {
          const segment = make(box, "i", `seg ${phase}`);
          segment.style.left = `${length ? (100 * at) / length : 0}%`;
          segment.style.width = `${length ? (100 * phases[place]) / length : 0}%`;
          at += phases[place];
        });
      });
      row.onclick = (event) => {
        const place = row.getBoundingClientRect(), at = (total * (event.clientX - place.left)) / place.width;
        const found = lane.rounds.findIndex(({end}) => end >= at);
        choose(which, found < 0 ? lane.rounds.length : found + 1);
      };
    });
    const {at, rounds} = lanes.find((lane) => lane.at !== undefined) || lanes[0];
    const now = at > 0 ? rounds[Math.min(at, rounds.length) - 1].end : 0;
    make(frame, "p", "lane-name", "plain decoding, one token a step");
    const row = make(frame, "div", "lane baseline");
    steps.slice(1).forEach((end, i) => {
      const tick = make(row, "i", `seg token${end > now + 1e-9 ? " late" : ""}`);
      tick.style.left = share(steps[i]);
      tick.style.width = share(end - steps[i]);
    });
    lineOfTime(frame, total, format);
  };

  // --- the speedup over k ---
  const curve = (frame, speedups, book, k, best) => {
    const HEIGHT = 260, LEFT = 38, RIGHT = 14, TOP = 26, BOTTOM = 34;
    const [picture, width] = canvas(frame, HEIGHT, `Speedup over k: highest at k = ${best}, ${speedups[best].toFixed(2)}x`);
    const top = Math.max(1.2, ...speedups, ...book.filter((one) => one !== null)) * 1.08;
    const x = (i) => LEFT + ((width - LEFT - RIGHT) * i) / (speedups.length - 1);
    const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / top;
    const step = [0.25, 0.5, 1, 2, 5].find((one) => top / one <= 7) || 10;
    for (let value = 0; value <= top; value += step) {
      svg(picture, "line", {class: value === 1 ? "one" : "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value)});
      svg(picture, "text", {class: "soft", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end"}, `${value}x`);
    }
    speedups.forEach((_, i) => svg(picture, "text", {class: "soft", x: x(i), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle"}, i));
    svg(picture, "text", {class: "soft", x: (LEFT + width) / 2, y: HEIGHT - 4, "text-anchor": "middle"}, "k, the tokens per draft");
    svg(picture, "line", {class: "here", x1: x(k), x2: x(k), y1: TOP - 8, y2: HEIGHT - BOTTOM});
    const points = (values) => values.flatMap((value, i) => (value === null ? [] : [`${x(i)},${y(value)}`])).join(" ");
    svg(picture, "polyline", {class: "book", points: points(book)});
    svg(picture, "polyline", {class: "measured", points: points(speedups)});
    speedups.forEach((value, i) => {
      const dot = svg(picture, "circle", {class: isSlower(value) ? "dot slow" : "dot", cx: x(i), cy: y(value), r: 4});
      svg(dot, "title", {}, `k = ${i}: ${value.toFixed(2)}x`);
    });
    svg(picture, "circle", {class: "best", cx: x(best), cy: y(speedups[best]), r: 9});
    const anchor = best < 2 ? "start" : best > speedups.length - 3 ? "end" : "middle";
    svg(picture, "text", {x: x(best), y: Math.max(14, y(speedups[best]) - 14), "text-anchor": anchor}, `best: k = ${best}, ${speedups[best].toFixed(2)}x`);
  };

  // --- candidates ---
  // candidates: [picture, p, q or null]. at: the number of the drafted one, or -1. level: u q, or null.
  const bars = (frame, candidates, at, level) => {
    const ROW = 30, LEFT = 104, RIGHT = 46, TOP = 6;
    const [picture, width] = canvas(frame, TOP + ROW * candidates.length + 22, "p and q of the candidates, as bars");
    const most = Math.max(0.05, ...candidates.flatMap(([, p, q]) => [p, q || 0]));
    const x = (value) => (width - LEFT - RIGHT) * (value / most);
    const hatch = svg(svg(picture, "defs", {}), "pattern", {id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"});
    svg(hatch, "line", {class: "hatch", x1: 1, x2: 1, y1: 0, y2: 6});
    candidates.forEach(([text, p, q], i) => {
      const y = TOP + ROW * i, both = q === null ? 0 : Math.min(p, q);
      const short = [...text].length > 11 ? `${[...text].slice(0, 10).join("")}…` : text;
      svg(picture, "text", {class: "mono", x: LEFT - 8, y: y + 17, "text-anchor": "end", "font-weight": i === at ? 700 : 400}, `${i === at ? "▶ " : ""}${short}`);
      svg(picture, "rect", {class: "both", x: LEFT, y: y + 2, width: x(both), height: q === null ? 0 : ROW - 8});
      if (q !== null && p > both) svg(picture, "rect", {fill: "url(#hatch)", x: LEFT + x(both), y: y + 2, width: x(p - both), height: 11});
      svg(picture, "rect", {class: "p", x: LEFT, y: y + 2, width: x(p), height: 11});
      if (q !== null) svg(picture, "rect", {class: "q", x: LEFT, y: y + 13, width: x(q), height: 11});
      svg(picture, "text", {class: "soft", x: LEFT + x(Math.max(p, q || 0)) + 5, y: y + 17}, number(p, 2));
      if (i === at && level !== null) svg(picture, "line", {class: "u", x1: LEFT + x(level), x2: LEFT + x(level), y1: y - 2, y2: y + ROW - 2});
    });
    svg(picture, "text", {class: "soft", x: LEFT, y: TOP + ROW * candidates.length + 15}, `0 to ${number(most, 2)}; the number is p`);
  };

  return {SIGNS, MEANINGS, LOST, make, name, marked, chips, words, scrollTo, table, strip, curve, bars, number, isSlower};
})();
