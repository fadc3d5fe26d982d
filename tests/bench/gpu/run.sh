#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/bench/gpu/run.sh [FOLDER] [SECONDS]: runs every measuring program in turn, the stress of visibility for SECONDS
# in each of its main settings. One that fails is named, and the others still run.
set -u
cd "$(dirname "$0")/../../.." || exit 2
bin=${1:-build/gpu}
seconds=${2:-60}
failed=0

measure() {
	echo "== $*"
	"$bin/$@" || { echo "FAILED: $*"; failed=1; }
}

nvidia-smi --query-gpu=name,driver_version,persistence_mode,compute_mode --format=csv,noheader
measure gpu_lifetime
measure gpu_listed
measure gpu_queues
measure gpu_visible watch swapped 4 2
measure gpu_visible wait swapped 4 2
measure gpu_visible watch fenced 256 $((seconds / 6))
measure gpu_visible wait fenced 256 $((seconds / 6))
measure gpu_visible watch fenced 4 "$seconds"
measure gpu_visible wait fenced 4 "$seconds"
exit $failed
