#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The page that zeroctl snapshot writes: its model by node, and the page of a daemon with a training job in Chromium. Both are skipped where
# the programs are missing; with --need they are failures. CHROMIUM names another program, PICTURES a folder for screenshots.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}" "${PYTHON:=python3}"
bin=$BUILD/bin
need=${1:-}
missing() { # what is not tested, program, Debian's package
	if [ "$need" = --need ]; then
		report 1 "$1: there is no $2; Debian's package is $3"
	else
		skipped "$1" "there is no $2"
	fi
}
# Prints the lines of a TAP stream under numbers of this script.
include() {
	local line
	while IFS= read -r line; do
		case $line in
		'ok '*) report 0 "${line#* - }" ;;
		'not ok '*) report 1 "${line#* - }" ;;
		1..*) ;;
		*) echo "# $line" ;;
		esac
	done
}
if command -v node >/dev/null; then
	include < <(node tests/page/test_model.js 2>&1 || echo "not ok 1 - all tests of the model were well")
else
	missing "the page's model" node nodejs
fi
cd tests/page && chromium=$("$PYTHON" -c 'import chromium; print(chromium.find() or "")')
cd ../.. || exit 2
if [ -z "$chromium" ]; then
	missing 'the page in a browser' Chromium chromium
	finish
	exit
fi

dir=$(mktemp -d "${TMPDIR:-/tmp}/zerod-test-page.XXXXXX")
daemon='' trainer=''
stand_still() { kill -STOP $(children_of "$trainer") "$trainer"; }
go_on() { kill -CONT $(children_of "$trainer") "$trainer"; }
cleanup() {
	[ -n "$trainer" ] && go_on && kill "$trainer" 2>/dev/null && wait "$trainer" 2>/dev/null
	[ -n "$daemon" ] && kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP
ctl() { "$bin/zeroctl" --socket "$dir/zerod.sock" "$@"; }
published() { ctl buffers --raw --no-headings --columns version | grep -qE '^([2-9]|..)'; }

"$bin/zerod" --foreground --backend host --devices 2 --arena 64M --socket "$dir/zerod.sock" >"$dir/zerod.log" 2>&1 &
daemon=$!
within 30 ctl status
"$bin/zerobench" --socket "$dir/zerod.sock" --op step --ranks 2 --units 4 --maxbytes 64K --iters 1000000 >"$dir/trainer.log" 2>&1 &
trainer=$!
within 60 published
report $? 'a job trains'
ctl snapshot -o "$dir/running.html"
report $? 'a page is written meanwhile'
# While the job stands still its memory does not change.
stand_still
same() { ctl map --json >"$dir/map" && ctl snapshot -o "$dir/page.html" && ctl map --json | cmp - "$dir/map"; }
within 30 same
report $? 'a page and a map are written while it stands still'
include < <("$PYTHON" tests/page/check_page.py "$dir/page.html" "$dir/map" "$dir/running.html" ${PICTURES:+"$PICTURES"} 2>&1 || echo "not ok 1 - all checks of the page were well")
finish
