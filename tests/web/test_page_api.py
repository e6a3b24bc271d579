"""The page's API: searching and teaching as a script would, and every wrong use in one line."""

import csv
import io
import itertools
import shutil
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from colours import COLOURS, ColourEncoder, shade
from pages import HOSTILE, colour_memory, start
from pictures import encoded
from recollect.apps.classify.classifier import Classifier
from recollect.cli import serve
from recollect.cli.serve import Serve
from recollect.core.errors import UserError
from recollect.memory.rows import Pairs
from recollect.memory.store import Memory
from recollect.web.collection import Collection


def tiles(page, order, count=60, label=None):
    status, answer = page.call(
        f"/api/window?order={order}&start=0&count={count}" + (f"&label={label}" if label else "")
    )
    assert status == 200
    return answer["tiles"]


def search(page, *terms, where=None):
    status, answer = page.call("/api/search", {"terms": list(terms), "where": where})
    assert status == 200, answer
    return tiles(page, answer["order"])


def search_class(page, key):
    return [tile["row"] for tile in tiles(page, page.call(f"/api/classes/{key}/order")[1]["order"])]


def names(found):
    return [tile["id"].split("/")[0] for tile in found]


def test_words_pictures_and_what_they_are_not(shared_page):
    assert set(names(search(shared_page, {"words": "red"}))[:19]) == {"red"}
    both = search(shared_page, {"words": "red"}, {"words": "green", "weight": -1})
    assert set(names(both)[:20]) == {"red"}
    assert set(names(both)[-20:]) == {"green"}
    data = encoded(shade(COLOURS["blue"], 999))
    status, answer = shared_page.call("/api/pictures", data)
    assert status == 200
    assert set(names(search(shared_page, {"upload": answer["upload"]}))[:19]) == {"blue"}
    first = search(shared_page, {"words": "green"})[0]
    like = search(shared_page, {"row": first["row"]})
    assert like[0]["id"] == first["id"]
    assert like[0]["score"] == pytest.approx(1.0, abs=1e-5)
    assert all(one["score"] >= two["score"] for one, two in itertools.pairwise(like))


def test_scores_are_cosines_with_the_weighted_sum(shared_page):
    encoder = ColourEncoder()
    vector = encoder.embed_texts(["red"])[0] * 2 - 0.5 * encoder.embed_texts(["blue"])[0]
    expected = shared_page.session.collection.vectors @ (vector / vector.norm()).numpy()
    found = search(shared_page, {"words": "red", "weight": 2}, {"words": "blue", "weight": -0.5})
    np.testing.assert_allclose([tile["score"] for tile in found], np.sort(expected)[::-1], atol=1e-5)


def test_filters_and_everything(shared_page):
    assert len(search(shared_page)) == 60
    assert [tile["score"] for tile in search(shared_page)] == [None] * 60
    found = search(shared_page, {"words": "red"}, where="number < 6")
    assert sorted(tile["id"] for tile in found) == sorted(shared_page.session.collection.ids[:6])
    assert shared_page.call("/api/search", {"terms": [], "where": "number <"})[0] == 400
    assert shared_page.call("/api/search", {"terms": [], "where": "number > 1000"})[0] == 400
    status, answer = shared_page.call("/api/search", {"terms": [], "where": "nubmer > 1"})
    assert (status, "no column 'nubmer'; there are id, caption, source, " in str(answer)) == (400, True)


