// SPDX-License-Identifier: Apache-2.0
// map.js - the memory map: each segment as lines of an equal number of bytes, from left to right and from top to bottom, with its blocks
// and holes where they are. Only the lines that the scrolled box shows are drawn.

const LINE = 16, LINE_GAP = 2, HEAD = 22, SEGMENT_GAP = 10, MAP_MOST_HEIGHT = 640;
const MAP_LINES = 24; // of all segments, unless the reader chooses another length
const LEAST_LINE_BYTES = 1024;
const NEARLY_FREE = new Set(["QUARANTINED", "FREED", "DROPPED", "DYING"]);

class MapView {
	constructor(canvas, box, space) {
		this.canvas = canvas;
		this.box = box;
		this.space = space;
		this.segments = [];
		this.selected = null;
		this.drawn = 0; // blocks in the last picture
		box.addEventListener("scroll", () => this.draw());
	}

	show(segments, colours, keyOf) {
		if (segments !== this.segments) {
			this.segments = segments;
			this.lineBytes = this.chooseLineBytes();
		}
		this.colours = colours;
		this.keyOf = keyOf;
		this.layOut();
	}

	countLines(lineBytes) {
		return this.segments.reduce((count, segment) => count + Math.ceil(segment.bytes / lineBytes), 0);
	}

	chooseLineBytes() {
		const most = Math.max(LEAST_LINE_BYTES, ...this.segments.map((segment) => segment.bytes));
		let bytes = LEAST_LINE_BYTES;
		while (bytes < most && this.countLines(bytes) > Math.max(MAP_LINES, this.segments.length))
			bytes *= 2;
		return bytes;
	}

	// Doubles the bytes a line, or halves them.
	scale(factor) {
		const most = Math.max(LEAST_LINE_BYTES, ...this.segments.map((segment) => segment.bytes));
		const bytes = this.lineBytes * factor;
		if (bytes < LEAST_LINE_BYTES || (factor > 1 && this.lineBytes >= most) || this.countLines(bytes) > 400000)
			return;
		const at = this.box.scrollTop / (this.height || 1);
		this.lineBytes = bytes;
		this.layOut();
		this.box.scrollTop = at * this.height;
	}

	layOut() {
		let y = 0;
		for (const segment of this.segments) {
			segment.top = y;
			segment.lines = Math.ceil(segment.bytes / this.lineBytes);
			y += HEAD + segment.lines * (LINE + LINE_GAP) + SEGMENT_GAP;
		}
		this.height = y;
		this.shownHeight = Math.min(MAP_MOST_HEIGHT, y);
		this.box.style.height = this.shownHeight + "px";
		this.space.style.height = y - this.shownHeight + "px";
		this.draw();
	}

	// The index of the block that the offset of the segment is in.
	static indexAt(segment, offset) {
		let low = 0, high = segment.blocks.length;
		while (low + 1 < high) {
			const middle = (low + high) >> 1;
			if (segment.blocks[middle].offset <= offset)
				low = middle;
			else
				high = middle;
		}
		return low;
	}

	draw() {
		this.width = this.box.clientWidth;
		const context = fitCanvas(this.canvas, this.width, this.shownHeight);
		const top = this.box.scrollTop;
		this.theme = {ink: cssColour("ink"), soft: cssColour("soft"), hole: cssColour("hole"), line: cssColour("hole-line"),
			hatch: cssColour("hatch"), select: cssColour("select"), card: cssColour("card")};
		this.drawn = 0;
		for (const segment of this.segments) {
			if (segment.top > top + this.shownHeight)
				break;
			if (segment.top + HEAD + segment.lines * (LINE + LINE_GAP) < top)
				continue;
			this.drawHead(context, segment, segment.top - top);
			const step = LINE + LINE_GAP, first = Math.max(0, Math.floor((top - segment.top - HEAD) / step));
			const last = Math.min(segment.lines - 1, Math.floor((top + this.shownHeight - segment.top - HEAD) / step));
			for (let line = first; line <= last; line++)
				this.drawLine(context, segment, line, segment.top + HEAD + line * step - top);
		}
		if (this.selected)
			this.drawSelected(context, top);
		this.canvas.dataset.drawn = this.drawn;
	}

	drawHead(context, segment, y) {
		const used = segment.used_bytes, parts = [bytesText(segment.bytes)];
		if (segment.job) {
			parts.push(bytesText(used) + " in blocks", "largest hole " + bytesText(segment.largest_hole_bytes));
			parts.push(segment.state, "mapped by " + segment.mappings);
			if (segment.pins)
				parts.push("pinned by " + segment.pins);
		}
		context.fillStyle = this.theme.ink;
		const title = "Segment " + segment.segment + (segment.job ? "  " + segment.purpose + " of " + segment.job : "  of " + OTHER_USERS);
		context.font = '600 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
		context.fillText(title, 0, y + HEAD / 2, this.width);
		const at = context.measureText(title).width + 14;
		context.font = '12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
		context.fillStyle = this.theme.soft;
		if (at < this.width - 60)
			context.fillText(MapView.cut(context, parts.join(" \u00b7 "), this.width - at), at, y + HEAD / 2);
	}

