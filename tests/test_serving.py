"""The service over HTTP: what it answers, and everything it refuses."""

import base64
import contextlib
import hashlib
import http.client
import io
import json
import logging
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import dspy
import httpx
import pytest
from PIL import Image

from program import serve
from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.common.errors import SettingsError
from program.common.settings import load_settings
from program.images.store import IMAGES
from program.service.guard import CONTENT_POLICY, OPEN_ROUTES
from program.service.requests import assess_rows, shorten, shown_name
from program.service.server import JsonLines, bind, set_up_logs, token_of

TOKEN = "t0ken-of-more-than-sixteen"
# Nothing here speaks TLS, and a client that makes a context of its own reads all certificates of this machine.
CLIENT = {"trust_env": False, "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}


def post(url, path="/assess", **given):
    with httpx.Client(**CLIENT, timeout=30) as client:
        return client.post(url + path, **given)


def get(url, path, **given):
    with httpx.Client(**CLIENT, timeout=30) as client:
        return client.get(url + path, **given)


def as_json(data, **more):
    return {"json": {"image": base64.b64encode(data).decode(), **more}}


def error_of(response, status):
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    assert "\n" not in body["error"]
    return body["error"]


@pytest.fixture(scope="module")
def started():
    return {}


@pytest.fixture
def shared_service(started, service_program, served_on):
    """A service by its settings that many tests may ask: what it answers and refuses leaves nothing behind."""

    def url_of(**serve):
        key = json.dumps(serve)
        if key not in started:
            started[key] = served_on(service_program(serve=serve))
        return started[key]

    return url_of


# What it answers


def test_the_map_is_a_picture_of_the_image_with_the_faults_of_an_assessment(service_program, served, encoded):
    from PIL import Image

    url = served(service_program())
    answer = post(url, "/heatmap", files={"image": ("a.png", encoded(height=120, width=160))})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    with Image.open(io.BytesIO(answer.content)) as drawn:
        assert drawn.size == (160, 120)
    assert "broken.png" in error_of(post(url, "/heatmap", files={"image": ("broken.png", b"no image")}), 422)
    assert "mode" in error_of(post(url, "/heatmap", **as_json(encoded(), mode="large")), 422)


def test_two_images_are_compared_as_in_python(service_program, served, encoded):
    from program.agent.comparison import compare_images
    from program.images.store import IMAGES

    program, data = service_program(), [encoded(), encoded(7)]
    url = served(program)
    expected = compare_images(program, *map(IMAGES.add, data)).model_dump()
    files = [("image", (f"{i}.png", each)) for i, each in enumerate(data)]
    sent = [as_json(each)["json"] for each in data]
    for given in ({"files": files}, {"json": {"items": sent}}):
        assert post(url, "/compare", **given).json() == expected
    assert "1 sent; a comparison takes two" in error_of(post(url, "/compare", files=files[:1]), 422)
    assert error_of(post(url, "/compare", files=[*files, files[0]]), 413)
    assert "broken.png" in error_of(
        post(url, "/compare", files=[files[0], ("image", ("broken.png", b"no image"))]), 422
    )


def test_two_images_are_compared_against_the_reference_that_was_sent(service_program, served, encoded):
    program, data = service_program(), [encoded(), encoded(7), encoded(8)]
    files = [(name, (f"{name}.png", each)) for name, each in zip(("image", "image", "reference"), data, strict=True)]
    assert post(served(program), "/compare", files=files).status_code == 200
    first, second, reference = (hashlib.sha256(each).hexdigest() for each in data)
    measured = [(image, against) for _, image, against, _ in program.resources.runner.measured]
    assert measured == [(first, reference), (second, reference)]


def test_upload_and_json_give_the_assessment_that_python_gives(service_program, served, encoded):
    program, data = service_program(), encoded()
    expected = program(image=data)
    url = served(program)
    upload = post(url, files={"image": ("a.png", data)})
    sent = post(url, **as_json(data))
    safe = post(url, json={"image": base64.urlsafe_b64encode(data).decode().rstrip("=")})
    page = post(url, json={"image": "data:image/png;base64," + base64.b64encode(data).decode()})
    for response in (upload, sent, safe, page):
        result = Assessment.model_validate_json(response.content)
        assert result.final_answer == expected.final_answer
        assert result.score_interval == expected.score_interval
    assert upload.json()["state"]["image_path"] == "a.png"
    assert upload.headers["cache-control"] == "no-store"
    assert upload.headers["content-security-policy"] == CONTENT_POLICY
    assert len(upload.headers["x-request-id"]) == 16


def test_question_options_regions_and_reference_arrive(service_program, served, encoded):
    program, data = service_program(), encoded()
    url = served(program)
    fields = {"query": "Is it blurry?", "option": ["Yes", "No"], "regions": '{"sign": [0, 0, 20, 20]}'}
    form = post(url, data=fields, files={"image": data, "reference": encoded(1)}).json()
    more = {"query": "Is it blurry?", "options": {"A": "Yes", "B": "No"}, "regions": {"sign": [0, 0, 20, 20]}}
    sent = post(url, **as_json(data, reference=base64.b64encode(encoded(1)).decode(), name="x/y.png", **more)).json()
    for result in (form, sent):
        assert result["final_answer"] == "B"
        assert result["state"]["options"] == {"A": "Yes", "B": "No"}
        assert result["state"]["regions"] == {"sign": [0, 0, 20, 20]}
        assert result["state"]["reference_path"] == "reference" or result["state"]["reference_path"]
    assert sent["state"]["image_path"] == "y.png"


def test_two_equal_options_are_refused(shared_service, encoded):
    url = shared_service()
    text = error_of(post(url, **as_json(encoded(), query="Is it blurry?", options=["Yes", "yes"])), 422)
    assert "give each a text of its own" in text


def test_an_image_that_its_decoder_cannot_hold_is_the_clients(shared_service):
    size = b"IHDR" + struct.pack(">IIBBBBB", 49_000_000, 1, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in (size, b"IDAT" + zlib.compress(bytes(100)), b"IEND")
    )
    assert "'wide.png'" in error_of(post(shared_service(), files={"image": ("wide.png", data)}), 422)


def test_batch_keeps_order_and_places(service_program, served, encoded):
    url = served(service_program(serve={"max_batch": 4}))
    items = [{"image": base64.b64encode(d).decode(), "name": n} for n, d in
             (("0", encoded(0)), ("1", b"no image"), ("2", encoded(2)))]  # fmt: skip
    items.insert(1, {"image": "%%%"})
    answer = post(url, "/assess/batch", json={"items": items}).json()
    assert answer["failed"] == 2
    assert [i["assessment"] and i["assessment"]["state"]["image_path"] for i in answer["items"]] == [
        "0",
        None,
        None,
        "2",
    ]
    assert "not base64" in answer["items"][1]["error"]
    assert "image '1': not an image" in answer["items"][2]["error"]
    form = post(url, "/assess/batch", files=[("image", ("a.png", encoded(3))), ("image", ("b.png", encoded(4)))]).json()
    assert [i["assessment"]["state"]["image_path"] for i in form["items"]] == ["a.png", "b.png"]
    assert "5 are over 4" in error_of(post(url, "/assess/batch", json={"items": items + items[:1]}), 413)


def test_health_version_metrics_and_schema(service_program, served, encoded):
    url = served(service_program())
    assert get(url, "/health").json() == {"status": "ok", "requests": 0}
    version = get(url, "/version").json()
    assert len(version["program_sha256"]) == 64
    assert set(version["models"]) >= {"planner", "executor", "summarizer"}
    assert version["tools"]["PIQE"].startswith("piqe, pyiqa")
    post(url, files={"image": encoded()})
    get(url, "/" + "x" * 300)
    text = get(url, "/metrics").text
    assert 'agenticiqa_requests_total{route="/assess",status="200"} 1.0' in text
    assert 'agenticiqa_requests_total{route="other",status="404"} 1.0' in text
    assert 'agenticiqa_assessments_total{status="ok"} 1.0' in text
    assert "agenticiqa_admitted 0.0" in text
    assert 'agenticiqa_lm_calls_total{answered_by="model"} 4.0' in text
    for direction, tokens in (("input", 4 * 7.0), ("output", 4 * 3.0)):  # a scripted answer's, four times
        assert f'agenticiqa_tokens_total{{direction="{direction}"}} {tokens}' in text
    assert "xxx" not in text
    schema = get(url, "/openapi.json").json()
    asked = {"/assess", "/assess/batch", "/compare", "/heatmap"}
    assert asked | {"/health", "/version", "/metrics"} == set(schema["paths"])
    content = schema["paths"]["/assess"]["post"]["requestBody"]["content"]
    assert "image_path" in content["application/json"]["schema"]["properties"]
    assert "image" in content["multipart/form-data"]["schema"]["properties"]


def test_pages_fetch_nothing_from_elsewhere(shared_service):
    url = shared_service()
    for path in ("/", "/docs", "/assets/page.css", "/assets/page.js", "/assets/draw.js", "/assets/docs.js"):
        response = get(url, path)
        assert response.status_code == 200
        assert not [w for w in response.text.split() if "://" in w and "http://\\S" not in w and "w3.org" not in w], (
            path
        )
        assert "innerHTML" not in response.text
    for path in ("/assets/../app.py", "/assets/..%2fapp.py", "/assets/%2e%2e/app.py", "/assets/page.css%00"):
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        connection.request("GET", path)
        assert connection.getresponse().status in {400, 404}
        connection.close()


@pytest.mark.spec("047/any-data-address-is-an-image")
@pytest.mark.parametrize(
    "head",
    ["data:;base64,", "data:application/octet-stream;base64,", "DATA:image/png;name=a.png;BASE64,",
     'data:image/heic;name="a, b;base64,c.heic";charset=utf-8;base64,', "data:image/svg+xml; base64,"],
)  # fmt: skip
def test_any_data_address_is_an_image(shared_service, encoded, head):
    text = head + base64.b64encode(encoded()).decode()
    assert post(shared_service(), json={"image": text}).json()["status"] == "ok"
    quoted = head + base64.b64encode(encoded()).decode().replace("+", "%2B").replace("=", "%3D")
    assert IMAGES.add(text).sha256 == IMAGES.add(quoted).sha256 == IMAGES.add(encoded()).sha256


@pytest.mark.spec("047/pass-the-host-header")
@pytest.mark.parametrize(
    "headers", [{"Host": "upstream:8000"}, {"Host": "127.0.0.1:8000", "Origin": "https://iqa.example.org"}]
)
def test_a_request_whose_host_a_proxy_lost_says_so(shared_service, encoded, headers):
    answer = post(shared_service(), headers=headers, files={"image": encoded()})
    assert "a proxy before the service has to pass the Host header" in error_of(answer, 403)


@pytest.mark.spec("047/links-are-relative")
def test_no_link_of_the_pages_leaves_the_path_that_a_proxy_gives_them(shared_service):
    url = shared_service()
    for page in ("/", "/docs", "/assets/page.js", "/assets/docs.js", "/assets/draw.js", "/assets/extras.js"):
        text = get(url, page).text
        found = re.findall(r"""(?:href=|src=|from |fetch\(|import\()["'`]([^"'`]*)""", text)
        assert found or page not in {"/", "/docs", "/assets/page.js", "/assets/docs.js"}, page
        assert not [link for link in found if link.startswith("/")], page
        for link in found if page in {"/", "/docs"} else ():
            if not link.startswith(("#", "data:", "http")):
                assert get(url, "/" + link.removeprefix("./")).status_code == 200, link


def test_what_was_sent_is_forgotten(service_program, served, encoded):
    program = service_program()
    kept = IMAGES.add(encoded(50))
    before = len(IMAGES._entries)
    url = served(program)
    for seed in range(50, 56):
        data = {"regions": '{"sign": [0, 0, 20, 20]}'}
        assert post(url, data=data, files={"image": encoded(seed), "reference": encoded(9)}).status_code == 200
    assert len(IMAGES._entries) == before
    assert not any(entry.borrowers for entry in IMAGES._entries.values())
    assert IMAGES.read(kept) == encoded(50)


def test_two_clients_with_one_image_do_not_see_each_others_names(service_program, served, encoded):
    url = served(service_program())
    with ThreadPoolExecutor(4) as pool:
        names = [f"{i}.png" for i in range(8)]
        answers = list(pool.map(lambda n: post(url, files={"image": (n, encoded())}), names))
    assert [a.json()["state"]["image_path"] for a in answers] == names


# What it refuses


@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        ({"files": {"image": b""}}, 422, "image 'upload'|image 'image'"),
        ({"files": {"image": ("photo.png", b"GIF89a")}}, 422, "image 'photo.png': "),
        ({"files": {"image": (None, "photo.jpg")}}, 422, "image.*is text"),
        ({"files": {"image": b"x"}, "data": {"query": "x" * 70_000}}, 400, "maximum size of 64KB"),
        ({"files": {"image": b"x"}, "data": {"option": ["x"] * 65}}, 400, "Too many fields"),
        ({"files": [("image", b"x")] * 4}, 400, "Too many files"),
        ({"files": {"picture": b"x"}}, 422, r"^picture: unknown field \(known: image, image_path, .*regions\)$"),
        ({"files": {"img": b"x"}}, 422, r"^img: unknown field \(did you mean 'image'\?\)$"),
        ({"data": {"query": "x"}, "files": {"reference": b"x"}}, 422, "give one of image"),
        ({"files": [("image", b"x"), ("image", b"y")]}, 413, "2 are over 1"),
        ({"files": {"image": b"x"}, "data": {"regions": "{"}}, 422, "regions: Invalid JSON"),
        ({"files": {"image": b"x"}, "data": {"regions": "[" * 50_000}}, 422, "regions: Invalid JSON"),
        ({"files": {"image": b"x"}, "data": {"query": "?" * 5000}}, 422, "query: is over 4000"),
        ({"json": {}}, 422, "give one of image, image_path and image_url"),
        ({"json": {"image": "AA", "image_url": "http://x"}}, 422, "give one of image"),
        ({"json": {"image": "AA", "imgae": 1}}, 422, r"^imgae: unknown field \(did you mean 'image'\?\)$"),
        ({"json": {"image": 5}}, 422, "image: is no text; give"),
        ({"json": {"image": "AA", "options": {"A": "x" * 501}}}, 422, "options"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 422, "request: Invalid JSON"),
        ({"content": b"[" * 100_000, "headers": {"content-type": "application/json"}}, 422, "Invalid JSON"),
        ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415, "send application/json or multipart"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
    ],
)  # fmt: skip
def test_bad_requests_get_one_line(shared_service, given, status, message):
    text = error_of(post(shared_service(), **given), status)
    assert re.search(message, text), text


