"""``recollect memory …`` and ``recollect train reco`` as their users run them."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from recollect import cli
from recollect.memory import Memory
from recollect.models import build_model, load_model

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small random model."""
    folder = tmp_path_factory.mktemp("models") / "model"
    texts = [f"a {colour} square number {number}" for colour in COLOURS for number in range(40)]
    return str(build_model("tiny", texts=texts).save(folder))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A CSV of sixty pictures with captions, one of them broken."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = ["path,caption,colour,split"]
    for number in range(60):
        colour = list(COLOURS)[number % 3]
        pixels = np.random.default_rng(number).integers(0, 80, (20, 20, 3), dtype=np.uint8)
        pixels[5:15, 5:15] = COLOURS[colour]
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(f"{number}.png,a {colour} square number {number},{colour},{'test' if number >= 50 else 'train'}")
    (folder / "7.png").write_bytes(b"not a picture")
    (folder / "pairs.csv").write_text("\n".join(lines))
    return str(folder / "pairs.csv")


@pytest.fixture(scope="module")
def built(model, table, tmp_path_factory):
    """A memory of the training split."""
    out = str(tmp_path_factory.mktemp("memories") / "memory")
    assert cli.main(["memory", "build", model, table, "--out", out, "--broken-share", "0.1"]) == 0
    return out


@pytest.fixture
def memory(built, tmp_path):
    """A copy, to be changed."""
    shutil.copytree(built, tmp_path / "memory")
    return str(tmp_path / "memory")


def run(capsys, *words):
    """Run a command that works, and return what it printed."""
    status = cli.main([str(word) for word in words])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    return printed.out


def refused(capsys, *words):
    """Run a command that is refused, and return its one line."""
    status = cli.main([str(word) for word in words])
    printed = capsys.readouterr()
    assert status == 2, printed
    errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in printed.err
    return errors[0]


def test_a_build_leaves_out_the_broken_picture_and_says_so(model, table, tmp_path, capsys):
    words = ("memory", "build", model, table, "--out", tmp_path / "m", "--broken-share", 0.1)
    text = run(capsys, *words)
    assert "49 rows added; 1 left out as broken; 49 rows now" in text
    assert "0 rows added; 50 samples read before; 49 rows now" in run(capsys, *words)


def test_a_folder_of_splits_says_which_is_read(model, tmp_path, capsys):
    """Somebody's pictures may lie in folders called so, and a memory is built for searches too."""
    for number, split in enumerate(["train", "train", "test"]):
        file = tmp_path / "photos" / split / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (80 * number, 9, 9)).save(file)
    said = "photos: 2 samples, those of its training split, and not 1 of its others; --split all takes all"
    text = run(capsys, "memory", "build", model, tmp_path / "photos", "--out", tmp_path / "m")
    assert (text.count(said), text.count("2 rows added")) == (1, 1)
    for more in (("--split", "all"), ("--split", "train")):
        assert "training split" not in run(capsys, "memory", "add", tmp_path / "m", tmp_path / "photos", *more)


def test_info_says_what_is_there(built, model, tmp_path, capsys):
    text = run(capsys, "memory", "info", built, "--out", tmp_path / "info.json")
    assert "49" in text
    assert "colour" in text
    info = json.loads((tmp_path / "info.json").read_text())
    assert (info["rows"], info["model_name"], info["metadata"]) == (49, model, ["colour"])
    assert list(info["sources"].values()) == [49]


