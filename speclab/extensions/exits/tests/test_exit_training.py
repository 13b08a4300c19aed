"""`python -m training.heads exit`: its flags, what it refuses, and what its scores count."""

import pytest

from speclab.extensions.exits.drafter import ExitDrafter
from speclab.extensions.exits.tests.adapters import trained_exit
from tests.training.test_blocks import check_refused, check_score
from training import heads


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("exit", "required: --exit-layer"),
        ("exit --exit-layer 12", "the target has 12 layers; give a number from 1 to 11"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(words, message, capsys, tmp_path):
    check_refused(words, message, capsys, tmp_path)


def test_it_is_written_into_a_folder_of_its_layer():
    args = heads.parse(["exit", "--exit-layer", "3"])
    assert args.out.as_posix() == "build/exit-3"


def test_an_adapter_of_another_layer_is_not_trained_further(tmp_path, capsys):
    words = ["exit", "--exit-layer", "4", "--init", "models/lab-pair/exit", "--out", str(tmp_path)]
    assert heads.main(words) == 2
    assert "layer 2; give --exit-layer 2, or leave --init out" in capsys.readouterr().err


def test_a_score_replays_the_rounds_of_the_loop():
    model, adapter, texts = trained_exit()
    check_score(model, adapter, texts, ExitDrafter(adapter))
