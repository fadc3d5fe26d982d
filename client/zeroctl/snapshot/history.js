// SPDX-License-Identifier: Apache-2.0
// history.js - memory over time: stacked blocks, and each block as a band from the time at which it was given to that at which it was freed.
// Both charts have the same time from left to right.

const AXIS_LEFT = 74, AXIS_BOTTOM = 24, AXIS_TOP = 8, AXIS_RIGHT = 12;
const MOST_RECTANGLES = 20000; // of more bands in a picture only the density is drawn
const MOST_STACKED = 5000; // of more blocks at one time only the sums are drawn
const LEAST_STACKED = 3; // pixels of a block that is set off from the one above it

class HistoryView {
	constructor(area, bands) {
		this.area = area;
		this.bands = bands;
		this.selected = null;
		this.brush = null; // {canvas, x0, y0, x1, y1} while the pointer is pressed
		this.drawn = 0;
		this.chosen = null; // {span, parts}: the selected block in the stacks
		this.pictures = new Map(); // of each canvas what is below the selected block and the brush
	}

	// `begin` and `now`: what is known, on the clock of the events.
	show(spans, segments, end, begin, now) {
		Object.assign(this, {spans, end, begin, now});
		this.segments = new Map(segments.map((segment) => [segment.segment, segment]));
		for (const span of spans)
			span.address = this.segments.get(span.segment).base + span.offset;
		this.edges = edgesOf(spans);
		this.stacked = mostAtOnce(spans) <= MOST_STACKED;
		this.showAll();
		this.showChanges();
	}

	recolour({keys, keyOf}, colours) {
		this.keys = keys;
		this.colours = colours;
		this.sums = sumsOf(this.edges, keys, keyOf);
		this.byKey = new Map(keys.map((key) => [key, []]));
		for (const span of this.spans)
			this.byKey.get(keyOf(span)).push(span);
		this.groups = [...this.byKey.values()].map((group) => group.sort((a, b) => a.from - b.from));
		this.draw();
	}

	showAll() {
		this.from = this.begin;
		this.to = this.now;
		this.low = 0;
		this.high = Math.max(this.end, 1);
	}

	// Shows the time from the first change to the last one: before and behind them nothing moves.
	showChanges() {
		let first = Infinity, last = -Infinity;
		for (const span of this.spans) {
			first = Math.min(first, span.before ? Infinity : span.from, span.open ? Infinity : span.to);
			last = Math.max(last, span.before ? -Infinity : span.from, span.open ? -Infinity : span.to);
		}
		const margin = (last - first) * 0.04;
		if (last > first) {
			this.from = Math.max(this.begin, first - margin);
			this.to = Math.min(this.now, last + margin);
		}
	}

	// Zooms to the time and the addresses, within what is known.
	zoom(from, to, low, high) {
		const least = Math.max((this.now - this.begin) * 1e-7, 100);
		if (to - from < least)
			to = from + least;
		this.from = Math.max(this.begin, from);
		this.to = Math.min(this.now, to);
		if (low !== undefined && high - low >= 256) {
			this.low = Math.max(0, low);
			this.high = Math.min(Math.max(this.end, 1), high);
		}
		this.draw();
	}

	zoomBy(factor, centre) {
		const at = centre === undefined ? (this.from + this.to) / 2 : centre;
		this.zoom(at - (at - this.from) * factor, at + (this.to - at) * factor);
	}

	shift(part) {
		let by = (this.to - this.from) * part;
		by = Math.max(this.begin - this.from, Math.min(this.now - this.to, by));
		this.zoom(this.from + by, this.to + by);
	}

	timeAt(x) {
		return this.from + (x - AXIS_LEFT) / this.plotWidth * (this.to - this.from);
	}

	xOf(time) {
		return AXIS_LEFT + (time - this.from) / (this.to - this.from) * this.plotWidth;
	}

	addressAt(y) {
		return this.low + (AXIS_TOP + this.bandHeight - y) / this.bandHeight * (this.high - this.low);
	}

	yOf(address) {
		return AXIS_TOP + this.bandHeight - (address - this.low) / (this.high - this.low) * this.bandHeight;
	}

