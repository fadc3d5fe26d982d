/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_lifetimes.c - what lifetimes are worth: peak bytes of steps with and without what the four pull
 * requests are about.
 *
 *     bench_lifetimes [SCALE]
 *
 * Two ranks on two devices of a private daemon run a step of Qwen3-8B in bfloat16, every size divided by
 * SCALE (64). Every figure is the daemon's own high-water mark of one device since its start, and each
 * relation is an equation: nothing here depends on time, nor on what the elements are.
 *
 *   targets    a ZeRO-1 step of 8 micro-steps. The optimizer takes two float32 arrays of the target's size:
 *              when target and buckets have gone or, as upstream had it, while both are there.
 *   views      a ZeRO-3 step, one unit at a time and the next one prefetched, whose caller keeps a view of
 *              every unit that it gathered, or none.
 *   fallback   the same step, in which frames outside the plan gather a few units in a forward scope, and
 *              need them again in the backward.
 */
#include "tests/contract/contract_reduce.h"

#include <stdio.h>

#define RANKS          2u
#define LAYERS         36u
#define PLANNED        (LAYERS + 2) /* the embedding in front, the output's table behind */
#define FALLBACKS      3u
#define MICRO_STEPS    8u
#define BUCKET_SLOTS   1u /* all of its storage is held in every backward, however fast slots are drained */
#define OPTIMIZER      2u /* arrays */
#define SCALE          64u
#define MAX_SCALE      4096u
#define MIB            (1024.0 * 1024.0)
#define UNSCALED_TABLE (151936ull * 4096)
/* q, k, v and o; gate, up and down; norms. */
#define UNSCALED_LAYER                                                                                       \
	(2ull * 4096 * 4096 + 2ull * 1024 * 4096 + 3ull * 12288 * 4096 + 2ull * 4096 + 2ull * 128)
#define UNSCALED_ROUTER     (128ull * 4096) /* what is touched outside the plan */
#define UNSCALED_SLOT_BYTES (1ull << 30)

static uint64_t scale = SCALE;

struct model {
	struct contract *c;
	struct contract_unit planned[PLANNED], extra[FALLBACKS];
	zerod_bucket *buckets[RANKS];
	uint64_t gathered_bytes; /* of all units, padded */
	uint64_t target_bytes;   /* of a rank */
};

static void judge(const char *figure, uint64_t measured_bytes, uint64_t expected_bytes)
{
	(void)printf("# target: %-42s %8.2f  %-8s %6.2f  %s\n", figure, (double)measured_bytes / MIB,
	             "equal to", (double)expected_bytes / MIB,
	             measured_bytes == expected_bytes ? "met" : "MISSED");
	assert_int_equal(measured_bytes, expected_bytes);
}

/* ---- The model ----------------------------------------------------------------------------------------- */

static void register_unit(struct model *m, const char *name, uint64_t numel, struct contract_unit *unit)
{
	struct zerod_unit_options options = ZEROD_INIT(options);

	options.name = name;
	options.dtype = ZEROD_BFLOAT16;
	options.numel = numel;
	contract_unit(m->c, &options, unit);
	m->gathered_bytes += contract_padded_bytes(unit);
	m->target_bytes += unit->shard_numel * sizeof(float);
	for (uint32_t i = 0; i < RANKS; i++) {
		OK(m->c->ranks[i].client, zerod_update_begin(&unit->at[i], 1, NULL, NULL));
		OK(m->c->ranks[i].client, zerod_publish(&unit->at[i], 1, NULL, 0, NULL, NULL));
	}
}

static void open_model(struct model *m)
{
	char name[CONTRACT_NAME];

	*m = (struct model){
	        .c = contract_open(&(struct contract_options){.world_size = RANKS, .arena = "4G"})};
	for (uint32_t i = 0; i < PLANNED; i++) {
		bool table = i == 0 || i == PLANNED - 1;

		(void)snprintf(name, sizeof(name), table ? "table%02u" : "layer%02u", i);
		register_unit(m, name, (table ? UNSCALED_TABLE : UNSCALED_LAYER) / scale, &m->planned[i]);
	}
	for (uint32_t i = 0; i < FALLBACKS; i++) {
		(void)snprintf(name, sizeof(name), "router%u", i);
		register_unit(m, name, UNSCALED_ROUTER / scale, &m->extra[i]);
	}
	for (uint32_t i = 0; i < RANKS; i++)
		m->buckets[i] = contract_bucket_as(&m->c->ranks[i], ZEROD_BFLOAT16,
		                                   UNSCALED_SLOT_BYTES / scale, BUCKET_SLOTS);
}

