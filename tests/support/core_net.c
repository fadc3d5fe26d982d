/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_net.c - communicators of driven engines: who meets whom, and which bytes go where.
 */
#include <stdio.h>
#include <sys/queue.h>

#include "base/err.h"
#include "base/mem.h"
#include "core_net.h"

#define DRIVERS CORE_NODES

/* A command that the core of one rank has submitted. */
struct given {
	struct core_driver *core;
	struct zd_command command;
	char what[ZD_WHAT_TEXT];
	bool met;   /* all ranks have given theirs */
	int status; /* it can only fail */
	unsigned char
	        *sent; /* all that the rank sends, once it has ended there; before, memory itself is read */
	bool ended;
	TAILQ_ENTRY(given) link;
};

/* One rank of a communicator. */
struct end {
	struct core_driver *core; /* NULL: not opened yet */
	uint64_t comm;
	uint32_t world_rank;
	bool closed;
	int status;               /* why nothing it is given ends well any more */
	TAILQ_HEAD(, given) list; /* in order; those that have ended too, until they have on all ranks */
};

struct comm {
	unsigned char id[ZD_UNIQUE_ID_BYTES];
	enum zd_comm_role role;
	uint32_t nranks;
	struct end *ends;
	TAILQ_ENTRY(comm) link;
};

struct core_net {
	struct core_driver *drivers[DRIVERS];
	uint32_t ndrivers;
	bool settling;
	bool broken; /* a rank has left, failed, or waited too long: others may wait for it */
	uint64_t next_id;
	const struct core_driver *liar;
	uint32_t lie_at, lie_bytes;
	unsigned char lie[16];
	char why[64]; /* of the last failure */
	TAILQ_HEAD(, comm) comms;
};

struct core_net *core_net_new(void)
{
	struct core_net *net = zd_calloc(1, sizeof(*net));
	TAILQ_INIT(&net->comms);
	return net;
}

void core_net_lie(struct core_net *net, const struct core_driver *core, uint32_t offset, const void *says,
                  uint32_t bytes)
{
	assert_true(bytes <= sizeof(net->lie) && offset + bytes <= ZD_AGREE_BYTES);
	net->liar = core;
	net->lie_at = offset;
	net->lie_bytes = bytes;
	memcpy(net->lie, says, bytes);
}

bool core_net_has(enum zd_command_kind kind)
{
	return kind == ZD_CMD_UNIQUE_IDS || kind == ZD_CMD_COMM_OPEN || kind == ZD_CMD_EXCHANGE ||
	       kind == ZD_CMD_AGREE;
}

/* ---- Finding ------------------------------------------------------------------------------------------- */

static uint64_t comm_of(const struct zd_command *command)
{
	switch (command->kind) {
	case ZD_CMD_COMM_OPEN:
		return command->u.comm_open.comm;
	case ZD_CMD_COMM_CLOSE:
		return command->u.comm_close.comm;
	case ZD_CMD_EXCHANGE:
		return command->u.exchange.comm;
	default:
		return command->u.agree.comm;
	}
}

/* The rank that the driver knows by this number; fails if there is none. */
static struct comm *comm_find(const struct core_net *net, const struct core_driver *core, uint64_t number,
                              struct end **end)
{
	struct comm *comm;
	TAILQ_FOREACH (comm, &net->comms, link) {
		for (uint32_t rank = 0; rank < comm->nranks; rank++) {
			*end = &comm->ends[rank];
			if ((*end)->core == core && (*end)->comm == number)
				return comm;
		}
	}
	fail_msg("no communicator %llu", (unsigned long long)number);
	return NULL;
}

static struct given *given_find(const struct end *end, uint64_t op)
{
	struct given *given;
	TAILQ_FOREACH (given, &end->list, link) {
		if (given->command.op == op)
			break;
	}
	assert_non_null(given);
	return given;
}

/* The first that has not met. */
static struct given *next_to_meet(const struct end *end)
{
	struct given *given;
	TAILQ_FOREACH (given, &end->list, link) {
		if (!given->met)
			break;
	}
	return given && given->status == 0 ? given : NULL;
}

/* ---- Meeting ------------------------------------------------------------------------------------------- */

