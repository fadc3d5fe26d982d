# SPDX-License-Identifier: Apache-2.0
"""Snapshots of daemons that there are not: any number of blocks, and names that would do harm."""
import copy
import json
import random
import re

DATA = re.compile(rb'(<script type="application/json" id="data">)(.*?)(</script>)', re.S)
MIB = 1 << 20


def data_of(page):
    """The data of a page that zeroctl wrote, as bytes."""
    return DATA.search(page).group(2)


def with_data(page, snapshot):
    text = json.dumps(snapshot).encode().replace(b"<", b"\\u003c").replace(b"&", b"\\u0026")
    return DATA.sub(lambda match: match.group(1) + text + match.group(3), page, count=1)


def _device(base, index, arena_bytes):
    device = copy.deepcopy(base)
    device.update(index=index, model="NVIDIA H100 80GB HBM3", name=f"gpu{index}", arena_bytes=arena_bytes, segment_bytes=0,
                  block_bytes=0, quarantine_bytes=0, waiting=0)
    return device


def make(snapshot, nblocks, seed=1, ndevices=2):
    """Returns a snapshot made of a real one, with so many blocks on device 0 and a history of as many events."""
    chance = random.Random(seed)
    made = copy.deepcopy(snapshot)
    made["devices"] = [_device(made["devices"][0], i, 80 << 30) for i in range(ndevices)]
    made.update(map=[], jobs=[], groups=[], sessions=[], buffers=[], buckets=[], allocations=[], node="node17.cluster.example")
    now, begin = 90_000_000_000_000, 90_000_000_000_000 - 42_000_000_000
    rows = []
    if nblocks:
        made["jobs"] = [{"id": i + 1, "name": name, "uid": 1000 + i, "durable": False, "sessions": 4, "groups": 1, "usage": {},
                         "uid_metadata_bytes": 0} for i, name in enumerate(("llama-70b", "tokenizer", "eval"))]
        for i, job in enumerate(made["jobs"]):
            made["groups"].append({"id": 50 + i, "uid": job["uid"], "job": job["name"], "name": "world", "state": "READY",
                                   "members": [{"rank": r, "device": r % ndevices, "session": 10 * (i + 1) + r, "pid": 4000 + r} for r in range(4)]})
            made["sessions"] += [{"id": 10 * (i + 1) + r, "name": f"{job['name']}.{r}", "uid": job["uid"], "pid": 4000 + 10 * i + r,
                                  "state": "READY", "job": job["name"], "age_ns": 9 * 10**9, "outstanding": 0, "requests": 7,
                                  "waits": ["commit: rank 3"] if r == 1 else []} for r in range(4)]
    kinds = [("shards", ("shard", "shard and shadow")), ("gathers", ("gathered",)), ("gradients", ("bucket", "staging", "slot", "target")),
             ("allocations", ("allocation",))]
    nsegments = min(8, nblocks)
    for s in range(nsegments):
        purpose, kinds_of_block = kinds[s % 4]
        job = made["jobs"][(s // 4 + (s % 4 == 3)) % 3]
        count = nblocks // nsegments + (s < nblocks % nsegments)
        blocks, offset = [], 0
        for i in range(count):
            most = max(512, (9 << 30) // count // nsegments)
            size = chance.randrange(most // 4, most) // 512 * 512 + 512
            free = chance.random() < 0.12
            state = chance.choice(["AVAILABLE"] * 7 + ["QUARANTINED"]) if purpose == "gathers" else "IDLE"
            blocks.append({"kind": "block", "offset": offset, "bytes": size, "purpose": chance.choice(kinds_of_block), "uid": job["uid"], "job": job["name"],
                           "group": "" if purpose == "allocations" else "world", "name": f"layers.{i % 80}.attention.wq", "rank": 0,
                           "state": state, "pins": "1 lease" if state == "AVAILABLE" else "", "device": 0, "segment": s + 1})
            offset += size
            if free:
                blocks.append({"kind": "hole", "offset": offset, "bytes": size, "purpose": "", "job": "", "group": "", "name": "", "rank": 0,
                               "state": "", "pins": "", "device": 0, "segment": s + 1})
                offset += size
        used = sum(b["bytes"] for b in blocks if b["kind"] == "block")
        segment = {"kind": "segment", "device": 0, "segment": s + 1, "bytes": offset, "job": job["name"], "purpose": purpose, "state": "READY",
                   "used_bytes": used, "mappings": 4, "pins": f"{kinds_of_block[0]}\u00d7{count}",
                   "largest_hole_bytes": max([b["bytes"] for b in blocks if b["kind"] == "hole"], default=0)}
        made["map"] += [segment, *blocks]
        made["devices"][0]["segment_bytes"] += offset
        made["devices"][0]["block_bytes"] += used
        rows += _events(chance, segment, blocks, begin, now)
    rows.sort(key=lambda row: row["time_ns"])
    made["events"] = {"now_ns": now, "known_from_ns": begin, "whole": False, "rows": rows}
    return made


def _event(kind, block, time_ns):
    session = {"llama-70b": 10, "tokenizer": 20, "eval": 30}[block["job"]]
    return {"time_ns": time_ns, "kind": kind, "session": session if kind == "block_give" else 0,
            **{key: block[key] for key in ("device", "segment", "offset", "bytes", "purpose", "uid", "job", "group", "name", "rank")}}


def _events(chance, segment, blocks, begin, now):
    """Shards and allocations come in the first third and stay; gathered blocks and gradients come and go, and return.

    Of many blocks they return less often: the daemon keeps a limited number of events.
    """
    rows = []
    lasting = segment["purpose"] in ("shards", "allocations")
    for i, block in enumerate(blocks):
        if block["kind"] != "block" or chance.random() < 0.05:
            continue
        if lasting:
            rows.append(_event("block_give", block, begin + int((now - begin) * (0.02 + 0.3 * i / len(blocks)))))
            continue
        at = begin + int((now - begin) * (0.35 + chance.random() * 0.02 + 0.1 * i / len(blocks)))
        step = (now - begin) // (8 if len(blocks) < 1000 else 3)
        while at < now - step:
            rows.append(_event("block_give", block, at))
            rows.append(_event("block_free", block, at + int(step * (0.3 + 0.4 * chance.random()))))
            at += step
        rows.append(_event("block_give", block, at))
    return rows
