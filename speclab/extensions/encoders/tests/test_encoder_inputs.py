"""Bad inputs with an encoder-decoder end in one line, as those of tests/cli/bad_inputs.py do."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import T5Config, T5ForConditionalGeneration

from speclab.drafts import registry
from tests.cli.bad_inputs import B, Row, S
from tests.cli.test_bad_inputs import check_row

UNKNOWN = "{} does not know encoder-decoder models, and {} is one"
ROWS = [
    Row(f"{B} --prompt x --target no-start", 3, ("t5 is an encoder-decoder", "names no decoder_start_token_id")),
    *(
        Row(f"{S} --target encoder-decoder --draft {kind}", 2, (UNKNOWN.format(f"the draft {kind}", "t5"),))
        for kind in ["feature", "block", "hybrid", "merge:ngram+model", "tree:2x1:model", "tree:best:model"]
        if kind.partition(":")[0] in registry.kinds()
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pair_folder) -> Path:
    """A model with an encoder, one that names no start of the decoder's text, and the tiny pair."""
    made = tmp_path_factory.mktemp("encoders")
    for role in ("target", "draft"):
        (made / role).symlink_to(pair_folder / role)
    vocab_size = json.loads((made / "target" / "config.json").read_text())["vocab_size"]
    t5 = {"vocab_size": vocab_size, "d_model": 16, "d_kv": 16, "d_ff": 16, "num_layers": 1, "num_heads": 1}
    for name, start in {"encoder-decoder": {"decoder_start_token_id": 3}, "no-start": {}}.items():
        T5ForConditionalGeneration(T5Config(**t5, **start)).save_pretrained(made / name)
        for file in (made / "target").glob("tokenizer*"):
            shutil.copy(file, made / name)
    return made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ascii(row.command)[1:70])
def test_bad_input_is_one_line(folder, capfd, monkeypatch, row: Row):
    check_row(folder, capfd, monkeypatch, row)
