#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fails when a line of the FILES is longer than clang-format's limit, which does not reach into comments.
limit=$(sed -n 's/^ColumnLimit: //p' .clang-format)
bad=0
for file; do
	if expand "$file" | LC_ALL=C.UTF-8 grep -nE "^.{$limit}."; then
		echo "$file: longer than $limit columns" >&2
		bad=1
	fi
done
exit $bad