	draw() {
		if (!this.keys || this.spans.length === 0)
			return;
		this.theme = {ink: cssColour("ink"), soft: cssColour("soft"), line: cssColour("line"), hole: cssColour("hole"), edge: cssColour("hole-line"),
			select: cssColour("select"), accent: cssColour("accent"), card: cssColour("card")};
		this.chosen = null;
		this.drawArea();
		this.drawBands();
		for (const canvas of [this.area, this.bands]) {
			const picture = document.createElement("canvas");
			picture.width = canvas.width;
			picture.height = canvas.height;
			picture.getContext("2d").drawImage(canvas, 0, 0);
			this.pictures.set(canvas, picture);
		}
		this.drawMarks();
	}

	// Draws the selected block and the brush over the pictures.
	drawMarks() {
		for (const [canvas, picture] of this.pictures) {
			const context = canvas.getContext("2d");
			context.save();
			context.setTransform(1, 0, 0, 1, 0, 0);
			context.clearRect(0, 0, canvas.width, canvas.height);
			context.drawImage(picture, 0, 0);
			context.restore();
			if (canvas === this.bands && this.selected)
				this.drawSelected(context);
			if (canvas === this.area && this.selected && this.stacked)
				this.drawChosen(context);
			this.drawBrush(context, canvas, canvas.clientHeight);
		}
	}

	drawSelected(context) {
		const {x, y, width, height} = this.rectangleOf(this.selected);
		context.save();
		context.beginPath();
		context.rect(AXIS_LEFT, AXIS_TOP, this.plotWidth, this.bandHeight);
		context.clip();
		context.strokeStyle = this.theme.select;
		context.lineWidth = 2;
		context.strokeRect(x, y, Math.max(width, 2), Math.max(height, 2));
		context.restore();
	}

	// Draws the selected block's upper and lower edge in the stacks.
	drawChosen(context) {
		if (!this.chosen || this.chosen.span !== this.selected) {
			this.chosen = {span: this.selected, parts: []};
			stack(this.groups, this.moments, (column, span, base) => {
				if (span === this.selected)
					this.chosen.parts.push([AXIS_LEFT + column, ...[base, base + span.bytes].map((byte) => Math.round(this.yOfSum(byte)))]);
			});
		}
		context.fillStyle = this.theme.select;
		for (const [x, low, high] of this.chosen.parts) {
			context.fillRect(x, low - 1, 1, 2);
			context.fillRect(x, high - 1, 1, 2);
		}
	}

	begun(canvas, height) {
		const width = canvas.parentElement.clientWidth;
		this.plotWidth = Math.max(width - AXIS_LEFT - AXIS_RIGHT, 10);
		return fitCanvas(canvas, width, height);
	}

	drawTimes(context, height) {
		context.fillStyle = this.theme.soft;
		context.strokeStyle = this.theme.line;
		context.lineWidth = 1;
		context.textAlign = "center";
		// Behind the end of what is known there is no time: it is counted backwards from there.
		for (const tick of ticksOf(this.from - this.now, this.to - this.now, Math.max(2, Math.floor(this.plotWidth / 130)))) {
			const x = Math.round(this.xOf(tick + this.now)) + 0.5;
			context.beginPath();
			context.moveTo(x, height - AXIS_BOTTOM);
			context.lineTo(x, height - AXIS_BOTTOM + 4);
			context.stroke();
			const text = tick === 0 ? "snapshot" : durationText(tick), half = context.measureText(text).width / 2;
			context.fillText(text, Math.min(x, AXIS_LEFT + this.plotWidth + AXIS_RIGHT - half - 1), height - AXIS_BOTTOM + 13);
		}
		context.textAlign = "left";
	}

	drawBytes(context, low, high, yOf) {
		context.textAlign = "right";
		for (const tick of ticksOf(low, high, 5, 2)) {
			const y = Math.round(yOf(tick)) + 0.5;
			context.strokeStyle = this.theme.line;
			context.beginPath();
			context.moveTo(AXIS_LEFT, y);
			context.lineTo(AXIS_LEFT + this.plotWidth, y);
			context.stroke();
			context.fillStyle = this.theme.soft;
			context.fillText(bytesText(tick), AXIS_LEFT - 7, y);
		}
		context.textAlign = "left";
	}