def test_a_class_by_clicks_is_found_kept_and_applied(page):
    status, made = page.call("/api/classes", {"name": "reds", "text": "red"})
    assert status == 200
    key, version = made["class"], page.session.collection.version
    _, answer = page.call(f"/api/classes/{key}/order")
    assert set(names(tiles(page, answer["order"], 15))) == {"red"}
    for row in range(9):
        mark = 1 if row % 3 == 0 else -1
        status, answer = page.call(f"/api/classes/{key}/marks", {"rows": [row], "mark": mark, "version": version})
        assert status == 200
    summary = answer["summary"]
    assert (summary["yes"], summary["no"]) == (3, 6)
    assert summary["cut"]["above"] == pytest.approx(20, abs=3)
    few = summary["cut"]
    assert (few["enough"], few["precision"], few["coverage"]) == (False, None, None), "nine clicks are too few to tell"
    assert {tile["p"] for tile in tiles(page, answer["order"], 60, key)} == {None}
    shown = tiles(page, answer["order"], 60, key)
    assert [tile["mark"] for tile in shown[-9:]].count(1) == 3, "clicked ones lie behind"
    assert set(names(shown)[:17]) == {"red"}
    _, again = page.call(f"/api/classes/{key}/order?show=clicked")
    assert [tile["row"] for tile in tiles(page, again["order"])] == list(range(8, -1, -1))
    _, asked = page.call(f"/api/classes/{key}/order?show=next")
    assert not {tile["row"] for tile in tiles(page, asked["order"], 24)} & set(range(9))
    status, kept = page.call("/api/save", {"name": "my reds"})
    assert status == 200
    assert (kept["classes"], kept["replaced"]) == (["not reds", "reds"], False)
    assert page.call("/api/save", {"name": "my reds"})[1]["replaced"], "an earlier one is not replaced without a word"
    assert page.call("/api/save", {"name": "rote Töne"})[0] == 200, "letters of any language"
    more = {"rows": [9, 12], "mark": 1, "version": version}
    _, answer = page.call(f"/api/classes/{key}/marks", more)
    cut = answer["summary"]["cut"]
    assert (cut["enough"], cut["clicks"], cut["precision"], cut["coverage"]) == (True, 11, 1.0, 1.0)
    assert (cut["yes"], cut["found"], cut["wrong"]) == (5, 5, 0)
    assert {tile["p"] is None for tile in tiles(page, answer["order"], 60, key)} == {False}
    opened = Classifier.load(page.folder / "page/classifiers/my reds")
    pictures = [shade(COLOURS[name], 500 + i) for i, name in enumerate(["red", "green", "red", "blue"])]
    said = opened.predict(ColourEncoder().embed_images(pictures)).tolist()
    assert said == ["reds", "not reds", "reds", "not reds"]


def test_a_filter_limits_all_that_is_asked_sorted_counted_and_written(page):
    """Clicks outside it teach all the same."""
    version, half = page.session.collection.version, "number < 30"
    page.call("/api/classes", {"name": "reds", "text": "red"})
    page.call("/api/classes", {"name": "greens", "text": "green"})
    page.call("/api/classes/2/marks", {"rows": [1, 4, 34, 37], "mark": 1, "version": version})
    for rows, mark in (([30, 33, 36], 1), ([31, 32, 35], -1)):
        page.call("/api/classes/1/marks", {"rows": rows, "mark": mark, "version": version})
    every = page.call("/api/classes/1/order")[1]
    click = {"rows": [0], "mark": 1, "version": version, "where": half}
    assert page.call("/api/classes/1/marks", {**click, "where": "number > 99"})[0] == 400
    assert page.call("/api/classes/1/marks", {**click, "where": "number >"})[0] == 400
    assert page.call("/api/classes")[1]["classes"][0]["yes"] == 3, "a click that is refused does not count"
    answers = {"marks": page.call("/api/classes/1/marks", click)[1]}
    for show in ("likely", "next", "cut", "clicked"):
        answers[show] = page.call(f"/api/classes/1/order?show={show}&where={half.replace(' ', '%20')}")[1]
    totals = {"marks": 30, "likely": 30, "next": 24, "cut": 30, "clicked": 1}
    for show, answer in answers.items():
        shown = [tile["id"] for tile in tiles(page, answer["order"], 60, 1)]
        assert (answer["total"], answer["of"], len(shown)) == (totals[show], 60, totals[show])
        assert all(int(id.split("/")[1].split(".")[0]) < 30 for id in shown)
        cut = answer["summary"]["cut"]
        assert (answer["summary"]["yes"], cut["clicks"], cut["precision"], cut["coverage"]) == (4, 1, None, None)
        assert 8 <= cut["above"] <= 12
        assert every["summary"]["cut"]["above"] >= cut["above"] + 8
    assert set(names(tiles(page, answers["likely"]["order"], 9))) == {"red"}, "clicks elsewhere teach"
    none = page.call("/api/classes/1/order?where=number%20%3E%2050")[1]["summary"]["cut"]
    assert (none["clicks"], none["precision"], none["coverage"], none["stop"]) == (0, None, None, False)
    _, found = page.call("/api/sorted?where=number%20%3C%2030")
    assert sum(each["pictures"] for each in found["classes"]) + found["none"] == found["total"] == 30
    assert (
        page.call("/api/sorted?show=class:reds&where=number%20%3C%2030")[1]["total"] == found["classes"][1]["pictures"]
    )
    assert page.call("/api/labels/memory", {"where": half})[1]["changed"] == 3
    assert page.call("/api/labels/memory", {"where": "number >= 30"})[1]["changed"] == 5
    assert page.call("/api/labels/memory", {"where": half})[1]["changed"] == 0, "the others keep theirs"
    assert page.call("/api/search", {"terms": [], "where": "clicked = 'reds'"})[1]["total"] == 4
    _, (content, _) = page.call("/api/labels.csv?where=clicked%20%3D%20'reds'", raw=True)
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert {row["id"] for row in rows} == {f"red/{number}.png" for number in (0, 30, 33, 36)}
    _, found = page.call("/api/map?where=number%20%3C%2030")
    assert (len(found["rows"]), found["of"]) == (30, 30)
    _, alike = page.call("/api/duplicates?where=number%20%3C%2030")
    assert all(each["row"] < 30 for group in alike["groups"] for each in group["pictures"])
    assert page.call("/api/sorted?where=nubmer%20%3D%201")[0] == 400


