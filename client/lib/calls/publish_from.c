/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish_from.c - publish with a source dtype: the shard is narrowed to the unit's dtype before any gather
 * reads it.
 *
 * All arguments are checked before the first element is converted. On emulated devices one piece of work
 * converts for all units of a call, so that a stream accepts all or none of them. A GPU runs one kernel for
 * each unit, or a copy if the dtypes are equal. For units on the host the CPU converts, unless a GPU's stream
 * is given. The daemon decides whether an update is open, but it receives the publish only after the
 * conversion. Each unit therefore remembers its update (zc_unit.updating).
 */
#include <errno.h>
#include <stdlib.h>

#include "client/lib/base/errors.h"
#include "client/lib/base/inside.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/update.h"
#include "client/lib/compute/cast.h"
#include "client/lib/device/cuda.h"
#include "client/lib/segments/cuda_segment.h"
#include "client/lib/streams/stream.h"

struct source {
	const char *unit;
	struct zc_conversion conversion;
	bool by_cpu;           /* shard and source are in host memory */
	uint32_t device;       /* of the unit's rank */
	struct zc_location at; /* the shard, which it is converted to */
};

struct sources {
	uint32_t count;
	struct source each[];
};

/* Element `i`, in this library's version of the structure. */
static int source_take(const struct zerod_source *sources, uint32_t i, struct zerod_source *source,
                       struct zd_err *err)
{
	return zc_element(source, sizeof(*source), sources, i, "sources", err);
}

/* ---- Checks -------------------------------------------------------------------------------------------- */

static int check_dtypes(enum zerod_dtype from, const struct zc_unit *unit, struct zd_err *err)
{
	if (zerod_dtype_bytes(from) == 0)
		return zd_err_set(err, ZEROD_E_INVALID, "source_dtype %d is no dtype", (int)from);
	if (!zc_cast_supported(from, unit->dtype))
		return zd_err_set(err, ZEROD_E_UNSUPPORTED, "unit '%s' is %s, which %s is not converted to",
		                  unit->name, zerod_dtype_name(unit->dtype), zerod_dtype_name(from));
	return 0;
}

static int check_data(const struct source *source, const struct zc_unit *unit, struct zd_err *err)
{
	const struct zc_conversion *conversion = &source->conversion;
	size_t element_bytes = zerod_dtype_bytes(conversion->from_dtype);
	uintptr_t from = (uintptr_t)conversion->from, shard = (uintptr_t)conversion->to;

	if (!conversion->from)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "unit '%s': data is NULL, this rank has %llu elements", unit->name,
		                  (unsigned long long)conversion->numel);
	if (from % element_bytes != 0)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': data is not aligned for %s", unit->name,
		                  zerod_dtype_name(conversion->from_dtype));
	if (from < shard + source->at.bytes && shard < from + conversion->numel * element_bytes)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': data overlaps the shard", unit->name);
	return 0;
}

/* With the lock. */
static int take_shard(struct zerod_client *client, struct source *source, const struct zc_unit *unit,
                      struct zd_err *err)
{
	struct zc_conversion *conversion = &source->conversion;
	int rc = zc_location_map(client, &source->at, &conversion->to, err);

	source->by_cpu = !client->on_gpus ||
	                 (unit->on_host && !zc_cuda_is_gpu_address(client, conversion->from));
	if (!rc && client->on_gpus && !unit->on_host && conversion->from_dtype != conversion->to_dtype)
		rc = zc_cuda_converts(zc_segment_find(client, source->at.segment), err);
	return rc ? rc : check_data(source, unit, err);
}

/* With the lock. */
static int take_one(struct zerod_client *client, const struct zerod_source *given, enum zerod_dtype from,
                    struct source *source, struct zd_err *err)
{
	const struct zc_unit *unit = given->unit->shared;
	int rc = check_dtypes(from, unit, err);

