// SPDX-License-Identifier: Apache-2.0
// page.js - the page itself: its head and tables, the chosen device, colouring and block, and the pointer.

const MOST_ROWS = 1000; // of a table
const byId = (id) => document.getElementById(id);
const snapshot = JSON.parse(byId("data").textContent);
const sessionOf = sessionFinder(snapshot);
const mapView = new MapView(byId("map"), byId("map-view"), byId("map-space"));
const historyView = new HistoryView(byId("area"), byId("bands"));
const page = {device: snapshot.devices.length > 0 ? snapshot.devices[0].index : -1, colour: "purpose"};

function element(name, text, className) {
	const made = document.createElement(name);
	if (text !== undefined)
		made.textContent = text;
	if (className)
		made.className = className;
	return made;
}

// ---- Head ---------------------------------------------------------------------------------------------------

function wallText(ns, digits) {
	const date = new Date(Number(ns) / 1e6), two = (n) => String(n).padStart(2, "0");
	const zone = -date.getTimezoneOffset(), hours = two(Math.floor(Math.abs(zone) / 60)), minutes = two(Math.abs(zone) % 60);
	const offset = zone === 0 ? "" : (zone < 0 ? "\u2212" : "+") + hours + ":" + minutes;
	const fraction = digits ? "." + String(date.getMilliseconds()).padStart(3, "0") : "";
	return date.getFullYear() + "-" + two(date.getMonth() + 1) + "-" + two(date.getDate()) + " " + two(date.getHours()) + ":" +
		two(date.getMinutes()) + ":" + two(date.getSeconds()) + fraction + " UTC" + offset;
}

// The wall clock's time of a time on the clock of the events.
function wallOf(time) {
	return snapshot.time_ns - (snapshot.events.now_ns - time);
}

function sumOfDevices(key) {
	return snapshot.devices.reduce((sum, device) => sum + device[key], 0);
}

function fillHead() {
	const status = snapshot.status;
	const models = [...new Set(snapshot.devices.map((device) => device.model || "emulated"))].join(", ");
	const facts = [
		["Node", snapshot.node], ["Time", wallText(snapshot.time_ns)],
		["Daemon", status.daemon + ", " + status.backend + ", " + status.state.toLowerCase()],
		["Uptime", durationText(status.uptime_ns)], ["Devices", snapshot.devices.length + " \u00d7 " + models],
		["Arenas", bytesText(sumOfDevices("arena_bytes"))], ["In segments", bytesText(sumOfDevices("segment_bytes"))],
		["In blocks", bytesText(sumOfDevices("block_bytes"))], ["Jobs", String(snapshot.jobs.length)],
		["Sessions", String(snapshot.sessions.length)],
	];
	if (snapshot.job)
		facts.push(["Only job", snapshot.job]);
	if (snapshot.device >= 0)
		facts.push(["Only device", String(snapshot.device)]);
	for (const [title, text] of facts) {
		const pair = element("div");
		pair.append(element("dt", title), element("dd", text));
		byId("head").append(pair);
	}
	document.title = "zerod snapshot of " + snapshot.node + ", " + wallText(snapshot.time_ns);
}

// ---- Tables -------------------------------------------------------------------------------------------------

// Fills a table with rows by columns {title, key, text}: `text` makes a number legible. A click on a title sorts.
function fillTable(table, columns, rows, sorted) {
	const head = element("thead"), line = element("tr"), body = element("tbody");
	for (const column of columns) {
		const cell = element("th", undefined, column.text ? "number" : ""), button = element("button", column.title);
		button.type = "button";
		cell.append(button);
		cell.scope = "col";
		if (sorted && sorted.key === column.key)
			cell.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
		button.addEventListener("click", () =>
			fillTable(table, columns, rows, {key: column.key, down: sorted && sorted.key === column.key ? !sorted.down : Boolean(column.text)}));
		line.append(cell);
	}
	head.append(line);
	const order = sorted ? [...rows].sort((a, b) => compare(a[sorted.key], b[sorted.key]) * (sorted.down ? -1 : 1)) : rows;
	for (const row of order.slice(0, MOST_ROWS)) {
		const tr = element("tr");
		for (const column of columns) {
			const value = row[column.key];
			tr.append(element("td", column.text && value !== "" ? column.text(value) : String(value), column.text ? "number" : ""));
		}
		body.append(tr);
	}
	table.replaceChildren(head, body);
	if (order.length > MOST_ROWS)
		table.append(element("caption", "The first " + MOST_ROWS + " of " + order.length + " rows; --json has all."));
}

function compare(a, b) {
	if (typeof a === "number" && typeof b === "number")
		return a - b;
	return String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0;
}

