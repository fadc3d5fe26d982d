# SPDX-License-Identifier: Apache-2.0
# zerod: one makefile, not recursive over folders. `make help` lists what it does.

VERSION := $(shell packaging/version.sh)
BUILD   ?= build
# `make install`: LIBDIR is a distribution's, such as /usr/lib/x86_64-linux-gnu. Users start daemons of their own, too: so SBINDIR is bin.
PREFIX  ?= /usr/local
SBINDIR ?= $(PREFIX)/bin
LIBDIR  ?= $(PREFIX)/lib
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
DESTDIR ?=
SEEDS   ?= 10000
BACKEND_SEEDS ?= $(if $(filter file,$(origin SEEDS)),30,$(SEEDS))
STRESS_SECONDS ?= 60
CC      ?= cc
AR      ?= ar

ifeq ($(V),1)
Q :=
say := @:
else
Q := @
say := @printf '  %-7s %s\n'
endif

# SAN: address, undefined, both of these, thread; COVERAGE=1 for gcov; both by way of their own BUILD folder (see check-*).
SAN ?=
san-flags-address   := -fsanitize=address -fno-omit-frame-pointer
san-flags-undefined := -fsanitize=undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
san-flags-both      := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
san-flags-thread    := -fsanitize=thread -fno-omit-frame-pointer
SANFLAGS := $(san-flags-$(SAN))
OPT ?= -O2
ifeq ($(COVERAGE),1)
SANFLAGS += --coverage
OPT := -O0
endif
# Other flags bring other warnings.
WERROR ?= $(if $(CFLAGS),,-Werror)

PKGS      := libuv libprotobuf-c libgcrypt inih jansson
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
UV_LIBS   := $(shell pkg-config --libs libuv 2>/dev/null)
PB_LIBS   := $(shell pkg-config --libs libprotobuf-c 2>/dev/null)
GC_LIBS   := $(shell pkg-config --libs libgcrypt 2>/dev/null)
INI_LIBS  := $(shell pkg-config --libs inih 2>/dev/null)
JSON_LIBS := $(shell pkg-config --libs jansson 2>/dev/null)
CURSES_LIBS := $(shell pkg-config --libs ncursesw 2>/dev/null)
ZLIB_LIBS := $(shell pkg-config --libs zlib 2>/dev/null)
TEST_LIBS := $(shell pkg-config --libs cmocka 2>/dev/null)
# CUDA's compiler, if there is one: the library then has its kernels as machine code as well as PTX.
ifeq ($(origin NVCC),undefined)
NVCC := $(firstword $(wildcard $(or $(CUDA_HOME),/usr/local/cuda)/bin/nvcc) $(shell command -v nvcc))
endif
FATBIN_GPUS := $(if $(NVCC),$(filter sm_80 sm_90 sm_100,$(shell $(NVCC) --list-gpu-code 2>/dev/null)))
# For `make wheel` and `make bundle`: Debian's archives. Only tests need a shared library, cmocka's, which is copied.
ifeq ($(BUNDLE),1)
UV_LIBS   := -l:libuv_a.a -ldl
PB_LIBS   := -l:libprotobuf-c.a
GC_LIBS   := -l:libgcrypt.a -l:libgpg-error.a
INI_LIBS  := -l:libinih.a
JSON_LIBS := -l:libjansson.a
CURSES_LIBS := -l:libncursesw.a -l:libtinfo.a
ZLIB_LIBS := -l:libz.a
override LDFLAGS += -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib'
endif

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla -Wwrite-strings $(WERROR)
# The flags that the tree needs, then those of the user, from the command line or the environment: `make CFLAGS=-O3` changes the optimization
# and drops nothing. Objects have no path of the folder that they were built in.
PREFIX_MAP := $(if $(filter 1,$(COVERAGE)),,-ffile-prefix-map=$(CURDIR)=.)
override CPPFLAGS := -D_GNU_SOURCE -Iinclude -I. -Icommon -I$(BUILD)/gen -DZEROD_VERSION_TEXT='"$(VERSION)"' $(PKG_CFLAGS) $(CPPFLAGS)
override CFLAGS := -std=gnu11 $(OPT) -g -fPIC -fvisibility=hidden -pthread $(PREFIX_MAP) $(WARN) $(SANFLAGS) $(CFLAGS)
override LDFLAGS := -pthread $(SANFLAGS) -Wl,--as-needed -Wl,-z,relro,-z,now $(LDFLAGS)
override LDLIBS += -lm

# The layers below the daemon, and the client, cannot include the daemon's headers.
$(BUILD)/obj/daemon/%.o $(BUILD)/obj/tests/%.o: override CPPFLAGS += -Idaemon

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