def test_errors_do_not_repeat_what_was_sent(shared_service):
    secret = base64.b64encode(b"secret" * 50).decode()
    url = shared_service()
    for given in ({"json": {"image": secret, "regions": secret}}, {"json": {"image": [secret]}}):
        assert secret[:40] not in error_of(post(url, **given), 422)


def test_program_errors_are_422_and_faults_of_the_model_502(service_program, served, encoded, monkeypatch, caplog):
    program = service_program()
    url = served(program)
    assert "passes the edge of the" in error_of(
        post(url, data={"regions": '{"a": [0, 0, 900, 9]}'}, files={"image": encoded()}), 422
    )
    monkeypatch.setattr(
        type(program), "forward", lambda *_, **__: (_ for _ in ()).throw(dspy.LMError("sk-123 at host"))
    )
    text = error_of(post(url, files={"image": encoded()}), 502)
    assert "sk-123" not in text
    monkeypatch.setattr(type(program), "forward", lambda *_, **__: 1 / 0)
    with caplog.at_level(logging.INFO):
        text = error_of(post(url, files={"image": encoded()}), 500)
    assert "ZeroDivision" not in text
    # The answer goes out before the log line is written.
    while not any(r.exc_info and r.exc_info[0] is ZeroDivisionError for r in caplog.records):
        time.sleep(0.01)
    assert get(url, "/health").json()["requests"] == 0


