"""`recollect search`, `caption` and `evaluate retrieval` from the command line."""
# ruff: noqa: F401, F811

import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from dual_encoders import family, make_encoder, pictures
from pictures import captioned, png_bomb
from recollect.index import File, Index, Query, Rows
from recollect.models.transformers.encoder import quiet


@pytest.fixture(scope="module")
def model(make_encoder, tmp_path_factory):
    encoder = make_encoder("clip")
    with quiet():
        return encoder, str(encoder.save(tmp_path_factory.mktemp("model") / "clip"))


@pytest.fixture
def make_index(tmp_path, pictures):
    """Build an index of pictures: even ones as bytes with a caption, odd ones as files without."""

    def make(encoder, model_name=""):
        index = Index.create(tmp_path / "index", width=encoder.width, model=encoder.fingerprint, model_name=model_name)
        numbers, encoded, files, captions = range(24), [], [], []
        for row in numbers:
            buffer = io.BytesIO()
            Image.fromarray(pictures[row].image).save(buffer, "PNG")
            file = tmp_path / f"{row}.png"
            file.write_bytes(buffer.getvalue())
            encoded.append(None if row % 2 else buffer.getvalue())
            files.append([File("odd" if row % 2 else "even", f"{row}.png", str(file) if row % 2 else "")])
            captions.append(() if row % 2 else (pictures.texts(row)[0],))
        texts = [encoder.embed_texts(list(each)).numpy() if each else np.zeros((0, encoder.width)) for each in captions]
        index.insert(
            Rows(
                ids=[f"picture-{row}" for row in numbers],
                image_vectors=encoder.embed_images([pictures[row].image for row in numbers]).numpy(),
                captions=captions, caption_vectors=[each.astype(np.float32) for each in texts],
                files=files, images=encoded, metadata=[{"number": row} for row in numbers],
            )
        )  # fmt: skip
        return index

    return make


@pytest.fixture
def index(make_index, model):
    return make_index(model[0], model[1])


def test_search_writes_json(recollect, index, tmp_path):
    """Combines a file of queries, one of them empty, with a filter and episodes."""
    (tmp_path / "queries.txt").write_text("large river\n\nqueen\n")
    words = [index.address, "a red snowman", "--queries", tmp_path / "queries.txt", "--k", 4]
    words += ["--where", "source = 'even'", "--adapt", "--out", tmp_path / "results.json"]
    words += ["--episode.k", 6, "--episode.rank", 4, "--device", "cpu"]
    printed = recollect("search", *words).stdout
    results = json.loads((tmp_path / "results.json").read_text())
    assert [result["query"] for result in results["results"]] == ["a red snowman", "large river", "", "queen"]
    assert [len(result["hits"]) for result in results["results"]] == [4, 4, 0, 4]
    assert all(hit["source"] == "even" for result in results["results"] for hit in result["hits"])
    assert results["adapt"] is True
    assert "a red snowman" in printed


def hits_of(recollect, index, tmp_path, *words):
    """Return the results of a search for one query, and the printed text."""
    out = tmp_path / "results.json"
    out.unlink(missing_ok=True)
    printed = recollect("search", index.address, *words, "--out", out, "--device", "cpu").stdout
    (result,) = json.loads(out.read_text())["results"]
    return result, " ".join(printed.split())


def test_search_combines_texts_and_pictures_with_weights(recollect, index, model, tmp_path):
    file = tmp_path / "3.png"
    by_picture, printed = hits_of(recollect, index, tmp_path, "--image", file, "--k", 3)
    assert by_picture["hits"][0]["id"] == "picture-3"
    assert by_picture["hits"][0]["score"] == pytest.approx(1, abs=1e-5)
    assert by_picture["hits"][0]["path"] == str(file)
    assert file.name in printed
    options = ["queen", "--image", file, "--image-weight", "0.5", "--minus", "river", "--minus-weight", "0.25"]
    by_options, _ = hits_of(recollect, index, tmp_path, *options, "--k", 24)
    query = Query.words("queen") + 0.5 * Query.picture(file) - 0.25 * Query.words("river")
    assert [hit["id"] for hit in by_options["hits"]] == [hit.id for hit in Index.open(index.address).search(query, 24)]
    _, printed = hits_of(recollect, index, tmp_path, str(file), "--k", 1)
    assert "--image" in printed, "a file name given as text gets a hint"
    literal, _ = hits_of(recollect, index, tmp_path, '"queen" + "river"', "--k", 24)
    assert literal["query"] == '"queen" + "river"'


