import csv
import json
import multiprocessing
import os
import re
from contextlib import suppress
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from PIL import Image

import guide_world
from colors import COLORS, ColorEncoder, paint, shade
from recollect.classifiers import classifier, predictions
from recollect.classifiers.classifier import Classifier
from recollect.classifiers.folder import CLASSIFIER_FILE, _canonical, _digest
from recollect.classifiers.heads.trust import TOO_FEW_EXAMPLES
from recollect.classifiers.pictures import find_examples, find_images, read_names
from recollect.classifiers.predictions import classify
from recollect.classifiers.teaching import class_prompts_of, non_pixel_digest
from recollect.classifiers.texts import prompt_ensemble
from recollect.cli.classify import _sentence
from recollect.cli.sheet import save_csv, save_json, save_sheet
from recollect.core.cells import read_cells
from recollect.core.errors import UserError
from recollect.data.sources.images import decode
from recollect.models import load_model


@pytest.fixture
def folders(tmp_path):
    for number, (name, color) in enumerate(COLORS.items()):
        for example in range(5):
            paint(tmp_path / "support" / name / f"{example}.png", color, 10 * number + example)
        for image in range(4):
            paint(tmp_path / "new" / f"{name}-{image}.png", color, 100 + 10 * number + image)
    return tmp_path


def teach(folders, **options):
    return Classifier.teach(ColorEncoder(), find_examples(folders / "support"), **options)


def run(folders, **options):
    return classify(teach(folders, **options), ColorEncoder(), find_images(folders / "new"))


@pytest.mark.parametrize("method", ["best", "zero-shot", "prototype", "prototype-cosine", "tip-adapter-cv", "proker"])
def test_images_get_the_class_of_similar_examples(folders, method):
    result = run(folders, method=method)
    assert result.class_names == ("blue", "green", "red")
    assert len(result.predictions) == 12
    for item in result.predictions:
        assert item.file.name.startswith(item.label)
        assert item.nearest[0].label == item.label
        assert item.nearest[0].similarity >= item.nearest[1].similarity >= item.nearest[2].similarity
        assert 1 / 3 <= item.confidence < 1
        assert item.runner_up != item.label
        assert item.label in item.possible


def test_pictures_are_classified_in_blocks(folders, monkeypatch):
    whole = run(folders)
    sizes, similarity = [], Classifier.similarity
    monkeypatch.setattr(Classifier, "similarity", lambda self, rows: sizes.append(len(rows)) or similarity(self, rows))
    monkeypatch.setattr(predictions, "_BLOCK", 5)
    for one, other in zip(run(folders).predictions, whole.predictions, strict=True):
        assert one == replace(other, confidence=one.confidence, nearest=one.nearest)
        assert one.confidence == pytest.approx(other.confidence, abs=1e-5)
        assert [each.file for each in one.nearest] == [each.file for each in other.nearest]
    assert sizes == [5, 5, 2]


def test_examples_can_be_a_folder_or_a_dict_of_files(folders):
    expected = teach(folders)
    red, green, blue = (folders / "support" / name for name in ("red", "green", "blue"))
    for examples in (
        str(folders / "support"),
        folders / "support",
        {"red": str(red), "green": green, "blue": [str(file) for file in sorted(blue.iterdir())]},
    ):
        taught = Classifier.teach(ColorEncoder(), examples)
        assert sorted(taught.support.files) == sorted(expected.support.files)
    assert repr(expected) == "Classifier(3 classes: blue, green, red; 15 examples; proker)"
    with pytest.raises(UserError, match="NaN"):
        expected.predict(np.full((1, 3), np.nan))


def test_examples_can_be_pictures_in_memory(folders):
    expected = teach(folders)
    pictures = {
        name: [Image.open(file).convert("RGB") for file in sorted((folders / "support" / name).iterdir())]
        for name in COLORS
    }
    arrays = {name: np.stack([np.asarray(each) for each in images]) for name, images in pictures.items()}
    pairs = [(each, name) for name, images in pictures.items() for each in images]
    rows = ColorEncoder().embed_images(pictures["red"]).numpy()
    for examples in (pictures, arrays, pairs, {name: iter(images) for name, images in pictures.items()}):
        taught = Classifier.teach(ColorEncoder(), examples)
        assert sorted(taught.support.digests) == sorted(expected.support.digests)
        np.testing.assert_allclose(taught.predict_proba(rows), expected.predict_proba(rows), atol=1e-6)
    assert [file for file in taught.support.files if "red" in file] == [f"picture {n} of red" for n in range(1, 6)]
    opened = Classifier.load(taught.save(folders / "saved"))
    more = opened.add(ColorEncoder(), {"red": [pictures["red"][0], shade(COLORS["red"], 500)]})
    assert len(more.support) == 16, "the same pixels are the same picture"
    with pytest.raises(UserError):
        Classifier.teach(ColorEncoder(), {"red": [None], "blue": pictures["blue"]})


