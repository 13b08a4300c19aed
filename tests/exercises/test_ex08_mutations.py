"""Guards of exercise 8: every seeded bug is caught, each by a check of its own, whichever others are still there."""

import re
from types import ModuleType

import pytest

from exercises import Todo, scenes
from tests.exercises.answers import ROOT, chapter, checks_of, copy_of, failures, mistakes, with_mistakes
from tests.exercises.test_ex08_bug_hunt import AS_IT_CAME, fingerprint, is_untouched, untouched

STEM = "ex08_bug_hunt"
BUGS = dict(zip(mistakes(STEM), [*checks_of(STEM)][:5], strict=True))  # -> the check that it turns red
STATES = {  # nothing seeded, each bug alone, each bug mended while the others stay
    "none": (),
    **{bug: (bug,) for bug in BUGS},
    **{f"all but: {bug}": tuple(other for other in BUGS if other != bug) for bug in BUGS},
}


def seeded(bugs: tuple[str, ...]) -> ModuleType:
    """The solution with these bugs in it."""
    return copy_of(STEM, with_mistakes(STEM, *bugs))


def the_exercise() -> str:
    """What exercises/ex08_bug_hunt.py looks like before anybody has touched it."""
    return with_mistakes(STEM, *BUGS).replace('"""Solution 8: bug hunt.', '"""Exercise 8: bug hunt.')


def red(learner: ModuleType) -> list[str]:
    """The checks that fail."""
    return [name for name, _ in failures(learner, STEM)]


@pytest.mark.parametrize("state", STATES)
def test_exactly_the_checks_of_the_seeded_bugs_are_red(state):
    """Single bugs: each is caught by its check alone. All but one: mending one turns its check green, no other."""
    assert sorted(red(seeded(STATES[state]))) == sorted(BUGS[bug] for bug in STATES[state])


def test_the_exercise_is_the_solution_and_the_five_bugs():
    """Nothing else differs. A reader who has begun the hunt has a file of their own: nothing to compare then."""
    source = (ROOT / "exercises" / f"{STEM}.py").read_text(encoding="utf-8")
    if not is_untouched(copy_of(STEM, source)):
        pytest.skip("exercises/ex08_bug_hunt.py is being worked on")
    assert source == the_exercise()


def test_an_untouched_exercise_is_todo():
    """Also with a comment more; with a change that does something it is under way. Its fingerprint is stored in
    test_ex08_bug_hunt.py: where this fails after a change of the solution or of a bug, store the new one."""
    source = the_exercise()
    assert fingerprint(source) == AS_IT_CAME
    assert AS_IT_CAME not in {fingerprint(with_mistakes(STEM, *bugs)) for bugs in STATES.values()}
    for check in checks_of(STEM).values():
        with pytest.raises(Todo, match="ex08"):
            check(copy_of(STEM, source))
    with pytest.raises(Todo):
        untouched(copy_of(STEM, source.replace("# 4. Roll back.", "# 4. Roll back. Hm.")))
    untouched(seeded((*BUGS,)[1:]))


def test_every_bug_can_be_seen_in_a_scene():
    """The chapter prints the scenes of the untouched file; each bug alone changes a scene of the solution."""
    printed = re.search(r"```text\n(A  .*?)\n```", chapter(STEM), re.DOTALL)
    assert printed[1] == scenes.scenes(copy_of(STEM, the_exercise()))
    right = by_letter(scenes.scenes(seeded(())))
    for bug in BUGS:
        found = by_letter(scenes.scenes(seeded((bug,))))
        assert len({block[0] for block, good in zip(found, right, strict=True) if block != good}) == 1, bug


def by_letter(text: str) -> list[str]:
    return re.split(r"\n(?=[A-E] )", text)
