#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""zeroctl's snapshot in a Chromium without a window: what is drawn, what the pointer shows, and that no script fails. Prints TAP.

Usage: check_page.py PAGE MAP RUNNING [FOLDER]. PAGE is of a daemon whose blocks are those of MAP, `zeroctl map --json`; RUNNING is of the
daemon while a job runs; pictures are left in FOLDER.
"""
import json
import os
import sys
import tempfile
import traceback

import chromium
import fixture

EVIL = "</script><img src=x onerror=\"document.title='broken'\">'\\u202eb"
SMALL_TEXT_CONTRAST = 4.5  # of WCAG 2, AA
# How many pairs of blocks are at one address at one time.
OVERLAPS = """(() => {
	const spans = [...page.spans].sort((a, b) => a.segment - b.segment || a.offset - b.offset);
	let count = 0;
	for (let i = 0; i < spans.length; i++)
		for (let j = i + 1; j < spans.length && spans[j].segment === spans[i].segment && spans[j].offset < spans[i].offset + spans[i].bytes; j++)
			count += spans[j].from < spans[i].to && spans[i].from < spans[j].to;
	return count;
})()"""
CONTRAST = """((a, b) => {
	const light = (text) => {
		const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((n) => n / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
	return (high + 0.05) / (low + 0.05);
})"""


class Checks:
    def __init__(self, page, html, snapshot, blocks, running, folder):
        self.page, self.html, self.snapshot, self.blocks, self.running, self.folder = page, html, snapshot, blocks, running, folder

    def load(self, snapshot, dark=False, **size):
        path = os.path.join(self.folder, "fixture.html")
        with open(path, "wb") as file:
            file.write(fixture.with_data(self.html, snapshot) if snapshot else self.html)
        self.page.open(path, dark, **size)

    def keep(self, name):
        self.page.screenshot(os.path.join(self.folder, name + ".png"))

    def drawn(self, canvas):
        return int(self.page.value(f"byId('{canvas}').dataset.drawn") or 0)

    def pixel(self, canvas, x, y):
        return tuple(self.page.value(f"[...byId('{canvas}').getContext('2d').getImageData({int(x)}, {int(y)}, 1, 1).data]"))

    def colour(self, name):
        text = self.page.value(f"cssColour('{name}')")
        return (*bytes.fromhex(text[1:]), 255)

    def point(self, canvas, x, y):
        left, top = self.page.value(f"(() => {{byId('{canvas}').scrollIntoView({{block: 'center'}}); "
                                    f"const r = byId('{canvas}').getBoundingClientRect(); return [r.x, r.y];}})()")
        return left + x, top + y

    def detail(self):
        return dict(self.page.value("[...document.querySelectorAll('#detail dt')].map((t) => [t.textContent, t.nextSibling.textContent])"))

    # ---- Tests ----------------------------------------------------------------------------------------------

    def test_every_block_of_the_daemon_is_drawn(self):
        self.load(None)
        for device in {block["device"] for block in self.blocks}:
            blocks = [block for block in self.blocks if block["device"] == device]
            self.page.value(f"chooseDevice({device})")
            self.keep(f"daemon-{device}")
            # Blocks of two lines count twice, and lines that are scrolled out of view are not drawn.
            lines = [line["y"] for block in blocks for line in self.page.value(f"mapView.rectanglesOf({json.dumps(block)})")]
            assert len(lines) >= len(blocks) > 0, (lines, len(blocks))
            end = self.page.value("mapView.box.scrollTop + mapView.shownHeight")
            assert self.drawn("map") == sum(y <= end for y in lines), (self.drawn("map"), lines, end)
            assert self.drawn("bands") >= len(blocks)
        assert self.page.value("document.querySelectorAll('#holders tbody tr').length") > 0

    def test_the_history_of_a_running_job_is_consistent(self):
        self.page.open(self.running)
        for device in self.page.value("snapshot.devices.map((d) => d.index)"):
            self.page.value(f"chooseDevice({device})")
            assert self.page.value("page.spans.length") > 0
            assert self.page.value(OVERLAPS) == 0
            assert self.page.value("Math.min(...historyView.sums.totals)") >= 0

    def test_a_known_block_is_where_it_is(self):
        self.load(fixture.make(self.snapshot, 10))
        block = self.page.value("page.blocks.find((b) => b.purpose === 'gathered' && b.state === 'AVAILABLE')")
        assert block["kind"] == "block"
        rectangle = self.page.value(f"mapView.rectanglesOf({json.dumps(block)})[0]")
        at = rectangle["x"] + rectangle["width"] - 3, rectangle["y"] + 2
        gathered = self.colour("c%d" % self.page.value("PURPOSES.indexOf('gathered')"))
        assert self.pixel("map", *at) == gathered, (self.pixel("map", *at), gathered)
        self.page.click(*self.point("map", *at))
        detail = self.detail()
        assert detail["Bytes"].endswith(f"({block['bytes']})") and detail["Job"] == block["job"], detail
        assert detail["Owner"] == f"{block['job']}/world/{block['name']}@0" and detail["Session"].startswith("10 (pid 4000")
        assert "Given" in detail
        assert self.page.value("!byId('tip').hidden")

    def test_bands_and_area_are_drawn_and_zoom(self):
        self.load(fixture.make(self.snapshot, 300))
        whole = self.page.value("[historyView.from, historyView.to]")
        x, y = self.point("bands", 300, 100)
        self.page.drag(x, y, x + 200, y + 100)
        part = self.page.value("[historyView.from, historyView.to, historyView.low, historyView.high]")
        assert whole[0] < part[0] < part[1] < whole[1] and part[2] > 0, (whole, part)
        assert self.drawn("bands") > 0
        self.page.value("byId('time-all').click()")
        assert self.page.value("[historyView.from, historyView.to]") == [self.page.value("historyView.begin"), self.page.value("historyView.now")]
        span = self.page.value("(() => {const s = page.spans.find((s) => s.bytes > 2e7 && !s.open); const r = historyView.rectangleOf(s); "
                               "return [r.x + r.width / 2, r.y + r.height / 2, s.bytes];})()")
        self.page.click(*self.point("bands", *span[:2]))
        assert self.detail()["Bytes"].endswith(f"({span[2]})"), (self.detail(), span)
        self.page.move(*self.point("area", 500, 150))
        assert "in blocks" in self.page.value("byId('tip').textContent")

    def test_blocks_are_stacked_and_chosen(self):
        self.load(fixture.make(self.snapshot, 40))
        assert self.drawn("area") > 0
        # Of the largest block the middle one of the columns that have it.
        x, low, high, size = self.page.value(
            "(() => {const s = page.spans.reduce((a, b) => b.bytes > a.bytes ? b : a); choose(s); const p = historyView.chosen.parts; "
            "return [...p[Math.floor(p.length / 2)], s.bytes];})()")
        assert low - high > 6 and self.pixel("area", x, high) == self.colour("select"), (low, high)
        self.page.value("choose(null)")
        self.page.move(*self.point("area", x + 0.5, (low + high) / 2))
        assert self.page.value("byId('tip').firstChild.textContent").endswith(", " + self.page.value(f"bytesText({size})"))
        self.page.click(*self.point("area", x + 0.5, (low + high) / 2))
        assert self.detail()["Bytes"].endswith(f"({size})"), (self.detail(), size)

    def test_names_do_no_harm(self):
        made = fixture.make(self.snapshot, 10)
        for row in made["map"] + made["events"]["rows"]:
            for key in ("job", "name", "group"):
                if row.get(key):
                    row[key] = EVIL
        made["sessions"][0]["name"] = made["node"] = EVIL
        made["sessions"][0]["waits"] = ["gather: " + EVIL]
        self.load(made)
        self.page.value("choose(page.blocks[0])")
        assert self.page.value("document.images.length") == 0
        assert self.page.value("document.title").startswith("zerod snapshot of </script>")
        assert self.detail()["Name"] == EVIL

    def test_no_block_is_said(self):
        self.load(fixture.make(self.snapshot, 0))
        self.keep("none-light")
        text = self.page.value("document.querySelector('main').innerText")
        assert text.count("no live buffers") == 2 and "no request waits" in text, text
        self.load({**fixture.make(self.snapshot, 0), "devices": []})

    def test_tables_sort(self):
        self.load(fixture.make(self.snapshot, 40))
        totals = "holdersOf(snapshot, sessionOf).map((r) => r.total).sort((a, b) => b - a).map(bytesText)"
        shown = "[...document.querySelectorAll('#holders tbody tr')].map((r) => r.lastChild.textContent)"
        assert self.page.value(shown) == self.page.value(totals)
        self.page.value("[...document.querySelectorAll('#holders th button')].pop().click()")
        assert self.page.value(shown) == self.page.value(totals)[::-1]
        assert self.page.value("document.querySelectorAll('#waits tbody tr').length") == 3

    def test_keys_choose_blocks(self):
        self.load(fixture.make(self.snapshot, 40))
        self.page.value("byId('map').focus()")
        for _ in range(2):
            self.page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
        assert self.page.value("mapView.selected === page.segments[0].blocks[1]")

    def test_colours_by_job(self):
        self.load(fixture.make(self.snapshot, 40))
        self.page.value("(() => {byId('colour').value = 'job'; byId('colour').dispatchEvent(new Event('change'));})()")
        assert "llama-70b" in self.page.value("document.querySelector('[data-legend]').textContent")

    def test_dark_and_light_are_legible(self):
        for dark in (False, True):
            self.load(fixture.make(self.snapshot, 10), dark)
            self.keep("ten-" + ("dark" if dark else "light"))
            for selector in ("dd", "dt", ".note", "td", "th", "h2"):
                contrast = self.page.value(f"{CONTRAST}(getComputedStyle(document.querySelector('{selector}')).color, "
                                           f"getComputedStyle(document.querySelector('section')).backgroundColor)")
                assert contrast >= SMALL_TEXT_CONTRAST, (dark, selector, contrast)

    def test_many_blocks(self):
        self.load(fixture.make(self.snapshot, 100000), True)
        self.keep("many-dark")
        assert self.drawn("map") >= 100000 and self.drawn("bands") >= 100000 and not self.page.value("historyView.stacked")
        assert self.page.value("document.querySelectorAll('*').length") < 1000
        self.page.value("scaleMap(0.25)")
        assert 0 < self.drawn("map") <= 100100
        self.page.value("historyView.zoom(historyView.from, (historyView.from + historyView.to) / 2, 0, historyView.end / 50)")
        assert self.drawn("bands") > 0


def main():
    with open(sys.argv[1], "rb") as file:
        html = file.read()
    with open(sys.argv[2], encoding="utf-8") as file:
        blocks = [row for row in json.load(file)["rows"] if row["kind"] == "block"]
    failures = 0
    with tempfile.TemporaryDirectory() as own, chromium.Page(chromium.find()) as page:
        checks = Checks(page, html, json.loads(fixture.data_of(html)), blocks, sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else own)
        tests = [name for name in dir(checks) if name.startswith("test_")]
        for number, name in enumerate(tests, 1):
            page.errors.clear()
            try:
                getattr(checks, name)()
                assert not page.errors, page.errors
                print(f"ok {number} - {name[5:].replace('_', ' ')}")
            except (AssertionError, RuntimeError, KeyError, IndexError):
                failures += 1
                print(f"not ok {number} - {name[5:].replace('_', ' ')}")
                print(traceback.format_exc().replace("\n", "\n# "))
    print(f"1..{len(tests)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
