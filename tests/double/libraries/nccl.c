/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl.c - NCCL's double: its calls. nccl_control.h says what a test may ask of it; from the environment it
 * takes
 *
 *   ZD_DOUBLE_NCCL_VERSION=N   what ncclGetVersion says, 22809 without
 *   ZD_DOUBLE_NCCL_IDS=N       so many ids are made, then none; of -1 the process ends with the first, of -2
 *                              that takes for ever
 *   ZD_DOUBLE_NCCL_TALKS=1     each id is made with many words on standard output
 *   ZD_DOUBLE_NCCL_IDLE        an all-gather moves nothing, and says nothing of it
 *   ZD_DOUBLE_NCCL_CONNECTS    the first operation is in progress until all ranks have asked for theirs, as
 *                              with NCCL_RUNTIME_CONNECT
 *   ZD_DOUBLE_LEAKS=1          a process that has not given its communicators back exits with 99
 *
 * A nonblocking call is in progress until ncclCommGetAsyncError has said so some times; only then is anything
 * done, so that whoever goes on earlier is too early. Whoever calls meanwhile has broken the communicator, as
 * with NCCL.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/double/libraries/nccl_double.h"
#include "tests/double/nccl_control.h"

#define DEFAULT_BLOCKS 32u
#define MAX_BLOCKS     64
#define CUDA_VERSION   13000 /* whose functions of the driver are asked for */

#define EXPORT __attribute__((visibility("default")))

/* A function of the table without its definition does not link, one of another type does not compile. */
#define DECLARE(member, name, args)      EXPORT int name args;
#define DECLARE_TEXT(member, name, args) EXPORT const char *name args;
ZD_NCCL_FUNCTIONS(DECLARE)
ZD_NCCL_TEXTS(DECLARE_TEXT)
#undef DECLARE
#undef DECLARE_TEXT

static struct {
	pthread_mutex_t lock;
	char function[64]; /* "": all */
	unsigned nth, calls;
	int result;
	unsigned polls, ncomms;
	bool aborts_held;
	char name[64], value[64];    /* of the configuration file; "": none */
	LIST_HEAD(, ncclComm) comms; /* and those whose GPU was lost under them */
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .polls = 2};

/* ---- What a test asks for ------------------------------------------------------------------------------ */

static void control_fail_call(const char *function, unsigned nth, int result)
{
	(void)pthread_mutex_lock(&all.lock);
	(void)snprintf(all.function, sizeof(all.function), "%s", function ? function : "");
	all.nth = nth;
	all.result = result;
	all.calls = 0;
	(void)pthread_mutex_unlock(&all.lock);
}

static unsigned control_calls(void)
{
	unsigned calls;

	(void)pthread_mutex_lock(&all.lock);
	calls = all.calls;
	(void)pthread_mutex_unlock(&all.lock);
	return calls;
}

static void control_polls(unsigned count)
{
	(void)pthread_mutex_lock(&all.lock);
	all.polls = count;
	(void)pthread_mutex_unlock(&all.lock);
}

static void control_set_async_error(struct ncclComm *comm, int result)
{
	atomic_store(&comm->async, result);
}

static unsigned control_comms(void)
{
	unsigned count;

	(void)pthread_mutex_lock(&all.lock);
	count = all.ncomms;
	(void)pthread_mutex_unlock(&all.lock);
	return count;
}

static unsigned control_kernels(void)
{
	const struct ncclComm *comm;
	unsigned count = 0;

	(void)pthread_mutex_lock(&all.lock);
	LIST_FOREACH (comm, &all.comms, link)
		count += atomic_load(&comm->kernels);
	(void)pthread_mutex_unlock(&all.lock);
	return count;
}

static unsigned control_running(void)
{
	const struct ncclComm *comm;
	unsigned count = 0;

	(void)pthread_mutex_lock(&all.lock);
	LIST_FOREACH (comm, &all.comms, link)
		count += atomic_load(&comm->running);
	(void)pthread_mutex_unlock(&all.lock);
	return count;
}

