"""Definitions behind class names: from files and from a WordNet database, and what becomes of names without one."""

import json
from pathlib import Path

import pytest

from recollect.core.errors import UserError
from recollect.data.definitions import Knowledge, glossary, knowledge_prompts, open_definitions

SENSES = {
    "crane": ['lifts and moves heavy objects; "the crane on the quay"', "large long-necked wading bird"],
    "blue tit": ["widely distributed European titmouse with bright cobalt blue wings"],
}


def wordnet(folder):
    """A database of a few nouns in Princeton's format."""
    folder.mkdir()
    data, index = b"  1 This is a licence.\n", ["  1 This is a licence."]
    for lemma, glosses in SENSES.items():
        places = []
        for gloss in glosses:
            places.append(len(data))
            words = lemma.replace(" ", "_")
            data += f"{len(data):08d} 06 n 01 {words} 0 002 @ 00001740 n 0000 ~ 00001741 n 0000 | {gloss}  \n".encode()
        offsets = " ".join(f"{place:08d}" for place in places)
        index.append(f"{lemma.replace(' ', '_')} n {len(places)} 2 @ ~ {len(places)} 0 {offsets}  ")
    (folder / "data.noun").write_bytes(data)
    (folder / "index.noun").write_text("\n".join(index) + "\n")
    return folder


def test_a_wordnet_database_gives_the_first_sense_without_its_examples(tmp_path):
    look_up = open_definitions(wordnet(tmp_path / "dict"))
    assert look_up("Crane") == ("lifts and moves heavy objects",)
    assert look_up("blue_tit") == (SENSES["blue tit"][0],)
    assert look_up("newt") == ()
    (tmp_path / "dict" / "data.noun").write_bytes(b"something else\n")
    with pytest.raises(UserError, match="of the same WordNet"):
        look_up("crane")


@pytest.mark.parametrize("name", ["WNSEARCHDIR", "NLTK_DATA"])
def test_an_installed_wordnet_is_found(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "corpora").mkdir(parents=True)
    folder = wordnet(tmp_path / "data" / "corpora" / "wordnet")
    monkeypatch.setenv(name, str(folder if name == "WNSEARCHDIR" else tmp_path / "data"))
    assert open_definitions(Path("wordnet"))("blue tit") == (SENSES["blue tit"][0],)


def test_without_an_installed_wordnet_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "is_file", lambda self: False)
    with pytest.raises(UserError, match="apt install wordnet-base"):
        open_definitions(Path("wordnet"))


@pytest.mark.parametrize("form", ["json", "csv", "tsv"])
def test_a_file_of_ones_own(tmp_path, form):
    path = tmp_path / f"words.{form}"
    if form == "json":
        path.write_text(json.dumps({"Blue Tit": "a small bird", "crane": ["a machine", "a bird"]}))
    else:
        mark = "," if form == "csv" else "\t"
        rows = [("name", "definition"), ("Blue Tit", "a small bird"), ("crane", "a machine"), ("crane", "a bird")]
        path.write_text("\n".join(mark.join(row) for row in rows))
    look_up = open_definitions(path)
    assert look_up("blue_tit") == ("a small bird",)
    assert look_up("crane") == ("a machine", "a bird")


def test_prompts_have_every_template_with_every_definition_and_none_stay_plain():
    definitions = {"crane": ("a machine (tall)", "a bird"), "newt": ()}
    found = knowledge_prompts(("a photo of a {}.", "a {}."), ("crane", "newt"), definitions.__getitem__)
    assert found[0] == (
        "a photo of a crane. ; crane , a machine ( tall )", "a photo of a crane. ; crane , a bird",
        "a crane. ; crane , a machine ( tall )", "a crane. ; crane , a bird",
    )  # fmt: skip
    assert found[1] == ("a photo of a newt.", "a newt.")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none.json", None),
        ("list.json", "[1]"),
        ("strings.json", '{"a": [1]}'),
        ("broken.json", "{"),
        ("words.csv", "word,meaning\na,b\n"),
        ("words.txt", "a"),
    ],
)
def test_bad_files_are_named(tmp_path, name, text):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=name):
        open_definitions(tmp_path / name)
    with pytest.raises(UserError, match="WordNet"):
        open_definitions(tmp_path)


KNOWN = {"crane": ("a machine", "a bird"), "blue tit": ("a small bird",), "berry": ("a fruit",), "glass": ("a vessel",)}


@pytest.mark.parametrize(
    ("caption", "names"),
    [
        ("Two cranes and a Blue Tit.", ["crane", "blue tit"]),
        ("berries in a glass, berries", ["berry", "glass"]),
        ("a blue bird", []),
        ("in the glasses of a crane-like thing", ["glass"]),
        ("", []),
    ],
)
def test_phrases_of_a_caption_are_defined_the_longest_first(caption, names):
    knowledge = Knowledge(glossary(KNOWN))
    endings = [f" ; {name} , {definition}" for name in names for definition in KNOWN[name]]
    assert knowledge.of_caption(caption) == tuple(endings)


def test_what_wordnet_calls_a_noun_and_captions_do_not_is_not_looked_up():
    knowledge = Knowledge(lambda name: (f"what {name} is",))
    assert knowledge.of_caption("in a house on the hill") == (" ; house , what house is", " ; hill , what hill is")
    assert knowledge.of_name("in") == (" ; in , what in is",)  # a class that is called so is
