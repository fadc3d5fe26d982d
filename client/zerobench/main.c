// SPDX-License-Identifier: Apache-2.0
/*
 * main.c - the command line of zerobench, with the letters of nccl-tests, and the order of a run.
 */
#include "bench.h"
#include "client/zerobench/step.h"

#include <argp.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/std_fds.h"
#include "base/text.h"

static const struct op {
	const char *name;
	int (*run)(struct zd_bench *bench, struct zd_err *err);
	uint32_t iters, warmup, ranks; /* defaults */
} ops[] = {
        [ZD_BENCH_GATHER] = {"gather", zd_bench_gather, 20, 5, 4},
        [ZD_BENCH_REDUCE] = {"reduce", zd_bench_reduce, 20, 5, 4},
        [ZD_BENCH_RPC] = {"rpc", zd_bench_rpc, 20000, 1000, 1},
        [ZD_BENCH_SCALE] = {"scale", zd_bench_scale, 20000, 1000, 16},
        [ZD_BENCH_STEP] = {"step", zd_bench_step, 10, 3, 2},
};

/* On GPUs, with other defaults. */
static const struct op cuda_ops[] = {
        [ZD_BENCH_GATHER] = {"gather", zd_bench_cuda, 100, 10, 0},
        [ZD_BENCH_REDUCE] = {"reduce", zd_bench_cuda, 100, 10, 0},
        [ZD_BENCH_STEP] = {"step", zd_bench_cuda, 10, 3, 0},
};

enum {
	KEY_JSON = 256,
	KEY_STRICT,
	KEY_PEER,
	KEY_SOCKET,
	KEY_START,
	KEY_UNITS,
	KEY_BACKEND,
	KEY_LOAD,
	KEY_ALONE,
	KEY_BACKWARD,
	KEY_NCCL,
	KEY_NODES,
	KEY_COLLECTIVES,
	KEY_ON_HOST,
};

#define STRICT_EXIT 100 /* not a status of zerod */
#define SCALE_UNITS 10000u
#define STEP_UNITS  16u
#define STEP_SIDE   4096u /* of the matrices whose products are a step's work on GPUs */
#define MOVES_BYTES (1u << ZD_BENCH_GATHER | 1u << ZD_BENCH_REDUCE)
#define STEPS       (1u << ZD_BENCH_STEP)
#define ALL         (~0u)

#define AT(member) offsetof(struct zd_bench_options, member)

/* The options that only set a member. */
static const struct setting {
	int key;
	enum { FLAG, COUNT, BYTES, DTYPE, TEXT } kind;
	size_t offset;
	unsigned ops; /* a bit for each operation that accepts it. check_backend() checks those for GPUs */
	uint32_t least, most; /* of a count */
} settings[] = {
        {'b', BYTES, AT(min_bytes), MOVES_BYTES, 0, 0},
        {'e', BYTES, AT(max_bytes), MOVES_BYTES | STEPS, 0, 0},
        {'f', COUNT, AT(factor), MOVES_BYTES, 2, 1u << 20},
        {'n', COUNT, AT(iters), ALL, 1, 10000000},
        {'w', COUNT, AT(warmup), ALL, 0, 10000000},
        {'c', COUNT, AT(check), MOVES_BYTES, 0, 1},
        {'d', DTYPE, AT(dtype), MOVES_BYTES | STEPS, 0, 0},
        {'r', COUNT, AT(ranks), ALL, 1, ZD_BENCH_MAX_RANKS},
        {KEY_UNITS, COUNT, AT(units), 1u << ZD_BENCH_SCALE | STEPS, 1, 65536},
        {KEY_JSON, FLAG, AT(json), ALL, 0, 0},
        {KEY_STRICT, FLAG, AT(strict), ALL, 0, 0},
        {KEY_SOCKET, TEXT, AT(socket_path), ALL, 0, 0},
        {KEY_START, FLAG, AT(start), ALL, 0, 0},
        {KEY_ALONE, FLAG, AT(alone), ALL, 0, 0},
        {KEY_ON_HOST, FLAG, AT(on_host), 1u << ZD_BENCH_GATHER, 0, 0},
        {KEY_NODES, COUNT, AT(nodes), ALL, 1, ZD_BENCH_MAX_NODES},
        {KEY_BACKWARD, BYTES, AT(backward_bytes), ALL, 0, 0},
        {KEY_NCCL, TEXT, AT(nccl_path), ALL, 0, 0},
};

