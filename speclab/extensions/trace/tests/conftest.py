"""What the tests of traces share."""

import pytest

from speclab.models import loading


@pytest.fixture(scope="session")
def tokenizer(pair_folder):
    return loading.load_tokenizer(str(pair_folder / "target"))