function fillTables() {
	const holders = holdersOf(snapshot, sessionOf), waits = waitsOf(snapshot);
	const used = PURPOSES.filter((purpose) => holders.some((row) => row[purpose] > 0));
	const blank = (bytes) => bytes === 0 ? "" : bytesText(bytes);
	byId("holders").hidden = holders.length === 0;
	byId("holders-none").hidden = holders.length > 0;
	fillTable(byId("holders"), [{title: "Job", key: "job"}, {title: "Uid", key: "uid"}, {title: "Session", key: "session"},
		{title: "Process", key: "process"}, {title: "Device", key: "device"}, {title: "Blocks", key: "blocks", text: String},
		...used.map((purpose) => ({title: purpose[0].toUpperCase() + purpose.slice(1), key: purpose, text: blank})),
		{title: "Total", key: "total", text: bytesText}], holders, {key: "total", down: true});
	byId("waits").hidden = waits.length === 0;
	byId("waits-none").hidden = waits.length > 0;
	fillTable(byId("waits"), [{title: "What waits", key: "what"}, {title: "Job", key: "job"}, {title: "Object", key: "object"},
		{title: "Session", key: "session"}, {title: "Device", key: "device"}, {title: "Waits for", key: "waits"},
		{title: "For", key: "age_ns", text: durationText}], waits, null);
}

function barOf(device) {
	const bar = element("span", undefined, "bar");
	for (const key of ["segment_bytes", "block_bytes"]) {
		const part = element("i");
		part.style.width = (device.arena_bytes > 0 ? 100 * device[key] / device.arena_bytes : 0) + "%";
		bar.append(part);
	}
	bar.title = "in segments, and in blocks, of the arena";
	return bar;
}

function fillDevices() {
	const table = byId("devices"), head = element("tr");
	const titles = ["Device", "Model", "State", "", "Arena", "In segments", "In blocks", "Quarantine", "Largest hole", "Gather budget", "Waiting"];
	for (const title of titles)
		head.append(element("th", title, titles.indexOf(title) > 3 ? "number" : ""));
	const body = element("tbody");
	for (const device of snapshot.devices) {
		const row = element("tr"), hole = Math.max(0, ...segmentsOf(snapshot, device.index).map((segment) => segment.largest_hole_bytes));
		const bar = element("td"), chosen = element("td");
		bar.append(barOf(device));
		const button = element("button", device.index + (device.name ? "  " + device.name : ""));
		button.type = "button";
		chosen.append(button);
		row.append(chosen, element("td", device.model || "emulated"), element("td", device.state + (device.failure ? ": " + device.failure : "")), bar);
		for (const bytes of [device.arena_bytes, device.segment_bytes, device.block_bytes, device.quarantine_bytes, hole, device.gather_budget_bytes])
			row.append(element("td", bytesText(bytes), "number"));
		row.append(element("td", String(device.waiting), "number"));
		row.dataset.device = device.index;
		row.addEventListener("click", () => chooseDevice(device.index));
		body.append(row);
	}
	const top = element("thead");
	top.append(head);
	table.replaceChildren(top, body);
}

// ---- The chosen device, colouring and block -----------------------------------------------------------------

function chooseDevice(device) {
	page.device = device;
	for (const row of byId("devices").querySelectorAll("tr[data-device]"))
		row.setAttribute("aria-selected", String(Number(row.dataset.device) === device));
	page.segments = segmentsOf(snapshot, device);
	page.blocks = page.segments.flatMap((segment) => segment.blocks).filter((block) => block.kind === "block");
	page.spans = spansOf(snapshot, device);
	const segments = segmentSpansOf(snapshot, device, page.spans), end = placeSegments(segments);
	historyView.show(page.spans, segments, end, snapshot.events.known_from_ns, snapshot.events.now_ns);
	byId("map-none").hidden = page.blocks.length > 0;
	byId("map-view").hidden = page.segments.length === 0;
	byId("history").hidden = page.spans.length === 0;
	byId("history-note").textContent = historyNote();
	choose(null);
	recolour();
}

function historyNote() {
	const {known_from_ns: begin, complete_from_ns: complete, now_ns: now, whole} = snapshot.events;
	const others = snapshot.map.some((row) => row.kind === "others") ? " Memory of other users is not shown." : "";
	const since = whole ? "the first event since the daemon\u2019s start" : "the oldest event that the daemon keeps";
	const known = "Known for " + durationText(now - begin) + ", from " + wallText(wallOf(begin), true) + " on: " + since + ".";
	const thinned = complete > begin ? " Before " + wallText(wallOf(complete), true) + " blocks that were in use for a short time are left out." : "";
	const none = page.spans.length + page.blocks.length === 0 ? " No block was there in this time." : "";
	return (begin >= now ? "Nothing is known of the time before the snapshot." : known) + thinned + none + others;
}

