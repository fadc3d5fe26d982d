# SPDX-License-Identifier: Apache-2.0
"""One exception class for each family of statuses. Each is a ZerodError with the library's text."""
from __future__ import annotations

import json
import re

from .structs import Status


# Control characters, and characters that are invisible or change the order of others, as in zd_text_escape().
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
                     "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
                     "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]")


def shown(text: str) -> str:
    """The text, escaped for people: its names of jobs and groups can come from other users."""
    return _HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1] if ord(found[0]) > 0x9f else f"\\u{ord(found[0]):04x}", text)


class ZerodError(Exception):
    """A call failed. `status` is the number of zerod.h, `name` its name, `text` the library's explanation. As a string the text
    is escaped, because names in it can contain hidden characters."""

    def __init__(self, status: int, text: str) -> None:
        try:
            self.name = Status(status).name
        except ValueError:
            self.name = "UNKNOWN"
        super().__init__(f"{self.name}: {shown(text)}" if text else self.name)
        self.status = status
        self.text = text

    def __reduce__(self) -> tuple:
        return (type(self), (self.status, self.text))


class InvalidArgument(ZerodError, ValueError):
    """INVALID."""


class NotFound(ZerodError, LookupError):
    """NOT_FOUND."""


class AlreadyExists(ZerodError):
    """EXISTS: a rank or a name is taken."""


class Mismatch(ZerodError):
    """MISMATCH: two ranks, or two calls, describe one thing differently."""


class InvalidState(ZerodError, RuntimeError):
    """STATE, BUSY, DUPLICATE, CAPACITY, SLOT_CONFLICT: the call is not allowed now."""


class NotHeld(ZerodError, RuntimeError):
    """NOT_HELD, STALE, STALE_VERSION: a lease, buffer or version is not held, or no longer held."""


class Poisoned(ZerodError, RuntimeError):
    """POISONED: the session continued after an aborted wait."""


class PeerLost(ZerodError):
    """PEER_LOST: a rank of the group ended; the text names it."""


class Aborted(ZerodError):
    """ABORTED."""


class Deadline(ZerodError, TimeoutError):
    """DEADLINE: the text names the reason of the wait."""


class OutOfMemory(ZerodError, MemoryError):
    """NO_MEMORY, QUOTA: the text has the sizes."""


class LimitExceeded(ZerodError):
    """LIMIT."""


class PermissionDenied(ZerodError, PermissionError):
    """PERMISSION."""


class Unsupported(ZerodError, NotImplementedError):
    """UNSUPPORTED, or a function that this libzerod does not have."""


class ConnectionFailed(ZerodError, ConnectionError):
    """CONNECT, DISCONNECTED, VERSION, PROTOCOL, SHUTDOWN: the daemon is absent, ended, or too old."""


class Torn(ZerodError):
    """TORN: a durable group died inside an update."""


class DeviceFailed(ZerodError):
    """DEVICE, SYSTEM: the text has the message of the driver or of the system."""


class Restarted(ConnectionFailed):
    """RESTARTED: the daemon has ended. Group.info() uses the next one (docs/restarts.md)."""


class Forked(ZerodError, RuntimeError):
    """FORKED: the client was made before fork()."""


class Interrupted(ZerodError, InterruptedError):
    """INTERRUPTED: a signal handler of another call has ended the wait. If the handler has raised, that is raised instead."""


_CLASSES: dict[int, type[ZerodError]] = {
    Status.INVALID: InvalidArgument,
    Status.NOT_FOUND: NotFound,
    Status.EXISTS: AlreadyExists,
    Status.MISMATCH: Mismatch,
    Status.STATE: InvalidState,
    Status.NOT_HELD: NotHeld,
    Status.STALE: NotHeld,
    Status.STALE_VERSION: NotHeld,
    Status.BUSY: InvalidState,
    Status.SLOT_CONFLICT: InvalidState,
    Status.POISONED: Poisoned,
    Status.DUPLICATE: InvalidState,
    Status.CAPACITY: InvalidState,
    Status.PEER_LOST: PeerLost,
    Status.ABORTED: Aborted,
    Status.DEADLINE: Deadline,
    Status.NO_MEMORY: OutOfMemory,
    Status.QUOTA: OutOfMemory,
    Status.LIMIT: LimitExceeded,
    Status.PERMISSION: PermissionDenied,
    Status.UNSUPPORTED: Unsupported,
    Status.VERSION: ConnectionFailed,
    Status.PROTOCOL: ConnectionFailed,
    Status.CONNECT: ConnectionFailed,
    Status.DISCONNECTED: ConnectionFailed,
    Status.TORN: Torn,
    Status.DEVICE: DeviceFailed,
    Status.SHUTDOWN: ConnectionFailed,
    Status.SYSTEM: DeviceFailed,
    Status.FORKED: Forked,
    Status.RESTARTED: Restarted,
    Status.INTERRUPTED: Interrupted,
}


# Additions to texts by packages above this one: (status, a part of the text, the addition).
HINTS: list[tuple[int, str, str]] = []


def error(status: int, text: str) -> ZerodError:
    """The exception for a negative status."""
    text += "".join("; " + hint for code, part, hint in HINTS if code == status and part in text)
    return _CLASSES.get(status, ZerodError)(status, text)