static unsigned control_blocks(void)
{
	const struct ncclComm *comm;
	unsigned count = 0;

	(void)pthread_mutex_lock(&all.lock);
	LIST_FOREACH (comm, &all.comms, link)
		count += comm->blocks;
	(void)pthread_mutex_unlock(&all.lock);
	return count;
}

static void control_configure(const char *name, const char *value)
{
	(void)pthread_mutex_lock(&all.lock);
	(void)snprintf(all.name, sizeof(all.name), "%s", name);
	(void)snprintf(all.value, sizeof(all.value), "%s", value);
	(void)pthread_mutex_unlock(&all.lock);
}

static void read_configuration(void)
{
	(void)pthread_mutex_lock(&all.lock);
	if (all.name[0])
		(void)setenv(all.name, all.value, 0); /* NCCL prefers what is there already, too */
	all.name[0] = '\0';
	(void)pthread_mutex_unlock(&all.lock);
}

static void control_hold_aborts(int held)
{
	(void)pthread_mutex_lock(&all.lock);
	all.aborts_held = held != 0;
	(void)pthread_mutex_unlock(&all.lock);
}

static bool aborts_are_held(void)
{
	bool held;

	(void)pthread_mutex_lock(&all.lock);
	held = all.aborts_held;
	(void)pthread_mutex_unlock(&all.lock);
	return held;
}

EXPORT extern const struct double_nccl_control double_nccl;
const struct double_nccl_control double_nccl = {
        control_fail_call, control_calls,   control_polls,  control_set_async_error, control_comms,
        control_kernels,   control_running, control_blocks, control_configure,       control_hold_aborts,
};

/* Counts the call; what it is to fail with, or 0. */
static int enter(const char *function)
{
	int result = ZD_NCCL_SUCCESS;
	bool polls = strcmp(function, "ncclCommGetAsyncError") == 0;

	(void)pthread_mutex_lock(&all.lock);
	if (all.function[0] ? strcmp(all.function, function) == 0 : !polls)
		result = ++all.calls == all.nth ? all.result : ZD_NCCL_SUCCESS;
	(void)pthread_mutex_unlock(&all.lock);
	return result;
}

__attribute__((destructor)) static void at_exit(void)
{
	const char *leaks = getenv("ZD_DOUBLE_LEAKS");

	if (!leaks || strcmp(leaks, "1") != 0 || all.ncomms == 0)
		return;
	(void)fprintf(stderr, "double: %s (%d): not given back: %u communicators\n",
	              program_invocation_short_name, (int)getpid(), all.ncomms);
	(void)fflush(NULL);
	_exit(99);
}

/* ---- Of the library ------------------------------------------------------------------------------------ */

int ncclGetVersion(int *version)
{
	const char *text = getenv("ZD_DOUBLE_NCCL_VERSION");
	int result = enter(__func__);

	if (!result)
		*version = text ? (int)strtol(text, NULL, 10) : 22809;
	return result;
}

