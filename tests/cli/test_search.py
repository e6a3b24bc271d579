"""Search and evaluate retrieval as their users run them."""
# ruff: noqa: F401, F811

import io
import json
import shutil
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from dual_encoders import family, make_encoder, pictures
from recollect import cli
from recollect.index import File, Index, Query, Rows
from recollect.models.transformers.encoder import quiet


@pytest.fixture(scope="module")
def model(make_encoder, tmp_path_factory):
    encoder = make_encoder("clip")
    with quiet():
        return encoder, str(encoder.save(tmp_path_factory.mktemp("model") / "clip"))


@pytest.fixture
def make_index(tmp_path, pictures):
    """An index of pictures: the even ones as bytes with captions of their own, the odd ones as files without."""

    def make(encoder, model_name=""):
        made = Index.create(tmp_path / "index", width=20, model=encoder.fingerprint, model_name=model_name)
        numbers, encoded, files, captions = range(24), [], [], []
        for row in numbers:
            buffer = io.BytesIO()
            Image.fromarray(pictures[row].image).save(buffer, "PNG")
            file = tmp_path / f"{row}.png"
            file.write_bytes(buffer.getvalue())
            encoded.append(None if row % 2 else buffer.getvalue())
            files.append([File("odd" if row % 2 else "even", f"{row}.png", str(file) if row % 2 else "")])
            captions.append(() if row % 2 else (pictures.texts(row)[0],))
        texts = [encoder.embed_texts(list(each)).numpy() if each else np.zeros((0, 20)) for each in captions]
        made.insert(
            Rows(
                ids=[f"picture-{row}" for row in numbers],
                image_vectors=encoder.embed_images([pictures[row].image for row in numbers]).numpy(),
                captions=captions, caption_vectors=[each.astype(np.float32) for each in texts],
                files=files, images=encoded, metadata=[{"number": row} for row in numbers],
            )
        )  # fmt: skip
        return made

    return make


@pytest.fixture
def index(make_index, model):
    return make_index(model[0], model[1])