def test_search_by_text_and_by_image_finds_the_row_itself(built, model, table, tmp_path, capsys):
    picture = table.replace("pairs.csv", "12.png")
    out = tmp_path / "found.json"
    words = ("--k", 3, "--out", out)
    text = run(capsys, "memory", "search", built, "a blue square number 5", "--among", "captions", *words)
    assert "a blue square number 5" in text
    (by_text,) = json.loads(out.read_text())["results"]
    assert by_text["hits"][0]["caption"] == "a blue square number 5"
    run(capsys, "search", built, "--image", picture, "--exact", *words)
    (by_image,) = json.loads(out.read_text())["results"]
    assert by_image["hits"][0]["caption"] == "a red square number 12"
    assert by_image["hits"][0]["score"] == pytest.approx(1, abs=2**-11)  # half precision
    run(capsys, "search", built, "--image", picture, *words, "--where", "colour = 'green'")
    (green,) = json.loads(out.read_text())["results"]
    assert [hit["metadata"]["colour"] for hit in green["hits"]] == ["green"] * 3


def test_a_memory_grows_and_shrinks(memory, model, table, capsys):
    assert "10 rows added; 59 rows now" in run(capsys, "memory", "add", memory, f"{table}?split=test")
    assert len(Memory.open(memory)) == 59
    assert "20 of 59 rows (33.9%) removed, 39 left" in run(
        capsys, "memory", "remove", memory, "--where", "colour = 'red'"
    )
    one = next(Memory.open(memory).columns(["id"]))["id"][0]
    assert "1 of 39 rows (2.6%) removed, 38 left" in run(capsys, "memory", "remove", memory, "--ids", one)


def test_near_duplicates_of_test_images_are_removed(memory, model, table, capsys):
    run(capsys, "memory", "add", memory, table, "--split", "test")
    words = ("--near", table, "--split", "test", "--threshold", "0.999999")
    run(capsys, "memory", "remove", memory, *words)
    left = [caption for batch in Memory.open(memory).columns(["caption"]) for caption in batch["caption"]]
    assert not [caption for caption in left if int(caption.split()[-1]) >= 50]


def test_bad_input_is_one_line_and_nothing_is_lost(memory, model, table, tmp_path, capsys):
    other = build_model("vector-mlp", texts=["a"]).save(tmp_path / "other")
    refusals = {
        ("info", tmp_path / "nowhere"): "no such memory",
        ("info", model): "no memory (it holds",
        ("search", memory, "a", "--model", other): "is another model",
        ("search", memory, "a", "--where", "colour ="): "should stand at its end",
        ("search", memory, "a", "--where", "colour = 'pink'"): "no row satisfies colour = 'pink'. `recollect",
        ("search", memory, "a", "--where", "colur = 'red'"): "no column 'colur'; there are id, caption, source, colour",
        ("search", memory, "--image", table): "not a picture",
        ("remove", memory): "one of --ids, --where and --near",
        ("remove", memory, "--ids", "a"): "no row of 'a'",
        ("remove", memory, "--where", "colour = 'pink'"): "no row satisfies colour = 'pink'. `recollect",
        ("remove", memory, "--where", "colur = 'red'"): "no column 'colur'; there are id, caption, source, colour",
        ("add", memory, table, "--model", other): "is another model",
        ("add", memory, "nowhere.csv"): "no such file",
        ("add", memory, table, "--near", 3): "a cosine lies above 0",
        ("add", memory, table, "--limit", -5): "--limit -5: must be at least 1",
        ("add", memory, table, "--broken-share", "nan"): "--broken-share nan: a share lies between 0 and 1",
        (
            "remove",
            memory,
            "--near",
            table,
            "--model",
            model,
            "--threshold",
            -3,
        ): "--threshold -3: a cosine lies between -1 and 1",
        ("add", memory, table, "--template", "x"): "needs {}",
        ("build", model, f"{table}?split=test", "--out", memory): "holds rows of other sources already",
        ("build", model, table, "--out", tmp_path / "new"): "images of pairs cannot be read",
        ("build", model, table, "--out", "ftp://x"): "not an address of a memory",
        ("build", model, "glyphs:captions", "--out", tmp_path / "endless"): "--limit N",
        ("build", model, "glyphs:scenes", "--out", tmp_path / "endless"): "has no end",
        ("build", model, table, "--out", "milvus://nowhere"): "write milvus://host:port/collection",
    }
    for words, message in refusals.items():
        assert message in refused(capsys, "memory", *words)
    assert len(Memory.open(memory)) == 49
    assert not (tmp_path / "endless").exists()


