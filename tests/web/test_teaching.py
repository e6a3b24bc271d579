"""Models of the labels while other threads change marks."""

import threading

import pytest

from recollect.classifiers.clicks.model import ClickModel
from recollect.web.library import ShownRows


@pytest.fixture
def during_the_first_fit(monkeypatch):
    """Calls a function in another thread when the first model has its marks, and goes on once it has ended."""

    def arrange(change):
        fit, changed = ClickModel.fit, []

        def fit_later(model, marks):
            if not changed:
                changed.append(threading.Thread(target=change))
                changed[0].start()
                changed[0].join(30)
                assert not changed[0].is_alive(), "a change of labels does not wait for models"
            return fit(model, marks)

        monkeypatch.setattr(ClickModel, "fit", fit_later)

    return arrange


def test_marks_that_are_undone_while_labels_are_fitted_are_not_learned_from(page, during_the_first_fit):
    session = page.session
    view, reds, greens = session.library.view(), session.labels.create("reds"), session.labels.create("greens")
    for key, id in ((reds.key, "red/0.png"), (greens.key, "green/1.png"), (greens.key, "green/4.png")):
        session.teacher.mark(key, [id], 1)
    during_the_first_fit(session.undo)
    assert len(session.teacher.answers(view)) == 2
    assert session.teacher.ranked(greens.key, "clicked", ShownRows.all(view))[0] == ["green/1.png"]
    assert session.teacher.summary(greens.key, ShownRows.all(view))["yes"] == 1


def test_a_label_that_is_removed_while_labels_are_fitted_is_left_out(page, during_the_first_fit):
    session = page.session
    reds, greens = session.labels.create("reds"), session.labels.create("greens")
    during_the_first_fit(lambda: session.labels.drop(greens.key))
    answered = session.teacher.answers(session.library.view())
    assert [each.key for each, _ in answered] == [reds.key]


def test_marks_that_are_undone_just_before_a_label_is_fitted_are_not_learned_from(page, monkeypatch):
    session = page.session
    view, reds = session.library.view(), session.labels.create("reds")
    session.teacher.mark(reds.key, ["red/0.png"], 1)
    session.teacher.mark(reds.key, ["red/3.png"], 1)
    get, taken = session.labels.get, []

    def undone_after(key):
        found = get(key)
        if not taken:
            taken.append(session.undo())
        return found

    monkeypatch.setattr(session.labels, "get", undone_after)
    for _ in range(2):
        clicked, _ = session.teacher.ranked(reds.key, "clicked", ShownRows.all(view))
    assert clicked == ["red/0.png"]