const char *ncclGetErrorString(int result)
{
	static const char *const texts[] = {"no error",
	                                    "unhandled cuda error",
	                                    "unhandled system error",
	                                    "internal error",
	                                    "invalid argument",
	                                    "invalid usage",
	                                    "remote process exited or there was a network error",
	                                    "NCCL operation in progress"};

	return result >= 0 && result <= ZD_NCCL_IN_PROGRESS ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(struct ncclComm *comm)
{
	(void)comm;
	return "a double says no more";
}

int ncclGetUniqueId(struct zd_nccl_id *id)
{
	const char *text = getenv("ZD_DOUBLE_NCCL_IDS");
	static int made;
	int result = enter(__func__);

	if (getenv("ZD_DOUBLE_NCCL_TALKS"))
		for (int i = 0; i < 1000; i++)
			(void)printf("NCCL INFO makes an id\n");
	if (text && strcmp(text, "-1") == 0)
		_exit(3);
	if (text && strcmp(text, "-2") == 0)
		(void)pause();
	if (!result && text && ++made > (int)strtol(text, NULL, 10))
		return ZD_NCCL_SYSTEM_ERROR;
	return result ? result : nccl_ranks_name(id);
}

/* ---- The driver ---------------------------------------------------------------------------------------- */

typedef int get_proc_fn(const char *name, void **function, int version, uint64_t flags, int *status);

static int find_driver(struct nccl_driver *driver)
{
	void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	void *symbol = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
	get_proc_fn *get_proc;
	/* So that the driver's double finds the kernel. */
	void *self = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL);
	static const char *const names[] = {"cuCtxGetCurrent",  "cuCtxPushCurrent", "cuCtxPopCurrent",
	                                    "cuModuleLoadData", "cuModuleUnload",   "cuModuleGetFunction",
	                                    "cuStreamQuery",    "cuLaunchKernel"};
	void *functions[sizeof(names) / sizeof(names[0])];

	_Static_assert(sizeof(functions) == sizeof(*driver), "as many names as members");
	memcpy(&get_proc, &symbol, sizeof(get_proc));
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!get_proc || get_proc(names[i], &functions[i], CUDA_VERSION, 0, NULL))
			return ZD_NCCL_UNHANDLED_CUDA_ERROR;
	}
	(void)self;
	memcpy(driver, functions, sizeof(*driver));
	return ZD_NCCL_SUCCESS;
}

static int load_kernel(struct ncclComm *comm)
{
	const struct nccl_driver *driver = &comm->driver;

	if (driver->ctxGetCurrent(&comm->context) || !comm->context ||
	    driver->moduleLoadData(&comm->module, NCCL_KERNEL_TEXT) ||
	    driver->moduleGetFunction(&comm->function, comm->module, NCCL_KERNEL_NAME))
		return ZD_NCCL_UNHANDLED_CUDA_ERROR;
	return ZD_NCCL_SUCCESS;
}

static void unload_kernel(struct ncclComm *comm)
{
	struct CUctx_st *popped;

	if (!comm->module)
		return;
	/* Once more: a test may have let this call fail. */
	if (comm->driver.ctxPushCurrent(comm->context) && comm->driver.ctxPushCurrent(comm->context))
		return;
	(void)comm->driver.moduleUnload(comm->module);
	(void)comm->driver.ctxPopCurrent(&popped);
}

/* ---- Works --------------------------------------------------------------------------------------------- */

static void free_works(struct ncclComm *comm, bool every)
{
	struct nccl_work *work;

	while ((work = STAILQ_FIRST(&comm->works)) && (every || atomic_load(&work->ended))) {
		STAILQ_REMOVE_HEAD(&comm->works, link);
		nccl_work_free(work);
	}
}

/* Onto the stream, as the comm's work says. */
static int launch(struct ncclComm *comm)
{
	struct nccl_work *work = comm->work;
	struct CUctx_st *popped;
	void *params[] = {&work};
	int result;

	comm->work = NULL;
	free_works(comm, false);
	STAILQ_INSERT_TAIL(&comm->works, work, link);
	if (comm->driver.ctxPushCurrent(comm->context))
		return ZD_NCCL_UNHANDLED_CUDA_ERROR;
	(void)atomic_fetch_add(&comm->kernels, 1);
	result = comm->driver.launchKernel(comm->function, 1, 1, 1, 1, 1, 1, 0, comm->stream, params, NULL);
	if (result)
		(void)atomic_fetch_sub(&comm->kernels, 1);
	(void)comm->driver.ctxPopCurrent(&popped);
	return result ? ZD_NCCL_UNHANDLED_CUDA_ERROR : ZD_NCCL_SUCCESS;
}

/* Until no kernel of it runs. False: its GPU was lost under one. */
static bool wait_for_kernels(struct ncclComm *comm)
{
	while (atomic_load(&comm->kernels) > 0) {
		struct CUctx_st *popped;
		int result = comm->driver.ctxPushCurrent(comm->context);

		if (!result) {
			result = comm->driver.streamQuery(comm->stream);
			(void)comm->driver.ctxPopCurrent(&popped);
		}
		if (result && result != ZD_CU_NOT_READY)
			return false;
		(void)sched_yield();
	}
	return true;
}

