"""``recollect completion``: shell completion of commands, options and their values."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from recollect.cli.parser import Arg, build_parser


@dataclass(frozen=True)
class Completion:
    """Print the shell's completion script for commands, options, option values and files.

    `recollect completion bash > ~/.local/share/bash-completion/completions/recollect`

    `recollect completion zsh > ~/.zfunc/_recollect` (any folder in $fpath)

    `recollect completion fish > ~/.config/fish/completions/recollect.fish`
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], Arg(place="SHELL")]
    """The shell: bash, zsh or fish."""

    def run(self) -> None:
        """Print the script."""
        import shtab

        from recollect.cli import COMMANDS

        commands = {name: (command.kind, command.help) for name, command in COMMANDS.items()}
        print(shtab.complete(_command_tree("recollect", commands), self.shell))


def _command_tree(prog: str, commands: Mapping[str, tuple[type[Any], str]]) -> argparse.ArgumentParser:
    """Build a parser with a subparser per command.

    Args:
        prog: name of the program.
        commands: dataclass and one-line help of each command, by its full name.
    """
    root = argparse.ArgumentParser(prog)
    below = {"": root.add_subparsers()}
    groups = {name.split()[0] for name in commands if " " in name}
    for name, (kind, text) in sorted(commands.items()):
        group, _, last = name.rpartition(" ")
        if group and group not in below:
            below[group] = below[""].add_parser(group, help=f"{group} commands").add_subparsers()
        own = build_parser(kind, f"{prog} {name}")
        if name in groups:  # `train` is a command and a group: `train RECIPE` and `train reco`
            below[name] = _recipes_below(below[""].add_parser(name, help=text), own)
        else:
            _complete_files(below[group].add_parser(last, help=text, parents=[own], add_help=False))
    return root


def _recipes_below(parser: argparse.ArgumentParser, own: argparse.ArgumentParser) -> Any:
    """Add recipes as subcommands of `train`, so their names and options are completed."""
    from recollect.training.recipes import RECIPES

    below = parser.add_subparsers()
    for recipe in RECIPES.data:  # without plugins, which are slow to import
        below.add_parser(recipe, help="recipe", parents=[own], add_help=False)
    return below


def _complete_files(parser: argparse.ArgumentParser) -> None:
    from shtab import FILE

    for action in parser._actions:
        if action.metavar in {"PATH", "FILE"} or (not action.option_strings and action.choices is None):
            action.complete = FILE  # type: ignore[attr-defined]
