/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_init.c - a rank joins its group and registers what it has a part of.
 *
 * Everything that lasts is the daemon's memory: the shards, and Adam's moments as plain allocations of the
 * same job. So it is all seen by zeroctl, and is gone when the session ends, however it ends.
 */
#include "rank.h"

#include <zerod_host.h>

#include <stdio.h>
#include <string.h>

/* Tells the launcher what went wrong and with what; returns the status for the caller to pass on. */
int charlm_rank_fail(struct rank *r, int status, const char *what, const char *unit)
{
	struct charlm_message message = {.kind = CHARLM_FAILED, .status = -status};
	const char *why = zerod_last_error(r->client);
	(void)snprintf(message.text, sizeof(message.text), "%s%s%s: %s%s%s", what, unit[0] != '\0' ? " " : "",
	               unit, zerod_status_name(status), why[0] != '\0' ? ": " : "", why);
	(void)!charlm_tell(r->channel, &message);
	return status;
}

const char *charlm_rank_unit_name(const struct rank *r, enum charlm_unit unit)
{
	return r->plan->model->layers[unit].name;
}

static int join(struct rank *r)
{
	struct zerod_options options = ZEROD_INIT(options);
	char name[32];
	(void)snprintf(name, sizeof(name), "charlm.%u", r->index);
	options.socket_path = r->plan->socket;
	options.name = name;
	int rc = zerod_connect(&options, &r->client);
	if (rc != ZEROD_OK)
		return charlm_rank_fail(r, rc, "connecting", "");

	struct zerod_device_info device = ZEROD_INIT(device);
	uint32_t ndevices = 0;
	while (zerod_device_get(r->client, ndevices, &device) == ZEROD_OK && device.host != device.index) {
		if (strncmp(device.name, "host", 4) != 0)
			return charlm_rank_fail(
			        r, ZEROD_E_UNSUPPORTED,
			        "computing on the CPU, which needs a daemon of --backend host, with the GPU",
			        device.name);
		ndevices++;
	}
	if (ndevices == 0)
		return charlm_rank_fail(r, ZEROD_E_NOT_FOUND, "looking for devices", "");
	r->device = r->index % ndevices;
	r->progress.device = r->device;

	struct zerod_group_options group = ZEROD_INIT(group);
	group.job = r->plan->job;
	group.world_size = r->plan->ranks;
	group.rank = r->index;
	group.device = r->device;
	rc = zerod_group_join(r->client, &group, &r->group);
	return rc == ZEROD_OK ? rc : charlm_rank_fail(r, rc, "joining the group", "");
}

static struct zerod_view view_of(const struct charlm_tensor *tensor)
{
	struct zerod_view view = ZEROD_INIT(view);
	view.name = tensor->name;
	view.offset_numel = tensor->offset_numel;
	if (tensor->rows > 0)
		view.shape[view.ndim++] = tensor->rows;
	view.shape[view.ndim++] = tensor->columns;
	return view;
}

static int register_unit(struct rank *r, enum charlm_unit unit)
{
	const struct charlm_layer *layer = &r->plan->model->layers[unit];
	struct zerod_view views[] = {view_of(&layer->weight), view_of(&layer->bias)};
	struct zerod_unit_options options = ZEROD_INIT(options);
	options.name = layer->name;
	options.dtype = ZEROD_FLOAT32;
	options.numel = layer->numel;
	options.nviews = 2;
	options.views = views;
	int rc = zerod_unit_register(r->group, &options, &r->units[unit]);
	r->shards[unit].struct_size = sizeof(r->shards[unit]);
	if (rc == ZEROD_OK)
		rc = zerod_shard_get(r->units[unit], &r->shards[unit]);
	if (rc != ZEROD_OK)
		return charlm_rank_fail(r, rc, "registering", layer->name);
	r->progress.shard_bytes += r->shards[unit].shard_numel * sizeof(float);

	char name[32];
	(void)snprintf(name, sizeof(name), "adam.%s.%u", layer->name, r->index);
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);
	alloc.job = r->plan->job;
	alloc.name = name;
	alloc.device = r->device;
	alloc.bytes = 2 * r->shards[unit].shard_numel * sizeof(float);
	zerod_allocation *buffer; /* lives as long as the session */
	void *moments;
	rc = zerod_alloc(r->client, &alloc, &buffer, &moments);
	if (rc != ZEROD_OK)
		return charlm_rank_fail(r, rc, "allocating Adam's moments of", layer->name);
	r->moments[unit] = moments;
	return rc;
}

