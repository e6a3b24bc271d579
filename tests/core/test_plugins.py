"""Tables that plugins extend."""

from importlib.metadata import EntryPoint

import pytest

from recollect.core.errors import UserError
from recollect.core.plugins import Table


def test_the_error_names_a_plugin_that_cannot_be_imported(monkeypatch):
    broken = EntryPoint("methods", "a_package_that_is_gone:METHODS", "recollect.plugins")
    monkeypatch.setattr("recollect.core.plugins.entry_points", lambda group, name: [broken])
    with pytest.raises(UserError, match="a_package_that_is_gone"):
        list(Table("methods"))
