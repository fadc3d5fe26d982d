# SPDX-License-Identifier: Apache-2.0
# bash completion for zeroctl: verbs, options, and ids or names that the daemon knows.
_zeroctl()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb='' socket=() word i
	local verbs='status devices jobs sessions groups units buffers scopes buckets alloc watch metrics trim drain undrain kill-session abort-group end-job kill-job'
	for ((i = 1; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		case $word in
		--socket) socket=(--socket "${COMP_WORDS[++i]}") ;;
		--job | --sort | --interval | --count | --device | --keep) ((i++)) ;;
		-*) ;;
		*) verb=${verb:-$word} ;;
		esac
	done
	case $prev in
	--socket)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		return
		;;
	--job)
		mapfile -t COMPREPLY < <(compgen -W "$(_zeroctl_column 2 jobs)" -- "$cur")
		return
		;;
	--sort)
		# The table's head, in lower case, is the list of columns; watch sorts its buffers.
		[[ $verb == watch || -z $verb ]] && verb=buffers
		mapfile -t COMPREPLY < <(compgen -W "$(zeroctl "${socket[@]}" "$verb" 2>/dev/null |
			head -n 1 | tr '[:upper:]' '[:lower:]')" -- "$cur")
		return
		;;
	--device)
		mapfile -t COMPREPLY < <(compgen -W "$(_zeroctl_column 1 devices)" -- "$cur")
		return
		;;
	--interval | --count | --keep) return ;;
	esac
	if [[ $cur == -* ]]; then
		local options='--socket --help --version'
		case $verb in
		'') options+=' --json --bytes --job --sort --interval --count --device --keep --http' ;;
		watch) options+=' --json --bytes --job --sort --interval --count' ;;
		status) options+=' --json --bytes' ;;
		metrics) options+=' --http' ;;
		devices) options+=' --json --bytes --sort' ;;
		trim) options+=' --json --bytes --device --keep' ;;
		drain | undrain | kill-session | abort-group | end-job | kill-job) ;;
		*) options+=' --json --bytes --job --sort' ;;
		esac
		mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
		return
	fi
	case $verb in
	'') mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$cur") ;;
	kill-session) mapfile -t COMPREPLY < <(compgen -W "$(_zeroctl_column 1 sessions)" -- "$cur") ;;
	abort-group) mapfile -t COMPREPLY < <(compgen -W "$(_zeroctl_column 1 groups)" -- "$cur") ;;
	end-job | kill-job) mapfile -t COMPREPLY < <(compgen -W "$(_zeroctl_column 2 jobs)" -- "$cur") ;;
	esac
}

# A column of one of the daemon's tables, without its head. Uses the caller's `socket`. Names are chosen by all users, and
# compgen expands what it is given as the shell does: those with any other character are not offered.
_zeroctl_column()
{
	zeroctl "${socket[@]}" "$2" 2>/dev/null |
		awk -v column="$1" 'NR > 1 && $column ~ /^[A-Za-z0-9._:+@%,=\/-]+$/ { print $column }'
}

complete -F _zeroctl zeroctl