static const struct argp_option argp_options[] = {
        {"op", 'o', "OP", 0,
         "gather (all_gather), reduce (reduce_scatter), all_reduce, rpc, scale or step (default: gather)", 0},
        {"minbytes", 'b', "SIZE", 0, "smallest unit (default: 1M; GPUs: 64K)", 0},
        {"maxbytes", 'e', "SIZE", 0,
         "largest unit (default: 64M; GPUs: 1G; step: its units, 64M, host devices: 1M)", 0},
        {"stepfactor", 'f', "FACTOR", 0, "from one size to the next (default: 4)", 0},
        {"iters", 'n', "N", 0, "timed iterations (default: 20; GPUs: 100; rpc, scale: 20000; step: 10)", 0},
        {"warmup_iters", 'w', "N", 0,
         "iterations before them (default: 5; GPUs: 10; rpc, scale: 1000; step: 3)", 0},
        {"check", 'c', "0|1", 0, "compare all bytes, in a separate iteration (default: 1)", 0},
        {"ranks", 'r', "N", 0, "processes, one per rank (default: 4; step: 2; scale: 16; GPUs: one each)", 0},
        {"ngpus", 'g', NULL, OPTION_ALIAS, NULL, 0},
        {"datatype", 'd', "TYPE", 0, "float, bfloat16 or half (default: float)", 0},
        {"units", KEY_UNITS, "N", 0,
         "units of the large daemon, for scale (default: 10000), or of a step (16)", 0},
        {"json", KEY_JSON, NULL, 0, "one JSON object, with machine, date and versions", 0},
        {"strict", KEY_STRICT, NULL, 0, "end with 100 if a target was missed", 0},
        {"socket", KEY_SOCKET, "PATH", 0, "measure the daemon on this socket (default: $ZEROD_SOCKET)", 0},
        {"start", KEY_START, NULL, 0, "measure a private daemon: the default without a socket", 0},
        {"backend", KEY_BACKEND, "NAME", 0, "of a private daemon: host or cuda (default: host)", 0},
        {"load", KEY_LOAD, "gemm:N", 0, "on GPUs: while bf16 products of N x N matrices run", 0},
        {"alone", KEY_ALONE, NULL, 0, "on GPUs: rank 0 gathers, the others do not", 0},
        {"on-host", KEY_ON_HOST, NULL, 0, "on GPUs: gather units on the host", 0},
        {"nodes", KEY_NODES, "N", 0, "on GPUs: N private daemons, each with a part of the GPUs (default: 1)",
         0},
        {"collectives", KEY_COLLECTIVES, "NAME", 0,
         "on GPUs: between a daemon's ranks, copies or nccl (default: copies)", 0},
        {"backward", KEY_BACKWARD, "SIZE", 0,
         "on GPUs: also reduce this many bytes of gradients, in buckets of up to 64 MiB", 0},
        {"nccl", KEY_NCCL, "PATH", 0,
         "on GPUs: libnccl.so.2 to compare with, or none (default: searched for)", 0},
        {"peer", KEY_PEER, "NAME", 0,
         "on GPUs: the baseline: nccl, nccl-ce (NCCL 2.28 with copy engines), or none (default: nccl)", 0},
        {0},
};

static const char doc[] =
        "Measures zerod: gathers, reductions and requests, each against a baseline from the same run."
        "\vSIZE is in bytes, or with K, M, G in powers of 1024. Times are medians. rpc and scale have no "
        "sizes, "
        "and no contents to check. The output ends with zerod's targets, in lines "
        "that start with \"# target:\". The exit code is 0, 2 for wrong usage, 28 if elements are wrong, 100 "
        "if a target was missed and --strict was given, or the number of zerod's status.";

static const char *name_of(int key)
{
	const struct argp_option *option = argp_options;
	while (option->key != key)
		option++;
	return option->name;
}

static uint64_t parse_bytes(struct argp_state *state, const char *name, const char *text)
{
	struct zd_err err = ZD_ERR_NONE;
	uint64_t bytes = 0;
	if (zd_bytes_parse(text, &bytes, &err))
		argp_error(state, "--%s: %s", name, err.text);
	if (bytes == 0 || bytes > 1ull << 40)
		argp_error(state, "--%s: expected 1 byte to 1 TiB, found '%s'", name, text);
	return bytes;
}

