/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_many.c - zerod_wait_many() and zerod_release_many(): as many single calls would do, and what is true
 * of the others when one fails; and one unit that two threads register.
 */
#include "contract.h"

#include "base/mem.h"

#define NUMEL 1000u
#define UNITS 16u

struct scene {
	struct contract *c;
	struct contract_rank *rank;
	struct contract_unit units[UNITS];
	zerod_unit *handles[UNITS]; /* the rank's */
	zerod_ticket tickets[UNITS];
	void *data[UNITS];
	struct contract_unit *begun[UNITS]; /* which the other ranks gather as well */
	uint32_t nbegun;
};

static void open_scene(struct scene *s, uint32_t count)
{
	*s = (struct scene){.c = contract_open(NULL)};
	s->rank = &s->c->ranks[0];
	for (uint32_t i = 0; i < count; i++) {
		char name[8] = {'u', (char)('a' + i)};

		contract_plain_unit(s->c, name, NUMEL + 100 * i, &s->units[i]);
		contract_publish_all(s->c, &s->units[i]);
		s->handles[i] = s->units[i].at[0];
	}
}

static struct contract_unit *unit_of(struct scene *s, const zerod_unit *handle)
{
	uint32_t i = 0;

	while (s->units[i].at[0] != handle)
		i++;
	return &s->units[i];
}

static void others_begin(struct scene *s, struct contract_unit *unit)
{
	s->begun[s->nbegun++] = unit;
	contract_others_gather(s->rank, unit, NULL);
}

/* They keep nothing. */
static void others_end(struct scene *s)
{
	while (s->nbegun > 0)
		contract_others_release(s->rank, s->begun[--s->nbegun], NULL);
}

static void begin(struct scene *s, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		others_begin(s, unit_of(s, s->handles[i]));
	zerod_cork(s->rank->client);
	for (uint32_t i = 0; i < count; i++)
		OK(s->rank->client, zerod_gather_begin(s->handles[i], NULL, &s->tickets[i]));
	OK(s->rank->client, zerod_uncork(s->rank->client));
}

static void wait_for(struct scene *s, uint32_t count, zerod_stream *stream)
{
	OK(s->rank->client, zerod_wait_many(s->rank->client, s->tickets, count, stream, s->data));
	others_end(s);
}

static void release_all(struct scene *s, uint32_t count)
{
	OK(s->rank->client, zerod_release_many(s->handles, count, NULL, 0, NULL, NULL));
	others_end(s);
	assert_int_equal(contract_device(s->c, 0).gathered_bytes, 0);
}

/* ---- As many single calls would do --------------------------------------------------------------------- */

CONTRACT_TEST(test_a_thread_waits_for_many)
{
	struct scene s;

	open_scene(&s, UNITS);
	begin(&s, UNITS);
	wait_for(&s, UNITS, NULL);
	for (uint32_t i = 0; i < UNITS; i++)
		contract_expect_bytes(&s.units[i], s.data[i], 1);
	release_all(&s, UNITS);
	FAILS(s.rank->client, zerod_wait_many(s.rank->client, s.tickets, UNITS, NULL, NULL), ZEROD_E_STALE,
	      "tickets[0]");
	contract_close(s.c);
}

/* Work that is appended behind the wait sees the bytes of all units, and the releases wait for that work. */
CONTRACT_TEST(test_a_stream_waits_for_many)
{
	struct scene s;
	zerod_stream *stream;
	struct contract_gate *gate;
	uint8_t *seen[UNITS];

	open_scene(&s, UNITS);
	stream = contract_stream(s.rank);
	gate = contract_block(s.rank, stream);
	begin(&s, UNITS);
	wait_for(&s, UNITS, stream);
	for (uint32_t i = 0; i < UNITS; i++) {
		seen[i] = zd_calloc(1, contract_padded_bytes(&s.units[i]));
		contract_read(stream, seen[i], s.data[i], contract_padded_bytes(&s.units[i]));
	}
	OK(s.rank->client, zerod_release_many(s.handles, UNITS, &stream, 1, NULL, NULL));
	assert_int_equal(contract_device(s.c, 0).gathered_bytes, 0);
	assert_true(contract_device(s.c, 0).quarantine_bytes > 0);
	contract_unblock(gate);
	contract_sync(s.rank, stream);
	for (uint32_t i = 0; i < UNITS; i++) {
		CHECK_BYTES(contract_bytes_are(&s.units[i], seen[i], 1));
		free(seen[i]);
	}
	AWAIT(contract_device(s.c, 0).quarantine_bytes == 0);
	contract_close(s.c);
}