/* ---- What is in progress ------------------------------------------------------------------------------- */

static bool connect(struct ncclComm *comm)
{
	unsigned own = 1u << comm->rank, all_ranks = (1u << comm->nranks) - 1;

	if (!comm->connected && getenv("ZD_DOUBLE_NCCL_CONNECTS"))
		comm->connected = (atomic_fetch_or(&comm->shared->begun, own) | own) == all_ranks;
	else
		comm->connected = true;
	return comm->connected;
}

static bool is_done(struct ncclComm *comm)
{
	if (comm->pending == NCCL_INIT)
		return nccl_ranks_complete(comm->shared, &comm->id);
	if (comm->pending == NCCL_LAUNCH && !connect(comm))
		return false;
	return comm->pending != NCCL_FINALIZE || atomic_load(&comm->kernels) == 0;
}

/* A test that asks for fewer polls does so for what is pending, too. */
static bool stays_pending(struct ncclComm *comm)
{
	(void)pthread_mutex_lock(&all.lock);
	if (comm->polls > all.polls)
		comm->polls = all.polls;
	(void)pthread_mutex_unlock(&all.lock);
	return comm->polls > 0 && comm->polls--;
}

/* How the communicator is, as ncclCommGetAsyncError says it. */
static int look(struct ncclComm *comm)
{
	enum nccl_pending pending = comm->pending;
	int result = atomic_load(&comm->async);

	if (result || pending == NCCL_NOTHING)
		return result;
	if (stays_pending(comm) || !is_done(comm))
		return ZD_NCCL_IN_PROGRESS;
	comm->pending = NCCL_NOTHING;
	result = pending == NCCL_LAUNCH ? launch(comm) : ZD_NCCL_SUCCESS;
	if (result)
		atomic_store(&comm->async, result);
	return result;
}

static int begin(struct ncclComm *comm, enum nccl_pending pending)
{
	int result;

	comm->pending = pending;
	(void)pthread_mutex_lock(&all.lock);
	comm->polls = comm->blocking ? 0 : all.polls;
	(void)pthread_mutex_unlock(&all.lock);
	if (!comm->blocking)
		return ZD_NCCL_IN_PROGRESS;
	while ((result = look(comm)) == ZD_NCCL_IN_PROGRESS)
		(void)sched_yield();
	return result;
}

/* A call during a call that is in progress breaks the communicator. */
static int check_ready(struct ncclComm *comm)
{
	if (!comm || atomic_load(&comm->aborted))
		return ZD_NCCL_INVALID_ARGUMENT;
	if (comm->pending == NCCL_NOTHING)
		return atomic_load(&comm->async);
	atomic_store(&comm->async, ZD_NCCL_INVALID_ARGUMENT);
	return ZD_NCCL_INVALID_ARGUMENT;
}

int ncclCommGetAsyncError(struct ncclComm *comm, int *result)
{
	int failure = enter(__func__);

	if (!failure)
		*result = look(comm);
	return failure;
}

/* ---- Communicators ------------------------------------------------------------------------------------- */

static void forget(struct ncclComm *comm)
{
	(void)pthread_mutex_lock(&all.lock);
	all.ncomms--;
	LIST_REMOVE(comm, link);
	(void)pthread_mutex_unlock(&all.lock);
}

/* One whose GPU was lost stays for its kernel's sake, in the list and not in the count. */
static void give_back(struct ncclComm *comm)
{
	bool still = wait_for_kernels(comm);

	if (comm->shared && still)
		nccl_ranks_leave(comm->shared, &comm->id);
	unload_kernel(comm);
	nccl_work_free(comm->work);
	comm->work = NULL;
	if (still) {
		forget(comm);
		free_works(comm, true);
		free(comm);
		return;
	}
	(void)pthread_mutex_lock(&all.lock);
	all.ncomms--;
	(void)pthread_mutex_unlock(&all.lock);
}

