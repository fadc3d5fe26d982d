# SPDX-License-Identifier: Apache-2.0
# bash completion for zerod.
_zerod()
{
	local cur=${COMP_WORDS[COMP_CWORD]} words
	case ${COMP_WORDS[COMP_CWORD - 1]} in
	-b | --backend) words='host cuda auto' ;;
	--keep-state) words='systemd holder none auto' ;;
	-c | -s | --config | --socket | --key-file | --nccl)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		return
		;;
	-a | -d | -g | --arena | --devices | --gpus | --host-arena | --exit-when-idle) return ;;
	*)
		words='--arena --backend --check-config --config --devices --discard-state --exit-when-idle --foreground --gpus'
		words+=' --host-arena --keep-state'
		words+=' --key-file --nccl --socket --help --version'
		;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

complete -F _zerod zerod
