"""Write what `recollect COMMAND --help` prints; see recollect/cli/help.py."""

from recollect.cli import COMMANDS, render_help
from recollect.cli.help import HELP_TEXTS, help_file
from recollect.core.files import write_text

HELP_TEXTS.mkdir(exist_ok=True)
for name in COMMANDS:
    write_text(help_file(name), render_help(name))
for file in set(HELP_TEXTS.glob("*.txt")) - {help_file(name) for name in COMMANDS}:
    file.unlink()
