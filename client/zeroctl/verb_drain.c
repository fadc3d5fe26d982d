// SPDX-License-Identifier: Apache-2.0
/*
 * verb_drain.c - zeroctl drain and undrain: whether jobs may begin, and ranks may join.
 */
#include "ctl.h"

static int send_drain(struct zd_ctl *ctl, bool undrain)
{
	Zd__Drain body = ZD__DRAIN__INIT;
	Zd__Request request = ZD__REQUEST__INIT;
	body.undrain = undrain;
	request.body_case = ZD__REQUEST__BODY_DRAIN;
	request.drain = &body;
	return zd_ctl_call(ctl, &request, NULL, NULL);
}

int zd_ctl_drain(struct zd_ctl *ctl)
{
	return send_drain(ctl, false);
}

int zd_ctl_undrain(struct zd_ctl *ctl)
{
	return send_drain(ctl, true);
}