static struct ncclComm *make(const struct zd_nccl_id *id, int nranks, int rank,
                             const struct zd_nccl_config *config)
{
	struct ncclComm *comm = calloc(1, sizeof(*comm));

	if (!comm)
		abort();
	comm->id = *id;
	comm->nranks = nranks;
	comm->rank = rank;
	comm->blocking = config->blocking != 0;
	comm->blocks = config->max_ctas == ZD_NCCL_UNDEFINED ? DEFAULT_BLOCKS : (unsigned)config->max_ctas;
	STAILQ_INIT(&comm->works);
	(void)pthread_mutex_lock(&all.lock);
	all.ncomms++;
	LIST_INSERT_HEAD(&all.comms, comm, link);
	(void)pthread_mutex_unlock(&all.lock);
	return comm;
}

/* As NCCL reads it: what is not of its time is left at its defaults. */
static bool is_config(const struct zd_nccl_config *config)
{
	return config && config->size >= sizeof(*config) && config->magic == ZD_NCCL_CONFIG_MAGIC &&
	       config->version >= ZD_NCCL_CONFIG_VERSION &&
	       (config->max_ctas == ZD_NCCL_UNDEFINED ||
	        (config->max_ctas >= 1 && config->max_ctas <= MAX_BLOCKS)) &&
	       (config->blocking == 0 || config->blocking == 1 || config->blocking == ZD_NCCL_UNDEFINED);
}

int ncclCommInitRankConfig(struct ncclComm **comm, int nranks, struct zd_nccl_id id, int rank,
                           struct zd_nccl_config *config)
{
	int result = enter(__func__);
	struct ncclComm *made;

	read_configuration();
	if (result)
		return result;
	if (!is_config(config) || nranks < 1 || nranks > NCCL_RANKS || rank < 0 || rank >= nranks ||
	    id.bytes[0] != '/')
		return ZD_NCCL_INVALID_ARGUMENT;
	made = make(&id, nranks, rank, config);
	result = find_driver(&made->driver);
	if (!result)
		result = load_kernel(made);
	if (!result) {
		made->shared = nccl_ranks_join(&id, nranks, rank);
		result = made->shared ? ZD_NCCL_SUCCESS : ZD_NCCL_SYSTEM_ERROR;
	}
	if (result) {
		give_back(made);
		return result;
	}
	*comm = made;
	return begin(made, NCCL_INIT);
}

int ncclCommFinalize(struct ncclComm *comm)
{
	int result = enter(__func__);

	if (!result)
		result = check_ready(comm);
	return result ? result : begin(comm, NCCL_FINALIZE);
}

int ncclCommDestroy(struct ncclComm *comm)
{
	int result = enter(__func__), not_ready = check_ready(comm);

	if (not_ready)
		return not_ready;
	give_back(comm);
	return result;
}

