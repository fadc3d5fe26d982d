/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.c - what every call has in common: the lock, the count, and the faults that the environment asks for.
 *
 *   ZD_DOUBLE_FAIL=N:RESULT           the Nth call of this process gives RESULT
 *   ZD_DOUBLE_FAIL=cuMemCreate:N:RESULT   the Nth call of that function
 *   ZD_DOUBLE_FAIL_IN=PROGRAM         only in the program of that name
 *   ZD_DOUBLE_COUNT=FILE              at exit, appends "PROGRAM FUNCTION CALLS" for each function, and
 *                                     "PROGRAM all CALLS"
 *
 * Calls that poll are counted, too: where their number varies, name the function. Several faults are
 * separated by commas. A call that fails so does nothing, except that what gives something back does so, as
 * the driver's own do that report an earlier failure. After a result that ends a context, all of that
 * context's later calls fail with it.
 */
#include "tests/double/double.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUNCTIONS 96
#define FAULTS    8

struct fault {
	char function[64]; /* "": of all */
	unsigned long nth;
	int result;
};

static struct {
	pthread_mutex_t lock;
	pid_t pid; /* of the process that called first; a forked child is refused */
	bool initialised;
	unsigned long calls;
	int nfunctions, nfaults;
	struct {
		const char *name;
		unsigned long calls;
	} functions[FUNCTIONS];
	struct fault faults[FAULTS];
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- Lock ---------------------------------------------------------------------------------------------- */

void double_lock(void)
{
	(void)pthread_mutex_lock(&all.lock);
}

void double_unlock(void)
{
	(void)pthread_mutex_unlock(&all.lock);
}

void double_wait(pthread_cond_t *changed)
{
	(void)pthread_cond_wait(changed, &all.lock);
}

int double_leave(int result)
{
	double_unlock();
	return result;
}

void double_set_initialised(void)
{
	all.initialised = true;
}

/* ---- Faults -------------------------------------------------------------------------------------------- */

_Noreturn static void bad_fault(const char *text)
{
	(void)fprintf(stderr, "double: cannot read ZD_DOUBLE_FAIL at \"%s\"\n", text);
	abort();
}

static void read_fault(const char *text, size_t length)
{
	struct fault *fault = &all.faults[all.nfaults++];
	const char *colon = memchr(text, ':', length);
	char *end = NULL;

	if (all.nfaults == FAULTS || !colon)
		bad_fault(text);
	if (*text < '0' || *text > '9') {
		size_t name = (size_t)(colon - text);

		if (name >= sizeof(fault->function))
			bad_fault(text);
		memcpy(fault->function, text, name);
		text = colon + 1;
	}
	fault->nth = strtoul(text, &end, 10);
	if (*end != ':' || fault->nth == 0)
		bad_fault(text);
	fault->result = (int)strtol(end + 1, &end, 10);
	if (*end && *end != ',')
		bad_fault(text);
}

static void read_faults(void)
{
	const char *text = double_config()->fail;

	all.pid = getpid();
	while (text && *text) {
		size_t length = strcspn(text, ",");

		read_fault(text, length);
		text += length;
		text += *text == ',';
	}
}

static int find_function(const char *function)
{
	int i = 0;

	while (i < all.nfunctions && strcmp(all.functions[i].name, function) != 0)
		i++;
	return i;
}

static unsigned long count_function(const char *function)
{
	int i = find_function(function);

	if (i == FUNCTIONS)
		abort();
	if (i == all.nfunctions)
		all.functions[all.nfunctions++].name = function;
	return ++all.functions[i].calls;
}

unsigned long double_calls(const char *function)
{
	unsigned long calls;

	double_lock();
	int i = find_function(function);
	calls = i < all.nfunctions ? all.functions[i].calls : 0;
	double_unlock();
	return calls;
}

/* Counts the call; what it is to fail with, or 0. */
static int count_call(const char *function)
{
	unsigned long nth = count_function(function);

	all.calls++;
	for (int i = 0; i < all.nfaults; i++) {
		const struct fault *fault = &all.faults[i];

		if (fault->function[0] ? strcmp(fault->function, function) == 0 && fault->nth == nth
		                       : fault->nth == all.calls)
			return fault->result;
	}
	return ZD_CU_SUCCESS;
}

/* ---- Entering ------------------------------------------------------------------------------------------ */

static int check_context(const struct CUctx_st *current)
{
	if (!current)
		return ZD_CU_INVALID_CONTEXT;
	return current->retained ? ZD_CU_SUCCESS : DOUBLE_CONTEXT_IS_DESTROYED;
}

static int find_fault(struct CUctx_st *current)
{
	int lost = double_lost_to(double_config()->visible[current->device]);

	if (lost && !current->fault)
		double_context_fail(current, lost);
	return current->fault;
}

/* With the lock: `refused` if there is nothing to be done at all, else what the call gives in the end. */
static int enter(const char *function, enum double_needs needs, int *refused)
{
	struct CUctx_st *current;
	int result = count_call(function);

	*refused = needs != DOUBLE_NEEDS_NOTHING && !all.initialised ? ZD_CU_NOT_INITIALIZED : ZD_CU_SUCCESS;
	if (*refused)
		return *refused;
	current = double_current();
	if (needs == DOUBLE_NEEDS_CONTEXT)
		*refused = check_context(current);
	if (result && double_is_lost(result) && current) {
		double_context_fail(current, result);
		double_context_settle(current);
	}
	if (!result && !*refused && needs == DOUBLE_NEEDS_CONTEXT)
		result = find_fault(current);
	return result;
}

/* Only with this may a forked child come, so before the lock is touched, which some thread may have held. */
static bool is_forked(void)
{
	(void)pthread_once(&once, read_faults);
	return getpid() != all.pid;
}

int double_enter(const char *function, enum double_needs needs)
{
	int result, refused;

	if (is_forked())
		return ZD_CU_NOT_INITIALIZED;
	double_lock();
	double_wait_for_frees();
	result = enter(function, needs, &refused);
	if (!result)
		result = refused;
	return result ? double_leave(result) : result;
}

int double_enter_giving_back(const char *function, enum double_needs needs, int *after)
{
	int refused;

	if (is_forked())
		return ZD_CU_NOT_INITIALIZED;
	double_lock();
	double_wait_for_frees();
	*after = enter(function, needs, &refused);
	/* Memory that needs no context to be given back meets a lost one all the same. */
	if (!*after && double_current())
		*after = double_current()->fault;
	return refused ? double_leave(refused) : refused;
}

/* ---- At exit ------------------------------------------------------------------------------------------- */

static void write_counts(const char *path)
{
	const char *program = program_invocation_short_name;
	char text[FUNCTIONS * 64];
	size_t used = 0;
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);

