#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# systemd-analyze's figure for zerod.service: 1.6 at most, and every test that the unit fails is one that the unit's comment explains.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
unit=packaging/systemd/zerod.service
most=16 # tenths
why=

if ! command -v systemd-analyze >/dev/null; then
	why='there is no systemd-analyze'
elif ! systemd-analyze --help | grep -q -- --threshold; then
	why='systemd-analyze is older than 250'
fi
if [ -n "$why" ]; then
	skipped "the exposure is at most 1.6" "$why"
	skipped "the unit says why it leaves the rest" "$why"
	finish
	exit
fi

table=$(systemd-analyze security --offline=true --no-pager --threshold=$most "$unit")
report $? "the exposure is at most 1.6"
printf '%s\n' "$table" | sed -n '/^✗/s/  \+/  /gp; $p'

unexplained=$(printf '%s\n' "$table" | sed -nE 's/^✗ ([A-Za-z]+=).*/\1/p' | sort -u | while read -r key; do
	grep -q "^# - .*$key" "$unit" || echo "$key"
done)
[ -z "$unexplained" ]
report $? "the unit says why it leaves the rest${unexplained:+, but not of $unexplained}"
finish
