"""The page beyond one list: an episode and why, where a search ends, everything sorted, labels in the memory."""

import io
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from PIL import Image

import guide_world
from colours import COLOURS, ColourEncoder, shade
from pages import colour_memory, start
from recollect.apps.classify.classifier import Classifier
from recollect.data.sources.images import pixel_digest
from recollect.memory.rows import Pairs
from recollect.memory.store import Memory
from recollect.search.opening import open_searcher
from recollect.search.query import Query
from recollect.web.layout import lay_out
from recollect.web.session import SearchTerm


def test_an_adapted_search_is_the_commands_own_and_says_what_it_learnt_from(drawings):
    session = drawings.session
    words = "a red bridge by the sea"
    plain = session.search([SearchTerm(words)])
    order = session.search([SearchTerm(words)], adapt=True)
    command = open_searcher(session.collection.memory, model=session.model_name, rerank="episode")
    expected = command.search(words, 30)
    assert [session.collection.ids[row] for row in order.rows[:16]] == [hit.item.id for hit in expected.hits[:16]]
    np.testing.assert_allclose(order.scores[:16], [hit.score for hit in expected.hits[:16]], atol=1e-5)
    assert sorted(order.rows.tolist()) == list(range(30)), "every picture once"
    np.testing.assert_array_equal(order.rows[16:], [row for row in plain.rows if row not in set(order.rows[:16])])
    assert plain.about["notes"] == []
    (note,) = session.search([SearchTerm("bridge " * 99), SearchTerm(row=3)]).about["notes"]
    assert "tokens, of which the model reads the first" in note
    episode = order.about["episode"]
    assert episode["changed"]
    captioned = [hit for hit in expected.hits[:16] if hit.item.caption]
    assert {pair["id"] for pair in episode["learnt"]} == {hit.item.id for hit in captioned}
    for pair in episode["learnt"]:
        assert plain.rows[pair["before"] - 1] == order.rows[pair["after"] - 1] == pair["row"]
    tiles = session.window(order.key, 0, 30)
    assert [tile.get("before") for tile in tiles[:16]] == [hit.zero_shot_rank for hit in expected.hits[:16]]
    assert not any("before" in tile for tile in tiles[16:])


def test_an_adapted_search_takes_pictures_and_filters(drawings):
    session, large = drawings.session, io.BytesIO()
    guide_world.drawing(5).resize((1500, 1400)).effect_spread(40).save(large, "JPEG")
    found = session.search([SearchTerm(upload=session.upload(large.getvalue()))])
    command = open_searcher(session.collection.memory, model=session.model_name)
    expected = command.search(Query.picture(Image.open(large).convert("RGB")), 30)
    np.testing.assert_allclose(found.scores, [hit.score for hit in expected.hits], atol=1e-5)
    key = session.upload(guide_world.encoded(guide_world.drawing(77)))
    order = session.search([SearchTerm(upload=key), SearchTerm(row=3, weight=-0.5)], "number < 12", adapt=True)
    assert sorted(order.rows.tolist()) == list(range(12))


def test_a_model_without_episodes_says_so(shared_page):
    status, said = shared_page.call("/api/search", {"terms": [{"words": "red"}], "adapt": True})
    assert status == 400
    assert "cannot refine" in said["error"]


def test_what_adapting_needs_is_known_beforehand(shared_page, drawings, tmp_path):
    assert "cannot refine" in shared_page.call("/api/filters")[1]["cannot_adapt"]
    assert drawings.call("/api/filters")[1]["cannot_adapt"] is None
    memory, encoder = drawings.session.collection.memory, drawings.session.encoder
    every = memory.backend.rows(memory.ids_where("number >= 0"))
    bare = Memory.create(tmp_path / "memory", width=encoder.width, model=encoder.fingerprint)
    bare.add(replace(every, captions=[""] * len(every.ids), text_vectors=np.zeros_like(every.text_vectors)))
    page, stop = start(tmp_path / "memory", encoder=encoder, name=drawings.session.model_name)
    reason = page.call("/api/filters")[1]["cannot_adapt"]
    status, said = page.call("/api/search", {"terms": [{"words": "red"}], "adapt": True})
    stop()
    assert "captions" in reason
    assert (status, said["error"]) == (400, reason)


