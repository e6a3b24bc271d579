"""The map: layout, colors and selection by a loop."""

import numpy as np

from browsing import Tab
from index_rows import unit
from recollect.web import layout


def test_similar_pictures_are_placed_together(monkeypatch):
    monkeypatch.setattr(layout, "ANCHORS", 200)
    rng = np.random.default_rng(0)
    centers, cluster = unit(rng.normal(size=(4, 16))), rng.integers(0, 4, 500)
    vectors = unit(centers[cluster] + 0.05 * rng.normal(size=(500, 16)))
    placed = layout.lay_out(vectors)
    assert len(placed.rows) == len(vectors)
    assert 0 <= placed.points.min() <= placed.points.max() <= 1
    medians = np.stack([np.median(placed.points[cluster == each], axis=0) for each in range(4)])
    nearest = np.linalg.norm(placed.points[:, None] - medians, axis=-1).argmin(axis=1)
    assert (nearest == cluster).mean() > 0.95


def test_colors_show_folders_or_labels(page):
    page.call("/api/classes", {"name": "reds"})
    page.call("/api/classes/1/marks", {"ids": ["red/0.png", "red/3.png"], "mark": 1})
    page.call("/api/classes/1/marks", {"ids": ["green/1.png"], "mark": -1})
    ids = page.call("/api/map")[1]["ids"]
    colors = page.call("/api/map/groups?by=label")[1]
    assert colors["names"] == ["reds"]
    assert {id for id, group in zip(ids, colors["groups"], strict=True) if group == 0} == {"red/0.png", "red/3.png"}
    colors = page.call("/api/map/groups?by=folder&where=number%20%3C%2030")[1]
    assert len(colors["groups"]) == 30
    assert set(colors["groups"]) == set(range(len(colors["names"])))


def test_pictures_inside_a_drawn_loop_can_be_labeled(browser, page):
    tab = Tab(browser, page)
    tab.page.click("#show-map")
    tab.starts("#status", "Map of 60")
    tab.page.click(".map-tools button:has-text('Draw')")
    box = tab.page.locator("#map").bounding_box()
    left, top, right, bottom = box["x"] + 2, box["y"] + 2, box["x"] + box["width"] - 2, box["y"] + box["height"] - 2
    tab.page.mouse.move(left, top)
    tab.page.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom)):
        tab.page.mouse.move(x, y, steps=3)
    tab.page.mouse.up()
    tab.page.click(".map-tools button:has-text('Label these')")
    tab.page.fill(".question input", "all of them")
    tab.page.press(".question input", "Enter")
    tab.starts("#notice", "60 pictures marked")
    assert page.call("/api/classes")[1]["classes"][0]["yes"] == 60
    assert page.call("/api/undo", b"")[1]["undone"]["do"] == "mark"
    tab.clean()
