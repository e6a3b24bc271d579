"""JSON API of the page, and its static files."""

import io
import shutil
from importlib.resources import files
from typing import Annotated, Any, Literal
from urllib.parse import quote

import numpy as np
import pyarrow.parquet as pq
from fastapi import APIRouter, Body, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException

from recollect.core.cells import write_cells
from recollect.core.errors import UserError
from recollect.index import Picture
from recollect.index.exif import exif_table
from recollect.index.facets import FACETS
from recollect.index.rows import plain
from recollect.web.actions import file_manager, show_file
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
    SearchBody,
    Slice,
    WhereText,
)
from recollect.web.session import Session

_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_STATIC = {
    each.name: each.read_bytes()
    for each in (files("recollect.web") / "static").iterdir()
    if each.name.rsplit(".")[-1] in _TYPES
}
_WEEK = "private, max-age=604800, immutable"
_MAX_LISTED = 20  # unreadable pictures listed

router = APIRouter()
"""Routes of a library: the first one at ``/``, others at ``/library/KEY/``."""


def create_app(libraries: Libraries) -> FastAPI:
    """Create the ASGI application for all libraries; it must be wrapped in a `Guard`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.libraries = libraries
    app.include_router(router)
    app.include_router(router, prefix="/library/{library}", dependencies=[Depends(_opened)])

    @app.exception_handler(UserError)
    async def user_error(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": " ".join(str(error).split())}, 400)

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        message = f"{where or 'request'}: {first['msg']}"
        if first["type"] == "value_error":  # raised by a validator in `recollect.web.requests`
            message = str(first["ctx"]["error"])
        return JSONResponse({"error": message}, 422)

    @app.exception_handler(StarletteHTTPException)
    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, StarletteHTTPException)
        return JSONResponse({"error": error.detail}, error.status_code)

    @app.exception_handler(OSError)
    async def os_error(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"a file cannot be read ({type(error).__name__})"}, 503)

    return app


def _libraries(request: Request) -> Libraries:
    libraries: Libraries = request.app.state.libraries
    return libraries


def _opened(request: Request) -> Session:
    try:
        return _libraries(request).session(request.path_params.get("library", ""))
    except UserError as error:
        raise HTTPException(404, " ".join(str(error).split())) from None


Known = Annotated[Libraries, Depends(_libraries)]
Opened = Annotated[Session, Depends(_opened)]
"""Session of the library in the request's address."""
_Where = Annotated[WhereText, Query()]


# ---------------------------------------------------------------- the front end