@pytest.mark.parametrize(
    ("examples", "names", "culprit"),
    [
        ((), "cat", "'cat'"),
        ((), ["cat", 7], "7"),
        ((), ["cat", "dog", "cat"], "'cat'"),
        ((), ["cat", " "], "' '"),
        ((), {"cat": [3], "dog": ()}, "3"),
        ({0: ["a.png"], 1: ["b.png"]}, (), "0"),
        ([("a.png", True)], (), "True"),
        (["a.png", "b.png"], ["cat", "dog"], "'a.png'"),
        ({"": ["a.png"], "dog": ["b.png"]}, (), "''"),
        ({"cat": [], "dog": ["b.png"]}, (), "'cat'"),
    ],
)
def test_invalid_class_names_are_reported_before_any_work(examples, names, culprit, unchecked):
    with pytest.raises(UserError, match=culprit):
        Classifier.teach(ColorEncoder(), examples, names)


def test_the_same_picture_in_two_classes_is_reported(folders):
    for number in range(12):
        copied = folders / f"support/green/twin{number}.png"
        paint(copied, (0, 0, 0), number) if number else copied.write_bytes((folders / "support/red/0.png").read_bytes())
        (folders / f"support/red/other{number}.png").write_bytes(copied.read_bytes())
    warnings = [text for text in run(folders).warnings if " two classes" in text]
    assert any("the same picture in two classes" in text and "twin0.png" in text for text in warnings)
    assert "green" in warnings[0]
    assert "red/" in warnings[0]
    assert len(warnings) == 9, "a class copied into another does not give a hundred lines"
    assert "further pairs" in warnings[-1]


def test_copies_of_an_example_are_reported_since_they_raise_the_held_out_accuracy(tmp_path):
    generator = np.random.default_rng(0)
    for name in ("one", "two"):
        (tmp_path / "support" / name).mkdir(parents=True)
        for number in range(6):
            blocks = Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8))
            blocks.resize((200, 200), Image.Resampling.BICUBIC).save(tmp_path / f"support/{name}/{number}.png")
    (tmp_path / "new").mkdir()
    blocks.save(tmp_path / "new/blocks.png")
    assert not [text for text in run(tmp_path).warnings if "held-out accuracy" in text]
    picture = Image.open(tmp_path / "support/one/2.png")
    picture.resize((150, 150)).save(tmp_path / "support/one/small.jpg", quality=60)
    (warning,) = [text for text in run(tmp_path).warnings if "held-out accuracy" in text]
    assert "held-out accuracy is too high: 1 pair" in warning
    assert "2.png" in warning
    assert "small.jpg" in warning
    picture.resize((120, 120)).save(tmp_path / "support/two/other.webp")
    assert any("two classes" in text and "other.webp" in text for text in run(tmp_path).warnings)


def test_an_image_unlike_every_example_is_flagged_as_unknown(folders):
    paint(folders / "new/yellow.png", (230, 230, 10), 7, spread=0)
    result = run(folders)
    flagged = {item.file.name for item in result.predictions if item.unknown}
    assert "yellow.png" in flagged
    assert len(flagged) <= 2
    assert any("none of the classes" in text for text in result.warnings)


def test_broken_files_are_skipped_and_listed(folders):
    (folders / "support/red/broken.png").write_bytes(b"no picture")
    (folders / "new/cut.png").write_bytes((folders / "new/red-0.png").read_bytes()[:80])
    result = run(folders)
    assert len(result.predictions) == 12
    assert any(text.startswith("left out:") and "broken.png" in text for text in result.warnings)
    assert any(text.startswith("not classified:") and "cut.png" in text for text in result.warnings)


