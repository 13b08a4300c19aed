"""Guards of exercise 8: every seeded bug is caught, each by a check of its own, whichever others are still there."""

import re

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from exercises import Todo, scenes
from exercises.scenes import TinyDrafter, TinyTarget, all_of_it, plain, rounds
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.core.sampling import Sampling
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests.exercises import ex08_bugs
from tests.exercises.answers import checks_of
from tests.exercises.ex08_bugs import BUGS, ROOT, STEM, module, red, seeded, states, the_exercise
from tests.exercises.test_ex08_bug_hunt import AS_IT_CAME, fingerprint, is_untouched, untouched
from tests.tiny_models import VOCAB, perturbed, tiny


@pytest.mark.parametrize("state", states())
def test_exactly_the_checks_of_the_seeded_bugs_are_red(state):
    """Single bugs: each is caught by its check alone. All but one: mending one turns its check green, no other."""
    assert len(BUGS) == 5
    bugs = states()[state]
    assert sorted(red(module(seeded(bugs)))) == sorted(bug.check for bug in bugs)


def test_the_exercise_is_the_solution_and_the_five_bugs():
    """Nothing else differs. A reader who has begun the hunt has a file of their own: nothing to compare then."""
    source = (ROOT / "exercises" / f"{STEM}.py").read_text(encoding="utf-8")
    if not is_untouched(module(source)):
        pytest.skip("exercises/ex08_bug_hunt.py is being worked on")
    assert source == the_exercise()


def test_an_untouched_exercise_is_todo():
    """Also with a comment more; with a change that does something it is under way."""
    source = the_exercise()
    for check in checks_of(STEM).values():
        with pytest.raises(Todo, match="ex08"):
            check(module(source))
    with pytest.raises(Todo):
        untouched(module(source.replace("# 4. Roll back.", "# 4. Roll back. Hm.")))
    untouched(module(seeded(BUGS[1:])))


def test_the_stored_fingerprint_is_the_exercises():
    """Where this fails after a change of the solution or of a bug: store the new one in test_ex08_bug_hunt.py."""
    assert fingerprint(the_exercise()) == AS_IT_CAME
    assert AS_IT_CAME not in {fingerprint(seeded(bugs)) for bugs in states().values()}


def test_the_hunt_needs_no_solutions(monkeypatch, tmp_path, capsys):
    """Without solutions/ a stub is todo, one under way is checked, the scenes run; the table says what it lacks."""
    source, under_way = the_exercise(), module(seeded(BUGS[1:]))
    monkeypatch.setattr(ex08_bugs, "ROOT", tmp_path)
    assert is_untouched(module(source))
    assert len(red(under_way)) == 4
    assert scenes.scenes(under_way)
    assert ex08_bugs.main([]) == EnvironmentProblem.exit_code
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert "solutions/ex08_bug_hunt.py" in said


def test_every_bug_can_be_seen_in_a_scene():
    """The chapter prints the scenes of the untouched file; each bug alone changes a scene of the solution."""
    chapter = (ROOT / "docs" / "chapters" / "08-bug-hunt.md").read_text(encoding="utf-8")
    printed = re.search(r"```text\n(A  .*?)\n```", chapter, re.DOTALL)
    assert printed
    assert printed[1] == scenes.scenes(module(the_exercise()))
    right = scenes.scenes(module(seeded(())))
    for bug in BUGS:
        letters = {
            block[0]
            for block, good in zip(by_letter(scenes.scenes(module(seeded((bug,))))), by_letter(right), strict=True)
            if block != good
        }
        assert len(letters) == 1, bug.name


def test_three_of_the_bugs_change_no_greedy_text():
    """What the chapter's answer says: A, D and E are invisible to a comparison of texts."""
    texts = {}
    for letter, bug in zip("ABCDE", BUGS, strict=True):
        learner = module(seeded((bug,)))
        found = rounds(learner, TinyTarget(all_of_it), TinyDrafter(all_of_it, wrong_at=4), 3, 30, eos=frozenset({9}))
        texts[letter] = tokens_of(found)
    right = plain(all_of_it, 30)
    right = right[: right.index(9) + 1]
    assert {letter for letter, text in texts.items() if text == right} == set("ADE")


def by_letter(text: str) -> list[str]:
    return re.split(r"\n(?=[A-E] )", text)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.6)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["model", "ngram"])
def test_the_mended_loop_is_the_labs(kind, sampling):
    """On transformers with real caches, draw for draw: `check.py 8 --run` drives the lab's pair with it."""
    target = tiny("llama")
    prompt = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(4))

    def decoded(decode, eos):
        drafter = ModelDrafter(CachedModel(perturbed(target, 0.1))) if kind == "model" else NgramDrafter(3, 1)
        rounds = decode(CachedModel(target), drafter, prompt, 4, DecodeSettings(40, sampling, eos, seed=3))
        return [round_._replace(n_after_eos=0) for round_ in rounds]  # the exercise does not ask for this count

    mended = module(seeded(())).decode
    right = decoded(speculative_decode, frozenset())
    assert decoded(mended, frozenset()) == right
    assert any(r.n_accepted == r.n_drafted > 0 for r in right)
    assert any(r.n_rejected for r in right)
    end = frozenset([next(r for r in right if r.n_accepted).tokens[0]])
    assert decoded(mended, end) == decoded(speculative_decode, end)
