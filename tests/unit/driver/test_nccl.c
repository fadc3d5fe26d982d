/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl.c - loading NCCL: what is there, what is not, what is too old, over its double; and the
 * declarations of nccl.h of ours against NCCL's, where that is installed.
 */
#include "driver/nccl.h"

#include <pthread.h>

#include "base/log.h"

#include "tests/unit/driver/double_fixture.h"

#if defined(__has_include)
#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>
#define HAS_NCCL_H 1
#endif
#endif

#define SAME(ours, theirs) assert_int_equal((long long)(ours), (long long)(theirs))

/* ---- Loading ------------------------------------------------------------------------------------------- */

static void expect_no_nccl(const char *path, int status, const char *text)
{
	const struct zd_nccl *nccl = NULL;
	struct zd_err err = ZD_ERR_NONE;

	assert_int_equal(zd_nccl_load(path, &nccl, &err), status);
	assert_null(nccl);
	if (!strstr(err.text, text))
		fail_msg("'%s' is not in '%s'", text, err.text);
}

static const struct zd_nccl *expect_nccl(const char *path)
{
	const struct zd_nccl *nccl = NULL;
	struct zd_err err = ZD_ERR_NONE;

	if (zd_nccl_load(path, &nccl, &err))
		fail_msg("%s", err.text);
	return nccl;
}

CASE_TEST(test_loading)
{
	const struct zd_nccl *nccl = expect_nccl(NULL);
	struct zd_nccl_id a, b;

	assert_int_equal(nccl->version, 22809);
	assert_int_equal(nccl->getUniqueId(&a), 0);
	assert_int_equal(nccl->getUniqueId(&b), 0);
	assert_memory_not_equal(&a, &b, sizeof(a));
	assert_ptr_equal(expect_nccl("/nonexistent/libnccl.so.2"), nccl); /* it is loaded already */
}

CASE_TEST(test_a_path_of_its_own)
{
	char path[PATH_MAX * 2];

	(void)snprintf(path, sizeof(path), "%s/libnccl.so.2", case_double_path());
	assert_int_equal(expect_nccl(path)->version, 22809);
}

/* A failed load is not final: another path may succeed. */
CASE_TEST(test_no_nccl)
{
	char path[PATH_MAX * 2];

	expect_no_nccl("/nonexistent/libnccl.so.2", ZEROD_E_NOT_FOUND,
	               "there is no NCCL: /nonexistent/libnccl.so.2: cannot open shared object file");
	(void)snprintf(path, sizeof(path), "%s/libnvidia-ml.so.1", case_double_path());
	expect_no_nccl(path, ZEROD_E_UNSUPPORTED,
	               "libnvidia-ml.so.1 has no ncclGetVersion: NCCL 2.24.3 or newer is needed");
	(void)expect_nccl(NULL);
}

CASE_TEST(test_an_old_nccl, "ZD_DOUBLE_NCCL_VERSION=22304")
{
	expect_no_nccl(NULL, ZEROD_E_UNSUPPORTED, "libnccl.so.2 is NCCL 2.23.4, 2.24.3 or newer is needed");
	assert_int_equal(setenv("ZD_DOUBLE_NCCL_VERSION", "2708", 1), 0);
	expect_no_nccl(NULL, ZEROD_E_UNSUPPORTED, "libnccl.so.2 is NCCL 2.7.8, 2.24.3 or newer is needed");
	assert_int_equal(setenv("ZD_DOUBLE_NCCL_VERSION", "22403", 1), 0);
	assert_int_equal(expect_nccl(NULL)->version, 22403);
}

static void *load_in_thread(void *arg)
{
	struct zd_err err;

	(void)!zd_nccl_load(NULL, arg, &err);
	return NULL;
}

CASE_TEST(test_threads_at_once)
{
	const struct zd_nccl *found[4] = {NULL};
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, load_in_thread, (void *)&found[i]), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_ptr_equal(found[i], expect_nccl(NULL));
	}
}

/* The last line of the log. NCCL's last error may be about another communicator: the log has it, and no
 * error's text. */
static char logged[256];

static void remember(const struct zd_log_line *line)
{
	(void)snprintf(logged, sizeof(logged), "%s", line->text);
}

CASE_TEST(test_errors)
{
	const struct zd_nccl *nccl = expect_nccl(NULL);
	struct zd_err err = ZD_ERR_NONE;

	zd_log_set_sink(remember);
	assert_int_equal(zd_nccl_err(nccl, ZD_NCCL_SUCCESS, &err, "nothing"), 0);
	assert_int_equal(err.status, 0);
	assert_string_equal(logged, "");
	assert_int_equal(zd_nccl_err(nccl, ZD_NCCL_REMOTE_ERROR, &err, "rank %d", 3), ZEROD_E_PEER_LOST);
	assert_string_equal(err.text, "rank 3: remote process exited or there was a network error");
	assert_string_equal(logged,
	                    "rank 3: remote process exited or there was a network error; the last error that "
	                    "NCCL has recorded in this process: a double says no more");
	assert_int_equal(zd_nccl_err(nccl, ZD_NCCL_SYSTEM_ERROR, &err, "it"), ZEROD_E_SYSTEM);
	assert_int_equal(zd_nccl_err(nccl, ZD_NCCL_UNHANDLED_CUDA_ERROR, &err, "it"), ZEROD_E_DEVICE);
	assert_int_equal(zd_nccl_err(nccl, 99, &err, "it"), ZEROD_E_DEVICE);
	assert_string_equal(err.text, "it: unknown result code");
	zd_log_set_sink(NULL);
}

