#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/tidy.sh GEN FILE: clang-tidy on one file, with the configuration in .clang-tidy; says nothing when it is clean.
# Two thirds of the time would go into what the static analyzer finds beyond these nodes of a function's graph. TIDY_NODES=225000 is its default.
out=$(clang-tidy --quiet "$2" -- -std=gnu11 -D_GNU_SOURCE -Iinclude -I. -Icommon -Idaemon -I"$1" \
	-DZEROD_VERSION_TEXT='"tidy"' -Xclang -analyzer-config -Xclang "max-nodes=${TIDY_NODES:-60000}" 2>/dev/null)
status=$?
[ -n "$out" ] && printf '%s\n' "$out"
exit $status
