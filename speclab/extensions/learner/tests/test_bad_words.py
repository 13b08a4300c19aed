"""Words that check.py cannot use end in one line that names the cause and what to do, before anything is checked."""

import shlex

import pytest

import check
from speclab.extensions.learner import checks

ROWS = [
    ("99", ("99", "0, 1, 2", "--help")),
    ("''", ("''", "--help")),
    ("2,99", ("2,99", "choose from", "2,3")),
    ("--hint", ("--hint needs one exercise", "check.py 3 --hint")),
    ("3 --hint 4", ("--hint", "4")),
    ("3 99", ("99", "--help")),
    ("--impl nonsense", ("nonsense", "solutions")),
    ("2 --hint --run compare.py", ("--hint needs one exercise, and no --run",)),
    ("--run", ("give one of the lab's scripts", "compare.py")),
    ("--run ../evil.py", ("../evil.py", "give one of the lab's scripts")),
    ("--run compare.py --quick --full", ("--quick", "--full")),
    ("0 --run optimized_speculative.py", ("exercise 0", "choose from 2")),
    ("17 --run compare.py", ("exercise 17 has no part in this run", "choose from 2")),
    ("2,8 --run optimized_speculative.py", ("exercises 8 and any other decide the same",)),
    ("4,10 --run compare.py", ("exercises 4 and 10 decide the same", "leave one of them out")),
    ("2 --run optimized_speculative.py --draft tree:2x2:model", ("your code knows chains only", "leave it out")),
]


@pytest.mark.parametrize(("words", "said"), ROWS, ids=lambda value: ascii(value)[1:50])
def test_bad_words_are_one_line(words, said, monkeypatch, capsys):
    monkeypatch.setattr(checks, "run_checks", lambda *_: pytest.fail("checks were run"))
    code = check.main(shlex.split(words))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    for word in said:
        assert word in err