# ---- Layers: each archive may use those named after it on a link line, never the other way round --------------
BASE_SRC    := $(wildcard common/base/*.c)
PROTO_SRC   := $(wildcard proto/*.c)
# The rooms of the core, each above the next.
CORE_ROOMS  := control reduce gather cluster memory plan engine
EXECUTOR_SRC := $(wildcard daemon/executor/*.c daemon/executor/*/*.c)
DRIVER_SRC  := $(wildcard common/driver/*.c)
SERVER_SRC  := $(wildcard daemon/server/*.c)
MAIN_SRC    := $(wildcard daemon/main/*.c)
# The rooms of the library, each above the next.
CLIENT_ROOMS := life calls gradients streams device conn segments compute base
CLIENT_SRC  := $(foreach room,$(CLIENT_ROOMS),$(wildcard client/lib/$(room)/*.c))
CTL_SRC     := $(wildcard client/zeroctl/*.c) client/zerobench/cuda_gpu.c
BENCH_SRC   := $(wildcard client/zerobench/*.c)
EXAMPLE_SRC := $(wildcard client/examples/*.c)
UNIT_SRC    := $(wildcard tests/unit/*/test_*.c)
IT_SRC      := $(wildcard tests/it/test_*.c)
CONTRACT_SRC := $(wildcard tests/contract/test_*.c)
CONTRACT_LIB_SRC := $(wildcard tests/contract/contract*.c)
SUPPORT_SRC := $(filter-out tests/support/temporary.c,$(wildcard tests/support/*.c))
SIM_SRC     := $(wildcard tests/sim/*.c) $(wildcard tests/support/core_check*.c)
SIMBACKEND_SRC := $(wildcard tests/simbackend/*.c) tests/sim/rng.c
DOUBLE_SRC  := $(wildcard tests/double/*.c)
SEVERAL_SRC := $(wildcard tests/several/*.c)
GPU_KERNELS_SRC := $(addprefix tests/gpu/,kernels.c kernels_cast.c kernels_reduce.c kernels_update.c kernels_measure.c) \
	daemon/executor/host/host_kernels.c client/zerobench/cuda_gpu.c
STRESS_SRC  := $(filter-out $(addprefix tests/gpu/,strict.c comm.c comm_backend.c) $(GPU_KERNELS_SRC),$(wildcard tests/gpu/*.c)) \
	$(addprefix client/zerobench/,cuda_gpu.c cuda_gpu_list.c cuda_gemm.c cuda_library.c team.c)
GPU_STRICT_SRC := $(addprefix tests/gpu/,strict.c stress_kernels.c kernels_double.c) \
	client/zerobench/cuda_gpu.c
GPU_COMM_SRC := $(addprefix tests/gpu/,comm.c comm_backend.c) $(addprefix client/zerobench/,cuda_gpu.c cuda_gpu_list.c cuda_library.c team.c)
FUZZ_SRC    := $(wildcard tests/fuzz/fuzz_*.c)
LIFETIMES_SRC := tests/bench/bench_lifetimes.c
STATE_BENCH_SRC := $(addprefix tests/bench/bench_,journal.c latency.c restart.c)

PB_C := $(BUILD)/gen/proto/zerod.pb-c.c
PB_H := $(BUILD)/gen/proto/zerod.pb-c.h
PB_O := $(BUILD)/obj/gen/zerod.pb-c.o

LIB := $(BUILD)/lib
A_BASE := $(LIB)/libzd_base.a
A_PROTO := $(LIB)/libzd_proto.a
A_CORE := $(CORE_ROOMS:%=$(LIB)/libzd_core_%.a)
A_EXECUTOR := $(LIB)/libzd_executor.a
A_DRIVER := $(LIB)/libzd_driver.a
A_SERVER := $(LIB)/libzd_server.a
A_MAIN := $(LIB)/libzd_main.a
A_CLIENT := $(LIB)/libzerod.a
A_SUPPORT := $(LIB)/libzd_test.a
SO_CLIENT := $(LIB)/libzerod.so.0

DAEMON_STACK := $(A_MAIN) $(A_SERVER) $(A_EXECUTOR) $(A_CORE) $(A_PROTO) $(A_DRIVER) $(A_BASE)
DAEMON_LIBS  := $(UV_LIBS) $(PB_LIBS) $(GC_LIBS) $(INI_LIBS)

BIN := $(BUILD)/bin
PROGRAMS := $(BIN)/zerod $(BIN)/zeroctl $(BIN)/zerobench
EXAMPLES := $(patsubst client/examples/%.c,$(BIN)/%,$(EXAMPLE_SRC))
UNIT_BIN := $(patsubst tests/%.c,$(BUILD)/tests/%,$(UNIT_SRC))
IT_BIN   := $(patsubst tests/%.c,$(BUILD)/tests/%,$(IT_SRC))
TOP_SESSIONS_BIN := $(BUILD)/tests/it/top_sessions
SOAK_BIN := $(BUILD)/tests/it/soak_readers
HOSTILE_BIN := $(filter $(BUILD)/tests/it/test_hostile_%,$(IT_BIN)) $(BUILD)/tests/unit/core/test_bounded
CONTRACT_BIN := $(patsubst tests/%.c,$(BUILD)/tests/%,$(CONTRACT_SRC))
SIM_BIN  := $(BUILD)/tests/zdsim
SIMBACKEND_BIN := $(BUILD)/tests/zerod-sim
STRESS_BIN := $(BUILD)/tests/gpu/stress
GPU_STRICT_BIN := $(BUILD)/tests/gpu/strict
GPU_KERNELS_BIN := $(BUILD)/tests/gpu/kernels
GPU_COMM_BIN := $(BUILD)/tests/gpu/comm
LIFETIMES_BIN := $(patsubst tests/%.c,$(BUILD)/tests/%,$(LIFETIMES_SRC))
STATE_BENCH_BIN := $(patsubst tests/%.c,$(BUILD)/tests/%,$(STATE_BENCH_SRC))
DOUBLE_SO := $(addprefix $(BUILD)/tests/double/,libcuda.so.1 libnvidia-ml.so.1 libcublas.so.13 libnccl.so.2)
SEVERAL_SO := $(BUILD)/tests/several/libcuda.so.1
SEVERAL_DRIVER_SO := $(BUILD)/tests/several/libcuda-driver.so.1
IT_SCRIPTS := $(wildcard tests/it/test_*.sh)

.DEFAULT_GOAL := all
.PHONY: all help deps demo check check-run check-sanitizers check-asan check-ubsan check-tsan check-valgrind check-sim \
	check-contract-sim check-faults check-gpu check-hostile check-chaos soak-readers check-mutants fuzz coverage bench tidy format format-check layers links \
	ptx ptx-check install uninstall bundle clean tests check-abi abi-baseline
.DELETE_ON_ERROR:
.SECONDARY:

all: $(PROGRAMS) $(A_CLIENT) $(SO_CLIENT) $(LIB)/libzerod.so $(EXAMPLES)  ## build everything but the tests
	@:

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
		awk -F'\t' '{printf "  make %-18s %s\n", $$1, $$2}'

# ---- Rules ----------------------------------------------------------------------------------------------------
$(PB_C) $(PB_H) &: proto/zerod.proto
	$(say) PROTOC $<
	$(Q)mkdir -p $(BUILD)/gen
	$(Q)protoc-c --c_out=$(BUILD)/gen $<

$(PB_O): $(PB_C)
	$(say) CC $<
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-unused-parameter -c -o $@ $<

$(BUILD)/obj/%.o: %.c | $(PB_H)
	$(say) CC $<
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

# Files that an object embeds (base/embed.h): the compiler reports no dependency on them.
$(call obj,client/lib/compute/cuda_kernels.c): client/kernels/generated/kernels.ptx
$(call obj,tests/gpu/stress_kernels.c): tests/gpu/generated/kernels.ptx
$(call obj,client/zeroctl/verb_snapshot.c): $(wildcard client/zeroctl/snapshot/*)

# No multiply-add may be fused: sums are compared bit for bit. Of the host's compiler only the preprocessor is used.
FATBIN := $(BUILD)/gen/kernels.fatbin
FATBIN_FLAGS := -fatbin -Xfatbin=-compress-all -fmad=false -allow-unsupported-compiler -I. \
	$(foreach gpu,$(FATBIN_GPUS),-gencode arch=$(gpu:sm_%=compute_%),code=$(gpu))
ifneq ($(FATBIN_GPUS),)
$(FATBIN): $(addprefix client/kernels/,kernels.cu kernels.h element.h)
	$(say) NVCC $<
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) $(FATBIN_FLAGS) -o $@ $<

$(call obj,client/lib/compute/cuda_fatbin.c): $(FATBIN)
$(call obj,client/lib/compute/cuda_fatbin.c): override CPPFLAGS += -DZD_KERNELS_FATBIN='"$(FATBIN)"'
endif

define archive
$(1): $(2)
	$$(say) AR $$@
	$$(Q)mkdir -p $$(@D)
	$$(Q)rm -f $$@ && $$(AR) rcsD $$@ $$^
endef
$(eval $(call archive,$(A_BASE),$(call obj,$(BASE_SRC))))
$(eval $(call archive,$(A_PROTO),$(call obj,$(PROTO_SRC)) $(PB_O)))
$(foreach room,$(CORE_ROOMS),$(eval $(call archive,$(LIB)/libzd_core_$(room).a,$(call obj,$(wildcard daemon/core/$(room)/*.c)))))
$(eval $(call archive,$(A_EXECUTOR),$(call obj,$(EXECUTOR_SRC))))
$(eval $(call archive,$(A_DRIVER),$(call obj,$(DRIVER_SRC))))
$(eval $(call archive,$(A_SERVER),$(call obj,$(SERVER_SRC))))
$(eval $(call archive,$(A_MAIN),$(call obj,$(filter-out daemon/main/main.c,$(MAIN_SRC)))))
$(eval $(call archive,$(A_CLIENT),$(call obj,$(CLIENT_SRC) $(PROTO_SRC) $(DRIVER_SRC) $(BASE_SRC)) $(PB_O)))
$(eval $(call archive,$(A_SUPPORT),$(call obj,$(SUPPORT_SRC))))

$(SO_CLIENT): $(call obj,$(CLIENT_SRC) $(PROTO_SRC) $(DRIVER_SRC) $(BASE_SRC)) $(PB_O) client/lib/libzerod.map
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -shared -Wl,-soname,libzerod.so.0 -Wl,--version-script=client/lib/libzerod.map $(LDFLAGS) -o $@ \
		$(filter %.o,$^) $(PB_LIBS) $(LDLIBS)

$(LIB)/libzerod.so: $(SO_CLIENT)
	$(Q)ln -sf libzerod.so.0 $@

# Not all compilers do it by themselves.
$(PROGRAMS): override LDFLAGS += -pie
$(BIN)/zerod: $(call obj,daemon/main/main.c $(if $(filter 1,$(BUNDLE)),packaging/old_glibc.c)) $(DAEMON_STACK)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(DAEMON_LIBS) $(LDLIBS)

$(call obj,client/zeroctl/top_screen.c): override CPPFLAGS += $(shell pkg-config --cflags ncursesw 2>/dev/null)
$(BIN)/zeroctl: $(call obj,$(CTL_SRC)) $(A_CLIENT)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(PB_LIBS) $(JSON_LIBS) $(CURSES_LIBS) $(ZLIB_LIBS) $(LDLIBS)

$(BIN)/zerobench: $(call obj,$(BENCH_SRC)) $(A_CLIENT)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(PB_LIBS) $(JSON_LIBS) $(LDLIBS)

$(EXAMPLES): $(BIN)/%: $(BUILD)/obj/client/examples/%.o $(A_CLIENT)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(PB_LIBS) $(LDLIBS)

# A square root is an instruction, and no call that may set errno.
$(call obj,client/lib/compute/update_cpu.c): override CFLAGS += -fno-math-errno

# The core once more, with a call of the test at each basic block.
COUNTED := $(patsubst %.c,$(BUILD)/counted/%.o,$(wildcard daemon/core/*/*.c))
$(BUILD)/counted/%.o: %.c | $(PB_H)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) -Idaemon $(CFLAGS) -O1 -g0 -fsanitize-coverage=trace-pc -MMD -MP -c -o $@ $<
$(BUILD)/tests/unit/core/test_bounded: $(COUNTED)
$(BUILD)/tests/unit/core/test_bounded: override LDFLAGS += -Wl,--wrap=zd_engine_request,--wrap=zd_engine_op_done,--wrap=zd_engine_tick,--wrap=zd_engine_check
$(BUILD)/tests/unit/server/test_user: override LDFLAGS += -Wl,--wrap=uv_poll_start,--wrap=uv_poll_stop
$(BUILD)/tests/unit/zeroctl/test_metrics: $(call obj,$(addprefix client/zeroctl/,metrics_text.c metrics_http.c))
$(BUILD)/tests/unit/zeroctl/test_id: $(call obj,$(addprefix client/zeroctl/,id.c name.c object.c text.c))
$(addprefix $(BUILD)/tests/unit/zeroctl/test_top_,model layout): $(call obj,$(addprefix client/zeroctl/,top_model.c top_waits.c top_keys.c top_layout.c top_frame.c fit.c object.c \
	top_table.c text.c))
