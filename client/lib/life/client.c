/* SPDX-License-Identifier: Apache-2.0 */
/* client.c - a connection from zerod_connect() to zerod_close(). */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"
#include "client/lib/base/enter.h"
#include "client/lib/base/errors.h"
#include "client/lib/base/interrupt.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/alloc.h"
#include "client/lib/calls/group.h"
#include "client/lib/calls/read.h"
#include "client/lib/calls/update.h"
#include "client/lib/conn/fence_wait.h"
#include "client/lib/device/cuda.h"
#include "client/lib/device/offloaded_sum.h"
#include "client/lib/gradients/bucket.h"
#include "client/lib/gradients/target.h"
#include "client/lib/life/connect.h"
#include "client/lib/life/former.h"

#define DEFAULT_DEADLINE_MS 60000u
#define CONNECT_RETRY_NS    1000000 /* while the daemon's queue of connections is full */
#define GOODBYE_MS          1000u   /* the daemon answers at once, or has more to do than this */
#define FALLBACK_NAME       "zerod client"

uint32_t zerod_version(void)
{
	return ZEROD_VERSION_MAJOR * 1000000u + ZEROD_VERSION_MINOR * 1000u + ZEROD_VERSION_PATCH;
}

/* ---- The socket ---------------------------------------------------------------------------------------- */

static const char *choose_path(const struct zerod_options *options)
{
	const char *path = options->socket_path;

	if (!path)
		path = secure_getenv("ZEROD_SOCKET");
	return path && (path[0] || options->socket_path) ? path : ZD_DEFAULT_SOCKET;
}

static int explain_connect(int error, const char *path, struct zd_err *err)
{
	switch (error) {
	case ENOENT:
	case ECONNREFUSED:
	case ENOTDIR:
		return zd_err_set(err, ZEROD_E_CONNECT, "no daemon listens on %s: %s", path, strerror(error));
	case EPROTOTYPE:
		return zd_err_set(err, ZEROD_E_CONNECT, "the server that listens on %s is not zerod", path);
	case EAGAIN:
		return zd_err_set(err, ZEROD_E_CONNECT, "the daemon on %s accepts no connections", path);
	case EACCES:
	case EPERM:
		return zd_err_set(err, ZEROD_E_PERMISSION, "connecting to %s: %s", path, strerror(error));
	default:
		return zd_err_errno(err, error, "connecting to %s", path);
	}
}

/* A receiving thread blocks in recvmsg(), which saves a poll() for each reply. Sending never blocks:
 * zd_frame_send(). */
static int let_block(const struct zerod_client *client, int sock, struct zd_err *err)
{
	int slice_ms = zc_ask_slice_ms(client);
	const struct timeval slice = {.tv_sec = slice_ms / 1000,
	                              .tv_usec = (suseconds_t)(slice_ms % 1000) * 1000};

	if (fcntl(sock, F_SETFL, 0) || setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof(slice)))
		return zd_err_errno(err, errno, "preparing a socket");
	return 0;
}

int zc_socket_open(struct zerod_client *client, const char *path, uint64_t deadline_ns, struct zd_err *err)
{
	const struct timespec retry = {.tv_nsec = CONNECT_RETRY_NS};
	struct sockaddr_un addr;
	uint64_t ask_ns = zc_ask_from(client);
	int opened, error, rc = zd_frame_address(path, &addr, err);
	bool given_up = false;

	if (rc)
		return rc;
	opened = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (opened < 0)
		return zd_err_errno(err, errno, "opening a socket");
	for (;;) {
		error = connect(opened, (const struct sockaddr *)&addr, sizeof(addr)) ? errno : 0;
		given_up = error && zc_ask(client, &ask_ns);
		if (given_up || (error != EINTR && (error != EAGAIN || zc_now_ns() >= deadline_ns)))
			break;
		(void)nanosleep(&retry, NULL); /* no descriptor to poll: the queue is the listener's */
	}
	rc = error ? explain_connect(error, path, err) : let_block(client, opened, err);
	if (given_up)
		rc = zd_err_set(err, ZEROD_E_INTERRUPTED, "connecting to %s was given up", path);
	if (rc)
		(void)close(opened);
	else
		client->endpoint.sock = opened;
	return rc;
}

/* ---- Making and freeing -------------------------------------------------------------------------------- */

static struct zerod_client *new_client(uint32_t deadline_ms)
{
	static atomic_uint_fast64_t serials;
	struct zerod_client *client = calloc(1, sizeof(*client));