static uint32_t parse_count(struct argp_state *state, const char *name, const char *text, uint32_t least,
                            uint32_t most)
{
	char *end;
	errno = 0;
	unsigned long count = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || count < least || count > most)
		argp_error(state, "--%s: expected a number from %u to %u, found '%s'", name, least, most,
		           text);
	return (uint32_t)count;
}

/* Returns the index of the text among the names, whose last one is NULL. */
static unsigned parse_name(struct argp_state *state, int key, const char *text, const char *const *names,
                           const char *expected)
{
	for (unsigned i = 0; names[i]; i++)
		if (strcmp(names[i], text) == 0)
			return i;
	argp_error(state, "--%s: expected %s, found '%s'", name_of(key), expected, text);
	return 0;
}

static void parse_op(struct argp_state *state, const char *text, struct zd_bench_options *o)
{
	/* Also the names of NCCL and its tests. */
	static const char *const names[] = {"gather",         "all_gather", "reduce",
	                                    "reduce_scatter", "all_reduce", "rpc",
	                                    "scale",          "step",       NULL};
	static const enum zd_bench_op of[] = {ZD_BENCH_GATHER, ZD_BENCH_GATHER, ZD_BENCH_REDUCE,
	                                      ZD_BENCH_REDUCE, ZD_BENCH_REDUCE, ZD_BENCH_RPC,
	                                      ZD_BENCH_SCALE,  ZD_BENCH_STEP};
	o->op = of[parse_name(state, 'o', text, names, "gather, reduce, all_reduce, rpc, scale or step")];
	o->all_reduce = strcmp(text, "all_reduce") == 0;
}

static enum zerod_dtype parse_dtype(struct argp_state *state, const char *text)
{
	static const char *const names[] = {"float", "bfloat16", "half", NULL};
	static const enum zerod_dtype of[] = {ZEROD_FLOAT32, ZEROD_BFLOAT16, ZEROD_FLOAT16};
	return of[parse_name(state, 'd', text, names, "float, bfloat16 or half")];
}

static uint32_t parse_load(struct argp_state *state, const char *text)
{
	if (strncmp(text, "gemm:", 5) != 0)
		argp_error(state, "--load: expected gemm:N, found '%s'", text);
	return parse_count(state, "load", text + 5, 64, 32768);
}

static void parse_peer(struct argp_state *state, const char *text, struct zd_bench_options *o)
{
	static const char *const names[] = {"nccl", "nccl-ce", "none", NULL};
	const unsigned peer = parse_name(state, KEY_PEER, text, names, "nccl, nccl-ce or none");
	o->copy_engines = peer == 1;
	if (peer == 2)
		o->nccl_path = "none";
}

/* Rejects options that contradict each other. Sizes and counts are those given, or 0. */
static void complete_options(struct argp_state *state, struct zd_bench_options *o)
{
	const struct op *op = &ops[o->op];
	for (size_t i = 0; i < ZD_ARRAY_LEN(settings); i++)
		if (o->given & 1u << i && !(settings[i].ops & 1u << o->op))
			argp_error(state, "%s takes no --%s", o->all_reduce ? "all_reduce" : op->name,
			           name_of(settings[i].key));
	if (o->ranks > 1 && op->ranks == 1)
		argp_error(state, "%s measures one process: it takes no --ranks above 1", op->name);
	if (o->min_bytes && o->max_bytes && o->min_bytes > o->max_bytes)
		argp_error(state, "--minbytes is above --maxbytes");
	if (o->op == ZD_BENCH_STEP && o->units > ZD_STEP_MAX_UNITS)
		argp_error(state, "--units: a step has at most %u", ZD_STEP_MAX_UNITS);
	if (o->op == ZD_BENCH_STEP && (o->nodes > 1 || o->alone))
		argp_error(state, "step measures the ranks of one daemon: it takes no --nodes or --alone");
	if (o->socket_path && (o->start || o->backend_given))
		argp_error(state, "--socket names a daemon, --%s needs a new one: use one of them",
		           o->start ? "start" : "backend");
	if (o->socket_path && o->op == ZD_BENCH_SCALE)
		argp_error(state, "scale compares two daemons of its own: it takes no --socket");
	if (o->nodes > 1 && (o->socket_path || !o->cuda))
		argp_error(state, "--nodes needs private daemons on GPUs: use --backend=cuda");
	if (o->alone && (o->nodes > 1 || o->collectives == ZEROD_COLLECTIVES_NCCL))
		argp_error(state, "a rank that leaves something to NCCL cannot gather alone");
	if (o->copy_engines && (o->op != ZD_BENCH_GATHER || o->nodes > 1))
		argp_error(state,
		           "--peer=nccl-ce gathers within a node: it takes no --nodes and no other --op");
	const char *socket_path = getenv("ZEROD_SOCKET");
	if (!o->socket_path && !o->start && !o->backend_given && o->op != ZD_BENCH_SCALE && socket_path &&
	    *socket_path)
		o->socket_path = socket_path;
}

