#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Completion in bash, zsh and fish: words of the daemon's tables are offered as they are, and never run; every option of --help is known.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}"
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
[ "$(offers metr)" = metrics ] && [ "$(offers metrics --)" = '--socket --help --version --format --http' ]
report $? 'metrics takes --format and --http, and not --json'
[ "$(offers trac)" = trace ] && [ "$(offers trace --)" = '--socket --help --version --job --seconds --output' ] &&
	[ "$(offers events --f)" = --follow ] && [ "$(offers events --job tok)" = tokenizer ]
report $? 'events and trace are offered, each with its options'
[ "$(offers explain tr)" = train-7b.v2 ] && [ "$(offers map --dev)" = --device ] && [ "$(offers expl)" = explain ]
report $? 'explain and map are offered'
[ "$(offers top --)" = '--socket --help --version --job --sort --delay' ] && [ "$(offers top --sort h)" = held ]
report $? 'top has columns of its own'
[ "$(offers snap)" = snapshot ] && [ "$(offers snapshot --out)" = --output ] && [ "$(offers -o x.html snapshot --dev)" = --device ]
report $? 'snapshot is offered, with --output'
[ "$(offers abort-group '')" = '1 2 3 4' ]
report $? 'groups are offered by id'
[ "$(offers jobs --sort du)" = durable ] && [ "$(offers jobs --columns id,j)" = id,job ] &&
	[ "$(offers jobs --co)" = --columns ]
report $? 'columns are offered, also behind a comma'
[ ! -e "$dir/ran" ]
report $? 'nothing of a name has been run'

missing=''
for program in zerod zeroctl zerobench; do
	"$BUILD/bin/$program" --help >"$dir/help"
	for word in $(grep -oE '(^|[ ,])--[a-z][a-z_-]*' "$dir/help" | tr -d ' ,' | sort -u) \
		$(sed -n '/^Verbs/,/^$/s/^  \([a-z-]*\).*/\1/p' "$dir/help"); do
		for file in $program.bash _$program $program.fish; do
			[ "$word" = --usage ] || grep -qE -- "${word#--}([^a-z_-]|\$)" "packaging/completion/$file" || missing+=" $file:$word"
		done
	done
done
[ -z "$missing" ]
report $? "every verb and option of --help is in all completions$missing"

# In these shells, if they are here, as they are told by the files.
bin=$dir/bin
mkdir "$bin"
{ echo '#!/bin/bash'; echo "dir='$dir'"; declare -f zeroctl; echo 'zeroctl "$@"'; } >"$bin/zeroctl"
chmod +x "$bin/zeroctl"
if command -v fish >/dev/null; then
	fish_offers() {
		HOME=$dir PATH=$bin:$PATH fish --no-config -c "source packaging/completion/zeroctl.fish; complete -C '$1'" | cut -f1 | sort | tr '\n' ' '
	}
	[ "$(fish_offers 'zeroctl end-job ')" = 'tokenizer train-7b.v2 ' ] && [ "$(fish_offers 'zeroctl kill-j')" = 'kill-job ' ] &&
		[ "$(fish_offers 'zeroctl groups --job tok')" = 'tokenizer ' ] && [ ! -e "$dir/ran" ]
	report $? 'fish offers the same'
fi
if command -v zsh >/dev/null; then
	for program in zerod zeroctl zerobench; do zsh -n "packaging/completion/_$program" || missing=zsh; done
	[ -z "$missing" ]
	report $? 'zsh reads its files'
fi
finish