@pytest.fixture
def run(capsys):
    """Runs a command in this process; gives its exit status and what it printed."""

    def command(*words):
        status = cli.main([str(word) for word in words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return command


def test_search_writes_json(run, index, tmp_path):
    """With a file of queries, one of them empty, a filter and episodes at once."""
    (tmp_path / "queries.txt").write_text("large river\n\nqueen\n")
    words = [index.address, "a red snowman", "--queries", tmp_path / "queries.txt", "--k", 4]
    words += ["--where", "source = 'even'", "--adapt", "--out", tmp_path / "found.json"]
    words += ["--episode.k", 6, "--episode.rank", 4, "--device", "cpu"]
    status, printed, err = run("search", *words)
    assert status == 0, err
    found = json.loads((tmp_path / "found.json").read_text())
    assert [result["query"] for result in found["results"]] == ["a red snowman", "large river", "", "queen"]
    assert [len(result["hits"]) for result in found["results"]] == [4, 4, 0, 4]
    assert all(hit["source"] == "even" for result in found["results"] for hit in result["hits"])
    assert found["adapt"] is True
    assert "a red snowman" in printed


def hits_of(run, index, tmp_path, *words):
    """What one query of a command found, and what the command printed."""
    out = tmp_path / "found.json"
    out.unlink(missing_ok=True)
    status, printed, err = run("search", index.address, *words, "--out", out, "--device", "cpu")
    assert status == 0, err
    (result,) = json.loads(out.read_text())["results"]
    return result, " ".join(printed.split())


def test_search_by_words_and_pictures_with_weights_and_what_is_not_wanted(run, index, model, tmp_path):
    file = tmp_path / "3.png"
    by_picture, printed = hits_of(run, index, tmp_path, "--image", file, "--k", 3)
    assert by_picture["hits"][0]["id"] == "picture-3"
    assert by_picture["hits"][0]["score"] == pytest.approx(1, abs=1e-5)
    assert by_picture["hits"][0]["path"] == str(file)
    assert file.name in printed
    options = ["queen", "--image", file, "--image-weight", "0.5", "--minus", "river", "--minus-weight", "0.25"]
    by_options, _ = hits_of(run, index, tmp_path, *options, "--k", 24)
    query = Query.words("queen") + 0.5 * Query.picture(file) - 0.25 * Query.words("river")
    assert [hit["id"] for hit in by_options["hits"]] == [hit.id for hit in Index.open(index.address).search(query, 24)]
    _, printed = hits_of(run, index, tmp_path, str(file), "--k", 1)
    assert "--image" in printed, "a file among the words is pointed out"
    literal, _ = hits_of(run, index, tmp_path, '"queen" + "river"', "--k", 24)
    assert literal["query"] == '"queen" + "river"'


def test_pages_and_the_cut_off_say_what_they_leave_out(run, index, tmp_path):
    whole, _ = hits_of(run, index, tmp_path, "queen", "--k", 24)
    second, _ = hits_of(run, index, tmp_path, "queen", "--k", 5, "--page", 2)
    assert second["hits"] == whole["hits"][5:10]
    assert second["hits"][0]["rank"] == 6
    least = whole["hits"][3]["score"] - 1e-6
    cut, printed = hits_of(run, index, tmp_path, "queen", "--k", 20, "--min-score", least)
    assert cut["hits"] == whole["hits"][:4]
    assert cut["cut"] == 20
    assert "20 of 24 pictures score below" in printed


def test_normalized_scores_say_what_was_chosen(run, index, tmp_path):
    found, printed = hits_of(run, index, tmp_path, "queen", "--normalize", "--k", 24)
    assert {hit["scored_by"] for hit in found["hits"]} == {"normalized"}
    assert "normalized: alpha" in printed
    assert json.loads((tmp_path / "found.json").read_text())["normalization"]["reciprocal_rank"] > 0
    status, _, err = run("search", index.address, "queen", "--normalize", "--adapt", "--device", "cpu")
    assert status == 2
    assert "--adapt" in err


def test_hostile_captions_are_shown_and_do_nothing(run, make_index, model, tmp_path, pictures):
    pictures.texts = lambda row: ("\x1b[31mred\x07 [/b] <script>alert(1)</script>",)
    index = make_index(model[0], model[1])
    found, printed = hits_of(run, index, tmp_path, "[/b] queen\x1b[2J", "--k", 24)
    assert len(found["hits"]) == 24
    assert "\x1b[31m" not in printed
    assert "\x1b[2J" not in printed
    assert "\\x1b[31mred\\x07 [/b] <script>" in printed
    run("search", index.address, "queen", "--out", tmp_path / "found.html", "--device", "cpu")
    page = (tmp_path / "found.html").read_text()
    assert "<script>alert" not in page
    assert page.count("<figure>") == page.count("data:image/jpeg") == 20


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "missing: QUERY"),
        (["  "], "empty"),
        (["queen", "--k", "0"], "--k 0"),
        (["queen", "--where", "source = 'none'"], "none"),
        (["queen", "--where", "source >>> 3"], "source >>> 3"),
        (["queen", "--out", "found.txt"], ".json or .html"),
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
def test_search_says_in_one_line_what_is_wrong(run, index, words, said):
    status, _, err = run("search", index.address, *words)
    assert status == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_a_picture_too_large_is_one_line_to_which_pillow_adds_none(run, index, tmp_path, recwarn):
    header = b"IHDR" + struct.pack(">IIBBBBB", 9500, 9500, 8, 2, 0, 0, 0)
    parts = (header, b"IDAT")
    chunks = [struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts]
    (tmp_path / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    status, _, err = run("search", index.address, "--image", tmp_path / "large.png", "--device", "cpu")
    assert (status, err.count("more than 89,478,485 pixels"), len(err.strip().splitlines())) == (2, 1, 1)
    assert not [each for each in recwarn.list if "decompression bomb" in str(each.message)]


class Scribe:
    def __init__(self, *_):
        pass

    def describe(self, images):
        return [f"a picture of {image.size[0]}" for image in images]


def test_caption_fills_the_gaps_of_an_index_and_search_learns_from_them(run, index, monkeypatch, tmp_path):
    monkeypatch.setattr("recollect.efsa.captioner.TransformersCaptioner", Scribe)
    (tmp_path / "3.png").unlink()
    status, out, err = run("caption", index.address, "--model", "scribe")
    assert status == 0, err
    assert "11 captions written" in out
    assert "12 pictures had one" in out
    assert "1 picture skipped" in out
    assert "0 captions written" in run("caption", index.address, "--model", "scribe")[1]
    words = ["--adapt", "--episode.k", 24, "--episode.rank", 2, "--k", 24, "--device", "cpu"]
    status, out, err = run("search", index.address, "queen", *words)
    assert status == 0, err
    assert "a picture of 16" in out
    assert "1 of 24 pictures have no caption: the episode learned from 23" in out.replace("\n", " ").replace("  ", " ")


def test_a_table_may_name_a_picture_for_each_of_its_captions(run, index, tmp_path):
    (tmp_path / "c.csv").write_text("Path,Caption\n1.png,a dog\n3.png,a cat\n1.png,a dog runs\n")
    status, out, err = run("caption", index.address, "--captions", tmp_path / "c.csv")
    assert status == 0, err
    assert "2 of 2 pictures have new captions" in out
    (found,) = [each for each in Index.open(index.address).pictures(index.ids) if each.path == tmp_path / "1.png"]
    assert found.captions[:2] == ("a dog", "a dog runs")


def test_caption_describes_a_source_into_a_file_that_evaluation_reads(run, model, monkeypatch, tmp_path):
    monkeypatch.setattr("recollect.efsa.captioner.TransformersCaptioner", Scribe)
    lines = ["path,caption"]
    for number in range(20):
        Image.new("RGB", (16 + number, 16), (12 * number, 90, 200 - 9 * number)).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,a tree above the car {'left ' * (number % 4)} {'red ' * (number // 4)}")
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    data, captions = tmp_path / "pairs.csv", tmp_path / "captions.jsonl"
    assert run("caption", data, "--model", "scribe")[0] == 2  # where to?
    status, _, err = run("caption", data, "--model", "scribe", "--out", captions, "--split", "all")
    assert status == 0, err
    words = ["--data", data, "--split", "all", "--methods", "zero-shot", "text-to-text", "episode", "--queries", 8]
    words += ["--captions", captions, "--episode.k", 5, "--episode.rank", 2, "--device", "cpu"]
    status, out, err = run("evaluate", "retrieval", model[1], *words, "--out", tmp_path / "figures.json")
    assert status == 0, err
    assert "text-to-text" in out
    assert "fell back" in out
    (result,) = json.loads((tmp_path / "figures.json").read_text())
    assert result["settings"]["captions"] == 20
    assert result["settings"]["queries"] == 8
    shutil.copy(captions, tmp_path / "captions.txt")
    assert run("evaluate", "retrieval", model[1], *words, "--captions", tmp_path / "captions.txt")[0] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "magic"], "magic"),
        (["--captions", "some"], "--captions some"),
        (["--methods", "episode", "--captions", "nothing.jsonl"], "no such file"),
    ],
)
def test_evaluate_retrieval_says_in_one_line_what_is_wrong(run, model, tmp_path, words, said):
    Image.new("RGB", (16, 16)).save(tmp_path / "0.png")
    (tmp_path / "pairs.csv").write_text("path,caption\n0.png,a tree")
    status, _, err = run(
        "evaluate", "retrieval", model[1], "--data", tmp_path / "pairs.csv", "--split", "all", "--device", "cpu", *words
    )
    assert status == 2
    assert said in err


