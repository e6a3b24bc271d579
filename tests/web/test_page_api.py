"""The page's API: searching, labeling, exports and errors."""

import csv
import io
import itertools
import shutil
import time

import pyarrow.parquet as pq
import pytest

from colors import COLORS, ColorEncoder, paint, shade
from pages import HOSTILE, color_index
from pictures import encoded
from recollect.classifiers.classifier import Classifier
from recollect.core.errors import UserError
from recollect.index import Index, Minus, Term
from recollect.web import Page


def search(page, *terms, where=None):
    return page.list(terms=list(terms), where=where)["tiles"]


def ranked(page, key, order="likely", **more):
    return page.list(order=order, label=key, **more)["tiles"]


def mark(page, key, numbers, value, **more):
    """Mark pictures by number."""
    ids = [f"{list(COLORS)[number % 3]}/{number}.png" for number in numbers]
    return page.call(f"/api/classes/{key}/marks", {"ids": ids, "mark": value, **more})


def names(results):
    return [tile["id"].split("/")[0] for tile in results]


def test_searches_combine_texts_uploads_and_pictures_of_the_index(shared_page):
    assert set(names(search(shared_page, {"words": "red"}))[:19]) == {"red"}
    both = search(shared_page, {"words": "red"}, {"words": "green", "weight": -1})
    assert set(names(both)[:20]) == {"red"}
    assert set(names(both)[-20:]) == {"green"}
    data = encoded(shade(COLORS["blue"], 999))
    status, answer = shared_page.call("/api/pictures", data)
    assert status == 200
    assert set(names(search(shared_page, {"upload": answer["upload"]}))[:19]) == {"blue"}
    first = search(shared_page, {"words": "green"})[0]
    like = search(shared_page, {"id": first["id"]})
    assert like[0]["id"] == first["id"]
    assert like[0]["score"] == pytest.approx(1.0, abs=1e-5)
    assert all(one["score"] >= two["score"] for one, two in itertools.pairwise(like))


def test_a_search_matches_that_of_the_index(shared_page):
    """The page gives the same results as Python and the command line."""
    index = Index.open(shared_page.folder, ColorEncoder())
    for where in (None, "number < 20"):
        for terms, query in (
            ([{"words": "red"}], "red"),
            ([{"words": "red"}, {"words": "blue", "weight": -0.5}], ["red", Minus("blue", 0.5)]),
            ([{"id": "green/1.png"}], [Term(vector=index.vectors(["green/1.png"])[0])]),
        ):
            expected = index.search(query, 60, where=where)
            results = search(shared_page, *terms, where=where)
            assert [tile["id"] for tile in results] == [hit.id for hit in expected]
            assert [tile["score"] for tile in results] == pytest.approx([hit.score for hit in expected], abs=1e-6)


def test_pages_of_a_list_add_up_to_the_whole_list(shared_page, monkeypatch):
    monkeypatch.setattr("recollect.web.session._FIRST", 25)
    whole = Index.open(shared_page.folder, ColorEncoder()).search("green and blue", 60)
    first = shared_page.list(terms=[{"words": "green and blue"}], count=20)
    known = {"version": first["version"], "revision": first["revision"]}
    pages = [first] + [
        shared_page.list(terms=[{"words": "green and blue"}], count=20, start=start, **known) for start in (20, 40, 60)
    ]
    assert [page["total"] for page in pages] == [60] * 4
    assert [tile["id"] for page in pages for tile in page["tiles"]] == [hit.id for hit in whole]


def test_filters_apply_with_and_without_a_search(shared_page):
    ids = Index.open(shared_page.folder).ids
    assert [tile["id"] for tile in search(shared_page)] == ids
    assert [tile["score"] for tile in search(shared_page)] == [None] * 60
    results = search(shared_page, {"words": "red"}, where="number < 6")
    assert sorted(tile["id"] for tile in results) == sorted(ids[:6])
    assert shared_page.call("/api/list", {"where": "number <"})[0] == 400
    assert shared_page.call("/api/list", {"where": "number > 1000"})[0] == 400
    status, answer = shared_page.call("/api/list", {"where": "nubmer > 1"})
    assert (status, "nubmer" in answer["error"]) == (400, True)


