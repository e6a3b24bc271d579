"""``recollect completion``: what a shell needs to complete commands, options and their values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from recollect.cli.help import HELP_TEXTS

_OPTION = re.compile(r"(?:^|[│ |] )(?:-\w, )?(--[a-z][\w.-]*)(?:, --no-[\w.-]+)?(?: \[?\{([^}]*)\})?", re.MULTILINE)
"""An option in a help text, which stands in a column of its own, and the values that it may have."""

_USAGE = re.compile(r"usage: recollect ((?:[a-z][a-z-]* )+)")

_BASH = """\
# Completion of recollect. bash: source this file in ~/.bashrc; zsh: in ~/.zshrc, behind compinit.
if [ -n "${{ZSH_VERSION-}}" ]; then autoload -U +X bashcompinit && bashcompinit; fi
_recollect() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local first="${{COMP_WORDS[1]}}" second="${{COMP_WORDS[2]-}}" commands="" options="" values=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{first} --help --version" -- "$word")); return
  fi
  case "$first" in
{groups}
  esac
  if [ "$COMP_CWORD" -eq 2 ] && [ -n "$commands" ] && [ "${{word#-}}" = "$word" ]; then
    COMPREPLY=($(compgen -W "$commands" -- "$word")); return
  fi
  case "$first $second" in
{pairs}
  *) case "$first" in
{singles}
     esac ;;
  esac
  if [ "${{word#-}}" != "$word" ]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  elif [ -n "$values" ]; then
    COMPREPLY=($(compgen -W "$values" -- "$word"))
  fi
}}
complete -o default -o bashdefault -F _recollect recollect
"""


@dataclass(frozen=True)
class Completion:
    """Print what makes a shell complete commands, options and the values that an option may have.

    bash and zsh: keep it in a file and read that in ~/.bashrc or ~/.zshrc. fish reads
    ~/.config/fish/completions/recollect.fish by itself.
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """Which shell."""

    def run(self) -> None:
        """Ask every command for its options, and print."""
        options = {name: options_of(text) for name, text in _kept().items()}
        print((fish_script if self.shell == "fish" else bash_script)(options), end="")


def _kept() -> dict[str, str]:
    """The help of every command by its name, which stands first in it."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(HELP_TEXTS.glob("*.txt"))]
    return {found[1].strip(): text for text in texts if (found := _USAGE.match(text))}


def options_of(text: str) -> dict[str, list[str]]:
    """Every option of a command with the values it may have (none where anything goes), from its help."""
    found: dict[str, list[str]] = {}
    for option, values in _OPTION.findall(text):
        given = [value.strip() for value in values.split(",") if value.strip() not in {"", "None"}]
        found[option] = found.get(option) or given
    return found


def _recipes() -> str:
    from recollect.training.recipes import RECIPES

    return " ".join(RECIPES)


def _first_words() -> dict[str, str]:
    """What may follow a command that takes one of a list, beside the commands of its group."""
    return {"train": _recipes(), "completion": "bash zsh fish"}


def _groups(names: Mapping[str, object]) -> dict[str, str]:
    """For each first word: what may come second."""
    groups = dict(_first_words())
    for name in names:
        first, _, second = name.partition(" ")
        if second:
            groups[first] = f"{groups.get(first, '')} {second}".strip()
    return groups


def bash_script(options: Mapping[str, Mapping[str, list[str]]]) -> str:
    """Completion for bash, and for zsh through its own bashcompinit.

    Args:
        options: of each command, as `options_of` gives them.
    """

    def branch(name: str) -> str:
        values = " ".join(f"{option}) values='{' '.join(some)}' ;;" for option, some in options[name].items() if some)
        return f"""  "{name}") options="{" ".join(options[name])}"; case "$before" in {values} esac ;;"""

    pairs, singles = ([name for name in options if (" " in name) is pair] for pair in (True, False))
    return _BASH.format(
        first=" ".join(dict.fromkeys(name.split()[0] for name in options)),
        groups="\n".join(f'  {first}) commands="{words}" ;;' for first, words in _groups(options).items()),
        pairs="\n".join(map(branch, pairs)),
        singles="\n".join(map(branch, singles)),
    )


def fish_script(options: Mapping[str, Mapping[str, list[str]]]) -> str:
    """Completion for fish.

    Args:
        options: of each command, as `options_of` gives them.
    """
    groups, firsts = _groups(options), dict.fromkeys(name.split()[0] for name in options)
    lines = ["# Completion of recollect, for ~/.config/fish/completions/recollect.fish"]
    lines += [f"complete -c recollect -n __fish_use_subcommand -a {first}" for first in firsts]
    for first, words in groups.items():
        seen = f"__fish_seen_subcommand_from {first}; and not __fish_seen_subcommand_from {words}"
        lines.append(f"complete -c recollect -n '{seen}' -a '{words}'")
    for name, each in options.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        for option, values in each.items():
            given = f" -x -a '{' '.join(values)}'" if values else ""
            lines.append(f"complete -c recollect -n '{seen}' -l {option[2:]}{given}")
    return "\n".join(lines) + "\n"