static bool same(const struct given *a, const struct given *b)
{
	const struct zd_exchange_desc *x = &a->command.u.exchange, *y = &b->command.u.exchange;
	if (a->command.kind != b->command.kind)
		return false;
	if (a->command.kind == ZD_CMD_COMM_OPEN)
		return true;
	if (strcmp(a->what, b->what) != 0)
		return false;
	if (a->command.kind == ZD_CMD_AGREE)
		return a->command.u.agree.bytes == b->command.u.agree.bytes;
	return x->bytes == y->bytes && (x->send_stride == 0) == (y->send_stride == 0);
}

/* Marks the commands that all ranks have submitted: they may run. */
static void meet(struct comm *comm)
{
	for (;;) {
		struct given *first = next_to_meet(&comm->ends[0]);
		for (uint32_t rank = 0; rank < comm->nranks; rank++) {
			const struct given *given = next_to_meet(&comm->ends[rank]);
			if (!given)
				return;
			if (!same(first, given))
				fail_msg("ranks of a communicator give '%s' and '%s'", first->what,
				         given->what);
		}
		for (uint32_t rank = 0; rank < comm->nranks; rank++)
			next_to_meet(&comm->ends[rank])->met = true;
	}
}

static struct comm *comm_get(struct core_net *net, const struct zd_comm_desc *desc)
{
	struct comm *comm;
	TAILQ_FOREACH (comm, &net->comms, link) {
		if (memcmp(comm->id, desc->id, sizeof(comm->id)) == 0)
			break;
	}
	if (!comm) {
		comm = zd_calloc(1, sizeof(*comm));
		memcpy(comm->id, desc->id, sizeof(comm->id));
		comm->role = desc->role;
		comm->nranks = desc->nranks;
		comm->ends = zd_calloc(comm->nranks, sizeof(*comm->ends));
		for (uint32_t rank = 0; rank < comm->nranks; rank++)
			TAILQ_INIT(&comm->ends[rank].list);
		TAILQ_INSERT_TAIL(&net->comms, comm, link);
	}
	assert_int_equal(comm->role, desc->role);
	assert_int_equal(comm->nranks, desc->nranks);
	assert_true(desc->rank < desc->nranks);
	return comm;
}

static struct end *open_end(struct core_net *net, struct core_driver *core, const struct zd_comm_desc *desc)
{
	struct end *end = &comm_get(net, desc)->ends[desc->rank];
	assert_null(end->core); /* a rank comes once, and an id is used once */
	assert_true(desc->group && desc->group[0]);
	end->core = core;
	end->comm = desc->comm;
	end->world_rank = desc->world.first + desc->rank * (1 + desc->world.between);
	return end;
}

void core_net_give(struct core_net *net, struct core_driver *core, const struct zd_command *command)
{
	struct end *end;
	const char *what = command->kind == ZD_CMD_EXCHANGE ? command->u.exchange.what
	                   : command->kind == ZD_CMD_AGREE  ? command->u.agree.what
	                                                    : "meeting";
	if (command->kind == ZD_CMD_UNIQUE_IDS)
		return;
	if (command->kind == ZD_CMD_COMM_OPEN)
		(void)open_end(net, core, &command->u.comm_open);
	struct comm *comm = comm_find(net, core, comm_of(command), &end);
	struct given *given = zd_calloc(1, sizeof(*given));
	assert_false(end->closed);
	given->core = core;
	given->command = *command;
	if (command->kind == ZD_CMD_AGREE && core == net->liar)
		memcpy(given->command.u.agree.value + net->lie_at, net->lie, net->lie_bytes);
	given->status = end->status;
	(void)snprintf(given->what, sizeof(given->what), "%s", what);
	TAILQ_INSERT_TAIL(&end->list, given, link);
	meet(comm);
}

/* ---- The end of a rank --------------------------------------------------------------------------------- */

static void given_free(struct end *end, struct given *given)
{
	TAILQ_REMOVE(&end->list, given, link);
	free(given->sent);
	free(given);
}

