"""The command line: a table of commands, each a dataclass with a ``run`` method that is imported when chosen."""

import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest.mock import patch

from recollect.cli.help import HELP_WIDTH, kept_help
from recollect.core.errors import UserError
from recollect.core.given import option_of, options_given


@dataclass(frozen=True)
class Command:
    """Where a command lives: ``recollect.cli.<module>``, its dataclass, and one line of help."""

    module: str
    name: str
    help: str


COMMANDS: dict[str, Command] = {
    "train": Command("train", "Train", "train or post-train a dual encoder by a recipe"),
    "train reco": Command("train_reco", "TrainReco", "teach a frozen model to read a memory"),
    "train ra-clip": Command("train_ra_clip", "TrainRaClip", "train a dual encoder whose images read a memory"),
    "evaluate zero-shot": Command("evaluate", "ZeroShot", "classify by class names alone"),
    "evaluate few-shot": Command(
        "evaluate_few_shot", "FewShot", "classify with a few labelled images, every method and draw"
    ),
    "evaluate retrieval": Command("evaluate_retrieval", "Retrieval", "search captioned images both ways"),
    "evaluate entities": Command("evaluate_entities", "Entities", "name pictures among all entities, seen and unseen"),
    "evaluate several": Command("evaluate_several", "Several", "pictures of several classes: mean average precision"),
    "evaluate probe": Command("evaluate", "Probe", "logistic regression on frozen image embeddings"),
    "analyse span": Command("analyse", "Span", "how much of the image embeddings no caption speaks of"),
    "analyse attention": Command("analyse_texts", "Attention", "where a text's embedding looks, with each prefix"),
    "analyse embeddings": Command("analyse_texts", "Embeddings", "t-SNE maps of class prompts, captions and images"),
    "search": Command("search", "Search", "images of a memory by words, pictures or both"),
    "caption": Command("caption", "Caption", "describe the images of a memory, once, by a model"),
    "classify": Command("classify", "Classify", "teach a classifier by examples or names, keep it, apply it"),
    "embed": Command("embed", "Embed", "the embeddings of labelled sets, as Parquet or .npy"),
    "export": Command("export", "Export", "a model as ONNX files, with its memory and its classifier"),
    "memory build": Command("memory", "Build", "embed the pairs of a source and keep them"),
    "memory add": Command("memory", "Add", "add the pairs of another source to a memory"),
    "memory remove": Command("memory", "Remove", "remove rows, or near-duplicates of test images, from a memory"),
    "memory search": Command("search", "Search", "the same as `recollect search`"),
    "memory retrieve": Command("memory_retrieve", "Retrieve", "pairs that fit class names, to train on (REACT)"),
    "memory info": Command("memory_upkeep", "Info", "what a memory holds, and whether all of it is sound"),
    "memory watch": Command("memory", "Watch", "keep a memory in step with a folder of pictures"),
    "memory export": Command("memory_upkeep", "ExportMemory", "write a memory to Parquet, with a map and neighbours"),
    "memory duplicates": Command(
        "memory_upkeep", "FindDuplicates", "the same files, pictures encoded again, similar shots"
    ),
    "memory index": Command("memory_upkeep", "Index", "make searches fast, at a recall that is measured"),
    "memory optimize": Command("memory_upkeep", "Optimize", "join small files, and free what old versions take up"),
    "serve": Command("serve", "Serve", "a memory in the browser: search, look, teach classes by clicks"),
    "completion": Command("completion", "Completion", "what bash, zsh or fish needs to complete commands and options"),
}


def _usage(group: str = "") -> str:
    """All commands, or those of one group."""
    chosen = {name: command for name, command in COMMANDS.items() if not group or name.split()[0] == group}
    width = max(map(len, chosen))
    rows = "\n".join(f"  {name:<{width}}  {command.help}" for name, command in chosen.items())
    return (
        f"usage: recollect {f'{group} ' if group else ''}COMMAND [options]\n\ncommands:\n{rows}\n\n"
        "`recollect COMMAND --help` lists a command's options. --debug shows the traceback of an error.\n"
    )


def _is_group(word: str) -> bool:
    return any(name.startswith(f"{word} ") for name in COMMANDS)


def _choose(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command that ``words`` begin with, longest name first, and the words that are left for it."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return name, list(words[length:])
    wanted = words[0]
    group = [name for name in COMMANDS if name.startswith(f"{wanted} ")]
    if group:
        raise UserError(f"recollect {' '.join(words[:2])}: no such command. Choose one of: {', '.join(group)}.")
    names = ", ".join(dict.fromkeys(name.split()[0] for name in COMMANDS))
    raise UserError(f"recollect {wanted}: no such command. Choose one of: {names}.")


def _refuse_repeats(words: Sequence[str]) -> None:
    """An option that is given twice would silently lose what was given first.

    Raises:
        UserError: naming the option.
    """
    # --batch_size is --batch-size to tyro.
    options = [option_of(word) for word in words if word.startswith("--") and word != "--"]
    if twice := next((option for option in options if options.count(option) > 1), None):
        name = f"--{twice.replace('_', '-')}"
        raise UserError(f"{name}: given twice. Give several values behind one: {name} FIRST SECOND.")


def parse(name: str, words: list[str]) -> Any:
    """The command ``name`` with the options that ``words`` set.

    Raises:
        UserError: a wrong option that the command itself finds.
        SystemExit: help was asked for, or an option is wrong.
    """
    from recollect.cli.parsing import parse_options

    command = COMMANDS[name]
    options = getattr(import_module(f"recollect.cli.{command.module}"), command.name)
    prog = f"recollect {name}"
    return options.parse(words, prog) if hasattr(options, "parse") else parse_options(options, words, prog)


def render_help(name: str) -> str:
    """The help of the command ``name``, made from its options, as wide as what is kept of it."""
    text = io.StringIO()
    with patch.dict(os.environ, {"COLUMNS": str(HELP_WIDTH)}), redirect_stdout(text), suppress(SystemExit):
        parse(name, ["--help"])
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _run(words: list[str]) -> None:
    name, rest = _choose(words)
    if rest in (["-h"], ["--help"]) and (text := kept_help(name)):
        print(text, end="")
        return
    _refuse_repeats(rest)
    warnings.filterwarnings("ignore", message=".*decompression bomb")  # Pillow's; our own line names the picture
    with options_given(rest):
        parse(name, rest).run()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 2 for bad input, 130 when interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in {"-h", "--help", "help"}:
        print(_usage(), end="")
        return 0
    if words[0] not in COMMANDS and words[1:] in (["-h"], ["--help"]) and _is_group(words[0]):
        print(_usage(words[0]), end="")
        return 0
    if words[0] == "--version":
        from recollect import __version__

        print(f"recollect {__version__}")
        return 0
    try:
        _run(words)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _say_no_more()  # the reader of a pipe has gone (``| head``)
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


def _say_no_more() -> None:
    """What is still to be written goes nowhere; at its end Python would complain that it cannot be."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or no file
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _say_error(text: str) -> None:
    """One line; names of files and rows in it are other people's, and an escape in one must not reach a terminal."""
    from recollect.core.progress import inert

    print(f"error: {inert(' '.join(text.split()))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
