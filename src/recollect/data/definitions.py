"""Definitions of words, from a file or WordNet, to append to class names and captions (K-LITE)."""

import csv
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recollect.core.errors import UserError, user_errors
from recollect.core.files import read_text
from recollect.core.validation import refuse
from recollect.data.prompts import fill, readable

_LINE = 2**20  # longest line of a WordNet file; the longest there is takes a few thousand bytes


LookUp = Callable[[str], tuple[str, ...]]
"""Maps a name, in any case, to its definitions; the most usual comes first."""


def glossary(definitions: Mapping[str, tuple[str, ...]]) -> LookUp:
    """Look up names in a mapping."""
    known = {_key(name): texts for name, texts in definitions.items()}
    return lambda name: known.get(_key(name), ())


@dataclass(frozen=True)
class WordNet:
    """The nouns of a WordNet database in Princeton's format: a folder with ``index.noun`` and ``data.noun``.

    Attributes:
        folder: such as WordNet's ``dict/``, or ``corpora/wordnet`` of NLTK's data.
        senses: number of senses of a noun to use, most usual first.
    """

    folder: Path
    senses: int = 1
    _places: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    def __call__(self, name: str) -> tuple[str, ...]:
        """The definitions of a name's senses; empty for an unknown name."""
        if not self._places:
            self._places.update(_index(self.folder / "index.noun"))
        places = self._places.get(_key(name).replace(" ", "_"), ())
        return tuple(_gloss(self.folder / "data.noun", place) for place in places[: self.senses])


INSTALLED = "wordnet"
"""Names the WordNet that a package installed."""


def installed_wordnet() -> Path:
    """The database of Debian's package wordnet-base, of WordNet's own installation, or of NLTK's data.

    Raises:
        UserError: none is installed.
    """
    nltk = [*os.environ.get("NLTK_DATA", "").split(os.pathsep), "~/nltk_data", f"{sys.prefix}/nltk_data",
            "/usr/share/nltk_data", "/usr/local/share/nltk_data"]  # fmt: skip
    own = [os.environ.get("WNSEARCHDIR", ""), f"{os.environ.get('WNHOME', '')}/dict"]
    places = [*own, "/usr/share/wordnet", "/usr/local/WordNet-3.0/dict", *(f"{each}/corpora/wordnet" for each in nltk)]
    for place in map(Path, filter(None, places)):
        if _is_wordnet(place.expanduser()):
            return place.expanduser()
    raise UserError(
        "no WordNet is installed. On Debian and Ubuntu: apt install wordnet-base. Elsewhere name the folder of its "
        "database, such as corpora/wordnet of NLTK's data."
    )


def _is_wordnet(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("index.noun", "data.noun"))


def open_definitions(path: Path) -> LookUp:
    """Open a .json file of ``{name: definition or list}``, a .csv or .tsv file with columns ``name`` and ``definition``
    (a name may have several rows), a folder with a WordNet database, or ``wordnet`` for the installed one.

    Raises:
        UserError: no such file, or of another form.
    """
    if path == Path(INSTALLED) and not path.exists():
        return WordNet(installed_wordnet())
    if path.is_dir():
        refuse((not _is_wordnet(path), f"{path}: not WordNet's folder dict, nor corpora/wordnet of NLTK's data."))
        return WordNet(path)
    text = read_text(path, "file or folder of definitions")
    if path.suffix == ".json":
        return glossary(_from_json(path, text))
    if path.suffix in (".csv", ".tsv"):
        return glossary(_from_table(path, text, "\t" if path.suffix == ".tsv" else ","))
    raise UserError(
        f"{path}: definitions are a .json, .csv or .tsv file, a folder with a WordNet database, or '{INSTALLED}'"
    )


_LONGEST = 3  # words of a phrase that is looked up in a caption
_FUNCTION_WORDS = frozenset(
    """
    a about above across after against along also am among an and another any are around as at away back be been
    before behind being below beside between both but by can could did do does down each for from had has have he
    her here him his how i if in inside into is it its itself like many me more most much my near next no nor not of
    off on one onto or other our out outside over own per she so some such than that the their them then there these
    they this those through to too toward towards two under until up upon us very was we were what when where which
    while who will with within without would you your
    """.split()  # noqa: SIM905
)
"""Words that WordNet lists as nouns ("in" is a unit of length) although captions use them otherwise."""