def test_bad_input_of_training_shows_before_anything_is_embedded(built, model, table, tmp_path, capsys, monkeypatch):
    other = build_model("vector-mlp", texts=["a"]).save(tmp_path / "other")
    empty = Memory.create(tmp_path / "empty", width=load_model(model).width, model=load_model(model).fingerprint)
    monkeypatch.setattr("recollect.cli.train_reco_run.embed_pairs", lambda *_: pytest.fail("embedded"))
    data = ("--data", table)
    refusals = {
        (other, "--memory", built, *data): "is another model",
        (model, "--memory", empty.address, *data): "the memory is empty",
        (model, "--memory", built, *data, "--k", 50): "k = 50, but the memory holds 49 rows",
        (model, "--memory", tmp_path / "nowhere", *data): "no such memory",
        (model, "--memory", model, *data): "no memory (it holds",
        (model, "--memory", built, "--data", "nowhere.csv"): "no such file",
        (model, "--memory", built, *data, "--kind", "mean"): "a mean has nothing to learn",
        (model, "--memory", built, *data, "--modalities", "text", "--terms", "image"): "none of them refines",
        (model, "--memory", built, *data, "--k", 0): "must be at least 1",
        (model, "--memory", built, *data, "--limit", 0): "--limit 0: must be at least 1",
        (model, "--memory", built, *data, "--max-score", "nan"): "--max-score nan: a cosine, or a number above 1",
    }
    for words, message in refusals.items():
        assert message in refused(capsys, "train", "reco", *words, "--out", tmp_path / "run"), words
    assert not (tmp_path / "run").exists()


def test_a_row_whose_picture_is_gone_or_damaged_stays_and_stops_nothing(model, tmp_path, capsys):
    lines = ["path,caption"]
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,noise of number {number}")
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    memory = tmp_path / "memory"
    run(capsys, "memory", "build", model, tmp_path / "pairs.csv", "--out", memory)
    (tmp_path / "3.png").unlink()
    (tmp_path / "4.png").write_bytes(b"not a picture")
    run(capsys, "search", memory, "noise of number 3", "--k", 12, "--out", tmp_path / "found.html")
    page = (tmp_path / "found.html").read_text()
    assert all(f"noise of number {number}" in page for number in range(12))
    run(capsys, "search", memory, "noise", "--read.memory", memory, "--read.fusion", "mean", "--read.k", 12)
    assert len(Memory.open(memory)) == 12
    with pytest.raises(Exception, match="not a picture"):
        Memory.open(memory).fetch([id for batch in Memory.open(memory).columns(["id"]) for id in batch["id"]])[4].open()