static void apply_setting(struct argp_state *state, const struct setting *setting, char *text)
{
	void *member = (char *)state->input + setting->offset;
	const char *name = name_of(setting->key);
	switch (setting->kind) {
	case FLAG:
		*(bool *)member = true;
		break;
	case COUNT:
		*(uint32_t *)member = parse_count(state, name, text, setting->least, setting->most);
		break;
	case BYTES:
		*(uint64_t *)member = parse_bytes(state, name, text);
		break;
	case DTYPE:
		*(enum zerod_dtype *)member = parse_dtype(state, text);
		break;
	case TEXT:
		*(const char **)member = text;
		break;
	}
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	static const char *const backends[] = {"host", "cuda", NULL};
	static const char *const collectives[] = {"copies", "nccl", NULL};
	struct zd_bench_options *o = state->input;
	if (key == 'g') /* an alias */
		key = 'r';
	for (size_t i = 0; i < ZD_ARRAY_LEN(settings); i++)
		if (settings[i].key == key) {
			apply_setting(state, &settings[i], arg);
			o->given |= 1u << i;
			return 0;
		}
	switch (key) {
	case 'o':
		parse_op(state, arg, o);
		return 0;
	case KEY_PEER:
		parse_peer(state, arg, o);
		return 0;
	case KEY_BACKEND:
		o->cuda = parse_name(state, key, arg, backends, "host or cuda") == 1;
		o->backend_given = true;
		return 0;
	case KEY_LOAD:
		o->load_side = parse_load(state, arg);
		return 0;
	case KEY_COLLECTIVES:
		o->collectives = (enum zerod_collectives)parse_name(state, key, arg, collectives,
		                                                    "copies or nccl");
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "expected only options, found '%s'", arg);
		return 0;
	case ARGP_KEY_END:
		complete_options(state, o);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static bool is_on_gpus(const struct zd_bench *bench)
{
	return bench->on_gpus && (bench->options.op == ZD_BENCH_GATHER ||
	                          bench->options.op == ZD_BENCH_REDUCE || bench->options.op == ZD_BENCH_STEP);
}

static const struct op *op_of(const struct zd_bench *bench)
{
	return is_on_gpus(bench) ? &cuda_ops[bench->options.op] : &ops[bench->options.op];
}

/* Sets defaults that depend on the operation and on the daemon's devices, which must be known. */
static void set_defaults(struct zd_bench *bench)
{
	struct zd_bench_options *o = &bench->options;
	const struct op *op = op_of(bench);
	const bool gpus = is_on_gpus(bench);
	if (o->op == ZD_BENCH_STEP) {
		o->max_bytes = o->max_bytes ? o->max_bytes : gpus ? 64u << 20 : 1u << 20;
		o->min_bytes = o->max_bytes;
		o->load_side = o->load_side || !gpus ? o->load_side : STEP_SIDE;
	}
	o->units = o->units ? o->units : o->op == ZD_BENCH_STEP ? STEP_UNITS : SCALE_UNITS;
	o->min_bytes = o->min_bytes ? o->min_bytes : gpus ? 64u << 10 : 1u << 20;
	o->max_bytes = o->max_bytes ? o->max_bytes : gpus ? 1u << 30 : 64u << 20;
	o->max_bytes = zd_max_u64(o->min_bytes, o->max_bytes);
	o->iters = o->iters ? o->iters : op->iters;
	o->warmup = o->warmup == UINT32_MAX ? op->warmup : o->warmup;
	if (!o->ranks)
		o->ranks = op->ranks ? op->ranks : bench->devices;
}

/* Options for GPUs need GPUs. */
static int check_backend(const struct zd_bench *bench, struct zd_err *err)
{
	const struct zd_bench_options *o = &bench->options;
	if (!is_on_gpus(bench) && (o->load_side || o->alone || o->nccl_path || o->copy_engines ||
	                           o->nodes > 1 || o->collectives != ZEROD_COLLECTIVES_COPIES))
		return zd_err_set(
		        err, ZEROD_E_UNSUPPORTED,
		        "--load, --alone, --nodes, --collectives, --nccl and --peer are for gathers "
		        "and reductions on GPUs");
	if (!is_on_gpus(bench) && o->all_reduce)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED, "all_reduce is measured on GPUs only");
	if (!is_on_gpus(bench) && o->on_host)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED, "--on-host is measured on GPUs only");
	if (o->alone && o->op == ZD_BENCH_REDUCE)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED, "no rank reduces alone");
	if (o->backward_bytes && (!is_on_gpus(bench) || o->op != ZD_BENCH_REDUCE || o->all_reduce ||
	                          o->nodes > 1 || o->collectives != ZEROD_COLLECTIVES_COPIES))
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "--backward is for reduce_scatter on GPUs, by the copies of one daemon");
	return 0;
}

