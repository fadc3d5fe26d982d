# SPDX-License-Identifier: Apache-2.0
# bash completion for zeroctl: verbs, options, and ids or names that the daemon knows.
_zeroctl()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb='' socket=() word i
	local verbs='status self-test devices jobs sessions readers groups units buffers scopes buckets alloc map snapshot explain watch top metrics events trace trim drain undrain kill-session abort-group end-job holders kill-job help'
	for ((i = 1; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		case $word in
		--socket) socket=(--socket "${COMP_WORDS[++i]}") ;;
		--job | --sort | --columns | --interval | --delay | --count | --device | --keep | --format | --since | --seconds | --end | --output | -o) ((i++)) ;;
		-*) ;;
		*) verb=${verb:-$word} ;;
		esac
	done
	case $prev in
	--socket | --end | --output | -o)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		return
		;;
	--job)
		mapfile -t COMPREPLY < <(compgen -W "$(_zeroctl_column job jobs)" -- "$cur")
		return
		;;
	--sort | --columns)
		if [[ $verb == top ]]; then
			mapfile -t COMPREPLY < <(compgen -W 'id name user pid job rank held req/s waits' -- "$cur")
			return
		fi
		# The error of a column that does not exist lists all; watch sorts its buffers.
		[[ $verb == watch || -z $verb ]] && verb=buffers
		mapfile -t COMPREPLY < <(compgen -P "${cur%"${cur##*,}"}" -W "$(zeroctl "${socket[@]}" "$verb" --columns , 2>&1 |
			sed -n "s/.*no column ''; there are //p" | tr '[:upper:],' '[:lower:] ')" -- "${cur##*,}")
		return
		;;
	--device)
		mapfile -t COMPREPLY < <(compgen -W "$(_zeroctl_column device devices)" -- "$cur")
		return
		;;
	--format)
		mapfile -t COMPREPLY < <(compgen -W 'openmetrics prometheus' -- "$cur")
		return
		;;
	--interval | --delay | --count | --keep | --since | --seconds) return ;;
	esac
	if [[ $cur == -* ]]; then
		local options='--socket --help --version' table='--columns --wide --raw --no-headings'
		case $verb in
		'') options+=" --json --bytes --job --sort $table --interval --delay --count --device --keep --format --http --follow --since --seconds --end --output" ;;
		watch) options+=" --json --bytes --job --sort $table --interval --count" ;;
		top) options+=' --job --sort --delay' ;;
		status) options+=' --json --bytes' ;;
		self-test) options+=' --json --device' ;;
		metrics) options+=' --format --http' ;;
		events) options+=' --json --bytes --job --follow --since' ;;
		trace) options+=' --job --seconds --output' ;;
		devices) options+=" --json --bytes --sort $table" ;;
		holders) options+=" --json --bytes --sort $table --end" ;;
		map) options+=" --json --bytes --sort $table --device" ;;
		snapshot) options+=' --json --job --device --output' ;;
		trim) options+=" --json --bytes $table --device --keep" ;;
		explain) options+=' --json' ;;
		help | drain | undrain | kill-session | abort-group | end-job | kill-job) ;;
		*) options+=" --json --bytes --job --sort $table" ;;
		esac
		mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
		return
	fi
	case $verb in
	'') mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$cur") ;;
	explain) mapfile -t COMPREPLY < <(compgen -W "$(_zeroctl_column job jobs) $(_zeroctl_column id sessions)" -- "$cur") ;;
	help) mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$cur") ;;
	kill-session) mapfile -t COMPREPLY < <(compgen -W "$(_zeroctl_column id sessions)" -- "$cur") ;;
	abort-group) mapfile -t COMPREPLY < <(compgen -W "$(_zeroctl_column id groups)" -- "$cur") ;;
	end-job | kill-job) mapfile -t COMPREPLY < <(compgen -W "$(_zeroctl_column job jobs)" -- "$cur") ;;
	esac
}

# A column of one of the daemon's tables, without its head, escaped (--raw). Uses the caller's `socket`. Names are chosen by all users, and
# compgen expands what it is given as the shell does: those with any other character are not offered.
_zeroctl_column()
{
	zeroctl "${socket[@]}" "$2" --columns "$1" --raw --no-headings 2>/dev/null |
		awk '$1 ~ /^[A-Za-z0-9._:+@%,=\/-]+$/ { print $1 }'
}

complete -F _zeroctl zeroctl