/* A slot of the layers' bucket takes the largest gradient. The tied embedding's gradient is open from one end
 * of the backward to the other, so it has a bucket of its own and blocks no layer's slot. */
static int create_buckets(struct rank *r)
{
	struct zerod_bucket_options layers = ZEROD_INIT(layers), tied = ZEROD_INIT(tied);
	for (unsigned i = CHARLM_HIDDEN1; i < CHARLM_UNITS; i++)
		if (r->shards[i].padded_numel * sizeof(float) > layers.slot_bytes)
			layers.slot_bytes = r->shards[i].padded_numel * sizeof(float);
	layers.dtype = ZEROD_FLOAT32;
	layers.nslots = 2;
	tied.dtype = ZEROD_FLOAT32;
	tied.slot_bytes = r->shards[CHARLM_EMBEDDING].padded_numel * sizeof(float);
	tied.nslots = 1;
	int rc = zerod_bucket_create(r->group, &layers, &r->layers);
	if (rc == ZEROD_OK)
		rc = zerod_bucket_create(r->group, &tied, &r->tied);
	return rc == ZEROD_OK ? rc : charlm_rank_fail(r, rc, "creating the buckets", "");
}

static int create_streams(struct rank *r)
{
	int rc = zerod_host_stream_create(r->client, &r->compute);
	if (rc == ZEROD_OK)
		rc = zerod_host_stream_create(r->client, &r->gradients);
	return rc == ZEROD_OK ? rc : charlm_rank_fail(r, rc, "creating the streams", "");
}

/* Each rank makes its own slices of the initial values; nobody ever has the whole. */
static int publish_initial_values(struct rank *r)
{
	int rc = zerod_update_begin(r->units, CHARLM_UNITS, NULL, NULL);
	if (rc != ZEROD_OK)
		return charlm_rank_fail(r, rc, "beginning the first update", "");
	for (unsigned i = 0; i < CHARLM_UNITS; i++)
		charlm_model_initial(r->plan->model, i, r->plan->seed, r->shards[i].offset_numel,
		                     r->shards[i].true_numel, r->shards[i].data);
	rc = zerod_publish(r->units, CHARLM_UNITS, NULL, 0, NULL, NULL);
	return rc == ZEROD_OK ? rc : charlm_rank_fail(r, rc, "publishing the initial values", "");
}

int charlm_rank_read_memory(struct rank *r)
{
	struct zerod_device_info info = ZEROD_INIT(info);
	int rc = zerod_device_get(r->client, r->device, &info);
	if (rc != ZEROD_OK)
		return charlm_rank_fail(r, rc, "asking for the device", "");
	r->progress.live_bytes = info.allocated_bytes;
	r->progress.peak_bytes = info.peak_bytes;
	return rc;
}

int charlm_rank_init(struct rank *r)
{
	if (charlm_pass_init(r->plan->model, r->plan->batch, &r->pass) != 0)
		return charlm_rank_fail(r, ZEROD_E_SYSTEM, "allocating activations", "");
	int rc = join(r);
	for (unsigned i = 0; i < CHARLM_UNITS && rc == ZEROD_OK; i++)
		rc = register_unit(r, i);
	if (rc == ZEROD_OK)
		rc = create_streams(r);
	if (rc == ZEROD_OK)
		rc = create_buckets(r);
	return rc == ZEROD_OK ? publish_initial_values(r) : rc;
}

void charlm_rank_deinit(struct rank *r)
{
	zerod_stream_destroy(r->gradients);
	zerod_stream_destroy(r->compute);
	zerod_close(r->client); /* units, buckets, moments and the group's place end with the session */
	charlm_pass_deinit(&r->pass);
}