@dataclass(frozen=True)
class Knowledge:
    """Definitions of class names and nouns in captions, to append to training texts (K-LITE).

    Attributes:
        look_up: see `open_definitions`.
    """

    look_up: LookUp
    _known: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def of_name(self, name: str) -> tuple[str, ...]:
        """Texts to append to a prompt of a class: `` ; name , definition`` for each definition."""
        return tuple(f" ; {name} , {_spaced(definition)}" for definition in self._definitions(name))

    def of_caption(self, caption: str) -> tuple[str, ...]:
        """Texts to append to a caption, for each phrase in it that has a definition.

        Phrases are matched from the left, the longest of up to three words first, also in singular form.
        """
        words, found, place = re.findall(r"\w+(?:['-]\w+)*", caption.lower()), [], 0
        while place < len(words):
            for size in range(min(_LONGEST, len(words) - place), 0, -1):
                if name := self._defined(words[place : place + size]):
                    found.append(name)
                    break
            place += size
        return tuple(ending for name in dict.fromkeys(found) for ending in self.of_name(name))

    def _defined(self, words: Sequence[str]) -> str | None:
        if words[0] in _FUNCTION_WORDS or words[-1] in _FUNCTION_WORDS:
            return None
        phrase = " ".join(words)
        return next((form for form in (phrase, *_singular(phrase)) if self._definitions(form)), None)

    def _definitions(self, name: str) -> tuple[str, ...]:
        found = self._known.get(name) or self.look_up(name)
        if found:  # unknown words are not cached: there is no limit to them
            self._known[name] = found
        return found


def _singular(word: str) -> Iterator[str]:
    """Possible singulars of a regular plural."""
    for ending, before in (("ies", "y"), ("es", ""), ("s", "")):
        if word.endswith(ending) and not word.endswith("ss") and len(word) > len(ending) + 2:
            yield word[: -len(ending)] + before


def knowledge_prompts(templates: Sequence[str], names: Sequence[str], look_up: LookUp) -> tuple[tuple[str, ...], ...]:
    """The prompts of each class followed by its definitions: ``template(name) ; name , definition`` for every template
    and definition (K-LITE, Shen et al., 2022); the plain prompts if it has none.

    Punctuation is separated by spaces, as in the public code. Only models trained on such texts gain from them.
    """
    knowledge, found = Knowledge(look_up), []
    for name in names:
        endings = knowledge.of_name(name) or ("",)
        found.append(tuple(fill(template, name) + ending for template in templates for ending in endings))
    return tuple(found)


def _key(name: str) -> str:
    return " ".join(readable(name).casefold().split())


def _spaced(text: str) -> str:
    return " ".join(re.findall(r"\w+(?:['-]\w+)*|[^\w\s]", text))


def _from_json(path: Path, text: str) -> dict[str, tuple[str, ...]]:
    with user_errors(f"{path}: not JSON", json.JSONDecodeError):
        value = json.loads(text)
    items = value.items() if isinstance(value, dict) else [("", 0)]
    several: dict[str, Any] = {key: [each] if isinstance(each, str) else each for key, each in items}
    fits = all(isinstance(each, list) and all(isinstance(one, str) for one in each) for each in several.values())
    refuse((not fits, f'{path}: definitions are {{"name": "definition"}}, or a list of them for a name'))
    return {name: tuple(each) for name, each in several.items()}


def _from_table(path: Path, text: str, delimiter: str) -> dict[str, tuple[str, ...]]:
    reader = csv.DictReader(text.splitlines(), delimiter=delimiter)
    present = reader.fieldnames or ()
    lacks = not {"name", "definition"} <= set(present)
    refuse((lacks, f"{path}: needs columns 'name' and 'definition'; it has {', '.join(present)}"))
    found: dict[str, tuple[str, ...]] = {}
    for row in reader:
        if row["definition"]:
            found[_key(row["name"])] = (*found.get(_key(row["name"]), ()), row["definition"])
    return found


def _index(path: Path) -> dict[str, tuple[int, ...]]:
    """Byte offsets of the senses of each noun: ``lemma pos synsets pointers symbol... synsets tagged offset...``."""
    found = {}
    with path.open("rb") as file:
        for line in file:
            if line.startswith(b" "):  # the licence at the top
                continue
            words = line.decode("utf-8", errors="replace").split()
            with user_errors(f"{path}: not an index of WordNet; a line reads {line[:60]!r}", IndexError, ValueError):
                count, pointers = int(words[2]), int(words[3])
                found[words[0]] = tuple(int(word) for word in words[6 + pointers : 6 + pointers + count])
    return found


def _gloss(path: Path, place: int) -> str:
    """The definition of a synset: the text after ``|``, without the quoted examples."""
    with path.open("rb") as file:
        file.seek(place)
        line = file.readline(_LINE).decode("utf-8", errors="replace")
    head, bar, gloss = line.partition("|")
    wrong = not bar or not head.startswith(f"{place:08d}")
    refuse((wrong, f"{path}: no sense at byte {place}. Are index.noun and data.noun of the same WordNet?"))
    return re.split(r';\s*"', gloss)[0].strip().rstrip(";").strip()
