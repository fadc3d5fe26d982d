// SPDX-License-Identifier: Apache-2.0
// model.js - what the page shows, computed from the snapshot: owners, history, sums. It knows no document.
//
// A span is a block from the event that gave it to the event that freed it, or to the end of the history. A span whose `before` is
// set was there when the history begins; one whose `open` is set is there at its end.
"use strict";

const PURPOSES = ["shard", "shard and shadow", "save", "host copy", "gathered", "frame", "slot", "bucket", "staging", "target", "allocation"];
const MOST_JOBS = 11; // that have a colour each
const OTHER_USERS = "other users";
const OTHER_JOBS = "other jobs";

function placeOf(block) {
	return block.segment + ":" + block.offset;
}

// "job/group/unit", with "@rank" behind what a rank has.
function ownerOf(block) {
	if (!block.job)
		return block.kind === "hole" ? "" : OTHER_USERS;
	const parts = [block.job, block.group, block.name].filter(Boolean).join("/");
	return block.group ? parts + "@" + block.rank : parts;
}

// ---- The map ------------------------------------------------------------------------------------------------

// Returns the device's segments in the order of the map, each with its blocks and holes by offset.
function segmentsOf(snapshot, device) {
	const segments = [];
	for (const row of snapshot.map) {
		if (row.device !== device || row.kind === "unused" || row.kind === "others")
			continue;
		if (row.kind === "segment")
			segments.push({...row, blocks: []});
		else
			segments[segments.length - 1].blocks.push(row);
	}
	return segments;
}

// Returns a function of a block or span: the id of its user's session that it is of, or 0.
function sessionFinder(snapshot) {
	const given = new Map(), members = new Map(), allocations = new Map();
	for (const event of snapshot.events.rows)
		if (event.kind === "block_give" && !event.group)
			given.set(placeOf(event), event);
	for (const group of snapshot.groups)
		for (const member of group.members)
			members.set(JSON.stringify([group.uid, group.job, group.name, member.rank]), member.session);
	for (const row of snapshot.allocations) {
		const key = JSON.stringify([row.uid, row.job, row.name, row.device]);
		allocations.set(key, allocations.has(key) && allocations.get(key) !== row.session ? 0 : row.session);
	}
	return function (block) {
		if (block.session)
			return block.session;
		if (!block.job)
			return 0;
		if (block.group)
			return members.get(JSON.stringify([block.uid, block.job, block.group, block.rank])) || 0;
		const session = allocations.get(JSON.stringify([block.uid, block.job, block.name, block.device]));
		const event = session ? null : given.get(placeOf(block));
		return session || (event && event.job === block.job && event.bytes === block.bytes ? event.session : 0);
	};
}

// ---- History ------------------------------------------------------------------------------------------------

function spanOf(block, from, before) {
	return {device: block.device, segment: block.segment, offset: block.offset, bytes: block.bytes, purpose: block.purpose, uid: block.uid,
		job: block.job, group: block.group, name: block.name, rank: block.rank, session: block.session || 0, from, before, to: 0, open: false};
}

// Returns the spans of the device. A block that is freed by an event, and given by none, was there all along; so was a block of the map
// of which no event speaks. Where the map and a newer event differ, the event is right. Of other users there are no events.
function spansOf(snapshot, device) {
	const {now_ns: now, known_from_ns: begin, rows} = snapshot.events;
	const spans = [], live = new Map(), freed = new Set();
	for (const event of rows) {
		const place = placeOf(event);
		if (event.device !== device)
			continue;
		if (event.kind === "block_give") {
			live.set(place, spanOf(event, event.time_ns, false));
		} else if (event.kind === "block_free") {
			const span = live.get(place) || spanOf(event, begin, true);
			span.to = event.time_ns;
			spans.push(span);
			live.delete(place);
			freed.add(place);
		}
	}
	for (const row of snapshot.map) {
		if (row.device !== device || row.kind !== "block" || !row.job)
			continue;
		const place = placeOf(row);
		if (!live.has(place) && !freed.has(place))
			live.set(place, spanOf(row, begin, true));
	}
	for (const span of live.values()) {
		span.to = now;
		span.open = true;
		spans.push(span);
	}
	return spans;
}

// Returns the device's segments that there were: {segment, bytes, from, to, purpose, job}, by their begin.
function segmentSpansOf(snapshot, device, spans) {
	const {now_ns: now, known_from_ns: begin, rows} = snapshot.events;
	const all = new Map();
	for (const row of snapshot.map)
		if (row.device === device && row.kind === "segment" && row.job)
			all.set(row.segment, {segment: row.segment, bytes: row.bytes, purpose: row.purpose, job: row.job, from: begin, to: now});
	for (const event of rows) {
		if (event.device !== device || !event.kind.startsWith("segment_"))
			continue;
		const known = all.get(event.segment) ||
			{segment: event.segment, bytes: event.bytes, purpose: event.purpose, job: event.job, from: begin, to: now};
		if (event.kind === "segment_begin")
			known.from = event.time_ns;
		else
			known.to = event.time_ns;
		all.set(event.segment, known);
	}
	for (const span of spans) {
		const known = all.get(span.segment) ||
			{segment: span.segment, bytes: 0, purpose: "", job: span.job, from: begin, to: now};
		known.bytes = Math.max(known.bytes, span.offset + span.bytes);
		all.set(span.segment, known);
	}
	return [...all.values()].sort((a, b) => a.from - b.from || a.segment - b.segment);
}

