#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Packages run this after they have replaced the daemon's program. It restarts the service if that loses nothing: there is no job, or all
# jobs are durable and systemd's descriptor store has their memory (docs/restarts.md). Otherwise the former daemon goes on, and a notice
# names the command. It only ever restarts the unit, because systemd empties the store between a stop and a start.
set -eu

keep() { # reason
	echo "zerod: the daemon of the former version goes on: $1."
	echo "zerod: To start the new version: systemctl restart zerod"
	exit 0
}

[ -d /run/systemd/system ] || exit 0
systemctl --system daemon-reload || true
# A daemon that is not active has no jobs; its next start is of the new version.
systemctl --quiet is-active zerod.service || exit 0
user=$(systemctl show --property User --value zerod.service)
zerod --check-config >/dev/null 2>&1 || keep "the new version rejects its configuration (zerod --check-config)"
# The daemon's own user is an administrator in every configuration, and sees all jobs.
jobs=$(setpriv --reuid="$user" --regid="$user" --clear-groups timeout 30 zeroctl --socket /run/zerod/zerod.sock jobs --json 2>&1) ||
	keep "it did not list its jobs ($(echo "$jobs" | head -n 1))"
if echo "$jobs" | grep -q '^ *"durable": false'; then
	keep "jobs run that are not durable, and would end with it"
fi
if echo "$jobs" | grep -q '^ *"durable": true'; then
	stored=$(systemctl show --property NFileDescriptorStore --value zerod.service)
	[ "${stored:-0}" -gt 0 ] || keep "systemd does not keep the memory of its durable jobs (keep_state), which would end with it"
fi
# Debian's wrapper heeds policy-rc.d.
if command -v deb-systemd-invoke >/dev/null; then
	deb-systemd-invoke restart zerod.service || true
else
	systemctl restart zerod.service || true
fi
