// SPDX-License-Identifier: Apache-2.0
// chart.js - what the canvases share: colours of the style sheet, sizes in pixels of the screen, axes.

function cssColour(name) {
	return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function colourOfKey(key, index) {
	if (key === OTHER_USERS)
		return cssColour("other");
	return cssColour(key === OTHER_JOBS ? "soft" : "c" + index);
}

// Returns a Map of each key's colour.
function colourMap(keys) {
	return new Map(keys.map((key, index) => [key, colourOfKey(key, index)]));
}

// Sizes the canvas and returns its context, in which a unit is a pixel of the style sheet.
function fitCanvas(canvas, width, height) {
	const ratio = window.devicePixelRatio || 1, context = canvas.getContext("2d");
	canvas.style.width = width + "px";
	canvas.style.height = height + "px";
	canvas.width = Math.max(1, Math.round(width * ratio));
	canvas.height = Math.max(1, Math.round(height * ratio));
	context.setTransform(ratio, 0, 0, ratio, 0, 0);
	context.clearRect(0, 0, width, height);
	context.font = '11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
	context.direction = "ltr";
	context.textBaseline = "middle";
	return context;
}

// Draws stripes, over a block that is free as soon as what pins it has passed.
function hatch(context, x, y, width, height, colour) {
	context.save();
	context.beginPath();
	context.rect(x, y, width, height);
	context.clip();
	context.strokeStyle = colour;
	context.lineWidth = 1.5;
	context.beginPath();
	for (let at = x - height - (x % 6); at < x + width; at += 6) {
		context.moveTo(at, y + height);
		context.lineTo(at + height, y);
	}
	context.stroke();
	context.restore();
}

// Returns round values in [from, to], at most `count` of them; of `base` 2 they are powers of two or halves of them.
function ticksOf(from, to, count, base) {
	const ticks = [], rough = (to - from) / count;
	if (!(rough > 0))
		return ticks;
	let step = base === 2 ? 2 ** Math.ceil(Math.log2(rough)) : 10 ** Math.floor(Math.log10(rough));
	if (base !== 2)
		step *= [1, 2, 5, 10].find((factor) => factor * step >= rough);
	for (let at = Math.ceil(from / step) * step; at <= to; at += step)
		ticks.push(at);
	return ticks;
}

function fillLegend(element, keys, colours) {
	element.replaceChildren(...keys.map((key) => {
		const entry = document.createElement("span"), sample = document.createElement("i");
		sample.style.background = colours.get(key);
		entry.append(sample, key);
		return entry;
	}));
}
