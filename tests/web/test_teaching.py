"""Label models while other threads change marks."""

import threading

import pytest

from recollect.classifiers.clicks.model import ClickModel
from recollect.web.library import ShownRows


@pytest.fixture
def during_the_first_fit(monkeypatch):
    """Return a function that runs a change in another thread, to completion, before the first fit."""

    def arrange(change):
        fit, changed = ClickModel.fit, []

        def fit_later(model, marks):
            if not changed:
                changed.append(threading.Thread(target=change))
                changed[0].start()
                changed[0].join(30)
                assert not changed[0].is_alive(), "changing labels must not wait for a fit"
            return fit(model, marks)

        monkeypatch.setattr(ClickModel, "fit", fit_later)

    return arrange


def test_marks_undone_during_a_fit_are_not_learned(page, during_the_first_fit):
    session = page.session
    view, reds, greens = session.library.view(), session.labels.create("reds"), session.labels.create("greens")
    for key, id in ((reds.key, "red/0.png"), (greens.key, "green/1.png"), (greens.key, "green/4.png")):
        session.teacher.mark(key, [id], 1)
    during_the_first_fit(session.undo)
    assert len(session.teacher.answers(view)) == 2
    assert session.teacher.ranked(greens.key, "clicked", ShownRows.all(view))[0] == ["green/1.png"]
    assert session.teacher.summary(greens.key, ShownRows.all(view))["yes"] == 1


def test_a_label_removed_during_a_fit_is_left_out(page, during_the_first_fit):
    session = page.session
    reds, greens = session.labels.create("reds"), session.labels.create("greens")
    during_the_first_fit(lambda: session.labels.drop(greens.key))
    answered = session.teacher.answers(session.library.view())
    assert [each.key for each, _ in answered] == [reds.key]


def test_marks_undone_just_before_a_fit_are_not_learned(page, monkeypatch):
    session = page.session
    view, reds = session.library.view(), session.labels.create("reds")
    session.teacher.mark(reds.key, ["red/0.png"], 1)
    session.teacher.mark(reds.key, ["red/3.png"], 1)
    get, taken = session.labels.get, []

    def get_then_undo(key):
        label = get(key)
        if not taken:
            taken.append(session.undo())
        return label

    monkeypatch.setattr(session.labels, "get", get_then_undo)
    for _ in range(2):
        clicked, _ = session.teacher.ranked(reds.key, "clicked", ShownRows.all(view))
    assert clicked == ["red/0.png"]