function recolour() {
	const colouringNow = colouring(page.colour, [...page.blocks, ...page.spans]), {keys, keyOf} = colouringNow;
	const present = new Set([...page.blocks, ...page.spans].map(keyOf)), colours = colourMap(keys);
	for (const legend of document.querySelectorAll("[data-legend]"))
		fillLegend(legend, keys.filter((key) => present.has(key)), colours);
	mapView.show(page.segments, colours, keyOf);
	byId("map-scale").textContent = page.segments.length > 0 ? "A line is " + bytesText(mapView.lineBytes) + "." : "";
	historyView.recolour(colouringNow, colours);
}

function scaleMap(factor) {
	mapView.scale(factor);
	byId("map-scale").textContent = "A line is " + bytesText(mapView.lineBytes) + ".";
}

// What is known of a block, hole, segment or span, as pairs of title and text.
function factsOf(thing) {
	const facts = [];
	const add = (title, text) => {
		if (text !== undefined && text !== "" && text !== null)
			facts.push([title, String(text)]);
	};
	if (thing.kind === "segment") {
		add("Segment", thing.segment);
		add("Bytes", bytesText(thing.bytes) + " (" + thing.bytes + ")");
		add("Job", thing.job || OTHER_USERS);
		for (const [title, key] of [["Purpose", "purpose"], ["State", "state"], ["Mapped by", "mappings"], ["Pinned by", "pins"]])
			add(title, thing.job ? thing[key] : "");
		add("In blocks", bytesText(thing.used_bytes));
		add("Largest hole", bytesText(thing.largest_hole_bytes));
		return facts;
	}
	add("Owner", thing.kind === "changed" ? "changed while it was read" : ownerOf(thing));
	add("Purpose", thing.kind === "hole" ? "free" : thing.purpose);
	add("State", thing.state);
	add("Pinned by", thing.pins);
	add("Bytes", bytesText(thing.bytes) + " (" + thing.bytes + ")");
	add("Device", thing.device);
	add("Segment", thing.segment);
	add("Offset", "0x" + thing.offset.toString(16) + " (" + thing.offset + ")");
	if (thing.job)
		for (const [title, text] of ownerFacts(thing))
			add(title, text);
	return facts;
}

function timesOf(span) {
	const given = wallText(wallOf(span.from), true), whole = !span.before && !span.open;
	return [["Given", span.before ? "before " + given : given], ["Freed", span.open ? "not yet" : wallText(wallOf(span.to), true)],
		["Lasted", (whole ? "" : "at least ") + durationText(span.to - span.from)]];
}

function ownerFacts(thing) {
	const facts = [["Job", thing.job], ["Group", thing.group], ["Name", thing.name], ["Rank", thing.group ? thing.rank : ""]];
	const id = sessionOf(thing), session = snapshot.sessions.find((row) => row.uid === thing.uid && row.id === id);
	const process = session ? " (pid " + session.pid + (session.name ? ", " + session.name : "") + ", uid " + session.uid + ")" : "";
	facts.push(["Session", id ? id + process : ""]);
	for (const buffer of ["gathered", "frame"].includes(thing.purpose) && thing.kind === "block" ? snapshot.buffers : []) {
		if (buffer.uid !== thing.uid || buffer.job !== thing.job || buffer.group !== thing.group || buffer.unit !== thing.name || buffer.rank !== thing.rank ||
			buffer.state === "WAITING")
			continue;
		facts.push(["Version", buffer.version]);
		facts.push(["Held by", buffer.holders.map((holder) => "session " + holder.session + " as " + holder.tag + " \u00d7" + holder.uses).join(", ")]);
		facts.push(["Waits for", buffer.waits_for]);
	}
	return facts;
}

function choose(thing) {
	const samePlace = (other) => thing && other.segment === thing.segment && other.offset === thing.offset && other.bytes === thing.bytes;
	mapView.selected = thing && thing.kind !== "segment" ? thing : null;
	historyView.selected = !thing || thing.kind === "segment" ? null : thing.from !== undefined ? thing :
		page.spans.find((span) => span.open && samePlace(span)) || null;
	if (thing && thing.from !== undefined)
		mapView.selected = thing.open ? page.blocks.find(samePlace) || null : null;
	byId("detail-none").hidden = thing !== null;
	byId("detail-title").textContent = !thing ? "Block" : thing.kind === "segment" ? "Segment" : thing.kind === "hole" ? "Hole" : "Block";
	const facts = [...(thing ? factsOf(thing) : []), ...(historyView.selected ? timesOf(historyView.selected) : [])];
	byId("detail").replaceChildren(...facts.flatMap(([title, text]) => [element("dt", title), element("dd", text)]));
	if (page.segments.length > 0 && mapView.colours)
		mapView.draw();
	historyView.drawMarks();
}

