#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Completion of zeroctl in bash: words of the daemon's tables are offered as they are, and never run.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
trap 'rm -rf "$dir"' EXIT
dir=$(mktemp -d) || exit 2

# Stands for the program: two jobs of somebody who means harm, among others.
zeroctl() {
	cat <<-TABLE
		ID  NAME                     DURABLE
		1   train-7b.v2              yes
		2   \$(touch\${IFS}$dir/ran)  no
		3   \`touch\${IFS}$dir/ran\`   no
		4   tokenizer                no
	TABLE
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
[ "$(offers metr)" = metrics ] && [ "$(offers metrics --)" = '--socket --help --version --http' ]
report $? 'metrics takes --http, and not --json'
[ "$(offers abort-group '')" = '1 2 3 4' ]
report $? 'groups are offered by id'
[ ! -e "$dir/ran" ]
report $? 'nothing of a name has been run'
finish
