"""Options that a command does not read beside the others are refused before anything is opened."""

import pytest
from PIL import Image

from recollect import cli
from recollect.cli.memory import Remove
from recollect.cli.unread import split_for
from recollect.core.errors import UserError

SEARCH, REMOVE = ("search", "MEMORY", "a cat"), ("memory", "remove", "MEMORY", "--ids", "1")
BUILD = ("memory", "build", "MODEL", "glyphs:captions", "--out", "OUT", "--limit", "5")
RETRIEVE = ("memory", "retrieve", "MEMORY", "--names", "n.txt", "--out", "o.parquet")
RECO = ("train", "reco", "MODEL", "--memory", "MEMORY", "--data", "a.csv")
RETRIEVAL = ("evaluate", "retrieval", "MODEL", "--data", "a.parquet")
FEW, FEATURES = ("evaluate", "few-shot"), ("evaluate", "few-shot", "--features", "a.parquet")
ARRAYS = (*FEW, "--features", "a.npy", "--feature-labels", "b.npy")
UNREAD = (
    (SEARCH, ("--image-weight", "2"), "--image-weight: is of pictures. Name one with --image FILE."),
    (SEARCH, ("--minus-weight", "2"), "--minus-weight: is of words to take away"),
    (("search", "MEMORY", "--image", "a.png"), ("--literal",), "--literal: is for queries in words"),
    (SEARCH, ("--episode.k", "8"), "--episode.k: is of --rerank episode. Add that, or leave this out."),
    (SEARCH, ("--rerank", "episode", "--episode.parameters", "all"), "--episode.parameters: --rerank says it"),
    (SEARCH, ("--rerank", "episode-paper", "--episode.soft", "0.5"), "--episode.soft: --rerank episode-paper has the"),
    (SEARCH, ("--rerank", "episode-full", "--episode.rank", "4"), "--episode.rank: is of adapters"),
    (BUILD, ("--caption-column", "text"), "--caption-column: is for files with columns; glyphs:captions has none"),
    (("memory", "add", "MEMORY", "a.csv?split=test"), ("--split", "train"), "names another split"),
    (("memory", "remove", "MEMORY", "--near", "a.csv?split=val"), ("--split", "train"), "names another split"),
    (RETRIEVE, ("--threshold", "0.5"), "--threshold: is for --exclude SOURCE"),
    (RETRIEVE, ("--exclude", "a.csv?split=val", "--split", "train"), "--split train: a.csv?split=val names another"),
    (RECO, ("--kind", "mlp", "--read", "uni"), "--read: is of what reads a memory, and --kind mlp reads none"),
    (RECO, ("--preset", "paper", "--newness-strength", "3"), "--newness-strength: there is no simulated newness"),
    (RECO, ("--newness", "rotation", "--newness-share", "0.7"), "--newness-share: is of --newness offsets"),
    (("caption", "SOURCE", "--captions", "c.csv"), ("--prompt", "what"), "--prompt: is of a model that describes"),
    *((REMOVE, words, f"{words[0]}: is for --near SOURCE. Leave it out.")
      for words in (("--model", "m"), ("--split", "train"), ("--threshold", "0.5"), ("--device", "cpu"))),
    (("classify", "--names", "a", "b", "--save", "OUT"), ("--alpha", "0.2"), "--alpha: is of predictions"),
    (("classify", "--names", "a", "b", "--save", "OUT"), ("--out", "p"), "--out: is of predictions. Name what to clas"),
    (("evaluate", "zero-shot", "MODEL", "--data", "a"), ("--support", "all"), "--support: is not read by `recollect e"),
    (("evaluate", "zero-shot", "MODEL", "--data", "a"), ("--copies", "b=c"), "--copies: is of the sets of a suite"),
    *((("evaluate", "probe", "MODEL", "--data", "a"), words, f"{words[0]}: is not read by `recollect evaluate probe`")
      for words in (("--templates", "t.txt"), ("--definitions", "d.csv"), ("--prefix", "label"))),
    (("evaluate", "probe", "MODEL", "--data", "a"), ("--within", "test", "--query", "val"), "--query: --within divide"),
    (("evaluate", "several", "MODEL", "--data", "a"), ("--no-probe", "--support", "val"), "--support: is of the probe"),
    (RETRIEVAL, ("--teacher", "m"), "--teacher: is of --methods rlcf. Add that, or leave this out."),
    (RETRIEVAL, ("--reward.steps", "4"), "--reward.steps: is of --methods rlcf"),
    (RETRIEVAL, ("--tuning.epochs", "5"), "--tuning.epochs: is of --methods fine-tuning"),
    (RETRIEVAL, ("--episode.k", "4"), "--episode.k: is of --methods episode"),
    (RETRIEVAL, ("--full-learning-rate", "0.1"), "--full-learning-rate: is of --methods episode-full"),
    (RETRIEVAL, ("--methods", "episode-paper", "--episode.steps", "4"), "--episode.steps: --methods episode-paper has"),
    (RETRIEVAL, ("--copies", "a=b"), "--copies: is of --suite"),
    (RETRIEVAL, ("--methods", "normalised", "--prefix", "label"), "--prefix: only the plain search reads it"),
    ((*FEW, "MODEL", "--data", "a"), ("--effort", "0.5"), "--effort: is of methods that tune the model"),
    ((*FEW, "MODEL", "--data", "a"), ("--no-flip",), "--flip: is of methods that tune the model"),
    ((*FEW, "MODEL", "--data", "a"), ("--teacher", "m"), "--teacher: is of --methods caspl"),
    ((*FEW, "MODEL", "--data", "a"), ("--texts", "t.npy"), "--texts: is of embeddings of your own. Name them with"),
    ((*FEW, "MODEL", "--data", "a"), ("--scale", "20"), "--scale: is of embeddings of your own"),
    (FEATURES, ("--feature-labels", "l.npy"), "--feature-labels: is of .npy files"),
    *((FEATURES, words, f"{words[0]}: embeddings of your own are read as they are")
      for words in (("--templates", "t.txt"), ("--cache", "c"), ("--prefix", "label"), ("--device", "cpu"),
                    ("--memory", "m"))),
    (ARRAYS, ("--label-column", "l"), "--label-column: is of Parquet files"),
    (ARRAYS, ("--query", "val"), "--query: is of splits, which .npy files have none of"),
    (("evaluate", "zero-shot", "MODEL", "--data", "glyphs:captions"), ("--form", "clip-benchmark"), "--form: is of"),
    (("evaluate", "zero-shot", "m/m", "--data", "a"), ("--k", "3"), "--k: says how a memory is read"),
    (SEARCH, ("--read.k", "3"), "--read.k: says how a memory is read"),
    (("evaluate", "retrieval", "MODEL", "--data", "a.csv?split=val"), ("--split", "train"), "names another split"),
)  # fmt: skip
# what would otherwise be missed when all is done
LATE = (
    (("embed", "./none", "--data", "a.csv"), ("--k", "3"), "--k: says how a memory is read"),
    (("evaluate", "probe", "m/m", "--data", "a"), ("--form", "clip-benchmark", "--out", "x.json"), "has one file for"),
    (("evaluate", "retrieval", "m/m", "./none", "--data", "a.csv"), ("--k", "3"), "--k: says how a memory is read"),
    (("evaluate", "retrieval", "m/m", "./none", "--data"), ("a.csv",), "./none: no such folder"),
)  # fmt: skip
BY_DEFAULT = (
    (SEARCH, ("--image_weight=1.0",), "--image-weight: is of pictures"),
    (("search", "MEMORY", "--image", "a.png"), ("--no-literal",), "--literal: is for queries in words"),
    (SEARCH, ("--episode.k", "16"), "--episode.k: is of --rerank episode"),
    (SEARCH, ("--read.k", "10"), "--read.k: says how a memory is read"),
    (BUILD, ("--caption-column", "None"), "--caption-column: is for files with columns"),
    (RECO, ("--kind", "mlp", "--k", "10"), "--k: is of what reads a memory"),
    (("classify", "--names", "a", "b", "--save", "OUT"), ("--alpha", "0.1"), "--alpha: is of predictions"),
    (("evaluate", "zero-shot", "m/m", "--data", "a"), ("--k", "10"), "--k: says how a memory is read"),
    (("evaluate", "retrieval", "MODEL", "--data", "a.csv?split=val"), ("--split", "test"), "names another split"),
    (RETRIEVAL, ("--reward.steps", "8"), "--reward.steps: is of --methods rlcf"),
    ((*FEW, "MODEL", "--data", "a"), ("--flip",), "--flip: is of methods that tune the model"),
    ((*FEW, "MODEL", "--data", "a"), ("--effort", "1.0"), "--effort: is of methods that tune the model"),
    (FEATURES, ("--prefix", "auto"), "--prefix: embeddings of your own are read as they are"),
)
"""Options that are given as they are by themselves."""