// ---- The pointer --------------------------------------------------------------------------------------------

function showTip(event, lines) {
	const tip = byId("tip");
	tip.hidden = lines === null;
	if (!lines)
		return;
	tip.replaceChildren(...lines.map((line) => element("div", line)));
	const x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
	const y = event.clientY + 16 + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 16;
	tip.style.left = Math.max(4, x) + "px";
	tip.style.top = Math.max(4, y) + "px";
}

function tipOf(thing) {
	if (!thing)
		return null;
	return factsOf(thing).slice(0, thing.kind === "segment" ? 8 : 5).map(([title, text], i) => i === 0 ? text : title + ": " + text);
}

function tipOfSums(x, y) {
	const at = historyView.sumAt(x, y), {times, sums, totals} = historyView.sums;
	if (at < 0)
		return null;
	const span = historyView.stackedAt(x, y), lines = span ? [ownerOf(span) + ", " + bytesText(span.bytes)] : [];
	lines.push(bytesText(totals[at]) + " in blocks, " + durationText(snapshot.events.now_ns - times[at]) + " before the snapshot",
		wallText(wallOf(times[at]), true));
	historyView.keys.forEach((key, i) => {
		if (sums[i][at] > 0)
			lines.push(key + ": " + bytesText(sums[i][at]));
	});
	return lines;
}

function listenToMap() {
	const canvas = byId("map");
	canvas.addEventListener("mousemove", (event) => showTip(event, tipOf(mapView.at(event.offsetX, event.offsetY))));
	canvas.addEventListener("mouseleave", (event) => showTip(event, null));
	canvas.addEventListener("click", (event) => choose(mapView.at(event.offsetX, event.offsetY)));
	canvas.addEventListener("keydown", (event) => {
		const direction = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
		const next = direction ? mapView.neighbour(direction) : null;
		if (!direction)
			return;
		event.preventDefault();
		if (next) {
			choose(next);
			mapView.reveal(next);
		}
	});
	byId("map-in").addEventListener("click", () => scaleMap(0.5));
	byId("map-out").addEventListener("click", () => scaleMap(2));
}

function listenToChart(canvas, tip, click) {
	canvas.addEventListener("mousedown", (event) => {
		if (event.button !== 0 || !historyView.isInside(event.offsetX, event.offsetY, canvas))
			return;
		historyView.brush = {canvas, x0: event.offsetX, y0: event.offsetY, x1: event.offsetX, y1: event.offsetY};
	});
	canvas.addEventListener("mousemove", (event) => {
		const brush = historyView.brush;
		if (brush && brush.canvas === canvas) {
			brush.x1 = event.offsetX;
			brush.y1 = event.offsetY;
			historyView.drawMarks();
		}
		showTip(event, brush ? null : tip(event.offsetX, event.offsetY));
	});
	canvas.addEventListener("mouseup", (event) => {
		if (historyView.brush && !historyView.finishBrush())
			click(event.offsetX, event.offsetY);
		historyView.drawMarks();
	});
	canvas.addEventListener("mouseleave", (event) => showTip(event, null));
	canvas.addEventListener("dblclick", showWholeTime);
	canvas.addEventListener("wheel", (event) => {
		if (!event.ctrlKey && !event.metaKey)
			return;
		event.preventDefault();
		historyView.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, historyView.timeAt(event.offsetX));
	}, {passive: false});
}

function showWholeTime() {
	historyView.showAll();
	historyView.draw();
}

function listen() {
	listenToMap();
	listenToChart(byId("area"), tipOfSums, (x, y) => choose(historyView.stackedAt(x, y)));
	listenToChart(byId("bands"), (x, y) => tipOf(historyView.spanAt(x, y)), (x, y) => choose(historyView.spanAt(x, y)));
	window.addEventListener("mouseup", () => {
		if (historyView.brush)
			historyView.finishBrush();
	});
	byId("time-in").addEventListener("click", () => historyView.zoomBy(0.5));
	byId("time-out").addEventListener("click", () => historyView.zoomBy(2));
	byId("time-left").addEventListener("click", () => historyView.shift(-0.3));
	byId("time-right").addEventListener("click", () => historyView.shift(0.3));
	byId("time-all").addEventListener("click", showWholeTime);
	byId("colour").addEventListener("change", (event) => {
		page.colour = event.target.value;
		recolour();
	});
	window.addEventListener("resize", recolour);
	window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
}

fillHead();
fillDevices();
fillTables();
listen();
if (page.device >= 0)
	chooseDevice(page.device);