def test_a_half_copied_memory_is_refused_whichever_file_is_missing_or_cut(built, tmp_path, capsys):
    for number, name in enumerate(("data/*.lance", "_versions/*.manifest")):
        for damage in ("missing", "cut"):
            copy = tmp_path / f"{number}-{damage}"
            shutil.copytree(built, copy)
            files = sorted((copy / "pairs.lance").glob(name))
            assert files
            for file in files:
                content = file.read_bytes()
                file.unlink()
                if damage == "cut":
                    file.write_bytes(content[: len(content) // 2])
            assert str(copy) in refused(capsys, "memory", "info", copy)


def test_in_a_process_of_its_own_a_command_loads_no_more_than_it_uses_and_says_nothing_beside(built):
    slow = {"datasets", "sklearn", "pandas", "matplotlib", "scipy.stats", "torch._dynamo",
            "transformers.modeling_utils"}  # fmt: skip
    code = (
        "import sys; import recollect.cli.memory_upkeep\n"
        f"print('loaded', *({slow | {'transformers'}} & sys.modules.keys()))\n"
        "import recollect.cli.search\n"
        f"print('loaded', *({slow} & sys.modules.keys()))\n"
        "from recollect import cli; sys.exit(cli.main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "memory", "info", built]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    upkeep, search, *shown = result.stdout.splitlines()
    assert upkeep == search == "loaded", "a command waits for libraries that it does not use"
    assert "49" in "".join(shown)
    assert result.stderr == ""


@pytest.fixture
def photos(tmp_path):
    """Twelve pictures without a word."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_a_folder_of_photos_is_built_searched_captioned_and_followed(model, photos, tmp_path, capsys):
    memory, out = tmp_path / "memory", tmp_path / "found.json"
    text = run(capsys, "memory", "build", model, photos, "--out", memory)
    assert "12 rows added (12 without a text); 12 rows now" in text
    text = run(capsys, "search", memory, "--image", photos / "7.png", "--k", 2, "--out", out)
    assert "photos:7.png" in text
    assert json.loads(out.read_text())["results"][0]["hits"][0]["path"] == str(photos / "7.png")
    line = refused(capsys, "search", memory, "a red square number 3", "--among", "captions")
    assert "recollect caption" in line
    captions = tmp_path / "captions.csv"
    captions.write_text(f"path,caption\n{photos / '3.png'},a red square number 3\n8.png,a blue square number 8\n")
    text = run(capsys, "caption", memory, "--captions", captions)
    assert "2 of 2 captions are new; 2 of 12 rows have a text" in text
    run(capsys, "search", memory, "a red square number 3", "--among", "captions", "--k", 1, "--out", out)
    assert json.loads(out.read_text())["results"][0]["hits"][0]["id"] == "photos:3.png"
    assert "12, 2 with a text" in run(capsys, "memory", "info", memory)
    (photos / "0.png").unlink()
    Image.new("RGB", (20, 20), (9, 9, 200)).save(photos / "new.png")
    text = run(capsys, "memory", "add", memory, photos)
    assert "1 row added (1 without a text); 1 removed that this edition of photos has no more; 11 there already" in text
    assert "2 with a text" in run(capsys, "memory", "info", memory)
    text = run(capsys, "memory", "remove", memory, "--ids", photos / "5.png")
    assert "1 of 12 rows (8.3%) removed, 11 left" in text
    Image.new("RGB", (20, 20), (90, 9, 200)).save(photos / "newer.png")
    text = run(capsys, "memory", "add", memory, photos)
    assert "1 row added" in text
    text = run(capsys, "memory", "info", memory, "--out", out)
    assert (json.loads(out.read_text())["removed"], "removed, and stay away │ 1 of photos" in text) == (
        {"photos": 1},
        True,
    )
    assert "no such picture" in refused(capsys, "memory", "add", memory, photos, "--bring-back", "4.png")
    text = run(capsys, "memory", "add", memory, photos, "--bring-back", photos / "5.png")
    assert "1 row added" in text
    run(capsys, "memory", "remove", memory, "--ids", "newer.png")
    assert "12 left out" not in run(capsys, "memory", "add", memory, photos)
    other = tmp_path / "other" / "photos"
    other.mkdir(parents=True)
    Image.new("RGB", (20, 20), (200, 9, 9)).save(other / "3.png")
    assert "another source called 'photos' already, read from" in refused(capsys, "memory", "add", memory, other)
    assert "13 rows now" in run(capsys, "memory", "add", memory, other, "--name", "red", "--model", model)


def test_captions_from_elsewhere_move_no_cursor_and_crash_no_table(model, tmp_path, capsys):
    nasty = ["[/b] and [red]x", "\x1b[31mred\x1b[2J", "\x9b2J", "a\rb\tc", "back\\", "[link=file:///etc]"]
    lines = ["path,caption"]
    for number, caption in enumerate(nasty):
        Image.new("RGB", (8, 8), (number * 40, 0, 0)).save(tmp_path / f"{number}.png")
        lines.append(f'{number}.png,"{caption}"')
    (tmp_path / "pairs.csv").write_text("\n".join(lines), newline="")
    memory = tmp_path / "memory"
    run(capsys, "memory", "build", model, tmp_path / "pairs.csv", "--out", memory, "--name", "[bold]n\x1b[0m")
    text = run(capsys, "search", memory, "[/x] \x1b[1m", "--k", 6)
    text += run(capsys, "memory", "info", memory)
    assert not [char for char in text if (ord(char) < 32 and char != "\n") or 0x7F <= ord(char) < 0xA0]
    assert "[/b] and [red]x" in text
    assert "[bold]n" in text
    assert "[/x]" in text


def test_a_made_world_with_a_size_has_an_end(model, tmp_path, capsys):
    text = run(capsys, "memory", "build", model, "glyphs:captions?size=20", "--out", tmp_path / "m")
    assert "20 rows added; 20 rows now" in text
    assert "has no end" in refused(capsys, "memory", "build", model, "glyphs:scenes", "--out", tmp_path / "n")


def test_what_a_caption_is_asked_for_is_checked(model, photos, tmp_path, capsys):
    memory = tmp_path / "memory"
    run(capsys, "memory", "build", model, photos, "--out", memory)
    (tmp_path / "wrong.csv").write_text("name,text\na,b\n")
    (tmp_path / "gone.csv").write_text("id,caption\n99.png,b\n")
    for words, message in {
        (memory,): "name either a model that describes the pictures, --model, or a file of --captions",
        (memory, "--captions", tmp_path / "nowhere.csv"): "no such file",
        (memory, "--captions", tmp_path / "wrong.csv"): "needs the columns 'id' or 'path', and 'caption'",
        (memory, "--captions", tmp_path / "gone.csv"): "no row of '99.png'",
        (photos, "--captions", tmp_path / "gone.csv"): "no memory",
    }.items():
        assert message in refused(capsys, "caption", *words)


def test_pairs_of_class_names_are_retrieved_and_trained_on(built, model, table, tmp_path, capsys):
    """REACT as its user runs it: no near-duplicates of the test split, each picture once, and then training."""
    (tmp_path / "names.txt").write_text("red square\nblue square\n\nred square\n")
    (tmp_path / "templates.txt").write_text("a {}\nthe {} there\n")
    words = ["memory", "retrieve", built, "--names", tmp_path / "names.txt", "--per-class", 8]
    words += ["--templates", tmp_path / "templates.txt"]
    said = run(capsys, *words, "--exclude", table, "--threshold", 0.9999, "--out", tmp_path / "found.parquet")
    rows = pq.read_table(tmp_path / "found.parquet").to_pylist()
    assert f"{len(rows)} pairs of " in said
    assert "of 2 classes; " in said
    assert "near-duplicates of" in said
    assert 8 <= len(rows) == len({row["id"] for row in rows}) <= 16
    assert {row["class_name"] for row in rows} <= {"red square", "blue square"}
    train = ["train", "post-train-react", "--model.start", model, "--data.captions", tmp_path / "found.parquet"]
    run(capsys, *train, "--steps", 1, "--batch-size", 4, "--precision", "float32", "--out", tmp_path / "run")
    assert (tmp_path / "run" / "model" / "gated.safetensors").is_file()
    near = refused(capsys, *words, "--exclude", table, "--threshold", -1, "--out", tmp_path / "x.parquet")
    assert "rows are near-duplicates of its images (cosine -1 or more), and no pair is found beside them" in near
    (tmp_path / "none.txt").write_text("\n")
    assert "no class names in it" in refused(
        capsys, "memory", "retrieve", built, "--names", tmp_path / "none.txt", "--out", tmp_path / "x.parquet"
    )
    assert "written as .parquet" in refused(capsys, *words, "--out", tmp_path / "x.csv")