/* Operations that have ended everywhere, and communicators that all ranks have left, go. */
static void forget(struct core_net *net, struct comm *comm)
{
	for (;;) {
		bool over = true;
		for (uint32_t rank = 0; rank < comm->nranks; rank++) {
			const struct given *given = TAILQ_FIRST(&comm->ends[rank].list);
			over = over && given && given->met && given->ended;
		}
		if (!over)
			break;
		for (uint32_t rank = 0; rank < comm->nranks; rank++)
			given_free(&comm->ends[rank], TAILQ_FIRST(&comm->ends[rank].list));
	}
	for (uint32_t rank = 0; rank < comm->nranks; rank++) {
		const struct end *end = &comm->ends[rank];
		const struct given *given;
		if (end->core && !end->closed)
			return;
		TAILQ_FOREACH (given, &end->list, link) {
			if (!given->ended)
				return;
		}
	}
	for (uint32_t rank = 0; rank < comm->nranks; rank++) {
		while (!TAILQ_EMPTY(&comm->ends[rank].list))
			given_free(&comm->ends[rank], TAILQ_FIRST(&comm->ends[rank].list));
	}
	TAILQ_REMOVE(&net->comms, comm, link);
	free(comm->ends);
	free(comm);
}

/* Copies the bytes that the exchange sends, for the other ranks to read. */
static void keep_sent(struct given *given, uint32_t nranks)
{
	const struct zd_exchange_desc *x = &given->command.u.exchange;
	if (given->command.kind != ZD_CMD_EXCHANGE || given->sent || given->ended)
		return;
	struct zd_location all = x->send;
	all.bytes = (nranks - 1) * x->send_stride + x->bytes;
	given->sent = zd_calloc(1, all.bytes);
	memcpy(given->sent, core_bytes(given->core, all), all.bytes);
}

static void end_fail(struct core_net *net, const struct comm *comm, struct end *end, int status)
{
	struct given *given;
	net->broken = true;
	end->status = status;
	TAILQ_FOREACH (given, &end->list, link) {
		if (given->met)
			keep_sent(given, comm->nranks);
		if (!given->ended)
			given->status = status;
	}
}

void core_net_close(struct core_net *net, struct core_driver *core, const struct zd_command *command)
{
	struct end *end;
	struct comm *comm = comm_find(net, core, command->u.comm_close.comm, &end);
	assert_false(end->closed);
	end->closed = net->broken = true;
	if (command->u.comm_close.abort)
		end_fail(net, comm, end, ZEROD_E_ABORTED);
	forget(net, comm);
}

void core_net_expire(struct core_net *net)
{
	struct comm *comm;
	net->broken = true;
	TAILQ_FOREACH (comm, &net->comms, link) {
		for (uint32_t rank = 0; rank < comm->nranks; rank++) {
			struct end *end = &comm->ends[rank];
			struct given *given;
			TAILQ_FOREACH (given, &end->list, link) {
				if (!given->met && given->status == 0)
					given->status = end->status = ZEROD_E_DEADLINE;
			}
		}
	}
	core_net_settle(net);
}

void core_net_join(struct core_net *net, struct core_driver *core)
{
	assert_true(net->ndrivers < DRIVERS);
	net->drivers[net->ndrivers++] = core;
}

/* The daemon is gone: what others still wait for of it never comes. */
void core_net_leave(struct core_net *net, struct core_driver *core)
{
	struct comm *comm, *next;
	for (comm = TAILQ_FIRST(&net->comms); comm; comm = next) {
		next = TAILQ_NEXT(comm, link);
		for (uint32_t rank = 0; rank < comm->nranks; rank++) {
			struct end *end = &comm->ends[rank];
			struct given *given;
			if (end->core != core)
				continue;
			end_fail(net, comm, end, ZEROD_E_ABORTED);
			end->closed = true;
			TAILQ_FOREACH (given, &end->list, link)
				given->ended = true;
		}
		forget(net, comm);
	}
	for (uint32_t i = 0; i < net->ndrivers; i++) {
		if (net->drivers[i] == core)
			net->drivers[i] = net->drivers[--net->ndrivers];
	}
}

/* ---- Ending operations --------------------------------------------------------------------------------- */

bool core_net_may_end(const struct core_net *net, const struct core_driver *core,
                      const struct zd_command *command)
{
	struct end *end;
	const struct given *before;
	if (command->kind == ZD_CMD_UNIQUE_IDS)
		return true;
	(void)comm_find(net, core, comm_of(command), &end);
	TAILQ_FOREACH (before, &end->list, link) { /* in order */
		if (before->command.op == command->op)
			break;
		if (!before->ended)
			return false;
	}
	return before->met || before->status != 0;
}

static struct given *peer_given(const struct comm *comm, uint32_t peer, const struct end *end,
                                const struct given *own)
{
	const struct given *before = TAILQ_FIRST(&end->list);
	struct given *given = TAILQ_FIRST(&comm->ends[peer].list);
	for (; before != own; before = TAILQ_NEXT(before, link))
		given = TAILQ_NEXT(given, link);
	return given;
}

