"""Pushing a model, with the real hub client and a fake server."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import HfApi, constants

from recollect.core.errors import UserError
from recollect.models import build_model
from recollect.models.hub import check_push, push_model


class Hub(BaseHTTPRequestHandler):
    """Fake hub with the endpoints of a push: whoami, create repository, preupload, commit."""

    def log_message(self, *words):
        pass

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        known = self.headers.get("Authorization") == "Bearer hf_good"
        self.answer({"name": "somebody"} if known else {"error": "Invalid user token."}, 200 if known else 401)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        if self.path == "/api/repos/create":
            server.made.append(json.loads(body))
            self.answer({"url": f"http://{self.headers['Host']}/me/model", "name": "me/model", "id": "me/model"})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            self.answer({"files": [{**each, "uploadMode": "regular", "shouldIgnore": False} for each in files]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"commitUrl": f"http://{self.headers['Host']}/me/model/commit/1", "commitOid": "1" * 40})
        else:
            self.answer({"error": self.path}, 404)


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.made, server.files = [], {}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model("tiny", texts=["a cat"]).save(tmp_path_factory.mktemp("push") / "model")


def client(hub, token="hf_good"):
    return HfApi(endpoint=f"http://127.0.0.1:{hub.server_port}", token=token)


@pytest.mark.parametrize("private", [True, False])
def test_a_pushed_model_arrives_complete(hub, model, private):
    check_push("me/model", client(hub))
    address = push_model(model, "me/model", **({} if private else {"private": False}), api=client(hub))
    assert address.endswith("/me/model")
    assert hub.made[0]["name"] == "model"
    assert hub.made[0]["organization"] == "me"
    assert hub.made[0].get("private", hub.made[0].get("visibility") == "private") == private
    sent = {str(file.relative_to(model)): file.read_bytes() for file in model.rglob("*") if file.is_file()}
    assert {name: data for name, data in hub.files.items() if name != ".gitattributes"} == sent


def test_missing_push_permission_is_reported_before_training(hub):
    with pytest.raises(UserError, match=r"--push-to me/model: .*hf auth login"):
        check_push("me/model", client(hub, "hf_wrong"))
    with pytest.raises(UserError, match="--push-to"):
        check_push("me//model", client(hub))


def test_a_folder_without_a_model_and_an_unreachable_hub_give_one_line_errors(hub, model, tmp_path):
    with pytest.raises(UserError, match="not a model"):
        push_model(tmp_path, "me/model", api=client(hub))
    hub.shutdown()
    hub.server_close()
    with pytest.raises(UserError, match="me/model") as caught:
        push_model(model, "me/model", api=client(hub))
    assert "\n" not in str(caught.value)
