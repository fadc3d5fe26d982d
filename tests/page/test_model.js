// SPDX-License-Identifier: Apache-2.0
// test_model.js - history, addresses and sums of the snapshot's page, by node alone. Prints TAP.
"use strict";
const assert = require("assert");
const fs = require("fs");
const model = require("../../client/zeroctl/snapshot/model.js");

const tests = [];
const test = (name, run) => tests.push([name, run]);

function block(offset, bytes, more) {
	return {kind: "block", device: 0, segment: 1, offset, bytes, purpose: "gathered", job: "lm", group: "world", name: "u" + offset, rank: 0,
		state: "AVAILABLE", pins: "", ...more};
}
const give = (time, of, session) => ({...of, kind: "block_give", time_ns: time, session: session || 7});
const free = (time, of) => ({...of, kind: "block_free", time_ns: time, session: 0, rank: 0});
const segment = (id, bytes, more) => ({kind: "segment", device: 0, segment: id, bytes, job: "lm", purpose: "gathers", ...more});

function snapshot(map, rows, more) {
	return {map, events: {known_from_ns: 100, now_ns: 200, whole: false, rows}, sessions: [], groups: [], jobs: [], allocations: [], buffers: [],
		buckets: [], ...more};
}

const shape = (spans) => spans.map((s) => [s.offset, s.from, s.to, s.before, s.open]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);