# tests/run.sh notices files that test programs leave behind (tests/support/temporary.c).
WATCHED_BIN := $(UNIT_BIN) $(IT_BIN) $(CONTRACT_BIN) $(LIFETIMES_BIN) $(GPU_STRICT_BIN) $(GPU_COMM_BIN)
$(WATCHED_BIN): override LDFLAGS += -Wl,--wrap=mkdtemp,--wrap=mkstemp
$(WATCHED_BIN): $(call obj,tests/support/temporary.c)
# Unit and integration tests may look at every layer; A_CLIENT carries its own copy of proto and base.
$(UNIT_BIN): $(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(A_SUPPORT) $(DAEMON_STACK)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(DAEMON_LIBS) $(JSON_LIBS) $(TEST_LIBS) $(LDLIBS)

$(CONTRACT_BIN) $(LIFETIMES_BIN) $(filter $(BUILD)/tests/it/test_cuda_%,$(IT_BIN)): $(call obj,$(CONTRACT_LIB_SRC))
# It forges unique ids.
$(BUILD)/tests/it/test_cuda_unique_id: $(call obj,$(addprefix daemon/server/,id_stamp.c id_key.c mac.c))
$(BUILD)/tests/it/test_cuda_unique_id: override LDLIBS += $(GC_LIBS)
$(IT_BIN) $(TOP_SESSIONS_BIN) $(SOAK_BIN) $(CONTRACT_BIN) $(LIFETIMES_BIN) $(STATE_BENCH_BIN): $(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(A_SUPPORT) $(A_CLIENT)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(PB_LIBS) $(JSON_LIBS) $(TEST_LIBS) $(LDLIBS)

$(filter $(BUILD)/tests/it/test_cuda_%,$(IT_BIN)) $(filter $(BUILD)/tests/unit/executor/test_cuda%,$(UNIT_BIN)): | $(DOUBLE_SO)

$(SIM_BIN): $(call obj,$(SIM_SRC)) $(A_CORE) $(A_PROTO) $(A_BASE)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(PB_LIBS) $(LDLIBS)

# The daemon with executors of its own: they are found before the host backend's.
$(SIMBACKEND_BIN): $(call obj,$(SIMBACKEND_SRC)) $(DAEMON_STACK)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(DAEMON_LIBS) $(LDLIBS)

# They export their kernels, for the driver's double.
$(STRESS_BIN) $(GPU_STRICT_BIN) $(BUILD)/tests/unit/driver/test_double_kernels: override LDFLAGS += -Wl,--export-dynamic
$(STRESS_BIN): $(call obj,$(STRESS_SRC)) $(A_SUPPORT) $(A_CLIENT)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(PB_LIBS) $(JSON_LIBS) $(LDLIBS)

$(GPU_STRICT_BIN): $(call obj,$(GPU_STRICT_SRC) $(CONTRACT_LIB_SRC)) $(A_SUPPORT) $(A_CLIENT)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(PB_LIBS) $(JSON_LIBS) $(TEST_LIBS) $(LDLIBS)

$(GPU_KERNELS_BIN): $(call obj,$(GPU_KERNELS_SRC)) $(A_CLIENT)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(PB_LIBS) $(LDLIBS)

# Its kernels are compared with others bit for bit.
$(call obj,tests/double/library_kernels.c): override CFLAGS += -ffp-contract=off

$(GPU_COMM_BIN): $(call obj,$(GPU_COMM_SRC)) $(A_SUPPORT) $(A_EXECUTOR) $(A_CORE) $(A_CLIENT)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(PB_LIBS) $(JSON_LIBS) $(TEST_LIBS) $(LDLIBS)

# The doubles of the driver, NVML, cuBLAS and NCCL: found by LD_LIBRARY_PATH, under the names of the real ones.
$(BUILD)/tests/double/libcuda.so.1: $(call obj,$(filter-out tests/double/nvml.c,$(DOUBLE_SRC)) client/lib/compute/update_cpu.c)
$(BUILD)/tests/double/libnvidia-ml.so.1: $(call obj,$(addprefix tests/double/,nvml.c listing.c config.c))
$(BUILD)/tests/double/libcublas.so.13: $(call obj,tests/double/libraries/cublas.c)
$(BUILD)/tests/double/libnccl.so.2: $(call obj,$(addprefix tests/double/libraries/,nccl.c nccl_ranks.c nccl_moves.c) common/base/dtype.c)
# Before the driver, or its double: shows each GPU as several. It depends on an empty library, in whose place
# tests/gpu/torch_several.sh puts the driver: so dlsym() finds in it all that a driver has.
$(SEVERAL_DRIVER_SO):
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -shared -Wl,-soname,$(@F) -o $@ -x c /dev/null
$(SEVERAL_SO): $(call obj,$(SEVERAL_SRC)) $(SEVERAL_DRIVER_SO)
$(SEVERAL_SO): override LDFLAGS += -Wl,--no-as-needed
$(DOUBLE_SO) $(SEVERAL_SO):
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -shared -Wl,-soname,$(@F) $(if $(SAN),,-Wl,-z,defs) $(LDFLAGS) -o $@ $^

tests: all $(DOUBLE_SO) $(SEVERAL_SO) $(UNIT_BIN) $(IT_BIN) $(TOP_SESSIONS_BIN) $(SOAK_BIN) $(CONTRACT_BIN) $(LIFETIMES_BIN) $(STATE_BENCH_BIN) $(STRESS_BIN) $(GPU_STRICT_BIN) $(GPU_KERNELS_BIN) \
	$(GPU_COMM_BIN) $(SIMBACKEND_BIN) $(if $(SIM_SRC),$(SIM_BIN))

-include $(shell find $(BUILD)/obj $(BUILD)/counted -name '*.d' 2>/dev/null)

# ---- What people run --------------------------------------------------------------------------------------------
deps:  ## install what the build needs (Debian, Ubuntu), or print the list
	@packaging/deps.sh

demo: deps  ## train a small model over four ranks through a private daemon, and check it
	@$(MAKE) --no-print-directory all
	@PYTHONPATH=client/python ZEROD_LIBRARY=$(abspath $(SO_CLIENT)) tests/python/run.sh -m zerod.demo --bin $(BIN) --compare --buffers $(if $(TEXT),--text "$(TEXT)")

# Long targets are made by all processors, unless -j gives a number of jobs.
PARALLEL = $(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

check: deps  ## build and run all tests
	@+$(PARALLEL) check-run

# The contract holds on GPUs, too: the driver's double stands for them. One daemon serves the tests of a program.
ON_DOUBLE := ZEROD_TEST_BACKEND=cuda LD_LIBRARY_PATH=$(BUILD)/tests/double
KEPT := ZEROD_TEST_KEEP_DAEMON=1
# And with its ranks in two daemons, or under NCCL's collectives, of which there is a double as well.
ON_TWO := $(ON_DOUBLE) $(KEPT) ZEROD_TEST_DAEMONS=2
ON_NCCL := $(ON_DOUBLE) $(KEPT) ZEROD_TEST_COLLECTIVES=nccl
# And on four devices of two GPUs.
ON_FOUR := ZD_DOUBLE_DEVICES=2 ZD_SEVERAL=4 ZD_SEVERAL_DRIVER=$(BUILD)/tests/double/libcuda.so.1 ZEROD_TEST_BACKEND=cuda \
	LD_LIBRARY_PATH=$(BUILD)/tests/several:$(BUILD)/tests/double $(KEPT)
# And where all who can look into the rings between daemon and clients do, however few processors there are.
AWAKE := ZEROD_SPIN=always
AWAKE_IT := $(filter %/test_client_calls %/test_client_gather %/test_cuda_two_daemons %/test_cuda_offloaded_sum \
	%/test_cuda_offloaded_sum_ahead %/test_cuda_offloaded_sum_ends %/test_hostile_disconnect %/test_scope_client,$(IT_BIN))
# And on whatever a backend may do, with trainers whose streams lag.
LATE := ZEROD_LAG=1
ON_SIM := $(LATE) ZEROD_TEST_BACKEND=sim ZEROD_SIM_SEED=10
# And with all units in host memory. What the others look at is another with these: a gathered copy that is the shard, the list of devices, room,
# structures.
ON_HOST := ZEROD_TEST_PLACEMENT=host
ON_HOST_BIN = $(filter-out %/test_alone %/test_device_uuid %/test_room %/test_structures,$(CONTRACT_BIN))
on = $(foreach test,$(if $(filter host,$(2)),$(ON_HOST_BIN),$(CONTRACT_BIN)),"$(1) $(test)")
STRESS_SHORT := ZD_DOUBLE_LEAKS=1 $(STRESS_BIN) --seconds 3 --max 1M --arena 256M

# The longest programs come first, so that none of them runs alone at the end.
CHECKS = "$(SIM_BIN) --seeds 200" $(UNIT_BIN) $(IT_SCRIPTS) $(IT_BIN) \
	"$(ON_DOUBLE) ZD_DOUBLE_LEAKS=1 $(GPU_COMM_BIN)" "$(ON_DOUBLE) ZD_DOUBLE_LEAKS=1 $(GPU_KERNELS_BIN)" "$(ON_DOUBLE) $(GPU_STRICT_BIN)" \
	$(if $(SAN),,$(foreach name,api demo ends private wheel,"tests/python/run.sh test_$(name).py")) tests/page/run.sh \
	$(call on,$(ON_SIM)) $(CONTRACT_BIN) $(call on,$(LATE)) $(call on,$(ON_DOUBLE) $(KEPT)) $(call on,$(ON_TWO)) $(call on,$(ON_NCCL)) \
	$(call on,$(ON_HOST),host) "$(ON_DOUBLE) tests/gpu/examples.sh" "$(ON_DOUBLE) $(STRESS_SHORT)" "$(ON_DOUBLE) $(STRESS_SHORT) --kill" \
	"$(ON_DOUBLE) $(STRESS_SHORT) --strict" "$(LIFETIMES_BIN) 1024"
# Tests that try very many cases (tests/support/sweep.h) try all of them here.
SWEPT := $(filter %/test_cuda_faults %/test_cluster_random %/test_cluster_doubt,$(UNIT_BIN)) $(filter %/test_zerobench_gpu %/test_client_update,$(IT_BIN))
SWEEPS = "$(SIM_BIN) --first 1000 --seeds 500" $(SWEPT:%="ZEROD_TEST_SWEEP=1 %") \
	"tests/contract/faults.sh --programs $(if $(SAN),1 --rounds 3,2 --rounds 10)" \
	$(call on,$(ON_FOUR)) $(call on,$(ON_FOUR) ZEROD_TEST_DAEMONS=2) \
	$(call on,$(ON_HOST) $(ON_FOUR),host) $(call on,$(AWAKE)) $(call on,$(AWAKE) $(ON_DOUBLE) $(KEPT)) $(AWAKE_IT:%="$(AWAKE) %") \
	"$(AWAKE) $(ON_DOUBLE) $(STRESS_SHORT) --kill"
# So many programs at a time: most of a test's time is waits.
SIDE_BY_SIDE := $(shell n=$$(nproc); echo $$((n < 3 ? n + 1 : 4)))
.PHONY: check-sweep sweep-run
check-run: layers links lint-prose ptx-check version-check tests
	@BUILD=$(BUILD) JOBS=$${JOBS:-$(SIDE_BY_SIDE)} tests/run.sh $(CHECKS)
sweep-run: tests
	@BUILD=$(BUILD) JOBS=$${JOBS:-$(SIDE_BY_SIDE)} tests/run.sh $(SWEEPS)
check-sweep: deps  ## more of what `make check` runs: the contract suite in further settings, all cases of long tests; SHARE=K/N of it
	@+$(PARALLEL) sweep-run

check-sanitizers: deps  ## the tests under the address, leak and undefined-behaviour sanitizers at once
	@+$(PARALLEL) check-run BUILD=build/both SAN=both
check-asan: deps  ## the tests under the address and leak sanitizer
	@+$(PARALLEL) check-run BUILD=build/asan SAN=address
check-ubsan: deps  ## the tests under the undefined-behaviour sanitizer
	@+$(PARALLEL) check-run BUILD=build/ubsan SAN=undefined
check-tsan: deps  ## the tests under the thread sanitizer
	@+TEST_TIMEOUT=$${TEST_TIMEOUT:-1200} $(PARALLEL) check-run BUILD=build/tsan SAN=thread

# Not the listener's: valgrind answers for descriptor limits itself, and lets more through.
check-valgrind: deps  ## the unit tests under valgrind
	@$(MAKE) --no-print-directory tests
	@BUILD=$(BUILD) WRAP='valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite' \
		tests/run.sh $(filter-out %/test_listener,$(UNIT_BIN))

check-sim: deps  ## SEEDS random programs against the core, invariants after every step
	@$(MAKE) --no-print-directory $(SIM_BIN)
	@$(SIM_BIN) --seeds $(SEEDS) $(if $(FIRST),--first $(FIRST))

check-contract-sim: deps  ## the contract suite on an adversarial backend, with SEEDS seeds (30)
	@$(MAKE) --no-print-directory all $(CONTRACT_BIN) $(SIMBACKEND_BIN)
	@BUILD=$(BUILD) tests/simbackend/run.sh $(BACKEND_SEEDS) $(FIRST)

check-faults: deps  ## the contract suite with one call of the driver failing, ROUNDS times (each call and each error once)
	@$(MAKE) --no-print-directory all $(CONTRACT_BIN) $(DOUBLE_SO)
	@BUILD=$(BUILD) tests/contract/faults.sh --seed $(or $(FIRST),1) $(if $(ROUNDS),--rounds $(ROUNDS))

check-hostile: deps  ## the daemon against clients that misbehave, and the work of each request counted: part of `make check`
	@$(MAKE) --no-print-directory all $(HOSTILE_BIN)
	@BUILD=$(BUILD) tests/run.sh $(HOSTILE_BIN)

check-chaos: deps  ## KILLS (10000) kills and stops of trainers and the daemon at random moments, with SEED (1)
	@$(MAKE) --no-print-directory all $(BUILD)/tests/it/test_chaos
	@KILLS=$(or $(KILLS),10000) SEED=$(or $(SEED),1) BUILD=$(BUILD) $(BUILD)/tests/it/test_chaos

soak-readers: deps  ## SNAPSHOTS (10000) of a job that trains, each byte compared, while readers, ranks and the daemon are killed; with SEED (1)
	@$(MAKE) --no-print-directory all $(SOAK_BIN)
	@SNAPSHOTS=$(or $(SNAPSHOTS),10000) SEED=$(or $(SEED),1) BUILD=$(BUILD) $(SOAK_BIN)

check-mutants: deps  ## break one rule at a time: a test must notice each; JOBS copies at a time
	@tests/mutants/run.sh

.PHONY: check-model
check-model:  ## models of leases, versions and room, every state of them (spin), then each with a rule broken
	@MODEL=1 packaging/deps.sh
	@BUILD=$(BUILD) tests/model/run.sh
	@BUILD=$(BUILD) tests/model/run.sh --mutants

.PHONY: check-page
check-page:  ## the page of zeroctl snapshot in node and Chromium, which are installed by hand
	@$(MAKE) --no-print-directory all
	@BUILD=$(BUILD) tests/page/run.sh --need

.PHONY: check-cost
check-cost: deps  ## a gather and its release make at most 600 calls in the daemon, as valgrind counts them
	@COST=1 packaging/deps.sh
	@$(MAKE) --no-print-directory all
	@BUILD=$(BUILD) tests/bench/gather_instructions.sh --most 600 $(BUILD)/bin/zerod

check-gpu: deps  ## the contract suite and the stress on this machine's GPUs; STRESS_SECONDS each
	@$(MAKE) --no-print-directory tests
	@tests/gpu/run.sh $(STRESS_SECONDS) $(BUILD)

.PHONY: check-torch
check-torch: deps  ## the tests of zerod.torch on the host backend, with a pinned torch (about 5 GB); SHARE=K/N of their variants
	@$(MAKE) --no-print-directory all
	@BUILD=$(BUILD) tests/torch/run.sh

.PHONY: check-frameworks
check-frameworks: deps  ## zerod.torch with lightning, peft, trl and torchtitan, in environments of their own (about 5.5 GB)
	@$(MAKE) --no-print-directory all
	@BUILD=$(BUILD) tests/frameworks/run.sh

.PHONY: check-engines
check-engines: deps  ## zerod's plug-ins in vLLM, SGLang, verl and TRL on CPUs, in an environment of its own (about 7 GB)
	@$(MAKE) --no-print-directory all
	@BUILD=$(BUILD) tests/engines/run.sh

.PHONY: check-fresh
check-fresh:  ## `make check` in a bare Debian 12, by an ordinary user or by FRESH_USER=root: as root
	@FRESH=1 packaging/deps.sh
	@BUILD=$(BUILD) FRESH_USER=$(FRESH_USER) tests/packages/fresh.sh

.PHONY: check-systemd
check-systemd:  ## the units under a systemd of their own, in a container: as root
	@SYSTEMD=1 packaging/deps.sh
	@$(MAKE) --no-print-directory all $(DOUBLE_SO)
	@BUILD=$(BUILD) tests/systemd/run.sh

ptx:  ## the PTX of each kernels.cu, in `generated` beside it (nvcc)
	@NVCC="$(NVCC)" packaging/ptx.sh
ptx-check:  ## fails when `make ptx` would change something; passes without nvcc
	@NVCC="$(NVCC)" packaging/ptx.sh --check

layers:  ## no layer includes upward
	@tests/layers.sh
links:  ## what the documents point to exists
	@tests/links.py

.PHONY: lint-prose
lint-prose:  ## no comment opens with a pronoun in place of an actor
	@tests/prose.py

coverage: deps  ## line coverage of daemon/core
	@$(MAKE) --no-print-directory tests BUILD=build/coverage COVERAGE=1
	@BUILD=build/coverage tests/coverage.sh

bench: deps  ## zerobench's figures and their baselines, in one run
	@$(MAKE) --no-print-directory all $(LIFETIMES_BIN) $(STATE_BENCH_BIN)
	@BUILD=$(BUILD) tests/bench/run.sh

fuzz: deps  ## libFuzzer on the protocol's decoder and dispatcher (clang); SECONDS each
	@BUILD=build/fuzz tests/fuzz/run.sh

C_FILES := $(shell git ls-files '*.c' '*.h' 2>/dev/null)
CUDA_FILES := $(shell git ls-files '*.cu' 2>/dev/null)
format:  ## clang-format in place
	$(Q)clang-format -i $(C_FILES)
format-check:  ## fails when `make format` would change something, or a line is too long
	$(Q)clang-format --dry-run -Werror $(C_FILES)
	$(Q)tests/columns.sh $(C_FILES) $(CUDA_FILES)

TIDY_SRC := $(filter-out tests/%,$(filter %.c,$(C_FILES)))
tidy: deps $(PB_H)  ## clang-tidy over all but the tests, warnings are errors
	@printf '%s\n' $(TIDY_SRC) | xargs -P $$(nproc) -n 1 tests/tidy.sh $(BUILD)/gen

INSTALL_SH := DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" SBINDIR="$(SBINDIR)" LIBDIR="$(LIBDIR)" SYSCONFDIR="$(SYSCONFDIR)" BUILD="$(BUILD)" \
	VERSION="$(VERSION)" packaging/install.sh
install: all  ## into $(DESTDIR)$(PREFIX), with unit files, manual pages and pkg-config file
	@$(INSTALL_SH) install
uninstall:  ## takes away what install put there, but for the configuration
	@$(INSTALL_SH) uninstall

.PHONY: dist deb rpm release check-packages check-reproducible version-check
dist:  ## zerod-VERSION.tar.xz of the last commit, in $(BUILD): the same bytes each time
	@ONLY='make dist' packaging/deps.sh
	@BUILD="$(BUILD)" VERSION="$(VERSION)" packaging/dist.sh
deb: dist  ## Debian packages of the last commit, in $(BUILD)/deb
	@DEB=1 packaging/deps.sh
	@BUILD="$(BUILD)" VERSION="$(VERSION)" packaging/deb.sh
rpm: dist  ## the same as RPM packages, in $(BUILD)/rpm (rpmbuild, whose database knows no package on Debian)
	@rpmbuild -ba $(if $(wildcard /etc/debian_version),--nodeps) $(RPMFLAGS) --define "_topdir $(abspath $(BUILD))/rpm" --define "_sourcedir $(abspath $(BUILD))" packaging/rpm/zerod.spec
release:  ## the last commit as tarball, wheel and packages, with SHA256SUMS and NOTES.md, in $(BUILD)/release
	@git diff --quiet HEAD || { echo 'make release: changes are not committed' >&2; exit 1; }
	@$(MAKE) --no-print-directory wheel deb
	@if command -v rpmbuild >/dev/null; then $(MAKE) --no-print-directory rpm; fi
	@BUILD="$(BUILD)" VERSION="$(VERSION)" packaging/release.sh
check-packages: deb  ## the Debian packages in a Debian 12 of its own: install, upgrade, remove; as root
	@PACKAGES=1 packaging/deps.sh
	@$(MAKE) --no-print-directory all
	@BUILD="$(BUILD)" tests/packages/run.sh
check-reproducible: deps dist  ## two builds of the last commit in different folders are the same
	@BUILD="$(BUILD)" VERSION="$(VERSION)" tests/packages/reproducible.sh
version-check:  ## all files say the version of include/zerod.h, and have a licence
	@packaging/version.sh --check
	@tests/spdx.py

# Pure Python, with the library beside it. PYTHON chooses the environment, PYTHON_PREFIX another place.
PYTHON ?= python3
.PHONY: install-python wheel check-wheel
install-python: $(SO_CLIENT)  ## the Python package into PYTHON's environment, or under PYTHON_PREFIX, with the library beside it
	@BUILD="$(BUILD)" $(PYTHON) client/python/backend.py install $(PYTHON_PREFIX)
# By a compiler from PyPI that has the interfaces of each glibc, with the archives of Debian 12, which no newer glibc is needed for
# (docs/adr/0016-wheel-for-an-older-glibc.md). ZIG= takes CC instead: the wheel then needs this machine's glibc, and its tag says so.
ZIG ?= build/ziglang-0.17.1/ziglang/zig
WHEEL_OBJ := build/wheel-$(if $(ZIG),zig,cc)
WHEEL_TARGET := $(shell uname -m)-linux-gnu
WHEEL_CC := CC="$(abspath $(ZIG)) cc -target $(WHEEL_TARGET).2.28 -idirafter /usr/include -idirafter /usr/include/$(WHEEL_TARGET)" \
	LDFLAGS="-L/usr/lib/$(WHEEL_TARGET)" WERROR= ZIG_GLOBAL_CACHE_DIR=$(abspath build)/zig-cache
build/ziglang-%/ziglang/zig: | deps
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target build/ziglang-$* ziglang==$*
wheel: export WHEEL := 1
wheel: deps $(ZIG)  ## the same as a wheel for pip, with zerod, zeroctl and zerobench in it, in $(BUILD)/wheel
	@$(MAKE) --no-print-directory all BUILD=$(WHEEL_OBJ) BUNDLE=1 $(if $(ZIG),$(WHEEL_CC))
	@BUILD=$(WHEEL_OBJ) VERSION=$(VERSION) packaging/bundle.sh build/wheel-bundle
	@$(if $(ZIG),cp $(dir $(ZIG))LICENSE build/wheel-bundle/share/zerod/licenses/ziglang)
	@BUNDLE=build/wheel-bundle $(PYTHON) client/python/backend.py wheel $(BUILD)/wheel
build/auditwheel-%/auditwheel/main.py: | deps
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target build/auditwheel-$* auditwheel==$*
AUDITWHEEL := build/auditwheel-6.8.2/auditwheel/main.py
check-wheel: wheel $(AUDITWHEEL)  ## what the wheel installs where nothing else of zerod's is
	@ZEROD_WHEEL="$$(ls -t $(BUILD)/wheel/*.whl | head -n 1)" AUDITWHEEL=$(abspath $(AUDITWHEEL)/../..) BUILD="$(BUILD)" \
		tests/run.sh "$(PYTHON) tests/python/test_wheel.py Programs"

.PHONY: count
count:  ## lines of the product (without PTX and Markdown) and of the tests, as committed
	@echo "product $$(git ls-files client common daemon include proto | grep -vE '\.(ptx|md)$$' | xargs cat | wc -l), \
	tests $$(git ls-files tests | xargs cat | wc -l)" | tr -s '\t '

# The library's interface to other programs: its functions and the headers' structures.
ABI_BASELINE := packaging/libzerod.abi
check-abi abi-baseline: export ABI := 1
check-abi: deps  ## compare the library's binary interface with the committed baseline, by abigail-tools
	@$(MAKE) --no-print-directory $(SO_CLIENT)
	@abidiff --exported-interfaces-only --no-added-syms $(ABI_BASELINE) $(SO_CLIENT) && \
		echo "the binary interface is that of $(ABI_BASELINE)"

abi-baseline: deps  ## make that baseline anew, after a change that is meant
	@$(MAKE) --no-print-directory $(SO_CLIENT)
	@abidw --exported-interfaces-only --no-show-locs --no-corpus-path --no-comp-dir-path --drop-private-types --headers-dir include \
		--out-file $(ABI_BASELINE) $(SO_CLIENT)

bundle: deps  ## a relocatable folder build/bundle whose programs and library need nothing but libc
	@$(MAKE) --no-print-directory tests BUILD=build/bundle-obj BUNDLE=1
	@BUILD=build/bundle-obj VERSION=$(VERSION) packaging/bundle.sh build/bundle

clean:  ## remove what was built: the folder BUILD, build/ by default
	$(Q)rm -rf $(BUILD)