	static cut(context, text, width) {
		if (context.measureText(text).width <= width)
			return text;
		let low = 0, high = text.length;
		while (low + 1 < high) {
			const middle = (low + high) >> 1;
			if (context.measureText(text.slice(0, middle) + "\u2026").width <= width)
				low = middle;
			else
				high = middle;
		}
		return low > 0 ? text.slice(0, low) + "\u2026" : "";
	}

	drawLine(context, segment, line, y) {
		const begin = line * this.lineBytes, end = Math.min(begin + this.lineBytes, segment.bytes), scale = this.width / this.lineBytes;
		let painted = -1; // the last pixel that has a block
		context.fillStyle = this.theme.hole;
		context.fillRect(0, y, (end - begin) * scale, LINE);
		for (let i = MapView.indexAt(segment, begin); i < segment.blocks.length && segment.blocks[i].offset < end; i++) {
			const block = segment.blocks[i];
			const x = (Math.max(block.offset, begin) - begin) * scale;
			const to = (Math.min(block.offset + block.bytes, end) - begin) * scale;
			if (block.kind === "hole" || to <= x)
				continue;
			this.drawn++;
			if (to <= painted)
				continue;
			const width = Math.max(to - x > 4 ? to - x - 1 : to - x, 1);
			painted = Math.ceil(x + width);
			context.fillStyle = block.kind === "changed" ? this.theme.line : this.colours.get(this.keyOf(block));
			context.fillRect(x, y, width, LINE);
			if (NEARLY_FREE.has(block.state) && width > 3)
				hatch(context, x, y, width, LINE, this.theme.hatch);
			if (width > 70 && block.kind === "block")
				this.drawName(context, block, x, y, width);
		}
	}

	drawName(context, block, x, y, width) {
		const name = MapView.cut(context, block.name || ownerOf(block), width - 10);
		context.font = '11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
		context.fillStyle = this.theme.card;
		context.fillText(name, x + 5, y + LINE / 2 + 0.5);
	}

	// The rectangles of the block, one a line, by the top of the whole map.
	rectanglesOf(block) {
		const segment = this.segments.find((candidate) => candidate.segment === block.segment), rectangles = [];
		if (!segment)
			return rectangles;
		const scale = this.width / this.lineBytes, end = block.offset + block.bytes;
		for (let line = Math.floor(block.offset / this.lineBytes); line * this.lineBytes < end; line++) {
			const x = (Math.max(block.offset, line * this.lineBytes) - line * this.lineBytes) * scale;
			const to = (Math.min(end, (line + 1) * this.lineBytes) - line * this.lineBytes) * scale;
			rectangles.push({x, y: segment.top + HEAD + line * (LINE + LINE_GAP), width: Math.max(to - x, 1), height: LINE});
		}
		return rectangles;
	}

	drawSelected(context, top) {
		context.strokeStyle = this.theme.select;
		context.lineWidth = 2;
		for (const {x, y, width, height} of this.rectanglesOf(this.selected))
			if (y + height > top && y < top + this.shownHeight)
				context.strokeRect(x, y - top, Math.max(width - 1, 2), height);
	}

	// The block or hole at this point of the canvas; of the head of a segment the segment; or null.
	at(x, y) {
		const whole = y + this.box.scrollTop;
		const segment = this.segments.find((candidate) => whole >= candidate.top && whole < candidate.top + HEAD + candidate.lines * (LINE + LINE_GAP));
		if (!segment)
			return null;
		if (whole < segment.top + HEAD)
			return segment;
		const line = Math.floor((whole - segment.top - HEAD) / (LINE + LINE_GAP));
		const offset = line * this.lineBytes + x / this.width * this.lineBytes;
		return offset < segment.bytes && segment.blocks.length > 0 ? segment.blocks[MapView.indexAt(segment, offset)] : null;
	}

	// The next block or hole behind the selected one, or before it.
	neighbour(direction) {
		const all = this.segments.flatMap((segment) => segment.blocks), at = all.indexOf(this.selected);
		return at < 0 ? all[0] || null : all[at + direction] || null;
	}

	reveal(block) {
		const [first] = this.rectanglesOf(block);
		if (first && (first.y < this.box.scrollTop || first.y + LINE > this.box.scrollTop + this.shownHeight))
			this.box.scrollTop = first.y - this.shownHeight / 2;
	}
}