def test_missing_empty_and_flat_folders_are_errors(folders, tmp_path):
    (tmp_path / "empty").mkdir()
    for find, folder in ((find_examples, "absent"), (find_images, "empty"), (find_examples, "new")):
        with pytest.raises(UserError):
            find(tmp_path / folder)


def test_spaces_around_a_folder_name_are_not_part_of_the_class(folders):
    before = [name for _, name in find_examples(folders / "support")]
    for folder in sorted((folders / "support").iterdir()):
        folder.rename(folder.with_name(f"{folder.name} "))
    assert [name for _, name in find_examples(folders / "support")] == before


def test_a_table_gives_the_same_examples_as_folders(folders):
    rows = [f"support/{file.parent.name}/{file.name},{name}" for file, name in find_examples(folders / "support")]
    (folders / "table.csv").write_text("\ufeffFile,Label\n" + "\n".join(rows), encoding="utf-8")
    table = Classifier.teach(ColorEncoder(), find_examples(folders / "table.csv"))
    np.testing.assert_array_equal(table.support.features, teach(folders).support.features)


def test_a_table_from_the_page_gives_only_the_pictures_marked_as_the_class(tmp_path):
    lines = ["id,file,class,clicked,probability,yes", "1,a.png,cat,1,0.9,True", "2,b.png,cat,-1,0.9,True",
             "3,c.png,cat,0,0.8,True", "4,d.png,dog,1,,True"]  # fmt: skip
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    found = find_examples(tmp_path / "labels.csv")
    assert [(file.name, name) for file, name in found] == [("a.png", "cat"), ("d.png", "dog")]


@pytest.mark.parametrize(
    "text",
    [
        "name,label\na.png,cat",
        "file,label\n",
        "file,label\na.png,",
        "file,label\na.png,cat",
        "file,label\na.png,cat\nb.png,dog, small",  # a comma without quotes would cut the class name
    ],
)
def test_bad_tables_are_errors(tmp_path, text):
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(UserError, match=r"table\.csv"):
        find_examples(tmp_path / "table.csv")


def test_names_alone_suffice_but_give_a_warning(folders):
    taught = Classifier.teach(ColorEncoder(), names=("red", "green", "blue"))
    assert (taught.method, taught.calibrated) == ("zero-shot", False)
    result = classify(taught, ColorEncoder(), find_images(folders / "new"))
    assert all(item.file.name.startswith(item.label) for item in result.predictions)
    assert result.warnings
    with pytest.raises(UserError):
        taught.predict_set(np.eye(3, dtype=np.float32))


def test_class_names_are_read_from_arguments_text_files_and_json(tmp_path):
    (tmp_path / "names.txt").write_text("cat\n\npolka dot\n")
    (tmp_path / "names.json").write_text(json.dumps({"cat": ["a tabby"], "dog": []}))
    assert read_names(("cat", "polka dot")) == read_names((str(tmp_path / "names.txt"),))
    assert read_names((str(tmp_path / "names.json"),)) == {"cat": ("a tabby",), "dog": ()}
    for words in (("cat", "cat"), ("",), (str(tmp_path / "none.txt"),)):
        with pytest.raises(UserError):
            read_names(words)


def test_a_saved_classifier_gives_the_same_answers(folders):
    taught = teach(folders)
    taught.save(folders / "saved")
    opened = Classifier.load(folders / "saved")
    queries = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    np.testing.assert_array_equal(opened.predict_proba(queries), taught.predict_proba(queries))
    np.testing.assert_array_equal(opened.predict_set(queries), taught.predict_set(queries))
    np.testing.assert_array_equal(opened.is_unknown(queries), taught.is_unknown(queries))
    none = queries[:0]
    assert opened.predict_proba(none).shape == opened.predict_set(none).shape == (0, 3)
    assert len(opened.predict(none)) == len(opened.is_unknown(none)) == 0
    record = json.loads((folders / "saved" / CLASSIFIER_FILE).read_text())
    assert record["held_out"]["accuracy"] == taught.calibration["accuracy"]
    assert [each["name"] for each in record["classes"]] == ["blue", "green", "red"]
    assert not list((folders / "saved").glob("*.pkl"))


