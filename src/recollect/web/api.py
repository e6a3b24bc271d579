"""The page's JSON API: a verb of the commands each, and the front end's own files."""

import csv
import io
import time
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from recollect.apps.classify.sheet import no_formula
from recollect.core.errors import UserError
from recollect.memory.rows import Item, plain
from recollect.web.collection import VIEW_SIDE, Collection, as_jpeg
from recollect.web.guard import Guard
from recollect.web.opened import MemoryChangedError, OpenMemory
from recollect.web.orders import ListGoneError, Order
from recollect.web.session import SearchTerm, Session

STATIC = (
    "index.html",
    "style.css",
    "app.js",
    "api.js",
    "grid.js",
    "search.js",
    "classes.js",
    "map.js",
    "sorted.js",
    "viewer.js",
    "icon.svg",
)
_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_WEEK = "private, max-age=604800, immutable"
MOST_TILES = 400
MOST_GROUPS, MOST_OF_GROUP = 300, 24
"""Of duplicates that are shown; how many more there are, is said."""
_Filter = Annotated[str | None, Query(max_length=2000)]
"""Of an address; only what satisfies it is listed, counted or written."""
_STATUS: dict[type[Exception], int] = {ListGoneError: 410, MemoryChangedError: 409}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TermBody(_Body):
    """One term of a search."""

    words: Annotated[str, Field(max_length=2000)] | None = None
    row: int | None = None
    upload: Annotated[str, Field(max_length=64)] | None = None
    weight: float | int = 1.0


class SearchBody(_Body):
    """A search."""

    terms: Annotated[list[TermBody], Field(max_length=16)] = []
    where: Annotated[str, Field(max_length=2000)] | None = None
    adapt: bool = False
    version: int | None = None
    """Whose rows the terms name; another is refused."""


class ClassBody(_Body):
    """A new class."""

    name: Annotated[str, Field(max_length=400)]
    text: Annotated[str, Field(max_length=400)] = ""


class MarkBody(_Body):
    """A click."""

    rows: Annotated[list[int], Field(min_length=1, max_length=1000)]
    mark: Literal[-1, 0, 1]
    version: int
    show: Literal["likely", "next", "cut", "clicked"] = "likely"
    where: Annotated[str, Field(max_length=2000)] | None = None


class WriteBody(_Body):
    """Which pictures' labels to write; all by default."""

    where: Annotated[str, Field(max_length=2000)] | None = None


class SaveBody(_Body):
    """Where to keep the classifier."""

    name: Annotated[str, Field(max_length=100)]