// Gives each segment a range of addresses, `base` its begin, that no other has at the same time, the lowest one. Returns their end.
function placeSegments(segments) {
	let end = 0;
	const placed = []; // by base
	for (const segment of segments) {
		let base = 0;
		for (const other of placed) {
			if (other.from >= segment.to || other.to <= segment.from)
				continue;
			if (base + segment.bytes <= other.base)
				break;
			base = Math.max(base, other.base + other.bytes);
		}
		segment.base = base;
		end = Math.max(end, base + segment.bytes);
		const at = placed.findIndex((other) => other.base > base);
		placed.splice(at < 0 ? placed.length : at, 0, segment);
	}
	return end;
}

// Returns what begins and ends, by time: {time, span, bytes}, of which `bytes` are negative where the span ends.
function edgesOf(spans) {
	const edges = [];
	for (const span of spans)
		edges.push({time: span.from, span, bytes: span.bytes});
	for (const span of spans)
		if (!span.open)
			edges.push({time: span.to, span, bytes: -span.bytes});
	return edges.sort((a, b) => a.time - b.time);
}

// Returns the sums over time: {times, sums, totals}. sums[k][i] are the bytes of keys[k] from times[i] on.
function sumsOf(edges, keys, keyOf) {
	const index = new Map(keys.map((key, i) => [key, i])), state = keys.map(() => 0), array = () => new Float64Array(edges.length);
	const times = array(), totals = array(), sums = keys.map(array);
	let count = 0, total = 0;
	edges.forEach(({time, span, bytes}, i) => {
		state[index.get(keyOf(span))] += bytes;
		total += bytes;
		if (i + 1 < edges.length && edges[i + 1].time === time)
			return;
		times[count] = time;
		totals[count] = total;
		for (let key = 0; key < state.length; key++)
			sums[key][count] = state[key];
		count++;
	});
	return {times: times.subarray(0, count), totals: totals.subarray(0, count), sums: sums.map((sum) => sum.subarray(0, count))};
}