	if (rc)
		return rc;
	if (!unit->updating)
		return zd_err_set(err, ZEROD_E_STATE, "unit '%s' is not under update", unit->name);
	*source = (struct source){
	        .unit = unit->name,
	        .conversion = {.from_dtype = from,
	                       .to_dtype = unit->dtype,
	                       .from = given->data,
	                       .numel = unit->true_numel},
	        .at = unit->shard,
	        .device = given->unit->group->device,
	};
	return unit->true_numel > 0 ? take_shard(client, source, unit, err) : 0;
}

static int take_all(struct zerod_client *client, const struct zerod_source *given, enum zerod_dtype from,
                    struct sources *sources, struct zd_err *err)
{
	int rc = 0;
	ZC_LOCKED(&client->lock);

	for (uint32_t i = 0; i < sources->count && !rc; i++) {
		struct zerod_source source;

		rc = source_take(given, i, &source, err);
		if (!rc)
			rc = take_one(client, &source, from, &sources->each[i], err);
	}
	return rc;
}

/* ---- By the CPU ---------------------------------------------------------------------------------------- */

static void convert_one(const struct zc_conversion *each)
{
	if (each->numel > 0)
		zc_cast(each->from_dtype, each->from, each->to_dtype, each->to, each->numel);
}

static void convert(void *arg)
{
	const struct sources *sources = arg;

	for (uint32_t i = 0; i < sources->count; i++)
		convert_one(&sources->each[i].conversion);
}

/* Whether the CPU converts for all units of the call. */
static bool are_on_host(const struct zerod_client *client, const struct sources *sources,
                        const zerod_stream *stream)
{
	bool all = !stream || !stream->ops->convert;

	for (uint32_t i = 0; i < sources->count; i++)
		all &= sources->each[i].by_cpu || sources->each[i].conversion.numel == 0;
	return all || !client->on_gpus;
}

/* ---- By the GPU ---------------------------------------------------------------------------------------- */

/* Copies on a stream of the library, with its other copies. */
static int enqueue_own(struct zerod_client *client, const struct source *source, struct zd_err *err)
{
	const struct zc_conversion *conversion = &source->conversion;
	struct zc_copy copy = {.device = source->device,
	                       .to = conversion->to,
	                       .from = conversion->from,
	                       .bytes = conversion->numel * zerod_dtype_bytes(conversion->to_dtype)};
	int rc;

	if (conversion->from_dtype != conversion->to_dtype)
		copy.conversion = conversion;
	ZC_LOCKED(&client->lock);
	copy.segment = zc_segment_find(client, source->at.segment);
	rc = copy.segment->is_file ? zc_cuda_segment_register(client, copy.segment, err) : 0;
	if (!rc)
		rc = zc_cuda_copy(client, &copy, 1, err);
	return rc;
}

/* With the lock. */
static int check_stream_for(struct zerod_client *client, const struct source *source,
                            const zerod_stream *stream, struct zd_err *err)
{
	int rc = stream->ops->reach(stream, zc_segment_find(client, source->at.segment), err);

	if (!rc && source->conversion.from_dtype != source->conversion.to_dtype)
		rc = stream->ops->converts(stream, err);
	return rc;
}

static int check_stream(struct zerod_client *client, const struct sources *sources,
                        const zerod_stream *stream, struct zd_err *err)
{
	int rc = 0;

	if (!stream->ops->convert)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "the shards are on a GPU, the stream is a host stream");
	ZC_LOCKED(&client->lock);
	for (uint32_t i = 0; i < sources->count && !rc; i++)
		if (sources->each[i].conversion.numel > 0)
			rc = check_stream_for(client, &sources->each[i], stream, err);
	return rc;
}