/* Memory of a rank: shards, targets of up to twice their width, buckets and staging. */
static uint64_t backward_arena_bytes(const struct zd_bench *bench)
{
	const struct zd_bench_options *o = &bench->options;
	return o->backward_bytes ? 3 * o->backward_bytes / o->ranks + (512u << 20) : 0;
}

/* Memory for each rank's gathered buffer, bucket, staging and target of the largest unit, and as much again.
 * On GPUs also for units of other sizes. */
static uint64_t arena_bytes(const struct zd_bench *bench)
{
	const uint64_t ranks_per_device = (bench->options.ranks + bench->devices - 1) / bench->devices;
	const uint64_t others = bench->on_gpus ? ranks_per_device * (512u << 20) : 256u << 20;
	/* Between daemons sums are sent as float32. */
	const uint64_t units = bench->options.nodes > 1 ? 10 : 4;
	const uint64_t each = bench->options.op == ZD_BENCH_STEP
	                              ? zd_step_arena_bytes(bench)
	                              : units * bench->options.max_bytes + backward_arena_bytes(bench);
	return zd_align_up(others + ranks_per_device * each, 2u << 20);
}

/* Asks the daemon for its name, backend and number of devices, and completes the options accordingly. */
static int ask_daemon(struct zd_bench *bench, struct zd_err *err)
{
	zerod_client *client;
	struct zd_bench_status daemon;
	int status = zd_bench_connect(bench->socket_path, &client, err);
	if (status)
		return status;
	status = zd_bench_status(client, &daemon);
	if (status)
		zd_err_set(err, status, "%s: %s", zerod_status_name(status), zerod_last_error(client));
	zerod_close(client);
	if (status)
		return status;
	snprintf(bench->daemon, sizeof(bench->daemon), "zerod %s on %s devices", daemon.daemon,
	         daemon.backend);
	bench->devices = daemon.devices * bench->options.nodes;
	bench->daemon_pid = (pid_t)daemon.client_pid == getpid() ? (int)daemon.pid : 0;
	bench->on_gpus = strcmp(daemon.backend, "cuda") == 0;
	set_defaults(bench);
	return check_backend(bench, err);
}

static int measure_all(struct zd_bench *bench, const char *socket_path, struct zd_err *err)
{
	bench->socket_path = bench->socket_paths[0] = socket_path;
	int status = ask_daemon(bench, err);
	if (!status) {
		zd_report_begin(bench);
		status = op_of(bench)->run(bench, err);
	}
	return status;
}

/*
 * Requests that move no bytes cost little more than waking the other process, and a wake on another CPU that
 * sleeps costs ten times as much. If the scheduler chose the CPUs, a ratio would compare its choices for the
 * two pairs of processes. On one CPU it compares the work of the processes. Children inherit the binding. A
 * daemon that the user has started is not bound.
 */
