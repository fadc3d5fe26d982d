# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a daemon of protocol version 0: it answers one hello. The messages are those of proto/zerod.proto."""
from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from typing import Any, Callable

PAGE_BYTES = 1024 * 8  # of fences: ZD_FENCE_PAGE_BYTES
TIMEOUT_S = 30
_SEALS = 0x7  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_VERSION = -23  # ZEROD_E_VERSION


def _varint(value: int) -> bytes:
    more = value >> 7
    return bytes([value & 0x7F | (0x80 if more else 0)]) + (_varint(more) if more else b"")


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _hello_id(packet: bytes) -> int:
    """The id of a packet's only request: ClientPacket.requests is field 1, and so is Request.id."""
    assert packet[0] == 0x0A and b"\x08" in packet[2:4], packet
    at = packet.index(b"\x08", 2) + 1
    value = shift = 0
    while True:
        value |= (packet[at] & 0x7F) << shift
        if packet[at] < 0x80:
            return value
        at, shift = at + 1, shift + 7


def _page() -> int:
    page = os.memfd_create("old-daemon", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(page, PAGE_BYTES)
    fcntl.fcntl(page, 1033, _SEALS)  # F_ADD_SEALS
    return page


def welcome(connection: socket.socket, request: int) -> None:
    """A HelloReply whose version is 0, with its two pages."""
    hello = _bytes(3, b"0.0.9") + _bytes(4, b"host") + _number(5, 1) + _number(7, 1024)
    pages = [_page(), _page()]
    socket.send_fds(connection, [_bytes(2, _number(1, request) + _bytes(10, hello))], pages)
    for page in pages:
        os.close(page)


def refusal(connection: socket.socket, request: int) -> None:
    """The error that a daemon of version 0 has for a client of version 1."""
    text = b"the client speaks protocol versions 1 to 1, the daemon 0 to 0"
    connection.send(_bytes(2, _number(1, request) + _number(2, -2 * _VERSION - 1) + _bytes(3, text)))


class Listener:
    """A socket on which one client is answered."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = self.folder.name + "/zerod.sock"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.bind(self.path)
        self.socket.listen()

    def serve(self, answer: Callable[[socket.socket, int], None]) -> None:
        connection, _ = self.socket.accept()
        with connection:
            connection.settimeout(TIMEOUT_S)
            answer(connection, _hello_id(connection.recv(1 << 16)))
            connection.recv(1 << 16)  # until the client goes

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: Any) -> None:
        self.socket.close()
        self.folder.cleanup()