def test_pictures_and_their_embeddings_get_the_same_probabilities(folders, monkeypatch):
    taught = teach(folders)
    files = find_images(folders / "new")
    pictures = [decode(file, file.name) for file in files]
    vectors = ColorEncoder().embed_images(pictures).numpy()
    expected = taught.predict_proba(vectors)
    np.testing.assert_allclose(taught.predict_proba(pictures), expected, atol=1e-6)
    saved = taught.save(folders / "saved")
    opened, loaded = Classifier.load(saved), []
    monkeypatch.setattr(classifier, "load_model", lambda name: loaded.append(name) or ColorEncoder())
    np.testing.assert_allclose(opened.predict_proba(pictures), expected, atol=1e-6)
    assert opened.predict(pictures).tolist() == taught.predict(vectors).tolist()
    assert len(loaded) == 1, "the model is loaded once"


def test_large_pictures_are_embedded_alike_from_files_and_in_memory(make_encoder, tmp_path):
    encoder, generator = make_encoder("clip"), np.random.default_rng(0)
    files = [tmp_path / f"{number}.png" for number in range(9)]
    for file in files:
        Image.fromarray(generator.integers(0, 256, (37, 37, 3), dtype=np.uint8)).resize((150, 150), 0).save(file)
    taught = Classifier.teach(encoder, {"a": files[:3], "b": files[3:6]})
    vectors = encoder.embed_images(files)
    np.testing.assert_allclose(taught.support.features, vectors[:6], atol=1e-6)
    expected = taught.predict_proba(vectors[6:]).max(axis=1)
    confidences = [each.confidence for each in classify(taught, encoder, files[6:]).predictions]
    np.testing.assert_allclose(confidences, expected, atol=1e-5)


def test_adding_examples_and_classes_equals_teaching_all_at_once(folders):
    paint(folders / "more/yellow/0.png", (220, 220, 10), 7)
    paint(folders / "more/yellow/1.png", (220, 220, 10), 8)
    paint(folders / "more/red/new.png", COLORS["red"], 9)
    first = teach(folders)
    first.save(folders / "saved")

    class OnlyNew(ColorEncoder):
        def embed_images(self, images):
            assert len(images) <= 3, "known pictures are not embedded again"
            return super().embed_images(images)

    grown = Classifier.load(folders / "saved").add(OnlyNew(), find_examples(folders / "more"))
    both = find_examples(folders / "support") + find_examples(folders / "more")
    whole = Classifier.teach(ColorEncoder(), both)
    assert grown.classes == whole.classes == ("blue", "green", "red", "yellow")
    assert len(grown.support) == 18
    queries = np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(grown.predict_proba(queries), whole.predict_proba(queries), atol=1e-5)
    again = grown.add(ColorEncoder(), find_examples(folders / "more"))
    assert len(again.support) == 18
    record = json.loads((folders / "saved" / CLASSIFIER_FILE).read_text())
    del record["digest"]
    for each in record["examples"]:
        each["digest"] = non_pixel_digest(each["file"])
    record["digest"] = _digest(_canonical(record))
    (folders / "saved" / CLASSIFIER_FILE).write_text(json.dumps(record))
    older = Classifier.load(folders / "saved")
    (folders / "more/blue").mkdir()
    (folders / "support/red/0.png").rename(folders / "more/blue/was red.png")  # in another class, it is another example
    grown = older.add(ColorEncoder(), find_examples(folders / "support") + find_examples(folders / "more"))
    assert len(older.support) == 15
    assert len(grown.support) == 19, "examples without a pixel digest are recognized by their embeddings"
    grown.save(folders / "grown")
    saved = Classifier.load(folders / "grown")
    assert len(saved.add(ColorEncoder(), find_examples(folders / "support")).support) == 19
    assert sum(digest.startswith("?") for digest in saved.support.digests) == 1, "the others have a pixel digest now"


def test_examples_can_be_added_to_names_one_class_at_a_time(folders):
    names = Classifier.teach(ColorEncoder(), names=("red", "green", "blue"))
    some = names.add(ColorEncoder(), {"red": sorted((folders / "support/red").iterdir())})
    assert some.method == "zero-shot"
    assert some.without_examples == ("blue", "green")
    assert "no class has two examples" not in some.trust, "red has several"
    assert not some.is_unknown(ColorEncoder().embed_images([shade(COLORS["green"], 5)])).any(), "green is a known class"
    assert some.unknown_rule.rejected is None
    rest = {name: sorted((folders / "support" / name).iterdir()) for name in ("blue", "green")}
    assert some.add(ColorEncoder(), rest).calibrated


