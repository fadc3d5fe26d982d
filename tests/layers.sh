#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No layer includes upward. Prints each breach; exits 1 if there is one.
cd "$(dirname "$0")/.." || exit 2
bad=0

# folder, extended regular expression of what may not stand between the quotes or angle brackets, why, file to which
# this does not apply
deny() {
	if grep -rnE "^[[:space:]]*#[[:space:]]*include[[:space:]]*($2)" --include='*.[ch]' --exclude="${4:-}" "$1" 2>/dev/null; then
		echo "layers: $1 $3" >&2
		bad=1
	fi
}

daemon='"(daemon/)?(core|executor|server|main)/'
driver='"(common/)?driver/'
packing='"proto/([^lz]|l[^i]|li[^m]|z[^e])' # the same, but for limits.h and zerod.pb-c.h
nccl='"(daemon/)?executor/nccl/'
cuda='"(daemon/)?executor/cuda/'
host='"(daemon/)?executor/host/'
packets='"proto/([^l]|l[^i]|li[^m])' # all of proto but limits.h

deny include '"' 'includes nothing of the project'
deny common/base "$driver|$daemon|\"(proto|client)/" 'is the lowest layer'
deny common/driver "$daemon|\"(proto|client)/" 'knows only base'
deny proto "$driver|$daemon|\"client/" 'knows only base'
deny client "$daemon" 'knows only include, proto, driver and base'

# Each room of the library includes itself and the rooms below it, in the order of the Makefile, and calls no function that an upper room
# defines, whatever declares it.
above=
for room in $(sed -n 's/^CLIENT_ROOMS *:= *//p' Makefile); do
	if [ -n "$above" ]; then
		deny "client/lib/$room" "\"client/(lib/($above)/|zero)" 'is below the rooms that it includes'
		if grep -nE "\b($upper)\(" client/lib/"$room"/*.[ch] | grep -vE '^[^:]*:[0-9]+:[[:space:]]*/?\*' | sed 's@/\*.*@@; s@"[^"]*"@@g' |
			grep -E "\b($upper)\("; then
			echo "layers: client/lib/$room calls functions of the rooms above" >&2
			bad=1
		fi
	fi
	above=${above:+$above|}$room
	upper=${upper:+$upper|}$(sed -nE '/^(static|\/\*|#)/d; s/^[a-z][^(]*\b((zc|zerod)_[a-z0-9_]+)\(.*/\1/p' client/lib/"$room"/*.c | paste -sd '|')
done

# The daemon: core, executor, server, main, from below.
# Messages are structures to it: it calls nothing of protobuf-c.
deny daemon/core "$driver|\"(daemon/)?(executor|server|main)/|\"client/|$packing" \
	'knows only base, proto/limits.h and the messages of proto/zerod.pb-c.h'
# Each room of the core includes itself and the rooms below it, in the order of the Makefile.
above=
for room in $(sed -n 's/^CORE_ROOMS *:= *//p' Makefile); do
	[ -z "$above" ] || deny "daemon/core/$room" "\"core/($above)/" 'is below the rooms that it includes'
	above=${above:+$above|}$room
done
# <sys/queue.h> is lists and nothing else.
deny daemon/core '<(uv|time|pthread|threads|unistd|fcntl|poll|signal|syslog)\.h|<(sys/[^q]|linux/|systemd/|protobuf-c/)' 'is pure'
deny daemon/executor "\"(daemon/)?(server|main)/|\"client/|$packets|<(uv|systemd/|protobuf-c/)" \
	'knows only core, driver, base and proto/limits.h'
deny daemon/server "$driver|$host|$cuda|$nccl|\"(daemon/)?main/|\"client/" \
	'knows of the executors only what they share, and nothing of main'
for folder in executor server main; do
	deny daemon/$folder '"(daemon/)?core/[a-z_]+/' 'knows the interface of the core, and none of its rooms'
done
deny daemon/main "$driver|\"client/" 'knows no driver'

# The executor: what is shared, then host, then cuda, then nccl.
for file in daemon/executor/*.[ch]; do
	deny "$file" "$host|$cuda|$nccl|$driver" 'is shared by the executors and knows none of them'
done
deny daemon/executor/host "$cuda|$nccl|$driver" 'knows no GPU'
deny daemon/executor/cuda "$nccl" 'knows nothing of nccl, but in cuda_backend.c, which connects them' cuda_backend.c
deny daemon/executor/cuda '"(daemon/)?executor/host/host\.' 'has only threads, memory and sums of the CPU from host'
deny daemon/executor/nccl "$host" 'knows nothing of host'

# A path that climbs would go round all of the above.
for folder in include common proto daemon client; do
	deny $folder '"([^"]*/)?\.\./' 'names headers from the root'
done

# Only these files may use the driver's interface; no file includes the driver's own headers.
if grep -rnE 'include *([<"](cuda|nccl|nvml)[a-z_]*\.h|"(common/)?driver/)' --include='*.[ch]' common daemon client 2>/dev/null |
	grep -vE '^(common/driver/[a-z_]*\.[ch]:[0-9]+:#include "driver/|(daemon/executor/(cuda|nccl)|client/lib/[a-z]+|client/zeroctl|client/zerobench)/cuda_)'; then
	echo 'layers: only executor/cuda, executor/nccl and the files cuda_* of client name the driver, and none its headers' >&2
	bad=1
fi
exit $bad