def create_app(session: Session, hosts: frozenset[str], token: str | None = None) -> Guard:
    """The whole page as an ASGI application.

    Args:
        hosts: by which it may be called; empty for any.
        token: what a browser must know; None for whoever can reach it.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    opened = OpenMemory(session)
    _errors(app)
    _static(app)
    _searching(app, opened)
    _looking(app, opened)
    _overviews(app, opened)
    _teaching(app, opened)
    _keeping(app, opened)
    return Guard(app, hosts, token)


def _errors(app: FastAPI) -> None:
    @app.exception_handler(UserError)
    async def said(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": " ".join(str(error).split())}, _STATUS.get(type(error), 400))

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return JSONResponse({"error": f"{where or 'request'}: {first['msg']}"}, 422)

    @app.exception_handler(OSError)
    async def gone(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"cannot be read any more ({type(error).__name__})"}, 503)


def _static(app: FastAPI) -> None:
    folder = files("recollect.web") / "static"
    contents = {name: (folder / name).read_bytes() for name in STATIC}

    def serve(name: str) -> Response:
        return Response(contents[name], media_type=_TYPES[name.rsplit(".")[-1]], headers={"cache-control": "no-cache"})

    @app.get("/")
    def index() -> Response:
        return serve("index.html")

    for each in STATIC:  # a table of known names: no path of a request ever reaches the disk
        app.add_api_route(f"/static/{each}", lambda name=each: serve(name), methods=["GET"])


def _answer(session: Session, order: Order, began: float, **more: Any) -> dict[str, Any]:
    return {
        "order": order.key,
        "total": len(order.rows),
        "of": session.collection.tiles,
        "kind": order.kind,
        "version": session.collection.version,
        "milliseconds": round(1000 * (time.perf_counter() - began), 1),
        **order.about,
        **more,
    }


def _checked(session: Session, version: int) -> Collection:
    if version != session.collection.version:
        raise MemoryChangedError("the memory has changed since this was shown. Ask again, or load the page again.")
    return session.collection


def _searching(app: FastAPI, opened: OpenMemory) -> None:
    @app.get("/api/info")
    def info() -> dict[str, Any]:
        session = opened.refresh()
        return {
            "memory": session.collection.name,
            "rows": len(session.collection),
            "version": session.collection.version,
            "model": session.model_name.rstrip("/").rsplit("/")[-1],
            "damaged": session.labels.damaged,
        }

    @app.get("/api/filters")
    def filters() -> dict[str, Any]:  # by itself: of a million rows it takes seconds
        keys, missing = opened.ask(
            lambda session: (session.collection.memory.metadata_keys(), session.adaptive.missing)
        )
        return {"filters": ["id", "caption", "source", *keys], "cannot_adapt": missing}

    @app.post("/api/search")
    def search(body: SearchBody) -> dict[str, Any]:
        began = time.perf_counter()
        terms = [SearchTerm(each.words, each.row, each.upload, float(each.weight)) for each in body.terms]

        def answer(session: Session) -> dict[str, Any]:
            if body.version is not None and any(each.row is not None for each in body.terms):
                _checked(session, body.version)
            order = session.search(terms, body.where, body.adapt) if terms else session.everything(body.where)
            return _answer(session, order, began)

        return opened.ask(answer)

    @app.post("/api/pictures")
    async def upload(request: Request) -> dict[str, str]:
        data = await request.body()
        from starlette.concurrency import run_in_threadpool

        return {"upload": await run_in_threadpool(opened.session.upload, data)}


def _looking(app: FastAPI, opened: OpenMemory) -> None:
    @app.get("/api/window")
    def window(
        order: Annotated[str, Query(max_length=64)],
        start: Annotated[int, Query(ge=0)],
        count: Annotated[int, Query(ge=1, le=MOST_TILES)],
        label: int | None = None,
    ) -> dict[str, Any]:
        return {"tiles": opened.ask(lambda session: session.window(order, start, count, label))}

    @app.get("/api/thumbs/{version}/{row}")
    def thumb(version: int, row: int) -> Response:
        collection = _checked(opened.session, version)
        collection.check([row])
        return _picture(lambda: collection.thumbnail(row))

    @app.get("/api/pictures/{version}/{row}")
    def picture(version: int, row: int) -> Response:
        collection = _checked(opened.session, version)
        collection.check([row])
        return _picture(lambda: as_jpeg(collection.picture(row), VIEW_SIDE))

    @app.get("/api/items/{version}/{row}")
    def item(version: int, row: int) -> dict[str, Any]:
        def known(session: Session) -> tuple[Item, list[str]]:
            _checked(session, version).check([row])
            return session.collection.items([row])[0], session.collection.captions(row)

        found, captions = opened.ask(known)
        return {
            "id": found.id,
            "caption": found.caption,
            "captions": captions,
            "source": found.source,
            "file": str(found.path or ""),
            "metadata": plain(found.metadata),
        }


def _overviews(app: FastAPI, opened: OpenMemory) -> None:
    @app.get("/api/map")
    def layout(where: _Filter = None) -> dict[str, Any]:
        session = opened.session
        found = session.layout(where)
        return {
            "version": session.collection.version,
            "of": len(session.collection.shown(where).tiles),
            "rows": found.rows.tolist(),
            "points": np.round(found.points, 4).ravel().tolist(),
            "method": found.method,
        }

    @app.get("/api/duplicates")
    def alike(where: _Filter = None) -> dict[str, Any]:
        (groups, note), collection = opened.ask(lambda session: (session.duplicates(where), session.collection))
        ids = collection.ids
        return {
            "version": collection.version,
            "groups": [
                {
                    "kind": each.kind,
                    "pictures": [{"row": row, "id": ids[row], "score": None} for row in each.rows[:MOST_OF_GROUP]],
                    "more": max(0, len(each.rows) - MOST_OF_GROUP),
                }
                for each in groups[:MOST_GROUPS]
            ],
            "more": max(0, len(groups) - MOST_GROUPS),
            "note": note,
        }

    @app.get("/api/sorted")
    def sorted_by_clicks(
        show: Annotated[str, Query(max_length=410)] = "doubtful", where: _Filter = None
    ) -> dict[str, Any]:
        began = time.perf_counter()
        return opened.ask(
            lambda session: _answer(session, session.keeper.sort(show, where), began, revision=session.labels.revision)
        )


def _picture(make: Any) -> Response:
    try:
        return Response(make(), media_type="image/jpeg", headers={"cache-control": _WEEK})
    except UserError:  # no picture, gone or damaged: the tile shows its caption
        return Response(status_code=404, headers={"cache-control": "no-store"})


def _teaching(app: FastAPI, opened: OpenMemory) -> None:
    @app.get("/api/classes")
    def classes() -> dict[str, Any]:
        session = opened.session
        found = []
        for each in list(session.labels.classes.values()):
            yes, no = session.teacher.counts(each)
            found.append({"class": each.key, "name": each.name, "text": each.text, "yes": yes, "no": no})
        return {"classes": found, "revision": session.labels.revision}

    @app.post("/api/classes")
    def create(body: ClassBody) -> dict[str, Any]:
        session = opened.session
        return {"class": session.teacher.create(body.name, body.text).key, "revision": session.labels.revision}

    @app.delete("/api/classes/{key}")
    def drop(key: int) -> dict[str, Any]:
        session = opened.session
        session.teacher.drop(key)
        return {"revision": session.labels.revision}

    def listed(session: Session, key: int, show: str, where: str | None, **more: Any) -> dict[str, Any]:
        began = time.perf_counter()
        order = session.teacher.ranked(key, show, where)
        summary = session.teacher.summary(key, where)
        return _answer(session, order, began, summary=summary, revision=session.labels.revision, **more)

    @app.get("/api/classes/{key}/order")
    def ranked(
        key: int, show: Literal["likely", "next", "cut", "clicked"] = "likely", where: _Filter = None
    ) -> dict[str, Any]:
        return opened.ask(lambda session: listed(session, key, show, where))

    @app.post("/api/classes/{key}/marks")
    def mark(key: int, body: MarkBody) -> dict[str, Any]:
        session = opened.session
        _checked(session, body.version).shown(body.where)  # a filter that is wrong is said before a click counts
        marked = session.teacher.mark(key, body.rows, body.mark)
        return listed(session, key, body.show, body.where, marked=marked)

    @app.post("/api/undo")
    def undo() -> dict[str, Any]:
        session = opened.session
        undone = session.teacher.undo()
        return {"undone": undone, "revision": session.labels.revision}

    @app.post("/api/redo")
    def redo() -> dict[str, Any]:
        session = opened.session
        redone = session.teacher.redo()
        return {"redone": redone, "revision": session.labels.revision}


def _keeping(app: FastAPI, opened: OpenMemory) -> None:
    @app.post("/api/save")
    def save(body: SaveBody) -> dict[str, Any]:
        folder, kept, replaced = opened.ask(lambda session: session.keeper.save(body.name))
        return {
            "folder": str(folder),
            "replaced": replaced,
            "classes": list(kept.classes),
            "method": kept.method,
            "examples": len(kept.support),
            "held_out": kept.calibration,
        }

    @app.post("/api/labels/memory")
    def write(body: WriteBody | None = None) -> dict[str, Any]:
        where = body.where if body else None
        opened.refresh()  # an id may be another picture's now: what is written is of the rows of today
        written = opened.ask(lambda session: session.keeper.write_labels(where))
        return {**asdict(written), "version": opened.refresh().collection.version}

    @app.get("/api/labels.csv")
    def as_csv(where: _Filter = None) -> Response:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        table = opened.ask(lambda session: session.keeper.table(where))
        writer.writerow(table.column_names)
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
            writer.writerow([no_formula(value) if isinstance(value, str) else value for value in row])
        return _download(text.getvalue().encode(), "text/csv; charset=utf-8", "labels.csv")

    @app.get("/api/labels.parquet")
    def as_parquet(where: _Filter = None) -> Response:
        data = opened.ask(lambda session: session.keeper.parquet(where))
        return _download(data, "application/vnd.apache.parquet", "labels.parquet")


def _download(data: bytes, kind: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return Response(data, media_type=kind, headers=headers)