/* ---- Declarations -------------------------------------------------------------------------------------- */

/* As they have been since 2.18, which is what NCCL is told. */
CASE_TEST(test_layout)
{
	static const struct zd_nccl_config ours = ZD_NCCL_CONFIG;

	SAME(ours.version, 21801);
	SAME(sizeof(struct zd_nccl_id), 128);
	SAME(offsetof(struct zd_nccl_config, magic), 8);
	SAME(offsetof(struct zd_nccl_config, version), 12);
	SAME(offsetof(struct zd_nccl_config, blocking), 16);
	SAME(offsetof(struct zd_nccl_config, cga_cluster_size), 20);
	SAME(offsetof(struct zd_nccl_config, min_ctas), 24);
	SAME(offsetof(struct zd_nccl_config, max_ctas), 28);
	SAME(offsetof(struct zd_nccl_config, net_name), 32);
	SAME(offsetof(struct zd_nccl_config, split_share), 40);
	SAME(sizeof(struct zd_nccl_config), 48);
}

#ifdef HAS_NCCL_H

CASE_TEST(test_types)
{
	static const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
	static const struct zd_nccl_config ours = ZD_NCCL_CONFIG;

	SAME(sizeof(struct zd_nccl_id), sizeof(ncclUniqueId));
	SAME(offsetof(struct zd_nccl_config, magic), offsetof(ncclConfig_t, magic));
	SAME(offsetof(struct zd_nccl_config, version), offsetof(ncclConfig_t, version));
	SAME(offsetof(struct zd_nccl_config, blocking), offsetof(ncclConfig_t, blocking));
	SAME(offsetof(struct zd_nccl_config, cga_cluster_size), offsetof(ncclConfig_t, cgaClusterSize));
	SAME(offsetof(struct zd_nccl_config, min_ctas), offsetof(ncclConfig_t, minCTAs));
	SAME(offsetof(struct zd_nccl_config, max_ctas), offsetof(ncclConfig_t, maxCTAs));
	SAME(offsetof(struct zd_nccl_config, net_name), offsetof(ncclConfig_t, netName));
	SAME(offsetof(struct zd_nccl_config, split_share), offsetof(ncclConfig_t, splitShare));
	assert_true(sizeof(struct zd_nccl_config) <= sizeof(ncclConfig_t));
	SAME(ours.magic, theirs.magic);
	SAME(ours.blocking, theirs.blocking);
	SAME(ours.split_share, theirs.splitShare);
	SAME(ZD_NCCL_OLDEST, NCCL_VERSION(2, 24, 3));
	SAME(ZD_NCCL_CONFIG_VERSION, NCCL_VERSION(2, 18, 1));
}

CASE_TEST(test_numbers)
{
	SAME(ZD_NCCL_SUCCESS, ncclSuccess);
	SAME(ZD_NCCL_UNHANDLED_CUDA_ERROR, ncclUnhandledCudaError);
	SAME(ZD_NCCL_SYSTEM_ERROR, ncclSystemError);
	SAME(ZD_NCCL_INTERNAL_ERROR, ncclInternalError);
	SAME(ZD_NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
	SAME(ZD_NCCL_INVALID_USAGE, ncclInvalidUsage);
	SAME(ZD_NCCL_REMOTE_ERROR, ncclRemoteError);
	SAME(ZD_NCCL_IN_PROGRESS, ncclInProgress);
	SAME(ZD_NCCL_INT8, ncclInt8);
	SAME(ZD_NCCL_FLOAT16, ncclFloat16);
	SAME(ZD_NCCL_FLOAT32, ncclFloat32);
#if CUDART_VERSION >= 11000
	SAME(ZD_NCCL_BFLOAT16, ncclBfloat16);
#endif
	SAME(ZD_NCCL_SUM, ncclSum);
}

/* Their types are C's business only where both headers name them alike, so that a look at nccl.h stays
 * necessary. */
CASE_TEST(test_functions_exist)
{
#define EXISTS(member, name, args) (void)sizeof(&(name));
	ZD_NCCL_FUNCTIONS(EXISTS)
	ZD_NCCL_TEXTS(EXISTS)
#undef EXISTS
}

#else

CASE_TEST(test_without_nccl_h)
{
	print_message("there is no nccl.h to compare with\n");
}

#endif

int main(int argc, char **argv)
{
	return case_run_all(argc, argv);
}
