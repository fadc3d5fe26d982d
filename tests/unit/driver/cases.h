/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.h - tests of what is loaded once a process, each in a process of its own with an environment of its
 * own.
 *
 * A program's cases register themselves (CASE_TEST), or are a table. Run without arguments, the program
 * starts itself once for each case, with the driver's double first on LD_LIBRARY_PATH, and shows what the
 * case wrote if it did not end as expected. A case's function is a cmocka test.
 */
#ifndef ZD_TESTS_CASES_H
#define ZD_TESTS_CASES_H

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/support/test.h"

#define CASE_SECONDS 60
#define CASE_ENV     6
#define CASE_OUTPUT  65536

/* The libraries that are found as libcuda.so.1 and libnvidia-ml.so.1. */
enum case_libraries { CASE_DOUBLE, CASE_BROKEN /* no libraries */, CASE_SWAPPED /* each other */ };

struct a_case {
	const char *name;
	CMUnitTestFunction fn;
	const char *env[CASE_ENV]; /* "NAME=VALUE" */
	const char *says;          /* what is in its output; NULL: anything */
	int exit_status;           /* how it is to end */
	enum case_libraries libraries;
	struct test test;
	struct a_case *next;
};

#define CASE(function, ...)                                                                                  \
	{                                                                                                    \
		.name = #function, .fn = (function), .env = { __VA_ARGS__ }                                  \
	}

