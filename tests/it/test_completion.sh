#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Completion of zeroctl in bash: words of the daemon's tables are offered as they are, and never run.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
trap 'rm -rf "$dir"' EXIT
dir=$(mktemp -d) || exit 2

# Stands for the program: two jobs of somebody who means harm, among others.
zeroctl() { # VERB --columns COLUMN ...
	case $1,$3 in
	*,,) echo "zeroctl: --columns: no column ''; there are ID,JOB,DURABLE" >&2 ;;
	*,id) printf '%s\n' 1 2 3 4 ;;
	*,job) printf '%s\n' train-7b.v2 "\$(touch\${IFS}$dir/ran)" "\`touch\${IFS}$dir/ran\`" tokenizer ;;
	esac
}

offers() { # words of the command line, the last one to be completed
	COMP_WORDS=(zeroctl "$@")
	COMP_CWORD=$#
	COMPREPLY=()
	_zeroctl
	echo "${COMPREPLY[*]}"
}

# shellcheck source=packaging/completion/zeroctl.bash
source packaging/completion/zeroctl.bash
[ "$(offers end-job '')" = 'train-7b.v2 tokenizer' ]
report $? 'jobs are offered, but for those that a shell would expand'
[ "$(offers groups --job tok)" = tokenizer ] && [ "$(offers end-job tr)" = train-7b.v2 ]
report $? 'a prefix chooses'
[ "$(offers kill-job tr)" = train-7b.v2 ] && [ "$(offers kill-j)" = kill-job ] && [ "$(offers undr)" = undrain ]
report $? 'so are the verbs, and the jobs to kill'
[ "$(offers explain tr)" = train-7b.v2 ] && [ "$(offers map --dev)" = --device ] && [ "$(offers expl)" = explain ]
report $? 'explain and map are offered'
[ "$(offers abort-group '')" = '1 2 3 4' ]
report $? 'groups are offered by id'
[ "$(offers jobs --sort du)" = durable ] && [ "$(offers jobs --columns id,j)" = id,job ] &&
	[ "$(offers jobs --co)" = --columns ]
report $? 'columns are offered, also behind a comma'
[ ! -e "$dir/ran" ]
report $? 'nothing of a name has been run'
finish