def test_saving_replaces_a_classifier_only_on_request_and_other_folders_never(folders):
    taught = teach(folders)
    taught.save(folders / "saved")
    with pytest.raises(UserError):
        taught.save(folders / "saved")
    with pytest.raises(UserError):
        taught.save(folders / "support", replace=True)
    taught.with_method("prototype").save(folders / "saved", replace=True)
    assert Classifier.load(folders / "saved").method == "prototype"
    assert len(list((folders / "saved").glob("numbers-*"))) == 1


def test_nine_examples_are_too_few_to_state_an_accuracy(folders):
    few = [pair for pair in find_examples(folders / "support") if pair[0].stem < "3"]
    taught = Classifier.teach(ColorEncoder(), few)
    assert taught.calibration == {"examples": 9}
    with pytest.raises(UserError):
        taught.predict_set(taught.support.features)
    result = classify(taught, ColorEncoder(), find_images(folders / "new"))
    assert all(item.possible == () for item in result.predictions)
    card = (taught.save(folders / "saved") / "README.md").read_text(encoding="utf-8")
    for shown in (card, _sentence(taught)):
        assert TOO_FEW_EXAMPLES in shown
        assert "100.0 %" not in shown
    assert "These figures" not in card
    enough = taught.add(ColorEncoder(), {"red": [folders / "support" / "red" / "4.png"]})
    assert enough.calibration["accuracy"] == 1.0


def test_class_names_cannot_break_the_model_card(folders):
    hostile = Classifier.teach(ColorEncoder(), names={"a|b": (), "`c`\n": ()})
    card = (hostile.save(folders / "hostile") / "README.md").read_text(encoding="utf-8")
    assert "| a/b | 0 |" in card
    assert "| 'c' | 0 |" in card


def test_a_flipped_bit_is_detected(folders):
    teach(folders).save(folders / "saved")
    random, survived = np.random.default_rng(0), 0
    for file in sorted(set((folders / "saved").iterdir()) - {folders / "saved" / "README.md"}):  # the card is not read
        whole = file.read_bytes()
        for place in random.integers(0, len(whole), 25).tolist():
            damaged = bytearray(whole)
            damaged[place] ^= 1 << int(random.integers(8))
            file.write_bytes(damaged)
            with suppress(UserError):  # whitespace in the JSON may change
                opened = Classifier.load(folders / "saved")
                assert opened.predict(np.eye(3, dtype=np.float32)).tolist() == ["red", "green", "blue"]
                survived += 1
        file.write_bytes(whole)
    assert survived <= 20


def test_missing_parts_and_newer_formats_are_errors(folders):
    with pytest.raises(UserError):
        Classifier.load(folders / "absent")
    with pytest.raises(UserError):
        Classifier.load(folders / "new")
    teach(folders).save(folders / "saved")
    next((folders / "saved").glob("numbers-*")).unlink()
    with pytest.raises(UserError):
        Classifier.load(folders / "saved")
    record = json.loads((folders / "saved" / CLASSIFIER_FILE).read_text())
    (folders / "saved" / CLASSIFIER_FILE).write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(UserError):
        Classifier.load(folders / "saved")


def test_a_failed_save_leaves_the_old_version(folders, monkeypatch):
    taught = teach(folders)
    taught.save(folders / "saved")
    before = taught.method
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("recollect.classifiers.folder.write_json", full)
    with pytest.raises(OSError, match="No space"):
        taught.with_method("prototype").save(folders / "saved", replace=True)
    assert Classifier.load(folders / "saved").method == before


def _keep_replacing(taught, folder, times):
    for _ in range(times):
        taught.save(folder, replace=True)


def test_readers_never_see_a_partial_save_by_either_of_two_processes(folders):
    one, two = teach(folders), teach(folders, method="prototype")
    one.save(folders / "saved")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_keep_replacing, args=(each, folders / "saved", 20)) for each in (one, two)]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        seen.add(Classifier.load(folders / "saved").requested_method)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen <= {"best", "prototype"}
    Classifier.load(folders / "saved")


def test_another_model_is_rejected(folders):
    class Other(ColorEncoder):
        fingerprint = "another"

    with pytest.raises(UserError):
        classify(teach(folders), Other(), find_images(folders / "new"))
    with pytest.raises(UserError):
        teach(folders).add(Other(), names=("yellow",))
    with pytest.raises(UserError):
        teach(folders).predict(np.ones((2, 5), np.float32))