def test_a_class_learned_from_clicks_can_be_saved_and_applied(page):
    status, created = page.call("/api/classes", {"name": "reds", "text": "red"})
    assert status == 200
    key = created["class"]
    assert set(names(ranked(page, key, count=15))) == {"red"}
    listing = {"order": "likely", "label": key}
    for number in range(9):
        status, answer = mark(page, key, [number], 1 if number % 3 == 0 else -1, listing=listing)
        assert status == 200
    summary = answer["summary"]
    assert (summary["yes"], summary["no"]) == (3, 6)
    assert summary["cut"]["above"] == pytest.approx(20, abs=3)
    few = summary["cut"]
    assert (few["enough"], few["precision"], few["coverage"]) == (False, None, None), "nine marks are too few"
    shown = answer["listing"]["tiles"]
    assert {tile["p"] for tile in shown} == {None}
    assert [tile["mark"] for tile in shown[-9:]].count(1) == 3, "marked pictures come last"
    assert set(names(shown)[:17]) == {"red"}
    latest = [int(tile["id"].split("/")[1][:-4]) for tile in ranked(page, key, "clicked")]
    assert latest == list(range(8, -1, -1))
    suggested = {tile["id"] for tile in ranked(page, key, "next")}
    assert len(suggested) == 12
    assert not suggested & {tile["id"] for tile in ranked(page, key, "clicked")}
    status, saved = page.call("/api/save", {"name": "my reds"})
    assert status == 200
    assert (saved["classes"], saved["replaced"]) == (["not reds", "reds"], False)
    assert page.call("/api/save", {"name": "my reds"})[1]["replaced"], "replacing a classifier is reported"
    assert page.call("/api/save", {"name": "rote Töne"})[0] == 200, "names may have any letters"
    _, answer = mark(page, key, [9, 12], 1, listing=listing)
    cut = answer["summary"]["cut"]
    assert (cut["enough"], cut["clicks"], cut["precision"], cut["coverage"]) == (True, 11, 1.0, 1.0)
    assert (cut["yes"], cut["found"], cut["wrong"]) == (5, 5, 0)
    assert {tile["p"] is None for tile in answer["listing"]["tiles"]} == {False}
    opened = Classifier.load(page.folder / "page/classifiers/my reds")
    pictures = [shade(COLORS[name], 500 + i) for i, name in enumerate(["red", "green", "red", "blue"])]
    predicted = opened.predict(ColorEncoder().embed_images(pictures)).tolist()
    assert predicted == ["reds", "not reds", "reds", "not reds"]


