"""One rule for how texts are read: by build, search, training and captions alike, and kept in the memory's record."""

import numpy as np
import pytest
from PIL import Image

from recollect.core.errors import UserError
from recollect.core.types import caption_prefix
from recollect.data.sources import open_source
from recollect.memory import Memory
from recollect.memory.build.building import BuildOptions, fill_memory, open_for_build
from recollect.memory.build.reading import Reader
from recollect.models import build_model
from recollect.reco.pairs import embed_pairs
from recollect.search.opening import open_searcher

TEXTS = [f"a {colour} {shape}" for colour in ("red", "green", "blue") for shape in ("square", "circle", "cross", "dot")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that reads captions and labels each behind a prefix of its own."""
    model = build_model("tiny", texts=TEXTS * 20, seed=0)
    model.add_prefixes(("caption", "label"), length=2, seed=1)
    folder = tmp_path_factory.mktemp("model") / "model"
    model.save(folder)
    return model, str(folder)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    lines = ["path,caption"]
    for number, text in enumerate(TEXTS):
        Image.new("RGB", (16, 16), (number * 20, 0, 0)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{text}")
    (folder / "pairs.csv").write_text("\n".join(lines))
    return str(folder / "pairs.csv")


@pytest.fixture(scope="module")
def memory(model, table, tmp_path_factory):
    encoder, name = model
    made = open_for_build(tmp_path_factory.mktemp("memory") / "memory", encoder, name, "float32")
    fill_memory(made, Reader(encoder, open_source(table), encoder.fingerprint), BuildOptions())
    return made


def text_vectors(memory, captions):
    rows = {item.caption: item.id for item in memory.fetch(all_ids(memory))}
    return memory.vectors([rows[caption] for caption in captions], "text")


def all_ids(memory):
    return [id for batch in memory.columns(["id"]) for id in batch["id"]]


def test_build_training_and_search_read_a_text_alike(model, memory, table):
    encoder, _ = model
    assert memory.prefix == caption_prefix(encoder) == "caption"
    as_captions = encoder.embed_texts(TEXTS, "caption").numpy()
    for other in (encoder.embed_texts(TEXTS), encoder.embed_texts(TEXTS, "label")):
        assert np.abs(other.numpy() - as_captions).max() > 0.01  # a reading makes a difference
    np.testing.assert_allclose(text_vectors(memory, TEXTS), as_captions, atol=1e-6)
    pairs = embed_pairs(encoder, (open_source(table),), None, 0.0)
    np.testing.assert_allclose(pairs.texts, encoder.embed_texts(list(pairs.captions), "caption"), atol=1e-6)
    found = open_searcher(memory.address, among="captions").search(TEXTS, 1)
    assert [result.hits[0].item.caption for result in found] == TEXTS
    assert [result.hits[0].score for result in found] == pytest.approx([1] * len(TEXTS), abs=1e-5)


def test_a_caption_that_comes_later_is_read_as_those_that_were_there(model, memory, tmp_path):
    encoder, _ = model
    (id,) = memory.search(encoder.embed_texts(TEXTS[:1], "caption"), 1, "text").ids[0]
    memory.set_captions({id: "a red dot and a blue circle"}, encoder)
    wanted = encoder.embed_texts(["a red dot and a blue circle"], "caption").numpy()
    np.testing.assert_allclose(memory.vectors([id], "text"), wanted, atol=1e-6)
    memory.set_captions({id: TEXTS[0]}, encoder)


def test_a_memory_whose_texts_were_read_otherwise_is_refused_by_all(model, table, tmp_path, capsys):
    from recollect import cli

    encoder, name = model
    made = Memory.create(tmp_path / "m", width=encoder.width, model=encoder.fingerprint, model_name=name)
    said = "its texts were read without a prefix, but .* reads them as captions"
    with pytest.raises(UserError, match=said):
        open_for_build(made.address, encoder, name)
    with pytest.raises(UserError, match=said):
        open_searcher(made.address)
    with pytest.raises(UserError, match=said):
        made.set_captions({}, encoder)
    assert cli.main(["memory", "add", made.address, table]) == 2
    assert "its texts were read without a prefix" in capsys.readouterr().err