	drawArea() {
		const height = 210, context = this.begun(this.area, height), plot = height - AXIS_TOP - AXIS_BOTTOM;
		const columns = Math.round(this.plotWidth);
		this.peaks = peaksOf(this.sums, this.from, this.to, columns);
		const most = this.peaks.reduce((least, peak) => peak < 0 ? least : Math.max(least, this.sums.totals[peak]), 1) * 1.05;
		const yOf = (bytes) => AXIS_TOP + plot - bytes / most * plot;
		this.yOfSum = yOf;
		this.sumOfY = (y) => (AXIS_TOP + plot - y) / plot * most;
		this.moments = this.peaks.map((peak) => peak < 0 ? -Infinity : this.sums.times[peak]);
		this.drawBytes(context, 0, most, yOf);
		for (let column = 0; column < columns; column++) {
			let sum = 0;
			for (let key = 0; key < this.keys.length && this.peaks[column] >= 0; key++) {
				const bytes = this.sums.sums[key][this.peaks[column]];
				if (bytes === 0)
					continue;
				context.fillStyle = this.colours.get(this.keys[key]);
				context.fillRect(AXIS_LEFT + column, yOf(sum + bytes), 1, yOf(sum) - yOf(sum + bytes));
				sum += bytes;
			}
		}
		this.drawStacked(context, plot / most);
		this.drawTimes(context, height);
	}

	// Draws a line between a block and the one above it.
	drawStacked(context, scale) {
		let lines = 0;
		if (this.stacked) {
			context.fillStyle = this.theme.card;
			stack(this.groups, this.moments, (column, span, base) => {
				if (span.bytes * scale < LEAST_STACKED)
					return;
				context.fillRect(AXIS_LEFT + column, this.yOfSum(base + span.bytes), 1, 0.75);
				lines++;
			});
		}
		this.area.dataset.drawn = lines;
	}

	drawBands() {
		const height = 320, context = this.begun(this.bands, height);
		this.bandHeight = height - AXIS_TOP - AXIS_BOTTOM;
		this.drawn = 0;
		context.save();
		context.beginPath();
		context.rect(AXIS_LEFT, AXIS_TOP, this.plotWidth, this.bandHeight);
		context.clip();
		for (const segment of this.segments.values()) {
			const {x, y, width, height: tall} = this.rectangle(segment, segment.base, segment.bytes);
			context.fillStyle = this.theme.hole;
			context.fillRect(x, y, width, tall);
			context.strokeStyle = this.theme.edge;
			context.strokeRect(x + 0.5, y + 0.5, width - 1, tall - 1);
		}
		const shown = [...this.byKey].map(([key, spans]) => [this.colours.get(key), spans.filter((span) => this.isShown(span))]);
		this.drawn = shown.reduce((count, [, spans]) => count + spans.length, 0);
		if (this.drawn > MOST_RECTANGLES) {
			this.drawDensity(context, shown);
		} else {
			for (const [colour, spans] of shown) {
				context.fillStyle = colour;
				for (const span of spans)
					this.drawSpan(context, span);
			}
		}
		context.restore();
		this.drawBytes(context, this.low, this.high, (address) => this.yOf(address));
		this.drawTimes(context, height);
		this.bands.dataset.drawn = this.drawn;
	}

	isShown(span) {
		return span.from <= this.to && span.to >= this.from && span.address <= this.high && span.address + span.bytes >= this.low;
	}

	drawSpan(context, span) {
		const {x, y, width, height} = this.rectangleOf(span);
		context.fillRect(x, y, Math.max(width > 3 ? width - 0.5 : width, 1), Math.max(height > 3 ? height - 0.5 : height, 1));
	}

