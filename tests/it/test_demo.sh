#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The demo, end to end and small: the sharded training equals the unsharded one bit for bit, a rank's death ends the run,
# and neither charlm nor the demo's script leaves anything behind, however it ends.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}"
bin=$BUILD/bin
make_dir demo

daemon_is_empty() { # no session but the one that asks, no job, no buffer
	local rows
	rows=$("$bin/zeroctl" --socket "$socket" buffers --json && "$bin/zeroctl" --socket "$socket" jobs --json) || return 1
	! grep -q '"job"\|"name"' <<<"$rows"
}

start_daemon --backend host --devices 2 --arena 64M
report $? "a daemon starts"

"$bin/charlm" --check-gradients >"$dir/out" 2>&1
report $? "backpropagation agrees with numerical derivatives"

# Three ranks on two devices, and a mean over a number of micro-steps that float32 cannot divide by exactly.
"$bin/charlm" --socket "$socket" --ranks 3 --accum 3 --steps 5 --batch 4 --compare --json --zeroctl "$bin/zeroctl" \
	>"$dir/out" 2>"$dir/err"
status=$?
cat "$dir/out" "$dir/err"
report $status "three ranks train"
grep -q '"same_losses": true, "same_parameters": true' "$dir/out"
report $? "losses and parameters equal the unsharded run's bit for bit"
grep -q 'hidden1.*forward' "$dir/err" && grep -q 'hidden3.*forward' "$dir/err"
report $? "the snapshot shows layers that are held"
within 30 daemon_is_empty
report $? "the run leaves nothing in the daemon"

"$bin/hello_gather" "$socket" >"$dir/out" 2>&1 && [ "$(grep -c 'sees 0 to 127$' "$dir/out")" -eq 2 ]
report $? "hello_gather gathers on both ranks"
"$bin/fallback" "$socket" >"$dir/out" 2>&1 && grep -q 'claim holds .* at the same place' "$dir/out" &&
	grep -q 'after the backward: 0 bytes' "$dir/out"
report $? "fallback finds in backward what it gathered in forward"

"$bin/charlm" --socket "$dir/nothing.sock" --steps 1 >"$dir/out" 2>&1
[ $? -eq 25 ] && grep -q 'CONNECT' "$dir/out"
report $? "without a daemon charlm says so"

printf x >"$dir/one byte"
"$bin/charlm" --socket "$socket" --steps 1 --text "$dir/one byte" >"$dir/out" 2>&1
[ $? -eq 2 ] && grep -q 'one byte: too short to train on, 1 of at least' "$dir/out"
report $? "a text that is too short is named"

"$bin/charlm" --socket "$dir/nothing.sock" --steps 1 --svg "$dir/no folder/a.svg" >"$dir/out" 2>&1
[ $? -eq 2 ] && grep -q 'no folder/a.svg: No such file' "$dir/out"
report $? "a picture that cannot be written is named before the training"

# Ranks 0 and 2 share a device: it has the shards of both.
"$bin/charlm" --socket "$socket" --ranks 3 --steps 3 --batch 2 --svg "$dir/a.svg" >"$dir/out" 2>&1
status=$?
cat "$dir/out"
[ $status -eq 0 ] && python3 - "$dir/a.svg" <<'EOF'
import sys, xml.etree.ElementTree as tree
curves = [node.get("points").split() for node in tree.parse(sys.argv[1]).iter("{http://www.w3.org/2000/svg}polyline")]
sys.exit([len(points) for points in curves] != [3, 3])
EOF
report $? "the picture has a point of loss and of memory for each step"
grep -q 'writes before  *[^ ]' "$dir/out" && grep -q 'writes after  *[^ ]' "$dir/out"
report $? "the model writes text before and after"
shards() { sed -n "s/.*rank $1 .*\[\(P*\)A.*/\1/p" "$dir/out"; }
[ "$(shards 0)" = PPPPPPP ] && [ "$(shards 1)" = PPPP ] && [ "$(shards 2)" = PPPPPPP ]
report $? "a bar for each rank's device has all shards of the device"

# One byte, over and over, is learnt before the first step: losses are 0.
printf '%500s' '' >"$dir/blanks"
"$bin/charlm" --socket "$socket" --steps 2 --batch 2 --compare --text "$dir/blanks" >"$dir/out" 2>&1
report $? "losses of 0 are equal"

# A rank is killed in the middle of the training.
"$bin/charlm" --socket "$socket" --steps 100000 --batch 1 --ranks 2 >"$dir/out" 2>"$dir/err" &
charlm=$!
rank_pid() { "$bin/zeroctl" --socket "$socket" sessions --raw --no-headings --columns name,pid,job | awk '$1 == "charlm.1" && $3 != "-" {print $2}' | grep .; }
within 30 rank_pid
kill -KILL "$(rank_pid)"
wait $charlm
status=$?
cat "$dir/err"
[ $status -ne 0 ] && grep -q 'was ended by signal 9' "$dir/err"
report $? "a rank's death ends the run and is named"
within 30 daemon_is_empty
report $? "and leaves nothing in the daemon"

stop_daemon
report $? "the daemon ends in order"
export TMPDIR=$dir/tmp # of the script: has to be empty again when it has ended
mkdir "$TMPDIR"

client/examples/demo.sh "$BUILD" --steps 4 --batch 4 >"$dir/out" 2>&1
status=$?
cat "$dir/out"
[ $status -eq 0 ] && grep -q 'equal to unsharded  *yes, bit for bit' "$dir/out" && [ -z "$(ls -A "$TMPDIR")" ]
report $? "the demo's script runs and leaves nothing behind"

long=$dir/$(printf '%0100d' 0) # too long for a socket's path
mkdir "$long"
TMPDIR=$long client/examples/demo.sh "$BUILD" --steps 2 --batch 2 >"$dir/out" 2>&1 && [ -z "$(ls -A "$long")" ]
report $? "the demo's script runs where TMPDIR is long"

client/examples/demo.sh "$BUILD" --steps 100000 --batch 1 >"$dir/out" 2>&1 &
demo=$!
training() { grep -q 'zerod runs on' "$dir/out"; }
within 30 training
kill -TERM $demo
wait $demo
status=$?
left=$(ls -A "$TMPDIR")
[ $status -eq 143 ] && [ -z "$left" ]
report $? "interrupted, it leaves nothing behind either (status $status${left:+, left: $left})"

finish