def test_pages_and_the_cut_off_are_reported(recollect, index, tmp_path):
    whole, _ = hits_of(recollect, index, tmp_path, "queen", "--k", 24)
    second, _ = hits_of(recollect, index, tmp_path, "queen", "--k", 5, "--page", 2)
    assert second["hits"] == whole["hits"][5:10]
    assert second["hits"][0]["rank"] == 6
    least = whole["hits"][3]["score"] - 1e-6
    cut, printed = hits_of(recollect, index, tmp_path, "queen", "--k", 20, "--min-score", least)
    assert cut["hits"] == whole["hits"][:4]
    assert cut["cut"] == 20
    assert "20 of 24 pictures score below" in printed


def test_normalized_scores_report_their_settings(recollect, check_error, index, tmp_path):
    result, printed = hits_of(recollect, index, tmp_path, "queen", "--normalize", "--k", 24)
    assert {hit["scored_by"] for hit in result["hits"]} == {"normalized"}
    assert "normalized: alpha" in printed
    assert json.loads((tmp_path / "results.json").read_text())["normalization"]["reciprocal_rank"] > 0
    check_error("--adapt", "search", index.address, "queen", "--normalize", "--adapt", "--device", "cpu")


def test_hostile_captions_are_escaped(recollect, make_index, model, tmp_path, pictures):
    pictures.texts = lambda row: ("\x1b[31mred\x07 [/b] <script>alert(1)</script>",)
    index = make_index(model[0], model[1])
    result, printed = hits_of(recollect, index, tmp_path, "[/b] queen\x1b[2J", "--k", 24)
    assert len(result["hits"]) == 24
    assert "\x1b[31m" not in printed
    assert "\x1b[2J" not in printed
    assert "\\x1b[31mred\\x07 [/b] <script>" in printed
    recollect("search", index.address, "queen", "--out", tmp_path / "results.html", "--device", "cpu")
    page = (tmp_path / "results.html").read_text()
    assert "<script>alert" not in page
    assert page.count("<figure>") == page.count("data:image/jpeg") == 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "missing: QUERY"),
        (["  "], "empty"),
        (["queen", "--k", "0"], "--k 0"),
        (["queen", "--where", "source = 'none'"], "none"),
        (["queen", "--where", "source >>> 3"], "source >>> 3"),
        (["queen", "--out", "results.txt"], ".json or .html"),
        (["queen", "--queries", "nothing.txt"], "nothing.txt"),
        (["queen", "--adapt", "--episode.k", "1"], "at least 2"),
        (["queen", "--page", "0"], "--page 0"),
        (["queen", "--min-score", "nan"], "--min-score nan"),
        (["--image", "nothing.png"], "nothing.png: no such picture"),
        (["queen", "--image", "nothing.png", "--image-weight", "0"], "--image-weight 0"),
        (["queen", "--minus", "queen"], "cancel out"),
        (["queen", "--minus", " "], "one of its terms is empty"),
        (["queen", "--adapt", "--among", "captions"], "--adapt"),
    ],
)
def test_bad_input_of_search_gives_a_one_line_error(check_error, index, words, message):
    check_error(message, "search", index.address, *words)


def test_a_picture_too_large_gives_one_error_line_and_no_warning_from_pillow(check_error, index, tmp_path, recwarn):
    (tmp_path / "large.png").write_bytes(png_bomb(9500, 9500))
    words = ("search", index.address, "--image", tmp_path / "large.png", "--device", "cpu")
    check_error("more than 89,478,485 pixels", *words)
    assert not [each for each in recwarn.list if "decompression bomb" in str(each.message)]


class SizeCaptioner:
    def __init__(self, *_):
        pass

    def describe(self, images):
        return [f"a picture of {image.size[0]}" for image in images]


def test_caption_adds_missing_captions_and_search_adapts_to_them(recollect, index, monkeypatch, tmp_path):
    monkeypatch.setattr("recollect.efsa.captioner.TransformersCaptioner", SizeCaptioner)
    (tmp_path / "3.png").unlink()
    out = recollect("caption", index.address, "--model", "captioner").stdout
    assert "11 captions written" in out
    assert "12 pictures had one" in out
    assert "1 picture skipped" in out
    assert "0 captions written" in recollect("caption", index.address, "--model", "captioner").stdout
    words = ["--adapt", "--episode.k", 24, "--episode.rank", 2, "--k", 24, "--device", "cpu"]
    out = recollect("search", index.address, "queen", *words).stdout
    assert "a picture of 16" in out
    assert "1 of 24 pictures have no caption: the episode learned from 23" in out.replace("\n", " ").replace("  ", " ")