/* Begins the definition of a case with an environment: CASE_TEST(test_name, "NAME=VALUE") { ... } */
#define CASE_TEST(name, ...) CASE_DEFINE(name, void, name(), .env = {__VA_ARGS__})
/* The same with other members of struct a_case. */
#define CASE_TEST_WITH(name, ...) CASE_DEFINE(name, void, name(), __VA_ARGS__)
/* A further case of a function that is defined above. */
#define CASE_AGAIN(function, label, ...)                                                                     \
	__attribute__((constructor)) static void function##_##label##_add(void)                              \
	{                                                                                                    \
		static struct a_case one = {                                                                 \
		        .name = #function ": " #label, .fn = function##_alone, __VA_ARGS__};                 \
		case_add(&one, __COUNTER__);                                                                 \
	}
#define CASE_DEFINE(function, parameter, call, ...)                                                          \
	static void function(parameter);                                                                     \
	static void function##_alone(void **state)                                                           \
	{                                                                                                    \
		(void)state;                                                                                 \
		call;                                                                                        \
	}                                                                                                    \
	__attribute__((constructor)) static void function##_add(void)                                        \
	{                                                                                                    \
		static struct a_case one = {.name = #function, .fn = function##_alone, __VA_ARGS__};         \
		case_add(&one, __COUNTER__);                                                                 \
	}                                                                                                    \
	static void function(parameter)

/* Asked for and not named "/proc/self/exe", which would be another program under valgrind. */
static inline void case_program(char program[PATH_MAX])
{
	ssize_t length = readlink("/proc/self/exe", program, PATH_MAX - 1);

	if (length < 0)
		abort();
	program[length] = '\0';
}

/* Where the double is: beside this program in the tests' folder. */
static inline const char *case_double_path(void)
{
	static char path[PATH_MAX + 16];
	char program[PATH_MAX];

	case_program(program);
	do
		*strrchr(program, '/') = '\0';
	while (strcmp(strrchr(program, '/'), "/tests") != 0);
	(void)snprintf(path, sizeof(path), "%s/double", program);
	return path;
}

/* ---- Folders ------------------------------------------------------------------------------------------- */

#define CASE_DIR "/tmp/zd-case-XXXXXX"

/* With the files in it. */
static inline void case_remove_dir(const char *dir)
{
	DIR *open = opendir(dir);
	const struct dirent *entry;
	char path[PATH_MAX];

	while (open && (entry = readdir(open)) != NULL) {
		(void)snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		if (entry->d_name[0] != '.')
			(void)unlink(path);
	}
	if (open)
		(void)closedir(open);
	assert_int_equal(rmdir(dir), 0);
}

static inline void case_write_file(const char *dir, const char *name, const char *text)
{
	char path[PATH_MAX];
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	file = fopen(path, "we");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static inline void case_link_double(const char *dir, const char *name, const char *to)
{
	char path[PATH_MAX], target[PATH_MAX * 2];

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	(void)snprintf(target, sizeof(target), "%s/%s", case_double_path(), to);
	assert_int_equal(symlink(target, path), 0);
}

/* A folder made of CASE_DIR, for libraries that are not what their names say. */
static inline void case_make_libraries(char *dir, enum case_libraries libraries)
{
	static const char *const names[] = {"libcuda.so.1", "libnvidia-ml.so.1"};

	assert_non_null(mkdtemp(dir));
	for (int i = 0; i < 2; i++) {
		if (libraries == CASE_BROKEN)
			case_write_file(dir, names[i], "no library");
		else
			case_link_double(dir, names[i], names[1 - i]);
	}
}

/* ---- Running ------------------------------------------------------------------------------------------- */

static inline _Noreturn void case_exec(const struct a_case *one, const char *libraries, int output)
{
	char *const args[] = {(char *)"case", (char *)one->name, NULL};
	char program[PATH_MAX];

	if (dup2(output, 1) < 0 || dup2(output, 2) < 0 || setenv("LD_LIBRARY_PATH", libraries, 1))
		_exit(125);
	for (int i = 0; i < CASE_ENV && one->env[i]; i++)
		if (putenv((char *)one->env[i]))
			_exit(125);
	alarm(CASE_SECONDS);
	case_program(program);
	execv(program, args);
	_exit(126);
}

static inline void case_check(const struct a_case *one, int status, const char *output)
{
	if (!WIFEXITED(status) || WEXITSTATUS(status) != one->exit_status ||
	    (one->says && !strstr(output, one->says)))
		fail_msg("wait status 0x%x, expected exit %d%s%s, wrote:\n%s", (unsigned int)status,
		         one->exit_status, one->says ? " and " : "", one->says ? one->says : "", output);
}

/* A case that runs. */
struct case_running {
	const struct a_case *one;
	pid_t pid;
	int output;
	char dir[sizeof(CASE_DIR)]; /* of its libraries */
};

static inline struct case_running case_start(const struct a_case *one)
{
	struct case_running running = {
	        .one = one, .output = memfd_create("output", MFD_CLOEXEC), .dir = CASE_DIR};

	assert_true(running.output >= 0);
	if (one->libraries != CASE_DOUBLE)
		case_make_libraries(running.dir, one->libraries);
	running.pid = fork();
	assert_true(running.pid >= 0);
	if (running.pid == 0)
		case_exec(one, one->libraries == CASE_DOUBLE ? case_double_path() : running.dir,
		          running.output);
	return running;
}

static inline void case_finish(const struct case_running *running)
{
	static char text[CASE_OUTPUT];
	const struct a_case *one = running->one;
	ssize_t length;
	int status = 0;

	assert_int_equal(waitpid(running->pid, &status, 0), running->pid);
	length = pread(running->output, text, sizeof(text) - 1, 0);
	(void)close(running->output);
	assert_true(length >= 0);
	text[length] = '\0';
	if (one->libraries != CASE_DOUBLE)
		case_remove_dir(running->dir);
	case_check(one, status, text);
}

static inline void case_run(void **state)
{
	struct case_running running = case_start(*state);

	case_finish(&running);
}

static struct a_case *case_first;

static inline void case_add(struct a_case *one, unsigned number)
{
	one->test = (struct test){{one->name, case_run, NULL, NULL, one}, number, NULL};
	one->next = case_first;
	case_first = one;
	test_add(&one->test);
}

/* Runs the case of this name, in this process. */
static inline int case_run_alone(const char *name)
{
	for (const struct a_case *one = case_first; one; one = one->next) {
		const struct CMUnitTest test[] = {{.name = one->name, .test_func = one->fn}};

		if (strcmp(one->name, name) == 0)
			return cmocka_run_group_tests(test, NULL, NULL);
	}
	return 127;
}

/* Runs the cases that registered themselves. */
static inline int case_run_all(int argc, char **argv)
{
	return argc > 1 ? case_run_alone(argv[1]) : test_run(NULL, NULL);
}

/* Runs those of a table as well. */
static inline int case_main(struct a_case *cases, size_t count, int argc, char **argv)
{
	for (size_t i = 0; i < count; i++)
		case_add(&cases[i], UINT_MAX);
	return case_run_all(argc, argv);
}

/* Runs the cases with a folder that outlives them. In their definitions `env` becomes "ZD_DOUBLE_DIR=...". */
static inline int case_main_in_dir(int argc, char **argv, char env[64])
{
	static char dir[] = CASE_DIR;
	int failed;

	if (argc == 1 && !mkdtemp(dir))
		return 1;
	(void)snprintf(env, 64, "ZD_DOUBLE_DIR=%s", dir);
	failed = case_run_all(argc, argv);
	if (argc == 1)
		case_remove_dir(dir);
	return failed;
}

/* ---- Processes of a case ------------------------------------------------------------------------------- */

struct case_process {
	pid_t pid, child; /* child 0: none */
	int to, from;     /* its standard input and output */
	bool ended;
};

/* This program, with these arguments from argv[0] on. */
static inline struct case_process case_spawn(char *const args[])
{
	struct case_process process = {.pid = -1};
	char program[PATH_MAX];
	int to[2], from[2];

	case_program(program);
	assert_int_equal(pipe2(to, O_CLOEXEC), 0);
	assert_int_equal(pipe2(from, O_CLOEXEC), 0);
	process.pid = fork();
	assert_true(process.pid >= 0);
	if (process.pid == 0) {
		(void)dup2(to[0], STDIN_FILENO);
		(void)dup2(from[1], STDOUT_FILENO);
		(void)execv(program, args);
		_exit(126);
	}
	(void)close(to[0]);
	(void)close(from[1]);
	process.to = to[1];
	process.from = from[0];
	return process;
}

/* The process writes the pid of its child, or 0, when it is ready. */
static inline void case_await(struct case_process *process)
{
	assert_int_equal(read(process->from, &process->child, sizeof(process->child)),
	                 sizeof(process->child));
}

/* Returns how it ended, after the end of its input if it reads that. */
static inline int case_end(struct case_process *process)
{
	int status = -1;

	(void)close(process->to);
	(void)close(process->from);
	assert_int_equal(waitpid(process->pid, &status, 0), process->pid);
	process->ended = true;
	return status;
}

static inline void case_kill(struct case_process *process)
{
	assert_int_equal(kill(process->pid, SIGKILL), 0);
	assert_true(WIFSIGNALED(case_end(process)));
}

#endif
