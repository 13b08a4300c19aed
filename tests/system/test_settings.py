"""A message names a setting in the words that its reader can type."""

import argparse
import shlex

from hypothesis import given
from hypothesis import strategies as st

from speclab.system.errors import UsageProblem, as_flags, reports_problems, setting

NAMES = st.from_regex(r"[a-z]{2,9}(_[a-z]{2,9}){0,2}", fullmatch=True)
VALUES = st.from_regex(r"[a-z0-9][a-z0-9:.]{0,9}", fullmatch=True) | st.integers(0, 9999)


@given(NAMES, VALUES)
def test_a_setting_reads_back_as_what_it_says(name, value):
    """As a flag it is what a parser reads, and as an argument it is what Python reads."""
    assert {**eval(f"dict({setting('x_' + name, value)})")} == {"x_" + name: value}
    parser = argparse.ArgumentParser()
    parser.add_argument(f"--{name.replace('_', '-')}", type=type(value))
    with as_flags():
        words = shlex.split(setting(name, value))
    assert vars(parser.parse_args(words)) == {name: value}


def test_a_script_and_python_get_their_own_words(capsys):
    """A script that calls another one is still a script, and after it Python calls again."""

    def fail() -> None:
        raise UsageProblem(f"try {setting('dtype', 'float32')} without {setting('no_chat')}")

    @reports_problems
    def script() -> int:
        return reports_problems(lambda: 0)() or fail()

    assert script() == 2
    assert capsys.readouterr().err == "error: try --dtype float32 without --no-chat\n"
    assert (setting("dtype", "float32"), setting("no_chat")) == ('dtype="float32"', "no_chat")