def test_a_filter_limits_lists_counts_and_exports(page):
    """Marks outside the filter still train the model."""
    half = "number < 30"
    page.call("/api/classes", {"name": "reds", "text": "red"})
    page.call("/api/classes", {"name": "greens", "text": "green"})
    mark(page, 2, [1, 4, 34, 37], 1)
    mark(page, 1, [30, 33, 36], 1)
    mark(page, 1, [31, 32, 35], -1)
    every = page.call("/api/classes/1")[1]
    listing = {"order": "likely", "label": 1, "where": half}
    assert mark(page, 1, [0], 1, listing={**listing, "where": "number > 99"})[0] == 400
    assert mark(page, 1, [0], 1, listing={**listing, "where": "number >"})[0] == 400
    assert page.call("/api/classes")[1]["classes"][0]["yes"] == 3, "a rejected mark does not count"
    answers = {"marks": mark(page, 1, [0], 1, listing=listing)[1]["listing"]}
    for order in ("likely", "next", "cut", "clicked"):
        answers[order] = page.list(order=order, label=1, where=half)
    totals = {"marks": 30, "likely": 30, "next": 12, "cut": 30, "clicked": 1}
    for order, answer in answers.items():
        shown = [tile["id"] for tile in answer["tiles"]]
        assert (answer["total"], answer["of"], len(shown)) == (totals[order], 60, totals[order])
        assert all(int(id.split("/")[1].split(".")[0]) < 30 for id in shown)
        cut = answer["summary"]["cut"]
        assert (answer["summary"]["yes"], cut["clicks"], cut["precision"], cut["coverage"]) == (4, 1, None, None)
        assert 8 <= cut["above"] <= 12
        assert every["summary"]["cut"]["above"] >= cut["above"] + 8
    assert set(names(answers["likely"]["tiles"][:9])) == {"red"}, "marks outside the filter train the model"
    none = page.call("/api/classes/1?where=number%20%3E%2050")[1]["summary"]["cut"]
    assert (none["clicks"], none["precision"], none["coverage"], none["stop"]) == (0, None, None, False)
    results = page.list(order="sorted", where=half)
    assert sum(each["pictures"] for each in results["classes"]) + results["none"] == 30
    reds = page.list(order="sorted", show="class:reds", where=half)
    assert reds["total"] == results["classes"][1]["pictures"]
    _, (content, _) = page.call("/api/labels.csv?where=clicked%20%3D%20'reds'", raw=True)
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert {row["id"] for row in rows} == {f"red/{number}.png" for number in (0, 30, 33, 36)}
    _, results = page.call("/api/map?where=number%20%3C%2030")
    assert (len(results["ids"]), results["of"]) == (30, 30)
    assert page.call("/api/list", {"order": "sorted", "where": "nubmer = 1"})[0] == 400


def test_filters_see_new_labels_at_once(page):
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes", {"name": "warm"})
    mark(page, 1, [0, 3, 6], 1)
    mark(page, 2, [0], 1)
    assert page.list(where="clicked = 'reds'")["total"] == 3
    assert page.list(where="clicked = 'reds' and clicked = 'warm'")["total"] == 1
    assert page.call("/api/items/red/0.png")[1]["labels"] == ["reds", "warm"]
    mark(page, 1, [3], 0)
    assert page.list(where="clicked = 'reds'")["total"] == 2
    page.call("/api/undo", b"")
    assert page.list(where="clicked = 'reds'")["total"] == 3
    assert Index.open(page.folder).ids_where("clicked = 'warm'") == ["red/0.png"]


def test_lists_of_a_class_are_sorted_as_their_name_says(page):
    """The expected order comes from the probabilities in the label table."""
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes", {"name": "greens"})
    mark(page, 1, [0, 3, 6, 9, 12, 15], 1)
    mark(page, 2, [1, 4, 7], 1)
    mark(page, 1, [1, 2, 4, 5, 7, 8], -1)
    table = page.session.sorting.table(page.session.selection())
    rows = zip(*(table[name].to_pylist() for name in ("id", "class", "clicked", "probability")), strict=True)
    p = {id: probability for id, name, clicked, probability in rows if name == "reds" and not clicked}
    for order, expected in (("likely", lambda id: -p[id]), ("cut", lambda id: abs(p[id] - 0.5))):
        shown = [expected(tile["id"]) for tile in ranked(page, 1, order) if tile["id"] in p]
        assert shown == pytest.approx(sorted(shown), abs=1e-6), order
    probabilities = [tile["p"] for tile in page.list(order="sorted", show="class:reds")["tiles"]]
    assert probabilities == sorted(probabilities, reverse=True)
    assert probabilities[0] > probabilities[-1]


def test_the_next_page_continues_the_same_list_despite_new_marks(page):
    page.call("/api/classes", {"name": "reds", "text": "red"})
    first = page.list(order="likely", label=1, count=10)
    mark(page, 1, [int(tile["id"].split("/")[1][:-4]) for tile in first["tiles"][:3]], -1)
    known = {"version": first["version"], "revision": first["revision"]}
    second = page.list(order="likely", label=1, start=10, count=50, **known)
    assert len({tile["id"] for tile in first["tiles"] + second["tiles"]}) == 60, "every picture once"
    for number in range(20):  # more lists than are cached
        page.list(terms=[{"words": f"red {number}"}])
    again = page.list(order="likely", label=1, count=60, **known)
    assert again["revision"] > first["revision"], "an evicted list is rebuilt with a new revision"
    assert again["total"] == 60