def test_lists_of_a_class_are_in_the_order_that_their_name_promises(page):
    """Checked on probabilities that the table of labels gives, not on those that the list was sorted by."""
    version = page.session.collection.version
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes", {"name": "greens"})
    page.call("/api/classes/1/marks", {"rows": [0, 3, 6, 9, 12, 15], "mark": 1, "version": version})
    page.call("/api/classes/2/marks", {"rows": [1, 4, 7], "mark": 1, "version": version})
    page.call("/api/classes/1/marks", {"rows": [1, 2, 4, 5, 7, 8], "mark": -1, "version": version})
    table = page.session.keeper.table()
    rows = zip(*(table[name].to_pylist() for name in ("id", "class", "clicked", "probability")), strict=True)
    p = {id: probability for id, name, clicked, probability in rows if name == "reds" and not clicked}
    for show, expected in (("likely", lambda id: -p[id]), ("cut", lambda id: abs(p[id] - 0.5))):
        order = page.call(f"/api/classes/1/order?show={show}")[1]["order"]
        shown = [expected(tile["id"]) for tile in tiles(page, order) if tile["id"] in p]
        assert shown == pytest.approx(sorted(shown), abs=1e-6), show
    order = page.call("/api/sorted?show=class:reds")[1]["order"]
    sure = [tile["p"] for tile in tiles(page, order)]
    assert sure == sorted(sure, reverse=True)
    assert sure[0] > sure[-1]


def test_the_list_that_was_used_least_recently_is_dropped_first(shared_page):
    first, second = (shared_page.call("/api/search", {"terms": []})[1]["order"] for _ in range(2))
    for _ in range(15):
        tiles(shared_page, first, 1)
        latest = shared_page.call("/api/search", {"terms": []})[1]["order"]
    assert shared_page.call(f"/api/window?order={second}&start=0&count=1")[0] == 410
    assert len(tiles(shared_page, first, 1)) == len(tiles(shared_page, latest, 1)) == 1


