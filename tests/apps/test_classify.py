import csv

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier

from recollect.apps.classify.classifier import classify, find_examples, find_images
from recollect.apps.classify.sheet import save_csv, save_sheet
from recollect.core.errors import UserError

COLOURS = {"red": (200, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 200)}


class ColourEncoder:
    """Embeds a picture by its mean colour, around grey."""

    width = 3
    fingerprint = "colour"

    def embed_images(self, images):
        means = np.stack([np.asarray(image, dtype=np.float32).reshape(-1, 3).mean(0) - 90 for image in images])
        return torch.nn.functional.normalize(torch.from_numpy(means), dim=1)

    def embed_texts(self, texts, prefix=None):
        raise AssertionError("this classifier reads no texts")


def paint(path, colour, seed, spread=30):
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    shade = np.clip(np.array(colour) + generator.integers(-spread, spread + 1, size=3), 0, 255)
    noise = generator.integers(-15, 16, size=(24, 32, 3))
    Image.fromarray(np.clip(shade + noise, 0, 255).astype(np.uint8)).save(path)


@pytest.fixture
def folders(tmp_path):
    for number, (name, colour) in enumerate(COLOURS.items()):
        for example in range(5):
            paint(tmp_path / "support" / name / f"{example}.png", colour, 10 * number + example)
        for image in range(4):
            paint(tmp_path / "new" / f"{name}-{image}.png", colour, 100 + 10 * number + image)
    return tmp_path


def run(folders):
    support, images = find_examples(folders / "support"), find_images(folders / "new")
    return classify(KNeighborsClassifier(1), ColourEncoder(), support, images)


def test_images_get_the_class_of_the_examples_they_look_like(folders):
    found = run(folders)
    assert found.class_names == ("blue", "green", "red")
    assert len(found.predictions) == 12
    for item in found.predictions:
        assert item.file.name.startswith(item.label)
        assert item.nearest[0].label == item.label
        assert item.nearest[0].similarity >= item.nearest[1].similarity >= item.nearest[2].similarity
        assert 0.5 <= item.confidence <= 1
        assert item.runner_up != item.label


def test_the_same_picture_in_two_classes_is_reported(folders):
    twin = folders / "support/green/twin.png"
    twin.write_bytes((folders / "support/red/0.png").read_bytes())
    warning = next(text for text in run(folders).warnings if "the same picture in two classes" in text)
    assert "green" in warning
    assert "red/0.png" in warning
    assert "twin.png" in warning


def test_copies_within_a_class_and_few_examples_are_reported(folders):
    (folders / "support/red/copy.png").write_bytes((folders / "support/red/0.png").read_bytes())
    for example in (2, 3, 4):
        (folders / f"support/blue/{example}.png").unlink()
    warnings = run(folders).warnings
    assert any("1 examples are exact copies" in text for text in warnings)
    assert any("fewer than 4 examples" in text and "blue (2)" in text for text in warnings)


def test_an_image_unlike_every_example_is_flagged(folders):
    paint(folders / "new/yellow.png", (230, 230, 10), 7, spread=0)
    found = run(folders)
    flagged = {item.file.name for item in found.predictions if item.unknown}
    assert "yellow.png" in flagged
    assert len(flagged) <= 2
    assert any("unlike every example" in text for text in found.warnings)


def test_broken_files_are_left_out_and_named(folders):
    (folders / "support/red/broken.png").write_bytes(b"no picture")
    (folders / "new/cut.png").write_bytes((folders / "new/red-0.png").read_bytes()[:80])
    found = run(folders)
    assert len(found.predictions) == 12
    assert any(text.startswith("left out:") and "broken.png" in text for text in found.warnings)
    assert any(text.startswith("not classified:") and "cut.png" in text for text in found.warnings)


def test_a_class_without_a_readable_example_is_an_error(folders):
    for example in range(5):
        (folders / f"support/blue/{example}.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="no example of blue can be read"):
        run(folders)


def test_folders_that_cannot_be_meant_are_errors(folders, tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        find_examples(tmp_path / "absent")
    with pytest.raises(UserError, match="no image files"):
        (tmp_path / "empty").mkdir()
        find_images(tmp_path / "empty")
    with pytest.raises(UserError, match="0 sub-folders"):
        find_examples(folders / "new")


def test_the_table_and_the_sheet_show_every_prediction(folders):
    (folders / "new/<b>.png").write_bytes((folders / "new/red-0.png").read_bytes())
    found = run(folders)
    save_csv(found, folders / "out.csv")
    save_sheet(found, folders / "out.html", "12 images")
    rows = list(csv.DictReader((folders / "out.csv").open()))
    assert [row["file"] for row in rows] == [str(item.file) for item in found.predictions]
    assert [row["prediction"] for row in rows] == [item.label for item in found.predictions]
    page = (folders / "out.html").read_text()
    assert all(f">{item.file.name}<" in page for item in found.predictions if "<" not in item.file.name)
    assert "&lt;b&gt;.png" in page
    assert "http" not in page
