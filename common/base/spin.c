/* SPDX-License-Identifier: Apache-2.0 */
/* spin.c - how long a thread may poll before it sleeps. */
#include "base/spin.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/processors.h"

static const char *policy(void)
{
	const char *text = secure_getenv("ZEROD_SPIN");

	return text && text[0] ? text : "auto";
}

static bool is(const char *name)
{
	return strcmp(policy(), name) == 0;
}

int zd_spin_check(struct zd_err *err)
{
	if (is("auto") || is("never") || zd_spin_always())
		return 0;
	return zd_err_set(err, ZEROD_E_INVALID, "ZEROD_SPIN is '%s': auto, always, busy or never is expected",
	                  policy());
}

bool zd_spin_always(void)
{
	return is("always") || is("busy");
}

void zd_spin_init(struct zd_spin *spin, uint64_t window_ns, unsigned processors)
{
	*spin = (struct zd_spin){.left_ns = ZD_SPIN_BURST_NS, .busy = is("busy")};
	if (!is("never") && (zd_spin_always() || zd_processors("") >= processors))
		spin->window_ns = spin->busy ? ZD_SPIN_BUSY_NS : window_ns;
}

bool zd_spin_may(struct zd_spin *spin, uint64_t now_ns)
{
	uint64_t passed_ns = now_ns - spin->seen_ns;
	bool expects = spin->window_ns > 0 && now_ns < spin->expected_ns;
	bool was_busy = spin->event_ns > spin->seen_ns;

	spin->seen_ns = now_ns;
	if (spin->spinning && !was_busy)
		spin->left_ns -= (int64_t)passed_ns;
	if ((int64_t)passed_ns > 100 * ZD_SPIN_BURST_NS)
		spin->left_ns = ZD_SPIN_BURST_NS;
	else
		spin->left_ns += (int64_t)passed_ns * ZD_SPIN_PERCENT / 100;
	if (spin->left_ns > ZD_SPIN_BURST_NS)
		spin->left_ns = ZD_SPIN_BURST_NS;
	if (spin->left_ns < -ZD_SPIN_DEBT_NS)
		spin->left_ns = -ZD_SPIN_DEBT_NS;
	spin->spinning = expects ||
	                 (now_ns - spin->event_ns < spin->window_ns && (spin->busy || spin->left_ns > 0));
	return spin->spinning;
}
