#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The commands of README.md and docs/*.md do what a reader expects who pastes them.
#   test_docs.sh           runs each block "```sh" of which no line is in the list below; nothing else may be in one
#   test_docs.sh PAGE...   runs only the first block of each of these pages, listed or not: for tests of other folders
# A block is run by bash in a folder of links to the tree, with the programs of $BUILD in its PATH, the double of the CUDA
# driver, and a folder of its own in place of /tmp. It ends well if each of its commands does, and if the daemons that it
# starts answer; they end with it. Other blocks have other labels: text, c, python, ini, yaml.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/it/tap.sh
: "${BUILD:=build}"
root=$PWD build=$(realpath "$BUILD")
make_dir docs

# "# reason", and below it the lines of blocks that are not run for that reason.
cat >"$dir/listed" <<'LISTED'
# root and a system of its own: tests/packages and tests/systemd
apt install ./zerod_*.deb ./zerod-tools_*.deb         # for programs: ./libzerod0_*.deb, ./libzerod-dev_*.deb, ./python3-zerod_*.deb
apt install ./zerod_*.deb ./zerod-tools_*.deb
editor /etc/zerod/zerod.conf                   # every key is explained there; with GPUs: backend = cuda
systemctl enable --now zerod                   # the socket is enabled already: without this the first client starts the service
systemctl enable --now zerod
zeroctl status
zeroctl self-test                              # two ranks gather, reduce and compare; exit status 0: this installation works
make install PREFIX=/usr && ldconfig           # programs, library, header, units, manual pages, /etc/zerod/zerod.conf if there is none
systemd-sysusers && systemd-tmpfiles --create
systemctl enable --now zerod.socket
systemctl reload zerod                                 # the epilog deletes the line and reloads
flock /etc/zerod sed -i "\$ a cgroup:/system.slice/slurmstepd.scope/job_$SLURM_JOB_ID = $SLURM_JOB_GPUS" /etc/zerod/zerod.conf
systemctl enable --now zerod-metrics.socket            # http://127.0.0.1:9465/metrics
journalctl --since today MESSAGE_ID=4cfa1a09266c48bdb0ca7aa3aa018621
(umask 077; head -c 32 /dev/urandom >/etc/zerod/collectives.key)      # on one node; copy it to all others
chown zerod /etc/zerod/collectives.key                                # the daemon's user
systemctl edit zerod        # [Service]
                            # Environment=NCCL_SOCKET_IFNAME=eth0 NCCL_DEBUG=WARN
# a wheel: make check-wheel
pip install zerod-*.whl     # made by `make wheel`, 3 MB, glibc 2.28 or newer: the package, the daemon and all programs
# packages to install and minutes: the tests of make check, make check-packages
make demo     # builds, trains a small language model over four ranks through the daemon, compares it with an unsharded run
make check    # builds, runs all tests that need no GPU
make check                 # installs what is missing, builds, runs all tests that need no GPU and no torch
JOBS=1 make check          # one program at a time: to see whether a failure depends on the load
make check-sweep           # more of the same: the contract suite in further settings, all cases of long tests
make help                  # all other targets
make deb MAINTAINER='Name <address>'
make rpm RPMFLAGS="--define 'packager Name <address>'"
# images of containers
docker run --gpus '"device=0,1"' -v /run/zerod/tenants/alice:/run/zerod --user 1000 IMAGE train.py
podman run --device nvidia.com/gpu=0 -v /run/zerod:/run/zerod --userns keep-id IMAGE train.py
apptainer exec --nv --bind /run/zerod image.sif python train.py
bwrap --unshare-all --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --bind /run/zerod /run/zerod \
    hello_gather
# several nodes
UNIQUE_ID_FILE=/shared/job17.id \
torchrun --no-python --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node0:29500 --rdzv-id job17 two_nodes
srun --nodes 2 --ntasks-per-node 8 --distribution block sh -c '
    export UNIQUE_ID_FILE=/shared/two-nodes-$SLURM_JOB_ID-$SLURM_STEP_ID.id
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
    exec two_nodes'
