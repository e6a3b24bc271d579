"""What all studies share in tests: made worlds of which a tokenizer reads a few texts alone."""

import pytest

from recollect.data.sources import derived


@pytest.fixture(scope="module", autouse=True)
def few_texts():
    """Every word of a made world is known beforehand, and how often it is said decides no table's form."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derived, "_MADE_TEXTS", 300)
        yield
