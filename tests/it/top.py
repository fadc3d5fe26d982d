#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Drives `zeroctl top` in pseudo-terminals, whose screens pyte keeps. The argument is an empty folder.

Prints a line a test, "ok WHAT" or "failed WHAT", and then to standard error the screen and what was wrong. Every wait is for the screen
itself, with a deadline.
"""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import traceback

import pyte

COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-7](;[0-9;]*)?m")
BUILD = os.environ["BUILD"]
FOLDER = sys.argv[1]
SOCKET = os.path.join(FOLDER, "top.sock")
DEADLINE_S = 20


class Daemon:
    def __init__(self):
        self.log = open(os.path.join(FOLDER, "top.log"), "ab")
        self.process = subprocess.Popen([f"{BUILD}/bin/zerod", "--foreground", "--backend", "host", "--devices", "2", "--arena", "64M",
                                         "--socket", SOCKET], stdout=self.log, stderr=self.log)
        within(lambda: subprocess.run([f"{BUILD}/bin/zeroctl", "--socket", SOCKET, "status"], capture_output=True).returncode == 0)

    def end(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait()
        self.log.close()


def within(found):
    """Waits until `found` returns something true, and returns that."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        result = found()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError("the deadline has passed")


class Session:
    """A session of another process, which a `with` ends."""

    def __init__(self, name, *allocation):
        self.name = name
        self.process = subprocess.Popen([f"{BUILD}/tests/it/top_sessions", SOCKET], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.ask("open", name, *allocation)

    def ask(self, *words):
        self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"ok\n"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait() == 0


class Screen(pyte.Screen):
    """pyte's, with the ways of xterm to move lines and to repeat a character, which ncurses uses and pyte lacks."""

    def draw(self, data):
        super().draw(data)
        self.last = data[-1:]

    def repeat(self, count=1):
        self.draw(self.last * count)

    def scroll_up(self, count=1):
        self.scroll(self.delete_lines, count)

    def scroll_down(self, count=1):
        self.scroll(self.insert_lines, count)

    def scroll(self, edit, count):
        x, y = self.cursor.x, self.cursor.y
        self.cursor.y = self.margins.top if self.margins else 0
        edit(count)
        self.cursor.x, self.cursor.y = x, y


class Stream(pyte.ByteStream):
    csi = {**pyte.ByteStream.csi, "S": "scroll_up", "T": "scroll_down", "b": "repeat"}
    events = pyte.ByteStream.events | {"scroll_up", "scroll_down", "repeat"}


class Top:
    """`zeroctl top` as the foreground program of a terminal."""

    def __init__(self, *options, columns=60, lines=12, term="xterm", **environment):
        self.master, self.slave = pty.openpty()
        self.screen = Screen(columns, lines)
        self.stream = Stream(self.screen)
        self.output = b""
        self.set_size(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen([f"{BUILD}/bin/zeroctl", "--socket", SOCKET, "top", "--delay", "0.1", *options],
                                        stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
                                        preexec_fn=self.prepare,
                                        env={**os.environ, "TERM": term, **environment})

    @staticmethod
    def prepare():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def set_size(self, columns, lines):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns, lines):
        """As a terminal does: the kernel sends SIGWINCH."""
        self.screen.resize(lines, columns)
        self.set_size(columns, lines)

    def read(self, timeout):
        if not select.select([self.master], [], [], timeout)[0]:
            return False
        data = os.read(self.master, 65536)
        self.output += data
        self.stream.feed(data)
        return True

    def text(self):
        return "\n".join(self.screen.display)

    def wait(self, found):
        """Waits until the function of the screen's text returns true, also at the end of what arrived."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            self.read(0.05)
            while self.read(0):
                pass
            if found(self.text()):
                return self.text()
        raise AssertionError("not shown in time")

    def has(self, *texts):
        return self.wait(lambda text: all(each in text for each in texts))

    def lacks(self, *texts):
        return self.wait(lambda text: not any(each in text for each in texts))

    def keys(self, keys):
        os.write(self.master, keys.encode())

    def ends(self, status=0):
        """The program ends with this status, and the terminal is as before."""
        within(lambda: self.process.poll() is not None or (self.read(0.02) and False))
        while self.read(0):
            pass
        assert self.process.returncode == status, f"status {self.process.returncode}"
        assert termios.tcgetattr(self.slave) == self.before, "the terminal's settings are others"
        if b"\x1b[?1049h" in self.output:
            assert self.output.rindex(b"\x1b[?1049l") > self.output.rindex(b"\x1b[?1049h"), "the other screen is still shown"
            assert self.output.rindex(b"\x1b[?25h") > self.output.rindex(b"\x1b[?25l"), "the cursor is hidden"

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.master >= 0:
            os.close(self.master)
        os.close(self.slave)


def rows(verb):
    done = subprocess.run([f"{BUILD}/bin/zeroctl", "--socket", SOCKET, verb, "--json"], capture_output=True, check=True)
    return json.loads(done.stdout)["rows"]


def uptime_ns():
    return rows("status")[0]["uptime_ns"]


# ---- Tests -------------------------------------------------------------------------------------------------------

tests = []


def test(what, **options):
    def add(function):
        tests.append((what, function, options))
        return function
    return add


@test("a session is shown with what it holds, and each device with a whole bar")
def shows(top):
    def shown(lines):
        return (lines[0].startswith("zerod ") and "host, SERVING" in lines[0] and lines[1].startswith("DEV  MEMORY")
                and lines[2].startswith("  0  [+") and lines[2].count("]") == 1 and " 8%  5.0/64.0 MiB" in lines[2]
                and lines[4].startswith("ID\u25b2  NAME ") and lines[11].startswith("q quit  h help  / filter  < > sort"))

    with Session("holder", "lm", 5 << 20):  # a line at a time arrives, and at first the allocation waits for its zeros
        top.wait(lambda text: shown(text.split("\n")) and "holder" in text and "5.0 MiB" in text and "lm" in text and "WAITS FOR" not in text)
        assert COLOUR.search(top.output), "no colour is chosen"


@test("hidden characters of names are escaped")
def escapes(top):
    with Session("a\u202eb"), Session("\u6a21\u578b"):
        text = top.wait(lambda text: "a\\u202eb" in text and "\u6a21" in text)
        assert "\u202e" not in text


@test("a filter is typed, applies at once, and is cleared by Esc")
def filters(top):
    with Session("first"), Session("second"):
        top.has("first", "second")
        top.keys("/SEC")
        top.wait(lambda text: "filter: SEC_" in text and "second" in text and "first" not in text)
        top.keys("\x7f\x7fx\r")
        top.wait(lambda text: "filter 'Sx'" in text and "second" not in text)
        top.keys("\x1b")
        top.has("first", "second", "q quit")


@test("a pause keeps what is shown, and its end shows what is")
def pauses(top):
    with Session("passing"):
        top.has("passing")
        top.keys("p")
        top.has("PAUSED")
    within(lambda: all(row["name"] != "passing" for row in rows("sessions")))
    paused_ns = uptime_ns()
    within(lambda: uptime_ns() > paused_ns + 500_000_000)  # some samples would have been due
    top.keys("h")
    top.has("sort by the next")
    top.keys("h")
    top.wait(lambda text: "PAUSED" in text and "passing" in text and "sort by the next" not in text)
    top.keys(" ")
    top.wait(lambda text: "PAUSED" not in text and "passing" not in text)


@test("many sessions are scrolled")
def scrolls(top):
    with Session("client.00") as others:
        for i in range(1, 20):
            others.ask("open", f"client.{i:02}")
        top.has("client.00", "1-6 of 21")
        top.keys("\x1b[B")  # as terminals send it; ncurses asks for the application's mode, where it is \x1bOB
        top.keys("\x1bOB\x1bOB")
        top.wait(lambda text: "client.00" not in text and "client.04" in text)
        top.keys("\x1b[6~\x1b[6~\x1b[6~\x1b[6~")
        top.has("client.19", "16-21 of 21")
    top.lacks("client.")


@test("another size is used at once, and one that is too small is told")
def resizes(top):
    with Session("holder"):
        top.wait(lambda text: "holder" in text and "PID" not in text)
        top.resize(120, 30)
        top.has("holder", "PID", "#gathered =shards +other", "Tab pane")
        top.resize(30, 5)
        top.wait(lambda text: text.startswith("terminal too small (30x5; nee"))
        top.resize(39, 12)
        top.wait(lambda text: text.startswith("terminal too small (39x12; needs 40x8)") and "holder" not in text)
        top.resize(40, 8)
        top.wait(lambda text: "holder" in text and text.split("\n")[7].startswith("q quit"))


@test("q ends it and restores the terminal")
def quits(top):
    top.has("q quit")
    top.keys("q")
    top.ends()


@test("Ctrl-C ends it and restores the terminal")
def is_interrupted(top):
    top.has("q quit")
    top.keys("\x03")
    top.ends()


@test("SIGTERM ends it and restores the terminal")
def is_terminated(top):
    top.has("q quit")
    top.process.send_signal(signal.SIGTERM)
    top.ends()


@test("a daemon that has gone is told, and the next one is found")
def reconnects(top):
    top.has("SERVING")
    daemon.end()
    top.has("no daemon, trying every 0.1 s", "q quit")
    daemon.__init__()
    with Session("after"):
        top.wait(lambda text: "SERVING" in text and "after" in text and "no daemon" not in text)


@test("a daemon that drains in order to end does not wait for it")
def lets_a_daemon_end(top):
    top.has("SERVING")
    daemon.end(signal.SIGTERM)
    assert daemon.process.returncode == 0
    assert "deadline" not in open(os.path.join(FOLDER, "top.log")).read()
    daemon.__init__()
    top.wait(lambda text: "SERVING" in text and "no daemon" not in text)


@test("a daemon that stands still is told, and q works")
def stands_still(top):
    top.has("SERVING")
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        top.has("no daemon, trying")
        top.keys("q")
        top.ends()
    finally:
        daemon.process.send_signal(signal.SIGCONT)


@test("the end of the terminal ends it, also where SIGHUP does not")
def ends_with_the_terminal(top):
    top.has("q quit")
    os.close(top.master)
    top.master = -1
    within(lambda: top.process.poll() is not None)
    assert top.process.returncode == 30, top.process.returncode


@test("a terminal that is not known is an error", term="no-such-terminal", ASAN_OPTIONS="detect_leaks=0")  # ncurses leaks then
def refuses_unknown_terminals(top):
    top.ends(2)
    assert b"'no-such-terminal' (TERM) is not known" in top.output, top.output


@test("a terminal without a cursor is an error", term="dumb")
def refuses_dumb_terminals(top):
    top.ends(2)
    assert b"cannot move its cursor" in top.output, top.output


@test("without colours the characters are the same", NO_COLOR="1")
def needs_no_colours(top):
    top.has("[........]", "q quit")
    assert not COLOUR.search(top.output), COLOUR.search(top.output)


failed = False
daemon = Daemon()
try:
    for what, function, options in tests:
        top = Top(**options)
        try:
            function(top)
            print("ok", what)
        except Exception:
            failed = True
            print("failed", what)
            traceback.print_exc()
            print(top.text(), file=sys.stderr)
            print("the output ends with", repr(top.output[-4000:]), file=sys.stderr)
        finally:
            top.close()
finally:
    daemon.end()
sys.exit(failed)