def test_a_table_may_have_several_captions_per_picture(recollect, index, tmp_path):
    (tmp_path / "c.csv").write_text("Path,Caption\n1.png,a dog\n3.png,a cat\n1.png,a dog runs\n")
    out = recollect("caption", index.address, "--captions", tmp_path / "c.csv").stdout
    assert "2 of 2 pictures have new captions" in out
    (picture,) = [each for each in Index.open(index.address).pictures(index.ids) if each.path == tmp_path / "1.png"]
    assert picture.captions[:2] == ("a dog", "a dog runs")


def test_captions_of_an_ambiguous_file_name_change_nothing(recollect, index, tmp_path):
    (tmp_path / "other").mkdir()
    Image.new("RGB", (9, 9), "red").save(tmp_path / "other" / "1.png")
    Index.open(index.address).add(tmp_path / "other")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "c.csv").write_text("path,caption\n3.png,a cat\n1.png,a dog\n")
    done = recollect("caption", index.address, "--captions", tmp_path / "far" / "c.csv", check=False)
    assert done.returncode == 2
    assert "1.png" in done.stderr
    assert not any("a cat" in each.captions for each in Index.open(index.address))


def test_caption_writes_a_file_that_evaluation_can_use(recollect, model, monkeypatch, tmp_path):
    monkeypatch.setattr("recollect.efsa.captioner.TransformersCaptioner", SizeCaptioner)
    texts = [f"a tree above the car {'left ' * (number % 4)} {'red ' * (number // 4)}" for number in range(20)]
    data, captions = captioned(tmp_path, texts), tmp_path / "captions.jsonl"
    assert recollect("caption", data, "--model", "captioner", check=False).returncode == 2  # no --out
    recollect("caption", data, "--model", "captioner", "--out", captions, "--split", "all")
    words = ["--data", data, "--split", "all", "--methods", "zero-shot", "text-to-text", "episode", "--queries", 8]
    words += ["--captions", captions, "--episode.k", 5, "--episode.rank", 2, "--device", "cpu"]
    out = recollect("evaluate", "retrieval", model[1], *words, "--out", tmp_path / "figures.json").stdout
    assert "text-to-text" in out
    assert "fell back" in out
    (result,) = json.loads((tmp_path / "figures.json").read_text())
    assert result["settings"]["captions"] == 20
    assert result["settings"]["queries"] == 8
    shutil.copy(captions, tmp_path / "captions.txt")
    words += ["--captions", tmp_path / "captions.txt"]
    assert recollect("evaluate", "retrieval", model[1], *words, check=False).returncode == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "magic"], "magic"),
        (["--captions", "some"], "--captions some"),
        (["--methods", "episode", "--captions", "nothing.jsonl"], "no such file"),
    ],
)
def test_bad_input_of_retrieval_is_reported(recollect, model, tmp_path, words, message):
    words = ["--data", captioned(tmp_path, ["a tree"]), "--split", "all", "--device", "cpu", *words]
    done = recollect("evaluate", "retrieval", model[1], *words, check=False)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_each_source_of_a_merged_pool_can_have_its_own_kind_of_captions(recollect, model, tmp_path):
    """Here the true captions, another column and a file."""
    data = []
    for name in ("one", "two", "three"):
        texts = [f"the {name} river {'tree ' * row},a car {'left ' * row}" for row in range(6)]
        data.append(captioned(tmp_path / name, texts, columns="caption,machine"))
    written = [json.dumps({"id": f"{row}.png", "caption": f"a queen {'red ' * row}"}) for row in range(6)]
    (tmp_path / "three.jsonl").write_text("\n".join(written) + "\n")
    kinds = f"true,column:machine,{tmp_path / 'three.jsonl'}"
    out = tmp_path / "results.json"
    words = ["evaluate", "retrieval", model[1], "--data", *data, "--split", "all", "--caption-column", "caption"]
    words += ["--pool", "merged", "--methods", "zero-shot", "text-to-text"]
    assert "R@3" in recollect(*words, "--captions", kinds, "--depths", 1, 3, "--out", out).stdout
    (result,) = json.loads(out.read_text())
    assert result["settings"]["captions"] == 18
    assert {row["k"] for row in result["rows"] if row["metric"] == "recall"} == {1, 3}
    done = recollect(*words, "--captions", "held-out,true", check=False)
    assert (done.returncode, "2 kinds for 3 sources" in done.stderr) == (2, True), done.stderr