# a GPU: tests/gpu/run.sh
ZD_SEVERAL=4 ZD_SEVERAL_DRIVER=PATH_OF_THE_DRIVER LD_LIBRARY_PATH=build/tests/several build/tests/contract/test_sums
# torch: tests/torch/test_examples.py
make install-python                             # the package with libzerod; `make wheel` for pip
PATH=$PWD/build/bin:$PATH torchrun --nproc-per-node 2 client/examples/torch/nanogpt.py --steps 40
# torchtitan, and data: tests/frameworks/test_torchtitan.py
PYTHONPATH=client/examples/torch torchrun --nproc-per-node 2 -m torchtitan.train --module titan --config llama3_8b
LISTED
sed '/^# [^E]/d' "$dir/listed" >"$dir/lines"

# Writes the blocks of a page to $dir/blocks/PAGE:LINE.LABEL.
extract() { # page
	awk -v to="$dir/blocks/${1//\//_}" '/^```/ { if (file) { close(file); file = "" }
		else { file = to ":" NR "." (length($0) > 3 ? substr($0, 4) : "unlabelled"); printf "" >file }; next }
		file { print >file }' "$1"
}

# A folder in which the commands may write, as in the tree.
make_tree() {
	tree=$dir/tree
	mkdir "$tree" "$tree/build" "$tree/build/logs" "$dir/tmp"
	ln -s "$root"/[!.]* "$tree/" 2>/dev/null
	rm "$tree/build" 2>/dev/null
	for each in "$build"/*; do
		[ "${each##*/}" = logs ] || ln -s "$each" "$tree/build/"
	done
}

run_block() { # file
	sed "s#/tmp/#$dir/tmp/#g" "$1" >"$dir/block.sh"
	(cd "$tree" && BUILD=build PATH=$tree/build/bin:$PATH LD_LIBRARY_PATH=$build/tests/double TMPDIR=$dir/tmp \
		timeout 240 bash -e "$dir/run.sh" "$dir/block.sh") >"$dir/out" 2>&1 </dev/null || {
		cat "$1"
		tail -n 40 "$dir/out"
		false
	}
}
cat >"$dir/run.sh" <<'RUN'
. "$1"
for socket in $(grep -v '^until' "$1" | grep -o -- '--socket [^ ]*' | cut -d ' ' -f 2 | sort -u); do
	for try in {1..1500}; do
		zeroctl --socket "$socket" status >/dev/null 2>&1 && break
		kill -0 $(jobs -p) # a daemon that has ended does not answer
		sleep 0.02
	done
	zeroctl --socket "$socket" status
done
kill $(jobs -p) 2>/dev/null || true
wait
RUN
mkdir "$dir/blocks"
make_tree

if [ $# -gt 0 ]; then
	for page in "$@"; do
		extract "$page"
		first=$(printf '%s\n' "$dir/blocks/${page//\//_}":*.sh | sort -t : -k 2n | head -n 1)
		run_block "$first"
		report $? "the first commands of $page"
	done
	finish
	exit
fi

for page in README.md docs/*.md; do
	extract "$page"
done
ls "$dir"/blocks/*.unlabelled 2>/dev/null
report $((! $?)) "each block of the documents says what it is: sh for commands"
grep -vxFf <(cat "$dir"/blocks/*.sh) "$dir/lines"
report $((! $?)) "each line that is not run is in the documents"
for block in "$dir"/blocks/*.sh; do
	name=${block##*/}
	grep -qxFf "$dir/lines" "$block" && {
		! grep -vxFf "$dir/lines" "$block"
		report $? "${name%.sh}: all of it is listed here, with the reason"
		continue
	}
	run_block "$block"
	report $? "${name%.sh}: its commands run"
done
finish