/* A kernel that reads memory of the CPU which is not registered loses the GPU's context. */
static int check_reads(const struct zerod_client *client, const struct source *source,
                       const zerod_stream *stream, struct zd_err *err)
{
	const struct zc_conversion *conversion = &source->conversion;
	bool by_kernel = conversion->from_dtype != conversion->to_dtype && (stream || !source->by_cpu);

	if (conversion->numel == 0 || !by_kernel || !zc_cuda_is_unreachable(client, conversion->from))
		return 0;
	return zd_err_set(err, ZEROD_E_INVALID,
	                  "unit '%s': data is memory of the CPU, which the GPU cannot read to convert %s to "
	                  "%s; register it with the driver (cudaHostRegister()), or copy it to the GPU",
	                  source->unit, zerod_dtype_name(conversion->from_dtype),
	                  zerod_dtype_name(conversion->to_dtype));
}

static int convert_on_gpu(struct zerod_client *client, const struct sources *sources, zerod_stream *stream,
                          struct zd_err *err)
{
	int rc = stream ? check_stream(client, sources, stream, err) : 0;

	for (uint32_t i = 0; i < sources->count && !rc; i++)
		rc = check_reads(client, &sources->each[i], stream, err);
	for (uint32_t i = 0; i < sources->count && !rc; i++) {
		const struct source *each = &sources->each[i];

		if (each->conversion.numel > 0 && stream)
			rc = stream->ops->convert(stream, &each->conversion, err);
		else if (each->by_cpu)
			convert_one(&each->conversion);
		else if (each->conversion.numel > 0)
			rc = enqueue_own(client, each, err);
	}
	if (!rc && !stream)
		rc = zc_cuda_copies_finish(client, err);
	return rc;
}

/* ---- The call ------------------------------------------------------------------------------------------ */

static int fill_shards(struct zerod_client *client, const struct zerod_source *given, uint32_t count,
                       enum zerod_dtype from, zerod_stream *stream, struct zd_err *err)
{
	struct sources *sources = malloc(sizeof(*sources) + count * sizeof(*sources->each));
	int rc;

	if (!sources)
		return zd_err_errno(err, ENOMEM, "converting to %u shards", count);
	sources->count = count;
	rc = take_all(client, given, from, sources, err);
	if (!rc && are_on_host(client, sources, stream))
		return zc_stream_run(stream, convert, sources, err);
	if (!rc)
		rc = convert_on_gpu(client, sources, stream, err);
	free(sources);
	return rc;
}

int zerod_publish_from(const struct zerod_source *sources, uint32_t count, enum zerod_dtype source_dtype,
                       zerod_stream *stream, const struct zerod_publish_options *given, zerod_ticket *ticket)
{
	struct zerod_publish_options options;
	zerod_unit *units[ZD_MAX_UNITS_PER_REQUEST];
	struct zc_unit_list list; /* large: only the used part is written */
	uint64_t deadline_ns;
	struct zd_err *err;
	int rc;

	if (!sources || count == 0)
		return zd_err_set(zc_err(NULL), ZEROD_E_INVALID, "sources is %s, count is %u",
		                  sources ? "given" : "NULL", count);
	for (uint32_t i = 0; i < count && i < ZD_MAX_UNITS_PER_REQUEST; i++) {
		struct zerod_source source;

		rc = source_take(sources, i, &source, zc_err(NULL));
		if (rc)
			return rc;
		units[i] = source.unit;
	}
	ZC_INSIDE(zc_unit_client(units[0]));
	rc = zc_update_take(units, count, &list, &err);
	if (!rc)
		rc = zc_publish_options(&options, given, err);
	if (!rc)
		rc = zc_stream_check(list.client, stream, err);
	if (rc)
		return rc;
	deadline_ns = zc_until_ns(zc_deadline_ms(list.client, options.deadline_ms));
	rc = fill_shards(list.client, sources, count, source_dtype, stream, err);
	options.deadline_ms = zc_left_ms(deadline_ns);
	return rc ? rc : zc_publish(&list, units, &stream, stream != NULL, &options, ticket, err);
}
