#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/bench.sh [FOLDER] [OPTION...]: zerobench's gathers on this machine's GPUs, beside NCCL and plain pushes: idle, beside
# large and small matrix products, and one rank alone; idle and beside large products against NCCL's copy engines; reductions and a
# backward's worth of them, idle and beside large products; then what zerod promises for it. OPTIONs go to every zerobench. FOLDER is
# what make built, or a bundle; without it, the bundle that this script lies in, else build. Exits 1 when a promise is missed.
set -u
cd "$(dirname "$0")/../.." || exit 2
folder=$([ -x bin/zerobench ] && echo . || echo build)
if [ $# -gt 0 ] && [ -d "$1" ]; then
	folder=$1
	shift
fi
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
failed=0
set -o pipefail

bench() {
	echo "== zerobench --backend cuda $*"
	timeout 300 "$folder/bin/zerobench" --backend cuda "$@" | tee -a "$lines" || failed=1
	echo
}

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,compute_mode --format=csv,noheader
bench "$@"
bench --load gemm:8192 "$@"
bench --load gemm:2048 "$@"
bench --peer nccl-ce "$@"
bench --peer nccl-ce --load gemm:8192 -b 8M -e 64M -f 8 "$@"
bench --alone -b 1M -e 64M -f 8 "$@"
bench --op reduce_scatter -d bfloat16 --backward 16G "$@"
bench --op reduce_scatter -d bfloat16 --backward 16G --load gemm:8192 -b 64M "$@"

echo '== promised and measured'
printf '%-44s %10s  %-15s\n' figure measured promised
sed -n 's/^# target: //p' "$lines"
grep -q '^# target: .*MISSED$' "$lines" && failed=1
exit $failed