static void reduce_unit(struct model *m, const struct contract_unit *unit)
{
	for (uint32_t i = 0; i < RANKS; i++) {
		const struct contract_rank *rank = &m->c->ranks[i];
		struct zerod_entry entry = ZEROD_INIT(entry);

		OK(rank->client, zerod_bucket_reserve(m->buckets[i], unit->at[i], NULL, &entry));
		OK(rank->client, zerod_bucket_submit(m->buckets[i], entry.id, NULL, 0, NULL, NULL));
	}
}

/* ---- Step-local targets -------------------------------------------------------------------------------- */

/* Takes its arrays on both devices, and gives them back. */
static void optimize(struct model *m)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);

	options.job = "contract";
	options.name = "optimizer";
	options.bytes = m->target_bytes;
	for (uint32_t i = 0; i < RANKS; i++) {
		zerod_client *client = m->c->ranks[i].client;
		zerod_allocation *arrays[OPTIMIZER];
		void *data;

		options.device = i;
		for (uint32_t k = 0; k < OPTIMIZER; k++)
			OK(client, zerod_alloc(client, &options, &arrays[k], &data));
		for (uint32_t k = 0; k < OPTIMIZER; k++)
			OK(client, zerod_free(arrays[k], NULL, 0));
	}
}

static void take_step(struct contract_rank *rank, void *arg)
{
	(void)arg;
	(void)contract_step(rank);
	contract_step_end(rank);
}

/* Of a rank's target and its bucket. */
static uint64_t gradient_bytes(const struct model *m)
{
	return m->target_bytes + BUCKET_SLOTS * (UNSCALED_SLOT_BYTES / scale);
}

/* Every gradient has been reduced: nothing but targets and buckets is left of the backward. */
static bool all_is_reduced(const struct model *m)
{
	struct contract_device all = contract_devices(m->c);

	return all.staging_bytes == 0 && all.target_bytes + all.bucket_bytes == RANKS * gradient_bytes(m);
}

/* The peak of device 0; the bytes of its target and bucket go to *gradients. */
static uint64_t zero1_step(bool step_local, uint64_t *gradients)
{
	uint64_t peak_bytes;
	struct model m;

	open_model(&m);
	for (uint32_t micro = 1; micro < MICRO_STEPS; micro++) {
		contract_backward_all(m.c, 1, false);
		contract_backward_end_all(m.c);
	}
	contract_backward_all(m.c, 1, true);
	for (uint32_t i = 0; i < FALLBACKS; i++)
		reduce_unit(&m, &m.extra[i]);
	for (uint32_t i = PLANNED; i-- > 0;)
		reduce_unit(&m, &m.planned[i]);
	if (!step_local) {
		AWAIT(all_is_reduced(&m));
		optimize(&m);
	}
	contract_backward_end_all(m.c);
	contract_run(m.c, take_step, NULL);
	if (step_local)
		optimize(&m);
	peak_bytes = contract_device(m.c, 0).peak_bytes;
	*gradients = gradient_bytes(&m);
	contract_close(m.c);
	return peak_bytes;
}

static void test_targets_are_gone_before_the_optimizer(void **state)
{
	uint64_t gradients;
	uint64_t local = zero1_step(true, &gradients);
	uint64_t kept = zero1_step(false, &gradients);

	(void)state;
	(void)printf("# ZeRO-1, %u micro-steps: peak of a device, MiB: %.2f with step-local targets, %.2f "
	             "without\n",
	             MICRO_STEPS, (double)local / MIB, (double)kept / MIB);
	judge("drop of the peak; targets and buckets, MiB", kept - local, gradients);
}

/* ---- Held views, fallback gathers ---------------------------------------------------------------------- */

struct zero3 {
	bool hold_views, fallback;
	zerod_scope scopes[RANKS];
	const uint8_t *held[RANKS * 2 * PLANNED];
	uint32_t nheld;
};

/* Gathered under the plan; the unit at `next` is prefetched, if there is one. */
static void use_unit(struct model *m, struct zero3 *z, uint32_t at, uint32_t next)
{
	struct zerod_gather_options prefetch = ZEROD_INIT(prefetch);

	prefetch.flags = ZEROD_GATHER_PREFETCH;
	for (uint32_t i = 0; i < RANKS; i++) {
		struct contract_rank *rank = &m->c->ranks[i];
		const uint8_t *data = contract_gather(rank, &m->planned[at], "plan");

		if (next < PLANNED)
			OK(rank->client, zerod_gather(m->planned[next].at[i], &prefetch, NULL, NULL));
		if (z->hold_views)
			z->held[z->nheld++] = data;
		contract_release(rank, &m->planned[at], "plan");
	}
}