	if (!client)
		return NULL;
	client->receive_buffer = malloc(ZD_MAX_PACKET_BYTES);
	if (!client->receive_buffer) {
		free(client);
		return NULL;
	}
	client->endpoint.sock = client->worker.endpoint.sock = client->worker.expected = -1;
	client->serial = atomic_fetch_add(&serials, 1) + 1;
	client->fork_generation = zc_fork_watch();
	client->connect_deadline_ms = deadline_ms;
	client->deadline_ms = deadline_ms;
	pthread_mutex_init(&client->reconnect_lock, NULL);
	pthread_mutex_init(&client->send_lock, NULL);
	pthread_mutex_init(&client->cuda_lock, NULL);
	pthread_mutex_init(&client->page_lock, NULL);
	pthread_mutex_init(&client->lock, NULL);
	zc_cond_init(&client->named);
	pthread_cond_init(&client->reopened, NULL);
	zd_spin_init(&client->spin, ZC_SPIN_NS, ZC_SPIN_PROCESSORS);
	TAILQ_INIT(&client->finished);
	TAILQ_INIT(&client->waiters);
	return client;
}

/* Frees the client, which no other thread uses. Handles are freed first: they refer to units and tickets. */
static void free_objects(struct zerod_client *client)
{
	struct zerod_group *group;
	struct zerod_allocation *buffer;
	struct zerod_mapped *mapped;
	struct zc_op *op;

	while ((group = LIST_FIRST(&client->groups)))
		zc_group_free(group);
	while ((buffer = LIST_FIRST(&client->buffers))) {
		LIST_REMOVE(buffer, link);
		free(buffer);
	}
	while ((mapped = LIST_FIRST(&client->mapped)))
		zc_mapped_free(mapped);
	zc_watches_forget(client);
	for (unsigned i = 0; i < ZC_OP_CHAINS; i++)
		while ((op = LIST_FIRST(&client->ops[i]))) {
			op->answered = true; /* or never will be */
			zc_ticket_drop(client, op);
		}
	zc_tickets_free(client);
	zc_batches_free(client);
	zc_segments_free(client);
	zc_packet_free(client->spare_packet);
}

static void free_client(struct zerod_client *client)
{
	free_objects(client);
	if (client->endpoint.sock >= 0 &&
	    !zc_is_forked(client)) /* children can also have the socket: the session ends nevertheless */
		(void)shutdown(client->endpoint.sock, SHUT_RDWR);
	if (client->endpoint.sock >= 0)
		(void)close(client->endpoint.sock);
	zc_worker_deinit(client);
	if (client->rings)
		(void)munmap(client->rings, ZD_RINGS_BYTES);
	if (!zc_is_forked(client)) { /* in a child, a thread that does not exist can hold a lock */
		pthread_mutex_destroy(&client->reconnect_lock);
		pthread_mutex_destroy(&client->send_lock);
		pthread_mutex_destroy(&client->cuda_lock);
		pthread_mutex_destroy(&client->page_lock);
		pthread_mutex_destroy(&client->lock);
		pthread_cond_destroy(&client->named);
		pthread_cond_destroy(&client->reopened);
	}
	free(client->receive_buffer);
	free(client->socket_path);
	free(client->name);
	free(client);
}

/* A daemon of GPUs retains a session's memory until the process has ended, unless the client reports that the
 * process does not use the memory any more. Every daemon warns of ranks that end without a goodbye. */
static void say_goodbye(struct zerod_client *client)
{
	Zd__Goodbye goodbye = ZD__GOODBYE__INIT;
	Zd__Request request = ZD_REQUEST(GOODBYE, goodbye, &goodbye);
	struct zc_op op = {.kind = ZC_OP_CALL};
	uint64_t deadline_ns = zc_default_ns(client);
	struct zd_err ignored;
	int rc;

	if (client->broken_status || (!client->on_gpus && LIST_EMPTY(&client->groups)))
		return;
	rc = zc_call_begin(client, &op, &request, deadline_ns, &ignored);
	zc_flush(client);
	if (!rc)
		rc = zc_call_end(client, &op, deadline_ns, ZD__REPLY__BODY__NOT_SET, NULL, NULL, &ignored);
	(void)rc; /* the session ends in either case */
}

/* Called when the process does not use the session's memory any more. */
static void leave(struct zerod_client *client)
{
	say_goodbye(client);
	/* The daemon may have ended, or end before it sees the connection closed. */
	if (client->session)
		zc_former_add(client->daemon, client->session);
}