// Returns the index of the first of the ascending numbers that is greater than `value`.
function upperBound(numbers, value) {
	let low = 0, high = numbers.length;
	while (low < high) {
		const middle = (low + high) >> 1;
		if (numbers[middle] > value)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

// Returns the index of the sum that holds at the time, -1 before the first.
function sumAt(sums, time) {
	return upperBound(sums.times, time) - 1;
}

// Returns for each of `count` parts of the time the index of its highest total, -1 for none, so that no peak is lost.
function peaksOf(sums, from, to, count) {
	const peaks = [];
	for (let i = 0; i < count; i++) {
		const first = sumAt(sums, from + (to - from) * i / count);
		const last = upperBound(sums.times, from + (to - from) * (i + 1) / count) - 1;
		let peak = first;
		for (let at = Math.max(first, 0); at <= last; at++)
			if (peak < 0 || sums.totals[at] > sums.totals[peak])
				peak = at;
		peaks.push(peak);
	}
	return peaks;
}

// Calls visit(column, span, base) for each block that is there at times[column], which ascend: block upon block, by group, and of a group the one
// that was given first. The spans of each group are in the order of their begin.
function stack(groups, times, visit) {
	const live = groups.map(() => []), next = groups.map(() => 0);
	times.forEach((time, column) => {
		let base = 0;
		groups.forEach((spans, group) => {
			while (next[group] < spans.length && spans[next[group]].from <= time)
				live[group].push(spans[next[group]++]);
			live[group] = live[group].filter((span) => span.open || span.to > time);
			for (const span of live[group]) {
				visit(column, span, base);
				base += span.bytes;
			}
		});
	});
}

// Returns how many spans there are at one time, at most.
function mostAtOnce(spans) {
	const edges = spans.flatMap((span) => span.open ? [[span.from, 1]] : [[span.from, 1], [span.to, -1]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
	let count = 0, most = 0;
	for (const [, change] of edges) {
		count += change;
		most = Math.max(most, count);
	}
	return most;
}

// Returns the span of the stack at this time that has the byte, or null.
function spanInStack(groups, time, byte) {
	let found = null;
	stack(groups, [time], (column, span, base) => {
		if (byte >= base && byte < base + span.bytes)
			found = span;
	});
	return found;
}

// ---- Colours ------------------------------------------------------------------------------------------------

// Returns the jobs that have a colour: the largest ones, by name.
function jobsOf(blocks) {
	const bytes = new Map();
	for (const block of blocks)
		if (block.job)
			bytes.set(block.job, (bytes.get(block.job) || 0) + block.bytes);
	return [...bytes].sort((a, b) => b[1] - a[1]).slice(0, MOST_JOBS).map(([job]) => job).sort();
}

// Returns {keys, keyOf}: the keys of the colours, and the key of a block.
function colouring(by, blocks) {
	if (by === "job") {
		const jobs = jobsOf(blocks), known = new Set(jobs);
		return {keys: [...jobs, OTHER_JOBS, OTHER_USERS],
			keyOf: (block) => !block.job ? OTHER_USERS : known.has(block.job) ? block.job : OTHER_JOBS};
	}
	const known = new Set(PURPOSES);
	return {keys: [...PURPOSES, OTHER_USERS], keyOf: (block) => known.has(block.purpose) && block.job ? block.purpose : OTHER_USERS};
}

// ---- Tables -------------------------------------------------------------------------------------------------

// Returns a row for each job, session and device that has blocks, with the bytes of each purpose.
function holdersOf(snapshot, sessionOf) {
	const rows = new Map();
	const sessions = new Map(snapshot.sessions.map((row) => [row.uid + "/" + row.id, row]));
	for (const block of snapshot.map) {
		if (block.kind !== "block")
			continue;
		const id = sessionOf(block), key = JSON.stringify([block.uid, block.job, id, block.device]);
		let row = rows.get(key);
		if (!row) {
			const session = sessions.get(block.uid + "/" + id);
			row = {job: block.job || OTHER_USERS, uid: block.uid === undefined ? "" : block.uid, session: id || "",
				process: session ? (session.name ? session.name + " " : "") + "(pid " + session.pid + ")" : "", device: block.device,
				blocks: 0, total: 0};
			for (const purpose of PURPOSES)
				row[purpose] = 0;
			rows.set(key, row);
		}
		row.blocks++;
		row.total += block.bytes;
		if (block.purpose in row)
			row[block.purpose] += block.bytes;
	}
	return [...rows.values()];
}

// Returns a row for each request, buffer and bucket that waits. A session names its waiting requests; of gathers the buffer says more.
function waitsOf(snapshot) {
	const rows = [], gathers = new Set();
	for (const buffer of snapshot.buffers) {
		if (!buffer.waits_for)
			continue;
		for (const holder of buffer.state === "WAITING" ? buffer.holders : [])
			gathers.add(buffer.uid + "/" + holder.session + ": gather: " + buffer.waits_for);
		rows.push({what: buffer.state === "WAITING" ? "gather" : buffer.state.toLowerCase() + " buffer", job: buffer.job,
			object: buffer.group + "/" + buffer.unit + "@" + buffer.rank,
			session: buffer.holders.map((holder) => holder.session).filter(Boolean).join(", "), device: buffer.device,
			waits: buffer.waits_for, age_ns: buffer.age_ns});
	}
	for (const session of snapshot.sessions)
		for (const wait of session.waits) {
			const colon = wait.indexOf(": ");
			if (gathers.has(session.uid + "/" + session.id + ": " + wait))
				continue;
			rows.push({what: colon < 0 ? "session" : wait.slice(0, colon), job: session.job, object: session.name, session: session.id,
				device: "", waits: colon < 0 ? wait : wait.slice(colon + 2), age_ns: ""});
		}
	for (const bucket of snapshot.buckets)
		for (const wait of bucket.waits)
			rows.push({what: "bucket", job: bucket.job, object: bucket.group + "/" + bucket.id + "@" + bucket.rank, session: "",
				device: bucket.device, waits: wait, age_ns: ""});
	return rows;
}

// ---- Texts --------------------------------------------------------------------------------------------------

// As zeroctl writes them: at most 4 significant digits.
function bytesText(bytes) {
	const names = ["B", "KiB", "MiB", "GiB", "TiB"];
	let unit = 0, value = bytes;
	while (value >= 1024 && unit < names.length - 1) {
		value /= 1024;
		unit++;
	}
	return (unit === 0 ? String(value) : String(Number(value.toPrecision(4)))) + " " + names[unit];
}

function durationText(ns) {
	const value = Math.abs(ns), sign = ns < 0 ? "\u2212" : "";
	const units = [[1, "ns"], [1e3, "\u00b5s"], [1e6, "ms"], [1e9, "s"]];
	if (value >= 60e9) {
		const s = Math.floor(value / 1e9), two = (n) => String(n).padStart(2, "0");
		if (s >= 86400)
			return sign + Math.floor(s / 86400) + "d" + two(Math.floor(s / 3600) % 24) + "h";
		return sign + (s >= 3600 ? Math.floor(s / 3600) + "h" + two(Math.floor(s / 60) % 60) + "m" : Math.floor(s / 60) + "m" + two(s % 60) + "s");
	}
	const [size, name] = units.filter(([least]) => value >= least).pop() || units[0];
	return sign + Number((value / size).toPrecision(4)) + " " + name;
}

if (typeof module !== "undefined")
	module.exports = {PURPOSES, OTHER_USERS, OTHER_JOBS, ownerOf, segmentsOf, sessionFinder, spansOf, segmentSpansOf, placeSegments, edgesOf, sumsOf, sumAt,
		peaksOf, stack, mostAtOnce, spanInStack, jobsOf, colouring, holdersOf, waitsOf, bytesText, durationText, upperBound};
