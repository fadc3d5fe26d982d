#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests/python/$1, or a module by -m, with an interpreter that has numpy: $PYTHON, python3, or the distribution's.
set -u
cd "$(dirname "$0")/../.." || exit 2
for python in ${PYTHON:+"$PYTHON"} python3 /usr/bin/python3; do
	if "$python" -c 'import numpy' 2>/dev/null; then
		[ "$1" = -m ] || set -- tests/python/"$1" "${@:2}"
		exec "$python" "$@"
	fi
done
echo 'Bail out! no python3 with numpy: install python3-numpy, or set PYTHON'
exit 1