void zerod_close(zerod_client *client)
{
	zerod_stream *stream;
	bool asked_never;

	if (!client)
		return;
	asked_never = zc_ask_never(true); /* the client's own threads still read `interrupted` */
	client->deadline_ms = GOODBYE_MS; /* of waits for a daemon that does not reply */
	if (zc_is_forked(client))
		client->strict = false; /* a child's views remain as at the fork */
	while ((stream = LIST_FIRST(&client->streams))) {
		if (zc_is_forked(client))
			zc_stream_forget(stream);
		else
			zerod_stream_destroy(stream);
	}
	if (zc_is_forked(client))
		zc_cuda_forget(client);
	else if (zc_cuda_close(client))
		leave(client);
	if (!zc_is_forked(client))
		zc_cuda_contexts_free(client);
	if (!zc_is_forked(client))
		zc_worker_stop(client); /* on GPUs it has ended with them */
	client->strict = false;         /* the mappings go as a whole */
	free_client(client);
	(void)zc_ask_never(asked_never);
}

/* ---- The hello ----------------------------------------------------------------------------------------- */

static int take_hello(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct zerod_client *client = object;
	const Zd__HelloReply *hello = reply->hello;

	if (hello->version != ZD_PROTOCOL_VERSION)
		return zd_err_set(err, ZEROD_E_VERSION, "the daemon speaks version %u, this library %u",
		                  hello->version, ZD_PROTOCOL_VERSION);
	if (hello->timelines == 0 || hello->timelines > ZD_TIMELINES)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon's pages have %u timelines",
		                  hello->timelines);
	if (client->strict && !hello->strict)
		return zd_err_set(
		        err, ZEROD_E_UNSUPPORTED,
		        "the daemon does not place gathered buffers in separate pages, which strict needs");
	if (client->poison_mode && !hello->poison)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "the daemon does not fill released buffers, which poison (the option, or "
		                  "$ZEROD_POISON) needs");
	client->session = hello->session;
	client->ntimelines = hello->timelines;
	client->collectives = zc_hello_has_feature(hello, ZD_FEATURE_COLLECTIVES);
	return 0;
}

/* A switch in the environment, for programs that are not changed. */
static const char *setting(const char *name)
{
	const char *text = secure_getenv(name);

	return text && text[0] ? text : "0";
}

int zc_greet(struct zerod_client *client, const char *name)
{
	Zd__Hello hello = ZD__HELLO__INIT;
	Zd__Request request = ZD_REQUEST(HELLO, hello, &hello);
	uint64_t former[ZC_MAX_FORMER];
	char *features[] = {(char *)ZD_FEATURE_WORK, (char *)ZD_FEATURE_WORK_AHEAD, (char *)ZD_FEATURE_FRAMES,
	                    (char *)ZD_FEATURE_RINGS, (char *)ZD_FEATURE_RUN_AHEAD};
	size_t nfeatures = sizeof(features) / sizeof(features[0]);

	hello.version_min = ZD_PROTOCOL_VERSION;
	hello.version_max = ZD_PROTOCOL_VERSION;
	hello.name = (char *)name;
	hello.strict = client->strict;
	hello.poison = client->poison_mode;
	hello.n_features = strcmp(setting("ZEROD_RUN_AHEAD"), "1") == 0 ? nfeatures : nfeatures - 1;
	hello.features = features;
	hello.n_former_sessions = zc_former_list(client->daemon, former);
	hello.former_sessions = former;
	return zc_call_take(client, &request, 0, ZD__REPLY__BODY_HELLO, take_hello, client);
}

/* Access is revoked by pages of this machine, and buffers are placed in pages of the protocol. */
static int check_strict(struct zd_err *err)
{
	long page_bytes = sysconf(_SC_PAGESIZE);

	if (page_bytes > 0 && ZD_STRICT_ALIGN_BYTES % (unsigned long)page_bytes == 0)
		return 0;
	return zd_err_set(err, ZEROD_E_UNSUPPORTED, "strict needs pages of %u bytes; this machine's have %ld",
	                  ZD_STRICT_ALIGN_BYTES, page_bytes);
}

static int check_setting(const char *name, struct zd_err *err)
{
	if (strcmp(setting(name), "0") == 0 || strcmp(setting(name), "1") == 0)
		return 0;
	return zd_err_set(err, ZEROD_E_INVALID, "%s is '%s': 0 or 1 is expected", name, setting(name));
}

/* The option, or otherwise ZEROD_RECONNECT_MS. */
static int choose_reconnect(uint32_t *reconnect_ms, struct zd_err *err)
{
	const char *text = secure_getenv("ZEROD_RECONNECT_MS");
	uint64_t ms;
	char *end;

	if (*reconnect_ms > 0 || !text || !text[0])
		return 0;
	errno = 0;
	ms = strtoul(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno || ms > UINT32_MAX)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "ZEROD_RECONNECT_MS is '%s': milliseconds are expected, 0 to %u", text,
		                  UINT32_MAX);
	*reconnect_ms = (uint32_t)ms;
	return 0;
}

