"""Addresses: "unix:PATH" and "tcp:HOST:PORT", listened at and dialled.

A Unix socket is a file that its user alone may open. Beyond loopback nothing is listened at without
a key."""

import errno
import ipaddress
import os
import socket
import stat
from contextlib import suppress

from prefill_decode.kv_transfer.errors import DeadlinePassed, PeerLost

LONGEST_PATH = 100  # bytes; the systems allow 103 to 107
BACKLOG = 128


def read_address(address: str) -> tuple[str, str, int]:
    """Its kind, "unix" or "tcp"; the path or the host; the port, 0 for a path. ValueError."""
    kind, colon, rest = address.partition(":")
    if kind == "unix" and rest:
        if len(os.fsencode(rest)) > LONGEST_PATH:
            raise ValueError(
                f"a socket's path has at most {LONGEST_PATH} bytes; got {rest!r}: take a folder "
                "with a shorter name"
            )
        return kind, rest, 0
    host, colon, port = rest.rpartition(":")
    if kind != "tcp" or not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"an address is unix:PATH or tcp:HOST:PORT; got {address!r:.200}")
    return kind, host.removeprefix("[").removesuffix("]"), int(port)


def listen(address: str, key: bytes | None) -> tuple[socket.socket, str]:
    """A listening socket, and its address as bound: port 0 is any.

    ValueError for a place beyond loopback without a key; OSError where it is taken."""
    kind, place, port = read_address(address)
    if kind == "unix":
        return _listen_at_path(place), address
    family, target = _resolved(place, port)
    if key is None and not ipaddress.ip_address(target[0].partition("%")[0]).is_loopback:
        raise ValueError(
            f"beyond loopback every peer must prove that it has the key; got {address!r} and no "
            "key: give both sides one, or listen at tcp:127.0.0.1:0"
        )
    listening = socket.create_server(target, family=family, backlog=BACKLOG)
    bound = listening.getsockname()
    shown = f"[{bound[0]}]" if family == socket.AF_INET6 else bound[0]
    return listening, f"tcp:{shown}:{bound[1]}"


def connect(address: str, timeout_s: float) -> socket.socket:
    """PeerLost where nobody answers, DeadlinePassed where nobody does within `timeout_s`."""
    kind, place, port = read_address(address)
    try:
        if kind == "tcp":
            connected = socket.create_connection((place, port), timeout_s)
        else:
            connected = socket.socket(socket.AF_UNIX)
            try:
                connected.settimeout(timeout_s)
                connected.connect(place)
            except BaseException:
                connected.close()
                raise
    except TimeoutError:
        raise DeadlinePassed(f"nobody answered at {address} within {timeout_s:g} s") from None
    except OSError as error:
        raise PeerLost(f"nobody answers at {address}: {error.strerror or error}") from error
    return prepared(connected)


def prepared(connected: socket.socket) -> socket.socket:
    """Blocking, with small messages sent at once and a dead host noticed some day."""
    connected.settimeout(None)
    if connected.family != socket.AF_UNIX:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connected


def is_local(connected: socket.socket) -> bool:
    """Whether the peer is on this host, as far as the addresses say."""
    if connected.family == socket.AF_UNIX:
        return True
    try:
        host = connected.getpeername()[0]
    except OSError:
        return False
    return bool(ipaddress.ip_address(host.partition("%")[0]).is_loopback)


def _resolved(host: str, port: int) -> tuple[int, tuple[str, int]]:
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ValueError(f"this host is not known: {host!r} ({error.strerror})") from None
    return family, (str(target[0]), port)


def _listen_at_path(path: str) -> socket.socket:
    """Nobody can connect before `listen`, and by then the file is its user's alone."""
    _clear_abandoned(path)
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _clear_abandoned(path: str) -> None:
    """Takes away a socket that nobody listens at any more, and nothing else."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return  # bind will say that it is taken
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as knocking:
        knocking.settimeout(1.0)
        try:
            knocking.connect(path)
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                with suppress(FileNotFoundError):
                    os.unlink(path)
