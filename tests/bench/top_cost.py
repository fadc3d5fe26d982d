#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of `zeroctl top`, and that of idle sessions to the daemon: processor time from /proc, on emulated devices.

    tests/bench/top_cost.py [--seconds N] [--rounds N]

1. 256 sessions do nothing: the daemon's memory, and in 10 seconds its processor time and voluntary context switches, of all its threads.
2. The same, and without these sessions, with `zeroctl top --delay 1` in a terminal of 80x24 for N seconds (30). The daemon has nothing else
   to do, so all of its time is the view's.
3. Eight ranks train without pause. Windows of N seconds with the view alternate with windows without it. On a machine with other work the
   daemon's time differs by more than the view costs it, so its part is read in 4.
4. The same ranks, stopped: the daemon answers the view about as many objects, and does nothing else.
"""
import argparse
import fcntl
import os
import pty
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

BUILD = os.environ.get("BUILD", "build")
os.environ.setdefault("ZEROD_LIBRARY", f"{BUILD}/lib/libzerod.so.0")
sys.path.insert(0, "client/python")
import zerod  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
IDLE_SECONDS = 10


def cpu_seconds(pid):
    """User and system time of all threads."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def run_seconds(pid):
    """The same by the scheduler, in nanoseconds and so exact where there is little; of the threads that are there."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def status_field(path, name):
    with open(path) as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))


def switches(pid):
    return sum(status_field(f"/proc/{pid}/task/{task}/status", "voluntary_ctxt_switches") for task in os.listdir(f"/proc/{pid}/task"))


class Top:
    """`zeroctl top` in a terminal whose output is read and dropped."""

    def __init__(self, socket):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.master = master
        self.process = subprocess.Popen([f"{BUILD}/bin/zeroctl", "--socket", socket, "top", "--delay", "1"], stdin=slave, stdout=slave,
                                        env={**os.environ, "TERM": "xterm-256color"}, start_new_session=True)
        os.close(slave)
        threading.Thread(target=self.drop, daemon=True).start()

    def drop(self):
        try:
            while os.read(self.master, 65536):
                pass
        except OSError:
            pass

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        os.close(self.master)


def window(daemon, seconds, socket=None):
    """The daemon's and the view's share of a processor in so many seconds, in percent; and the daemon's voluntary switches."""
    top = Top(socket) if socket else None
    time.sleep(1.5)  # its start is not in the window
    begin, daemon_before, switches_before = time.monotonic(), run_seconds(daemon), switches(daemon)
    top_before = cpu_seconds(top.process.pid) if top else 0
    top_run_before = run_seconds(top.process.pid) if top else 0
    time.sleep(seconds)
    took = time.monotonic() - begin
    daemon_share = 100 * (run_seconds(daemon) - daemon_before) / took
    top_share = 100 * (cpu_seconds(top.process.pid) - top_before) / took if top else 0
    top_run = 100 * (run_seconds(top.process.pid) - top_run_before) / took if top else 0
    switched = switches(daemon) - switches_before
    if top:
        top.end()
    return daemon_share, top_share, top_run, switched


def begin_daemon(folder):
    socket = os.path.join(folder, "zerod.sock")
    daemon = subprocess.Popen([f"{BUILD}/bin/zerod", "--foreground", "--backend", "host", "--devices", "8", "--arena", "64M", "--socket",
                               socket], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while subprocess.run([f"{BUILD}/bin/zeroctl", "--socket", socket, "status"], capture_output=True).returncode:
        if daemon.poll() is not None:
            sys.exit(f"the daemon has ended with status {daemon.returncode}")
        time.sleep(0.05)
    return daemon, socket


def measure_busy(daemon, socket, seconds, rounds):
    ranks = subprocess.Popen([f"{BUILD}/bin/zerobench", "--socket", socket, "--op", "step", "--ranks", "8", "--units", "4", "--maxbytes", "64K",
                              "--iters", "1000000"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    time.sleep(3)
    tops = []
    for number in range(rounds):
        without = window(daemon.pid, seconds)[0]
        busy, top, run, _ = window(daemon.pid, seconds, socket)
        tops.append(top)
        print(f"8 busy ranks, round {number + 1}: zeroctl top {top:.2f} % (stat), {run:.3f} % (schedstat); daemon {without:.1f} % without it, "
              f"{busy:.1f} % with it", flush=True)
    print(f"8 busy ranks, median: zeroctl top {statistics.median(tops):.2f} % (stat)")
    os.killpg(ranks.pid, signal.SIGSTOP)
    time.sleep(1)
    without = window(daemon.pid, IDLE_SECONDS)[0]
    share, top, run, _ = window(daemon.pid, seconds, socket)
    print(f"the same ranks, stopped: zeroctl top {top:.2f} % (stat), {run:.3f} % (schedstat); daemon {without:.4f} % without it, "
          f"{share:.3f} % with it")
    os.killpg(ranks.pid, signal.SIGKILL)
    ranks.wait()


def measure_idle(daemon, socket, seconds):
    clients = [zerod.Client(socket, name=f"idle.{i}") for i in range(256)]
    time.sleep(1)
    share, _, _, switched = window(daemon.pid, IDLE_SECONDS)
    resident = status_field(f"/proc/{daemon.pid}/status", "VmRSS") / 1024
    print(f"256 idle sessions: daemon {resident:.1f} MiB resident, {share:.4f} % of a core, {switched} voluntary switches in "
          f"{IDLE_SECONDS} s")
    share, top, run, switched = window(daemon.pid, seconds, socket)
    print(f"256 idle sessions and top: daemon {share:.3f} %, zeroctl top {top:.2f} % (stat), {run:.3f} % (schedstat); {switched} switches of "
          f"the daemon in {seconds} s")
    for client in clients:
        client.close()
    time.sleep(1)
    share, top, run, _ = window(daemon.pid, seconds, socket)
    print(f"no other session, and top: daemon {share:.3f} %, zeroctl top {top:.2f} % (stat), {run:.3f} % (schedstat)")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        daemon, socket = begin_daemon(folder)
        try:
            measure_idle(daemon, socket, options.seconds)
            measure_busy(daemon, socket, options.seconds, options.rounds)
        finally:
            daemon.terminate()
            daemon.wait()


main()
