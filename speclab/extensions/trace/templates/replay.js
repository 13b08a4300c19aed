// The replay of a greedy text: functions of numbers alone, which no page and no clock touches. Node runs them, too.
"use strict";
const replay = (() => {
  const LENGTHS = 12;

  // Base64 of unsigned integers of two bytes -> their numbers.
  const unpackNumbers = (packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return Array.from({length: bytes.length / 2}, (_, i) => bytes[2 * i] + 256 * bytes[2 * i + 1]);
  };

  // A text as the page holds it -> {ids, limit, proposals: by draft, what it proposes after 1, 2, ... tokens}.
  const unpackText = (packed) => {
    const proposals = {};
    for (const [name, draft] of Object.entries(packed.drafts)) {
      const flat = unpackNumbers(draft.ids);
      let at = 0;
      proposals[name] = Array.from(draft.sizes, (digit) => flat.slice(at, (at += parseInt(digit, 36))));
    }
    return {ids: unpackNumbers(packed.ids), limit: packed.limit, proposals};
  };

  // The rounds in which a draft of up to k tokens makes the text. The draft "none" proposes nothing.
  // -> [{start: tokens before the round, drafted, accepted, rejected: 0 or 1, committed}]
  const rounds = (text, draft, k) => {
    const {ids, limit} = text, proposals = text.proposals[draft], found = [];
    for (let start = 1; start < ids.length; ) {
      const asked = Math.min(k, limit - start - 1), left = ids.length - start;
      const drafted = proposals ? proposals[start - 1].slice(0, asked) : [];
      let accepted = 0;
      while (accepted < Math.min(drafted.length, left) && drafted[accepted] === ids[start + accepted]) accepted++;
      const ended = accepted === left; // the end token was drafted, so nothing follows it
      const committed = ended ? accepted : accepted + 1;
      found.push({start, drafted, accepted, rejected: Number(!ended && accepted < drafted.length), committed});
      start += committed;
    }
    return found;
  };

  const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
  const counts = (found) => ({
    rounds: found.length,
    drafted: sum(found.map((round) => round.drafted.length)),
    accepted: sum(found.map((round) => round.accepted)),
    rejected: sum(found.map((round) => round.rejected)),
    tokens: sum(found.map((round) => round.committed)),
  });
  // The share of tested tokens that was accepted; null where none was tested.
  const acceptance = (all) => (all.accepted + all.rejected ? all.accepted / (all.accepted + all.rejected) : null);

  // Costs after a turn of the three dials. A preset has, for 0 to 12 drafted tokens, in decode steps of the target:
  // draft, the whole draft; pass, the target's pass over one token more; rest, what else a round takes.
  //
  // The machine's two dials come before them. A pass over w tokens starts its operations, reads all weights and computes
  // w times: start + read + w * compute, shares of a step of the preset. Twice the bandwidth halves the reading. A
  // measured pass changes as this sum does, a draft as a step does; a lookup and the rest of a round stay what they are.
  // Where several users share a step, it reads the weights once and computes for each of them; a lookup is made for each.
  const MEASURED = {bandwidth: 1, arithmetic: 1, users: 1};
  const parts = ({start, read, compute}, width, {bandwidth, arithmetic, users}) =>
    ({start, read: read / bandwidth, compute: (users * width * compute) / arithmetic});
  const longer = (machine, width, dials) => // how much longer such a pass takes than as it was measured
    sum(Object.values(parts(machine, width, dials))) / sum(Object.values(parts(machine, width, MEASURED)));
  // -> the costs, now in steps of the turned machine, and its step in ms.
  const turned = (preset, draft, dials) => {
    const own = preset.draft[draft] || preset.draft[preset.like[draft]] || preset.draft.model;
    const step = longer(preset.machine, 1, dials);
    const ownStep = preset.like[draft] === "lookup" ? step / dials.users : 1; // it runs no model
    const passes = preset.pass.map((steps, n) => (steps * longer(preset.machine, n + 1, dials)) / step);
    return {
      draft: Array.from({length: LENGTHS + 1}, (_, n) => (own ? (own[n] * dials.draft) / ownStep : 0)),
      pass: passes.map((steps) => passes[0] + (steps - passes[0]) * dials.pass),
      rest: preset.rest.map((steps) => (steps * dials.rest) / step),
      step_ms: preset.step_ms * step,
    };
  };
  // The name of the longest part of a pass.
  const limit = (machine, width, dials) => {
    const shares = parts(machine, 1 + (width - 1) * dials.pass, dials);
    return Object.keys(shares).reduce((most, name) => (shares[name] > shares[most] ? name : most));
  };
  // The phases of every round, in decode steps, and the time at which it ends; the first token is there at 0.
  const clock = (found, costs) => {
    let end = 0;
    return found.map((round) => {
      const n = round.drafted.length, phases = [costs.draft[n], costs.pass[n], costs.rest[n]];
      end += sum(phases);
      return {phases, end};
    });
  };
  // The baseline takes one step for every token after the first.
  const speedup = (found, costs) =>
    found.length ? counts(found).tokens / sum(found.map(({drafted: {length: n}}) => costs.draft[n] + costs.pass[n] + costs.rest[n])) : 1;
  const curve = (text, draft, costs) =>
    Array.from({length: LENGTHS + 1}, (_, k) => speedup(rounds(text, draft, k), costs));
  // The lowest k of the highest speedup.
  const best = (speedups) => speedups.indexOf(Math.max(...speedups));
  const book = (alpha, k) => 1 / (1 - alpha + alpha / k);

  return {LENGTHS, unpackNumbers, unpackText, rounds, counts, acceptance, turned, limit, clock, speedup, curve, best, book};
})();
if (typeof module !== "undefined") module.exports = replay;
