# SPDX-License-Identifier: Apache-2.0
# bash completion for zerobench.
_zerobench()
{
	local cur=${COMP_WORDS[COMP_CWORD]} words
	case ${COMP_WORDS[COMP_CWORD - 1]} in
	-o | --op) words='gather reduce all_reduce rpc scale step' ;;
	-d | --datatype) words='float bfloat16 half' ;;
	-c | --check) words='0 1' ;;
	--backend) words='host cuda' ;;
	--collectives) words='copies nccl' ;;
	--peer) words='nccl nccl-ce none' ;;
	--nodes) words='2 4 8' ;;
	--load) words='gemm:2048 gemm:4096 gemm:8192' ;;
	--socket | --nccl)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		return
		;;
	-b | -e | -f | -n | -w | -r | -g | --minbytes | --maxbytes | --stepfactor | --ngpus | --iters | --warmup_iters | --ranks | --units)
		return
		;;
	*)
		words='--op --minbytes --maxbytes --stepfactor --iters --warmup_iters --check --ranks --ngpus --datatype'
		words+=' --units --json --strict --socket --start --backend --load --alone --backward --nodes --on-host --collectives --peer --nccl --help --version'
		;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

complete -F _zerobench zerobench
