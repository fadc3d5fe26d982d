/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - the daemon's devices: their properties, and the device that a UUID names. */
#include "client/lib/device/device.h"

#include <stdio.h>
#include <string.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

/* ---- The list ------------------------------------------------------------------------------------------ */

struct device_listing {
	bool (*visit)(const Zd__DeviceRow *row, void *arg); /* true: no further rows are needed */
	void *arg;
	bool done;
	uint64_t next; /* cursor; 0: no more rows */
};

static int take_devices(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct device_listing *listing = object;
	const Zd__ListReply *list = reply->list;

	if (list->next != 0 && list->next <= listing->next)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon's list of devices does not end");
	listing->next = list->next;
	for (size_t i = 0; i < list->n_rows && !listing->done; i++)
		if (list->rows[i]->row_case == ZD__ROW__ROW_DEVICE)
			listing->done = listing->visit(list->rows[i]->device, listing->arg);
	return 0;
}

static int list_devices(struct zerod_client *client, bool (*visit)(const Zd__DeviceRow *row, void *arg),
                        void *arg)
{
	struct device_listing listing = {.visit = visit, .arg = arg};
	int rc;

	do {
		Zd__List list = ZD__LIST__INIT;
		Zd__Request request = ZD_REQUEST(LIST, list, &list);

		list.table = ZD__TABLE__DEVICES;
		list.cursor = listing.next;
		rc = zc_call_take(client, &request, 0, ZD__REPLY__BODY_LIST, take_devices, &listing);
	} while (!rc && !listing.done && listing.next != 0);
	return rc;
}

/* ---- By number ----------------------------------------------------------------------------------------- */

struct device_search {
	uint32_t device;
	struct zerod_device_info *info;
	bool found;
};

static void fill_info(const Zd__DeviceRow *row, struct zerod_device_info *info)
{
	size_t name_bytes = strnlen(row->name, sizeof(info->name) - 1);
	struct zerod_device_info made = {
	        .index = row->index, .host = ZEROD_NO_HOST, .arena_bytes = row->arena_bytes};

	memcpy(made.name, row->name, name_bytes);
	if (row->host_memory)
		made.host = row->index;
	else if (row->host)
		made.host = row->host - 1;
	if (row->usage) {
		made.gathered_bytes = row->usage->gathered_bytes;
		made.allocated_bytes = row->usage->shard_bytes + row->usage->gathered_bytes +
		                       row->usage->bucket_bytes + row->usage->staging_bytes +
		                       row->usage->target_bytes + row->usage->allocation_bytes;
		made.peak_bytes = row->usage->peak_bytes;
	}
	zc_result_fill(info, &made, sizeof(made));
}

static bool match_number(const Zd__DeviceRow *row, void *arg)
{
	struct device_search *search = arg;

	if (row->index != search->device)
		return false;
	fill_info(row, search->info);
	search->found = true;
	return true;
}

int zerod_device_get(zerod_client *client, uint32_t device, struct zerod_device_info *info)
{
	struct device_search search = {.device = device, .info = info};
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = zc_result_check(info, "info", err);
	if (!rc)
		rc = list_devices(client, match_number, &search);
	if (!rc && !search.found)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "there is no device %u", device);
	return rc;
}

/* ---- By UUID ------------------------------------------------------------------------------------------- */

#define NAMES_TEXT 400u /* of several devices, in an error's text; the rest is cut off */

struct device_choice {
	const char *uuid;
	uint32_t device, nmatches;
	char matches[NAMES_TEXT], all[NAMES_TEXT];
};

static void append_name(char names[NAMES_TEXT], const char *name)
{
	size_t used = strlen(names);

	(void)snprintf(names + used, NAMES_TEXT - used, "%s%s", used ? ", " : "", name);
}

static bool match_name(const Zd__DeviceRow *row, void *arg)
{
	struct device_choice *choice = arg;

	append_name(choice->all, row->name);
	if (strncmp(row->name, choice->uuid, strlen(choice->uuid)) != 0)
		return false;
	append_name(choice->matches, row->name);
	choice->device = row->index;
	choice->nmatches++;
	if (strcmp(row->name, choice->uuid) != 0)
		return false;
	choice->nmatches = 1; /* the whole name, even if another name begins with it */
	return true;
}

int zc_device_find(struct zerod_client *client, const char *uuid, uint32_t *device, struct zd_err *err)
{
	static const char mig[] = "MIG-";
	struct device_choice choice = {.uuid = uuid};
	int rc;

	if (uuid[0] == '\0')
		return zd_err_set(err, ZEROD_E_INVALID, "device_uuid is empty");
	if (strncmp(uuid, mig, sizeof(mig) - 1) == 0)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "device_uuid '%.64s' is a MIG instance, which has no peer access to other "
		                  "GPUs: zerod serves whole GPUs",
		                  uuid);
	rc = list_devices(client, match_name, &choice);
	if (rc)
		return rc;
	if (choice.nmatches == 0)
		return zd_err_set(err, ZEROD_E_NOT_FOUND,
		                  "the daemon has no device '%.64s'; its devices are %s", uuid, choice.all);
	if (choice.nmatches > 1)
		return zd_err_set(err, ZEROD_E_INVALID, "device_uuid '%.64s' is ambiguous: %s", uuid,
		                  choice.matches);
	*device = choice.device;
	return 0;
}