static void receive(const struct comm *comm, struct end *end, const struct given *own)
{
	const struct zd_exchange_desc *desc = &own->command.u.exchange;
	uint32_t rank = (uint32_t)(end - comm->ends);
	bool gathers = desc->send_stride == 0 && desc->receive_stride == desc->bytes;
	assert_true(desc->receive.bytes >= (comm->nranks - 1) * desc->receive_stride + desc->bytes);
	for (uint32_t peer = 0; peer < comm->nranks; peer++) {
		const struct given *other = peer_given(comm, peer, end, own);
		const struct zd_exchange_desc *from = &other->command.u.exchange;
		struct zd_location to = desc->receive, source = from->send;
		if (peer == rank && !gathers)
			continue;
		to.offset += peer * desc->receive_stride;
		to.bytes = desc->bytes;
		source.offset += rank * from->send_stride;
		source.bytes = desc->bytes;
		memmove(core_bytes(own->core, to),
		        other->sent ? other->sent + rank * from->send_stride
		                    : core_bytes(other->core, source),
		        desc->bytes);
	}
}

static void agree(const struct comm *comm, const struct end *end, const struct given *own,
                  struct zd_op_result *result)
{
	uint32_t bytes = own->command.u.agree.bytes;
	result->values = zd_calloc(comm->nranks, bytes);
	result->values_bytes = comm->nranks * bytes;
	for (uint32_t peer = 0; peer < comm->nranks; peer++)
		memcpy(result->values + peer * bytes, peer_given(comm, peer, end, own)->command.u.agree.value,
		       bytes);
}

static void make_ids(struct core_net *net, uint32_t n, struct zd_op_result *result)
{
	result->values_bytes = n * ZD_UNIQUE_ID_BYTES;
	result->values = zd_calloc(n, ZD_UNIQUE_ID_BYTES);
	for (uint32_t i = 0; i < n; i++)
		(void)snprintf((char *)result->values + i * ZD_UNIQUE_ID_BYTES, ZD_UNIQUE_ID_BYTES, "id %llu",
		               (unsigned long long)++net->next_id);
}

int core_net_complete(struct core_net *net, struct core_driver *core, const struct zd_command *command,
                      int status, struct zd_op_result *result, const char **error)
{
	struct end *end;
	if (command->kind == ZD_CMD_UNIQUE_IDS) {
		if (status == 0)
			make_ids(net, command->u.ids.count, result);
		return status;
	}
	struct comm *comm = comm_find(net, core, comm_of(command), &end);
	struct given *given = given_find(end, command->op);
	if (status == 0 && given->status != 0) {
		status = given->status;
		(void)snprintf(net->why, sizeof(net->why), "rank %u: the communicator is of no more use",
		               end->world_rank);
		*error = net->why;
	}
	if (given->met)
		keep_sent(given, comm->nranks);
	if (status != 0)
		end_fail(net, comm, end, status);
	else if (command->kind == ZD_CMD_EXCHANGE)
		receive(comm, end, given);
	else if (command->kind == ZD_CMD_AGREE)
		agree(comm, end, given, result);
	given->ended = true;
	forget(net, comm);
	return status;
}

void core_net_settle(struct core_net *net)
{
	bool moved = true;
	if (net->settling)
		return;
	net->settling = true;
	while (moved) {
		moved = false;
		for (uint32_t i = 0; i < net->ndrivers; i++)
			moved |= core_run_all(net->drivers[i]);
	}
	net->settling = false;
}

static void expect_all_met(const struct core_net *net)
{
	const struct comm *comm;
	TAILQ_FOREACH (comm, &net->comms, link) {
		for (uint32_t rank = 0; rank < comm->nranks; rank++) {
			const struct given *given = next_to_meet(&comm->ends[rank]);
			if (given)
				fail_msg("rank %u waits for others in '%s'", comm->ends[rank].world_rank,
				         given->what);
		}
	}
}

void core_net_end(struct core_net *net)
{
	if (!net->broken)
		expect_all_met(net);
	for (uint32_t i = 0; i < net->ndrivers; i++)
		core_close_all(net->drivers[i]);
	core_net_expire(net);
	while (net->ndrivers > 0)
		core_end(net->drivers[0]);
	assert_true(TAILQ_EMPTY(&net->comms));
	free(net);
}