/* From now on the loss of the connection is not the client's end. */
static int keep_place(struct zerod_client *client, const char *path, const char *name, uint32_t reconnect_ms,
                      struct zd_err *err)
{
	if (reconnect_ms == 0)
		return 0;
	client->socket_path = strdup(path);
	client->name = strdup(name);
	if (!client->socket_path || !client->name)
		return zd_err_errno(err, ENOMEM, "connecting");
	client->reconnect_ms = reconnect_ms;
	return 0;
}

/* The program's name, unless that is no name for a session. */
static int choose_name(const char *given, const char **name, struct zd_err *err)
{
	*name = given ? given : program_invocation_short_name;
	if (given)
		return zd_name_check(given, ZD_MAX_NAME_BYTES, "client name", err);
	if (zd_name_check(*name, ZD_MAX_NAME_BYTES, "client name", NULL))
		*name = FALLBACK_NAME;
	return 0;
}

/* Writes why the session was not opened. `err` outlives the client. */
static void explain(const struct zerod_client *client, const char *path, int status, struct zd_err *err)
{
	if (status == ZEROD_E_DISCONNECTED)
		(void)zd_err_set(err, status,
		                 "%s: the daemon closed the connection before its first answer; its log has "
		                 "the reason",
		                 path);
	else if (status == ZEROD_E_DEADLINE)
		(void)zd_err_set(err, status,
		                 "%s: no first answer within %u ms: the daemon cannot start yet, or hangs; "
		                 "see its log",
		                 path, zc_deadline_ms(client, 0));
	else
		(void)zd_err_set(err, status, "%s", zc_err(client)->text);
}

int zerod_connect(const struct zerod_options *given, zerod_client **client)
{
	struct zd_err *err = zc_err(NULL);
	struct zerod_options options;
	struct zerod_client *made;
	const char *name;
	uint64_t lag_seed = 0;
	int rc = zc_options(&options, sizeof(options), given, "zerod_options", err);

	if (!rc && !client)
		rc = zd_err_set(err, ZEROD_E_INVALID, "client is NULL");
	if (!rc)
		rc = choose_name(options.name, &name, err);
	if (!rc)
		rc = zd_spin_check(err);
	if (!rc && options.strict)
		rc = check_strict(err);
	if (!rc)
		rc = check_setting("ZEROD_POISON", err);
	if (!rc)
		rc = check_setting("ZEROD_RUN_AHEAD", err);
	if (!rc)
		rc = zc_lag_seed(&lag_seed, err);
	if (!rc)
		rc = choose_reconnect(&options.reconnect_ms, err);
	if (rc)
		return rc;
	err->status = 0; /* earlier failures do not concern the new client's caller */
	made = new_client(options.deadline_ms ? options.deadline_ms : DEFAULT_DEADLINE_MS);
	if (!made)
		return zd_err_errno(err, ENOMEM, "connecting");
	made->daemon = zd_text_hash(choose_path(&options));
	made->strict = options.strict != 0;
	made->poison_mode = options.poison != 0 || setting("ZEROD_POISON")[0] == '1';
	made->interrupted = options.interrupted;
	made->interrupted_context = options.interrupted_context;
	rc = zc_socket_open(made, choose_path(&options), zc_default_ns(made), err);
	if (!rc) {
		rc = zc_greet(made, name);
		if (rc)
			explain(made, choose_path(&options), rc, err);
	}
	if (!rc)
		rc = keep_place(made, choose_path(&options), name, options.reconnect_ms, err);
	if (!rc)
		rc = zc_lag_open(made, lag_seed, err);
	if (rc) {
		free_client(made);
		return rc;
	}
	*client = made;
	return 0;
}

/* ---- Session ------------------------------------------------------------------------------------------- */

static int take_reset(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct zerod_client *client = object;
	bool says = reply->body_case == ZD__REPLY__BODY_SESSION_RESET; /* older daemons do not */

	(void)err;
	ZC_LOCKED(&client->lock);
	zc_targets_settle(client, says ? reply->session_reset : NULL);
	return 0;
}

int zerod_session_reset(zerod_client *client, const struct zerod_wait_options *options)
{
	uint32_t deadline_ms;
	Zd__SessionReset reset = ZD__SESSION_RESET__INIT;
	Zd__Request request = ZD_REQUEST(SESSION_RESET, session_reset, &reset);
	zerod_group *group;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_quietly(client, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	zc_targets_doubt(client);
	pthread_mutex_unlock(&client->lock);
	rc = zc_call_take(client, &request, deadline_ms, ZD__REPLY__BODY__NOT_SET, take_reset, client);
	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	zc_streams_reset(client);
	zc_updates_reset(client);
	LIST_FOREACH (group, &client->groups, link)
		zc_buckets_forget(group, UINT64_MAX);
	pthread_mutex_unlock(&client->lock);
	client->poisoned = false;
	zc_aborts_settle(client);
	return 0;
}