def test_a_search_by_words_says_where_it_ends_and_shows_everything(shared_page):
    _, answer = shared_page.call("/api/search", {"terms": [{"words": "red"}]})
    cut = answer["cut"]
    assert answer["total"] == 60, "never silent: nothing is left out"
    assert cut["share"] == 0.9
    tiles = shared_page.call(f"/api/window?order={answer['order']}&start=0&count=60")[1]["tiles"]
    assert sum(tile["score"] >= cut["score"] for tile in tiles) == cut["above"]
    shown = {tile["id"].split("/")[0] for tile in tiles[: cut["above"]]}
    assert shown == {"red"}
    like = shared_page.call("/api/search", {"terms": [{"row": 0}]})[1]
    assert "cut" not in like, "captions say nothing of pictures"


def teach(page, rows=12):
    """Three classes, four Yes each."""
    version = page.session.collection.version
    for key, name in enumerate(("red", "green", "blue"), start=1):
        page.call("/api/classes", {"name": name})
        page.call(f"/api/classes/{key}/marks", {"rows": list(range(key - 1, rows, 3)), "mark": 1, "version": version})


def test_with_nine_clicks_nothing_is_reported_as_a_percentage(page):
    teach(page, 9)
    _, answer = page.call("/api/sorted")
    assert answer["held_out"] == {"examples": 9}
    tiles = page.call(f"/api/window?order={answer['order']}&start=0&count=60")[1]["tiles"]
    assert {tuple(tile["possible"]) for tile in tiles} == {()}, "and no class is ruled out"
    assert {tile["says"] for tile in tiles} >= {"red", "green", "blue"}
    summary = page.call("/api/classes/1/order")[1]["summary"]
    assert not (summary.get("cut") or {}).get("precision")


def test_everything_is_sorted_with_what_cannot_be_ruled_out(page, monkeypatch):
    teach(page, 36)
    status, answer = page.call("/api/sorted")
    assert status == 200, answer
    assert sum(each["pictures"] for each in answer["classes"]) + answer["none"] == 60
    assert answer["held_out"]["accuracy"] == 1.0
    tiles = page.call(f"/api/window?order={answer['order']}&start=0&count=60")[1]["tiles"]
    assert [tile["p"] for tile in tiles] == sorted(tile["p"] for tile in tiles), "doubtful first"
    right = [tile["says"] in (tile["id"].split("/")[0], None) for tile in tiles]
    assert np.mean(right) > 0.95
    assert all(tile["says"] in tile["possible"] for tile in tiles if tile["says"] and tile["possible"])
    assert np.mean([len(tile["possible"]) < 3 for tile in tiles]) > 0.8, "twelve examples rule others out"
    _, reds = page.call("/api/sorted?show=class:red")
    assert reds["total"] == next(each["pictures"] for each in answer["classes"] if each["name"] == "red")
    assert page.call("/api/sorted?show=class:mauve")[0] == 400
    asked, embed = [], page.session.encoder.embed_texts
    monkeypatch.setattr(
        page.session.encoder, "embed_texts", lambda texts, *kind: asked.append(texts) or embed(texts, *kind)
    )
    version = page.session.collection.version
    assert page.call("/api/classes/1/marks", {"rows": [36], "mark": 1, "version": version})[0] == 200
    again = page.call("/api/sorted")[1]
    assert (again["revision"], asked) == (answer["revision"] + 1, []), "no click embeds the classes' texts again"