def test_too_many_pixels_are_refused_before_decoding(service_program, served):
    url = served(service_program(serve={"max_megapixels": 1}))
    bomb = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(bomb, "PNG", compress_level=6)
    assert len(bomb.getvalue()) < 200_000
    started = time.perf_counter()
    assert "'bomb.png': 20000x20000 is over 1 megapixels" in error_of(
        post(url, files={"image": ("bomb.png", bomb.getvalue())}), 422
    )
    assert time.perf_counter() - started < 3


def raw(url, head, parts=(), pause=0.0):
    """Send bytes as they are and return status and body, or None where the connection was closed."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(head)
        for part in parts:
            time.sleep(pause)
            try:
                connection.sendall(part)
            except OSError:
                break
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response.status, response.read()


def test_body_limit_holds_with_and_without_a_declared_length(service_program, served):
    url = served(service_program(serve={"max_body_mb": 0.1}))
    head = b"POST /assess HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    # Refused by its head: the body never comes, and waiting for it would end in another status.
    status, body = raw(url, head + b"Content-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n")
    assert (status, b"over 0.1 MiB" in body) == (413, True)
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    status, _ = raw(url, head + b"Transfer-Encoding: chunked\r\n\r\n", [chunk] * 10)
    assert status == 413
    for length in (b"-1", b"1e3", b"\xb2"):
        assert raw(url, head + b"Content-Length: " + length + b"\r\n\r\n")[0] in {400, 413}


def test_slow_bodies_are_cut_off(service_program, served):
    url = served(service_program(serve={"body_timeout_s": 0.3}))
    head = b"POST /assess HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n"
    status, body = raw(url, head, [b"{"] * 3, pause=0.05)
    assert (status, b"did not arrive" in body) == (408, True)


@contextlib.contextmanager
def unfinished(url, count, sent=b"{", most=99):
    """Begin so many requests and send part of their bodies."""
    address = urlsplit(url)
    head = (
        b"POST /assess HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        begun = []
        for number in range(count):
            begun.append(stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=10)))
            begun[-1].sendall(head + sent)
            while get(url, "/health").json()["requests"] < min(number + 1, most):
                time.sleep(0.01)
        yield begun


def test_unfinished_bodies_keep_nobody_out(service_program, served, encoded):
    url = served(service_program(serve={"concurrency": 1, "queue": 1}))
    with unfinished(url, 12):
        assert [post(url, files={"image": encoded(i)}).status_code for i in range(3)] == [200] * 3
        assert post(url, **as_json(encoded())).status_code == 200


def test_of_unfinished_bodies_that_fill_the_memory_the_oldest_are_given_up(service_program, served, encoded):
    url = served(service_program(serve={"concurrency": 1, "queue": 1, "max_body_mb": 0.1}))
    with unfinished(url, 5, b" " * 70_000, most=2) as begun:  # of 200 KiB together
        for connection in begun[:3]:
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert (response.status, b"too slowly" in response.read()) == (408, True)
        assert get(url, "/health").json()["requests"] == 2
        assert post(url, files={"image": encoded()}).status_code == 200


def closed_after(connection, limit=8.0):
    """Return the seconds until the service closes a connection, and what it sent before."""
    started, told = time.perf_counter(), b""
    connection.settimeout(limit)
    while part := connection.recv(65536):
        told += part
    return time.perf_counter() - started, told


def test_a_connection_without_a_request_gives_its_place_back(service_program, served, encoded):
    url = served(service_program(serve={"head_timeout_s": 0.4}))
    address = urlsplit(url)

    def connected():
        return socket.create_connection((address.hostname, address.port))

    with connected() as silent:
        seconds, told = closed_after(silent)
        assert (seconds > 0.2, told) == (True, b"")

    def drip(connection):
        for _ in range(400):
            connection.sendall(b"X-A: b\r\n")
            time.sleep(0.05)

    with connected() as dripping:  # a byte now and then keeps no place either
        dripping.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            drip(dripping)
    assert get(url, "/health").json()["requests"] == 0


def test_a_request_under_way_is_not_cut_off_and_the_connection_serves_on(service_program, served, encoded, monkeypatch):
    program = service_program(serve={"head_timeout_s": 0.3})
    plain = type(program).forward

    def slow(self, *given, **named):
        time.sleep(0.5)
        return plain(self, *given, **named)

    monkeypatch.setattr(type(program), "forward", slow)
    url = served(program)
    with httpx.Client(**CLIENT) as client:
        for _ in range(2):
            assert client.post(f"{url}/assess", files={"image": encoded()}, timeout=20).status_code == 200
        assert client.get(f"{url}/health").status_code == 200
    body = json.dumps({"image": base64.b64encode(encoded()).decode()}).encode()
    head = b"POST /assess HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    status, _ = raw(url, head + str(len(body)).encode() + b"\r\n\r\n", [body[:20], body[20:]], pause=0.5)
    assert status == 200


def test_the_next_request_of_a_connection_may_not_drip_either(service_program, served, monkeypatch):
    monkeypatch.setattr("program.service.server._KEEP_ALIVE_S", 1)
    url = served(service_program(serve={"head_timeout_s": 0.3}))
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in connection.recv(65536)
        connection.sendall(b"GET /hea")
        assert closed_after(connection)[0] < 4


def test_token_is_asked_for_everywhere_but_on_the_open_routes(service_program, served, encoded):
    url = served(service_program(), TOKEN)
    for path in (*OPEN_ROUTES, "/assets/page.js"):
        assert get(url, path).status_code == 200
    for path in ("/version", "/metrics", "/assets/../version", "//version", "/version/"):
        assert get(url, path).status_code in {401, 404}, path
    wrong = ["x", TOKEN[:-1], TOKEN + "x", "Basic " + TOKEN, TOKEN.upper(), "bearer\t" + TOKEN[1:]]
    for value in wrong:
        header = {"Authorization": value if " " in value or "\t" in value else f"Bearer {value}"}
        assert "Authorization: Bearer" in error_of(post(url, headers=header, files={"image": encoded()}), 401)
    assert get(url, f"/version?token={TOKEN}").status_code == 401
    assert post(url, headers={"Authorization": f"Bearer {TOKEN}"}, files={"image": encoded()}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("10.0.0.7:8000", 200), ("IQA.example.org", 200),
        ("evil.example", 403), ("localhost.evil.example", 403), ("127.0.0.1.evil.example", 403), ("", 403),
        ("localhost@evil.example", 403), ("localhost/..", 403), ("iqa.example.org.evil", 403), ("localhost:x", 403),
    ],
)  # fmt: skip
def test_only_known_hosts_are_answered(shared_service, host, status):
    url = shared_service(allowed_hosts=["iqa.example.org"])
    assert raw(url, f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "file://"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200), ({"Origin": "own"}, 200),
    ],
)  # fmt: skip
def test_pages_of_other_sites_may_not_ask(shared_service, encoded, headers, status):
    url = shared_service()
    given = {name: url if value == "own" else value for name, value in headers.items()}
    assert post(url, headers=given, files={"image": encoded()}).status_code == status


def test_doubled_headers_that_decide_are_refused(shared_service):
    url = shared_service()
    status, _ = raw(url, b"GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nOrigin: x\r\n\r\n")
    assert status == 400


# Paths and URLs


@pytest.fixture
def folders(tmp_path: Path, encoded):
    allowed, secret = tmp_path / "allowed", tmp_path / "allowed-not"
    (allowed / "deep").mkdir(parents=True)
    secret.mkdir()
    (allowed / "deep" / "ü 1.png").write_bytes(encoded())
    (secret / "secret.png").write_bytes(encoded(1))
    (allowed / "inside.png").symlink_to(allowed / "deep" / "ü 1.png")
    (allowed / "out.png").symlink_to(secret / "secret.png")
    (allowed / "outdir").symlink_to(secret)
    (allowed / "loop").symlink_to(allowed / "loop")
    os.mkfifo(allowed / "pipe")
    return allowed, secret


def test_no_path_is_read_without_an_allow_list(service_program, served, folders):
    url = served(service_program())
    for path in (folders[0] / "deep" / "ü 1.png", "/etc/hostname", "x.png"):
        assert "not a file of the folders" in error_of(post(url, json={"image_path": str(path)}), 403)
    text = error_of(post(url, **as_json(b"x", reference_path="/etc/hostname")), 403)
    assert "not a file of the folders" in text


def test_paths_are_read_inside_the_allowed_folders_only(service_program, served, folders):
    allowed, secret = folders
    url = served(service_program(serve={"image_folders": [str(allowed)]}))
    for path in ("deep/ü 1.png", str(allowed / "deep" / "ü 1.png"), "inside.png", "deep/../inside.png"):
        response = post(url, json={"image_path": path})
        assert response.status_code == 200, response.text
        assert response.json()["state"]["image_path"] == "ü 1.png"
    outside = [
        "../allowed-not/secret.png", str(secret / "secret.png"), "out.png", "outdir/secret.png", "loop", "deep", "pipe",
        "/etc/hostname", "%2e%2e/allowed-not/secret.png", "..%2fallowed-not/secret.png", "deep/ü 1.png\x00.txt",
        "file:///etc/hostname", "~/x", "", ".", "..", "/proc/self/environ", "/dev/zero",
    ]  # fmt: skip
    texts = {error_of(post(url, json={"image_path": p}), 403).partition("': ")[2] for p in outside}
    assert len(texts) == 1  # what exists outside is not told apart from what does not
    missing = error_of(post(url, json={"image_path": "none.png"}), 403)
    assert missing.partition("': ")[2] in texts


class Images(BaseHTTPRequestHandler):
    """Another host: an image, a redirect to a secret, a file without end, an error."""

    seen: ClassVar[list] = []

    def do_GET(self):
        Images.seen.append(self.path)
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/secret")
            self.end_headers()
            return
        self.send_response(200 if self.path in {"/a%20b.png", "/secret", "/endless"} else 404)
        self.end_headers()
        if self.path == "/endless":
            try:
                for _ in range(200):
                    self.wfile.write(b"x" * 65536)
            except OSError:
                return
        self.wfile.write(self.server.data)

    def log_message(self, *_):
        pass


@pytest.fixture
def other_host(encoded):
    server = HTTPServer(("127.0.0.1", 0), Images)
    server.data = encoded()
    Images.seen = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_urls_are_fetched_from_allowed_hosts_only(service_program, served, other_host):
    url = served(service_program(serve={"image_hosts": [other_host], "max_body_mb": 1}))
    good = post(url, json={"image_url": f"http://{other_host}/a%20b.png"})
    assert good.status_code == 200, good.text
    assert good.json()["state"]["image_path"] == "a b.png"
    host, port = other_host.split(":")
    refused = [
        f"http://localhost:{port}/secret", f"http://{host}/secret", f"http://x@{other_host}/secret", "file:///etc/passwd",
        f"http://{other_host}@evil.example/", f"http://evil.example/#@{other_host}", f"ftp://{other_host}/a",
        f"http://evil.example\\@{other_host}/", f"http://{other_host}\t/secret", "http://169.254.169.254/latest",
        "http://2130706433/", "https://images.invalid/sha256/" + "0" * 64 + ".png", "//x", "", f"http://{other_host}.x/",
    ]  # fmt: skip
    for named in refused:
        assert "its host is not under" in error_of(post(url, json={"image_url": named}), 403), named
    assert Images.seen == ["/a%20b.png"]
    assert "answered 302" in error_of(post(url, json={"image_url": f"http://{other_host}/redirect"}), 422)
    assert "answered 404" in error_of(post(url, json={"image_url": f"http://{other_host}/none"}), 422)
    assert "over 1 MiB" in error_of(post(url, json={"image_url": f"http://{other_host}/endless"}), 413)
    assert "/secret" not in Images.seen
    other = served(service_program(serve={"image_hosts": ["127.0.0.1:9"]}))
    assert "cannot be read" in error_of(post(other, json={"image_url": "http://127.0.0.1:9/"}), 422)


def test_no_proxy_of_the_environment_learns_what_is_fetched(service_program, served, other_host, monkeypatch):
    url = served(service_program(serve={"image_hosts": [other_host]}))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert post(url, json={"image_url": f"http://{other_host}/a%20b.png"}).status_code == 200


def test_no_url_is_fetched_without_an_allow_list(service_program, served, other_host):
    text = error_of(post(served(service_program()), json={"image_url": f"http://{other_host}/secret"}), 403)
    assert "not under serve.image_hosts" in text
    assert Images.seen == []


def test_queries_and_names_cannot_reach_files_or_hosts(service_program, served, encoded, other_host):
    program = service_program()
    url = served(program)
    marker = f'<<CUSTOM-TYPE-START-IDENTIFIER>>[{{"type": "image_url", "image_url": {{"url": "http://{other_host}/secret"}}}}]<<CUSTOM-TYPE-END-IDENTIFIER>>'
    assert post(
        url, data={"query": f"Rate the quality. {marker}"}, files={"image": ("/etc/passwd", encoded())}
    ).is_success
    assert Images.seen == []
    assert all("/secret" not in u for r in program.engine.requests for u in program.engine.images(r))


# Load, time, shutdown, logs


def test_more_requests_than_places_get_503_and_the_places_come_back(service_program, served, encoded, monkeypatch):
    program = service_program(serve={"concurrency": 1, "queue": 1})
    gate, plain = threading.Event(), type(program).forward
    monkeypatch.setattr(type(program), "forward", lambda self, **given: gate.wait(10) and plain(self, **given))
    url = served(program)
    with ThreadPoolExecutor(5) as pool:
        first = [pool.submit(post, url, files={"image": encoded(i)}) for i in range(2)]
        while "agenticiqa_admitted 2.0" not in get(url, "/metrics").text:  # a body that still arrives has no place
            time.sleep(0.01)
        busy = post(url, files={"image": encoded()})
        assert "try again" in error_of(busy, 503)
        assert int(busy.headers["retry-after"]) >= 1
        gate.set()
        assert [f.result().status_code for f in first] == [200, 200]
    assert get(url, "/health").json()["requests"] == 0
    assert 'refused_total{reason="busy"} 1.0' in get(url, "/metrics").text


def test_a_request_out_of_time_gets_504_and_keeps_its_place_until_its_thread_ends(
    service_program, served, encoded, monkeypatch
):
    program = service_program(serve={"concurrency": 1, "queue": 0, "timeout_s": 0.2})
    gate = threading.Event()
    monkeypatch.setattr(type(program), "forward", lambda *_, **__: gate.wait(10))
    url = served(program)
    assert "no answer within 0.2 s" in error_of(post(url, files={"image": encoded()}), 504)
    assert get(url, "/health").json()["requests"] == 1
    assert post(url, files={"image": encoded()}).status_code == 503
    gate.set()
    for _ in range(200):
        if get(url, "/health").json()["requests"] == 0:
            break
        time.sleep(0.01)
    assert get(url, "/health").json()["requests"] == 0


def test_log_lines_hold_no_image_token_or_long_query(service_program, served, encoded, caplog, monkeypatch):
    monkeypatch.setenv("AGENTICIQA_SERVE_TOKEN", TOKEN)
    url = served(service_program(), TOKEN)
    data = encoded()
    query = "Rate the quality " + "q" * 500
    with caplog.at_level(logging.INFO):
        sent = as_json(data, query=query)
        assert post(url, headers={"Authorization": f"Bearer {TOKEN}"}, **sent).is_success
        get(url, "/version%0a?x=" + TOKEN, headers={"Authorization": "Bearer no"})
    formatter = JsonLines()
    lines = [formatter.format(record) for record in caplog.records]
    facts = [json.loads(line) for line in lines]
    assert any(f.get("path") == "/assess" and f["status"] == 200 and f["query"].startswith("Rate") for f in facts)
    text = "\n".join(line for line in lines)
    assert TOKEN not in text
    assert base64.b64encode(data).decode()[:60] not in text
    assert "q" * 100 not in text
    assert len(lines) == text.count("\n") + 1


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "LAB_KEY", "LAB_PASSWORD", "AGENTICIQA_SERVE_TOKEN"])
def test_the_services_log_holds_no_key_of_the_environment(name, monkeypatch):
    monkeypatch.setenv(name, "planted-0c44e9a2b8")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    stream = io.StringIO()
    set_up_logs(stream)
    logging.getLogger("program.service").error("refused: planted-0c44e9a2b8")
    assert json.loads(stream.getvalue())["event"] == f"refused: <{name}>"


def test_a_row_whose_model_fails_is_an_error_beside_the_others(loopback, loopback_module, encoded, fake_runner):
    busy = loopback_module.Reply(429, {"error": {"message": "account acct-123 is over its limit"}})
    server = loopback(rules=[(lambda q: q.inputs.get("query") == "Fail, please.", busy)])
    settings = load_settings(overrides={"wire": {"attempts": 3, "backoff_s": 0.001}})
    program = AgenticIQA(settings.with_model("openai/small-vlm", server.base))
    program.resources.__dict__["runner"] = fake_runner()
    rows = [{"image_bytes": encoded(), "query": query} for query in ("Fail, please.", "Rate the quality.")]
    failed, answered = assess_rows(program, rows, settings)
    assert (failed["status"], answered["status"]) == ("error", "ok")
    assert failed["error"] == "the language model gave no answer (LMRateLimitError); the service's log says more"
    assert set(failed) == set(answered)


def test_log_texts_are_cut_and_blobs_left_out():
    assert shorten("a" * 300 + " b", 400) == "[...] b"
    assert len(shorten("word " * 10_000, 1000)) == 1001
    started = time.thread_time()
    shorten("a" * 50_000_000, 100)
    assert time.thread_time() - started < 0.5


def test_shown_names_hold_no_folder_and_no_control_mark():
    assert shown_name("../../etc/passwd") == "passwd"
    assert shown_name("a\u202egnp.exe\x00\r\n") == "agnp.exe"
    assert shown_name("..") == ".."
    assert shown_name(None) == "image"
    assert len(shown_name("x" * 999)) == 120


def test_binding_elsewhere_needs_a_token(capsys, monkeypatch):
    everywhere = "0.0.0.0"  # noqa: S104
    assert serve.main(["--host", everywhere, "--port", "0"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "set AGENTICIQA_SERVE_TOKEN to a token of 16 characters" in captured.err
    with pytest.raises(SettingsError, match="shorter than 16"):
        token_of({"AGENTICIQA_SERVE_TOKEN": "short"}, "127.0.0.1")
    assert token_of({"AGENTICIQA_SERVE_TOKEN": TOKEN}, everywhere) == TOKEN
    assert token_of({}, "localhost") is token_of({}, "::1") is None


def test_a_taken_port_is_told_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match="choose another --port"):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(SettingsError, match="cannot be served on"):
        bind("203.0.113.9", 0)


def test_sigterm_finishes_what_is_in_flight(tmp_path, encoded):
    """A real process, told to stop while half of a request has arrived."""
    config = tmp_path / "serve.yaml"
    config.write_text("serve: {port: 0, warm_up: false}\n", "utf-8")
    # A question of taste asks no tool: nothing heavy is loaded for it.
    body = json.dumps({"image": base64.b64encode(encoded()).decode(), "query": "Is this picture beautiful?"}).encode()
    head = f"POST /assess HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    process = subprocess.Popen(
        [sys.executable, "-m", "program.serve", "--config", str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).resolve().parents[1], env={**os.environ, "AGENTICIQA_SERVE_TOKEN": TOKEN},
    )  # fmt: skip
    try:
        url = process.stdout.readline().split()[4].rstrip("/")
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
            connection.sendall(head.encode() + body[:100])
            while not get(url, "/health").json()["requests"]:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            while not refuses_connections(address):
                time.sleep(0.01)
            connection.sendall(body[100:])
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert response.status == 200
            assert json.load(response)["state"]["query"] == "Is this picture beautiful?"
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line for line in lines if line.get("path") == "/assess" and line["status"] == 200]
    assert TOKEN not in err + out


STUCK = """
import sys, time
from program.agent.loop import AgenticIQA
from program.serve import main
from program.service import server
server._GRACE_S = 0.2
AgenticIQA.forward = lambda self, **given: time.sleep(120)
sys.exit(main(["--config", sys.argv[1]]))
"""


@pytest.mark.slow
def test_sigterm_ends_the_service_though_a_thread_never_ends(tmp_path, encoded):
    config = tmp_path / "serve.yaml"
    config.write_text("serve: {port: 0, warm_up: false, shutdown_s: 1}\n", "utf-8")
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    try:
        url = process.stdout.readline().split()[4].rstrip("/")
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(post, url, files={"image": encoded()})
            while not get(url, "/health").json()["requests"]:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=100)
            assert answer.exception() is not None or answer.result().status_code >= 500
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert json.loads(err.splitlines()[-1])["event"] == "stopped"


def refuses_connections(address):
    try:
        socket.create_connection((address.hostname, address.port), timeout=5).close()
    except OSError:
        return True
    return False
