"""How the page's searches use the index, the model and cached lists."""

import threading

import pytest

from colors import COLORS, shade
from pictures import encoded
from recollect.index import Index
from recollect.web.requests import SearchTerm, Slice

RED = (SearchTerm(words="red"),)


def test_a_filtered_search_does_not_list_ids(shared_page, monkeypatch):
    monkeypatch.delattr(Index, "ids_where")
    answer = shared_page.session.answer(Slice(terms=RED, where="number < 7"))
    assert (answer["total"], len(answer["tiles"])) == (7, 7)


@pytest.mark.parametrize("where", ["", "number < 8"])
def test_lookups_do_not_hold_the_session_lock(shared_page, monkeypatch, where):
    session, look_up, free = shared_page.session, Index.lookup, []

    def lookup_with_other_thread(index, *args, **options):
        def use():
            free.append(session._lock.acquire(timeout=5))
            if free[-1]:
                session._lock.release()

        other = threading.Thread(target=use)
        other.start()
        other.join()
        return look_up(index, *args, **options)

    monkeypatch.setattr(Index, "lookup", lookup_with_other_thread)
    session.answer(Slice(terms=RED, where=where))
    assert free == [True]


def test_a_long_list_continues_after_its_uploaded_picture_has_expired(page, monkeypatch):
    monkeypatch.setattr("recollect.web.session._FIRST", 25)
    session = page.session
    upload = session.upload(encoded(shade(COLORS["red"], 999)))
    terms = (SearchTerm(upload=upload),)
    whole = [hit.id for hit in session.library.index.search(session.query(terms), 60)]
    first = session.answer(Slice(terms=terms, count=20))
    for number in range(40):
        session.upload(encoded(shade(COLORS["blue"], number)))
    known = {"version": first["version"], "revision": first["revision"]}
    rest = session.ids(Slice(terms=terms, start=20, **known), None)
    assert [tile["id"] for tile in first["tiles"]] + rest == whole
