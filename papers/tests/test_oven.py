"""OVEN's files in their published form, on a small made copy."""

import json

import numpy as np
import pytest
from PIL import Image

from recollect import cli
from recollect.core.errors import UserError
from recollect.evaluation.entities import open_entities
from recollect.models import build_model
from recollect_papers.reco.oven import TITLES_FILE, open_oven

ENTITIES = {"Q1": "Dassault Falcon 900", "Q2": "Boeing 747", "Q3": "newt", "Q4": "red fox"}
ROWS = [
    ("Q1", "seen", "00"),
    ("Q2", "seen", "00"),
    ("Q3", "unseen", "05"),
    ("Q3", "unseen", "05"),
    ("Q1", "seen", "05"),
]


def write(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def annotations(rows=ROWS, kind="entity", part="val"):
    return [
        {"data_id": f"oven_{kind}_{part}_{number:08}", "image_id": f"oven_{shard}{number:06}",
         "question": "what is the model of this aircraft?", "entity_id": entity, "entity_text": ENTITIES[entity],
         "data_split": f"{kind}_{part}_{seen}"}
        for number, (entity, seen, shard) in enumerate(rows)
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "oven_entity_val.jsonl", annotations())
    trained = {"data_id": "t", "image_id": "oven_00000009", "entity_id": "Q4", "entity_text": ENTITIES["Q4"]}
    write(tmp_path / "oven_entity_train.jsonl", [trained | {"data_split": "entity_train"}])
    for number, (_, _, shard) in enumerate(ROWS):
        place = tmp_path / "oven_images" / shard
        place.mkdir(parents=True, exist_ok=True)
        ending = ("jpg", "JPEG", "png")[number % 3]  # as the sets behind it have them
        Image.new("RGB", (6, 6), (40 * number, 0, 0)).save(place / f"oven_{shard}{number:06}.{ending}")
    return tmp_path


def test_the_published_files_are_a_task_over_the_entities_of_all_annotations(folder):
    task, seen = open_entities(f"oven:{folder}", "ignored", "ignored", ("{}",))
    assert sorted(task.class_names) == sorted(ENTITIES.values())
    assert [task.class_names[label] for label in task.query.labels] == [ENTITIES[entity] for entity, _, _ in ROWS]
    assert {name for name, known in zip(task.class_names, seen, strict=True) if known} == {
        ENTITIES["Q1"],
        ENTITIES["Q2"],
    }
    reds = [np.asarray(task.query[index].image)[0, 0, 0] for index in range(len(ROWS))]
    assert np.abs(np.array(reds, dtype=int) - 40 * np.arange(len(ROWS))).max() < 8  # each row its own picture
    assert task.query[3].id == "oven_entity_val_00000003"
    assert task.name == "oven-entity-val"


def test_with_the_list_of_titles_all_of_wikipedia_is_a_candidate(folder):
    titles = [{"wikidata_id": f"Q{number}", "wikipedia_title": f"title {number}"} for number in range(2, 50)]
    write(folder / TITLES_FILE, titles)
    task, seen = open_oven(f"oven:{folder}", ("{}",))
    assert len(task.class_names) == len(seen) == 49  # and Q1, which the list lacks
    assert [task.class_names[label] for label in task.query.labels[:3]] == [ENTITIES["Q1"], "title 2", "title 3"]
    assert seen.sum() == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("oven:{}/nowhere", "no folder"),
        ("oven:{}?part=human", "not part=human"),
        ("oven:{}?split=val", "not split=val"),
        ("oven:{}?set=query", "oven_query_val.jsonl: no such file"),
        ("oven:{}?part=train", "'entity_train' says neither _seen nor _unseen"),
    ],
)
def test_an_address_that_names_nothing_is_said(folder, spec, message):
    with pytest.raises(UserError) as error:
        open_oven(spec.format(folder), ("{}",))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_annotations_without_entities_and_of_another_form_are_refused(folder):
    file = folder / "oven_entity_val.jsonl"
    write(file, [{key: row[key] for key in ("data_id", "image_id", "question")} for row in annotations()])
    with pytest.raises(UserError):
        open_oven(f"oven:{folder}", ("{}",))
    write(file, [annotations()[0] | {"entity_id": 3}])
    with pytest.raises(UserError):
        open_oven(f"oven:{folder}", ("{}",))
    file.write_text("{")
    with pytest.raises(UserError):
        open_oven(f"oven:{folder}", ("{}",))
    write(file, annotations([*ROWS, ("Q1", "unseen", "00")]))
    with pytest.raises(UserError):
        open_oven(f"oven:{folder}", ("{}",))


def test_missing_pictures_are_said_before_anything_is_computed(folder):
    next((folder / "oven_images" / "05").glob("oven_05000002.*")).unlink()
    with pytest.raises(UserError, match="oven_05000002"):
        open_oven(f"oven:{folder}", ("{}",))


def test_the_command_measures_both_sets(folder, capsys):
    build_model("tiny", texts=[f"a photo of a {name}" for name in ENTITIES.values()]).save(folder / "model")
    (folder / "one.txt").write_text("a photo of a {}\n")
    write(folder / "oven_query_val.jsonl", annotations([(entity, seen, "00") for entity, seen, _ in ROWS[:3]], "query"))
    Image.new("RGB", (6, 6), (90, 9, 9)).save(folder / "oven_images" / "00" / "oven_00000002.png")
    data = [f"oven:{folder}?set=query", f"oven:{folder}"]
    words = ["evaluate", "entities", str(folder / "model"), "--data", *data, "--out", str(folder / "out.json")]
    assert cli.main([*words, "--templates", str(folder / "one.txt")]) == 0, capsys.readouterr().err
    query, entity = json.loads((folder / "out.json").read_text())
    assert [row["metric"] for row in entity["rows"]] == ["seen", "unseen", "harmonic mean"]
    assert (entity["settings"]["classes"], query["data"]) == (4, "oven-query-val")