def test_copies_of_a_picture_are_one_example(tmp_path):
    memory = colour_memory(tmp_path / "memory")
    pictures = [shade(COLOURS[name], i) for i, name in enumerate(list(COLOURS) * 3)]
    ids = [f"{name}/{i}.png" for i, name in enumerate(list(COLOURS) * 3)]
    digests = [pixel_digest(picture) for picture in pictures]
    digests[3] = digests[0]
    memory.upsert(replace(memory.backend.rows(ids), digests=digests))
    further = replace(memory.backend.rows([ids[6]]), ids=[f"{ids[6]}#1"], captions=["other words"])
    memory.add(further)  # a row for each caption
    page, stop = start(tmp_path / "memory")
    every = page.call("/api/search", {"terms": [{"words": "red"}]})[1]
    assert (every["total"], every["of"]) == (60, 60), "a picture with two captions is shown once"
    other = page.call("/api/search", {"terms": [], "where": "caption = 'other words'"})[1]
    shown_first = page.call(f"/api/window?order={other['order']}&start=0&count=9")[1]["tiles"]
    assert [tile["id"] for tile in shown_first] == [f"{ids[6]}#1"]
    shown = page.session.collection
    for key, name in enumerate(COLOURS, start=1):
        page.call("/api/classes", {"name": name})
        rows = [shown.row_of[id] for id in ids if id.startswith(name) and id != ids[3]]
        page.call(f"/api/classes/{key}/marks", {"rows": rows, "mark": 1, "version": shown.version})
    no = {"rows": [shown.row_of[ids[1]], shown.row_of[ids[2]]], "mark": -1, "version": shown.version}
    summary = page.call("/api/classes/1/marks", no)[1]["summary"]
    assert (summary["yes"], summary["no"]) == (2, 2)
    assert (summary["cut"]["clicks"], summary["cut"]["copies"]) == (4, 1)
    assert page.call("/api/classes")[1]["classes"][0]["yes"] == 2, "a click is one on every copy"
    order = page.call("/api/search", {"terms": []})[1]["order"]
    tiles = page.call(f"/api/window?order={order}&start=0&count=60&label=1")[1]["tiles"]
    same = [tile for tile in tiles if tile["id"] in (ids[0], ids[3])]
    assert [tile["mark"] for tile in same] == [1, 1]
    table = page.session.keeper.table()
    above = {id for id, name, yes in zip(*(table[column].to_pylist() for column in ("id", "class", "yes")), strict=True)
             if name == "red" and yes}  # fmt: skip
    assert above >= {ids[0], ids[3]}
    assert summary["cut"]["above"] == len({id.partition("#")[0] for id in above}) - 1
    assert page.call("/api/classes/1/order?show=clicked&where=number+%3D+3")[1]["total"] == 1, "clicked on its copy"
    no = {"rows": [shown.row_of[ids[3]]], "mark": 0, "version": shown.version}
    assert page.call("/api/classes/1/marks", no)[1]["summary"]["yes"] == 1, "taken back on every copy"
    assert page.call("/api/undo", b"")[1]["undone"]["ids"] == [ids[3], ids[0]]
    _, kept = page.call("/api/save", {"name": "colours"})
    _, written = page.call("/api/labels/memory", b"")
    stop()
    assert kept["examples"] == 8
    assert (written["changed"], written["pictures"]) == (10, 8)
    opened = Classifier.load(tmp_path / "memory/page/classifiers/colours")
    for place in (6, 8):
        pictures[place].save(tmp_path / f"{place}.png")
    again = opened.add(ColourEncoder(), {"red": [tmp_path / "6.png"], "green": [tmp_path / "8.png"]})
    assert len(again.support) == 9, "the one is known as red, the other as blue"


def test_a_picture_unlike_every_example_is_none_of_these(tmp_path):
    memory = colour_memory(tmp_path / "memory")
    odd = np.float32([[-1, -1, -1]]) / np.sqrt(np.float32(3))
    memory.add(Pairs(["odd/1"], odd, odd, ["odd"], memory.model, ["paint"], [{"box": [float("nan"), 1]}], [None]))
    near = np.float32([[-1, -1, 0.2]]) / np.linalg.norm([-1, -1, 0.2]).astype(np.float32)
    memory.add(Pairs(["odd/2"], near, near, ["less odd"], memory.model, ["paint"], [{}], [None]))
    page, stop = start(tmp_path / "memory")
    teach(page, 30)
    _, answer = page.call("/api/sorted?show=none")
    tiles = page.call(f"/api/window?order={answer['order']}&start=0&count=60")[1]["tiles"]
    odd = page.session.collection.row_of["odd/1"]
    assert page.call(f"/api/items/{page.session.collection.version}/{odd}")[1]["metadata"] == {"box": [None, 1]}
    stop()
    assert [tile["id"] for tile in tiles[:2]] == ["odd/1", "odd/2"], "the one that is least like any example first"
    assert all(tile["says"] is None for tile in tiles)
    assert answer["total"] == answer["none"] < 10


