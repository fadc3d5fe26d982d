/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish_from.c - publish with a source dtype: what travels is narrowed on the shard, before any gather reads it.
 *
 * All is checked before the first element is converted. On emulated devices one piece of work converts for all units of a call,
 * so that a stream takes all or nothing; GPUs only copy, until there are kernels. Whether an update is open is the daemon's to
 * say, but it hears of a publish too late: so each unit remembers that (zc_unit.updating).
 */
#include "client/cast.h"
#include "client/cuda.h"
#include "client/stream.h"

#include <errno.h>
#include <stdlib.h>

struct conversion {
	const void *source;
	void *shard;
	struct zc_location at;  /* the shard */
	enum zerod_dtype dtype; /* the unit's */
	uint64_t numel;
};

struct conversions {
	enum zerod_dtype from;
	uint32_t count;
	struct conversion each[];
};

/* ---- Checks ------------------------------------------------------------------------------------------------- */

static int check_dtypes(const struct zerod_client *client, enum zerod_dtype from, const struct zc_unit *unit,
                        struct zd_err *err)
{
	if (zerod_dtype_bytes(from) == 0)
		return zd_err_set(err, ZEROD_E_INVALID, "source_dtype %d is no dtype", (int)from);
	if (!zc_cast_supported(from, unit->dtype))
		return zd_err_set(err, ZEROD_E_UNSUPPORTED, "unit '%s' is %s, which %s is not converted to",
		                  unit->name, zerod_dtype_name(unit->dtype), zerod_dtype_name(from));
	if (client->on_gpus && from != unit->dtype)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "unit '%s' is %s on a GPU, where %s is not converted to it yet", unit->name,
		                  zerod_dtype_name(unit->dtype), zerod_dtype_name(from));
	return 0;
}

static int check_data(const struct conversion *one, enum zerod_dtype from, const struct zc_unit *unit,
                      struct zd_err *err)
{
	size_t element_bytes = zerod_dtype_bytes(from);
	uintptr_t source = (uintptr_t)one->source, shard = (uintptr_t)one->shard;

	if (one->numel == 0)
		return 0;
	if (!one->source)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "unit '%s': data is NULL, this rank has %llu elements", unit->name,
		                  (unsigned long long)one->numel);
	if (source % element_bytes != 0)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': data is not aligned for %s", unit->name,
		                  zerod_dtype_name(from));
	if (source < shard + one->at.bytes && shard < source + one->numel * element_bytes)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': data overlaps the shard", unit->name);
	return 0;
}

/* With the lock. */
static int take_one(struct zerod_client *client, const struct zerod_source *source, enum zerod_dtype from,
                    struct conversion *one, struct zd_err *err)
{
	const struct zc_unit *unit = source->unit->shared;
	int rc = check_dtypes(client, from, unit, err);

	if (rc)
		return rc;
	if (!unit->updating)
		return zd_err_set(err, ZEROD_E_STATE, "unit '%s' is not under update", unit->name);
	*one = (struct conversion){
	        .source = source->data, .at = unit->shard, .dtype = unit->dtype, .numel = unit->true_numel};
	if (one->numel > 0)
		rc = zc_location_map(client, &one->at, &one->shard, err);
	return rc ? rc : check_data(one, from, unit, err);
}

static int take_all(struct zerod_client *client, const struct zerod_source *sources,
                    struct conversions *conversions, struct zd_err *err)
{
	int rc = 0;

	pthread_mutex_lock(&client->lock);
	for (uint32_t i = 0; i < conversions->count && !rc; i++)
		rc = take_one(client, &sources[i], conversions->from, &conversions->each[i], err);
	pthread_mutex_unlock(&client->lock);
	return rc;
}

/* ---- By the CPU ----------------------------------------------------------------------------------------------- */

static void convert(void *arg)
{
	const struct conversions *conversions = arg;

	for (uint32_t i = 0; i < conversions->count; i++) {
		const struct conversion *one = &conversions->each[i];

		if (one->numel > 0)
			zc_cast(conversions->from, one->source, one->dtype, one->shard, one->numel);
	}
}

