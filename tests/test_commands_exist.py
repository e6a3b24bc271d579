"""Every row of the table of commands can be imported and shows its help."""

import pytest

from recollect import cli


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_shows_its_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([*name.split(), "--help"])
    assert stop.value.code == 0
    assert "usage" in capsys.readouterr().out