@router.get("/")
def shell() -> Response:
    return static("index.html")


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Serve a static file from memory, so no name in a request reaches the disk."""
    if name not in _STATIC:
        raise HTTPException(404, "no such file")
    headers = {"cache-control": "no-cache"}
    return Response(_STATIC[name], media_type=_TYPES[name.rsplit(".")[-1]], headers=headers)


# ---------------------------------------------------------------- lists


@router.get("/api/info")
def info(session: Opened) -> dict[str, Any]:
    filling = session.additions.progress()  # read before counting, so "finished" implies that all pictures are counted
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
        "unreadable": len(session.additions.unreadable),
        "unreadable_first": session.additions.unreadable[:_MAX_LISTED],
        "ends": session.ends,
        "adds_to": str(session.additions.place),
        "address": index.address,
    }


@router.get("/api/filters")
def filters(session: Opened) -> dict[str, Any]:
    """Columns for filters; separate from `info`, since this takes seconds with a million pictures."""
    return {"filters": list(session.library.index.columns()), "cannot_adapt": session.cannot_adapt}


@router.post("/api/list")
def list_tiles(session: Opened, body: Slice) -> dict[str, Any]:
    return session.with_retry(lambda: session.answer(body))


@router.post("/api/shapes")
def shapes(session: Opened, body: Slice) -> Response:
    found = session.with_retry(lambda: session.shapes(body))
    return Response(found, media_type="application/octet-stream")


@router.post("/api/ids")
def ids(session: Opened, body: IdsBody) -> dict[str, Any]:
    return {"ids": session.with_retry(lambda: session.ids(body, body.start + body.count))}


@router.get("/api/facets")
def facets(
    session: Opened, where: _Where = "", names: Annotated[str, Query(max_length=200)] = ",".join(FACETS)
) -> dict[str, Any]:
    chosen = [name for name in names.split(",") if name]
    return {"facets": session.with_retry(lambda: session.facets(chosen, where))}


@router.get("/api/searches")
def searches(session: Opened) -> dict[str, Any]:
    return {"searches": session.labels.searches}


@router.post("/api/searches")
def save_search(session: Opened, body: SearchBody) -> dict[str, Any]:
    return {"searches": session.labels.save_search(body.name, body.address)}


# ---------------------------------------------------------------- libraries and added pictures


@router.get("/api/libraries")
def libraries(session: Opened, known: Known) -> dict[str, Any]:
    return {"libraries": known.known(session)}


@router.post("/api/libraries")
def switch(known: Known, place: Annotated[LocalPath, Body(embed=True)]) -> dict[str, Any]:
    return {"key": known.open(place)}


@router.post("/api/folders")
def add(session: Opened, folder: Annotated[LocalPath, Body(embed=True)]) -> dict[str, Any]:
    session.additions.start(folder)
    return {"filling": session.additions.progress()}


@router.post("/api/pictures")
async def upload(session: Opened, request: Request) -> dict[str, str]:
    return {"upload": await run_in_threadpool(session.upload, await request.body())}


@router.post("/api/added")
async def keep(
    session: Opened, request: Request, name: Annotated[str, Query(min_length=1, max_length=250)]
) -> dict[str, Any]:
    file = await run_in_threadpool(session.additions.keep, name, await request.body())
    return {"file": str(file), "folder": str(file.parent), "watched": session.additions.watched is not None}


# ---------------------------------------------------------------- one picture


@router.get("/api/thumbs/{id:path}")
def thumb(session: Opened, id: str) -> Response:
    return _picture(lambda: session.library.thumbnail(id))


@router.get("/api/pictures/{id:path}")
def picture(session: Opened, id: str, full: bool = False) -> Response:
    return _picture(lambda: session.library.picture(id, FULL_SIDE if full else VIEW_SIDE))


@router.get("/api/originals/{id:path}")
def original(session: Opened, id: str) -> Response:
    name, data = session.library.original(id)
    return _download(data, name)


@router.post("/api/show/{id:path}")
def show(session: Opened, id: str) -> dict[str, Any]:
    (found,) = session.library.index.pictures([id])
    if not session.local or found.path is None:
        raise UserError("files can be shown only on the machine that serves the page")
    show_file(found.path)
    return {}


@router.get("/api/items/{id:path}")
def item(session: Opened, id: str) -> dict[str, Any]:
    (found,) = session.with_retry(lambda: session.library.pictures([id]))
    names = ("source", "folder", "width", "height", "taken", "camera")
    facts = {name: value for name in names if (value := getattr(found, name))}
    return {
        "id": found.id,
        "captions": found.captions,
        "files": [file.path or f"{file.source}: {file.key}" for file in found.distinct_files],
        "labels": [*found.labels, *session.labels.labels_of(id)],
        "facts": facts,
        "exif": _exif(found),
        "can_show": session.local and found.path is not None and file_manager() is not None,
        "metadata": plain(dict(found.metadata)),
    }


def _exif(picture: Picture) -> dict[str, str]:
    try:
        return exif_table(picture.encoded() or b"")
    except (UserError, OSError):  # the file is missing
        return {}


def _picture(make: Any) -> Response:
    try:
        return Response(make(), media_type="image/jpeg", headers={"cache-control": _WEEK})
    except (UserError, OSError):  # missing or damaged: the tile shows the name
        return Response(status_code=404, headers={"cache-control": "no-store"})


# ---------------------------------------------------------------- overviews


@router.get("/api/map")
def layout(session: Opened, where: _Where = "") -> dict[str, Any]:
    ids, points, method = session.with_retry(lambda: session.layout(where))
    of = len(session.selection(where).rows)
    version = session.library.view().version
    return {"version": version, "of": of, "ids": ids, "points": np.round(points, 4).ravel().tolist(),
            "method": method}  # fmt: skip


@router.get("/api/map/groups")
def groups(session: Opened, by: Literal["folder", "label"], where: _Where = "") -> dict[str, Any]:
    names, numbers = session.with_retry(lambda: session.map_groups(by, where))
    return {"names": names, "groups": numbers}


@router.get("/api/duplicates")
def duplicates(session: Opened, where: _Where = "", kind: str = "", start: int = 0) -> dict[str, Any]:
    shown = session.with_retry(lambda: session.selection(where).ids)
    return session.duplicates.answer(set(shown), kind, start)


@router.post("/api/duplicates")
def start_duplicates(session: Opened) -> dict[str, Any]:
    session.duplicates.start()
    return session.duplicates.progress()


@router.delete("/api/duplicates")
def stop_duplicates(session: Opened) -> dict[str, Any]:
    session.duplicates.stop()
    return session.duplicates.progress()


# ---------------------------------------------------------------- labels


def _changes(session: Session) -> dict[str, Any]:
    return {"revision": session.labels.revision, **session.pending()}


@router.get("/api/classes")
def classes(session: Opened) -> dict[str, Any]:
    found = [
        {"class": each.key, "name": each.name, "text": each.text, "yes": each.count(1), "no": each.count(-1)}
        for each in list(session.labels.classes.values())
    ]
    return {"classes": found, **_changes(session)}


@router.post("/api/classes")
def create(session: Opened, body: LabelBody) -> dict[str, Any]:
    return {"class": session.labels.create(body.name, body.text).key, **_changes(session)}


@router.delete("/api/classes/{key}")
def drop(session: Opened, key: int) -> dict[str, Any]:
    session.teacher.drop(key)
    return _changes(session)


@router.post("/api/classes/{key}/name")
def rename(session: Opened, key: int, name: Annotated[str, Body(embed=True)]) -> dict[str, Any]:
    session.labels.rename(key, name)
    return _changes(session)


@router.get("/api/classes/{key}")
def summary(session: Opened, key: int, where: _Where = "") -> dict[str, Any]:
    found = session.teacher.summary(key, session.selection(where))
    return {"summary": found, "revision": session.labels.revision}


@router.post("/api/classes/{key}/marks")
def mark(session: Opened, key: int, body: MarkBody) -> dict[str, Any]:
    listing = body.listing
    if listing is not None:
        session.selection(listing.where)  # report an invalid filter before marking anything
    session.teacher.mark(key, session.chosen(body), body.mark)
    if listing is None:
        return _changes(session)
    found = session.teacher.summary(key, session.selection(listing.where))
    return {"summary": found, **_changes(session), "listing": session.answer(listing)}


@router.post("/api/undo")
def undo(session: Opened) -> dict[str, Any]:
    return {"undone": session.undo(), **_changes(session)}


@router.post("/api/redo")
def redo(session: Opened) -> dict[str, Any]:
    return {"redone": session.labels.redo(), **_changes(session)}


@router.post("/api/save")
def keep_classifier(session: Opened, name: Annotated[str, Body(embed=True, max_length=100)]) -> dict[str, Any]:
    folder, classifier, replaced = session.sorting.save(name)
    return {
        "folder": str(folder),
        "replaced": replaced,
        "classes": list(classifier.classes),
        "method": classifier.method,
        "examples": len(classifier.support),
        "held_out": classifier.calibration,
    }


@router.get("/api/labels.{kind}")
def table(session: Opened, kind: Literal["csv", "parquet"], where: _Where = "") -> Response:
    found = session.sorting.table(session.selection(where))
    data = io.BytesIO()
    if kind == "parquet":
        pq.write_table(found, data)
    else:
        texts = io.TextIOWrapper(data, encoding="utf-8", newline="", write_through=True)
        write_cells(texts, found.column_names, zip(*(each.to_pylist() for each in found.columns), strict=True))
    return _download(data.getvalue(), f"labels.{kind}")


# ---------------------------------------------------------------- selected pictures


@router.post("/api/selection/plan")
def plan(session: Opened, body: PicturesBody) -> dict[str, Any]:
    watched = session.additions.watched
    return {**session.actions.plan(session.chosen(body)), "watched": str(watched.folder) if watched else ""}


@router.post("/api/selection/act")
def act(session: Opened, body: ActBody) -> dict[str, Any]:
    done = session.actions.act(body.kind, session.chosen(body), body.folder, body.files)
    session.library.refresh()
    return done


@router.get("/api/removed")
def removed_pictures(session: Opened) -> dict[str, Any]:
    """Return the pictures that the user removed from the library."""
    return {
        "tiles": [
            {"id": each.id, "name": each.files[0].key if each.files else each.id} for each in session.actions.removed()
        ]
    }


@router.post("/api/removed/restore")
def restore_removed(session: Opened, body: PicturesBody) -> dict[str, Any]:
    session.actions.restore(body.ids)
    session.library.refresh()
    return {}


@router.post("/api/selection/export")
def export(session: Opened, body: ExportBody) -> Response:
    ids = session.chosen(body)
    if body.kind in ("csv", "parquet"):
        file = session.actions.export(ids, f".{body.kind}")
    else:
        file = session.actions.export(ids, ".json", "labels" if body.kind == "coco-labels" else "captions")
    return FileResponse(file, filename=file.name, background=BackgroundTask(shutil.rmtree, file.parent))


def _download(data: bytes, name: str) -> Response:
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "cache-control": "no-store",
    }
    return Response(data, media_type="application/octet-stream", headers=headers)
