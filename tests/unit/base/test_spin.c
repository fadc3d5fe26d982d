/* SPDX-License-Identifier: Apache-2.0 */
/* test_spin.c - how long a thread spins: a moment after its last event, and a share of the time in the long
 * run. */
#include "base/err.h"
#include "base/spin.h"
#include "tests/support/test.h"

#define WINDOW_NS 50000u
#define STEP_NS   1000u
#define START_NS  1000000000u

TEST(test_for_a_moment_after_an_event)
{
	struct zd_spin spin;

	zd_spin_init(&spin, WINDOW_NS, 1);
	assert_false(zd_spin_may(&spin, START_NS));
	zd_spin_event(&spin, START_NS);
	assert_true(zd_spin_may(&spin, START_NS));
	assert_true(zd_spin_may(&spin, START_NS + WINDOW_NS - 1));
	assert_false(zd_spin_may(&spin, START_NS + WINDOW_NS));
	zd_spin_event(&spin, START_NS + WINDOW_NS);
	assert_true(zd_spin_may(&spin, START_NS + WINDOW_NS + 1));
}

/* Looks without pause for so long, with an event at each look and none until the next; gives the time that
 * was spun away. */
static int64_t spin_for(struct zd_spin *spin, uint64_t from_ns, uint64_t ns)
{
	int64_t spun_ns = 0;

	for (uint64_t now_ns = from_ns; now_ns < from_ns + ns; now_ns += STEP_NS) {
		spun_ns += zd_spin_may(spin, now_ns) ? STEP_NS : 0;
		zd_spin_event(spin, now_ns);
	}
	return spun_ns;
}

TEST(test_a_share_in_the_long_run)
{
	int64_t second_ns = 1000000000;
	int64_t share_ns = second_ns * ZD_SPIN_PERCENT / 100;
	struct zd_spin spin;
	int64_t spun_ns;

	zd_spin_init(&spin, WINDOW_NS, 1);
	spun_ns = spin_for(&spin, START_NS, (uint64_t)second_ns);
	assert_in_range(spun_ns, share_ns, share_ns + 2 * ZD_SPIN_BURST_NS);
	spun_ns = spin_for(&spin, START_NS + (uint64_t)second_ns, (uint64_t)second_ns);
	assert_in_range(spun_ns, share_ns - share_ns / 100, share_ns + share_ns / 100);
}

/* The saved time bounds a burst, however long the rest before it was. */
TEST(test_a_burst_after_a_rest)
{
	int64_t most_ns = ZD_SPIN_BURST_NS + 10 * ZD_SPIN_BURST_NS * (int64_t)ZD_SPIN_PERCENT / 100;
	struct zd_spin spin;
	int64_t spun_ns;

	zd_spin_init(&spin, WINDOW_NS, 1);
	(void)spin_for(&spin, START_NS, (uint64_t)(10 * ZD_SPIN_BURST_NS));
	spun_ns = spin_for(&spin, START_NS + 3600000000000u, (uint64_t)(10 * ZD_SPIN_BURST_NS));
	assert_in_range(spun_ns, most_ns - 2 * STEP_NS, most_ns + 2 * STEP_NS);
}

/* A thread that finds an event at each poll uses up none of its spin time. */
TEST(test_what_is_busy_is_not_counted)
{
	uint64_t end_ns = START_NS + (uint64_t)(10 * ZD_SPIN_BURST_NS);
	struct zd_spin spin;

	zd_spin_init(&spin, WINDOW_NS, 1);
	for (uint64_t now_ns = START_NS; now_ns < end_ns; now_ns += STEP_NS) {
		zd_spin_event(&spin, now_ns);
		assert_true(zd_spin_may(&spin, now_ns));
	}
}

/* Also when nothing is saved up; and it is owed. */
TEST(test_for_what_is_on_its_way)
{
	uint64_t now_ns = START_NS + (uint64_t)(10 * ZD_SPIN_BURST_NS);
	struct zd_spin spin;

	zd_spin_init(&spin, WINDOW_NS, 1);
	(void)spin_for(&spin, START_NS, (uint64_t)(10 * ZD_SPIN_BURST_NS));
	while (zd_spin_may(&spin, now_ns))
		now_ns += STEP_NS;
	zd_spin_expect(&spin, now_ns + ZD_SPIN_AWAIT_NS);
	zd_spin_expect(&spin, now_ns + 1); /* what is there sooner takes nothing away */
	assert_true(zd_spin_may(&spin, now_ns));
	assert_true(zd_spin_may(&spin, now_ns + ZD_SPIN_AWAIT_NS - 1));
	assert_false(zd_spin_may(&spin, now_ns + ZD_SPIN_AWAIT_NS));
	zd_spin_event(&spin, now_ns + ZD_SPIN_AWAIT_NS);
	assert_false(zd_spin_may(&spin, now_ns + ZD_SPIN_AWAIT_NS));
}