def test_labels_can_be_exported_as_tables(page, monkeypatch):
    page.call("/api/classes", {"name": "=reds", "text": "red"})
    for number in range(6):
        mark(page, 1, [number], 1 if number % 3 == 0 else -1)
    taught, before = page.session.teacher, [tile["id"] for tile in ranked(page, 1)]
    monkeypatch.setattr("recollect.web.teaching.MAX_CACHED_BYTES", 0)
    key = page.call("/api/classes", {"name": "greens"})[1]["class"]
    mark(page, key, [1], 1, listing={"order": "likely", "label": key})
    assert [each.model.held > 0 for each in taught._taught.values()] == [False, True], "only the active model is kept"
    assert [tile["id"] for tile in ranked(page, 1)] == before, "other models are recomputed"
    page.call(f"/api/classes/{key}", method="DELETE")
    _, (content, headers) = page.call("/api/labels.csv", raw=True)
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert len(rows) == 60
    assert {row["class"] for row in rows} == {"'=reds"}, "spreadsheet formulas are escaped"
    assert sum(row["clicked"] == "1" for row in rows) == 2
    assert "attachment" in headers["content-disposition"]
    _, (content, _) = page.call("/api/labels.parquet", raw=True)
    table = pq.read_table(io.BytesIO(content))
    assert table.column_names == ["id", "file", "class", "clicked", "probability", "yes"]
    reds = [id for id, yes in zip(table["id"].to_pylist(), table["yes"].to_pylist(), strict=True) if yes]
    assert set(names([{"id": id} for id in reds])) == {"red"}


def test_pictures_are_reencoded_and_unreadable_ones_give_404(shared_page):
    status, (content, headers) = shared_page.call("/api/thumbs/red%2F0.png", raw=True)
    assert status == 200
    assert content[:3] == b"\xff\xd8\xff"
    assert headers["x-content-type-options"] == "nosniff"
    assert shared_page.call("/api/pictures/red/0.png", raw=True)[1][0][:3] == b"\xff\xd8\xff"
    for id in ("blue/59.png", "..%2f..%2fetc%2fpasswd", "/etc/passwd"):
        assert shared_page.call(f"/api/thumbs/{id}", raw=True)[0] == 404
    assert shared_page.call("/api/items/green/58.png")[1]["captions"] == [HOSTILE]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/list", b"{", 422),
        ("/api/list", {"terms": [{"words": "a", "path": "/etc/passwd"}]}, 422),
        ("/api/list", {"terms": [{"words": " "}]}, 400),
        ("/api/list", {"terms": [{}]}, 422),
        ("/api/list", {"terms": [{"words": "a", "id": "red/1.png"}]}, 422),
        ("/api/list", {"terms": [{"id": "nothing"}]}, 400),
        ("/api/list", {"terms": [{"words": "a", "weight": 0}]}, 400),
        ("/api/list", b'{"terms": [{"words": "a", "weight": NaN}]}', 400),
        ("/api/list", {"terms": [{"words": "red"}, {"words": "red", "weight": -1}]}, 400),
        ("/api/list", {"terms": [{"upload": "gone"}]}, 400),
        ("/api/list", {"terms": [{"words": "a"}] * 17}, 422),
        ("/api/list", {"terms": [], "where": "x" * 3000}, 422),
        ("/api/list", {"order": "best"}, 422),
        ("/api/list", {"order": "likely"}, 400),
        ("/api/list", {"order": "likely", "label": 9}, 400),
        ("/api/list", {"order": "sorted", "show": "class:mauve"}, 400),
        ("/api/pictures", b"no picture", 400),
        ("/api/classes", {"name": " "}, 400),
        ("/api/classes", {"name": "\u001c"}, 400),
        ("/api/classes", {"name": "x" * 201}, 400),
        ("/api/selection/act", {"kind": "remove", "ids": ["red/0.png"], "files": ["/x"]}, 400),
        ("/api/selection/act", {"kind": "delete", "ids": ["red/0.png"], "files": []}, 400),
        ("/api/classes/9/marks", {"ids": ["red/0.png"], "mark": 1}, 400),
        ("/api/classes/1/marks", {"ids": ["nothing"], "mark": 1}, 400),
        ("/api/classes/1/marks", {"ids": [], "mark": 1}, 400),
        ("/api/classes/1/marks", {"ids": ["red/0.png"], "mark": 5}, 422),
        ("/api/save", {"name": "../../etc"}, 400),
        ("/api/save", {"name": "fine"}, 400),
        ("/static/../api.py", None, 404),
        ("/static/%2e%2e/api.py", None, 404),
        ("/api/nothing", None, 404),
    ],
)  # fmt: skip
def test_invalid_requests_give_a_one_line_error_and_change_nothing(shared_page, path, body, status):
    returned, answer = shared_page.call(path, body)
    assert returned == status, answer
    error = answer.get("error") or answer.get("detail")
    assert error
    assert "\n" not in str(error)
    assert "Traceback" not in str(error)
    assert shared_page.call("/api/classes")[1]["classes"] == []
    assert shared_page.call("/api/info")[1]["pictures"] == 60


