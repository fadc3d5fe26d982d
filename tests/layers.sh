#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No layer includes upward. Prints each breach; exits 1 if there is one.
cd "$(dirname "$0")/.." || exit 2
bad=0

# folder, extended regular expression of what may not stand between the quotes or angle brackets, why
deny() {
	if grep -rnE "^[[:space:]]*#[[:space:]]*include[[:space:]]*($2)" --include='*.[ch]' "$1" 2>/dev/null; then
		echo "layers: $1 $3" >&2
		bad=1
	fi
}

deny include '"' 'includes nothing of the project'
deny common/base '"(common/)?driver/|"(daemon/)?(core|executor|server|main)/|"(proto|client)/' 'is the lowest layer'
deny common/driver '"(daemon/)?(core|executor|server|main)/|"(proto|client)/' 'knows only base'
deny proto '"(common/)?driver/|"(daemon/)?(core|executor|server|main)/|"client/' 'knows only base'
deny daemon/core '"(common/)?driver/|"(daemon/)?(executor|server|main)/|"client/|"proto/(zerod\.pb|frame)' 'knows only base and the limits'
# Each room of the core includes itself and the rooms below it, in the order of the Makefile.
above=
for room in $(sed -n 's/^CORE_ROOMS *:= *//p' Makefile); do
	[ -z "$above" ] || deny "daemon/core/$room" "\"core/($above)/" 'is below the rooms that it includes'
	above=${above:+$above|}$room
done
# <sys/queue.h> is lists and nothing else.
deny daemon/core '<(uv|time|pthread|threads|unistd|fcntl|poll|signal|syslog)\.h|<(sys/[^q]|linux/|systemd/|protobuf-c/)' 'is pure'
deny daemon/executor '"(daemon/)?(server|main)/|"client/' 'knows only core, driver and base'
deny daemon/server '"(daemon/)?main/|"client/' 'is below the daemon itself'
deny client '"(daemon/)?(core|executor|server|main)/' 'knows only include, proto, driver and base'
# A path that climbs would go round all of the above.
for folder in include common proto daemon client; do
	deny $folder '"([^"]*/)?\.\./' 'names headers from the root'
done

# Only these files may use the driver's interface; no file includes the driver's own headers.
if grep -rnE 'include *([<"](cuda|nccl|nvml)[a-z_]*\.h|"(common/)?driver/)' --include='*.[ch]' common daemon client 2>/dev/null |
	grep -vE '^(common/driver/[a-z_]*\.[ch]:[0-9]+:#include "driver/|(daemon/executor/(cuda|nccl)|client|client/zerobench)/cuda_)'; then
	echo 'layers: only files named cuda_* of executor and client name the driver, and none its headers' >&2
	bad=1
fi
exit $bad
