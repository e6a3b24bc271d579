"""Access control of the page: requests as browsers and attackers send them."""

import asyncio

import pytest

from recollect.web.guard import HEADERS, JSON_LIMIT, PICTURE_LIMIT, Guard

HOST = "127.0.0.1:8000"
OWN = {"x-recollect": "1"}
TOKEN = "0123456789abcdef"
LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))


def ask(path="/api/info", method="GET", headers=None, query="", body=(b"",), token=None, hosts=LOOPBACK, kind="http"):
    """Send a request through the guard; return its status, headers and the paths that reached the application."""
    reached, sent, parts = [], [], list(body)

    async def app(scope, receive, send):
        while True:
            message = await receive()
            if not message.get("more_body"):
                break
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive():
        return {"type": "http.request", "body": parts.pop(0) if parts else b"", "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    all_headers = {"host": HOST} | (headers or {})
    scope = {
        "type": kind, "path": path, "method": method, "query_string": query.encode(), "server": ("127.0.0.1", 8000),
        "headers": [(name.encode(), value.encode()) for name, value in all_headers.items()],
    }  # fmt: skip
    asyncio.run(Guard(app, hosts, token)(scope, receive, send))
    if not sent:
        return None, {}, reached
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, reached


def assert_rejected(status, **request):
    returned, headers, reached = ask(**request)
    assert (returned, reached) == (status, [])
    assert HEADERS.items() <= headers.items(), "rejections have the same headers as other responses"


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        f"http://{HOST}.evil.example",
        f"http://evil.example/{HOST}",
        f"http://{HOST}@evil.example",
        f"http://evil.{HOST}",
        "http://127.0.0.1:80001",
        "http://127.0.0.1:800",
        "http://127.0.0.1",
        "http://localhost:8000",
        "null",
        "",
    ],
)
def test_other_origins_are_rejected(origin):
    assert_rejected(403, headers={"origin": origin})
    assert_rejected(403, method="POST", headers={"origin": origin, **OWN})


def test_the_pages_own_origin_is_allowed():
    assert ask(method="POST", headers={"origin": f"http://{HOST}", **OWN})[0] == 200


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_request_that_changes_something_needs_the_custom_header(method):
    assert_rejected(403, path="/api/classes/1", method=method)
    assert ask(path="/api/classes/1", method=method, headers=OWN)[0] == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_other_methods_are_rejected(method):
    assert_rejected(405, method=method, headers=OWN)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "evil-localhost", "[::2]:8000", ""],
)
def test_other_host_names_are_rejected(host):
    assert_rejected(400, headers={"host": host})


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "localhost:1", "[::1]:8000", "[::1]"])
def test_local_host_names_are_allowed(host):
    assert ask(headers={"host": host})[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_can_only_link_to_the_page(site):
    link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ask(path="/", headers=link)[0] == 200
    assert_rejected(403, path="/api/info", headers=link)
    assert_rejected(403, path="/", method="POST", headers={**link, **OWN})
    assert_rejected(403, path="/", headers={**link, "sec-fetch-dest": "iframe"})
    assert_rejected(403, path="/", headers={**link, "sec-fetch-mode": "no-cors"})
    assert_rejected(403, path="/", headers={"sec-fetch-site": site})


def test_every_path_needs_the_token():
    cookie = "recollect_token_8000"
    for headers in (
        {},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"cookie": f"{cookie}={TOKEN[:-1]}"},
        {"cookie": f"{cookie}="},
        {"cookie": f"recollect_token_1={TOKEN}"},
        {"cookie": f"x{cookie}={TOKEN}"},
    ):
        for path in ("/", "/static/app.js", "/api/info"):
            assert_rejected(401, path=path, headers=headers, token=TOKEN)
    for headers in ({"authorization": f"Bearer {TOKEN}"}, {"cookie": f"a=[b]; {cookie}={TOKEN}; c=d"}):
        assert ask(headers=headers, token=TOKEN)[0] == 200


def test_a_token_in_the_address_becomes_an_http_only_cookie():
    status, headers, reached = ask(path="/", query=f"token={TOKEN}", token=TOKEN)
    assert (status, headers["location"], reached) == (303, "/", [])
    assert headers["set-cookie"] == f"recollect_token_8000={TOKEN}; HttpOnly; SameSite=Lax; Path=/"
    for wrong in (TOKEN[:-1], TOKEN + "x", "x"):
        status, headers, reached = ask(path="/", query=f"token={wrong}", token=TOKEN)
        assert (status, "set-cookie" in headers, reached) == (401, False, [])


@pytest.mark.parametrize(("path", "limit"), [("/api/list", JSON_LIMIT), ("/api/pictures", PICTURE_LIMIT)])
def test_the_size_limit_applies_to_the_declared_and_the_actual_length(path, limit):
    request = {"path": path, "method": "POST"}
    assert ask(**request, headers={"content-length": str(limit), **OWN})[0] == 200
    assert_rejected(413, **request, headers={"content-length": str(limit + 1), **OWN})
    assert_rejected(413, **request, headers={"content-length": "-1", **OWN})
    half = bytes(limit // 2)
    assert ask(**request, headers=OWN, body=[half, half])[0] == 200
    assert_rejected(413, **request, headers=OWN, body=[half, half, b"x"])


def test_only_http_reaches_the_page():
    assert ask(kind="websocket") == (None, {}, [])


def test_every_response_has_the_security_headers():
    assert HEADERS.items() <= ask()[1].items()