/* A frame outside the plan. */
static void touch(struct model *m, const struct zero3 *z)
{
	struct zerod_gather_options options = ZEROD_INIT(options);

	for (uint32_t i = 0; i < RANKS && z->fallback; i++) {
		options.scope = z->scopes[i];
		for (uint32_t k = 0; k < FALLBACKS; k++)
			OK(m->c->ranks[i].client, zerod_gather(m->extra[k].at[i], &options, NULL, NULL));
	}
}

static void run_forward(struct model *m, struct zero3 *z)
{
	const zerod_scope outermost = {0};

	for (uint32_t i = 0; i < RANKS && z->fallback; i++)
		OK(m->c->ranks[i].client,
		   zerod_forward_begin(m->c->ranks[i].group, outermost, NULL, 0, &z->scopes[i]));
	for (uint32_t at = 0; at < PLANNED; at++) {
		if (at == PLANNED / 2)
			touch(m, z);
		use_unit(m, z, at, at + 1);
	}
	for (uint32_t i = 0; i < RANKS && z->fallback; i++)
		OK(m->c->ranks[i].client,
		   zerod_forward_end(m->c->ranks[i].client, z->scopes[i], 1, NULL, 0, NULL));
}

static void run_backward(struct model *m, struct zero3 *z)
{
	contract_backward_all(m->c, 3, true);
	for (uint32_t at = PLANNED; at-- > 0;) {
		use_unit(m, z, at, at - 1); /* in front of the first there is none */
		reduce_unit(m, &m->planned[at]);
		if (at == PLANNED / 2)
			touch(m, z);
	}
	for (uint32_t i = 0; i < RANKS && z->fallback; i++)
		OK(m->c->ranks[i].client,
		   zerod_claim_end(m->c->ranks[i].client, z->scopes[i], NULL, 0, NULL));
	contract_backward_end_all(m->c);
}

struct gathered {
	uint64_t peak_bytes;             /* of device 0 */
	uint64_t set_bytes, model_bytes; /* padded, of what fallbacks touch and of everything */
};

static struct gathered zero3_step(struct zero3 *z)
{
	struct gathered gathered;
	struct contract_device device;
	struct model m;
	uint8_t byte;

	open_model(&m);
	run_forward(&m, z);
	run_backward(&m, z);
	contract_run(m.c, take_step, NULL);
	for (uint32_t i = 0; i < z->nheld; i++)
		contract_read(NULL, &byte, z->held[i], 1); /* they are views of something to the end */
	device = contract_device(m.c, 0);
	assert_int_equal(device.gathered_bytes, 0);
	gathered = (struct gathered){device.peak_gathered_bytes,
	                             FALLBACKS * contract_padded_bytes(&m.extra[0]), m.gathered_bytes};
	contract_close(m.c);
	return gathered;
}

static void test_held_views_cost_nothing(void **state)
{
	struct zero3 plain = {0}, views = {.hold_views = true};
	uint64_t without_bytes = zero3_step(&plain).peak_bytes;

	(void)state;
	judge("ZeRO-3 peak with views held; without, MiB", zero3_step(&views).peak_bytes, without_bytes);
}

static void test_fallbacks_cost_their_own_set(void **state)
{
	struct zero3 plain = {0}, fallback = {.fallback = true};
	uint64_t without_bytes = zero3_step(&plain).peak_bytes;
	struct gathered with = zero3_step(&fallback);

	(void)state;
	(void)printf(
	        "# ZeRO-3: peak of gathered bytes of a device, MiB: %.2f, %.2f with fallbacks; the model "
	        "has %.2f\n",
	        (double)without_bytes / MIB, (double)with.peak_bytes / MIB, (double)with.model_bytes / MIB);
	judge("growth by fallbacks; the fallback set, MiB", with.peak_bytes - without_bytes, with.set_bytes);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(test_targets_are_gone_before_the_optimizer, contract_teardown),
	        cmocka_unit_test_teardown(test_held_views_cost_nothing, contract_teardown),
	        cmocka_unit_test_teardown(test_fallbacks_cost_their_own_set, contract_teardown),
	};

	if (argc > 1)
		scale = strtoul(argv[1], NULL, 10);
	if (argc > 2 || scale == 0 || scale > MAX_SCALE) {
		(void)fprintf(stderr, "usage: bench_lifetimes [SCALE]; SCALE is 1..%u\n", MAX_SCALE);
		return 2;
	}
	(void)printf("# Qwen3-8B / %llu: %u layers of %llu elements, bfloat16, %u ranks\n",
	             (unsigned long long)scale, LAYERS, UNSCALED_LAYER / (unsigned long long)scale, RANKS);
	(void)fflush(stdout); /* cmocka writes to another stream */
	return cmocka_run_group_tests_name("what lifetimes are worth", tests, NULL, NULL);
}
