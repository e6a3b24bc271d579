"""The command line: a table of commands. Each is a dataclass with a ``run`` method, imported only when it runs."""

import os
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from recollect.cli.parser import import_object, parse
from recollect.core.errors import UserError


@dataclass(frozen=True)
class Command:
    """Dataclass of a command as ``module:Class``, one line of help, and the name to list (default: the command's)."""

    place: str
    help: str
    listed: str = ""

    @property
    def kind(self) -> type[Any]:
        """The dataclass; accessing it imports its module."""
        return import_object(self.place)


COMMANDS: dict[str, Command] = {
    name: Command(f"recollect.cli.{place}", help)
    for name, place, help in (
        ("train", "train:Train", "train or post-train a dual encoder with a recipe"),
        ("train reco", "train_reco:TrainReco", "train a fusion that reads an index, on a frozen model"),
        ("train starter", "train_starter:TrainStarter", "train the text head of the default model"),
        ("evaluate zero-shot", "evaluate:ZeroShot", "classify images using only class names"),
        ("evaluate few-shot", "evaluate:FewShot", "classify images from a few labeled examples, comparing methods"),
        ("evaluate retrieval", "evaluate:Retrieval", "retrieve images by caption and captions by image"),
        ("evaluate entities", "evaluate:Entities", "recognize entities, seen and unseen in training"),
        ("evaluate multilabel", "evaluate:Multilabel", "classify images with several labels (mean average precision)"),
        ("evaluate probe", "evaluate:Probe", "fit a logistic regression on frozen image embeddings"),
        ("search", "search:Search", "search an index by words, pictures or both"),
        ("caption", "caption:Caption", "caption the pictures of an index or source with a model"),
        ("classify", "classify:Classify", "teach a classifier from examples or names, save it, apply it"),
        ("embed", "embed:Embed", "save embeddings of labeled data as Parquet or .npy"),
        ("export", "export:Export", "export a model to ONNX, with its index and classifier"),
        ("index build", "index:Build", "index the pictures of a folder, table or hub dataset"),
        ("index add", "index:Add", "add the pictures of another source, or update a source"),
        ("index remove", "index:Remove", "preview and remove pictures; files are not touched"),
        ("index restore", "index:Restore", "restore removed pictures"),
        ("index watch", "index:Watch", "keep an index up to date with a folder"),
        ("index info", "index:Info", "show the contents of an index"),
        ("index verify", "index:Verify", "check every file against its checksum"),
        ("index duplicates", "index:FindDuplicates", "find identical files, near-identical and similar pictures"),
        ("index export", "index:ExportIndex", "write an index to Parquet, CSV or COCO JSON"),
        ("index accelerate", "index:Accelerate", "speed up searches of a large index"),
        ("index compact", "index:Compact", "free the space of deleted rows and old versions"),
        ("serve", "serve:Serve", "search, browse and label a folder or an index in the browser"),
        ("demo", "demo:Demo", "search, classify and sort real pictures, and show the result on a page"),
        ("completion", "completion:Completion", "print the completion script for bash, zsh or fish"),
    )
}


def usage(prog: str, commands: Mapping[str, Command], group: str = "") -> str:
    """Return the list of all commands, or of the commands in a group."""
    chosen = {name: command for name, command in commands.items() if not group or name.split()[0] == group}
    width = max(len(command.listed or name) for name, command in chosen.items())
    rows = "\n".join(f"  {command.listed or name:<{width}}  {command.help}" for name, command in chosen.items())
    return (
        f"usage: {prog} {f'{group} ' if group else ''}COMMAND [options]\n\ncommands:\n{rows}\n\n"
        f"`{prog} COMMAND --help` lists a command's options. --debug shows the traceback of an error.\n"
    )


def choose(prog: str, commands: Mapping[str, Command], words: Sequence[str]) -> tuple[str, list[str]]:
    """Split ``words`` into the longest matching command name and the remaining arguments.

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
    """Run a `recollect` command and return the exit status (see `run`)."""
    return run("recollect", COMMANDS, list(sys.argv[1:] if argv is None else argv))


def run(prog: str, commands: Mapping[str, Command], words: list[str]) -> int:
    """Run a command and return the exit status: 0, 1 for a bug, 2 for bad input, 130 if interrupted."""
    debug = "--debug" in words
    try:
        _dispatch(prog, commands, [word for word in words if word != "--debug"])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has exited (``| head``)
        with open(os.devnull, "w") as nowhere:  # else Python reports at exit that it cannot flush
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):  # closed, or not a file
                    os.dup2(nowhere.fileno(), stream.fileno())
        return 0
    except (UserError, OSError) as error:
        if debug:
            traceback.print_exc()
        _print_error(str(error))
        return 2
    except Exception as error:
        if debug:
            traceback.print_exc()
        else:
            _print_error(f"{type(error).__name__}: {error} (probably a bug; --debug shows the traceback)")
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
        warnings.filterwarnings("ignore", message=".*decompression bomb")  # we print our own, with the file name
        name, rest = choose(prog, commands, words)
        kind, full_name = commands[name].kind, f"{prog} {name}".strip()
        command = kind.parse(rest, full_name) if hasattr(kind, "parse") else parse(kind, rest, full_name)
        command.run()
    print(end="", flush=True)  # report write errors here instead of at interpreter exit


def _print_error(text: str) -> None:
    """Print one line, with control characters in file or row names escaped."""
    from recollect.core.progress import escape_control

    print(f"error: {escape_control(' '.join(text.split()))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