static int bind_to_one_cpu(struct zd_err *err)
{
	cpu_set_t cpus;
	const int cpu = sched_getcpu();
	CPU_ZERO(&cpus);
	CPU_SET(cpu < 0 ? 0 : cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		return zd_err_errno(err, errno, "cannot bind to CPU %d", cpu);
	return 0;
}

static int measure_private(struct zd_bench *bench, struct zd_err *err)
{
	const uint32_t nodes = bench->options.nodes;
	const char *nccl_path = bench->options.nccl_path;
	struct zd_private_options options = {
	        .cuda = bench->on_gpus, .devices = bench->devices, .arena_bytes = arena_bytes(bench)};
	if (bench->options.on_host)
		options.host_arena_bytes = zd_align_up(4 * bench->options.max_bytes, 2u << 20);
	struct zd_private daemons[ZD_BENCH_MAX_NODES] = {0};
	int status = 0;
	if (nccl_path && strcmp(nccl_path, "none") != 0)
		options.nccl_path = nccl_path;
	if (nodes > 1)
		options.ngpus = bench->devices / nodes;
	for (uint32_t node = 0; node < nodes && !status; node++) {
		options.first_gpu = node * options.ngpus;
		status = zd_private_start(&options, &daemons[node], err);
		bench->socket_paths[node] = daemons[node].socket_path;
	}
	if (!status)
		status = measure_all(bench, daemons[0].socket_path, err);
	bench->socket_path = NULL; /* ends with the daemons */
	memset(bench->socket_paths, 0, sizeof(bench->socket_paths));
	for (uint32_t node = 0; node < nodes; node++)
		zd_private_stop(&daemons[node]);
	return status;
}

/* Sets the number of devices of a private daemon, and the options that depend on it. */
static int plan_private(struct zd_bench *bench, struct zd_err *err)
{
	bench->on_gpus = bench->options.cuda;
	int status = bench->on_gpus ? zd_bench_count_gpus(&bench->devices, err) : 0;
	if (status)
		return status;
	if (bench->options.nodes > 1 && bench->devices < bench->options.nodes)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "%u GPUs for %u daemons", bench->devices,
		                  bench->options.nodes);
	bench->devices -= bench->devices % bench->options.nodes;
	set_defaults(bench);
	if (!bench->on_gpus)
		bench->devices = bench->options.ranks < 4 ? bench->options.ranks : 4;
	return check_backend(bench, err);
}

static int run_bench(struct zd_bench *bench, struct zd_err *err)
{
	const struct zd_bench_options *o = &bench->options;
	int status = 0;
	if (!o->socket_path) {
		status = plan_private(bench, err);
		if (status)
			return status;
	}
	bench->one_cpu = !o->socket_path && (o->op == ZD_BENCH_RPC || o->op == ZD_BENCH_SCALE);
	if (bench->one_cpu)
		status = bind_to_one_cpu(err);
	if (status)
		return status;
	if (o->op == ZD_BENCH_SCALE) {
		snprintf(bench->daemon, sizeof(bench->daemon), "two private daemons");
		zd_report_begin(bench);
		status = zd_bench_scale(bench, err);
	} else if (o->socket_path) {
		status = measure_all(bench, o->socket_path, err);
	} else {
		status = measure_private(bench, err);
	}
	if (status)
		return status;
	zd_report_end(bench);
	if (bench->wrong)
		return zd_err_set(err, ZEROD_E_DEVICE, "%llu elements are wrong",
		                  (unsigned long long)bench->wrong);
	return 0;
}

/* The daemon's texts contain names that other users have chosen. */
static void print_error(const char *text)
{
	char escaped[ZD_ERR_TEXT_BYTES * ZD_TEXT_ESCAPE_GROWTH + 1];
	zd_text_escape(text, escaped, sizeof(escaped));
	fprintf(stderr, "zerobench: %s\n", escaped);
}

int main(int argc, char **argv)
{
	struct zd_bench bench = {
	        .options = {
	                .warmup = UINT32_MAX, .nodes = 1, .factor = 4, .dtype = ZEROD_FLOAT32, .check = 1}};
	const struct argp argp = {.options = argp_options, .parser = parse_option, .doc = doc};
	struct zd_err err = ZD_ERR_NONE;
	zd_std_fds_fill();
	argp_program_version = "zerobench " ZEROD_VERSION_TEXT;
	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &bench.options);
	bench.op_name = bench.options.all_reduce ? "all_reduce" : ops[bench.options.op].name;
	bench.results = json_array();
	bench.targets = json_array();
	zd_bench_catch_signals();
	int status = run_bench(&bench, &err);
	const bool missed = zd_report_missed(&bench);
	json_decref(bench.results);
	json_decref(bench.targets);
	if (status)
		print_error(err.text);
	else if (fflush(stdout)) {
		fprintf(stderr, "zerobench: cannot write the output: %s\n", strerror(errno));
		status = ZEROD_E_SYSTEM;
	} else if (ferror(stdout)) { /* an earlier error, whose reason is lost */
		fprintf(stderr, "zerobench: cannot write the output\n");
		status = ZEROD_E_SYSTEM;
	}
	if (status)
		return -status;
	return bench.options.strict && missed ? STRICT_EXIT : 0;
}