	// Draws what part of each pixel is in blocks: where many are smaller than a pixel, rectangles of a pixel would hide all that is free.
	drawDensity(context, shown) {
		const width = Math.ceil(this.plotWidth), height = Math.ceil(this.bandHeight);
		const sums = new Float32Array(width * height * 4); // of red, green, blue, and of the part that is in blocks
		for (const [colour, spans] of shown) {
			const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
			for (const span of spans) {
				const {x, y, width: wide, height: tall} = this.rectangleOf(span);
				const left = Math.max(0, Math.floor(x - AXIS_LEFT)), right = Math.min(width, Math.ceil(x - AXIS_LEFT + wide));
				const top = Math.max(0, y - AXIS_TOP), bottom = Math.min(height, y - AXIS_TOP + tall);
				for (let row = Math.floor(top); row < bottom; row++) {
					const part = Math.min(bottom, row + 1) - Math.max(top, row);
					for (let at = (row * width + left) * 4; at < (row * width + right) * 4; at += 4) {
						sums[at] += part * red;
						sums[at + 1] += part * green;
						sums[at + 2] += part * blue;
						sums[at + 3] += part;
					}
				}
			}
		}
		const image = new ImageData(width, height), picture = document.createElement("canvas");
		for (let at = 0; at < sums.length; at += 4) {
			const part = sums[at + 3];
			for (let i = 0; i < 3 && part > 0; i++)
				image.data[at + i] = sums[at + i] / part;
			image.data[at + 3] = part > 0 ? 40 + 215 * Math.min(1, part) : 0;
		}
		picture.width = width;
		picture.height = height;
		picture.getContext("2d").putImageData(image, 0, 0);
		context.drawImage(picture, AXIS_LEFT, AXIS_TOP);
	}

	rectangle(times, base, bytes) {
		const left = Math.max(times.from, this.from - 1), right = Math.min(times.to, this.to);
		const x = this.xOf(left), y = this.yOf(base + bytes);
		return {x, y, width: this.xOf(right) - x, height: this.yOf(base) - y};
	}

	rectangleOf(span) {
		return this.rectangle(span, span.address, span.bytes);
	}

	drawBrush(context, canvas, height) {
		if (!this.brush || this.brush.canvas !== canvas)
			return;
		const {x0, y0, x1, y1} = this.brush, tall = canvas === this.bands;
		context.strokeStyle = this.theme.accent;
		context.lineWidth = 1;
		context.setLineDash([4, 3]);
		context.strokeRect(Math.min(x0, x1), tall ? Math.min(y0, y1) : AXIS_TOP, Math.abs(x1 - x0),
			tall ? Math.abs(y1 - y0) : height - AXIS_TOP - AXIS_BOTTOM);
		context.setLineDash([]);
	}

	isInside(x, y, canvas) {
		return x >= AXIS_LEFT && x < AXIS_LEFT + this.plotWidth && y >= AXIS_TOP && y < canvas.clientHeight - AXIS_BOTTOM;
	}

	// The span at this point of the bands, of several the one that is drawn last, or null.
	spanAt(x, y) {
		if (!this.isInside(x, y, this.bands))
			return null;
		const slack = (this.to - this.from) / this.plotWidth, time = this.timeAt(x), address = this.addressAt(y);
		const room = (this.high - this.low) / this.bandHeight;
		let nearest = null, least = Infinity;
		for (const span of this.spans) {
			const base = span.address;
			if (span.from > time + slack || span.to < time - slack || base > address + room || base + span.bytes < address - room)
				continue;
			const distance = Math.max(base - address, address - base - span.bytes, 0) / room +
				Math.max(span.from - time, time - span.to, 0) / slack;
			if (distance < least) {
				nearest = span;
				least = distance;
			}
		}
		return nearest;
	}

	// The index of the sums that the column at x of the area shows, or -1.
	sumAt(x, y) {
		if (!this.isInside(x, y, this.area))
			return -1;
		const peak = this.peaks[Math.floor(x - AXIS_LEFT)];
		return peak === undefined ? -1 : peak;
	}

	// The block at this point of the stacks, or null.
	stackedAt(x, y) {
		const at = this.sumAt(x, y);
		return at < 0 ? null : spanInStack(this.groups, this.sums.times[at], this.sumOfY(y));
	}

	finishBrush() {
		const {canvas, x0, y0, x1, y1} = this.brush;
		this.brush = null;
		if (Math.abs(x1 - x0) < 4)
			return false;
		const clamp = (x) => Math.max(AXIS_LEFT, Math.min(AXIS_LEFT + this.plotWidth, x));
		const from = this.timeAt(clamp(Math.min(x0, x1))), to = this.timeAt(clamp(Math.max(x0, x1)));
		if (canvas === this.bands && Math.abs(y1 - y0) >= 8)
			this.zoom(from, to, this.addressAt(Math.max(y0, y1)), this.addressAt(Math.min(y0, y1)));
		else
			this.zoom(from, to);
		return true;
	}
}