/* The debt of a thread that expects events without pause is bounded: it spins on its own again soon after. */
TEST(test_debts_are_bounded)
{
	uint64_t burst_ns = (uint64_t)ZD_SPIN_BURST_NS, now_ns = START_NS;
	struct zd_spin spin;

	zd_spin_init(&spin, WINDOW_NS, 1);
	for (; now_ns < START_NS + 10 * burst_ns; now_ns += STEP_NS) {
		zd_spin_expect(&spin, now_ns + ZD_SPIN_AWAIT_NS);
		assert_true(zd_spin_may(&spin, now_ns));
	}
	now_ns += ZD_SPIN_AWAIT_NS;
	assert_false(zd_spin_may(&spin, now_ns));
	now_ns += (uint64_t)ZD_SPIN_DEBT_NS * 100 / ZD_SPIN_PERCENT + STEP_NS;
	zd_spin_event(&spin, now_ns);
	assert_true(zd_spin_may(&spin, now_ns));
}

/* A busy thread spins without regard to its share, and sleeps when nothing happens for long. */
TEST(test_busy)
{
	uint64_t now_ns = START_NS, end_ns = START_NS + (uint64_t)(10 * ZD_SPIN_BURST_NS);
	struct zd_spin spin;

	assert_int_equal(setenv("ZEROD_SPIN", "busy", 1), 0);
	zd_spin_init(&spin, WINDOW_NS, 1u << 20);
	assert_int_equal(unsetenv("ZEROD_SPIN"), 0);
	for (; now_ns < end_ns; now_ns += ZD_SPIN_BUSY_NS) {
		zd_spin_event(&spin, now_ns);
		assert_true(zd_spin_may(&spin, now_ns));
		assert_true(zd_spin_may(&spin, now_ns + ZD_SPIN_BUSY_NS - 1));
	}
	assert_false(zd_spin_may(&spin, now_ns));
}

TEST(test_not_on_few_processors)
{
	struct zd_spin spin;

	assert_int_equal(unsetenv("ZEROD_SPIN"), 0);
	zd_spin_init(&spin, WINDOW_NS, 1u << 20);
	zd_spin_event(&spin, START_NS);
	zd_spin_expect(&spin, START_NS + ZD_SPIN_AWAIT_NS);
	assert_false(zd_spin_may(&spin, START_NS));
}

TEST(test_what_the_environment_says)
{
	struct zd_spin spin;
	struct zd_err err;

	assert_int_equal(setenv("ZEROD_SPIN", "always", 1), 0);
	assert_int_equal(zd_spin_check(&err), 0);
	assert_true(zd_spin_always());
	zd_spin_init(&spin, WINDOW_NS, 1u << 20);
	assert_int_equal(spin.window_ns, WINDOW_NS);
	assert_int_equal(setenv("ZEROD_SPIN", "busy", 1), 0);
	assert_int_equal(zd_spin_check(&err), 0);
	assert_true(zd_spin_always());
	assert_int_equal(setenv("ZEROD_SPIN", "never", 1), 0);
	assert_int_equal(zd_spin_check(&err), 0);
	assert_false(zd_spin_always());
	zd_spin_init(&spin, WINDOW_NS, 1);
	assert_int_equal(spin.window_ns, 0);
	assert_int_equal(setenv("ZEROD_SPIN", "sometimes", 1), 0);
	assert_int_equal(zd_spin_check(&err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "ZEROD_SPIN is 'sometimes': auto, always, busy or never is expected");
	zd_spin_init(&spin, WINDOW_NS, 1);
	assert_int_equal(spin.window_ns, WINDOW_NS);
	assert_int_equal(setenv("ZEROD_SPIN", "", 1), 0);
	assert_int_equal(zd_spin_check(&err), 0);
	assert_int_equal(unsetenv("ZEROD_SPIN"), 0);
	assert_int_equal(zd_spin_check(&err), 0);
	assert_false(zd_spin_always());
}