CONTRACT_TEST(test_tickets_of_many_releases)
{
	zerod_ticket released[UNITS];
	struct scene s;

	open_scene(&s, UNITS);
	begin(&s, UNITS);
	wait_for(&s, UNITS, NULL);
	OK(s.rank->client, zerod_release_many(s.handles, UNITS, NULL, 0, NULL, released));
	OK(s.rank->client, zerod_wait_many(s.rank->client, released, UNITS, NULL, NULL));
	assert_int_equal(contract_device(s.c, 0).gathered_bytes, 0);
	FAILS(s.rank->client, zerod_wait(s.rank->client, released[3], NULL, NULL), ZEROD_E_STALE, NULL);
	contract_close(s.c);
}

/* The thread's own requests go out before it waits, corked or not. */
CONTRACT_TEST(test_many_in_a_batch)
{
	struct scene s;

	open_scene(&s, UNITS);
	zerod_cork(s.rank->client);
	begin(&s, UNITS);
	wait_for(&s, UNITS, NULL);
	release_all(&s, UNITS);
	OK(s.rank->client, zerod_uncork(s.rank->client));
	contract_close(s.c);
}

/* ---- None, too many, twice ----------------------------------------------------------------------------- */

CONTRACT_TEST(test_none_and_too_many)
{
	zerod_ticket *tickets = zd_calloc(ZEROD_MAX_TICKETS + 1, sizeof(*tickets));
	zerod_client *client;
	struct scene s;

	open_scene(&s, 1);
	client = s.rank->client;
	OK(client, zerod_wait_many(client, NULL, 0, NULL, NULL));
	OK(client, zerod_release_many(NULL, 0, NULL, 0, NULL, NULL));
	FAILS(client, zerod_wait_many(client, NULL, 1, NULL, NULL), ZEROD_E_INVALID, "tickets is NULL");
	FAILS(NULL, zerod_release_many(NULL, 1, NULL, 0, NULL, NULL), ZEROD_E_INVALID, "units is NULL");
	FAILS(client, zerod_wait_many(client, tickets, ZEROD_MAX_TICKETS + 1, NULL, NULL), ZEROD_E_LIMIT,
	      "1025 tickets");
	FAILS(client, zerod_release_many(s.handles, ZEROD_MAX_TICKETS + 1, NULL, 0, NULL, NULL),
	      ZEROD_E_LIMIT, "1025 units");
	free(tickets);
	contract_close(s.c);
}

CONTRACT_TEST(test_the_same_twice)
{
	zerod_ticket released[2];
	struct scene s;

	open_scene(&s, 2);
	begin(&s, 2);
	s.tickets[2] = s.tickets[0];
	wait_for(&s, 3, NULL);
	assert_ptr_equal(s.data[2], s.data[0]);
	assert_ptr_not_equal(s.data[1], s.data[0]);
	contract_expect_bytes(&s.units[0], s.data[0], 1);
	/* Held twice, released twice. */
	OK(s.rank->client, zerod_gather(s.handles[0], NULL, NULL, NULL));
	s.handles[2] = s.handles[0];
	OK(s.rank->client, zerod_release_many(s.handles, 2, NULL, 0, NULL, released));
	released[1] = released[0];
	OK(s.rank->client, zerod_wait_many(s.rank->client, released, 2, NULL, NULL));
	assert_int_equal(contract_buffer(s.c, 0, s.units[0].name).holders, 1);
	release_all(&s, 1);
	contract_close(s.c);
}

/* ---- One of them fails --------------------------------------------------------------------------------- */

/* No ticket is consumed, no address given out; the others are waited for again. */
CONTRACT_TEST(test_a_failed_gather_among_many)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_gather_options old = ZEROD_INIT(old);
	void *const untouched = &old;
	zerod_client *client;
	struct scene s;

	open_scene(&s, 4);
	client = s.rank->client;
	contract_publish_all(s.c, &s.units[2]);
	begin(&s, 2);
	old.version = 1;
	OK(client, zerod_gather_begin(s.handles[2], &old, &s.tickets[2]));
	others_begin(&s, &s.units[3]);
	OK(client, zerod_gather_begin(s.handles[3], NULL, &s.tickets[3]));
	s.data[0] = untouched;
	FAILS(client, zerod_wait_many(client, s.tickets, 4, NULL, s.data), ZEROD_E_STALE_VERSION,
	      "tickets[2]: ");
	assert_ptr_equal(s.data[0], untouched);
	FAILS(client, zerod_wait(client, s.tickets[2], NULL, NULL), ZEROD_E_STALE_VERSION, NULL);
	s.tickets[2] = s.tickets[3];
	wait_for(&s, 3, NULL);
	contract_expect_bytes(&s.units[3], s.data[2], 1);
	s.handles[2] = s.handles[3];
	release_all(&s, 3);
	contract_close(s.c);
}