@pytest.mark.parametrize(
    ("command", "words", "message"), [*UNREAD, *LATE, *BY_DEFAULT], ids=lambda part: " ".join(part[-2:])
)
def test_what_a_command_would_not_read_is_refused(command, words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_split_that_an_address_names_is_the_one_that_is_read(tmp_path, monkeypatch):
    """And not the one that an option has by itself."""
    Image.new("RGB", (8, 8), "red").save(tmp_path / "0.png")
    (tmp_path / "a.csv").write_text("path,caption,split\n0.png,one,train\n0.png,two,val\n0.png,three,test\n")
    place = str(tmp_path / "a.csv")
    compared = {spec: Remove("MEMORY", near=spec)._compared(spec).texts(0) for spec in (place, f"{place}?split=val")}
    assert list(compared.values()) == [("three",), ("two",)]
    assert split_for(f"{place}?split=val", "test", "test") is None
    assert split_for(place, "test", "test") == "test"

    asked = []

    def several_labels_task(spec, *, query, **options):
        asked.append(query)
        raise UserError("enough")

    monkeypatch.setattr("recollect.cli.evaluate_several.several_labels_task", several_labels_task)
    for words in ((place,), (f"{place}?split=val",), (place, "--query", "train")):
        assert cli.main(["evaluate", "several", "MODEL", "--data", *words]) == 2
    assert asked == ["test", "val", "train"]
