"""Raw HTTP: bytes over a socket, for what no client library would send."""

import json
import socket
from dataclasses import dataclass
from typing import Any

MODEL_BODY = {"model": "tiny", "prompt": "x"}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


def connect(port: int, timeout_s: float = 20, receive_buffer: int | None = None) -> socket.socket:
    opened = socket.socket()
    if receive_buffer is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    opened.settimeout(timeout_s)
    opened.connect(("127.0.0.1", port))
    return opened


def request(
    body: bytes | str | dict[str, Any], path: str = "/v1/completions", **headers: str
) -> bytes:
    """The bytes of a POST; headers with _ for -. A header given as "" is left out."""
    if isinstance(body, dict):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    fields = {
        "host": "localhost",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"{name}: {value}" for name, value in fields.items() if value]
    return "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode() + body


def read_all(opened: socket.socket) -> bytes:
    found = b""
    while piece := opened.recv(65536):
        found += piece
    return found


def read_reply(opened: socket.socket) -> Reply:
    """One reply with a Content-Length."""
    found = b""
    while b"\r\n\r\n" not in found:
        piece = opened.recv(65536)
        assert piece, f"the connection ended after {found!r}"
        found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    while len(body) < int(headers["content-length"]):
        body += opened.recv(65536)
    return Reply(int(first.split()[1]), headers, body)


def ask(port: int, sent: bytes) -> Reply:
    with connect(port) as opened:
        opened.sendall(sent)
        return read_reply(opened)
