"""Guards of exercise 4: the statistical check by itself tells the wrong rules apart; the exact ones would hide that."""

import pytest

from solutions import ex04_rejection
from tests.exercises import test_ex04_rejection as checks
from tests.exercises.conftest import with_wrong_answer
from tests.exercises.wrong.ex04_rejection import WRONG

RULES = {
    "resample from p": ["the correction is drawn from the target's row, not from the residual"],
    "accept where the argmax agrees": [
        "a draft is kept where it is the target's most probable token; that is right for greedy decoding alone"
    ],
    "u <= p / q": ["u <= p / q lets a token of target probability 0 pass at u = 0"],
    "bonus or correction by argmax or from q": [
        "the bonus token is the most probable one, it should be drawn",
        "the bonus token is drawn from the draft's last row",
        "the correction is the most probable token of the residual, it should be drawn",
        "the correction is the target's most probable token, it should be drawn from the residual",
        "the correction is drawn from the draft's row",
    ],
}


@pytest.mark.parametrize("mistake", [mistake for rule in RULES.values() for mistake in rule])
def test_the_statistic_notices(mistake):
    """And names the mistake: no exact check has to run for that."""
    learner = with_wrong_answer("ex04_rejection", *WRONG[mistake])
    with pytest.raises(pytest.fail.Exception) as failure:
        checks.test_sampled_rounds_follow_the_targets_law(learner)
    said = str(failure.value)
    assert said.endswith(f": {mistake}")
    assert "chi-square" in said or "has target probability 0" in said


def test_the_statistic_lets_the_right_rule_pass():
    checks.test_sampled_rounds_follow_the_targets_law(ex04_rejection)
