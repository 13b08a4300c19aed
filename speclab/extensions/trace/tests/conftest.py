"""What the tests of traces share."""

import pytest

from speclab.models import loading


@pytest.fixture(scope="session")
def tokenizer(pair_folder):
    return loading.load_tokenizer(str(pair_folder / "target"))


@pytest.fixture
def models(pair_folder) -> list[str]:
    """The flags of a short decoding with the tiny pair."""
    pair = ["--target", str(pair_folder / "target"), "--draft", str(pair_folder / "draft")]
    return [*pair, "--threads", "1", "--engine", "eager", "--max-new-tokens", "24"]