def test_without_two_kinds_nothing_is_sorted(shared_page):
    status, said = shared_page.call("/api/sorted")
    assert status == 400
    assert "two kinds" in said["error"]


def test_labels_go_into_the_memory_where_filters_find_them(page):
    teach(page)
    version = page.session.collection.version
    page.call("/api/classes", {"name": "warm"})
    page.call("/api/classes/4/marks", {"rows": [0], "mark": 1, "version": version})
    status, answer = page.call("/api/labels/memory", b"")
    said = {"changed": 12, "pictures": 12, "key": "clicked", "foreign": [], "version": version}
    assert (status, answer) == (200, said)
    known = {item.id: item.metadata for item in Memory.open(page.folder).fetch(page.session.collection.ids)}
    assert known["red/0.png"] == {"number": 0, "clicked": "red; warm"}
    assert known["red/3.png"] == {"number": 3, "clicked": "red"}
    assert known["red/30.png"] == {"number": 30}
    _, found = page.call("/api/search", {"terms": [], "where": "clicked = 'green'"})
    assert found["total"] == 4
    page.call("/api/classes/2/marks", {"rows": [1], "mark": 0, "version": version})
    assert page.call("/api/labels/memory", b"")[1]["changed"] == 1
    assert page.call("/api/labels/memory", b"")[1]["changed"] == 0, "written once"
    assert page.call("/api/search", {"terms": [], "where": "clicked = 'green'"})[1]["total"] == 3
    assert page.call(f"/api/thumbs/{version}/1", raw=True)[0] == 200, "the page goes on"


def test_labels_never_take_the_place_of_a_column_that_somebody_brought(page):
    teach(page)
    memory = Memory.open(page.folder)
    brought = {"red/0.png": "often", "blue/59.png": 3}
    memory.set_metadata("clicked", brought)
    for changed in (12, 0):
        _, answer = page.call("/api/labels/memory", b"")
        said = {"changed": changed, "pictures": changed, "key": "clicked_2", "foreign": ["clicked"]}
        assert said.items() <= answer.items()
    memory.refresh()
    known = {item.id: item.metadata for item in memory.fetch(page.session.collection.ids)}
    assert {id: each["clicked"] for id, each in known.items() if "clicked" in each} == brought
    assert known["red/0.png"]["clicked_2"] == "red"
    assert page.call("/api/search", {"terms": [], "where": "clicked_2 = 'green'"})[1]["total"] == 4
    labels = page.session.labels
    before = {entry["do"] for entry in labels._entries.values()}
    assert before == {"class", "mark", "wrote"}
    labels._entries = {n: each for n, each in labels._entries.items() if each["do"] != "wrote"}
    there = {"clicked": {"red/0.png": "red"}}
    assert labels.free_column(there) == ("clicked", ()), "a log of before columns were noted"
    assert labels.free_column({"clicked": {"red/30.png": "red"}})[0] == "clicked_2", "nobody clicked that"
    assert page.call("/api/undo", b"")[1]["undone"]["do"] == "mark", "what was written is no click"


def test_the_map_is_umaps_where_that_is_installed(monkeypatch):
    vectors = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    asked = {}

    class Umap:
        def __init__(self, **options):
            asked.update(options)

        def fit_transform(self, rows):
            asked["rows"] = rows
            return rows[:, :2]

    assert lay_out(vectors).method == "t-SNE"
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Umap))
    found = lay_out(vectors)
    assert found.method == "UMAP"
    assert asked["n_neighbors"] == 15
    assert asked["metric"] == "cosine"
    np.testing.assert_array_equal(asked["rows"], vectors)
    assert found.points.min() == 0.0
    assert found.points.max() == 1.0
