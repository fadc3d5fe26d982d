#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/run.sh itself: what it counts, and that nothing which fails or dies is lost.
set -u
cd "$(dirname "$0")/../.." || exit 2
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
. tests/it/tap.sh
program() { # name; its text follows
	{ echo '#!/bin/bash'; cat; } >"$dir/$1"
	chmod +x "$dir/$1"
}
runs() { # the last line that is expected, its exit status, commands...
	local last=$1 status=$2
	shift 2
	WRAP='' BUILD=$dir/build tests/run.sh "$@" >"$dir/out" 2>&1
	[ $? -eq "$status" ] && [ "$(tail -n 1 "$dir/out")" = "$last" ] && return
	sed 's/^/# /' "$dir/out"
	return 1
}
export JOBS=3

program well <<<'echo "ok 1 - a"; echo "ok 2 - b"; echo "ok 3 - c # SKIP none"; echo 1..3'
program badly <<<'echo "ok 1 - a"; echo "not ok 2 - b"; exit 1'
program short <<<'echo 1..3; echo "ok 1 - a"'
program crash <<<'echo "ok 1 - a"; kill -SEGV $$'
# Its parent is timeout, whose parent is the shell that would have counted it.
# shellcheck disable=SC2016 # that program's own
program fell <<<'read -r _ _ _ shell _ </proc/$PPID/stat; kill -KILL "$shell"'

runs "3 passed, 0 failed, 1 skipped" 0 "$dir/well" true
report $? "tests that pass, and those that are skipped"
runs "6 passed, 4 failed, 1 skipped" 1 "$dir/badly" "$dir/short" "$dir/crash" "$dir/well" true
report $? "tests that fail, that do not come, and a crash behind them"
runs "3 passed, 1 failed, 1 skipped" 1 "$dir/fell" "$dir/well" true
report $? "a shell that dies before it has counted, and those behind it"
# shellcheck disable=SC2016 # those programs' own
program leaves <<<'echo "ok 1 - a"; mkdir "$TMPDIR/folder"'
program made <<<"echo ok 1 - a; touch $dir/file; echo $dir/file >>\$ZEROD_TEST_MADE"
runs "4 passed, 2 failed, 1 skipped" 1 "$dir/leaves" "$dir/made" "$dir/well" && grep -q '/folder$' "$dir/out" && [ ! -e "$dir/file" ]
report $? "files that tests leave behind"
JOBS=none runs "tests/run.sh: JOBS=none is no number" 2 true
report $? "JOBS that is no number is refused"
finish