/* Wrong ones are found before anything is waited for. */
CONTRACT_TEST(test_wrong_tickets_among_many)
{
	zerod_ticket released[2], wrong[3];
	zerod_client *client;
	struct scene s;
	void *data[3];

	open_scene(&s, 2);
	client = s.rank->client;
	begin(&s, 2);
	OK(client, zerod_release_many(s.handles + 1, 1, NULL, 0, NULL, released));
	wrong[0] = released[0];
	wrong[1] = s.tickets[1]; /* stale by that release */
	FAILS(client, zerod_wait_many(client, wrong, 2, NULL, NULL), ZEROD_E_STALE, "tickets[1]: ");
	wrong[1] = (zerod_ticket){1ull << 40};
	FAILS(client, zerod_wait_many(client, wrong, 2, NULL, NULL), ZEROD_E_INVALID, "tickets[1]: ");
	wrong[1] = (zerod_ticket){0};
	FAILS(client, zerod_wait_many(client, wrong, 2, NULL, NULL), ZEROD_E_INVALID, "tickets[1]: ");
	wrong[1] = s.tickets[0];
	FAILS(client, zerod_wait_many(client, wrong, 2, NULL, data), ZEROD_E_INVALID,
	      "tickets[0]: stream and data must be NULL");
	OK(client, zerod_wait_many(client, wrong, 2, NULL, NULL)); /* none of that has consumed it */
	release_all(&s, 1);
	contract_close(s.c);
}

/* Each unit is a request of its own. */
CONTRACT_TEST(test_not_held_among_many)
{
	zerod_ticket released[3];
	zerod_client *client;
	struct scene s;

	open_scene(&s, 3);
	client = s.rank->client;
	begin(&s, 3);
	wait_for(&s, 3, NULL);
	OK(client, zerod_release(s.handles[1], NULL, 0, NULL, NULL));
	FAILS(client, zerod_release_many(s.handles, 3, NULL, 0, NULL, NULL), ZEROD_E_NOT_HELD, "'ub'");
	assert_int_equal(contract_device(s.c, 0).gathered_bytes, 0);
	/* The same with tickets: the one that failed is consumed by the wait that says so. */
	s.handles[1] = s.handles[2];
	begin(&s, 2);
	s.handles[1] = s.units[1].at[0];
	OK(client, zerod_release_many(s.handles, 3, NULL, 0, NULL, released));
	FAILS(client, zerod_wait_many(client, released, 3, NULL, NULL), ZEROD_E_NOT_HELD, "tickets[1]: ");
	FAILS(client, zerod_wait(client, released[1], NULL, NULL), ZEROD_E_STALE, NULL);
	released[1] = released[2];
	OK(client, zerod_wait_many(client, released, 2, NULL, NULL));
	assert_int_equal(contract_device(s.c, 0).gathered_bytes, 0);
	contract_close(s.c);
}

CONTRACT_TEST(test_wrong_units_among_many)
{
	zerod_unit *units[3];
	struct scene s;

	open_scene(&s, 2);
	begin(&s, 2);
	wait_for(&s, 2, NULL);
	units[0] = s.handles[0];
	units[1] = s.handles[1];
	units[2] = s.units[0].at[1]; /* of the other rank's client */
	FAILS(s.rank->client, zerod_release_many(units, 3, NULL, 0, NULL, NULL), ZEROD_E_INVALID, "units[2]");
	units[2] = NULL;
	FAILS(s.rank->client, zerod_release_many(units, 3, NULL, 0, NULL, NULL), ZEROD_E_INVALID, "units[2]");
	FAILS(s.rank->client, zerod_release_many(units, 2, NULL, 0, TAGGED("@a"), NULL), ZEROD_E_INVALID,
	      "tag");
	assert_int_equal(contract_buffer(s.c, 0, s.units[0].name).holders, 1);
	release_all(&s, 2);
	contract_close(s.c);
}

/* ---- One unit in two threads --------------------------------------------------------------------------- */

#define ROUNDS 300

/* Two parts of a program that know nothing of each other. */
static void take_and_give_back(struct contract_rank *rank, void *arg)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *unit;

	(void)arg;
	options.name = "shared", options.dtype = ZEROD_FLOAT32, options.numel = NUMEL;
	for (int i = 0; i < ROUNDS; i++) {
		OK(rank->client, zerod_unit_register(rank->group, &options, &unit));
		OK(rank->client, zerod_unit_set_persistent(unit, 0));
		OK(rank->client, zerod_unit_unregister(unit, NULL));
	}
}

CONTRACT_TEST(test_a_name_in_two_threads)
{
	struct contract *c = contract_open(NULL);
	struct contract_task *tasks[2];

	for (int i = 0; i < 2; i++)
		tasks[i] = contract_start(&c->ranks[0], take_and_give_back, NULL);
	for (int i = 0; i < 2; i++)
		contract_finish(tasks[i]);
	contract_close(c);
}