def test_the_guard_protects_the_page(page):
    """See test_guard.py for the details."""
    assert page.call("/api/classes", {"name": "reds"}, headers={})[0] == 403
    assert page.call("/api/info", headers={"host": "evil.example"})[0] == 400
    assert page.call("/api/list", b" " * (2**22 + 1))[0] == 413
    headers = {"x-recollect": "1", "origin": page.address}
    assert page.call("/api/classes", {"name": "reds"}, headers=headers)[0] == 200


def test_every_response_forbids_external_scripts(shared_page):
    for path in ("/", "/static/app.js", "/api/info", "/api/nothing"):
        _, (_, headers) = shared_page.call(path, raw=True)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
    for path in ("/", "/static/app.js", "/static/grid.js", "/static/style.css"):
        _, (content, _) = shared_page.call(path, raw=True)
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text


def test_a_missing_index_is_reported_and_marks_are_kept(page):
    page.call("/api/classes", {"name": "reds", "text": "red"})
    page.list(terms=[{"words": "red"}])
    (page.folder / "pictures.lance").rename(page.folder / "elsewhere")
    time.sleep(0.4)
    status, answer = page.call("/api/list", {"terms": [{"words": "red"}]})
    assert status in (400, 503)
    assert answer["error"]
    assert page.call("/api/thumbs/green/4.png", raw=True)[0] == 404
    (page.folder / "elsewhere").rename(page.folder / "pictures.lance")
    assert mark(page, 1, [0], 1)[0] == 200
    assert page.list(terms=[{"words": "red"}])["total"] == 60


def test_pictures_removed_by_another_process_leave_the_page_but_keep_their_marks(page):
    page.call("/api/classes", {"name": "reds"})
    mark(page, 1, [0, 3], 1)
    Index.open(page.folder).remove(["red/3.png", "green/4.png"])
    assert page.call("/api/info")[1]["pictures"] == 58
    assert len(search(page)) == 58
    assert mark(page, 1, [3], -1)[0] == 400, "removed"
    assert {tile["id"]: tile["mark"] for tile in ranked(page, 1, "clicked")} == {"red/0.png": 1}
    (reds,) = page.call("/api/classes")[1]["classes"]
    assert (reds["name"], reds["yes"]) == ("reds", 2), "the mark of a removed picture is kept"
    Index.open(page.folder).restore()
    assert page.call("/api/info")[1]["pictures"] == 60
    assert len(ranked(page, 1, "clicked")) == 2


