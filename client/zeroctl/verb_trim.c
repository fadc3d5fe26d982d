// SPDX-License-Identifier: Apache-2.0
/*
 * verb_trim.c - zeroctl trim: empty memory goes back to the devices.
 *
 * A device whose memory somebody keeps is told as a failure, and the others are trimmed all the same.
 */
#include "ctl.h"

#include "base/mem.h"

static const struct zd_ctl_column columns[] = {
        {"DEVICE", "index", ZD_CTL_COUNT, NULL, 0},
        {"NAME", "name", ZD_CTL_TEXT, NULL, 0},
        {"FREED", "freed_bytes", ZD_CTL_BYTES, NULL, 0},
        {NULL, NULL, ZD_CTL_TEXT, NULL, 0},
};

static int take_freed(const Zd__Reply *reply, void *arg)
{
	uint64_t *freed_bytes = arg;
	if (reply->body_case != ZD__REPLY__BODY_TRIM)
		return zd_ctl_fail(ZEROD_E_PROTOCOL, "the daemon answered a trim with something else");
	*freed_bytes = reply->trim->freed_bytes;
	return 0;
}

static int trim(struct zd_ctl *ctl, json_int_t device, uint64_t *freed_bytes)
{
	Zd__Trim body = ZD__TRIM__INIT;
	Zd__Request request = ZD__REQUEST__INIT;
	body.device = (uint32_t)device;
	body.keep_bytes = ctl->keep_bytes;
	request.body_case = ZD__REQUEST__BODY_TRIM;
	request.trim = &body;
	return zd_ctl_call(ctl, &request, take_freed, freed_bytes);
}

/* Fills `rows`; the first failure is returned when all have been tried. */
static int trim_all(struct zd_ctl *ctl, const json_t *devices, json_t *rows)
{
	int first = 0;
	size_t i;
	const json_t *device;
	json_array_foreach(devices, i, device)
	{
		json_int_t index = json_integer_value(json_object_get(device, "index"));
		uint64_t freed_bytes = 0;
		if (ctl->device >= 0 && index != ctl->device)
			continue;
		int status = trim(ctl, index, &freed_bytes);
		first = first ? first : status;
		if (status == 0)
			(void)json_array_append_new(rows, json_pack("{s:I,s:O,s:I}", "index", index, "name",
			                                            json_object_get(device, "name"),
			                                            "freed_bytes", ZD_CTL_INT(freed_bytes)));
	}
	return first;
}

static int check_device(const struct zd_ctl *ctl, const json_t *devices)
{
	if (ctl->device < (long long)json_array_size(devices))
		return 0;
	return zd_ctl_fail(ZEROD_E_NOT_FOUND, "no device %lld; there are %zu", ctl->device,
	                   json_array_size(devices));
}

int zd_ctl_trim(struct zd_ctl *ctl)
{
	json_t *devices, *rows;
	int printed = 0, status = zd_ctl_list_fetch(ctl, &zd_ctl_devices_listing, &devices);
	if (status)
		return status;
	status = check_device(ctl, devices);
	if (status) {
		json_decref(devices);
		return status;
	}
	rows = json_array();
	status = trim_all(ctl, devices, rows);
	json_decref(devices);
	if (ctl->json) {
		printed = zd_ctl_print_json(stdout, ctl->verb, rows);
	} else {
		if (json_array_size(rows) > 0)
			printed = zd_ctl_print_table(ctl, rows, columns);
		json_decref(rows);
	}
	return status ? status : printed;
}