	for (int i = 0; i < all.nfunctions && used < sizeof(text); i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s %s %lu\n", program,
		                         all.functions[i].name, all.functions[i].calls);
	if (used < sizeof(text))
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s all %lu\n", program,
		                         all.calls);
	/* One write, so that programs that end together do not mix their lines. */
	if (fd < 0 || used >= sizeof(text) || write(fd, text, used) != (ssize_t)used)
		(void)fprintf(stderr, "double: cannot write ZD_DOUBLE_COUNT=%s\n", path);
	if (fd >= 0)
		(void)close(fd);
}

static bool has_leaks(void)
{
	const struct {
		const char *what;
		int count;
	} left[] = {
	        {"memory handles", double_count_memory()}, {"mappings", double_count_mappings()},
	        {"address ranges", double_count_ranges()}, {"host registrations", double_count_hosts()},
	        {"streams", double_count_streams()},       {"events", double_count_events()},
	        {"graphs", double_count_graphs()},         {"contexts", double_count_contexts()},
	        {"modules", double_count_modules()},
	};
	bool any = false;

	for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++) {
		if (left[i].count)
			(void)fprintf(stderr, "double: %s (%d): not given back: %d %s\n",
			              program_invocation_short_name, (int)getpid(), left[i].count,
			              left[i].what);
		any |= left[i].count > 0;
	}
	return any;
}

/* The library's end comes after all that the program does at its own. */
__attribute__((destructor)) static void at_exit(void)
{
	bool leaks = false;

	if (all.pid != getpid())
		return;
	double_lock();
	if (double_config()->count_file)
		write_counts(double_config()->count_file);
	if (double_config()->reports_leaks)
		leaks = has_leaks();
	double_unlock();
	if (!leaks)
		return;
	/* _exit() does not flush the program's output. */
	(void)fflush(NULL);
	_exit(99);
}
