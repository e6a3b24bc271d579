"""The page's JSON API, and the front end's own files."""

import csv
import io
import shutil
from importlib.resources import files
from typing import Annotated, Any, Literal
from urllib.parse import quote

import numpy as np
import pyarrow.parquet as pq
from fastapi import Body, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from recollect.core.errors import UserError
from recollect.core.words import no_formula
from recollect.index import Picture
from recollect.index.exif import exif_table
from recollect.index.facets import FACETS
from recollect.index.rows import plain
from recollect.web.actions import file_manager, show_file
from recollect.web.duplicates import KINDS
from recollect.web.libraries import Libraries
from recollect.web.library import FULL_SIDE, VIEW_SIDE
from recollect.web.requests import (
    ActBody,
    ExportBody,
    IdsBody,
    LabelBody,
    LocalPath,
    MarkBody,
    PicturesBody,
    ResolveBody,
    SearchBody,
    Slice,
    WhereText,
)
from recollect.web.session import Session

_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_WEEK = "private, max-age=604800, immutable"
SHOWN_GROUPS = 40
"""Groups of duplicates in one answer."""
_Query = Annotated[WhereText, Query()]


def create_app(session: Session, libraries: Libraries) -> FastAPI:
    """The page of one library as an ASGI application, which needs a `Guard`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _errors(app)
    _static(app)
    _listing(app, session)
    _looking(app, session)
    _overviews(app, session)
    _duplicates(app, session)
    _labeling(app, session)
    _saving(app, session)
    _selecting(app, session)
    _switching(app, session, libraries)
    return app


def _errors(app: FastAPI) -> None:
    @app.exception_handler(UserError)
    async def wrong(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": " ".join(str(error).split())}, 400)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return JSONResponse({"error": f"{where or 'request'}: {first['msg']}"}, 422)

    @app.exception_handler(OSError)
    async def gone(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"cannot be read ({type(error).__name__})"}, 503)


def _static(app: FastAPI) -> None:
    folder = files("recollect.web") / "static"
    contents = {each.name: each.read_bytes() for each in folder.iterdir() if each.name.rsplit(".")[-1] in _TYPES}

    def serve(name: str) -> Response:
        return Response(contents[name], media_type=_TYPES[name.rsplit(".")[-1]], headers={"cache-control": "no-cache"})

    @app.get("/")
    def index() -> Response:
        return serve("index.html")

    for each in contents:  # a table of known names: no path of a request ever reaches the disk
        app.add_api_route(f"/static/{each}", lambda name=each: serve(name), methods=["GET"])


def _listing(app: FastAPI, session: Session) -> None:
    @app.get("/api/info")
    def info() -> dict[str, Any]:
        filling = (
            session.additions.progress()
        )  # first, so that the last pictures are counted when it says that all are there
        view = session.library.refresh()
        session.prepare_later()
        index = view.index
        return {
            "name": session.library.name,
            "pictures": len(view.ids),
            "version": view.version,
            "revision": session.labels.revision,
            "model": index.record.model_name.rstrip("/").rsplit("/")[-1],
            "damaged": session.labels.damaged,
            "filling": filling,
            "ends": session.ends,
            "adds_to": str(session.additions.place),
            "address": index.address,
        }

    @app.post("/api/folders")
    def add(folder: Annotated[LocalPath, Body(embed=True)]) -> dict[str, Any]:
        session.additions.start(folder)
        return {"filling": session.additions.progress()}

    @app.get("/api/filters")
    def filters() -> dict[str, Any]:  # apart from the rest: it takes seconds with a million pictures
        return {"filters": list(session.library.index.columns()), "cannot_adapt": session.cannot_adapt}

    @app.post("/api/list")
    def tiles(body: Slice) -> dict[str, Any]:
        return session.ask(lambda: session.answer(body))

    @app.post("/api/shapes")
    def shapes(body: Slice) -> Response:
        found = session.ask(lambda: session.shapes(body))
        return Response(found, media_type="application/octet-stream")

    @app.post("/api/ids")
    def ids(body: IdsBody) -> dict[str, Any]:
        return {"ids": session.ask(lambda: session.ids(body, body.start + body.count))}

    @app.get("/api/facets")
    def facets(where: _Query = "", names: Annotated[str, Query(max_length=200)] = ",".join(FACETS)) -> dict[str, Any]:
        asked = [name for name in names.split(",") if name]
        return {"facets": session.ask(lambda: session.facets(asked, where))}

    @app.post("/api/pictures")
    async def upload(request: Request) -> dict[str, str]:
        return {"upload": await run_in_threadpool(session.upload, await request.body())}

    @app.post("/api/added")
    async def keep(request: Request, name: Annotated[str, Query(min_length=1, max_length=250)]) -> dict[str, Any]:
        kept = await run_in_threadpool(session.additions.keep, name, await request.body())
        return {"file": str(kept), "folder": str(kept.parent), "watched": session.additions.watched is not None}


def _switching(app: FastAPI, session: Session, libraries: Libraries) -> None:
    @app.get("/api/libraries")
    def known() -> dict[str, Any]:
        return {"libraries": libraries.known(session)}

    @app.post("/api/libraries")
    def switch(place: Annotated[LocalPath, Body(embed=True)]) -> dict[str, Any]:
        return {"key": libraries.open(place)}

    @app.get("/api/searches")
    def saved() -> dict[str, Any]:
        return {"searches": session.labels.searches}

    @app.post("/api/searches")
    def save_search(body: SearchBody) -> dict[str, Any]:
        return {"searches": session.labels.save_search(body.name, body.address)}


def _looking(app: FastAPI, session: Session) -> None:
    @app.get("/api/thumbs/{id:path}")
    def thumb(id: str) -> Response:
        return _picture(lambda: session.library.thumbnail(id))

    @app.get("/api/pictures/{id:path}")
    def picture(id: str, full: bool = False) -> Response:
        return _picture(lambda: session.library.picture(id, FULL_SIDE if full else VIEW_SIDE))

    @app.get("/api/originals/{id:path}")
    def original(id: str) -> Response:
        name, data = session.library.original(id)
        return _download(data, name)

    @app.post("/api/show/{id:path}")
    def show(id: str) -> dict[str, Any]:
        (found,) = session.library.index.pictures([id])
        if not session.local or found.path is None:
            raise UserError("files can be shown only on the machine that serves the page")
        show_file(found.path)
        return {}

    @app.get("/api/items/{id:path}")
    def item(id: str) -> dict[str, Any]:
        (found,) = session.ask(lambda: session.library.pictures([id]))
        names = ("source", "folder", "width", "height", "taken", "camera")
        facts = {name: value for name in names if (value := getattr(found, name))}
        return {
            "id": found.id,
            "captions": found.captions,
            "files": [file.path or f"{file.source}: {file.key}" for file in found.files],
            "labels": [*found.labels, *session.labels.labels_of(id)],
            "facts": facts,
            "exif": _exif(found),
            "can_show": session.local and found.path is not None and file_manager() is not None,
            "metadata": plain(dict(found.metadata)),
        }


def _exif(picture: Picture) -> dict[str, str]:
    try:
        return exif_table(picture.encoded() or b"")
    except (UserError, OSError):  # its file is gone
        return {}


def _picture(make: Any) -> Response:
    try:
        return Response(make(), media_type="image/jpeg", headers={"cache-control": _WEEK})
    except (UserError, OSError):  # no picture, gone or damaged: the tile shows its name
        return Response(status_code=404, headers={"cache-control": "no-store"})


def _overviews(app: FastAPI, session: Session) -> None:
    @app.get("/api/map")
    def layout(where: _Query = "") -> dict[str, Any]:
        ids, points, method = session.ask(lambda: session.layout(where))
        of = len(session.selection(where).rows)
        version = session.library.view().version
        return {"version": version, "of": of, "ids": ids, "points": np.round(points, 4).ravel().tolist(),
                "method": method}  # fmt: skip

    @app.get("/api/map/groups")
    def groups(by: Literal["folder", "label"], where: _Query = "") -> dict[str, Any]:
        names, numbers = session.ask(lambda: session.map_groups(by, where))
        return {"names": names, "groups": numbers}


def _duplicates(app: FastAPI, session: Session) -> None:
    finder = session.duplicates

    @app.get("/api/duplicates")
    def found(where: _Query = "", kind: str | None = None, start: int = 0, count: int = SHOWN_GROUPS) -> dict[str, Any]:
        """Progress, counts by kind, and some groups of a kind."""
        here = set(session.ask(lambda: session.selection(where).ids))
        groups = finder.groups(here)
        counts = {each: [group for group in groups if group.kind == each] for each in KINDS}
        some = counts.get(kind or "", [])[start : start + min(count, SHOWN_GROUPS)]
        return {
            **finder.progress(),
            "counts": {each: {"groups": len(of), "pictures": sum(len(group.ids) for group in of)}
                       for each, of in counts.items()},
            "groups": [finder.shown(group) for group in some],
        }  # fmt: skip

    @app.post("/api/duplicates")
    def find() -> dict[str, Any]:
        finder.start()
        return finder.progress()

    @app.delete("/api/duplicates")
    def stop() -> dict[str, Any]:
        finder.stop()
        return finder.progress()

    @app.post("/api/duplicates/resolve")
    def resolve(body: ResolveBody) -> dict[str, Any]:
        done = session.actions.set_aside(body.ids, body.files, body.folder)
        session.library.refresh()
        return done


def _labeling(app: FastAPI, session: Session) -> None:
    labels = session.labels

    def state() -> dict[str, Any]:
        return {"revision": labels.revision, **session.pending()}

    @app.get("/api/classes")
    def every() -> dict[str, Any]:
        classes = [
            {"class": each.key, "name": each.name, "text": each.text, "yes": each.count(1), "no": each.count(-1)}
            for each in list(labels.classes.values())
        ]
        return {"classes": classes, **state()}

    @app.post("/api/classes")
    def create(body: LabelBody) -> dict[str, Any]:
        return {"class": labels.create(body.name, body.text).key, **state()}

    @app.delete("/api/classes/{key}")
    def drop(key: int) -> dict[str, Any]:
        session.teacher.drop(key)
        return state()

    @app.get("/api/classes/{key}")
    def summary(key: int, where: _Query = "") -> dict[str, Any]:
        return {"summary": session.teacher.summary(key, session.selection(where)), "revision": labels.revision}

    @app.post("/api/classes/{key}/marks")
    def mark(key: int, body: MarkBody) -> dict[str, Any]:
        listing = body.listing
        if listing is not None:
            session.selection(listing.where)  # a wrong filter is reported before anything is marked
        session.teacher.mark(key, session.chosen(body), body.mark)
        if listing is None:
            return state()
        summary = session.teacher.summary(key, session.selection(listing.where))
        return {"summary": summary, **state(), "listing": session.answer(listing)}

    @app.post("/api/undo")
    def undo() -> dict[str, Any]:
        return {"undone": session.undo(), **state()}

    @app.post("/api/redo")
    def redo() -> dict[str, Any]:
        return {"redone": session.teacher.redo(), **state()}


def _saving(app: FastAPI, session: Session) -> None:
    @app.post("/api/save")
    def save(name: Annotated[str, Body(embed=True, max_length=100)]) -> dict[str, Any]:
        folder, kept, replaced = session.sorting.save(name)
        return {
            "folder": str(folder),
            "replaced": replaced,
            "classes": list(kept.classes),
            "method": kept.method,
            "examples": len(kept.support),
            "held_out": kept.calibration,
        }

    @app.get("/api/labels.{kind}")
    def table(kind: Literal["csv", "parquet"], where: _Query = "") -> Response:
        found = session.sorting.table(session.selection(where))
        data = io.BytesIO()
        if kind == "parquet":
            pq.write_table(found, data)
        else:
            texts = io.TextIOWrapper(data, encoding="utf-8", newline="", write_through=True)
            writer = csv.writer(texts, lineterminator="\n")
            writer.writerow(found.column_names)
            for row in zip(*(column.to_pylist() for column in found.columns), strict=True):
                writer.writerow([no_formula(value) if isinstance(value, str) else value for value in row])
        return _download(data.getvalue(), f"labels.{kind}")


def _selecting(app: FastAPI, session: Session) -> None:
    actions = session.actions

    @app.post("/api/selection/plan")
    def plan(body: PicturesBody) -> dict[str, Any]:
        return actions.plan(session.chosen(body))

    @app.post("/api/selection/act")
    def act(body: ActBody) -> dict[str, Any]:
        done = actions.act(body.kind, session.chosen(body), body.folder)
        session.library.refresh()
        return done

    @app.post("/api/selection/export")
    def export(body: ExportBody) -> Response:
        ids = session.chosen(body)
        if body.kind in ("csv", "parquet"):
            file = actions.export(ids, f".{body.kind}")
        else:
            file = actions.export(ids, ".json", "labels" if body.kind == "coco-labels" else "captions")
        return FileResponse(file, filename=file.name, background=BackgroundTask(shutil.rmtree, file.parent))


def _download(data: bytes, name: str) -> Response:
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "cache-control": "no-store",
    }
    return Response(data, media_type="application/octet-stream", headers=headers)