/* Peers are not told. */
int ncclCommAbort(struct ncclComm *comm)
{
	int result = enter(__func__);

	while (aborts_are_held())
		(void)sched_yield();
	atomic_store(&comm->aborted, true);
	give_back(comm);
	return result;
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* Of one communicator at a time. */
static __thread struct {
	int depth;
	struct ncclComm *comm;
} group;

int ncclGroupStart(void)
{
	int result = enter(__func__);

	if (!result)
		group.depth++;
	return result;
}

int ncclGroupEnd(void)
{
	struct ncclComm *comm = group.comm;
	int result = enter(__func__);

	if (group.depth == 0)
		return ZD_NCCL_INVALID_USAGE;
	if (--group.depth > 0 || !comm)
		return result;
	group.comm = NULL;
	if (!result)
		return begin(comm, NCCL_LAUNCH);
	nccl_work_free(comm->work);
	comm->work = NULL;
	return result;
}

/* ---- Operations ---------------------------------------------------------------------------------------- */

/* A new work of the communicator, or that of the group. */
static int open_work(struct ncclComm *comm, int type, struct CUstream_st *stream)
{
	int result = check_ready(comm);

	if (result)
		return result;
	if (nccl_type_bytes(type) == 0 || (group.comm && group.comm != comm))
		return ZD_NCCL_INVALID_ARGUMENT;
	if (!comm->work)
		comm->work = nccl_work_new(comm);
	comm->stream = stream;
	return ZD_NCCL_SUCCESS;
}

static int close_work(struct ncclComm *comm)
{
	if (group.depth == 0)
		return begin(comm, NCCL_LAUNCH);
	group.comm = comm;
	return ZD_NCCL_SUCCESS;
}

int ncclAllGather(zd_cu_ptr send, zd_cu_ptr receive, size_t count, int type, struct ncclComm *comm,
                  struct CUstream_st *stream)
{
	size_t bytes = count * nccl_type_bytes(type);
	int result = enter(__func__);

	if (!result)
		result = open_work(comm, type, stream);
	if (result)
		return result;
	for (int i = 0; i < comm->nranks && !getenv("ZD_DOUBLE_NCCL_IDLE"); i++) {
		nccl_work_send(comm->work, i, send, bytes);
		nccl_work_receive(comm->work, i, receive + (size_t)i * bytes, bytes);
	}
	return close_work(comm);
}

int ncclReduceScatter(zd_cu_ptr send, zd_cu_ptr receive, size_t count, int type, int op,
                      struct ncclComm *comm, struct CUstream_st *stream)
{
	size_t bytes = count * nccl_type_bytes(type);
	int result = enter(__func__);

	if (!result)
		result = op == ZD_NCCL_SUM ? open_work(comm, type, stream) : ZD_NCCL_INVALID_ARGUMENT;
	if (result)
		return result;
	comm->work->sums = type;
	for (int i = 0; i < comm->nranks; i++) {
		nccl_work_send(comm->work, i, send + (size_t)i * bytes, bytes);
		nccl_work_receive(comm->work, i, receive, bytes);
	}
	return close_work(comm);
}

int ncclAllReduce(zd_cu_ptr send, zd_cu_ptr receive, size_t count, int type, int op, struct ncclComm *comm,
                  struct CUstream_st *stream)
{
	size_t bytes = count * nccl_type_bytes(type);
	int result = enter(__func__);

	if (!result)
		result = op == ZD_NCCL_SUM ? open_work(comm, type, stream) : ZD_NCCL_INVALID_ARGUMENT;
	if (result)
		return result;
	comm->work->sums = type;
	for (int i = 0; i < comm->nranks; i++) {
		nccl_work_send(comm->work, i, send, bytes);
		nccl_work_receive(comm->work, i, receive, bytes);
	}
	return close_work(comm);
}

int ncclBroadcast(zd_cu_ptr send, zd_cu_ptr receive, size_t count, int type, int root, struct ncclComm *comm,
                  struct CUstream_st *stream)
{
	size_t bytes = count * nccl_type_bytes(type);
	int result = enter(__func__);

	if (!result)
		result = open_work(comm, type, stream);
	if (result)
		return result;
	for (int i = 0; i < comm->nranks && comm->rank == root; i++)
		nccl_work_send(comm->work, i, send, bytes);
	nccl_work_receive(comm->work, root, receive, bytes);
	return close_work(comm);
}

int ncclSend(zd_cu_ptr send, size_t count, int type, int peer, struct ncclComm *comm,
             struct CUstream_st *stream)
{
	int result = enter(__func__);

	if (!result)
		result = open_work(comm, type, stream);
	if (result)
		return result;
	nccl_work_send(comm->work, peer, send, count * nccl_type_bytes(type));
	return close_work(comm);
}

int ncclRecv(zd_cu_ptr receive, size_t count, int type, int peer, struct ncclComm *comm,
             struct CUstream_st *stream)
{
	int result = enter(__func__);

	if (!result)
		result = open_work(comm, type, stream);
	if (result)
		return result;
	nccl_work_receive(comm->work, peer, receive, count * nccl_type_bytes(type));
	return close_work(comm);
}
