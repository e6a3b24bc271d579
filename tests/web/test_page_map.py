"""The map: colors, a loop around pictures, many points."""

import numpy as np

from browsing import Tab
from recollect.web import layout


def test_many_pictures_are_placed_next_to_those_that_they_are_alike(unit, monkeypatch):
    monkeypatch.setattr(layout, "ANCHORS", 200)
    rng = np.random.default_rng(0)
    centers = unit(rng.normal(size=(4, 16)).astype(np.float32))
    kind = rng.integers(0, 4, 500)
    vectors = unit(centers[kind] + 0.05 * rng.normal(size=(len(kind), 16)).astype(np.float32))
    found = layout.lay_out(vectors)
    assert len(found.rows) == len(vectors)
    assert 0 <= found.points.min() <= found.points.max() <= 1
    middles = np.stack([np.median(found.points[kind == each], axis=0) for each in range(4)])
    nearest = np.linalg.norm(found.points[:, None] - middles, axis=-1).argmin(axis=1)
    assert (nearest == kind).mean() > 0.95


def test_colors_are_of_folders_or_labels(page):
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes/1/marks", {"ids": ["red/0.png", "red/3.png"], "mark": 1})
    page.call("/api/classes/1/marks", {"ids": ["green/1.png"], "mark": -1})
    ids = page.call("/api/map")[1]["ids"]
    found = page.call("/api/map/groups?by=label")[1]
    assert found["names"] == ["reds"]
    assert {id for id, group in zip(ids, found["groups"], strict=True) if group == 0} == {"red/0.png", "red/3.png"}
    found = page.call("/api/map/groups?by=folder&where=number%20%3C%2030")[1]
    assert len(found["groups"]) == 30
    assert set(found["groups"]) == set(range(len(found["names"])))


def test_a_loop_selects_pictures_which_are_labeled(browser, page):
    tab = Tab(browser, page)
    tab.tab.click("#show-map")
    tab.wait("document.querySelector('#status').textContent.startsWith('Map of 60')")
    tab.tab.click(".map-tools button:has-text('Draw')")
    box = tab.tab.locator("#map").bounding_box()
    left, top, right, bottom = box["x"] + 2, box["y"] + 2, box["x"] + box["width"] - 2, box["y"] + box["height"] - 2
    tab.tab.mouse.move(left, top)
    tab.tab.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom)):
        tab.tab.mouse.move(x, y, steps=3)
    tab.tab.mouse.up()
    tab.tab.click(".map-tools button:has-text('Label these')")
    tab.tab.fill(".question input", "all of them")
    tab.tab.press(".question input", "Enter")
    tab.wait("document.querySelector('#notice').textContent.startsWith('60 pictures marked')")
    assert page.call("/api/classes")[1]["classes"][0]["yes"] == 60
    assert page.call("/api/undo", b"")[1]["undone"]["do"] == "mark"
    tab.clean()