def test_labels_leave_as_tables(page, monkeypatch):
    page.call("/api/classes", {"name": "=reds", "text": "red"})
    version = page.session.collection.version
    for row in range(6):
        page.call("/api/classes/1/marks", {"rows": [row], "mark": 1 if row % 3 == 0 else -1, "version": version})
    taught, before = page.session.teacher, search_class(page, 1)
    monkeypatch.setattr("recollect.web.teaching.MOST_HELD", 0)
    key = page.call("/api/classes", {"name": "greens"})[1]["class"]
    page.call(f"/api/classes/{key}/marks", {"rows": [1], "mark": 1, "version": version})
    assert [model.held > 0 for model in taught._models.values()] == [False, True], "only what is taught is kept ready"
    assert search_class(page, 1) == before, "and what was given back is computed anew"
    page.call(f"/api/classes/{key}", method="DELETE")
    _, (content, headers) = page.call("/api/labels.csv", raw=True)
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert len(rows) == 60
    assert {row["class"] for row in rows} == {"'=reds"}, "no formula for a spreadsheet"
    assert sum(row["clicked"] == "1" for row in rows) == 2
    assert "attachment" in headers["content-disposition"]
    _, (content, _) = page.call("/api/labels.parquet", raw=True)
    table = pq.read_table(io.BytesIO(content))
    assert table.column_names == ["id", "class", "clicked", "probability", "yes"]
    reds = [id for id, yes in zip(table["id"].to_pylist(), table["yes"].to_pylist(), strict=True) if yes]
    assert set(names([{"id": id} for id in reds])) == {"red"}


def test_undo_and_a_restart_keep_every_click(tmp_path, restart):
    colour_memory(tmp_path / "memory")
    page, stop = start(tmp_path / "memory")
    version = page.session.collection.version
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes/1/marks", {"rows": [0, 3], "mark": 1, "version": version})
    page.call("/api/classes/1/marks", {"rows": [1], "mark": -1, "version": version})
    assert page.call("/api/undo", b"")[1]["undone"]["ids"] == ["green/1.png"]
    assert page.call("/api/redo", b"")[1]["redone"]["ids"] == ["green/1.png"]
    assert page.call("/api/redo", b"")[1]["redone"] is None
    assert page.call("/api/undo", b"")[1]["undone"]["ids"] == ["green/1.png"]
    stop()
    again = restart(tmp_path / "memory")
    (found,) = again.call("/api/classes")[1]["classes"]
    assert (found["name"], found["yes"], found["no"]) == ("reds", 2, 0)


def test_pictures_are_made_anew_and_broken_ones_are_no_error(shared_page):
    version = shared_page.session.collection.version
    status, (content, headers) = shared_page.call(f"/api/thumbs/{version}/0", raw=True)
    assert status == 200
    assert content[:3] == b"\xff\xd8\xff"
    assert headers["x-content-type-options"] == "nosniff"
    assert shared_page.call(f"/api/pictures/{version}/0", raw=True)[1][0][:3] == b"\xff\xd8\xff"
    assert shared_page.call(f"/api/thumbs/{version}/59", raw=True)[0] == 404
    assert shared_page.call(f"/api/items/{version}/58")[1]["caption"] == HOSTILE


def test_the_map_and_duplicates(shared_page):
    _, found = shared_page.call("/api/map")
    assert len(found["rows"]) == 60
    assert len(found["points"]) == 120
    assert all(0 <= place <= 1 for place in found["points"])
    _, alike = shared_page.call("/api/duplicates")
    assert {group["kind"] for group in alike["groups"]} <= {"identical", "near-identical", "similar"}
    for said in alike["note"].split("; "):
        kind, _, counted = said.partition(": ")
        sizes = [len(group["pictures"]) + group["more"] for group in alike["groups"] if group["kind"] == kind]
        groups = "1 group" if len(sizes) == 1 else f"{len(sizes)} groups"
        assert counted == (f"{groups}, {sum(sizes)} pictures" if sizes else "none")


