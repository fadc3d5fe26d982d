#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks a file of `zeroctl trace`, compressed if its name ends in .gz: trace.py FILE [WORD=COUNT...].

With ZEROD_TRACE_SINCE, a time in nanoseconds since the epoch, the trace begins between it and now.

WORD is gathers, copies, leases, waits, reductions, events, flows or processes; COUNT a number, or a number and "+" for at least so many.
"""

import gzip
import json
import os
import sys
import time
from bisect import bisect_right
from collections import Counter, defaultdict

NUMBERS = (int, float)
KEYS = {  # of each phase: (key, type), beside ph, pid, tid
    "M": (("name", str), ("args", dict)),
    "X": (("name", str), ("ts", NUMBERS), ("dur", NUMBERS), ("args", dict)),  # without args also
    "i": (("name", str), ("ts", NUMBERS), ("s", str), ("args", dict)),  # the same
    "s": (("name", str), ("cat", str), ("ts", NUMBERS), ("id", int)),
    "f": (("name", str), ("cat", str), ("ts", NUMBERS), ("id", int), ("bp", str)),
}
METADATA = ("process_name", "thread_name", "thread_sort_index")


def fail(text):
    sys.exit(f"trace.py: {text}")


def check_form(event):
    if event.get("ph") not in KEYS:
        fail(f"phase of {event}")
    allowed = {"ph", "pid", "tid"} | {key for key, _ in KEYS[event["ph"]]}
    if set(event) | {"args"} != allowed | {"args"}:
        fail(f"keys of {event}: expected {sorted(allowed)}")
    for key, kind in KEYS[event["ph"]] + (("pid", int), ("tid", int)):
        if key == "args" and key not in event and event["ph"] in "Xi":
            continue
        if not isinstance(event[key], kind) or isinstance(event[key], bool):
            fail(f"{key} of {event}")
    if event["ph"] == "M" and event["name"] not in METADATA:
        fail(f"metadata of {event}")
    if event["ph"] != "M" and (event["ts"] < 0 or not event["name"]):
        fail(f"time or name of {event}")


def check_tracks(events):
    """Slices of a track neither overlap nor go back; what is on a track has names for it."""
    processes, tracks, ends = {}, {}, defaultdict(float)
    for event in events:
        place = event["pid"], event["tid"]
        if event["ph"] == "M":
            if event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            elif event["name"] == "thread_name":
                tracks[place] = event["args"]["name"]
            continue
        if event["pid"] not in processes or place not in tracks:
            fail(f"no name for the track of {event}")
        if event["ph"] in "Xi":
            end = round(event["ts"] * 1000) + round(event.get("dur", 0) * 1000)
            if event.get("dur", 0) < 0 or round(event["ts"] * 1000) < ends[place]:
                fail(f"goes back on its track: {event}")
            ends[place] = end
    return processes, tracks


def check_flows(events):
    """Each flow has one begin and one end, in this order, inside slices."""
    slices, flows = defaultdict(list), defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            flows[event["id"]].append(event)
    for number, both in flows.items():
        if [event["ph"] for event in both] != ["s", "f"] or both[0]["ts"] > both[1]["ts"]:
            fail(f"flow {number}: {both}")
        for event in both:
            track = slices[event["pid"], event["tid"]]
            before = bisect_right(track, (event["ts"], float("inf")))
            if not any(begin <= event["ts"] <= end for begin, end in track[max(before - 2, 0):before]):
                fail(f"no slice at {event}")
    return len(flows)


def main():
    with (gzip.open if sys.argv[1].endswith(".gz") else open)(sys.argv[1], "rt", encoding="utf-8") as file:
        trace = json.load(file)
    since_ns = int(os.environ.get("ZEROD_TRACE_SINCE", 0))
    if not since_ns <= trace.pop("baseTimeNanoseconds") <= time.time_ns():
        fail("baseTimeNanoseconds is not between the trace's begin and now")
    if set(trace) != {"displayTimeUnit", "traceEvents", "otherData"} or trace["otherData"]["lost_events"] != 0:
        fail(f"keys {sorted(trace)}, {trace.get('otherData')}")
    events = trace["traceEvents"]
    for event in events:
        check_form(event)
    processes, tracks = check_tracks(events)
    counts = Counter()
    for event in events:
        if event["ph"] in "Xi":
            counts[tracks[event["pid"], event["tid"]].split()[0]] += 1
    counts["flows"] = check_flows(events)
    counts["processes"] = len(processes)
    for wanted in sys.argv[2:]:
        word, number = wanted.split("=")
        least = int(number.rstrip("+"))
        if counts[word] < least or (number[-1] != "+" and counts[word] != least):
            fail(f"{word}: {counts[word]}, expected {number}")


if __name__ == "__main__":
    main()