def test_tables_and_the_sheet_show_every_prediction(folders):
    (folders / "new/<b>.png").write_bytes((folders / "new/red-0.png").read_bytes())
    paint(folders / "new/deep/yellow.png", (230, 230, 10), 7, spread=0)
    result = run(folders)
    save_csv(result, folders / "out.csv")
    save_json(result, folders / "out.json", {"method": "best"})
    save_sheet(result, folders / "out.html", "12 images", folders / "new")
    rows = list(csv.DictReader((folders / "out.csv").open()))
    assert [row["file"] for row in rows] == [str(item.file) for item in result.predictions]
    assert [row["prediction"] for row in rows] == [item.label for item in result.predictions]
    saved = json.loads((folders / "out.json").read_text())["predictions"]
    assert [row["file"] for row in saved] == [row["file"] for row in rows]
    page = (folders / "out.html").read_text()
    at = {item.file: page.index(f">{item.file.relative_to(folders / 'new')}<".replace("<b>", "&lt;b&gt;"))
          for item in result.predictions}  # fmt: skip
    in_order = sorted(result.predictions, key=lambda item: at[item.file])
    unknown = [item.unknown for item in in_order]
    assert unknown == sorted(unknown, reverse=True), "unknown pictures come first"
    sure = [item.confidence for item in in_order if not item.unknown]
    assert (sum(unknown), len(set(sure)) > 3, sure) == (1, True, sorted(sure)), "then the least certain"
    assert ">deep/yellow.png<" in page
    assert "<b>" not in page
    assert "http" not in page


@pytest.mark.parametrize("name", ["=1+1", "red | pink", 'red, "pink"', "-10", "'quoted'", "red\npink"])
def test_tables_with_odd_class_names_can_be_read_again(folders, name):
    (folders / "support/red").rename(folders / "support" / name)
    result = run(folders)
    save_csv(result, folders / "out.csv")
    assert ("'=" in (folders / "out.csv").read_text()) == (name == "=1+1"), "a spreadsheet must not compute it"
    _, rows = read_cells(folders / "out.csv")
    assert [row["prediction"] for row in rows] == [item.label for item in result.predictions]
    possible = [re.split(r"(?<!\\)\|", row["possible"]) for row in rows]
    assert [tuple(each.replace("\\|", "|") for each in some if each) for some in possible] == [
        item.possible for item in result.predictions
    ]


def test_names_that_are_not_utf_8_are_accepted_for_files_but_not_for_classes(folders):
    """Old archives contain such names."""
    try:
        for file in ("support/red/0.png", "new/red-0.png"):
            os.rename(folders / file, os.fsencode((folders / file).parent) + b"/caf\xe9.png")
    except OSError:
        pytest.skip("this file system rejects such names")
    teach(folders).save(folders / "saved")
    files = Classifier.load(folders / "saved").support.files
    result = run(folders)
    save_json(result, folders / "out.json", {})
    files += tuple(each["file"] for each in json.loads((folders / "out.json").read_text())["predictions"])
    assert len(files) == 15 + 12
    assert all(map(os.path.exists, files))
    save_csv(result, folders / "out.csv")
    save_sheet(result, folders / "out.html", "", folders / "new")
    assert all(r"caf\udce9.png" in (folders / name).read_text() for name in ("out.csv", "out.html"))
    os.rename(folders / "support/red", os.fsencode(folders / "support") + b"/r\xe9d")
    with pytest.raises(UserError, match=r"r\\xe9d"):
        teach(folders)


def test_pictures_are_classified_from_names_alone_in_one_call(folders, tmp_path):
    folder = tmp_path / "MODEL"
    guide_world.checkpoint(folder)
    model = load_model(str(folder))
    pictures = sorted((folders / "new").rglob("*.png"))
    named = Classifier.teach(model, names=["red", "blue"])
    texts = prompt_ensemble(model, [class_prompts_of(name, ()) for name in ("blue", "red")])
    logits = model.scale * (model.embed_images(pictures).numpy() @ texts.T)
    expected = np.exp(logits - logits.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(named.predict_proba(pictures), expected, atol=1e-5)
    assert named.predict(pictures).tolist() == [("blue", "red")[place] for place in logits.argmax(axis=1)]
    with pytest.raises(UserError):
        Classifier.teach(model, names=["red"])