def test_the_page_shows_the_duplicates_of_the_memory_and_says_where_it_compares_only_a_part(page, monkeypatch):
    from recollect.memory.duplicates import LEVELS, find_duplicates

    memory, kinds = page.session.collection.memory, ("identical", "near-identical", "similar")
    found = find_duplicates(memory).groups
    _, alike = page.call("/api/duplicates")
    shown = {(group["kind"], frozenset(each["id"] for each in group["pictures"])) for group in alike["groups"]}
    groups = ((kind, group) for level, kind in zip(LEVELS, kinds, strict=True) for group in found[level])
    assert shown == {(kind, frozenset(group[:24])) for kind, group in groups}
    assert "compare" not in alike["note"]
    shown = alike["groups"]
    monkeypatch.setattr("recollect.web.api.MOST_OF_GROUP", 2)
    monkeypatch.setattr("recollect.web.api.MOST_GROUPS", 1)
    _, few = page.call("/api/duplicates")
    assert few["more"] == len(shown) - 1
    assert few["groups"][0]["more"] == len(shown[0]["pictures"]) - 2
    monkeypatch.setattr("recollect.web.layout.MOST_COMPARED", 30)
    page.session._alike = None
    said = page.call("/api/duplicates")[1]["note"]
    assert "(similar ones were looked for within 1 neighbourhoods, and a few on their borders may be missing; " in said
    assert said.endswith("`recollect memory duplicates` compares all with all)")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/search", b"{", 422),
        ("/api/search", b"[]", 422),
        ("/api/search", {"terms": [{"words": "a", "path": "/etc/passwd"}]}, 422),
        ("/api/search", {"terms": [{"words": " "}]}, 400),
        ("/api/search", {"terms": [{}]}, 400),
        ("/api/search", {"terms": [{"words": "a", "row": 1}]}, 400),
        ("/api/search", {"terms": [{"row": 10**12}]}, 400),
        ("/api/search", {"terms": [{"row": -1}]}, 400),
        ("/api/search", {"terms": [{"words": "a", "weight": 0}]}, 400),
        ("/api/search", b'{"terms": [{"words": "a", "weight": NaN}]}', 400),
        ("/api/search", {"terms": [{"words": "red"}, {"words": "red", "weight": -1}]}, 400),
        ("/api/search", {"terms": [{"upload": "gone"}]}, 400),
        ("/api/search", {"terms": [{"words": "a"}] * 17}, 422),
        ("/api/search", {"terms": [], "where": "x" * 3000}, 422),
        ("/api/pictures", b"no picture", 400),
        ("/api/pictures", b"", 400),
        ("/api/classes", {"name": ""}, 400),
        ("/api/classes", {"name": 7}, 422),
        ("/api/classes/9/marks", {"rows": [1], "mark": 1, "version": 2}, 400),
        ("/api/classes/1/marks", {"rows": [], "mark": 1, "version": 2}, 422),
        ("/api/classes/1/marks", {"rows": [1], "mark": 5, "version": 2}, 422),
        ("/api/save", {"name": "../../etc"}, 400),
        ("/api/save", {"name": "/tmp/x"}, 400),
        ("/api/save", {"name": "fine"}, 400),
        ("/api/window?order=x&start=0&count=9", None, 410),
        ("/api/search", {"terms": [{"row": 1}], "version": 1}, 409),
        ("/api/window?order=x&start=0&count=9999", None, 422),
        ("/api/thumbs/999/0", None, 409),
        ("/api/thumbs/2/..%2f..%2fetc%2fpasswd", None, 404),
        ("/static/../api.py", None, 404),
        ("/static/%2e%2e/api.py", None, 404),
        ("/api/nothing", None, 404),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_changes_nothing(shared_page, path, body, status):
    if isinstance(body, dict) and body.get("version") == 2:
        body = {**body, "version": shared_page.session.collection.version}
    got, answer = shared_page.call(path, body)
    assert got == status, answer
    said = answer.get("error") or answer.get("detail")
    assert said
    assert "\n" not in str(said)
    assert "Traceback" not in str(said)
    assert shared_page.call("/api/classes")[1]["classes"] == []


def test_uploads_have_a_limit(shared_page):
    status, answer = shared_page.call("/api/search", b" " * (2**20 + 1))
    assert (status, answer["error"]) == (413, "more than 1 MB")
    status, answer = shared_page.call("/api/pictures", b" " * (32 * 2**20 + 1))
    assert (status, answer["error"]) == (413, "more than 32 MB")


def test_other_sites_and_other_names_are_refused(page):
    own = {"x-recollect": "1"}
    body = {"name": "reds"}
    assert page.call("/api/classes", body, headers={})[0] == 403
    assert page.call("/api/classes", body, headers={**own, "origin": "http://evil.example"})[0] == 403
    assert page.call("/api/classes", body, headers={**own, "sec-fetch-site": "cross-site"})[0] == 403
    assert page.call("/api/info", headers={"sec-fetch-site": "cross-site"})[0] == 403
    status, said = page.call("/api/info", headers={"host": "evil.example"})
    assert (status, "127.0.0.1 or localhost" in said["error"]) == (400, True)
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert page.call("/", headers=followed, raw=True)[0] == 200, "a link opens the page"
    assert page.call("/api/info", headers=followed)[0] == 403
    assert page.call("/", headers={**followed, "sec-fetch-dest": "iframe"})[0] == 403
    assert page.call("/api/info", method="PUT", body=b"")[0] == 405
    assert page.call("/api/classes", body, headers={**own, "origin": page.address})[0] == 200
    assert page.call("/api/info", headers={"host": "localhost:8517"})[0] == 200


def test_every_answer_forbids_scripts_from_elsewhere(shared_page):
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


def test_a_token_is_asked_for_and_becomes_a_cookie(tmp_path, restart):
    colour_memory(tmp_path / "memory")
    token = "0123456789abcdef"
    page = restart(tmp_path / "memory", token)
    assert page.call("/")[0] == 401
    assert page.call("/api/info")[0] == 401
    assert page.call("/api/info", headers={"authorization": "Bearer wrong"})[0] == 401
    name = f"recollect_token_{page.address.rpartition(':')[2]}"  # of this port: others' cookies are sent to it too
    assert page.call("/api/info", headers={"cookie": f"{name}=wrong"})[0] == 401
    assert page.call("/?token=wrong")[0] == 401
    assert page.call("/api/info", headers={"authorization": f"Bearer {token}"})[0] == 200
    for beside in ("", "recollect_token_1=of-another-page; ", 'of an[other]={"app"}; '):
        assert page.call("/api/info", headers={"cookie": f"{beside}{name}={token}"})[0] == 200
    status, (content, _) = page.call(f"/?token={token}", headers={"cookie": f"{name}={token}"}, raw=True)
    assert status == 200, "the token becomes a cookie and leaves the address"
    assert b"<!doctype html>" in content


def test_a_memory_that_vanishes_is_said_and_clicks_stay(page):
    version = page.session.collection.version
    page.call("/api/classes", {"name": "reds", "text": "red"})
    _, answer = page.call("/api/search", {"terms": [{"words": "red"}]})
    (page.folder / "pairs.lance").rename(page.folder / "elsewhere")
    status, said = page.call(f"/api/window?order={answer['order']}&start=0&count=9")
    assert status in (400, 503)
    assert said["error"]
    assert page.call(f"/api/thumbs/{version}/5", raw=True)[0] == 404
    assert page.call("/api/classes/1/marks", {"rows": [0], "mark": 1, "version": version})[0] == 200


def test_rows_that_another_process_removed_cost_no_other_picture(page):
    """Labels are written on the rows of today, and from then on the page shows these."""
    version = page.session.collection.version
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes/1/marks", {"rows": [0, 3], "mark": 1, "version": version})
    Memory.open(page.folder).delete(["red/3.png", "green/4.png"])
    assert len(search(page)) == 60, "what was opened stays as it is"
    written = page.call("/api/labels/memory", b"")[1]
    assert (written["changed"], written["version"] != version) == (1, True)
    found = {tile["id"]: tile["caption"] for tile in search(page)}
    assert len(found) == page.call("/api/info")[1]["rows"] == 58
    assert found["red/0.png"] == "red number 0"
    assert page.call(f"/api/thumbs/{version}/3", raw=True)[0] == 409, "no number means a picture of another version"
    assert page.call("/api/classes/1/marks", {"rows": [9], "mark": 1, "version": version})[0] == 409
    (reds,) = page.call("/api/classes")[1]["classes"]
    assert (reds["name"], reds["yes"]) == ("reds", 2)


def painted_rows(folder, colours, names, create=True):
    """Rows whose pixels are known, as `recollect memory build` writes them."""
    images = [shade(COLOURS[colour], number) for number, colour in enumerate(colours)]
    encoder = ColourEncoder()
    memory = Memory.create(folder, width=3, model="colour", model_name="colours") if create else Memory.open(folder)
    vectors, texts = encoder.embed_images(images).numpy(), encoder.embed_texts(list(colours)).numpy()
    digests = [f"pixels of {colour}" for colour in colours]
    data = [encoded(image) for image in images]
    memory.upsert(Pairs(names, vectors, texts, list(colours), "colour", images=data, digests=digests))
    return memory


def test_a_picture_is_found_by_its_pixels_before_anybody_asked_for_copies(tmp_path):
    memory = painted_rows(tmp_path / "memory", ["red", "green"], ["a", "b"])
    assert Collection(memory).row_of_picture("pixels of green") == 1
    assert Collection(memory).row_of_picture("b") == 1
    assert Collection(memory).row_of_picture("pixels of blue") is None


def test_clicks_stay_with_their_pictures_where_files_are_exchanged_and_renamed(tmp_path, restart):
    """As `memory add` leaves rows in another process: an id is the name of a file, which may be another's tomorrow."""
    memory = painted_rows(tmp_path / "memory", ["red", "green", "blue"], ["a", "b", "c"])
    page = restart(tmp_path / "memory")
    version = page.call("/api/info")[1]["version"]
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes/1/marks", {"rows": [0], "mark": 1, "version": version})
    painted_rows(tmp_path / "memory", ["green", "red"], ["a", "b"], create=False)
    assert page.call("/api/labels/memory", b"")[1]["changed"] == 1
    memory.refresh()
    assert [item.metadata.get("clicked") for item in memory.fetch(["a", "b", "c"])] == [None, "reds", None]
    memory.delete(["b"])
    assert page.call("/api/info")[1]["rows"] == 2
    assert page.call("/api/classes")[1]["classes"][0]["yes"] == 1, "of a picture that is not there any more"
    assert page.call("/api/classes/1/order?show=clicked")[1]["total"] == 0
    painted_rows(tmp_path / "memory", ["red"], ["renamed"], create=False)
    page.call("/api/info")
    assert names(tiles(page, page.call("/api/classes/1/order?show=clicked")[1]["order"])) == ["renamed"]


def test_no_picture_that_a_browser_has_kept_is_taken_for_one_of_another_memory(tmp_path, restart):
    """Browsers keep pictures for a week, by the address of the page, at which another memory may be served."""
    made = {name: painted_rows(tmp_path / name, ["red", "green"], ["a", "b"]) for name in ("one", "two")}
    assert made["one"].version == made["two"].version
    one, two = (restart(tmp_path / name).call("/api/info")[1]["version"] for name in made)
    assert one != two
    assert max(one, two) < 2**53, "a number that a script of the page can hold"


def test_a_memory_that_was_built_anew_in_its_place_is_seen_and_clicks_into_nothing_are_refused(tmp_path, restart):
    painted_rows(tmp_path / "memory", ["red", "green"], ["a", "b"])
    page = restart(tmp_path / "memory")
    version = page.call("/api/info")[1]["version"]
    page.call("/api/classes", {"name": "reds"})
    shutil.rmtree(tmp_path / "memory")
    painted_rows(tmp_path / "memory", ["blue", "red", "green"], ["c", "d", "e"])
    assert page.call("/api/info")[1]["rows"] == 3
    assert page.call(f"/api/thumbs/{version}/0", raw=True)[0] == 409
    version = page.call("/api/info")[1]["version"]
    status, said = page.call("/api/classes/1/marks", {"rows": [0], "mark": 1, "version": version})
    assert (status, "Start the page again" in said["error"]) == (400, True), "its log went with the memory"


def test_a_page_goes_on_where_its_version_of_the_memory_was_cleared_away(page):
    _, answer = page.call("/api/search", {"terms": [{"words": "red"}]})
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes/1/marks", {"rows": [0, 3], "mark": 1, "version": answer["version"]})
    assert page.call("/api/labels/memory", b"")[1]["changed"] == 2
    assert page.call("/api/info")[1]["version"] == answer["version"], "labels of its own are no other rows"
    memory = Memory.open(page.folder)
    memory.delete([f"blue/{number}.png" for number in (2, 5, 8)])
    memory.optimize(keep_days=0)
    assert page.call(f"/api/window?order={answer['order']}&start=0&count=9")[0] == 410
    assert len(search(page, {"words": "red"}, where="number < 9")) == 6
    assert page.call("/api/info")[1]["rows"] == 57
    memory.delete(memory.ids_where("number >= 0"))
    status, said = page.call("/api/info")
    assert (status, "is empty" in said["error"]) == (400, True)


def test_a_memory_without_rows_or_of_another_model_is_refused(tmp_path):
    Memory.create(tmp_path / "empty", width=3, model="colour")
    with pytest.raises(UserError, match="is empty"):
        start(tmp_path / "empty")


def test_the_answer_to_a_click_comes_at_once(tmp_path, unit):
    """A loose bound, for a busy machine; the measured figures are in the guide."""
    from recollect.apps.classify.clicked_cut import cut_off
    from recollect.apps.classify.clicks import ClickModel

    pool = unit(np.random.default_rng(0).normal(size=(5000, 64))).astype(np.float32)
    model, marks, took = ClickModel(pool), {}, []
    for row in range(30):
        marks[row] = 1 if row % 3 else -1
        began = time.perf_counter()
        cut_off(model.fit(marks))
        took.append(time.perf_counter() - began)
    assert np.median(took) < 1.0


def test_serving_is_refused_in_one_line(tmp_path, capsys):
    from recollect import cli

    colour_memory(tmp_path / "memory")
    place = str(tmp_path / "memory")
    wrong = {
        ("serve", str(tmp_path / "none")): "no such memory",
        ("serve", place, "--host", "0.0.0.0"): "--token",
        ("serve", place, "--host", "0.0.0.0", "--token", "short"): "at least 16",
        ("serve", place, "--port", "70000"): "between 0 and 65535",
        ("serve", place, "--model", str(tmp_path / "nothing")): "nothing",
    }
    for host, shown in {"localhost": "127.0.0.1", "::1": "[::1]", "127.0.0.1": "127.0.0.1"}.items():
        assert Serve(place, host=host).address(80) == f"http://{shown}:80/", "where it listens"
    for words, message in wrong.items():
        assert cli.main(list(words)) == 2, words
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1


def test_a_memory_that_takes_no_labels_is_said_before_anybody_clicks(tmp_path, painted, monkeypatch, capsys):
    monkeypatch.setattr(serve, "open_model_of", lambda *_: (ColourEncoder(), "colours"))
    opened = [Serve(str(painted), log=tmp_path / "log")._session()]
    assert "cannot be written" not in capsys.readouterr().out
    opened[0].labels.close()

    def refuse(*_):
        raise UserError("a disk that may only be read")

    monkeypatch.setattr(serve, "check_writable", refuse)
    opened.append(Serve(str(painted), log=tmp_path / "log")._session())
    said = " ".join(capsys.readouterr().out.split())
    assert f"{painted} cannot be written to: clicks are kept in {tmp_path / 'log'}, but no labels" in said
    for session in opened:
        session.labels.close()
        session.collection.close()


def test_names_that_look_the_same_are_one_class(page):
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes", {"name": "Töne"})
    for name, known in (("REDS", "reds"), ("to\u0308ne", "Töne")):
        status, said = page.call("/api/classes", {"name": name})
        assert (status, said) == (400, {"error": f"there is a class {known!r} already"}), "nobody tells these apart"
