"""The command line: a table of commands, each a dataclass with a ``run`` method that is imported when chosen."""

import os
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from recollect.cli.parser import named, parse
from recollect.core.errors import UserError


@dataclass(frozen=True)
class Command:
    """Where a command's dataclass is, ``module:Class``, one line of help, and how to list it (default: its name)."""

    place: str
    help: str
    listed: str = ""

    @property
    def kind(self) -> type[Any]:
        """The dataclass, imported now."""
        return named(self.place)


COMMANDS: dict[str, Command] = {
    name: Command(f"recollect.cli.{place}", help)
    for name, place, help in (
        ("train", "train:Train", "train or post-train a dual encoder by a recipe"),
        ("train reco", "train_reco:TrainReco", "teach a frozen model to read an index"),
        ("train starter", "train_starter:TrainStarter", "train the text head of the default model"),
        ("evaluate zero-shot", "evaluate:ZeroShot", "classify by class names alone"),
        ("evaluate few-shot", "evaluate:FewShot", "classify with a few labeled images, every method and draw"),
        ("evaluate retrieval", "evaluate:Retrieval", "search captioned images both ways"),
        ("evaluate entities", "evaluate:Entities", "name pictures among all entities, seen and unseen"),
        ("evaluate multilabel", "evaluate:Multilabel", "pictures of several classes: mean average precision"),
        ("evaluate probe", "evaluate:Probe", "logistic regression on frozen image embeddings"),
        ("search", "search:Search", "pictures of an index by words, pictures or both"),
        ("caption", "caption:Caption", "describe the pictures of an index, once, by a model"),
        ("classify", "classify:Classify", "teach a classifier by examples or names, keep it, apply it"),
        ("embed", "embed:Embed", "the embeddings of labeled sets, as Parquet or .npy"),
        ("export", "export:Export", "a model as ONNX files, with its index and its classifier"),
        ("index build", "index:Build", "index the pictures of a folder, table or hub id"),
        ("index add", "index:Add", "add the pictures of another source, or update from one"),
        ("index remove", "index:Remove", "preview and remove pictures; no file is touched"),
        ("index restore", "index:Restore", "bring removed pictures back"),
        ("index watch", "index:Watch", "keep an index up to date with a folder"),
        ("index info", "index:Info", "what an index holds"),
        ("index verify", "index:Verify", "compare every file with its checksum"),
        ("index duplicates", "index:FindDuplicates", "identical files, near-identical and similar pictures"),
        ("index export", "index:ExportIndex", "write an index to Parquet, CSV or COCO captions"),
        ("index accelerate", "index:Accelerate", "make searches of a large index fast"),
        ("index compact", "index:Compact", "free the space of deleted rows and old versions"),
        ("serve", "serve:Serve", "a folder of pictures or an index in the browser: search, browse, label"),
        ("demo", "demo:Demo", "find, name and sort real pictures: one page to look at"),
        ("completion", "completion:Completion", "what bash, zsh or fish needs to complete commands and options"),
    )
}


def usage(prog: str, commands: Mapping[str, Command], group: str = "") -> str:
    """All commands, or those of one group."""
    chosen = {name: command for name, command in commands.items() if not group or name.split()[0] == group}
    width = max(len(command.listed or name) for name, command in chosen.items())
    rows = "\n".join(f"  {command.listed or name:<{width}}  {command.help}" for name, command in chosen.items())
    return (
        f"usage: {prog} {f'{group} ' if group else ''}COMMAND [options]\n\ncommands:\n{rows}\n\n"
        f"`{prog} COMMAND --help` lists a command's options. --debug shows the traceback of an error.\n"
    )


def choose(prog: str, commands: Mapping[str, Command], words: Sequence[str]) -> tuple[str, list[str]]:
    """The command that ``words`` begin with, longest name first, and the words that are left for it.

    Raises:
        UserError: no such command.
    """
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in commands and words:
            return name, list(words[length:])
    if "" in commands:
        return "", list(words)
    groups = {name.split()[0] for name in commands if " " in name}
    wanted = " ".join(words[: 2 if words[0] in groups else 1])
    known = [*commands, *groups]
    last = {name.split()[-1]: name for name in commands}
    near = get_close_matches(wanted, known, 1) or [last[name] for name in get_close_matches(words[0], last, 1)]
    guess = f"Did you mean `{prog} {near[0]}`?" if near else f"`{prog}` lists the commands."
    raise UserError(f"{prog} {wanted}: no such command. {guess}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of `recollect`; the exit status is 0, 2 for bad input, 130 when interrupted."""
    return run("recollect", COMMANDS, list(sys.argv[1:] if argv is None else argv))


def run(prog: str, commands: Mapping[str, Command], words: list[str]) -> int:
    """Run one of ``commands``; the exit status is 0, 2 for bad input, 130 when interrupted."""
    debug = "--debug" in words
    try:
        _dispatch(prog, commands, [word for word in words if word != "--debug"])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has gone (``| head``)
        with open(os.devnull, "w") as nowhere:  # else Python complains at its end that it cannot write
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):  # closed, or no file
                    os.dup2(nowhere.fileno(), stream.fileno())
        return 0
    except (UserError, OSError) as error:
        if debug:
            traceback.print_exc()
        _say_error(str(error))
        return 2
    except Exception as error:
        if debug:
            traceback.print_exc()
        else:
            _say_error(f"{type(error).__name__}: {error} (a bug? --debug shows where)")
        return 1
    return 0


def _dispatch(prog: str, commands: Mapping[str, Command], words: list[str]) -> None:
    groups = {name.split()[0] for name in commands if " " in name}
    if words[:1] in (["-h"], ["--help"], ["help"]) or not (words or "" in commands):
        print(usage(prog, commands), end="")
    elif words and words[0] in groups - {*commands} and words[1:] in ([], ["-h"], ["--help"]):
        print(usage(prog, commands, words[0]), end="")
    elif words[:1] == ["--version"]:
        from recollect import __version__

        print(f"{prog} {__version__}")
    else:
        warnings.filterwarnings("ignore", message=".*decompression bomb")  # Pillow's; our own line names the picture
        name, rest = choose(prog, commands, words)
        kind, full_name = commands[name].kind, f"{prog} {name}".strip()
        command = kind.parse(rest, full_name) if hasattr(kind, "parse") else parse(kind, rest, full_name)
        command.run()
    print(end="", flush=True)  # what cannot be written is an error here, not at Python's end


def _say_error(text: str) -> None:
    """One line; names of files and rows in it are other people's, and an escape in one must not reach a terminal."""
    from recollect.core.progress import inert

    print(f"error: {inert(' '.join(text.split()))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