def test_marks_stay_with_their_pictures_when_files_are_swapped(tmp_path, start_page):
    """Another process updates the index; a mark belongs to the pixels."""
    folder = tmp_path / "photos"
    for number, name in enumerate(("red", "green", "blue")):
        paint(folder / f"{number}.png", COLORS[name], number)
    Index.build(folder, ColorEncoder(), out=tmp_path / "index")
    page = start_page(tmp_path / "index")
    first = page.list(terms=[{"words": "red"}])["tiles"][0]
    assert first["name"] == "0.png"
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes/1/marks", {"ids": [first["id"]], "mark": 1})
    (folder / "0.png").rename(folder / "other.png")
    (folder / "1.png").rename(folder / "0.png")
    (folder / "other.png").rename(folder / "1.png")
    Index.open(tmp_path / "index", ColorEncoder()).add(folder)
    page.call("/api/info")
    (marked,) = ranked(page, 1, "clicked")
    assert (marked["id"], marked["name"]) == (first["id"], "1.png")
    (folder / "1.png").unlink()
    Index.open(tmp_path / "index", ColorEncoder()).add(folder)
    assert page.call("/api/info")[1]["pictures"] == 2
    assert ranked(page, 1, "clicked") == []
    assert page.call("/api/classes")[1]["classes"][0]["yes"] == 1


def test_a_rebuilt_index_is_shown_and_its_lost_labels_are_reported(tmp_path, start_page):
    color_index(tmp_path / "index", 12)
    page = start_page(tmp_path / "index")
    page.call("/api/classes", {"name": "reds"})
    shutil.rmtree(tmp_path / "index")
    color_index(tmp_path / "index", 9)
    assert page.call("/api/info")[1]["pictures"] == 9
    assert len(search(page, {"words": "red"})) == 9
    status, answer = mark(page, 1, [0], 1)
    assert (status, "Restart the server" in answer["error"]) == (400, True), "the labels were deleted with the index"


def test_a_page_continues_after_its_version_of_the_index_is_compacted(page):
    first = page.list(terms=[{"words": "red"}], count=9)
    index = Index.open(page.folder)
    index.remove([f"blue/{number}.png" for number in (2, 5, 8)])
    index.compact(keep_days=0.0)
    known = {"version": first["version"], "revision": first["revision"]}
    assert len(page.list(terms=[{"words": "red"}], start=9, **known)["tiles"]) >= 48
    assert page.call("/api/info")[1]["pictures"] == 57
    assert len(search(page, {"words": "red"}, where="number < 9")) == 6
    index.remove(where="number >= 0")
    assert page.call("/api/info")[1]["pictures"] == 0
    assert page.list()["total"] == page.list(terms=[{"words": "red"}])["total"] == 0


def test_an_index_of_another_model_is_rejected(tmp_path, start_page):
    Index.create(tmp_path / "index", width=3, model="another")
    with pytest.raises(UserError):
        start_page(tmp_path / "index")


def test_invalid_options_of_serve_give_a_one_line_error(tmp_path, capsys):
    from recollect import cli

    color_index(tmp_path / "index")
    place = str(tmp_path / "index")
    errors = {
        ("serve", str(tmp_path / "none")): "none",
        ("serve", place, "--host", "0.0.0.0"): "--token",
        ("serve", place, "--host", "0.0.0.0", "--token", "short"): "at least 16",
        ("serve", place, "--port", "70000"): "between 0 and 65535",
        ("serve", place, "--model", str(tmp_path / "nothing")): "nothing",
    }
    for words, message in errors.items():
        assert cli.main(list(words)) == 2, words
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(("host", "shown"), [("localhost", "127.0.0.1"), ("::1", "[::1]"), ("127.0.0.1", "127.0.0.1")])
def test_the_printed_address_is_that_of_the_server(tmp_path, painted, host, shown):
    page = Page(Index.open(painted, ColorEncoder()), host=host, port=0, labels=tmp_path / "labels.sqlite")
    try:
        port = page.listening.getsockname()[1]
        assert page.address == f"http://{shown}:{port}/"
    finally:
        page.close()