def test_each_source_has_captions_of_its_own_kind_and_a_pool_joins_them(run, model, tmp_path):
    """Human sentences of one source, another column of the second, a file for the third."""
    for name in ("one", "two", "three"):
        lines = ["path,caption,machine"]
        for row in range(6):
            Image.new("RGB", (16, 16), (25 * row, 90, len(name))).save(tmp_path / f"{name}-{row}.png")
            lines.append(f"{name}-{row}.png,the {name} river {'tree ' * row},a car {'left ' * row}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    written = [json.dumps({"id": f"three-{row}.png", "caption": f"a queen {'red ' * row}"}) for row in range(6)]
    (tmp_path / "three.jsonl").write_text("\n".join(written) + "\n")
    kinds = f"true,column:machine,{tmp_path / 'three.jsonl'}"
    words = [*("--data", *(tmp_path / f"{name}.csv" for name in ("one", "two", "three"))), "--split", "all"]
    words += ["--caption-column", "caption", "--pool", "merged", "--methods", "zero-shot", "text-to-text"]
    out = tmp_path / "found.json"
    status, printed, err = run(
        "evaluate", "retrieval", model[1], *words, "--captions", kinds, "--depths", 1, 3, "--out", out
    )
    assert status == 0, err
    assert "R@3" in printed
    (result,) = json.loads(out.read_text())
    assert result["settings"]["captions"] == 18
    assert {row["k"] for row in result["rows"] if row["metric"] == "recall"} == {1, 3}
    status, _, err = run("evaluate", "retrieval", model[1], *words, "--captions", "held-out,true")
    assert status == 2
    assert "2 kinds for 3 sources" in err