test("a block that is given and freed is there in between", () => {
	const a = block(0, 10);
	assert.deepStrictEqual(shape(model.spansOf(snapshot([], [give(120, a), free(150, a)]), 0)), [[0, 120, 150, false, false]]);
});
test("a block of the map without events was there all along", () => {
	assert.deepStrictEqual(shape(model.spansOf(snapshot([segment(1, 100), block(0, 10)], []), 0)), [[0, 100, 200, true, true]]);
});
test("a block that is only freed was there since the beginning", () => {
	assert.deepStrictEqual(shape(model.spansOf(snapshot([], [free(150, block(0, 10))]), 0)), [[0, 100, 150, true, false]]);
});
test("a block that was freed after the map was read is not there any more", () => {
	const a = block(0, 10);
	assert.deepStrictEqual(shape(model.spansOf(snapshot([segment(1, 100), a], [free(150, a)]), 0)), [[0, 100, 150, true, false]]);
});
test("a block that was given after the map was read is there", () => {
	assert.deepStrictEqual(shape(model.spansOf(snapshot([segment(1, 100)], [give(199, block(0, 10))]), 0)), [[0, 199, 200, false, true]]);
});
test("a place is used again, at once and by another block", () => {
	const a = block(0, 10), b = block(0, 20, {name: "b"});
	const spans = model.spansOf(snapshot([segment(1, 100), b], [free(150, a), give(150, b), give(160, block(32, 8)), free(170, block(32, 8))]), 0);
	assert.deepStrictEqual(shape(spans), [[0, 100, 150, true, false], [0, 150, 200, false, true], [32, 160, 170, false, false]]);
	assert.deepStrictEqual(spans.find((s) => s.open).name, "b");
});
test("other devices, and memory of other users, have no spans", () => {
	const a = block(0, 10, {device: 1}), other = block(64, 10, {job: ""});
	assert.deepStrictEqual(model.spansOf(snapshot([segment(1, 100), other], [give(120, a)]), 0), []);
	assert.strictEqual(model.spansOf(snapshot([segment(1, 100), other], [give(120, a)]), 1).length, 1);
});
test("segments that are never there together share addresses", () => {
	const segments = [{segment: 1, bytes: 100, from: 0, to: 10}, {segment: 2, bytes: 50, from: 5, to: 20}, {segment: 3, bytes: 60, from: 10, to: 20},
		{segment: 4, bytes: 40, from: 10, to: 20}, {segment: 5, bytes: 10, from: 15, to: 20}];
	assert.strictEqual(model.placeSegments(segments), 160);
	assert.deepStrictEqual(segments.map((s) => s.base), [0, 100, 0, 60, 150]);
});
test("segments come from the map, from events, and from blocks", () => {
	const rows = [{kind: "segment_end", time_ns: 130, device: 0, segment: 2, bytes: 64, purpose: "shards", job: "lm"},
		{kind: "segment_begin", time_ns: 140, device: 0, segment: 3, bytes: 32, purpose: "gathers", job: "lm"}, free(150, block(8, 10, {segment: 9}))];
	const data = snapshot([segment(3, 32), segment(4, 16), segment(5, 16, {job: ""})], rows);
	const found = model.segmentSpansOf(data, 0, model.spansOf(data, 0)).map((s) => [s.segment, s.bytes, s.from, s.to]);
	assert.deepStrictEqual(found, [[2, 64, 100, 130], [4, 16, 100, 200], [9, 18, 100, 200], [3, 32, 140, 200]]);
});
test("sums follow every change, and no peak is lost", () => {
	const a = block(0, 10), b = block(64, 5, {purpose: "shard"});
	const spans = model.spansOf(snapshot([segment(1, 100), b], [give(120, a), free(121, a)]), 0);
	const sums = model.sumsOf(model.edgesOf(spans), model.PURPOSES, (s) => s.purpose);
	assert.deepStrictEqual([...sums.times], [100, 120, 121]);
	assert.deepStrictEqual([...sums.totals], [5, 15, 5]);
	assert.deepStrictEqual([...sums.sums[model.PURPOSES.indexOf("gathered")]], [0, 10, 0]);
	assert.deepStrictEqual(model.peaksOf(sums, 100, 200, 4).map((i) => sums.totals[i]), [15, 5, 5, 5]);
	assert.strictEqual(model.sumAt(sums, 99), -1);
});
test("a block that moves to another owner at one moment counts once", () => {
	const a = block(0, 10), b = block(0, 10, {purpose: "target"});
	const spans = model.spansOf(snapshot([segment(1, 100), b], [give(120, a), free(130, a), give(130, b)]), 0);
	assert.deepStrictEqual([...model.sumsOf(model.edgesOf(spans), model.PURPOSES, (s) => s.purpose).totals], [10, 10]);
});
test("blocks are stacked by group and time, and fall when one below is freed", () => {
	const span = (from, to, bytes) => ({from, to, bytes, open: to === 200});
	const first = [span(100, 130, 10), span(110, 200, 5), span(120, 120, 7)], second = [span(105, 140, 3)];
	const seen = [[], [], []];
	model.stack([first, second], [115, 130, 200], (column, of, base) => seen[column].push([of.bytes, base]));
	assert.deepStrictEqual(seen, [[[10, 0], [5, 10], [3, 15]], [[5, 0], [3, 5]], [[5, 0]]]);
	assert.deepStrictEqual([0, 9, 10, 14, 15, 17].map((byte) => model.spanInStack([first, second], 115, byte).bytes), [10, 10, 5, 5, 3, 3]);
	assert.strictEqual(model.spanInStack([first, second], 115, 18), null);
	assert.strictEqual(model.mostAtOnce([...first, ...second]), 3);
});
test("holders are named by membership, allocation or event", () => {
	const alice = {uid: 1000}, bob = {uid: 1001};
	const map = [segment(1, 1000), block(0, 10, alice), block(10, 20, {...alice, rank: 1}),
		block(30, 40, {...alice, group: "", name: "x", purpose: "allocation"}), block(70, 80, {...alice, group: "", name: "y", purpose: "allocation"}),
		block(150, 5, {job: "", group: "", purpose: ""}), block(160, 9, bob)];
	const data = snapshot(map, [give(110, map[4], 9)], {
		groups: [{...alice, job: "lm", name: "world", members: [{rank: 0, session: 7}, {rank: 1, session: 8}]},
			{...bob, job: "lm", name: "world", members: [{rank: 0, session: 7}]}],
		allocations: [{...alice, job: "lm", name: "x", session: 8, device: 0}],
		sessions: [{...alice, id: 7, name: "", pid: 5, waits: []}, {...bob, id: 7, name: "", pid: 6, waits: []}]});
	const rows = model.holdersOf(data, model.sessionFinder(data)).map((r) => [r.job, r.session, r.uid, r.process, r.total, r.gathered, r.allocation]);
	assert.deepStrictEqual(rows, [["lm", 7, 1000, "(pid 5)", 10, 10, 0], ["lm", 8, 1000, "", 60, 20, 40], ["lm", 9, 1000, "", 80, 0, 80],
		[model.OTHER_USERS, "", "", "", 5, 0, 0], ["lm", 7, 1001, "(pid 6)", 9, 9, 0]]);
});
test("waits: a gather is named once, by its buffer", () => {
	const buffer = {job: "lm", group: "world", unit: "u", rank: 0, device: 0, state: "WAITING", waits_for: "rank 1", age_ns: 5,
		holders: [{session: 7, tag: "", uses: 1}]};
	const data = snapshot([], [], {buffers: [buffer, {...buffer, state: "AVAILABLE", waits_for: ""}, {...buffer, state: "QUARANTINED", holders: []}],
		sessions: [{id: 7, name: "t", job: "lm", waits: ["gather: rank 1", "commit: rank 2"]}, {id: 8, name: "t", job: "lm", waits: ["gather: rank 1"]}],
		buckets: [{job: "lm", group: "world", id: 9, rank: 1, device: 1, waits: ["rank 0"]}]});
	assert.deepStrictEqual(model.waitsOf(data).map((w) => [w.what, w.object, w.session, w.waits]), [["gather", "world/u@0", "7", "rank 1"],
		["quarantined buffer", "world/u@0", "", "rank 1"], ["commit", "t", 7, "rank 2"], ["gather", "t", 8, "rank 1"],
		["bucket", "world/9@1", "", "rank 0"]]);
});
test("colours: the largest jobs have one each", () => {
	const blocks = Array.from({length: 14}, (_, i) => block(i, 100 - i, {job: "job" + i}));
	const {keys, keyOf} = model.colouring("job", blocks);
	assert.strictEqual(keys.length, 13);
	assert.strictEqual(keyOf(blocks[0]), "job0");
	assert.strictEqual(keyOf(blocks[13]), model.OTHER_JOBS);
	assert.strictEqual(keyOf({job: ""}), model.OTHER_USERS);
	assert.strictEqual(model.colouring("purpose", []).keyOf(block(0, 1, {purpose: "later kind"})), model.OTHER_USERS);
});
test("colours: each purpose of the daemon's blocks has one", () => {
	const [, words] = fs.readFileSync(__dirname + "/../../daemon/core/history.def", "utf8").match(/what a block is for \*\/\n([^]*?)\/\*/);
	assert.deepStrictEqual([...words.matchAll(/"(.*)"/g)].map(([, word]) => word), model.PURPOSES);
});
test("bytes and times are written as zeroctl writes them", () => {
	assert.deepStrictEqual([0, 512, 1536, 15.5 * 1024 ** 2, 80 * 1024 ** 3].map(model.bytesText), ["0 B", "512 B", "1.5 KiB", "15.5 MiB", "80 GiB"]);
	assert.deepStrictEqual([0, 1500, 2.5e6, 61e9, 3725e9, 90000e9].map(model.durationText), ["0 ns", "1.5 \u00b5s", "2.5 ms", "1m01s", "1h02m", "1d01h"]);
});

let failures = 0;
tests.forEach(([name, run], i) => {
	try {
		run();
		console.log("ok " + (i + 1) + " - " + name);
	} catch (error) {
		failures++;
		console.log("not ok " + (i + 1) + " - " + name + "\n" + String(error.stack).replace(/^/gm, "# "));
	}
});
console.log("1.." + tests.length);
process.exit(failures > 0 ? 1 : 0);