/* The conversions are the stream's from then on, or freed. */
static int convert_on_host(struct conversions *conversions, zerod_stream *stream, struct zd_err *err)
{
	int rc = 0;

	if (stream)
		rc = stream->ops->launch(stream, convert, conversions, conversions, err);
	else
		convert(conversions);
	if (!stream || rc)
		free(conversions);
	return rc;
}

/* ---- By the GPU ----------------------------------------------------------------------------------------------- */

/* On a stream of the library's, with what else it copies. */
static int enqueue_own(struct zerod_client *client, const struct conversion *one, uint64_t bytes,
                       struct zd_err *err)
{
	struct zc_copy copy = {.to = one->shard, .from = one->source, .bytes = bytes};
	int rc;

	pthread_mutex_lock(&client->lock);
	copy.segment = zc_segment_find(client, one->at.segment);
	rc = zc_cuda_copy(client, &copy, 1, err);
	pthread_mutex_unlock(&client->lock);
	return rc;
}

static int check_stream(struct zerod_client *client, const struct conversions *conversions,
                        const zerod_stream *stream, struct zd_err *err)
{
	int rc = 0;

	if (!stream->ops->copy)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "the shards are on a GPU, the stream is a host stream");
	pthread_mutex_lock(&client->lock);
	for (uint32_t i = 0; i < conversions->count && !rc; i++)
		if (conversions->each[i].numel > 0)
			rc = stream->ops->reach(
			        stream, zc_segment_find(client, conversions->each[i].at.segment), err);
	pthread_mutex_unlock(&client->lock);
	return rc;
}

static int copy_on_gpu(struct zerod_client *client, const struct conversions *conversions,
                       zerod_stream *stream, struct zd_err *err)
{
	int rc = stream ? check_stream(client, conversions, stream, err) : 0;

	for (uint32_t i = 0; i < conversions->count && !rc; i++) {
		const struct conversion *one = &conversions->each[i];
		uint64_t bytes = one->numel * zerod_dtype_bytes(one->dtype);

		if (bytes > 0 && stream)
			rc = stream->ops->copy(stream, one->shard, one->source, bytes, err);
		else if (bytes > 0)
			rc = enqueue_own(client, one, bytes, err);
	}
	if (!rc && !stream)
		rc = zc_cuda_copies_finish(client, err);
	return rc;
}

/* ---- The call ---------------------------------------------------------------------------------------------------- */

static int fill_shards(struct zerod_client *client, const struct zerod_source *sources, uint32_t count,
                       enum zerod_dtype from, zerod_stream *stream, struct zd_err *err)
{
	struct conversions *conversions = malloc(sizeof(*conversions) + count * sizeof(*conversions->each));
	int rc;

	if (!conversions)
		return zd_err_errno(err, ENOMEM, "converting to %u shards", count);
	conversions->from = from;
	conversions->count = count;
	rc = take_all(client, sources, conversions, err);
	if (!rc && !client->on_gpus)
		return convert_on_host(conversions, stream, err);
	if (!rc)
		rc = copy_on_gpu(client, conversions, stream, err);
	free(conversions);
	return rc;
}

int zerod_publish_from(const struct zerod_source *sources, uint32_t count, enum zerod_dtype source_dtype,
                       zerod_stream *stream, uint32_t flags)
{
	zerod_unit *units[ZD_MAX_UNITS_PER_REQUEST];
	struct zc_unit_list list = {.count = 0};
	struct zd_err *err;
	int rc;

	if (!sources || count == 0)
		return zd_err_set(zc_err(NULL), ZEROD_E_INVALID, "no sources are given");
	for (uint32_t i = 0; i < count && i < ZD_MAX_UNITS_PER_REQUEST; i++)
		units[i] = sources[i].unit;
	rc = zc_update_take(units, count, &list, &err);
	if (!rc)
		rc = zc_flags(flags, ZEROD_PUBLISH_FORCE, "zerod_publish_from", err);
	if (!rc)
		rc = zc_stream_check(list.client, stream, err);
	if (!rc)
		rc = fill_shards(list.client, sources, count, source_dtype, stream, err);
	return rc ? rc : zc_publish(&list, units, &stream, stream != NULL, flags, err);
}
